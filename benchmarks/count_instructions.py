"""Count the instructions of hot loops, which a busy machine does not change.

    python benchmarks/count_instructions.py --save before.json
    python benchmarks/count_instructions.py --compare before.json
    python benchmarks/count_instructions.py --only "Windows.gather, batch 32"

Each loop runs in a Python process of its own under ``valgrind --tool=callgrind``, which is said
when it begins and ends. The loop is repeated N times and then 2N times in the same process, and
what one iteration takes is (I(2N) - I(N)) / N: start-up and whatever a loop costs once cancel out.
Instructions are those of the AVX2 kernels, for valgrind knows no AVX-512, in one thread. Counts
compare two builds by the same compiler, on the same Python, NumPy and torch; they say nothing of
caches.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Loop = Callable[[], object]

ROWS, CHANNELS, STEPS, HORIZON = 200_000, 8, 96, 24

#: Called between the stretches of a run, where callgrind is told to write its count down.
MARKER = "getppid"


def permutation_slice() -> Loop:
    import numpy as np

    import windeck as wd

    order, out = wd.Permutation(10**9, seed=7), np.empty(65_536, np.int64)
    return lambda: order.slice(1000, 1000 + 65_536, out)


def permutation_index() -> Loop:
    import windeck as wd

    order = wd.Permutation(10**9, seed=7)
    return lambda: [order[number] for number in range(100)]


def block_permutation_slice() -> Loop:
    import windeck as wd

    order = wd.BlockPermutation(10**9, block_size=256, blocks_in_buffer=16, seed=7)
    return lambda: order.slice(1000, 1000 + 65_536)


def columns() -> dict[str, Any]:
    """Columns of float32, with a missing value here and there in each."""
    import numpy as np

    rows = np.arange(ROWS)
    found = {}
    for channel in range(CHANNELS):
        values = ((rows * (37 + channel)) % 1009).astype(np.float32)
        values[channel::997] = np.nan
        found[f"c{channel}"] = values
    return found


def windows(table: Any, **options: Any) -> Any:
    import windeck as wd

    return wd.Windows(table, context_length=STEPS, prediction_length=HORIZON, **options)


def table() -> Any:
    import windeck as wd

    return wd.Table.from_columns(columns(), offsets=[0, ROWS // 2, ROWS])


def scattered(samples: int, batch: int) -> Any:
    """The same numbers of samples in every run, far from each other."""
    import numpy as np

    return (np.arange(batch) * 7919 + 13) % samples


def windows_gather(batch: int, scaled: bool) -> Loop:
    import windeck as wd

    rows = table()
    scaler = wd.Scaler.fit(rows, sample=1000) if scaled else None
    source = windows(rows, scaler=scaler)
    wanted = scattered(len(source), batch)
    assert ("past_target_mask" in source.gather(wanted)) is True
    return lambda: source.gather(wanted)


def complete_gather(batch: int, masks: bool) -> Loop:
    """The gather of one column without missing values, with masks or without."""
    import numpy as np

    import windeck as wd

    rows = wd.Table.from_columns({"c0": np.zeros(ROWS, np.float32)}).with_missing_counts()
    source = windows(rows, masks=masks)
    wanted = scattered(len(source), batch)
    return lambda: source.gather(wanted)


def complete_step(masks: bool) -> Loop:
    """A step of a loader, without missing values, with masks or without."""
    import numpy as np
    import torch

    import windeck as wd

    torch.set_num_threads(1)
    rows = wd.Table.from_columns({"c0": np.zeros(ROWS, np.float32)}).with_missing_counts()
    source = windows(rows, masks=masks)
    loader = wd.Loader(source, batch_size=32, shuffle=True, seed=7, prefetch=0)
    batches = iter(loader)
    return lambda: next(batches)


def rows_storage_gather() -> Loop:
    import numpy as np

    import windeck as wd

    matrix = ((np.arange(ROWS * CHANNELS) * 37) % 1009).astype(np.float32)
    names = [f"c{channel}" for channel in range(CHANNELS)]
    source = windows(wd.Table.from_rows(matrix.reshape(ROWS, CHANNELS), names))
    wanted = scattered(len(source), 256)
    return lambda: source.gather(wanted)


def corpus(folder: Path) -> Any:
    import numpy as np
    import pyarrow as pa
    from pyarrow import feather

    import windeck as wd

    (folder / "dataset=frozen").mkdir(parents=True)
    for part in range(4):
        sizes = (np.arange(500) * 31 + part) % 300
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        tokens = ((np.arange(int(ends[-1])) * 17 + part) % 50_000).astype(np.uint16)
        lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(tokens))
        path = folder / f"dataset=frozen/x.part{part}.arrow"
        feather.write_feather(pa.table({"tokens": lists}), path, compression="uncompressed")
    return wd.Documents(folder)


def packed_gather() -> Loop:
    import windeck as wd

    with tempfile.TemporaryDirectory() as folder:
        source = wd.PackedSequences(corpus(Path(folder)), sequence_length=1024, eos=0)
        wanted = scattered(len(source), 16)
        source.gather(wanted)  # The files are mapped from here on.
    return lambda: source.gather(wanted)


def mixture_gather() -> Loop:
    import numpy as np

    import windeck as wd

    rows = table()
    parts = {"long": (windows(rows), 0.7), "strided": (windows(rows, stride=3), 0.3)}
    mixture = wd.Mixture(parts, seed=7)
    positions = np.arange(10_000, 10_256)
    return lambda: mixture.gather(positions)


def split_gather() -> Loop:
    """A gather of the first part of a split."""
    first = windows(table()).split(validation=0.1, test=0.1).train
    wanted = scattered(len(first), 256)
    return lambda: first.gather(wanted)


def jagged_gather() -> Loop:
    import numpy as np
    import pyarrow as pa

    import windeck as wd

    ends = np.concatenate([[0], np.cumsum(np.arange(20_000) * 31 % 40)]).astype(np.int32)
    ids = pa.array(np.arange(int(ends[-1])) * 7919 % 1_000_003)
    clicked = pa.ListArray.from_arrays(pa.array(ends), ids)
    rows = wd.JaggedTable.from_arrow(pa.table({"clicked": clicked, "label": np.arange(20_000)}))
    wanted = scattered(len(rows), 256)
    return lambda: rows.gather(wanted)


def loader_step() -> Loop:
    import torch

    import windeck as wd

    torch.set_num_threads(1)
    loader = wd.Loader(windows(table()), batch_size=32, shuffle=True, seed=7, prefetch=0)
    batches = iter(loader)
    return lambda: next(batches)


def table_lookup() -> Loop:
    import torch

    import windeck as wd

    torch.set_num_threads(1)
    embeddings = wd.EmbeddingTable(16, threads=1, seed=7)
    ids = torch.arange(4096) * 7919 % 1_000_003
    return lambda: embeddings(ids)


#: Each loop, and how many times it is repeated: N.
LOOPS: dict[str, tuple[Callable[[], Loop], int]] = {
    "Permutation.slice, 65,536": (permutation_slice, 20),
    "Permutation[i], 100 times": (permutation_index, 2000),
    "BlockPermutation.slice, 65,536": (block_permutation_slice, 3),
    "Windows.gather, batch 32": (partial(windows_gather, 32, False), 50),
    "Windows.gather, batch 1,024, scaled": (partial(windows_gather, 1024, True), 4),
    **{
        f"Windows.gather, nothing missing, batch {batch}, masks={masks}": (
            partial(complete_gather, batch, masks),
            20,
        )
        for batch in (32, 1024)
        for masks in (False, True)
    },
    **{
        f"Loader step, nothing missing, masks={masks}": (partial(complete_step, masks), 50)
        for masks in (False, True)
    },
    "rows storage, Windows.gather, batch 256": (rows_storage_gather, 20),
    "PackedSequences.gather, 16 x 1,024": (packed_gather, 40),
    "Mixture.gather, batch 256": (mixture_gather, 20),
    "Windows.split, gather of a part, batch 256": (split_gather, 20),
    "JaggedTable.gather, batch 256": (jagged_gather, 20),
    "Loader step, batch 32, prefetch=0": (loader_step, 50),
    "EmbeddingTable lookup, 4,096 ids": (table_lookup, 20),
}


def run(name: str) -> None:
    """Run the loop under valgrind, between markers."""
    make, count = LOOPS[name]
    loop = make()
    for _ in range(5):
        loop()
    gc.collect()
    gc.disable()
    os.getppid()
    for _ in range(count):
        loop()
    os.getppid()
    for _ in range(2 * count):
        loop()
    os.getppid()


def count_of(name: str) -> float:
    """Instructions of one iteration of a loop."""
    settings = {"PYTHONHASHSEED": "0", "WINDECK_NUM_THREADS": "1", "WINDECK_SIMD": "avx2"}
    settings |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}"]
        tool += [f"--dump-before={MARKER}", "--combine-dumps=yes"]
        program = [sys.executable, __file__, "--run", name]
        done = subprocess.run(
            tool + program, env={**os.environ, **settings}, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed under valgrind:\n{done.stderr[-4000:]}")
        found = re.findall(r"^totals: (\d+)", counts.read_text(), re.MULTILINE)
    if len(found) != 4:
        raise RuntimeError(f"callgrind wrote {len(found)} counts, expected 4: is {MARKER} known?")
    _, once, twice, _ = map(int, found)
    return (twice - once) / LOOPS[name][1]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", action="append", choices=list(LOOPS), help="this loop")
    parser.add_argument("--save", type=Path, help="write the counts to this file as well")
    parser.add_argument("--compare", type=Path, help="print ratios to the counts in this file")
    parser.add_argument("--run", choices=list(LOOPS), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.run:
        run(given.run)
        return
    before: Mapping[str, float] = json.loads(given.compare.read_text()) if given.compare else {}
    counts = {}
    for name in given.only or LOOPS:
        print(f"counting {name}", file=sys.stderr, flush=True)
        counts[name] = count_of(name)
    if given.save:
        given.save.write_text(json.dumps(counts, indent=1) + "\n")
    table: dict[str, Any] = counts
    if given.compare:
        table = {
            name: {"instructions": count, "ratio": round(count / before[name], 5)}
            for name, count in counts.items()
            if name in before
        }
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
