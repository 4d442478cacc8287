"""Loading in place: everything that can be compared is compared before anything is written."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version

from windeck.checkpoint.format import trees
from windeck.checkpoint.format.boxes import Box
from windeck.checkpoint.format.partition import Partition
from windeck.checkpoint.inspecting import Checkpoint, TensorInfo
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.tables.loading import Targets
from windeck.checkpoint.write.pieces import is_distributed, pieces_of
from windeck.columns.dtypes import torch_dtype

__all__ = ["Loaded", "Loading", "load", "other_names"]


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
    group: Any = None,
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
        it has none yet, as a fresh optimizer, and is then given the whole state. Of a DTensor or
        a `Partition` only the part that is here is read, however it was cut when it was saved.
    embeddings
        Tables by name, without any ids yet. Each takes the buckets it owns, and reads no others.
    generation
        One of `log`; None: the one in force.
    strict
        Names have to be the same on both sides; numbers and text that only the checkpoint has are
        put into a dict. Otherwise, what is on both sides is loaded.
    cast
        Cast to the targets' dtypes, instead of an error where they differ.
    group
        A `torch.distributed.ProcessGroup` all of whose ranks call this: they load one generation,
        a name has to be with one of them only, and what fails on one fails on all. Without it each
        process loads by itself, and none waits for another.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation.
    KeyError
        For names that are on one side only, with both lists, or state that was not saved.
    TypeError, ValueError
        For a dtype or a shape that is another. Up to here, no target was written. ValueError
        also for what a later windeck wrote; if that is found amid reading, as below.
    OSError
        For what is damaged or cannot be reached. The message says whether targets were written:
        then they are invalid. A loader is given the state it had.

    Notes
    -----
    O(bytes) time; memory of a few chunks beyond the targets.
    """
    given = {"model": model, "optimizer": optimizer, "loader": loader}
    loading = Loading(given, embeddings, strict, cast)
    if group is not None:
        from windeck.checkpoint.process_group import load_in_group

        return load_in_group(store, group, loading, namespace, generation)
    with Checkpoint(store, namespace, generation) as found:
        try:
            loading.compare(found)
            return loading.read(found)
        except BaseException:
            loading.put_back()
            raise


class Loading:
    """One load, in two steps: what can be compared, then what is read."""

    def __init__(self, given: Mapping[str, Any], embeddings: Any, strict: bool, cast: bool) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        self._embeddings, self.strict, self._cast = embeddings, strict, cast
        self._roots: list[_Root] = []
        self._jobs: dict[tuple[str, Box], list[torch.Tensor]] = {}
        self._former: list[tuple[Any, Any]] = []
        self._tables: Targets | None = None

    def compare(self, found: Checkpoint, *, alone: bool = True) -> dict[str, list[str]]:
        """Compare, and let a loader refuse; no target was written to when this raises.

        Returns
        -------
        dict of str to list of str
            Of each root, the names that are in the checkpoint only: an error, if `alone`.
        """
        self._roots = [_Root(found, name, value) for name, value in self._given.items()]
        names = {root.name: root.compare_names(found, self.strict, alone) for root in self._roots}
        self._jobs = _jobs(found, self._roots, self._cast)
        tables = Targets(repr(found), found.table_entries, self._embeddings, self.strict)
        self._extra = found.tree("extra")
        for root in self._roots:
            if root.is_early:
                self._former.append((root.given, copy.deepcopy(root.given.state_dict())))
                root.finish()
        self._tables = tables
        return names

    def read(self, found: Checkpoint) -> Loaded:
        """Read the tensors, and give objects their states."""
        assert self._tables is not None
        self._tables.read(found.table)
        _read(found, self._jobs)
        self._tables.loaded(found.save)
        for root in self._roots:
            if not root.is_early:
                root.finish()
        return Loaded(found.generation, found.step, found.time, self._extra)

    def put_back(self) -> None:
        """Give loaders the states they had, and take out of tables what was put in."""
        if self._tables is not None:
            self._tables.clear()
        while self._former:
            given, state = self._former.pop()
            given.load_state_dict(state)


