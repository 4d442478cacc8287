"""Scalers as plain JSON values, and back: nothing is evaluated, everything is checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from windeck.sources.scaling.statistics import KINDS

if TYPE_CHECKING:
    from windeck.sources.scaler import Scaler

FORMAT = 1


def plain_name(name: Any) -> Any:
    """A series' name as JSON can hold it: numbers, texts and tuples as they are, others as text."""
    if isinstance(name, tuple):
        return tuple(plain_name(part) for part in name)
    if isinstance(name, np.generic) and not isinstance(name, (np.datetime64, np.timedelta64)):
        name = name.item()
    return name if name is None or isinstance(name, (str, bool, int, float)) else str(name)


def to_plain(scaler: Scaler) -> dict[str, Any]:
    """A scaler as dicts, lists, texts and numbers."""
    columns = {}
    for place, name in enumerate(scaler.columns):
        entries = {"count": scaler.counts, "weight": scaler.weights, **scaler.statistics}
        entries |= {f"{key}_error": values for key, values in scaler.errors.items()}
        lists = {key: values[:, place].tolist() for key, values in entries.items()}
        columns[name] = {k: v[0] for k, v in lists.items()} if scaler.series is None else lists
    return {
        "format": FORMAT,
        "kind": scaler.kind,
        "series": None if scaler.series is None else list(scaler.series),
        "columns": columns,
    }


def from_text(text: str | bytes) -> dict[str, Any]:
    """The arguments of the scaler written in `text`.

    Raises
    ------
    ValueError
        Naming what is wrong with it.
    """
    try:
        plain = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the scaler's JSON cannot be read: {error}") from None
    _expect(isinstance(plain, dict), "it is no object")
    _expect(plain.get("format") == FORMAT, f"format is {plain.get('format')!r}, expected {FORMAT}")
    kind, columns, series = plain.get("kind"), plain.get("columns"), plain.get("series")
    _expect(isinstance(kind, str) and kind in KINDS, f"kind is {kind!r}")
    _expect(isinstance(columns, dict) and len(columns) > 0, "it names no columns")
    _expect(series is None or isinstance(series, list), "series is no list")
    rows = 1 if series is None else len(series)
    names = KINDS[kind].names
    keys = ("count", "weight", *names, *(f"{name}_error" for name in names))
    arrays = {key: np.zeros((rows, len(columns))) for key in keys}
    for place, (name, entries) in enumerate(columns.items()):
        _expect(isinstance(entries, dict), f"column {name!r} is no object")
        for key in keys:
            arrays[key][:, place] = _numbers(entries, key, name, rows, series is None)
    counts, weights = arrays.pop("count").astype(np.int64), arrays.pop("weight")
    return {
        "kind": kind,
        "columns": tuple(columns),
        "statistics": {name: arrays[name] for name in names},
        "errors": {name: arrays[f"{name}_error"] for name in names},
        "counts": counts,
        "weights": weights,
        "series": None if series is None else tuple(map(_name, series)),
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


def _name(value: Any) -> Any:
    return tuple(map(_name, value)) if isinstance(value, list) else value


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"the scaler's JSON cannot be read: {otherwise}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")
