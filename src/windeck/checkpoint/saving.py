"""Saving: data under numbers nobody else has, then one compare-and-set that makes it visible."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import torch

from windeck.checkpoint import keys, trees
from windeck.checkpoint.chunks import check_plain, dtype_name
from windeck.checkpoint.committing import commit, reserve
from windeck.checkpoint.manifests import as_json, read_head
from windeck.checkpoint.opened import opened
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.protocol import Items
from windeck.checkpoint.writing import chunk_pairs

__all__ = ["CHUNK_BYTES", "save"]

#: Bytes of a chunk, unless asked otherwise.
CHUNK_BYTES = 1 << 20


def save(
    store: Store | str,
    *,
    step: int,
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    extra: Any = None,
    namespace: str = "windeck",
    chunk_bytes: int = CHUNK_BYTES,
) -> int:
    """Save all of a step in one commit.

    Parameters
    ----------
    store
        An open store, or the URL of one, which is opened for the time of the call.
    step
        What `log` shows beside the generation.
    model, optimizer, loader
        State: dicts, lists and tuples of tensors, numbers, text, bool and None; or an object with
        a `state_dict()` that gives such. Tensors may have any dtype, shape and strides, on any
        device; two that are the same memory are stored once.
    extra
        Whatever else belongs to the step, of the same types.
    namespace
        What all keys begin with: a store can hold many checkpoints.
    chunk_bytes
        Bytes of one value; 16 up to 64 MiB.

    Returns
    -------
    int
        The generation committed. Durable when this returns.

    Raises
    ------
    TypeError, ValueError
        For state that cannot be kept, naming the place; nothing was written.
    RuntimeError
        When another save was committed since this one began; that one is in force.
    OSError
        See `windeck.checkpoint.stores.errors`. The checkpoint that was in force still is.

    Notes
    -----
    O(bytes) time; memory of a few chunks beyond the state, whatever its size.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> with checkpoint.stores.open_store("memory://") as store:
    ...     checkpoint.save(store, step=100, model={"w": torch.arange(3.0)}, extra={"note": "hi"})
    ...     model = {"w": torch.zeros(3)}
    ...     loaded = checkpoint.load(store, model=model)
    1
    >>> loaded.step, loaded.extra, model["w"]
    (100, {'note': 'hi'}, tensor([0., 1., 2.]))
    """
    keys.check_namespace(namespace)
    for name, value, low, high in (
        ("step", step, 0, (1 << 63) - 1),
        ("chunk_bytes", chunk_bytes, 16, 64 << 20),
    ):
        if type(value) is not int:
            raise TypeError(f"{name} is of type {type(value).__name__}, expected int")
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}, expected {low} to {high}")
    given = {"model": model, "optimizer": optimizer, "loader": loader, "extra": extra}
    state = _State({name: value for name, value in given.items() if value is not None})
    with opened(store) as place:
        return _Save(place, namespace, state, chunk_bytes, step).run()


class _State:
    """Trees of what is to be saved, and its tensors, each memory once."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._same: dict[Any, str] = {}
        self._names: set[str] = set()
        self.trees = {name: self._tree(name, value) for name, value in given.items()}
        # As JSON before anything is written: no text that is none, no number too long for it.
        as_json(self.trees)

    def _tree(self, name: str, value: Any) -> Any:
        if hasattr(value, "state_dict") and not isinstance(value, Mapping):
            value = value.state_dict()
        return trees.encode(value, name, self._keep)

    def _keep(self, name: str, tensor: torch.Tensor) -> str:
        if name in self._names:
            raise ValueError(f"two tensors have the name {name}, expected one of each name")
        self._names.add(name)
        check_plain(name, tensor)
        memory = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.device
        view = tensor.dtype, tuple(tensor.shape), tensor.stride()
        same = (*memory, *view, tensor.is_conj(), tensor.is_neg()) if tensor.numel() else name
        first = self._same.setdefault(same, name)
        if first == name:
            self.tensors[name] = tensor
        return first


class _Save:
    """One save, step by step; docs/checkpoint.md says what a crash between them leaves."""

    def __init__(
        self, store: Store, namespace: str, state: _State, chunk_bytes: int, step: int
    ) -> None:
        self._store, self._namespace = store, namespace
        self._state, self._chunk_bytes, self._step = state, chunk_bytes, step
        self._head = read_head(store, namespace)
        self._id = secrets.randbits(63)

    def run(self) -> int:
        self._generation = reserve(self._store, self._namespace, self._head[1])
        self._store.bulk_load(self._chunks())
        self._store.sync()
        commit(
            self._store, self._namespace, self._manifest(),
            generation=self._generation, save=self._id, step=self._step, head=self._head,
        )  # fmt: skip
        return self._generation

    def _chunks(self) -> Items:
        tensors = enumerate(self._state.tensors.values())
        return chunk_pairs(self._namespace, self._generation, self._id, tensors, self._chunk_bytes)

    def _manifest(self) -> dict[str, Any]:
        tensors = [
            {
                "name": name,
                "dtype": dtype_name(tensor.dtype),
                "shape": list(tensor.shape),
                "parts": [{"box": [[0, n] for n in tensor.shape], "writer": 0, "item": item}],
            }
            for item, (name, tensor) in enumerate(self._state.tensors.items())
        ]
        return {"chunk_bytes": self._chunk_bytes, "tensors": tensors, "trees": self._state.trees}
