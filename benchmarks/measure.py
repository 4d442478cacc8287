"""Measurement of all figures: in one process, interleaved, medians of many runs.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Action: TypeAlias = Callable[[], object]

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
        return f"{digits(self.median)}x ({digits(self.low)} to {digits(self.high)})"


def digits(number: float) -> str:
    """Three significant digits: 0.0123, 1.23, 12,300."""
    return f"{float(f'{number:.3g}'):,.10g}"


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


def spent(action: Action) -> tuple[float, float]:
    """Wall time and processor time of this process's threads of one call, in seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - processor


def rounds_of(
    *actions: Action, seconds: float = 6.0, least: int = 15, most: int = 61
) -> list[list[tuple[float, float]]]:
    """`spent` of each action in each round, until `seconds` are over and `least` rounds made.

    The order within a round is reversed in every other one. The first two rounds are left out.
    """
    found: list[list[tuple[float, float]]] = []
    was_enabled, end = gc.isenabled(), float("inf")
    gc.disable()
    try:
        for turn in range(-2, most):
            if turn == 0:
                gc.collect()
                end = time.perf_counter() + seconds
            turned = range(len(actions))[:: -1 if turn % 2 else 1]
            one = {place: spent(actions[place]) for place in turned}
            if turn >= 0:
                found.append([one[place] for place in range(len(actions))])
            if len(found) >= least and time.perf_counter() > end:
                break
    finally:
        if was_enabled:
            gc.enable()
    return found


def spread(values: Iterable[float], ours: float, rival: float) -> Ratio:
    """The median and quartiles of ratios that were found one by one."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(median, low, high, ours, rival)


def compared(
    question: str, ours: str, rival: str, our: Action, their: Action, batches: int, **told: Any
) -> Row:
    """One figure: an epoch of ours against one of the rival, with the microseconds of a batch."""
    needed, bound = told.pop("needed", None), told.pop("bound", "")
    found = rounds_of(our, their, **told)
    sides = []
    for place, name in enumerate((ours, rival)):
        wall, processor = (
            statistics.median(one[place][kind] for one in found) / batches * 1e6 for kind in (0, 1)
        )
        sides.append(f"{name}: {digits(wall)} us a batch ({digits(processor)} of processor time)")
    ratio = ratio_of([(one[0][0], one[1][0]) for one in found])
    return Row(question, *sides, ratio, needed, bound)


def limited(question: str, found: list[float], allowed: float, rival: str) -> Row:
    """A figure that must stay under a limit, by the median of what was found in several rounds."""
    shares = [allowed / max(one, allowed / 1000) for one in found]
    middle = statistics.median(found)
    return Row(question, f"{middle:.3g}", rival, spread(shares, middle, allowed), 1)


def through(batches: Iterable[Any]) -> None:
    """Take all, keep none."""
    for _ in batches:
        pass
