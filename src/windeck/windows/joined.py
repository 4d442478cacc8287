"""Windows of which past and future are views of one buffer.

Past and future of a role are one array (batch, past + future, channel), gathered as one field: with
``gap=0`` each window is copied as one stretch of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from windeck.windows.batch_spec import BatchKey
from windeck.windows.specification import WindowSpec

__all__ = ["Views", "dtypes_of_buffers", "native_keys", "present"]

#: Roles with columns of past and future; also the names of their buffers.
_ROLES = ("target", "known", "known_categorical")

#: The views of buffers by name: their keys, and their parts of the buffer.
Views: TypeAlias = "dict[str, list[tuple[str, tuple[Any, ...]]]]"


def present(batch: dict[str, Any], views: Views) -> dict[str, Any]:
    """Return a batch with past and future in place of the buffers; for arrays and tensors."""
    if not views:
        return batch
    shown = {}
    for name, array in batch.items():
        if name not in views:
            shown[name] = array
            continue
        for key, part in views[name]:
            shown[key] = array[part]
    return shown


def dtypes_of_buffers(dtypes: Mapping[str, str], views: Views) -> dict[str, str]:
    """Return the dtypes of buffers, of those of keys that NumPy lacks."""
    past = {name: f"past_{name}" for name in _ROLES if name in views}
    return {name: dtypes[key] for name, key in past.items() if key in dtypes}


def native_keys(keys: Sequence[BatchKey], spec: WindowSpec) -> tuple[list[BatchKey], Views]:
    """Return the keys that the native gather makes, and the views of buffers among them.

    Of joined windows the keys of past and future of a role are replaced by one of a buffer.
    """
    if not spec.joined:
        return list(keys), {}
    span, layout = spec.span, spec.layout
    by_name = {key.name: key for key in keys}
    joined: list[BatchKey] = []
    views: Views = {}
    lead = (slice(None), slice(None)) if layout == "bct" else (slice(None),)
    length = span.context_length
    parts = ((*lead, slice(None, length)), (*lead, slice(length, None)))
    for key in keys:
        role = key.name.partition("_")[2]
        past, future = by_name.get(f"past_{role}"), by_name.get(f"future_{role}")
        if role not in _ROLES or past is None or future is None:
            joined.append(key)
            continue
        if key is future:
            continue
        step_spans = (*past.step_spans, *future.step_spans)
        if span.gap == 0:
            step_spans = ((0, span.steps),)
        buffer = replace(
            past,
            name=role,
            step_spans=step_spans,
            padded=past.padded or future.padded,
            mask=past.mask or future.mask,
            fills_nan=past.fills_nan or future.fills_nan,
        )
        joined.append(buffer)
        named = [(past, parts[0]), (future, parts[1])]
        views[role] = [(one.name, part) for one, part in named]
        if buffer.mask:
            views[f"{role}_mask"] = [(f"{one.name}_mask", part) for one, part in named if one.mask]
    return joined, views
