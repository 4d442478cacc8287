"""The memory of a preparation is bounded by its budget, whatever the size of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.programs import printed

#: Prints by how many bytes the peak of memory exceeds what the imports take.
PROGRAM = """
import sys
import pyarrow.compute, pyarrow.parquet
import windeck as wd
wd.prepare, wd.Prepared, wd.Table
def mark(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
before = mark("VmRSS")
result = wd.prepare(
    sys.argv[1], sys.argv[2], id_columns="site", timestamp_column="time",
    file_bytes="4 MiB", row_group_bytes="1 MiB", memory_budget=int(sys.argv[3]), scaler="standard",
)
assert len(result.files) > 20, len(result.files)
print(mark("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_peak_memory_stays_within_the_budget(tmp_path: Path) -> None:
    count, budget = 1_600_000, 144 << 20
    rng = np.random.default_rng(0)
    order = rng.permutation(count)
    columns = {f"c{number}": rng.standard_normal(count) for number in range(6)}
    rows = pa.table({"site": order // 10_000, "time": order % 10_000, **columns})
    assert 2.5 * rows.nbytes > 1.6 * budget  # what sorting in memory takes
    (tmp_path / "in").mkdir()
    for number in range(4):
        part = rows.slice(number * count // 4, count // 4)
        parquet.write_table(part, tmp_path / "in" / f"{number}.parquet", row_group_size=50_000)
    peak = int(printed(PROGRAM, str(tmp_path / "in"), str(tmp_path / "out"), str(budget)))
    assert peak < budget
