"""Contents of the HTML page: names, statistics, samples, findings and log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from windeck._util.terminal import escaped
from windeck.checkpoint.format import state_json
from windeck.checkpoint.format.entries import TensorEntry
from windeck.checkpoint.format.manifests import find_commit, read_head, read_manifest
from windeck.checkpoint.read import search_tensor, tensor_statistics
from windeck.checkpoint.read.predicates import nan, parse
from windeck.checkpoint.stores import CorruptStoreError, View
from windeck.cli.catalog import TABLES
from windeck.cli.output import format_time
from windeck.cli.page.limits import Budget, Limits
from windeck.cli.page.samples import (
    NOT_READ,
    digits_of,
    json_number,
    sample,
    statistics_document,
    table_item,
)
from windeck.columns.dtypes import item_bytes
from windeck.columns.elements import is_numeric

__all__ = ["collect"]


def collect(
    view: View, namespace: str, *, url: str, generation: int | str | None = None, limits: Limits
) -> dict[str, Any]:
    """Return the contents of a page, as JSON.

    Parameters
    ----------
    url
        Text to show, without a password.
    limits
        Limits of what is read and shown.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation.
    OSError
        When the store cannot be reached, or the manifest is damaged. The page
        shows other damage with its tensor.

    Notes
    -----
    Reads the bytes that `limits` allows two or three times. Memory: some chunks, and the page.
    """
    commit = find_commit(view, namespace, generation)
    manifest = read_manifest(view, namespace, commit)
    budget = Budget(limits)
    items = [*_tensors(view, namespace, manifest, budget)]
    held = sum(item["bytes"] or 0 for item in items if item["own"])
    for table in manifest["tables"].values():
        items.append(table_item(view, namespace, table, budget))
        held += table.bytes
    items += _values(manifest["trees"], budget)
    for item in items:  # as `ls` prints it
        listed = escaped(TABLES * (item["kind"] == "table") + item["name"])
        if listed != item["name"]:
            item["listed"] = listed
    log = [
        {"generation": one.generation, "step": one.step, "time": format_time(one.time),
         "bases": list(one.bases), "tags": list(one.tags)}
        for one in read_head(view, namespace).commits
    ]  # fmt: skip
    return {
        "url": url, "namespace": namespace, "generation": commit.generation, "step": commit.step,
        "time": format_time(commit.time), "made": format_time(time.time()), "bytes": held,
        "items": items, "log": log,
        "limits": {"text": budget.sentences(), "unread": len(budget.unread)},
    }  # fmt: skip


def _tensors(
    view: View, namespace: str, manifest: Mapping[str, Any], budget: Budget
) -> Iterator[dict[str, Any]]:
    done: dict[str, str] = {}
    for root, tree in manifest["trees"].items():
        for name, saved in state_json.iter_tensors(tree, root):
            item = _tensor_item(name, manifest["tensors"][saved])
            item["own"], item["data"] = saved not in done, done.setdefault(saved, name)
            if item["own"]:
                entry = manifest["tensors"][saved]
                try:
                    _add_values(view, namespace, entry, item, budget)
                except (CorruptStoreError, ValueError, TypeError) as error:
                    item["note"] = getattr(error, "strerror", None) or str(error)
                    item["damaged"] = True
            yield item


def _tensor_item(name: str, entry: TensorEntry) -> dict[str, Any]:
    width, total = item_bytes(entry.dtype), math.prod(entry.shape)
    return {
        "kind": "tensor", "name": name, "dtype": entry.dtype, "shape": list(entry.shape),
        "elements": total, "bytes": None if width is None else width * total,
        "parts": len(entry.parts), "note": "", "stats": None, "histogram": None, "findings": None,
        "samples": [], "complete": False,
    }  # fmt: skip


def _add_values(
    view: View, namespace: str, entry: TensorEntry, item: dict[str, Any], budget: Budget
) -> None:
    limits = budget.limits
    if not is_numeric(entry.dtype):
        item["note"] = f"Elements of dtype {entry.dtype} are not shown: they are no plain numbers."
        return
    if budget.take_values(min(item["elements"], max(limits.whole, 300))):
        item["samples"], item["complete"] = sample(view, namespace, entry, limits.whole)
    else:
        item["note"] = f"No values are shown: the page holds up to {limits.values:,}. "
    if not budget.take_bytes(entry.name, item["bytes"]):
        item["note"] += NOT_READ
        return
    found = tensor_statistics(
        view, namespace, entry, bins=_bins(entry, limits), largest=limits.places
    )
    digits = digits_of(entry.dtype)
    item["stats"] = statistics_document(found)
    if found["histogram"] is not None:
        counts, edges = found["histogram"].tolist(), found["edges"].tolist()
        if len(counts) == _bins(entry, limits):  # bins of the same width
            edges = [edges[0], edges[-1]]
        item["histogram"] = {"edges": [json_number(edge) for edge in edges], "counts": counts}
    places: dict[str, Any] = {
        "largest": [[list(index), json_number(value, digits)] for index, value in found["largest"]]
    }
    infinite = found["positive_infinite"] + found["negative_infinite"]
    for name, count, where in (("nan", found["nan"], nan()), ("inf", infinite, parse("inf"))):
        if count:
            matches = search_tensor(view, namespace, entry, where, limit=limits.places).matches
            places[name] = {"count": count, "at": [list(match.index) for match in matches]}
    item["findings"] = places


def _bins(entry: TensorEntry, limits: Limits) -> int:
    return 2 if entry.dtype == "bool" else limits.bins if math.prod(entry.shape) > 1 else 0


def _values(roots: Mapping[str, Any], budget: Budget) -> Iterator[dict[str, Any]]:
    limits, count = budget.limits, 0
    for root, tree in roots.items():
        for name, value in _leaves(tree, root):
            count += 1
            if count > limits.plain:
                budget.plain += 1
                continue
            text = value if isinstance(value, str) else json.dumps(value)
            if len(text) > limits.letters:
                text = f"{text[: limits.letters]}... and {len(text) - limits.letters:,} letters"
            number = json_number(value) if isinstance(value, (int, float)) else None
            yield {
                "kind": "value", "name": name, "type": type(value).__name__, "value": text,
                "number": number,
            }  # fmt: skip


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Return the names and values of numbers and text in a stored tree."""
    if type(tree) is list:
        for i, item in enumerate(tree):
            yield from _leaves(item, f"{name}/{i}")
    elif type(tree) is dict and "dict" in tree:
        for key, item in tree["dict"]:
            yield from _leaves(item, f"{name}/{key}")
    elif type(tree) is dict and "tuple" in tree:
        yield from _leaves(tree["tuple"], name)
    elif type(tree) is dict and "float" in tree:
        yield name, float(tree["float"])
    elif not (type(tree) is dict and "tensor" in tree):
        yield name, tree
