"""Loading in place: everything that can be compared is compared before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from windeck.checkpoint import trees
from windeck.checkpoint.chunks import check_plain, named_dtype
from windeck.checkpoint.reading import Checkpoint
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.tables.loading import Targets

__all__ = ["Loaded", "load"]


@dataclass(frozen=True)
class Loaded:
    """What was loaded: its `generation`, `step`, `time`, and `extra` as it was saved."""

    generation: int
    step: int
    time: float
    extra: Any


def load(
    store: Store | str,
    *,
    model: Any = None,
    optimizer: Any = None,
    embeddings: Mapping[str, Any] | None = None,
    loader: Any = None,
    generation: int | None = None,
    strict: bool = True,
    cast: bool = False,
    namespace: str = "windeck",
) -> Loaded:
    """Load a checkpoint into what is there already.

    Parameters
    ----------
    store
        An open store, or the URL of one; RocksDB is then opened for reading only.
    model, optimizer, loader
        What to load into. A dict (with dicts, lists and tuples in it) is filled in place: its
        tensors are written over, numbers replaced. A module likewise. Another object with
        `load_state_dict` has its own tensors written over where it has them, gets new ones where
        it has none yet, as a fresh optimizer, and is then given the whole state.
    embeddings
        Tables by name, without any ids yet. Each takes the buckets it owns, and reads no others.
    generation
        One of `log`; None: the one in force.
    strict
        Names have to be the same on both sides. Otherwise, those on both sides are loaded.
    cast
        Cast to the targets' dtypes, instead of an error where they differ.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation.
    KeyError
        For names that are on one side only, with both lists, or state that was not saved.
    TypeError, ValueError
        For a dtype or a shape that is another. Up to here, no target was written.
    OSError
        For what is damaged or cannot be reached. The message says whether targets were written:
        then they are invalid.

    Notes
    -----
    O(bytes) time; memory of a few chunks beyond the targets.
    """
    given = {"model": model, "optimizer": optimizer, "loader": loader}
    with Checkpoint(store, namespace, generation) as found:
        roots = [
            _Root(found, name, value, strict) for name, value in given.items() if value is not None
        ]
        jobs = _jobs(found, roots, cast)
        tables = Targets(repr(found), found.table_entries, embeddings, strict)
        extra = found.tree("extra")
        for root in reversed(roots):  # a loader that refuses does so before anything is written
            if root.name == "loader":
                root.finish()
        tables.read(found.table)
        try:
            _read(found, jobs)
        except BaseException:
            tables.clear()
            raise
        tables.loaded(found.save)
        for root in roots:
            if root.name != "loader":
                root.finish()
        return Loaded(found.generation, found.step, found.time, extra)


class _Root:
    """One of the things to load into: its tensors by the names of their places."""

    def __init__(self, found: Checkpoint, name: str, given: Any, strict: bool) -> None:
        if name not in found.trees:
            raise KeyError(f"{name} was not saved in {found!r}, which has {', '.join(found.trees)}")
        self.name, self._given, self._tree = name, given, found.trees[name]
        self._is_module = isinstance(given, torch.nn.Module)
        self._is_object = not isinstance(given, Mapping) and hasattr(given, "load_state_dict")
        if not self._is_object and not isinstance(given, dict):
            raise TypeError(
                f"{name} is of type {type(given).__name__}, expected a dict or an object with "
                "load_state_dict"
            )
        self._state = given.state_dict() if hasattr(given, "state_dict") else given
        self.saved = dict(found.places(name))
        self.targets = dict(_tensors(self._state, name))
        self._make_missing = self._is_object and not self._is_module
        if strict:
            self._compare_names(found)
        self.made: dict[str, torch.Tensor] = {}
        if self._make_missing:
            for place in self.saved.keys() - self.targets.keys():
                info = found.info(place)
                self.made[place] = torch.empty(info.shape, dtype=info.dtype)

    def _compare_names(self, found: Checkpoint) -> None:
        lost = sorted(self.targets.keys() - self.saved.keys())
        more = [] if self._make_missing else sorted(self.saved.keys() - self.targets.keys())
        if lost or more:
            raise KeyError(
                f"the tensors of {self.name} are not those of {found!r}: only in the target "
                f"{_listed(lost)}; only in the checkpoint {_listed(more)}; strict=False loads "
                "the others"
            )

    def finish(self) -> None:
        """Put numbers and text in their places too, and tell the object."""
        every = {**self.made, **self.targets}
        # By place: two places of one saved tensor may be two tensors here.
        state = trees.decode(
            _by_place(self._tree, self.name), lambda place: every.get(place, trees.ABSENT)
        )
        if self._is_module:
            if not all(isinstance(value, torch.Tensor) for value in self._state.values()):
                self._given.load_state_dict(trees.merged(dict(self._state), state))
        elif self._is_object:
            self._given.load_state_dict(state)
        else:
            trees.merged(self._given, state)


def _jobs(
    found: Checkpoint, roots: list[_Root], cast: bool
) -> list[tuple[str, list[torch.Tensor]]]:
    """What to read and where to: each saved tensor once, each target memory once."""
    jobs: dict[str, dict[Any, torch.Tensor]] = {}
    for root in roots:
        for place, tensor in {**root.targets, **root.made}.items():
            if place not in root.saved:
                continue
            check_plain(place, tensor)
            entry = found.entries[root.saved[place]]
            if tuple(tensor.shape) != entry.shape:
                raise ValueError(
                    f"{place} has shape {tuple(tensor.shape)}, expected {entry.shape} as saved"
                )
            dtype = named_dtype(entry.dtype)
            if tensor.dtype != dtype and not cast:
                raise TypeError(
                    f"{place} has dtype {tensor.dtype}, expected {dtype} as saved; cast=True casts"
                )
            if dtype.is_complex and not tensor.dtype.is_complex:
                raise TypeError(f"{place} is {dtype}, expected a complex target for it")
            memory = tensor.data_ptr(), tensor.stride(), tensor.dtype, tensor.device
            jobs.setdefault(entry.name, {}).setdefault(memory, tensor)
    return [(name, list(targets.values())) for name, targets in jobs.items()]


def _read(found: Checkpoint, jobs: list[tuple[str, list[torch.Tensor]]]) -> None:
    written: set[str] = set()
    try:
        with torch.no_grad():
            for name, _ in found.read_many((name, targets, None) for name, targets in jobs):
                written.add(name)
    except (OSError, ValueError) as error:
        text = (
            f"{getattr(error, 'strerror', None) or error}; {len(written)} of {len(jobs)} tensors "
            "were written to before, expected all of them: the targets are invalid"
        )
        if isinstance(error, CorruptStoreError):
            raise CorruptStoreError(text) from error
        code = getattr(error, "errno", None)
        raise (type(error)(text) if code is None else OSError(code, text)) from error


def _tensors(state: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _tensors(value, f"{name}/{key}")
    elif isinstance(state, (list, tuple)):
        for i, value in enumerate(state):
            yield from _tensors(value, f"{name}/{i}")


def _by_place(tree: Any, name: str) -> Any:
    """The tree with each tensor under the name of its place."""
    if type(tree) is list:
        return [_by_place(item, f"{name}/{i}") for i, item in enumerate(tree)]
    if type(tree) is dict and "tensor" in tree:
        return {"tensor": name}
    if type(tree) is dict and "dict" in tree:
        return {"dict": [[key, _by_place(item, f"{name}/{key}")] for key, item in tree["dict"]]}
    if type(tree) is dict and "tuple" in tree:
        return {"tuple": _by_place(tree["tuple"], name)}
    return tree


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"[{shown}]"
