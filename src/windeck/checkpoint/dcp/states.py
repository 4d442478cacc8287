"""Conversion between checkpoints and the flat states of torch.distributed.checkpoint.

Flat names are ``model.layer.weight``. Torch's own functions flatten a state in which tensors on the
meta device take the places of those in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.utils._pytree import tree_map

from windeck.checkpoint.format import state_json
from windeck.checkpoint.inspecting import Checkpoint, TensorInfo

__all__ = ["FlatState", "build_manifest", "check_root", "flatten_checkpoint"]

#: The reserved root that holds the name of the root of a state that was saved under one root.
_MARK_ROOT = "dcp"
_DEFAULT_ROOT = "model"


@dataclass
class FlatState:
    """A checkpoint with the names of dcp.

    Attributes
    ----------
    generation
        Of the checkpoint.
    tensors
        By dcp's name, the name that the data are stored under, and the tensor's info.
    values
        By dcp's name, values other than tensors; tensors inside them are placeholders.
    paths
        By dcp's name, the keys that lead to the value.
    placeholders
        By id, the stored name of a placeholder, and the placeholder, which keeps the id in use.
    """

    generation: int = 0
    tensors: dict[str, tuple[str, TensorInfo]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Any] = field(default_factory=dict)
    placeholders: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)

    def metadata(self) -> Metadata:
        """Return dcp's metadata, with one chunk for each tensor: any box of it can be read."""
        found: dict[str, Any] = {}
        for name, (_, info) in self.tensors.items():
            zeros = torch.Size([0] * len(info.shape))
            size = torch.Size(info.shape)
            found[name] = TensorStorageMetadata(
                properties=TensorProperties(dtype=info.dtype),
                size=size,
                chunks=[ChunkStorageMetadata(offsets=zeros, sizes=size)],
            )
        found |= {name: BytesStorageMetadata() for name in self.values}
        return Metadata(found, planner_data=dict(self.paths))

    def value(self, name: str, found: Checkpoint) -> Any:
        """Return a value other than a tensor, after reading the tensors inside it."""

        def read(leaf: Any) -> Any:
            return found.tensor(self.placeholders[id(leaf)][0]) if _is_tensor(leaf) else leaf

        return tree_map(read, self.values[name])


def flatten_checkpoint(found: Checkpoint, root: str | None) -> FlatState:
    """Flatten a checkpoint as torch flattens states.

    Parameters
    ----------
    root
        The root whose content is the state; None: the one that the writer recorded, or all roots.

    Raises
    ------
    KeyError
        For a root that was not saved.
    """
    flat = FlatState(found.generation)
    roots = {name: tree for name, tree in found.trees.items() if name != _MARK_ROOT}
    if root is None and _MARK_ROOT in found.trees:
        root = str(state_json.decode(found.trees[_MARK_ROOT], str)["root"])
    if root is not None and root not in roots:
        raise KeyError(f"{root} was not saved in {found!r}, which has {', '.join(roots)}")

    def make_placeholder(name: str) -> torch.Tensor:
        info = found.info(name)
        tensor = torch.empty(info.shape, dtype=info.dtype, device="meta")
        flat.placeholders[id(tensor)] = name, tensor
        return tensor

    state = {name: state_json.decode(tree, make_placeholder) for name, tree in roots.items()}
    leaves, flat.paths = flatten_state_dict(state if root is None else state[root])
    for name, leaf in leaves.items():
        if _is_tensor(leaf):
            saved = flat.placeholders[id(leaf)][0]
            flat.tensors[name] = saved, found.info(saved)
        else:
            flat.values[name] = leaf
    return flat


def build_manifest(
    metadata: Metadata, results: Sequence[Sequence[WriteResult]], root: str | None, chunk_bytes: int
) -> dict[str, Any]:
    """Build the manifest from the write results of all ranks.

    Raises
    ------
    ValueError
        If something is missing, or ranks differ.
    """
    written: dict[str, list[Any]] = {}
    for rank in results:
        for result in rank:
            written.setdefault(result.index.fqn, []).append(result.storage_data)
    missing = sorted(metadata.state_dict_metadata.keys() - written.keys())
    if missing:
        raise ValueError(f"no rank wrote {', '.join(missing[:20])}, expected all that was planned")
    paths = metadata.planner_data or {name: (name,) for name in metadata.state_dict_metadata}
    placeholders: dict[int, tuple[str, torch.Tensor]] = {}
    state: dict[str, Any] = {}
    for name, path in paths.items():
        leaf: Any = torch.empty(0, device="meta")
        if isinstance(metadata.state_dict_metadata[name], BytesStorageMetadata):
            leaf = state_json.decode(written[name][0], str)
        else:
            placeholders[id(leaf)] = name, leaf
        set_element(state, path, leaf)
    tensors: dict[str, dict[str, Any]] = {}

    def add(place: str, tensor: Any) -> str:
        if place in tensors:
            raise ValueError(f"two tensors have the name {place}, expected one of each name")
        tensors[place] = _tensor_entry(place, written[placeholders[id(tensor)][0]])
        return place

    roots = _add_roots(state, root, flat=all(len(path) == 1 for path in paths.values()))
    found = {name: state_json.encode(value, name, add) for name, value in roots.items()}
    return {"chunk_bytes": chunk_bytes, "tensors": list(tensors.values()), "trees": found}


def check_root(root: Any) -> str | None:
    """Return a root; raise an error unless a state may be saved under it."""
    if root is not None and not isinstance(root, str):
        raise TypeError(f"`root` must be a str or None, got {type(root).__name__}")
    if root == _MARK_ROOT:
        raise ValueError(f"`root` must be another name than {root!r}, which is reserved")
    return root


def _add_roots(state: dict[str, Any], root: str | None, *, flat: bool) -> dict[str, Any]:
    if root is None and flat:
        return {_DEFAULT_ROOT: state, _MARK_ROOT: {"root": _DEFAULT_ROOT}}
    if root is not None:
        return {root: state, _MARK_ROOT: {"root": root}}
    if _MARK_ROOT in state:
        raise ValueError(f"the state has a key {_MARK_ROOT!r}, which is reserved, expected another")
    return state


def _tensor_entry(place: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the manifest's entry of a tensor from the boxes that the ranks wrote."""
    kinds = sorted({(p["dtype"], tuple(p["shape"]), p["chunk_bytes"]) for p in parts})
    if len(kinds) > 1:
        raise ValueError(f"{place} is {kinds[0]} on one rank and {kinds[1]} on another")
    dtype, shape, chunk_bytes = kinds[0]
    # Boxes without elements are dropped; a tensor without elements gets one part of its shape.
    full = [part for part in parts if all(first < end for first, end in part["box"])]
    if not full:
        full = [{**parts[0], "box": [[0, size] for size in shape]}]
    kept = [{key: part[key] for key in ("box", "writer", "item")} for part in full]
    entry = {"name": place, "dtype": dtype, "shape": list(shape), "chunk_bytes": chunk_bytes}
    return {**entry, "parts": kept}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
