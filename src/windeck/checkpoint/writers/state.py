"""State to be saved: trees of what is given, and the tensors in them, each memory once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windeck.checkpoint.format import trees
from windeck.checkpoint.format.boxes import slices
from windeck.checkpoint.format.catalogs import as_json
from windeck.checkpoint.writers.pieces import Pieces, is_distributed, pieces_of

__all__ = ["State"]

#: What has to be a place that `load` can put it back to.
_LOADED_IN_PLACE = ("model", "optimizer")


class State:
    """What one process has of a step.

    Attributes
    ----------
    trees
        What was given, by name, as JSON.
    tensors
        By the name of its first place, what of each tensor is here.

    Parameters
    ----------
    given
        ``model``, ``optimizer``, ...; those that are None are left out.
    alone
        Whether there are no other processes: tensors then have to be here as a whole.
    """

    def __init__(self, given: Mapping[str, Any], *, alone: bool = False) -> None:
        self.tensors: dict[str, Pieces] = {}
        self._same: dict[Any, str] = {}
        self._names: set[str] = set()
        self._alone = alone
        present = {name: value for name, value in given.items() if value is not None}
        self.trees = {name: self._tree(name, value) for name, value in present.items()}
        # As JSON before anything is written: no text that is none, no number too long for it.
        as_json(self.trees)

    def _tree(self, name: str, value: Any) -> Any:
        if hasattr(value, "state_dict") and not isinstance(value, Mapping):
            value = value.state_dict()
        elif name in _LOADED_IN_PLACE and not isinstance(value, Mapping):
            raise TypeError(
                f"{name} is of type {type(value).__name__}, expected a dict or an object with "
                "state_dict, as load does"
            )
        return trees.encode(value, name, self._keep)

    def _keep(self, name: str, value: Any) -> str:
        if name in self._names:
            raise ValueError(f"two tensors have the name {name}, expected one of each name")
        self._names.add(name)
        pieces = pieces_of(name, value)
        if self._alone and not pieces.is_whole:
            raise ValueError(_lonely(name, value, pieces))
        memory = pieces.memory
        first = self._same.setdefault(name if memory is None else memory, name)
        if first == name:
            self.tensors[name] = pieces
        return first


def _lonely(name: str, value: Any, pieces: Pieces) -> str:
    kind = "DTensor" if is_distributed(value) else "Partition"
    held = [str([f"{s.start}:{s.stop}" for s in slices(piece.box)]) for piece in pieces.parts]
    found = " and ".join(held).replace("'", "") or "no elements"
    return (
        f"{name} is a {kind} of shape {pieces.shape} with {found} of it in this process, expected "
        "all: save it with group=, or save_shard"
    )
