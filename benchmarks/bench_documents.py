"""Billions of documents: memory, and time of start-up, a new epoch, a resume and a look-up."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import corpora
import measure
import numpy as np
from measure import Row, compare, compare_fresh, digits, limit, ratio_of

import windeck as wd

HERE = Path(__file__).parent
SIZES = (10**5, 10**6, 10**7)

#: What every measured process begins with; CPU time counts all its threads.
SETUP = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import json, pickle, random, time
import numpy as np
import windeck as wd
import corpora
wd.Loader
def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))
def loader(shards, order="shards"):
    packed = wd.PackedSequences(corpora.Generated(shards), sequence_length=1024, order=order, eos=2)
    return wd.Loader(packed, batch_size=8, seed=7)
def first(loader):
    return next(iter(loader))
"""

OURS = """
wd.PackedSequences(corpora.Generated(1), sequence_length=64).gather(np.arange(2))
before, begun = resident(), time.perf_counter()
made = loader({documents} // corpora.SHARD)
first(made)
seconds, after = time.perf_counter() - begun, resident()
state = json.dumps(made.state_dict())
"""

LIST = """
before, begun = resident(), time.perf_counter()
shards = range({documents} // corpora.SHARD)
made = [("generated", shard, doc) for shard in shards for doc in range(corpora.SHARD)]
random.Random(7).shuffle(made)
seconds, after = time.perf_counter() - begun, resident()
state = pickle.dumps(made)
"""

TELL = "\nprint(json.dumps([after - before, seconds, len(state)]))"


