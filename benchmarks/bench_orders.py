"""Time of a shuffled order, and memory and time at 10^12 samples."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from measure import Ratio, Row, compare, compare_fresh, limit

import windeck as wd

COUNT = 10**8


def rows() -> Iterator[Row]:
    out = np.empty(COUNT, dtype=np.int64)
    yield against_numpy(out)
    yield against_copying(out)
    yield baseline_against_copying()
    yield from against_grain()
    yield memory_of_a_pass()
    yield first_slice()


def against_numpy(out: np.ndarray) -> Row:
    """A whole epoch's order into a buffer that is there, against NumPy's shuffle."""
    order = wd.Permutation(COUNT, seed=42)
    order.slice(0, COUNT, out)
    seen = np.zeros(COUNT, dtype=bool)
    seen[out] = True
    assert seen.all(), "every sample once"
    del seen
    random = np.random.default_rng(42)
    return Row(
        question="order of 10^8 samples",
        ours="Permutation.slice, reused buffer",
        rival="numpy Generator.permutation",
        ratio=compare(
            lambda: order.slice(0, COUNT, out),
            lambda: random.permutation(COUNT),
            rounds=3,
            warm_up=0,
        ),
        needed=20,
        bound="arithmetic; the rival by cache misses",
    )


def copying(out: np.ndarray) -> Ratio:
    """An order of 10^8, against copying as many int64."""
    order = wd.Permutation(COUNT, seed=42)
    source = np.ones_like(out)
    order.slice(0, COUNT, out)
    assert np.array_equal(order.index(out[:1000]), np.arange(1000))
    return compare(
        lambda: order.slice(0, COUNT, out), lambda: np.copyto(out, source), rounds=9, warm_up=1
    )


def against_copying(out: np.ndarray) -> Row:
    level = wd._core.simd()
    return Row(
        question="the same, per index",
        ours=f"Permutation.slice, {level}",
        rival="numpy.copyto of as many int64",
        ratio=copying(out),
        needed=1 / 5 if level == "avx512" else None,
        bound="arithmetic; the rival by memory",
    )


def baseline_against_copying() -> Row:
    """The same in a process that may use no more than x86-64 has."""
    code = (
        "import json, numpy, bench_orders as b; from dataclasses import asdict; "
        "print(json.dumps(asdict(b.copying(numpy.empty(b.COUNT, numpy.int64)))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WINDECK_SIMD": "baseline"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return Row(
        question="the same, per index",
        ours="Permutation.slice, WINDECK_SIMD=baseline",
        rival="numpy.copyto of as many int64",
        ratio=Ratio(**json.loads(done.stdout)),
        needed=1 / 16,
        bound="arithmetic: SSE2 multiplies two values at a time",
    )


def grain_index_shuffle() -> Callable[..., int] | None:
    """Grain's native function, straight from its file: the package imports much else."""
    spec = importlib.util.find_spec("grain")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(folder).rglob("index_shuffle_module*.so"):
            found = importlib.util.spec_from_file_location("index_shuffle_module", file)
            assert found is not None
            assert found.loader is not None
            module: Any = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            shuffle: Callable[..., int] = module.index_shuffle
            return shuffle
    return None


def against_grain() -> Iterator[Row]:
    """Per index, called once for each, as Grain's loader does."""
    shuffle = grain_index_shuffle()
    if shuffle is None:
        print("  skipped: Grain's index_shuffle, for grain is not installed (pip install grain)")
        return
    calls, repeats = 2000, 100
    order = wd.Permutation(COUNT, seed=42)
    out = np.empty(calls * repeats, dtype=np.int64)
    theirs = [shuffle(i, max_index=COUNT - 1, seed=42, rounds=4) for i in range(calls)]
    assert len(set(theirs)) == len(set(order[:calls].tolist())) == calls

    def per_index() -> None:
        for i in range(calls):
            shuffle(i, max_index=COUNT - 1, seed=42, rounds=4)

    ratio = asdict(compare(lambda: order.slice(0, len(out), out), per_index, rounds=15))
    # Ours did `repeats` times as many indices.
    for name in ("median", "low", "high", "rival_seconds"):
        ratio[name] *= repeats
    yield Row(
        question="the same, per index",
        ours="Permutation.slice of 200,000",
        rival="Grain's index_shuffle, called per index",
        ratio=Ratio(**ratio),
        needed=500,
        bound="arithmetic; the rival by calls from Python",
    )


def memory_of_a_pass() -> Row:
    """Resident memory that a pass over 10^12 samples adds: a batch at each of 10^5 places."""
    code = (
        "import resource, numpy as np, windeck as wd\n"
        "size, batch = 10**12, 1024\n"
        "out = np.zeros(batch, np.int64)\n"
        "wd.Permutation(1000).slice(0, 1000)\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = peak()\n"
        "order = wd.Permutation(size, seed=42)\n"
        "for start in range(0, size - batch, size // 10**5):\n"
        "    order.slice(start, start + batch, out)\n"
        "    assert 0 <= out.min() and out.max() < size\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Row(
        question="memory of a shuffled pass over 10^12",
        ours="Permutation.slice in batches",
        rival="1 MiB allowed",
        # A page is the least that would be seen.
        ratio=limit(max(int(done.stdout), 4096), 2**20),
        needed=1,
        bound="a page, the least that is counted",
    )


def first_slice() -> Row:
    """Construction and first batch in a fresh process, at 10^12 against at 10^3."""
    setup = "import numpy as np, windeck as wd\nout = np.zeros(1000, np.int64)"
    code = "wd.Permutation({size}, seed=42).slice(0, 1000, out)"
    return Row(
        question="first batch of 1,000 in a fresh process",
        ours="at 10^12 samples",
        rival="at 10^3 samples",
        ratio=compare_fresh(
            code.format(size=10**12), code.format(size=10**3), rounds=15, setup=setup
        ),
        needed=1 / 2,
        bound="the first touch of code",
    )
