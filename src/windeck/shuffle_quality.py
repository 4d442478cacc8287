"""Statistical tests of shuffles against Fisher-Yates, and `quality`, which runs all of them.

Each statistic is one number of one order, or of many small ones. It has no meaning by itself: it is
compared with the same statistic of shuffles by Fisher-Yates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._util.options import explain_options

__all__ = ["Check", "Report", "quality"]


Indices = npt.NDArray[np.int64]
Statistic = Callable[[Indices, int], float]

_GRID = 16


def _correlations(samples: Indices, lags: int) -> npt.NDArray[np.float64]:
    """Return the autocorrelation at distances 1 to `lags`, by Fourier transform."""
    centred = samples.astype(np.float64)
    centred -= centred.mean()
    padded = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, padded)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[: lags + 1]
    result: npt.NDArray[np.float64] = products[1:] / products[0]
    return result


def _chi_square(cells: Indices, number_of_cells: int) -> float:
    """Return the chi-square of counts against equal ones; `cells` is that of each observation."""
    counts = np.bincount(cells, minlength=number_of_cells)
    expected = len(cells) / number_of_cells
    return float(((counts - expected) ** 2).sum() / expected)


def _coarse(samples: Indices, size: int) -> Indices:
    """Return the leading part of numbers below `size`: the index among 16 equal parts."""
    result: Indices = (samples / size * _GRID).astype(np.int64)
    return result


def _grid_chi_square(rows: Indices, columns: Indices) -> float:
    return _chi_square(rows * _GRID + columns, _GRID * _GRID)


def lag_1(samples: Indices, size: int) -> float:
    """Return |correlation of neighbours|."""
    return float(abs(_correlations(samples, 1)[0]))


def lags(samples: Indices, size: int) -> float:
    """Return the largest |correlation| at distances 2 to 64."""
    return float(np.abs(_correlations(samples, 64)[1:]).max())


def parity_flips(samples: Indices, size: int) -> float:
    """Return the distance of the share of neighbours of unlike parity from one half."""
    return float(abs(np.mean((samples[1:] ^ samples[:-1]) & 1) - 0.5))


def pair_xors(samples: Indices, size: int) -> float:
    """Return the number of distinct values of the exclusive or of pairs."""
    pairs = samples[: len(samples) // 2 * 2]
    return float(len(np.unique(pairs[::2] ^ pairs[1::2])))


def position_value(samples: Indices, size: int) -> float:
    """Compare the leading part of the position with that of the sample."""
    return _grid_chi_square(_coarse(np.arange(len(samples)), len(samples)), _coarse(samples, size))


def low_bits(samples: Indices, size: int) -> float:
    """Compare the last bits of the position with those of the sample."""
    return _grid_chi_square(np.arange(len(samples)) % _GRID, samples % _GRID)


def successors(samples: Indices, size: int) -> float:
    """Compare the leading part of a sample with that of the next."""
    coarse = _coarse(samples, size)
    return _grid_chi_square(coarse[:-1], coarse[1:])


def low_successors(samples: Indices, size: int) -> float:
    """Compare the last bits of a sample with those of the next."""
    low = samples % _GRID
    return _grid_chi_square(low[:-1], low[1:])


def displacement(samples: Indices, size: int) -> float:
    """Return the mean distance of a sample from its position, as a share of the size: 1/3."""
    # If only a part is read, its positions are scaled to the range of the samples.
    positions = np.arange(len(samples)) * (size / len(samples))
    return float(np.abs(samples - positions).mean() / size)


SINGLE: dict[str, Statistic] = {
    "|correlation| of neighbours": lag_1,
    "largest |correlation|, lags 2 to 64": lags,
    "parity flips, off one half": parity_flips,
    "distinct pair XORs": pair_xors,
    "position x value": position_value,
    "position x value, last bits": low_bits,
    "successors": successors,
    "successors, last bits": low_successors,
    "mean displacement / size": displacement,
}


def avalanche(take: Callable[[Indices], Any], size: int, random: np.random.Generator) -> float:
    """Return the unevenness of flips of bits of the sample when a bit of the position flips."""
    bits = (size - 1).bit_length()
    unevenness = 0.0
    # Only bits with enough positions to flip: the first bit of a size 2^k + 1 has only one.
    for bit in range((size * 3 // 4).bit_length()):
        positions = random.integers(0, size - (1 << bit), 256) & ~(1 << bit)
        flipped = positions | (1 << bit)
        changed = take(positions) ^ take(flipped)
        shares = [(changed >> out & 1).mean() for out in range(bits)]
        unevenness += float(np.square(np.array(shares) - 0.5).sum())
    return unevenness


def commonest(values: Indices) -> float:
    """Return the number of occurrences of the most common value."""
    return float(np.unique(values, return_counts=True)[1].max())


def shift_of_samples(first: Indices, second: Indices, size: int) -> float:
    """Return the positions at which two orders differ by the same constant."""
    return commonest((first - second) % size)


def shift_of_positions(first: Indices, second: Indices, size: int) -> float:
    """Return the samples whose positions in two whole orders differ by the same constant."""
    place = np.empty(size, dtype=np.int64)
    place[first] = np.arange(size)
    return commonest((place[second] - np.arange(size)) % size)


def signs(orders: Indices) -> float:
    """Return the share of even permutations among the rows."""
    size = orders.shape[1]
    least = np.broadcast_to(np.arange(size), orders.shape)
    jump = orders
    for _ in range(size.bit_length()):
        # After t iterations: the least of the next 2^t elements of the cycle.
        least = np.minimum(least, np.take_along_axis(least, jump, axis=1))
        jump = np.take_along_axis(jump, jump, axis=1)
    cycles = (least == np.arange(size)).sum(axis=1)
    return float(((size - cycles) % 2 == 0).mean())


def top_bit(orders: Indices) -> float:
    """Return the evenness of differences of samples when the first bit of the position flips."""
    size = orders.shape[1]
    half = size // 2
    difference = (orders[:, half:] - orders[:, :half]) % size
    return _chi_square(difference.ravel() - 1, size - 1)


def places(orders: Indices) -> float:
    """Compare position and value over all rows."""
    size = orders.shape[1]
    return _chi_square((orders * size + np.arange(size)).ravel(), size * size)


def whole_orders(orders: Indices) -> float:
    """Return the evenness over all 24 orders of 4 elements."""
    codes = orders @ (4 ** np.arange(orders.shape[1]))
    _, counts = np.unique(codes, return_counts=True)
    expected = len(codes) / 24
    missing = 24 - len(counts)
    return float(((counts - expected) ** 2).sum() / expected + missing * expected)


# Over many seeds: size of the orders, how many of them, statistic.
MANY: dict[str, tuple[int, int, Callable[[Indices], float]]] = {
    "even permutations of 256": (256, 1024, signs),
    "first bit's difference, 256": (256, 1024, top_bit),
    "first bit's difference, 4,096": (4096, 64, top_bit),
    "position x value, 16 over seeds": (16, 2048, places),
    "orders of 4 elements": (4, 2400, whole_orders),
}


_SHUFFLES = 32  # by Fisher-Yates, to compare with
_SMALLEST = 256


@dataclass(frozen=True)
class Check:
    """One statistic of an order, and the same of shuffles by Fisher-Yates.

    Attributes
    ----------
    name : str
        Name of the statistic.
    found, expected : float
        Mean over the orders that were tested, and over the shuffles by Fisher-Yates.
    deviation : float
        Their difference, in standard deviations.
    """

    name: str
    found: float
    expected: float
    deviation: float

    @property
    def passed(self) -> bool:
        """True if the deviation is at most 6, which chance explains."""
        return abs(self.deviation) <= 6


@dataclass(frozen=True)
class Report:
    """Result of `quality`, readable when printed.

    Attributes
    ----------
    order : str
        Name of the order.
    size, read : int
        Size of the order, and number of positions that were read.
    is_bijection : bool
        True if all samples read were distinct and in range, and `index` returned their positions.
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
        """True if the order is a bijection and all checks passed."""
        return self.is_bijection and all(check.passed for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        """Return the check of that name."""
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


@explain_options
def quality(
    order: Any, *, size: int | None = None, seed: int = 0, orders: int = 8, limit: int = 65_536
) -> Report:
    """Compare an order, or orders of a factory, with shuffles by Fisher-Yates.

    Parameters
    ----------
    order : order or order factory
        An order (anything with ``len()`` and ``take(positions)``, an array too), or a factory
        ``f(size, *, seed, epoch)``, which is also tested over many seeds and epochs.
    size : int, optional
        For a factory: the size to test, 65,536 by default. At least 256.
    seed : int
        Seed of the shuffles to compare with, and of the first order of a factory.
    orders : int
        For a factory: number of orders of that size to test.
    limit : int
        Maximum number of positions to read of an order, from the first on.

    Returns
    -------
    Report
        One line for each statistic; `passed` if all are within 6 standard deviations.

    Raises
    ------
    ValueError
        If the size is below 256.

    Notes
    -----
    O(limit) memory; about a second with the defaults. Tests show for each check a fault that it
    finds. Passing says nothing about statistics that are not among the checks.

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
        raise ValueError(f"`size` must be at least {_SMALLEST} for the statistics, got {length}")
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
    """Compare means; the standard deviation is 1 if all shuffles agree."""
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
    """Return the statistics of one order."""
    samples = order.take(np.arange(read))
    random = np.random.default_rng(seed)
    values = {name: statistic(samples, size) for name, statistic in SINGLE.items()}
    return values | {"avalanche": avalanche(order.take, size, random)}


class _Draws:
    """Stand-in for a shuffle of a large size: independent samples, which hardly ever repeat."""

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self._size, self._random = size, random

    def take(self, positions: Indices) -> Indices:
        return self._random.integers(0, self._size, len(positions))


def _shuffled(size: int, random: np.random.Generator) -> Any:
    return random.permutation(size) if size <= 2**20 else _Draws(size, random)


@lru_cache(maxsize=8)
def _of_shuffles(size: int, read: int, seed: int) -> list[dict[str, float]]:
    """Return the statistics of shuffles by Fisher-Yates."""
    random = np.random.default_rng([seed, size])
    return [_of_one(_shuffled(size, random), size, read, seed) for _ in range(_SHUFFLES)]


def _apart(first: Any, second: Any, size: int, read: int) -> dict[str, float]:
    """Return the similarity of two orders that should be independent."""
    positions = np.arange(read)
    pair = first.take(positions), second.take(positions)
    values = {"alike but for a shift of samples": shift_of_samples(*pair, size)}
    if read == size:
        shift = shift_of_positions(*pair, size)
        values["alike but for a shift of positions"] = shift
    return values


def _independence(
    factory: Callable[..., Any], size: int, read: int, seed: int, orders: int
) -> list[Check]:
    """Compare neighbouring seeds and epochs, and (seed, epoch + 1) with (seed + 1, epoch)."""
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
        for name, (size, count, statistic) in MANY.items()
    }


def _small_orders(factory: Callable[..., Any], seed: int) -> list[Check]:
    """Check many small orders, one for each seed."""
    checks = []
    for name, (size, count, statistic) in MANY.items():
        rows = [factory(size, seed=seed + i, epoch=0).take(np.arange(size)) for i in range(count)]
        expected = _of_small_shuffles(seed)[name]
        checks.append(_check(name, [statistic(np.array(rows))], expected))
    return checks
