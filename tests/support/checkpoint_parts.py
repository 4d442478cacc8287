"""Checkpoints of several writers and of other processes, written from the documented format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from windeck.checkpoint.format import Kind, Label, encode, encode_head, keys, manifests
from windeck.checkpoint.stores import Store
from windeck.checkpoint.write import begin_save, commit_manifest


def save_parts(
    store: Store,
    tensor: torch.Tensor,
    boxes: Sequence[Sequence[tuple[int, int]]],
    *,
    chunk_bytes: int = 64,
    step: int = 0,
) -> int:
    """Save ``{"w": tensor}`` as a model, box i by writer i; returns the generation."""
    begun = begin_save(store, "windeck", step, takeover=True, lower_step=True)
    generation, save = begun.generation, begun.save
    items = chunk_bytes // tensor.dtype.itemsize
    parts: list[dict[str, Any]] = []
    for writer, box in enumerate(boxes):
        part = tensor[tuple(slice(*side) for side in box)].contiguous()
        flat = np.frombuffer(part.view(torch.uint8).numpy().tobytes(), f"V{tensor.dtype.itemsize}")
        for number in range(-(-len(flat) // items)):
            data = flat[number * items : (number + 1) * items].tobytes()
            label = Label(Kind.CHUNK, generation, save, 0, writer, number)
            key = keys.chunk("windeck", generation, writer, 0, number)
            store.put_many([(key, encode(label, data))])
        parts.append({"box": [list(side) for side in box], "writer": writer, "item": 0})
    name = str(tensor.dtype).removeprefix("torch.")
    entry = {"name": "model/w", "dtype": name, "shape": list(tensor.shape), "parts": parts}
    trees = {"model": {"dict": [["w", {"tensor": "model/w"}]]}}
    manifest = {"chunk_bytes": chunk_bytes, "tensors": [entry], "trees": trees}
    commit_manifest(store, begun, manifest)
    return generation


def make_foreign(store: Store) -> None:
    """Make the checkpoints of a store those of a process that this one has read nothing of."""
    commits = manifests.read_head(store, "windeck").commits
    others = [commit._replace(save=commit.save ^ 1) for commit in commits]
    store.put_many([(keys.head("windeck"), encode_head(others))])