def fresh(code: str) -> Any:
    """Return the last line that a process of its own prints, from JSON."""
    done = subprocess.run(
        [sys.executable, "-c", SETUP + code], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


# Memory, start-up and checkpoint against a list of all documents.


def found_at(code: str, documents: int, rounds: int) -> list[float]:
    """Resident bytes, seconds and checkpoint bytes: medians over processes."""
    found = [fresh(code.format(documents=documents) + TELL) for _ in range(rounds)]
    return [statistics.median(values) for values in zip(*found, strict=True)]


def against_a_list() -> Iterator[Row]:
    found = {
        side: [found_at(code, documents, rounds) for documents in SIZES]
        for side, code, rounds in (("windeck", OURS, 5), ("list", LIST, 1))
    }
    picture(found, measure.OUT / "bench_documents.png")
    for number, what in enumerate(("resident bytes", "start-up seconds", "checkpoint bytes")):
        mine = [max(each[number], 1e-9) for each in found["windeck"]]
        theirs = [each[number] for each in found["list"]]
        for documents, ours, rival in zip(SIZES[1:], mine[1:], theirs[1:], strict=True):
            yield Row(
                question=f"{what} at {documents:.0e} documents",
                ours=f"PackedSequences, Loader, first batch: {digits(ours)}",
                rival=f"a shuffled list of tuples: {digits(rival)}",
                ratio=ratio_of([(ours, rival)]),
                needed=None,
                bound="the sums of the live shards" if number == 0 else "",
            )
        yield Row(
            question=f"{what} from 10^5 to 10^7 documents, growth",
            ours=f"{mine[-1] / mine[0]:.2f}-fold",
            rival=f"twofold is flat; the list: {theirs[-1] / theirs[0]:.0f}-fold",
            ratio=limit(mine[-1] / mine[0], 2),
            needed=1,
        )


def picture(found: dict[str, list[list[float]]], path: Path) -> None:
    """Three panels, a line a side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = ("resident memory [MB]", "start-up to the first batch [s]", "checkpoint [bytes]")
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
        for side, color in (("list", "#d1495b"), ("windeck", "#3b6ea5")):
            values = [each[number] / (1e6 if number == 0 else 1) for each in found[side]]
            axes.plot(SIZES, values, "o-", color=color, label=side)
        axes.set(xscale="log", yscale="log", title=name, xlabel="documents")
        axes.grid(alpha=0.3)
    panels[0].legend(["shuffled list of tuples", "windeck"])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


# 10^9 documents against 10^6.

TASKS = {
    "start-up to the first batch": ("", "first(loader({shards}))"),
    "a new epoch to its first batch": (
        "made = loader({shards}); first(made)\n"
        "state = dict(made.state_dict(), position=3 * made.stream.epoch_length)",
        "made.load_state_dict(state); first(made)",
    ),
    "resume in the middle of epoch 5": (
        "made = loader({shards})\n"
        "state = dict(made.state_dict(), position=int(5.5 * made.stream.epoch_length))",
        "made = loader({shards}); made.load_state_dict(state); first(made)",
    ),
}


def cpu_seconds(shards: int, prepare: str, code: str) -> float:
    """CPU time of `code` over so many shards, all threads counted, in a process of its own."""
    lines = (
        prepare.format(shards=shards),
        "begun = time.process_time()",
        code.format(shards=shards),
        "print(json.dumps(time.process_time() - begun))",
    )
    return float(fresh("\n".join(lines)))


def billion() -> Iterator[Row]:
    for what, (prepare, code) in TASKS.items():
        pairs = [
            (cpu_seconds(10_000, prepare, code), cpu_seconds(10, prepare, code)) for _ in range(5)
        ]
        ratio = ratio_of(pairs)
        yield Row(
            question=f"CPU time of {what}, 10^9 documents in 10,000 shards",
            ours=f"10^9: {ratio.ours_seconds:.3f} s",
            rival=f"10^6 in 10 shards: {ratio.rival_seconds:.3f} s",
            ratio=ratio,
            needed=1 / 1000,
            bound="the sums of the shards that a batch touches",
        )
        yield Row(
            question=f"CPU time of {what}, 10^9 documents",
            ours=f"{ratio.ours_seconds:.3f} s",
            rival="2 s",
            ratio=limit(ratio.ours_seconds, 2),
            needed=1,
        )


# The index of order="global".


GLOBAL = """
packed = wd.PackedSequences(
    corpora.Generated({shards}), sequence_length=1024, order="global", eos=2
)
small = wd.PackedSequences(corpora.Generated(1), sequence_length=64, order="global", eos=2)
small.at_epoch(3, seed=1).gather(np.arange(8))
before, begun = resident(), time.perf_counter()
packed.build_index(seed=7)
seconds = time.perf_counter() - begun
epoch = packed.at_epoch(3, seed=7)
epoch.gather(np.arange(8))
after = resident()
print(json.dumps([after - before, seconds]))
"""


def global_index(documents: int) -> Iterator[Row]:
    """Bytes by which a process grows with the index and an epoch of it."""
    grown, seconds = fresh(GLOBAL.format(shards=documents // corpora.SHARD))
    yield Row(
        question=f'resident bytes of the index of order="global", {documents:.0e} documents, '
        f"built in {seconds:.0f} s",
        ours=f"index and an epoch: {grown / 1e6:.1f} MB",
        rival="16 MB",
        ratio=limit(grown, 16e6),
        needed=1,
        bound="8 bytes a block of 1,024 documents, and a sixteenth for each live epoch",
    )


# Look-ups among 10,000 files.


def corpus_of_files(folder: Path, files: int = 10_000) -> wd.Documents:
    """Small files of a few documents each, with a count file beside them."""
    rng = np.random.default_rng(0)
    lines = ["dataset/filename,documents,tokens"]
    for part, count in enumerate(rng.integers(1, 12, files)):
        documents = [np.arange(1 + doc % 3, dtype=np.uint16) for doc in range(count)]
        name = f"dataset=small/t.part{part}.arrow"
        corpora.write(folder / name, documents, "lists")
        lines.append(f"/{name},{count},{sum(len(tokens) for tokens in documents)}")
    (folder / "meta").mkdir()
    (folder / "meta" / "small_counts.csv").write_text("\n".join(lines) + "\n")
    return wd.Documents(folder)


def lookups(documents: wd.Documents) -> Iterator[Row]:
    wanted = np.random.default_rng(1).integers(0, len(documents), 10**6)
    plain = wanted.tolist()
    ends = list(accumulate(int(count) for count in documents.shard_documents))
    starts = [0, *ends]

    def bisected() -> tuple[list[int], list[int]]:
        parts, within = [], []
        for number in plain:
            part = bisect_right(ends, number)
            parts.append(part)
            within.append(number - starts[part])
        return parts, within

    dataset, shard, doc = documents.locate(wanted)
    assert not dataset.any()
    assert (shard.tolist(), doc.tolist()) == bisected()
    assert np.array_equal(documents.index((dataset, shard, doc)), wanted)
    yield Row(
        question="locate a million random documents among 10,000 files",
        ours="Documents.locate",
        rival="bisect in a loop",
        ratio=compare(lambda: documents.locate(wanted), bisected, rounds=9),
        needed=50,
        bound="the memory of three arrays of a million",
    )


def starts_of_files(folder: Path) -> Iterator[Row]:
    begun = time.process_time()
    wd.Documents(folder)
    seconds = time.process_time() - begun
    yield Row(
        question="CPU time of opening a folder of 10,000 files with a count file",
        ours=f"{seconds:.2f} s",
        rival="2 s",
        ratio=limit(seconds, 2),
        needed=1,
        bound="a look at both ends of every file",
    )


# Far positions.

FAR = "made = loader(10); made.load_state_dict(dict(state, position={position})); first(made)"


def far_away() -> Iterator[Row]:
    setup = SETUP + "\nstate = loader(10).state_dict()"
    yield Row(
        question="resume at position 10^10, in a fresh process",
        ours="at 10^10",
        rival="at 0",
        ratio=compare_fresh(
            FAR.format(position=10**10), FAR.format(position=0), rounds=9, setup=setup
        ),
        needed=0.5,
        bound="the sums of the shard that the batch touches",
    )


def rows() -> Iterator[Row]:
    yield from against_a_list()
    yield from billion()
    yield from far_away()
    with tempfile.TemporaryDirectory() as folder:
        documents = corpus_of_files(Path(folder))
        yield from starts_of_files(Path(folder))
        yield from lookups(documents)
    yield from global_index(10**9)
