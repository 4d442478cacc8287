"""Windows of which past and future are views of one buffer.

Past and future of a role are one array (batch, past + future, channel), gathered as one field: with
``gap=0`` each window is copied as one stretch of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from windeck.sources import Batch
from windeck.windows.batch_spec import BatchKey
from windeck.windows.index import WindowSpan
from windeck.windows.windows import Windows

__all__ = ["JoinedWindows"]

#: Roles with columns of past and future; also the names of their buffers.
_ROLES = ("target", "known")

#: The views of a buffer: their keys, and their parts of it.
_Views = dict[str, list[tuple[str, tuple[Any, ...]]]]


class JoinedWindows(Windows):
    """Windows whose past and future of a role are views of one buffer; see `Windows.joined`."""

    def _native_keys(self) -> list[BatchKey]:
        keys, self._views = _join(self._keys, self.span, self.layout)
        return keys

    def gather(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch; as `Windows.gather`, but `out` has the keys of `gather_rows`."""
        return self.present(self.gather_rows(indices, out, threads))

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch with buffers: ``target``, ``target_mask``, ``known``, ``known_mask``."""
        return super().gather(indices, out, threads)

    def whole(self, rows: Batch) -> Batch:
        """Return no arrays: all of a batch are rows."""
        return {}

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch with past and future in place of the buffers; for arrays and tensors."""
        shown = {}
        for name, array in batch.items():
            views = self._views.get(name)
            if views is None:
                shown[name] = array
                continue
            for key, part in views:
                shown[key] = array[part]
        return shown

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """As `Windows.torch_dtypes`, with the buffers."""
        bits = super().torch_dtypes
        past = {name: f"past_{name}" for name in _ROLES if name in self._views}
        return bits | {name: bits[key] for name, key in past.items() if key in bits}


def _join(keys: Sequence[BatchKey], span: WindowSpan, layout: str) -> tuple[list[BatchKey], _Views]:
    """Return the keys with those of past and future replaced by buffers, and their views."""
    by_name = {key.name: key for key in keys}
    joined: list[BatchKey] = []
    views: _Views = {}
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
        segments = (*past.segments, *future.segments)
        if span.gap == 0:
            segments = ((0, span.steps),)
        buffer = replace(
            past,
            name=role,
            segments=segments,
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
