"""Statistics in which bad shuffles differ from Fisher-Yates; `quality` puts them together.

Each function gives one number for one order (or for many small ones), of no meaning by itself:
it is compared with the same number of shuffles by Fisher-Yates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Statistic = Callable[[Indices, int], float]

_GRID = 16


def _correlations(samples: Indices, lags: int) -> npt.NDArray[np.float64]:
    """Correlation of the sequence with itself, 1 to `lags` places on; by Fourier transform."""
    centred = samples.astype(np.float64)
    centred -= centred.mean()
    padded = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, padded)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[: lags + 1]
    result: npt.NDArray[np.float64] = products[1:] / products[0]
    return result


def _chi_square(cells: Indices, number_of_cells: int) -> float:
    """Deviation of counts from equal ones; `cells` says where each observation falls."""
    counts = np.bincount(cells, minlength=number_of_cells)
    expected = len(cells) / number_of_cells
    return float(((counts - expected) ** 2).sum() / expected)


def _coarse(samples: Indices, size: int) -> Indices:
    """The leading part of a number below `size`: which of 16 equal parts it lies in."""
    result: Indices = (samples / size * _GRID).astype(np.int64)
    return result


def _grid_chi_square(rows: Indices, columns: Indices) -> float:
    return _chi_square(rows * _GRID + columns, _GRID * _GRID)


def lag_1(samples: Indices, size: int) -> float:
    """|correlation of neighbours|."""
    return float(abs(_correlations(samples, 1)[0]))


def lags(samples: Indices, size: int) -> float:
    """The largest |correlation| at distances 2 to 64."""
    return float(np.abs(_correlations(samples, 64)[1:]).max())


def parity_flips(samples: Indices, size: int) -> float:
    """How far the share of neighbours of unlike parity is from one half."""
    return float(abs(np.mean((samples[1:] ^ samples[:-1]) & 1) - 0.5))


def pair_xors(samples: Indices, size: int) -> float:
    """Distinct values of the exclusive or of pairs."""
    pairs = samples[: len(samples) // 2 * 2]
    return float(len(np.unique(pairs[::2] ^ pairs[1::2])))


def position_value(samples: Indices, size: int) -> float:
    """Leading part of the position against that of the sample."""
    return _grid_chi_square(_coarse(np.arange(len(samples)), len(samples)), _coarse(samples, size))


def low_bits(samples: Indices, size: int) -> float:
    """Last bits of the position against those of the sample."""
    return _grid_chi_square(np.arange(len(samples)) % _GRID, samples % _GRID)


def successors(samples: Indices, size: int) -> float:
    """Leading part of a sample against that of the next."""
    coarse = _coarse(samples, size)
    return _grid_chi_square(coarse[:-1], coarse[1:])


def low_successors(samples: Indices, size: int) -> float:
    """Last bits of a sample against those of the next."""
    low = samples % _GRID
    return _grid_chi_square(low[:-1], low[1:])


def displacement(samples: Indices, size: int) -> float:
    """Mean distance of a sample from its position, as a share of the size: 1/3."""
    # Where only a part is read, its positions are spread as wide as the samples.
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
    """One bit of the position flipped: how unevenly the bits of the sample flip."""
    bits = (size - 1).bit_length()
    unevenness = 0.0
    # Bits that are flipped at enough positions: of a size 2^k + 1 the first bit has but one.
    for bit in range((size * 3 // 4).bit_length()):
        positions = random.integers(0, size - (1 << bit), 256) & ~(1 << bit)
        flipped = positions | (1 << bit)
        changed = take(positions) ^ take(flipped)
        shares = [(changed >> out & 1).mean() for out in range(bits)]
        unevenness += float(np.square(np.array(shares) - 0.5).sum())
    return unevenness


def commonest(values: Indices) -> float:
    """How often the commonest value occurs."""
    return float(np.unique(values, return_counts=True)[1].max())


def shift_of_samples(first: Indices, second: Indices, size: int) -> float:
    """How much of one order is another with a constant added to the samples."""
    return commonest((first - second) % size)


def shift_of_positions(first: Indices, second: Indices, size: int) -> float:
    """How much of one order is another read from elsewhere on; for whole orders."""
    place = np.empty(size, dtype=np.int64)
    place[first] = np.arange(size)
    return commonest((place[second] - np.arange(size)) % size)


def signs(orders: Indices) -> float:
    """Share of even permutations among the rows."""
    size = orders.shape[1]
    least = np.broadcast_to(np.arange(size), orders.shape)
    jump = orders
    for _ in range(size.bit_length()):
        # After t turns: the least element among the 2^t next ones of the cycle.
        least = np.minimum(least, np.take_along_axis(least, jump, axis=1))
        jump = np.take_along_axis(jump, jump, axis=1)
    cycles = (least == np.arange(size)).sum(axis=1)
    return float(((size - cycles) % 2 == 0).mean())


def top_bit(orders: Indices) -> float:
    """The first bit of the position flipped: evenness of the difference of the samples."""
    size = orders.shape[1]
    half = size // 2
    difference = (orders[:, half:] - orders[:, :half]) % size
    return _chi_square(difference.ravel() - 1, size - 1)


def places(orders: Indices) -> float:
    """Position against value over all rows."""
    size = orders.shape[1]
    return _chi_square((orders * size + np.arange(size)).ravel(), size * size)


def whole_orders(orders: Indices) -> float:
    """Evenness over all possible orders, of 4 elements: 24."""
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
