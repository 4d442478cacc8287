"""What a scaler knows of a column: estimates from a sample, their standard errors, and how the
estimates of two samples make one.

Each kind is a triple of functions: `describe` a sample, `merge` two descriptions, and
`center_spread`, what to subtract and divide by. A description is a dict of named floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Description = dict[str, float]


@dataclass(frozen=True)
class Estimate:
    """Estimates of one column, and the standard error of each as if drawn from endless data."""

    value: Description
    error: Description


@dataclass(frozen=True)
class Kind:
    """One way of scaling."""

    names: tuple[str, ...]
    describe: Callable[[Float64], Estimate]
    merge: Callable[[Estimate, float, Estimate, float], Estimate] | None
    center_spread: Callable[[dict[str, Float64]], tuple[Float64, Float64]]


def _standard(x: Float64) -> Estimate:
    n = len(x)
    if x.min() == x.max():
        # Said exactly: a mean of equal numbers need not equal them in floating point.
        return Estimate({"mean": float(x[0]), "std": 0.0}, {"mean": 0.0, "std": 0.0})
    mean = float(x.mean())
    deviation = x - mean
    # Squares of tiny or huge deviations would leave the range of floats: take out the largest.
    unit = float(np.abs(deviation).max())
    std = unit * math.sqrt(float(np.mean((deviation / unit) ** 2)))
    # Of the standard deviation by the delta method, no normal distribution supposed.
    fourth = float(np.mean((deviation / std) ** 4))
    std_error = std * math.sqrt(max(fourth - 1.0, 0.0) / n) / 2
    return Estimate({"mean": mean, "std": std}, {"mean": std / math.sqrt(n), "std": std_error})


def _merge_standard(a: Estimate, wa: float, b: Estimate, wb: float) -> Estimate:
    """Chan, Golub & LeVeque 1983, with weights."""
    pa, pb = wa / (wa + wb), wb / (wa + wb)
    delta = b.value["mean"] - a.value["mean"]
    mean = a.value["mean"] + delta * pb
    within = math.sqrt(pa) * a.value["std"], math.sqrt(pb) * b.value["std"]
    std = math.hypot(*within, math.sqrt(pa * pb) * delta)
    mean_error = math.hypot(pa * a.error["mean"], pb * b.error["mean"])
    std_error = 0.0
    if std > 0.0:
        parts = [
            2 * p * term
            for p, one in ((pa, a), (pb, b))
            for term in (
                one.value["std"] * one.error["std"],
                (one.value["mean"] - mean) * one.error["mean"],
            )
        ]
        std_error = math.hypot(*parts) / (2 * std)
    return Estimate({"mean": mean, "std": std}, {"mean": mean_error, "std": std_error})


def _minmax(x: Float64) -> Estimate:
    """Errors by the jackknife (Quenouille 1956): the gap to the next to extreme observation."""
    if len(x) == 1:
        only = float(x[0])
        return Estimate({"min": only, "max": only}, {"min": 0.0, "max": 0.0})
    last = len(x) - 1
    x = np.partition(x, sorted({0, 1, last - 1, last}))
    factor = last / len(x)
    errors = {"min": factor * float(x[1] - x[0]), "max": factor * float(x[last] - x[last - 1])}
    return Estimate({"min": float(x[0]), "max": float(x[last])}, errors)


def _merge_minmax(a: Estimate, wa: float, b: Estimate, wb: float) -> Estimate:
    low = min(a, b, key=lambda e: e.value["min"])
    high = max(a, b, key=lambda e: e.value["max"])
    return Estimate(
        {"min": low.value["min"], "max": high.value["max"]},
        {"min": low.error["min"], "max": high.error["max"]},
    )


def _robust(x: Float64) -> Estimate:
    """Errors of quantiles by Woodruff 1952: half the width between order statistics one sigma
    of the binomial count away."""
    x = np.sort(x)
    value, error = {}, {}
    for name, p in (("q25", 0.25), ("median", 0.5), ("q75", 0.75)):
        sigma = math.sqrt(p * (1 - p) / len(x))
        low, value[name], high = (
            float(q) for q in np.quantile(x, np.clip([p - sigma, p, p + sigma], 0, 1))
        )
        error[name] = (high - low) / 2
    return Estimate(value, error)


def _mean_abs(x: Float64) -> Estimate:
    size = np.abs(x)
    mean = float(size.mean())
    return Estimate({"mean_abs": mean}, {"mean_abs": float(size.std()) / math.sqrt(len(x))})


def _merge_mean_abs(a: Estimate, wa: float, b: Estimate, wb: float) -> Estimate:
    pa, pb = wa / (wa + wb), wb / (wa + wb)
    first, second = a.value["mean_abs"], b.value["mean_abs"]
    error = math.hypot(pa * a.error["mean_abs"], pb * b.error["mean_abs"])
    return Estimate({"mean_abs": first + (second - first) * pb}, {"mean_abs": error})


KINDS: dict[str, Kind] = {
    "standard": Kind(("mean", "std"), _standard, _merge_standard, lambda s: (s["mean"], s["std"])),
    "minmax": Kind(
        ("min", "max"), _minmax, _merge_minmax, lambda s: (s["min"], s["max"] - s["min"])
    ),
    # Medians of parts do not give the median of the whole: no merge.
    "robust": Kind(
        ("q25", "median", "q75"), _robust, None, lambda s: (s["median"], s["q75"] - s["q25"])
    ),
    "mean_abs": Kind(
        ("mean_abs",), _mean_abs, _merge_mean_abs, lambda s: (0.0 * s["mean_abs"], s["mean_abs"])
    ),
}


def affine(array: Any, factor: Float64, addend: Float64) -> Any:
    """``array * factor + addend``, for an ndarray or, by duck typing, a tensor on any device."""
    if hasattr(array, "new_tensor"):
        wide = array if array.is_floating_point() and array.element_size() >= 4 else array.float()
        return wide * wide.new_tensor(factor.tolist()) + wide.new_tensor(addend.tolist())
    values = np.asarray(array)
    dtype = np.result_type(values.dtype, np.float32) if values.dtype.kind == "f" else np.float64
    return (values.astype(np.float64) * factor + addend).astype(dtype)
