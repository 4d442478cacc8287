"""Row groups that are larger than the budget: refused with the cure, which works as it is named."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd
from support.programs import command
from support.real_data import real_data

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}
ROWS = 1 << 16


def made_rows() -> pa.Table:
    """Return series of a number, a small one and a flag: rows have fewer bytes in files."""
    random = np.random.default_rng(0)
    return pa.table(
        {
            "site": np.repeat(np.arange(8), ROWS // 8),
            "time": np.tile(np.arange(ROWS // 8), 8),
            "load": random.standard_normal(ROWS),
            "state": random.integers(0, 9, ROWS).astype(np.int8),
            "flag": random.random(ROWS) < 0.5,
        }
    )


def real_rows() -> pa.Table:
    """Return the series of the Numenta benchmark, sorted."""
    data = parquet.read_table(real_data("nab.parquet"))
    names = data["series"].cast(pa.string())
    data = pa.table({"site": names, "time": data["timestamp"], "load": data["value"]})
    return data.sort_by([("site", "ascending"), ("time", "ascending")])


def windows_of(path: Path, context: int, **options: Any) -> wd.Windows:
    options = KEYS | {"columns": ["load"], "in_memory": False} | options
    return wd.Windows(wd.Table.read(path, **options), context_length=context, prediction_length=2)


@pytest.mark.parametrize(("context", "share"), [(5, None), (50, None), (50, 8)])
@pytest.mark.parametrize("rows", [made_rows, real_rows])
def test_the_error_names_row_groups_that_fit_and_how_to_write_them(
    tmp_path: Path, context: int, share: int | None, rows: Any
) -> None:
    data = rows()
    budget = 8 * len(data) // 2
    sizes = {} if share is None else {"group_bytes": budget // share}
    source = tmp_path / "a.parquet"
    parquet.write_table(data, source, row_group_size=len(data))
    with pytest.raises(MemoryError) as caught:
        windows_of(source, context, memory_budget=budget, **sizes)
    message = str(caught.value)
    found = re.search(
        r"need memory_budget=(\d+) .* at least, for 2 groups of 1 block with the rows after them,"
        rf" .*, got {budget}; row group 0 of '.*a\.parquet' has {len(data):,} "
        r"rows, of which up to ([\d,]+) fit: pass a larger memory_budget=, or files of `(.*)`"
        r"(?: and group_bytes=(\d+))?$",
        message,
    )
    assert found is not None, message
    # Two groups of a row group, with a sixteenth of the budget for first rows.
    least = int(found[1])
    assert 2 * 8 * len(data) <= least < 2.3 * 8 * len(data)
    memory = windows_of(source, context, in_memory=True)
    enough = windows_of(source, context, memory_budget=least, **sizes)
    some = np.array([0, len(memory) // 2, len(memory) - 1])
    np.testing.assert_array_equal(
        enough.gather(some)["past_target"], memory.gather(some)["past_target"]
    )
    with pytest.raises(MemoryError):
        windows_of(source, context, memory_budget=least - 1, **sizes)

    # Row groups of as many rows as are named fit, each a group of its own; larger ones do not.
    most = int(found[2].replace(",", ""))
    for more in (0, 1):
        other = tmp_path / f"{more}.parquet"
        parquet.write_table(data, other, row_group_size=most + more)
        if more:
            with pytest.raises(MemoryError, match="row group 0 of"):
                windows_of(other, context, memory_budget=budget, group_bytes=1)
        else:
            assert len(windows_of(other, context, memory_budget=budget, group_bytes=1))

    # The command that is named, and the size of groups, which is only named where it is needed.
    words = shlex.split(found[3])
    assert words[:4] == ["windeck", "prepare", "SRC", "DEST"]
    made = tmp_path / "made"
    named = ["--id", "site", "--time", "time", "--duplicates", "keep", "--quiet"]
    code, _, error = command("prepare", str(source), str(made), *words[4:], *named)
    assert code == 0, error
    assert (found[4] is None) == (share is not None)
    if found[4] is not None:
        sizes = {"group_bytes": int(found[4])}
    streamed = windows_of(made, context, memory_budget=budget, **sizes)
    assert "coarse" not in str(streamed.explain())
    order = streamed.default_order
    loaders = [wd.Loader(one, batch_size=512, seed=3, order=order) for one in (streamed, memory)]
    for one, other in itertools.islice(zip(*loaders, strict=True), 50):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


def test_groups_of_small_row_groups_need_a_smaller_group_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(made_rows(), path, row_group_size=1000)
    with pytest.raises(MemoryError, match=r"; pass a larger memory_budget= or a smaller") as caught:
        windows_of(path, 5, memory_budget=1 << 18)
    assert "prepare" not in str(caught.value)
    assert len(windows_of(path, 5, memory_budget=1 << 18, group_bytes=1 << 15))


def test_rows_after_a_block_may_be_too_many_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(made_rows(), path, row_group_size=1000)
    with pytest.raises(MemoryError, match=r"memory_budget=, fewer columns or shorter windows$"):
        windows_of(path, 5_000, memory_budget=1 << 16, group_bytes=1)


def test_a_large_record_batch_needs_a_smaller_group(tmp_path: Path) -> None:
    """No part of the file is in one block, since record batches are read in blocks of any size."""
    table = pa.table({"value": np.arange(100_000.0)})
    path = tmp_path / "one.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_batch(table.to_batches()[0])
    read = wd.Table.read(path, in_memory=False, memory_budget=300_000, group_bytes=300_000)
    with pytest.raises(MemoryError, match="a larger memory_budget= or a smaller group"):
        wd.Windows(read, context_length=48, prediction_length=24)
