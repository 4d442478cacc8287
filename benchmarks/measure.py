"""How everything here is measured: in one process, interleaved, medians of many runs.

Absolute times on shared machines mean little, ratios of neighbouring runs a good deal. Each
round times the rival and ours one after the other; the ratio of a round is rival / ours, and
what is reported is the median of the rounds with their quartiles.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Where pictures go; `run.py` sets it to its --out.
OUT = Path("out")


@dataclass(frozen=True)
class Ratio:
    """Rival's time over ours: above 1, ours is faster."""

    median: float
    low: float
    high: float
    ours_seconds: float
    rival_seconds: float

    def __str__(self) -> str:
        return f"{self.median:.3g}x ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Row:
    """One line of the table of figures.

    `needed` is the least the ratio may be, or None for a figure that is only told. A figure
    that is a limit ("under 1 MiB") puts what is allowed over what was found in `ratio` (see
    `limit`), so that everywhere more is better and 1 is the line.
    """

    question: str
    ours: str
    rival: str
    ratio: Ratio
    needed: float | None
    bound: str = ""

    @property
    def reached(self) -> bool:
        return self.needed is None or self.ratio.median >= self.needed


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call, in seconds."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compare(
    ours: Callable[[], object],
    rival: Callable[[], object],
    *,
    rounds: int = 15,
    warm_up: int = 2,
    repeat: int = 1,
) -> Ratio:
    """Times `ours` and `rival` interleaved, `repeat` calls to a measurement.

    The caller asserts beforehand that both give the same result. Warm-up rounds touch the
    memory and are not counted; the order within a round alternates, so that neither side always
    follows the other's cache.
    """

    def several(action: Callable[[], object]) -> float:
        return seconds(lambda: [action() for _ in range(repeat)]) / repeat

    for _ in range(warm_up):
        ours()
        rival()
    pairs = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            if turn % 2:
                ours_seconds, rival_seconds = several(ours), several(rival)
            else:
                rival_seconds, ours_seconds = several(rival), several(ours)
            pairs.append((ours_seconds, rival_seconds))
    finally:
        if was_enabled:
            gc.enable()
    return ratio_of(pairs)


@dataclass(frozen=True)
class Costs:
    """A comparison by wall time and by processor time of all threads, of the same runs."""

    wall: Ratio
    cpu: Ratio


def compare_costs(
    ours: Callable[[], object],
    rival: Callable[[], object],
    *,
    before: Callable[[], object] = lambda: None,
    rounds: int = 9,
    warm_up: int = 1,
    twice: bool = False,
) -> Costs:
    """As `compare`, with processor time too; `before` is called before each call, not timed.

    With `twice`, each call that is timed comes after one of the same kind that is not: so both
    sides find the pages that the kernel had for them last, not those it must get from a host.
    """

    def costs(action: Callable[[], object]) -> tuple[float, float]:
        if twice:
            before()
            action()
        before()
        start = time.perf_counter(), time.process_time()
        action()
        return time.perf_counter() - start[0], time.process_time() - start[1]

    wall, cpu = [], []
    for turn in range(-warm_up, rounds):
        first, second = (ours, rival) if turn % 2 else (rival, ours)
        one, two = costs(first), costs(second)
        (our_wall, our_cpu), (rival_wall, rival_cpu) = (one, two) if turn % 2 else (two, one)
        if turn >= 0:
            wall.append((our_wall, rival_wall))
            cpu.append((our_cpu, rival_cpu))
    return Costs(ratio_of(wall), ratio_of(cpu))


def compare_fresh(ours: str, rival: str, *, rounds: int = 9, setup: str = "") -> Ratio:
    """Times two pieces of Python code, each run in a process of its own, interleaved.

    What is timed is the code alone, on the process's own clock, after `setup`; one process of
    each is started beforehand, so that the files are in the page cache.
    """
    fresh_seconds(ours, setup)
    fresh_seconds(rival, setup)
    return ratio_of(
        [(fresh_seconds(ours, setup), fresh_seconds(rival, setup)) for _ in range(rounds)]
    )


def fresh_seconds(code: str, setup: str = "") -> float:
    """Wall time of `code` in a new interpreter, in seconds."""
    program = (
        f"{setup}\nimport time\nstart = time.perf_counter()\n{code}\n"
        "print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return float(done.stdout.splitlines()[-1])


def ratio_of(pairs: list[tuple[float, float]]) -> Ratio:
    """The ratio of (ours, rival) pairs: median and quartiles of the single ratios."""
    ratios = [rival / ours for ours, rival in pairs]
    low, median, high = (
        ratios * 3 if len(ratios) == 1 else statistics.quantiles(ratios, n=4, method="inclusive")
    )
    return Ratio(
        median=median,
        low=low,
        high=high,
        ours_seconds=statistics.median(ours for ours, _ in pairs),
        rival_seconds=statistics.median(rival for _, rival in pairs),
    )


def limit(found: float, allowed: float) -> Ratio:
    """A figure that must stay under a limit, as allowed / found; 1,000 stands for nothing found."""
    share = allowed / max(found, allowed / 1000)
    return Ratio(share, share, share, found, allowed)
