"""Estimates of one column of one series, by formulas on one array at a time.

Shares no code with the library, which estimates many series at once; the results are the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import windeck as wd

Floats = npt.NDArray[np.float64]
# Estimates by name, and their standard errors.
Estimate = tuple[dict[str, float], dict[str, float]]


def standard(x: Floats) -> Estimate:
    """Estimate mean and standard deviation."""
    n = len(x)
    if x.min() == x.max():
        # In floating point the mean of equal numbers need not equal them.
        return {"mean": float(x[0]), "std": 0.0}, {"mean": 0.0, "std": 0.0}
    mean = float(x.mean())
    deviation = x - mean
    # Divide by the largest deviation: squares of tiny or huge ones leave the range of floats.
    unit = float(np.abs(deviation).max())
    std = unit * math.sqrt(float(np.mean((deviation / unit) ** 2)))
    # The error of the standard deviation by the delta method, for any distribution.
    fourth = float(np.mean((deviation / std) ** 4))
    std_error = std * math.sqrt(max(fourth - 1.0, 0.0) / n) / 2
    return {"mean": mean, "std": std}, {"mean": std / math.sqrt(n), "std": std_error}


def minmax(x: Floats) -> Estimate:
    """Estimate the extremes; errors by the jackknife (Quenouille 1956).

    The error is the difference between the extreme and the second most extreme value.
    """
    if len(x) == 1:
        only = float(x[0])
        return {"min": only, "max": only}, {"min": 0.0, "max": 0.0}
    last = len(x) - 1
    x = np.partition(x, sorted({0, 1, last - 1, last}))
    factor = last / len(x)
    errors = {"min": factor * float(x[1] - x[0]), "max": factor * float(x[last] - x[last - 1])}
    return {"min": float(x[0]), "max": float(x[last])}, errors


def robust(x: Floats) -> Estimate:
    """Estimate quartiles; errors by Woodruff 1952.

    The error is half the distance between the order statistics one standard deviation of the
    binomial count below and above.
    """
    x = np.sort(x)
    value, error = {}, {}
    for name, p in (("q25", 0.25), ("median", 0.5), ("q75", 0.75)):
        sigma = math.sqrt(p * (1 - p) / len(x))
        low, value[name], high = (
            float(q) for q in np.quantile(x, np.clip([p - sigma, p, p + sigma], 0, 1))
        )
        error[name] = (high - low) / 2
    return value, error


def mean_abs(x: Floats) -> Estimate:
    """Estimate the mean of absolute values."""
    size = np.abs(x)
    mean = float(size.mean())
    return {"mean_abs": mean}, {"mean_abs": float(size.std()) / math.sqrt(len(x))}


DESCRIBE: dict[str, Callable[[Floats], Estimate]] = {
    "standard": standard,
    "minmax": minmax,
    "robust": robust,
    "mean_abs": mean_abs,
}


def series_estimates(
    kind: str, x: Floats, rows: npt.NDArray[np.int64], sample: int | None, seed: int, series: int
) -> tuple[Estimate, int, float] | None:
    """Return estimate, number of values and weight of a series with these rows; None: no values."""
    total = len(rows)
    if sample is not None and sample < total:
        rows = rows[np.sort(wd.Permutation(total, seed=seed, epoch=series).slice(0, sample))]
    found: Any = x[rows]
    found = found[~np.isnan(found)]
    if not len(found):
        return None
    value, error = DESCRIBE[kind](found)
    correction = math.sqrt((total - len(rows)) / max(total - 1, 1))
    error = {name: one * correction for name, one in error.items()}
    return (value, error), len(found), len(found) * (total / len(rows))