class _Root:
    """One of the things to load into: its tensors by the names of their places."""

    def __init__(self, found: Checkpoint, name: str, given: Any) -> None:
        if name not in found.trees:
            raise KeyError(f"{name} was not saved in {found!r}, which has {', '.join(found.trees)}")
        self.name, self.given, self._tree = name, given, found.trees[name]
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
        # A loader that refuses does so before anything is written.
        self.is_early = name == "loader" and self._is_object and not self.saved
        self.made: dict[str, torch.Tensor] = {}
        if self._make_missing:
            for place in self.saved.keys() - self.targets.keys():
                self.made[place] = self._new(place, found.info(place))

    def _new(self, place: str, info: TensorInfo) -> torch.Tensor:
        """A tensor for a state an object has not yet: of an optimizer's, cut like its parameter."""
        inside = re.fullmatch(rf"{self.name}/state/(\d+)/.*", place)
        params = [p for group in getattr(self.given, "param_groups", ()) for p in group["params"]]
        if inside is not None and int(inside[1]) < len(params):
            param = params[int(inside[1])]
            if is_distributed(param) and tuple(param.shape) == info.shape:
                return torch.empty_like(param, dtype=info.dtype, requires_grad=False)
        return torch.empty(info.shape, dtype=info.dtype)

    def compare_names(self, found: Checkpoint, strict: bool, alone: bool) -> list[str]:
        """The names that are in the checkpoint only."""
        self._compare_keys(repr(found))
        self._compare_groups(repr(found))
        lost = sorted(self.targets.keys() - self.saved.keys())
        more = [] if self._make_missing else sorted(self.saved.keys() - self.targets.keys())
        if not self._make_missing:  # such an object looks at its numbers and text itself
            plain_lost, plain_more = self._compare_plain()
            lost, more = sorted({*lost, *plain_lost}), sorted({*more, *plain_more})
        if strict and (lost or (more and alone)):
            raise KeyError(other_names(self.name, repr(found), lost, more))
        return more

    def _compare_keys(self, found: str) -> None:
        """KeyError for a key that is text on one side and a number on the other.

        Both give places of the same name, so that all would be read. But a dict would get the
        other key as well, and an optimizer take the states for those of no parameter at all.
        """
        state = self._state
        if isinstance(self.given, torch.optim.Optimizer):  # one without states has no keys yet
            count = sum(len(group["params"]) for group in self.given.param_groups)
            state = {**state, "state": {**dict.fromkeys(range(count)), **state.get("state", {})}}
        for name, key, own in () if self._is_module else _other_keys(state, self._tree, self.name):
            raise KeyError(
                f"{name} has the key {key!r} in {found}, expected {own!r}: dcp.save makes text of "
                "numbers, so what it saved with such keys is for dcp.load"
            )

    def _compare_groups(self, found: str) -> None:
        """ValueError for an optimizer of other parameters; torch says it when all is written."""
        loads = getattr(type(self.given), "load_state_dict", None)
        if loads is not torch.optim.Optimizer.load_state_dict:
            return
        state = trees.decode(self._tree, lambda _: trees.ABSENT)
        here, saved = _group_sizes(self._state), _group_sizes(state)
        if saved is not None and here != saved:
            raise ValueError(
                f"{self.name} has groups of {here} parameters, expected {saved} as in {found}"
            )

    def _compare_plain(self) -> tuple[set[str], set[str]]:
        """As `compare_names`, of what is no tensor; a dict takes what only the checkpoint has."""
        if not self._is_module:
            return _plain(self._state, self.name) - trees.dict_places(self._tree, self.name), set()
        # Of a module's extra state, what is inside is for the module to look at.
        own = {f"{self.name}/{key}" for key in self._state}
        saved = trees.dict_places(self._tree, self.name, deepest=1)
        return own - saved - self.targets.keys(), saved - own - self.saved.keys()

    def finish(self) -> None:
        """Put numbers and text in their places too, and tell the object."""
        every = {**self.made, **self.targets}
        # By place: two places of one saved tensor may be two tensors here.
        state = trees.decode(
            _by_place(self._tree, self.name), lambda place: every.get(place, trees.ABSENT)
        )
        if self._is_module:
            if not all(isinstance(value, torch.Tensor) for value in self._state.values()):
                self.given.load_state_dict(trees.merged(dict(self._state), state))
        elif self._is_object:
            self.given.load_state_dict(state)
        else:
            trees.merged(self.given, state)


