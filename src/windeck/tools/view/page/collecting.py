"""What a page holds of a checkpoint: names, statistics, samples, findings, log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from windeck.checkpoint.format import trees
from windeck.checkpoint.format.dtypes import item_bytes
from windeck.checkpoint.format.entries import Entry
from windeck.checkpoint.format.manifests import find_commit, read_head, read_manifest
from windeck.checkpoint.format.numbers import searchable
from windeck.checkpoint.readers.where import nan, parse
from windeck.checkpoint.searching import search_tensor, statistics
from windeck.checkpoint.stores import CorruptStoreError, View
from windeck.tools.view.output import moment
from windeck.tools.view.page.limits import Limits, Spent
from windeck.tools.view.page.sampling import digits_of, plain, sample
from windeck.tools.view.page.tables import table_item

__all__ = ["collect"]


def collect(
    view: View, namespace: str, *, url: str, generation: int | None = None, limits: Limits
) -> dict[str, Any]:
    """All that a page shows, as JSON.

    Parameters
    ----------
    url
        As it is shown: without a password.
    limits
        How much is read and shown.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation.
    OSError
        When the store cannot be reached, or the manifest is damaged. Other damage is told on the
        page, with the tensor that has it.

    Notes
    -----
    Time: of the bytes that `limits` allows, read two or three times. Memory: some chunks, and the
    page.
    """
    commit = find_commit(view, namespace, generation)
    manifest = read_manifest(view, namespace, commit)
    spent = Spent(limits)
    items = [*_tensors(view, namespace, manifest, spent)]
    held = sum(item["bytes"] or 0 for item in items if item["own"])
    tables = manifest["tables"]
    for table in tables.values() if isinstance(tables, Mapping) else ():
        items.append(table_item(view, namespace, table, spent))
        held += table.bytes
    items += _values(manifest["trees"], spent)
    log = [
        {"generation": one.generation, "step": one.step, "time": moment(one.time),
         "bases": list(one.bases)}
        for one in read_head(view, namespace)[1]
    ]  # fmt: skip
    return {
        "url": url, "namespace": namespace, "generation": commit.generation, "step": commit.step,
        "time": moment(commit.time), "made": moment(time.time()), "bytes": held, "items": items,
        "log": log, "limits": {"text": spent.sentences(), "unread": len(spent.unread)},
    }  # fmt: skip


def _tensors(
    view: View, namespace: str, manifest: Mapping[str, Any], spent: Spent
) -> Iterator[dict[str, Any]]:
    done: dict[str, str] = {}
    for root, tree in manifest["trees"].items():
        for name, saved in trees.tensors_in(tree, root):
            item = _described(name, manifest["tensors"][saved])
            item["own"], item["data"] = saved not in done, done.setdefault(saved, name)
            if item["own"]:
                entry = manifest["tensors"][saved]
                try:
                    _look_into(view, namespace, entry, item, spent)
                except (CorruptStoreError, ValueError, TypeError) as error:
                    item["note"] = getattr(error, "strerror", None) or str(error)
                    item["damaged"] = True
            yield item


def _described(name: str, entry: Entry) -> dict[str, Any]:
    width, total = item_bytes(entry.dtype), math.prod(entry.shape)
    return {
        "kind": "tensor", "name": name, "dtype": entry.dtype, "shape": list(entry.shape),
        "elements": total, "bytes": None if width is None else width * total,
        "parts": len(entry.parts), "note": "", "stats": None, "histogram": None, "findings": None,
        "blocks": [], "complete": False,
    }  # fmt: skip


def _look_into(
    view: View, namespace: str, entry: Entry, item: dict[str, Any], spent: Spent
) -> None:
    limits = spent.limits
    if not searchable(entry.dtype):
        item["note"] = f"Elements of dtype {entry.dtype} are not shown: they are no plain numbers."
        return
    if spent.may_show(min(item["elements"], max(limits.whole, 300))):
        item["blocks"], item["complete"] = sample(view, namespace, entry, limits.whole)
    else:
        item["note"] = f"No values are shown: the page holds up to {limits.values:,}. "
    if not spent.may_read(entry.name, item["bytes"]):
        item["note"] += "Not read as a whole: see what this page holds, in the overview."
        return
    found = statistics(view, namespace, entry, bins=_bins(entry, limits), largest=limits.places)
    digits = digits_of(entry.dtype)
    item["stats"] = stats_of(found)
    if found["histogram"] is not None:
        counts, edges = found["histogram"].tolist(), found["edges"].tolist()
        if len(counts) == _bins(entry, limits):  # even, as asked for: the ends say it all
            edges = [edges[0], edges[-1]]
        item["histogram"] = {"edges": [plain(edge) for edge in edges], "counts": counts}
    places: dict[str, Any] = {
        "largest": [[list(index), plain(value, digits)] for index, value in found["largest"]]
    }
    infinite = found["positive_infinite"] + found["negative_infinite"]
    for name, count, where in (("nan", found["nan"], nan()), ("inf", infinite, parse("inf"))):
        if count:
            matches = search_tensor(view, namespace, entry, where, limit=limits.places).matches
            places[name] = {"count": count, "at": [list(match.index) for match in matches]}
    item["findings"] = places


def _bins(entry: Entry, limits: Limits) -> int:
    return 2 if entry.dtype == "bool" else limits.bins if math.prod(entry.shape) > 1 else 0


def stats_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics as JSON."""
    names = ("count", "nan", "positive_infinite", "negative_infinite", "zeros")
    told = {name: found[name] for name in names}
    for name in ("min", "max", "mean", "std", "abs_max"):
        told[name] = None if found[name] is None else plain(found[name])
    return told


def _values(roots: Mapping[str, Any], spent: Spent) -> Iterator[dict[str, Any]]:
    limits, count = spent.limits, 0
    for root, tree in roots.items():
        for name, value in _leaves(tree, root):
            count += 1
            if count > limits.plain:
                spent.plain += 1
                continue
            text = value if isinstance(value, str) else json.dumps(value)
            if len(text) > limits.letters:
                text = f"{text[: limits.letters]}... and {len(text) - limits.letters:,} letters"
            number = plain(value) if isinstance(value, (int, float)) else None
            yield {
                "kind": "value", "name": name, "type": type(value).__name__, "value": text,
                "number": number,
            }  # fmt: skip


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Numbers and text in a tree as it is stored, by place."""
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
