"""The JSON of scalers; it is read as data that may come from anywhere."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, NoReturn

import numpy as np

from windeck._util.fingerprints import digest
from windeck._util.validation import check_format
from windeck.windows.scaler_fitting import KINDS, Estimates, SeriesName

__all__ = [
    "FORMAT",
    "UNSEEN",
    "ParsedScaler",
    "digest_statistics",
    "parse_scaler",
    "plain_statistics",
]

# What happens to series without observed values of a column.
UNSEEN = ("error", "global", "skip")

# Format of the JSON.
FORMAT = 1

#: Lists in the name of a series.
_DEEPEST_NAME = 10


class ParsedScaler(NamedTuple):
    """Arguments of a `Scaler` and of its pooled one, or None, and the `unseen` of both."""

    arguments: dict[str, Any]
    pooled: dict[str, Any] | None
    unseen: str


def plain_statistics(
    kind: str,
    columns: tuple[str, ...],
    series: tuple[SeriesName, ...] | None,
    estimates: Estimates,
) -> dict[str, Any]:
    """Return the statistics of a scaler as lists, without `unseen` and `pooled`."""
    plain = {}
    for column, name in enumerate(columns):
        entries = {"count": estimates.counts, "weight": estimates.weights, **estimates.statistics}
        entries |= {f"{key}_error": values for key, values in estimates.errors.items()}
        lists = {key: values[:, column].tolist() for key, values in entries.items()}
        plain[name] = {k: v[0] for k, v in lists.items()} if series is None else lists
    names = None if series is None else list(series)
    return {"format": FORMAT, "kind": kind, "series": names, "columns": plain}


def digest_statistics(
    kind: str,
    columns: tuple[str, ...],
    series: tuple[SeriesName, ...] | None,
    estimates: Estimates,
) -> str:
    """Return a digest of the statistics of each series, without `unseen` and `pooled`.

    It is part of the fingerprints of windows: it has format 1 whatever `FORMAT` is, so that a new
    number does not change it.
    """
    plain = {**plain_statistics(kind, columns, series, estimates), "format": 1}
    return digest(json.dumps(plain, allow_nan=False))


def parse_scaler(text: str | bytes) -> ParsedScaler:
    """Return what `Scaler.to_json` has written.

    Raises
    ------
    ValueError
        If the text is not the JSON of a scaler.
    """
    try:
        plain = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the scaler's JSON cannot be read: {error}") from None
    _expect(isinstance(plain, dict), "it is not an object")
    check_format("the scaler's JSON", plain.get("format"), FORMAT)
    for name in ("kind", "unseen", "series", "columns", "pooled"):
        _expect(name in plain, f"it has no {name}")
    kind, unseen, series, pooled = (plain[name] for name in ("kind", "unseen", "series", "pooled"))
    _expect(isinstance(kind, str) and kind in KINDS, f"kind is {kind!r}")
    _expect(series is None or isinstance(series, list), "series is not a list")
    found = _arguments(kind, plain["columns"], series)
    if series is None:
        _expect(unseen is None and pooled is None, "it has one scaling, and pooled statistics")
        return ParsedScaler(found, None, "global")
    _expect(unseen in UNSEEN, f"unseen is {unseen!r}")
    together = _arguments(kind, pooled, None)
    _expect(together["columns"] == found["columns"], "the pooled statistics do not belong to it")
    return ParsedScaler(found, together, unseen)


def _arguments(kind: str, columns: Any, series: list[Any] | None) -> dict[str, Any]:
    """Return the statistics of columns, written in JSON, as arguments of `Scaler`."""
    _expect(isinstance(columns, dict) and len(columns) > 0, "it names no columns")
    rows = 1 if series is None else len(series)
    names = KINDS[kind].names
    keys = ("count", "weight", *names, *(f"{name}_error" for name in names))
    arrays = {key: np.zeros((rows, len(columns))) for key in keys}
    for column, (name, entries) in enumerate(columns.items()):
        _expect(isinstance(entries, dict), f"column {name!r} is not an object")
        for key in keys:
            arrays[key][:, column] = _numbers(entries, key, name, rows, series is None)
    counts, weights = arrays.pop("count").astype(np.int64), arrays.pop("weight")
    return {
        "kind": kind,
        "columns": tuple(columns),
        "statistics": {name: arrays[name] for name in names},
        "errors": {name: arrays[f"{name}_error"] for name in names},
        "counts": counts,
        "weights": weights,
        "series": None if series is None else tuple(map(_tuples, series)),
    }


def _numbers(entries: dict[str, Any], key: str, column: str, rows: int, bare: bool) -> list[float]:
    found = [entries.get(key)] if bare else entries.get(key)
    _expect(
        isinstance(found, list) and len(found) == rows and all(map(_is_number, found)),
        f"{key} of column {column!r} is {str(found)[:60]}, expected {rows} finite numbers",
    )
    assert isinstance(found, list)
    if key in ("count", "weight"):
        _expect(all(0 <= one < 2**53 for one in found), f"{key} of column {column!r} is negative")
    return [float(one) for one in found]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308


def _tuples(value: Any, depth: int = 0) -> Any:
    """Turn lists into tuples, also inside of them."""
    _expect(depth < _DEEPEST_NAME, "the name of a series is nested too deeply")
    return tuple(_tuples(one, depth + 1) for one in value) if isinstance(value, list) else value


def _expect(condition: bool, error: str) -> None:
    if not condition:
        raise ValueError(f"the scaler's JSON cannot be read: {error}")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")
