"""A report card for shuffles: how an order differs from Fisher-Yates, if it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from windeck import shuffle_statistics as statistics
from windeck.shuffle_statistics import Indices

__all__ = ["Check", "Report", "quality"]

_SHUFFLES = 32  # by Fisher-Yates, to compare with
_SMALLEST = 256


@dataclass(frozen=True)
class Check:
    """One statistic of an order, beside the same of shuffles by Fisher-Yates.

    Attributes
    ----------
    name : str
        What was looked at.
    found, expected : float
        Its mean over the orders that were looked at, and over the shuffles by Fisher-Yates.
    deviation : float
        Their difference, in standard deviations.
    """

    name: str
    found: float
    expected: float
    deviation: float

    @property
    def passed(self) -> bool:
        """Whether the deviation is one that chance brings about: up to 6."""
        return abs(self.deviation) <= 6


@dataclass(frozen=True)
class Report:
    """What `quality` found; `print` it.

    Attributes
    ----------
    order : str
        What was looked at.
    size, read : int
        Size of the order, and how many of its positions were read.
    is_bijection : bool
        Whether all samples read were different and in range, and `index` found them again.
    checks : tuple of Check
        The statistics.
    """

    order: str
    size: int
    read: int
    is_bijection: bool
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether it is a bijection that no check tells from Fisher-Yates."""
        return self.is_bijection and all(check.passed for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        """The check of that name."""
        return {check.name: check for check in self.checks}[name]

    def __str__(self) -> str:
        lines = [
            f"{self.order}, size {self.size:,}, {self.read:,} positions read",
            f"{'bijection':38}{'yes' if self.is_bijection else 'NO':>12}",
            f"{'':38}{'found':>12}{'Fisher-Yates':>14}{'deviation':>11}",
        ]
        for check in self.checks:
            mark = "" if check.passed else "  FAILED"
            lines.append(
                f"{check.name:38}{check.found:12.5g}{check.expected:14.5g}"
                f"{check.deviation:11.1f}{mark}"
            )
        return "\n".join(lines)


def quality(
    order: Any, *, size: int | None = None, seed: int = 0, orders: int = 8, limit: int = 65_536
) -> Report:
    """Compares an order, or all orders of a factory, with shuffles by Fisher-Yates.

    Parameters
    ----------
    order : order or order factory
        An order (anything with ``len()`` and ``take(positions)``, an array too), or a factory
        ``f(size, *, seed, epoch)``, which allows for checks over many seeds and epochs as well.
    size : int, optional
        For a factory: the size to look at, 65,536 unless given. At least 256.
    seed : int
        Of the shuffles to compare with, and of the first order of a factory.
    orders : int
        For a factory: how many orders of that size to look at.
    limit : int
        Positions to read of an order, from the first on.

    Returns
    -------
    Report
        One line for each statistic; `passed` when none is more than 6 standard deviations off.

    Raises
    ------
    ValueError
        A size below 256.

    Notes
    -----
    O(limit) memory. A second or so as it stands; every check is shown to find a fault in
    tests/test_quality.py. A statistic that is met says nothing about those not looked at.

    Examples
    --------
    >>> import windeck as wd
    >>> wd.quality(wd.Permutation, size=1024).passed
    True
    >>> report = wd.quality(wd.Sequential(1024))
    >>> report.passed, report["successors"].passed
    (False, False)
    """
    is_factory = isinstance(order, type) or not hasattr(order, "take")
    length = (65_536 if size is None else size) if is_factory else len(order)
    if length < _SMALLEST:
        raise ValueError(
            f"size is {length}, expected at least {_SMALLEST} for statistics to say something"
        )
    read = min(length, limit)
    count = orders if is_factory else 0
    several = [order(length, seed=seed + i, epoch=i) for i in range(count)] or [order]
    found = _many(_of_one(one, length, read, seed) for one in several)
    expected = _many(_of_shuffles(length, read, seed))
    checks = [_check(name, values, expected[name]) for name, values in found.items()]
    if is_factory:
        checks += _independence(order, length, read, seed, orders)
        checks += _small_orders(order, seed)
    return Report(
        order=getattr(order, "__qualname__", None) or repr(order),
        size=length,
        read=read,
        is_bijection=all(_is_injective(one, length, read) for one in several),
        checks=tuple(checks),
    )


def _check(name: str, found: Sequence[float], expected: Sequence[float]) -> Check:
    """Means compared; where all shuffles agree, one unit counts as a standard deviation."""
    spread = float(np.std(expected, ddof=1)) or 1.0
    error = spread * (1 / len(found) + 1 / len(expected)) ** 0.5
    means = float(np.mean(found)), float(np.mean(expected))
    return Check(name, *means, deviation=(means[0] - means[1]) / error)


def _many(values: Iterable[dict[str, float]]) -> dict[str, list[float]]:
    rows = list(values)
    return {name: [row[name] for row in rows] for name in rows[0]}


def _is_injective(order: Any, size: int, read: int) -> bool:
    positions = np.arange(read)
    samples = order.take(positions)
    inside = samples.min() >= 0 and samples.max() < size
    if not inside or len(np.unique(samples)) < read:
        return False
    return not hasattr(order, "index") or np.array_equal(order.index(samples), positions)


def _of_one(order: Any, size: int, read: int, seed: int) -> dict[str, float]:
    """The statistics of one order."""
    samples = order.take(np.arange(read))
    random = np.random.default_rng(seed)
    values = {name: statistic(samples, size) for name, statistic in statistics.SINGLE.items()}
    return values | {"avalanche": statistics.avalanche(order.take, size, random)}


class _Draws:
    """Of a size too large to shuffle: samples drawn anew, as good as without repetition."""

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self._size, self._random = size, random

    def take(self, positions: Indices) -> Indices:
        return self._random.integers(0, self._size, len(positions))


def _shuffled(size: int, random: np.random.Generator) -> Any:
    return random.permutation(size) if size <= 2**20 else _Draws(size, random)


@lru_cache(maxsize=8)
def _of_shuffles(size: int, read: int, seed: int) -> list[dict[str, float]]:
    """The statistics of shuffles by Fisher-Yates."""
    random = np.random.default_rng([seed, size])
    return [_of_one(_shuffled(size, random), size, read, seed) for _ in range(_SHUFFLES)]


def _apart(first: Any, second: Any, size: int, read: int) -> dict[str, float]:
    """How alike two orders are that should have nothing to do with each other."""
    positions = np.arange(read)
    pair = first.take(positions), second.take(positions)
    values = {"alike but for a shift of samples": statistics.shift_of_samples(*pair, size)}
    if read == size:
        shift = statistics.shift_of_positions(*pair, size)
        values["alike but for a shift of positions"] = shift
    return values


def _independence(
    factory: Callable[..., Any], size: int, read: int, seed: int, orders: int
) -> list[Check]:
    """Neighbouring seeds and epochs, and (seed, epoch + 1) against (seed + 1, epoch)."""
    pairs = [
        (factory(size, seed=seed + i, epoch=e), factory(size, seed=seed + j, epoch=f))
        for i in range(orders)
        for j, e, f in ((i, 0, 1), (i + 1, 0, 0), (i + 1, 1, 0))
    ]
    found = _many(_apart(*pair, size, read) for pair in pairs)
    random = np.random.default_rng([seed, size, 1])
    expected = _many(
        _apart(_shuffled(size, random), _shuffled(size, random), size, read)
        for _ in range(_SHUFFLES)
    )
    return [_check(name, values, expected[name]) for name, values in found.items()]


@lru_cache(maxsize=8)
def _of_small_shuffles(seed: int) -> dict[str, list[float]]:
    random = np.random.default_rng([seed, 2])
    return {
        name: [
            statistic(random.permuted(np.tile(np.arange(size), (count, 1)), axis=1))
            for _ in range(_SHUFFLES // 2)
        ]
        for name, (size, count, statistic) in statistics.MANY.items()
    }


def _small_orders(factory: Callable[..., Any], seed: int) -> list[Check]:
    """Many small orders, one for each seed."""
    checks = []
    for name, (size, count, statistic) in statistics.MANY.items():
        rows = [factory(size, seed=seed + i, epoch=0).take(np.arange(size)) for i in range(count)]
        expected = _of_small_shuffles(seed)[name]
        checks.append(_check(name, [statistic(np.array(rows))], expected))
    return checks