def _jobs(
    found: Checkpoint, roots: list[_Root], cast: bool
) -> dict[tuple[str, Box], list[torch.Tensor]]:
    """What to read and where to: each box of a saved tensor once, each target memory once."""
    jobs: dict[tuple[str, Box], dict[Any, torch.Tensor]] = {}
    for root in roots:
        for place, value in {**root.targets, **root.made}.items():
            if place not in root.saved:
                continue
            pieces = pieces_of(place, value)
            entry = found.entries[root.saved[place]]
            if pieces.shape != entry.shape:
                raise ValueError(
                    f"{place} has shape {pieces.shape}, expected {entry.shape} as saved"
                )
            dtype = torch_dtype(entry.dtype)
            if pieces.dtype != dtype and not cast:
                raise TypeError(
                    f"{place} has dtype {pieces.dtype}, expected {dtype} as saved; cast=True casts"
                )
            for piece in pieces.parts:
                _check_memory(place, piece.tensor)
            if dtype.is_complex and not pieces.dtype.is_complex:
                raise TypeError(f"{place} is {dtype}, expected a complex target for it")
            for piece in pieces.parts:
                tensor = piece.tensor
                memory = tensor.data_ptr(), tensor.stride(), tensor.dtype, tensor.device
                jobs.setdefault((entry.name, piece.box), {}).setdefault(memory, tensor)
    return {key: list(targets.values()) for key, targets in jobs.items()}


def _check_memory(place: str, tensor: torch.Tensor) -> None:
    """ValueError for a target that has one place in memory for several elements."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.numel() and any(size > 1 and not stride for size, stride in pairs):
        raise ValueError(
            f"{place} has elements that are the same memory, as expand() makes them: expected "
            "memory for each"
        )


def _read(found: Checkpoint, jobs: Mapping[tuple[str, Box], list[torch.Tensor]]) -> None:
    written: set[str] = set()
    every = {name for name, _ in jobs}
    try:
        with torch.no_grad():
            for target in (target for targets in jobs.values() for target in targets):
                if not target.is_inference():  # autograd has to know, whoever writes the bytes
                    increment_version(target)
            wanted = ((name, targets, box) for (name, box), targets in jobs.items())
            for name, _ in found.read_many(wanted):
                written.add(name)
    except (OSError, ValueError) as error:
        text = (
            f"{getattr(error, 'strerror', None) or error}; at least {len(written)} of "
            f"{len(every)} tensors were written to before, expected all of them: the targets are "
            "invalid"
        )
        if isinstance(error, CorruptStoreError):
            raise CorruptStoreError(text) from error
        code = getattr(error, "errno", None)
        raise (type(error)(text) if code is None else OSError(code, text)) from error


def _tensors(state: Any, name: str) -> Iterator[tuple[str, torch.Tensor | Partition]]:
    if isinstance(state, (torch.Tensor, Partition)):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _tensors(value, f"{name}/{key}")
    elif isinstance(state, (list, tuple)):
        for i, value in enumerate(state):
            yield from _tensors(value, f"{name}/{i}")


def _plain(state: Any, name: str) -> set[str]:
    """Places of a dict, and of dicts in it, of what is neither a tensor nor a dict."""
    if not isinstance(state, Mapping):
        return set() if isinstance(state, (torch.Tensor, Partition)) else {name}
    return {place for key, item in state.items() for place in _plain(item, f"{name}/{key}")}


def _group_sizes(state: Any) -> list[int] | None:
    """How many parameters there are in each group of an optimizer's state; None if it has none."""
    try:
        return [len(group["params"]) for group in state["param_groups"]]
    except (KeyError, TypeError):
        return None


def _other_keys(state: Any, tree: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Keys of a saved dict, and of dicts in it, that are another's text: where, theirs, ours."""
    if not isinstance(state, Mapping) or type(tree) is not dict or "dict" not in tree:
        return
    known = {str(key): key for key in state}
    for key, item in tree["dict"]:
        own = known.get(str(key), key)
        if own != key:
            yield name, key, own
        yield from _other_keys(state.get(own), item, f"{name}/{key}")


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


def other_names(root: str, found: str, lost: list[str], more: list[str]) -> str:
    """What to say of names that are on one side only."""
    return (
        f"the names in {root} are not those of {found}: only in the target {_listed(lost)}; only "
        f"in the checkpoint {_listed(more)}; strict=False loads the others"
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"[{shown}]"
