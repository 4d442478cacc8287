"""States as torch.distributed.checkpoint names them: flat, ``model.layer.weight``, and back.

How a state is flattened is torch's own business, so its functions do it: on tensors without memory
that stand for those of a checkpoint.
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

from windeck.checkpoint.format import trees
from windeck.checkpoint.inspecting import Checkpoint, TensorInfo

__all__ = ["Flat", "check_root", "flat_of", "manifest_of"]

#: The root that says under which root a state without roots was put.
_MARK = "dcp"
_ROOT = "model"


@dataclass
class Flat:
    """A checkpoint as dcp sees it.

    Attributes
    ----------
    generation
        Its number.
    tensors
        By dcp's name: the name the data are under, and what the tensor is.
    values
        By dcp's name, what is no tensor; tensors in it are stand-ins.
    paths
        By dcp's name, the keys that lead there.
    """

    generation: int = 0
    tensors: dict[str, tuple[str, TensorInfo]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Any] = field(default_factory=dict)
    standing: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)

    def metadata(self) -> Metadata:
        """For dcp: each tensor one chunk, since any box of it can be read."""
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
        """What is no tensor; tensors inside it are read."""

        def real(leaf: Any) -> Any:
            return found.tensor(self.standing[id(leaf)][0]) if _is_tensor(leaf) else leaf

        return tree_map(real, self.values[name])


def flat_of(found: Checkpoint, root: str | None) -> Flat:
    """A checkpoint, flattened as torch flattens states.

    Parameters
    ----------
    root
        The root whose inside is the state; None: what the writer said, or all roots.

    Raises
    ------
    KeyError
        For a root there is none of.
    """
    flat = Flat(found.generation)
    roots = {name: tree for name, tree in found.trees.items() if name != _MARK}
    if root is None and _MARK in found.trees:
        root = str(trees.decode(found.trees[_MARK], str)["root"])
    if root is not None and root not in roots:
        raise KeyError(f"{root} was not saved in {found!r}, which has {', '.join(roots)}")

    def stand_in(name: str) -> torch.Tensor:
        info = found.info(name)
        tensor = torch.empty(info.shape, dtype=info.dtype, device="meta")
        flat.standing[id(tensor)] = name, tensor
        return tensor

    state = {name: trees.decode(tree, stand_in) for name, tree in roots.items()}
    leaves, flat.paths = flatten_state_dict(state if root is None else state[root])
    for name, leaf in leaves.items():
        if _is_tensor(leaf):
            saved = flat.standing[id(leaf)][0]
            flat.tensors[name] = saved, found.info(saved)
        else:
            flat.values[name] = leaf
    return flat


def manifest_of(
    metadata: Metadata, results: Sequence[Sequence[WriteResult]], root: str | None, chunk_bytes: int
) -> dict[str, Any]:
    """The manifest of what all ranks say they wrote.

    Raises
    ------
    ValueError
        Where something of it is missing, or ranks do not agree.
    """
    said: dict[str, list[Any]] = {}
    for rank in results:
        for result in rank:
            said.setdefault(result.index.fqn, []).append(result.storage_data)
    missing = sorted(metadata.state_dict_metadata.keys() - said.keys())
    if missing:
        raise ValueError(f"no rank wrote {', '.join(missing[:20])}, expected all that was planned")
    paths = metadata.planner_data or {name: (name,) for name in metadata.state_dict_metadata}
    standing: dict[int, tuple[str, torch.Tensor]] = {}
    state: dict[str, Any] = {}
    for name, path in paths.items():
        leaf: Any = torch.empty(0, device="meta")
        if isinstance(metadata.state_dict_metadata[name], BytesStorageMetadata):
            leaf = trees.decode(said[name][0], str)
        else:
            standing[id(leaf)] = name, leaf
        set_element(state, path, leaf)
    tensors: dict[str, dict[str, Any]] = {}

    def keep(place: str, tensor: Any) -> str:
        if place in tensors:
            raise ValueError(f"two tensors have the name {place}, expected one of each name")
        tensors[place] = _entry(place, said[standing[id(tensor)][0]])
        return place

    roots = _roots(state, root, flat=all(len(path) == 1 for path in paths.values()))
    found = {name: trees.encode(value, name, keep) for name, value in roots.items()}
    return {"chunk_bytes": chunk_bytes, "tensors": list(tensors.values()), "trees": found}


def check_root(root: Any) -> str | None:
    """A root that a state may be put under."""
    if root is not None and not isinstance(root, str):
        raise TypeError(f"root is of type {type(root).__name__}, expected str or None")
    if root == _MARK:
        raise ValueError(f"root is {root!r}, which is reserved, expected another")
    return root


def _roots(state: dict[str, Any], root: str | None, *, flat: bool) -> dict[str, Any]:
    if root is None and flat:
        return {_ROOT: state, _MARK: {"root": _ROOT}}
    if root is not None:
        return {root: state, _MARK: {"root": root}}
    if _MARK in state:
        raise ValueError(f"the state has a key {_MARK!r}, which is reserved, expected another")
    return state


def _entry(place: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A tensor of the manifest, from what the ranks say of their boxes of it."""
    kinds = sorted({(p["dtype"], tuple(p["shape"]), p["chunk_bytes"]) for p in parts})
    if len(kinds) > 1:
        raise ValueError(f"{place} is {kinds[0]} on one rank and {kinds[1]} on another")
    dtype, shape, chunk_bytes = kinds[0]
    # Ranks may own nothing of it; of a tensor without elements, one part stands for it.
    full = [part for part in parts if all(first < end for first, end in part["box"])]
    if not full:
        full = [{**parts[0], "box": [[0, size] for size in shape]}]
    kept = [{key: part[key] for key in ("box", "writer", "item")} for part in full]
    entry = {"name": place, "dtype": dtype, "shape": list(shape), "chunk_bytes": chunk_bytes}
    return {**entry, "parts": kept}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
