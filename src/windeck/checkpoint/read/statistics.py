"""Statistics of the values of a tensor, in one pass over its raw elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from windeck.columns.dtypes import DTYPES
from windeck.columns.elements import decode_elements, magnitudes

__all__ = ["Statistics"]

Index: TypeAlias = "tuple[int, ...]"

#: Elements processed at a time: as float64 they fit into the processor's cache.
_PORTION = 1 << 15
#: Number of bins above which a binary search is faster than a comparison with every edge.
_COMPARED = 64


class Statistics:
    """Counts, moments, histogram and largest values of elements that are added in buffers.

    A complex number counts as its magnitude, and as NaN if a part of it is NaN.

    Parameters
    ----------
    dtype
        Name of the dtype in torch; it must be numeric.
    edges
        Edges of a histogram: ascending, finite, at least two; None: no histogram. Bin i is
        [edge i, edge i + 1); the last bin includes its upper edge.
    largest
        Number of finite values of largest magnitude to keep; among equals, those of least index.

    Notes
    -----
    O(n bins) time, at worst O(n log bins); O(bins + largest) memory. Counts, least, greatest and
    largest values are exact. Mean and deviation have a relative error of 1e-13, the mean relative
    to the largest magnitude: portions of 32,768 elements are summed pairwise around their mean and
    combined exactly. Integers of 64 bits are rounded to float64 for bins, mean and deviation.

    Examples
    --------
    >>> statistics = Statistics("float32", edges=[0, 2, 4])
    >>> statistics.add(np.array([1, 2, 3, 4, np.nan], np.float32))
    >>> found = statistics.result()
    >>> found["count"], found["nan"], found["min"], found["mean"], found["histogram"].tolist()
    (5, 1, 1.0, 2.5, [1, 3])
    """

    def __init__(
        self, dtype: str, *, edges: Iterable[float] | None = None, largest: int = 0
    ) -> None:
        self.dtype, self._wanted = dtype, largest
        self._edges = None if edges is None else np.array([*edges], np.float64)
        self._bins = np.zeros(0 if self._edges is None else len(self._edges) + 1, np.int64)
        self._counts = dict.fromkeys(
            ("count", "nan", "positive_infinite", "negative_infinite", "zeros"), 0
        )
        self._finite = 0
        self._least: Any = None
        self._greatest: Any = None
        self._sum, self._squares = Fraction(0), Fraction(0)
        self._beyond = False  # squares that float64 cannot hold
        self._largest: list[tuple[Any, Index, Any]] = []  # magnitudes with a minus, ascending

    def add(
        self, buffer: Any, index_of: Callable[[npt.NDArray[Any]], Iterable[Index]] | None = None
    ) -> None:
        """Count the elements of a buffer.

        Parameters
        ----------
        buffer
            Little-endian elements, contiguous, of any alignment.
        index_of
            Indices in the tensor of positions in the buffer, in the same order of size; required
            for `largest`.
        """
        raw = np.frombuffer(buffer, f"V{DTYPES[self.dtype].itemsize}")
        with np.errstate(all="ignore"):
            for first in range(0, len(raw), _PORTION):
                values = decode_elements(self.dtype, raw[first : first + _PORTION])
                if values.dtype.kind == "c":
                    values = magnitudes(values)
                elif values.dtype == np.float16:  # whose arithmetic is slow
                    values = values.astype(np.float32)
                elif values.dtype == np.bool_:
                    values = values.view(np.uint8)
                self._add(values, first, index_of)

    def _add(self, values: npt.NDArray[Any], first: int, index_of: Any) -> None:
        wide = values.astype(np.float64, copy=False)
        counts = self._counts
        counts["count"] += len(values)
        counts["zeros"] += len(values) - int(np.count_nonzero(values))
        if self._edges is not None:
            self._add_bins(wide)
        total = float(wide.sum())
        finite = values
        if values.dtype.kind == "f" and not math.isfinite(total):
            kept = np.isfinite(values)
            counts["nan"] += int(np.count_nonzero(np.isnan(values)))
            counts["positive_infinite"] += int(np.count_nonzero(values == math.inf))
            counts["negative_infinite"] += int(np.count_nonzero(values == -math.inf))
            finite, wide = values[kept], wide[kept]
            if not len(finite):
                return
            total = float(wide.sum())
        low, high = finite.min().item(), finite.max().item()
        self._least = low if self._least is None else min(low, self._least)
        self._greatest = high if self._greatest is None else max(high, self._greatest)
        self._add_moments(wide, total)
        most = max(abs(low), abs(high))
        if self._wanted and (len(self._largest) < self._wanted or -most <= self._largest[-1][0]):
            self._add_largest(values, most, first, index_of)

    def _add_moments(self, values: npt.NDArray[np.float64], total: float) -> None:
        size = len(values)
        mean = total / size if math.isfinite(total) else float((values / size).sum())
        apart = values - mean
        # The mean is rounded; the sum of the deviations from it gives the error.
        rest = float(apart.sum())
        squares = float(np.square(apart, out=apart).sum())
        offset = Fraction(rest / size if math.isfinite(rest) else 0)
        exact = Fraction(mean) + offset
        self._finite += size
        self._sum += size * exact
        self._beyond |= not math.isfinite(squares)
        if not self._beyond:
            self._squares += Fraction(squares) + size * (exact * exact - offset * offset)

    def _add_bins(self, values: npt.NDArray[np.float64]) -> None:
        assert self._edges is not None
        ends = self._edges.copy()
        ends[-1] = np.nextafter(ends[-1], math.inf)
        known = int(np.count_nonzero(values == values))
        if len(ends) > _COMPARED + 1:
            places = np.searchsorted(ends, values, "right")  # NaN is last
            self._bins += np.bincount(places, minlength=len(ends) + 1)
            self._bins[-1] -= len(values) - known
        else:
            reached = [int(np.count_nonzero(values >= end)) for end in ends]
            self._bins -= np.diff([known, *reached, 0])

    def _add_largest(self, values: npt.NDArray[Any], most: Any, first: int, index_of: Any) -> None:
        """Keep the largest values, given their largest magnitude `most`."""
        if values.dtype.kind == "f":
            sizes = np.abs(values)
            sizes[~np.isfinite(sizes)] = -1
        else:  # the magnitude of the least int64 exceeds int64
            sizes = np.abs(values).view(f"u{values.itemsize}")
        full = len(self._largest) >= self._wanted
        least = -self._largest[-1][0] if full else 0
        places = np.flatnonzero(sizes >= sizes.dtype.type(least))
        if len(places) > self._wanted:
            if most > least or not full:
                order = np.partition(sizes[places], -self._wanted)
                least = order[-self._wanted]
            above = places[sizes[places] > least]
            equal = places[sizes[places] == least][: self._wanted - len(above)]
            places = np.concatenate([above, equal])
        found = zip(
            sizes[places].tolist(), index_of(places + first), values[places].tolist(), strict=True
        )
        self._largest += [(-size, index, value) for size, index, value in found]
        self._largest = sorted(self._largest, key=lambda entry: entry[:2])[: self._wanted]

    def result(self) -> dict[str, Any]:
        """Return the statistics of all elements added so far.

        Returns
        -------
        dict
            ``count``, ``nan``, ``positive_infinite``, ``negative_infinite``, ``zeros``; of
            the finite values ``min``, ``max``, ``mean``, ``std`` (of the population) and
            ``abs_max``, or None without finite values; for integers min, max and abs_max are int;
            ``histogram``, int64[bins], and ``edges``, float64[bins + 1], or None, with ``below``
            and ``above``, the counts outside of the bins; ``largest``, a list of (index, value),
            the largest first. A deviation is infinite if its square overflows float64.
        """
        some = self._finite > 0
        return {
            **self._counts,
            "min": self._least,
            "max": self._greatest,
            "mean": float(self._sum / self._finite) if some else None,
            "std": self._deviation() if some else None,
            "abs_max": max(abs(self._least), abs(self._greatest)) if some else None,
            "histogram": None if self._edges is None else self._bins[1:-1].copy(),
            "edges": None if self._edges is None else self._edges.copy(),
            "below": 0 if self._edges is None else int(self._bins[0]),
            "above": 0 if self._edges is None else int(self._bins[-1]),
            "largest": [(index, value) for _, index, value in self._largest],
        }

    def _deviation(self) -> float:
        variance = (self._squares - self._sum * self._sum / self._finite) / self._finite
        try:
            return math.inf if self._beyond else math.sqrt(max(Fraction(0), variance))
        except OverflowError:
            return math.inf
