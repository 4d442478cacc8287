"""Loading of checkpoints in place, after everything that can be compared was compared."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.autograd.graph import increment_version

from windeck._util.options import explain_options
from windeck._util.progress import report_bytes
from windeck.checkpoint.format import state_json
from windeck.checkpoint.format.boxes import Box, Partition, shape_of
from windeck.checkpoint.format.manifests import find_commit
from windeck.checkpoint.format.names import name_mismatch_message
from windeck.checkpoint.inspecting import Checkpoint, TensorInfo
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.stores.urls import opened, takes_turns
from windeck.checkpoint.tables.loading import TableLoadOptions, TableTargets
from windeck.checkpoint.tables.writing import check_tables_of_modules
from windeck.checkpoint.write.local_tensors import is_distributed, to_local_tensor
from windeck.columns.dtypes import torch_dtype

__all__ = ["Loaded", "compare_optimizer", "load"]


@dataclass(frozen=True)
class Loaded:
    """The result of `load`.

    Attributes
    ----------
    generation, step, time, extra
        What the checkpoint has of each.
    missing
        Names that the checkpoint lacks, such as ``"model/bias"`` or ``"embeddings/user"``: what is
        there was not written to. Sorted within each root; none with ``strict=True``.
    unexpected
        Names that only the checkpoint has, likewise. Of the ranks of a group, names that none has.
    """

    generation: int
    step: int
    time: float
    extra: Any
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)


@explain_options
def load(
    store: Store | str,
    *,
    model: Any = None,
    optimizer: Any = None,
    embeddings: Mapping[str, Any] | None = None,
    loader: Any = None,
    generation: int | str | None = None,
    strict: bool = True,
    cast: bool = False,
    reset_slots: bool = False,
    merge: str | None = None,
    namespace: str = "windeck",
    group: Any = None,
) -> Loaded:
    """Load a checkpoint into existing objects.

    Parameters
    ----------
    store
        An open store; or the URL of one, and RocksDB is then opened for reading only.
    model, optimizer, loader
        Objects to load into. A dict (with dicts, lists and tuples in it) is filled in place: its
        tensors are overwritten, its numbers replaced. So is a module. Another object with
        `load_state_dict` has its own tensors overwritten; for tensors it does not have yet, such as
        those of a fresh optimizer, new ones are made; then it is given the whole state. Of a
        DTensor or a `Partition` only the local part is read, however it was cut when saved.
    embeddings
        Tables by name, without any ids yet unless `merge` is given. Each reads the buckets it owns,
        and no others.
    generation
        A generation from `log`, or a tag; None: the one in force.
    strict
        Require the same names on both sides; numbers and text that only the checkpoint has are
        added to a dict. If False, load the names that both sides have, at least one of each object
        given; the result lists the others as `Loaded.missing` and `Loaded.unexpected`.
    cast
        Cast to the targets' dtypes instead of raising an error if they differ; those of tables too.
    reset_slots
        Load the tables' embeddings without the optimizer's slots, which get their initial values:
        then the tables may have another optimizer. They keep their clock, 0 for a new one, so
        Adam's bias correction starts anew; clocks of ids are counted back from it.
    merge
        Load into tables that have ids. Of an id that both sides have, ``"keep"`` keeps the row and
        all counters of the table, ``"replace"`` takes those saved; a row wins over a counter of an
        id without a row. The clock becomes the later of both, and on both sides the steps since
        an id was updated and last looked up stay the same. After an error the tables are as before.
    group
        A `torch.distributed.ProcessGroup` in which all ranks call this: they load the same
        generation, each saved name has to be on at least one rank, and an error on one rank is
        raised on all. Without it each process loads alone, and none waits for another.

    Raises
    ------
    FileNotFoundError
        If there is no checkpoint, or no such generation or tag.
    KeyError
        For names that only one side has, with both lists, or a root that was not saved. Also with
        ``strict=False`` for a model, loader or dict that has no tensor of the saved ones, or no
        name, and for tables that have no name of the saved ones.
    TypeError, ValueError
        For a dtype or shape that differs. No target was written to then. Also ValueError for a
        format of a later windeck; if that is found while reading, as for OSError.
    OSError
        For damaged values or an unreachable store. If the message says that targets were written
        to, they are invalid. A loader keeps the state it had.

    Notes
    -----
    O(bytes) time; memory of a few chunks beyond the targets, and of two copies of a tensor that two
    saved ones have as their target.
    """
    given = {"model": model, "optimizer": optimizer, "loader": loader}
    tables = TableLoadOptions(cast, reset_slots, merge)
    operation = _LoadOperation(given, embeddings, strict, cast, tables)
    if group is not None:
        return _load_in_group(store, group, operation, namespace, generation)
    with Checkpoint(store, namespace, generation) as found:
        try:
            operation.compare(found)
            loaded = operation.read(found)
            operation.commit()
            return loaded
        except BaseException:
            operation.roll_back()
            raise


def _load_in_group(
    store: Store | str,
    group: Any,
    operation: _LoadOperation,
    namespace: str,
    generation: int | str | None,
) -> Loaded:
    """Load on all ranks of a group; ranks take turns if only one process can open the store."""
    from windeck.checkpoint.process_group import RankGroup

    ranks = RankGroup(group)
    turns = isinstance(store, str) and takes_turns(store)
    run = ranks.run_in_turn if turns else ranks.run_on_all
    loaded: list[Loaded] = []

    def find() -> int:
        with opened(store, reading=True) as place:
            return find_commit(place, namespace, generation).generation

    def compare() -> dict[str, list[str]]:
        with Checkpoint(store, namespace, number) as found:
            return operation.compare(found, alone=False)

    def read() -> None:
        with Checkpoint(store, namespace, number) as found:
            loaded.append(operation.read(found))

    number = ranks.run_on_first(find)
    try:
        unclaimed = run(compare)
        if operation.strict:
            _check_unclaimed_names(unclaimed, f"generation {number}")
        operation.unexpected = [
            name for own in _unclaimed_names(unclaimed).values() for name in own
        ]
        run(read)
        operation.commit()
    except BaseException:
        operation.roll_back()
        raise
    return loaded[0]


def _check_unclaimed_names(names: list[dict[str, list[str]]], found: str) -> None:
    """Raise a KeyError for names in the checkpoint that no rank has."""
    for root, more in _unclaimed_names(names).items():
        raise KeyError(name_mismatch_message(root, found, [], more))


def _unclaimed_names(names: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    """Return the names in the checkpoint that no rank has, by root."""
    found = dict[str, list[str]]()
    for root in dict.fromkeys(root for roots in names for root in roots):
        lists = [set(roots[root]) for roots in names if root in roots]
        if more := set.intersection(*lists):
            found[root] = sorted(more)
    return found


class _LoadOperation:
    """One load in two steps: comparison of targets and checkpoint, then reading."""

    def __init__(
        self,
        given: Mapping[str, Any],
        embeddings: Any,
        strict: bool,
        cast: bool,
        table_options: TableLoadOptions,
    ) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        self._embeddings, self.strict, self._cast = embeddings, strict, cast
        self._roots: list[_RootTarget] = []
        self._reads: dict[tuple[str, Box], list[torch.Tensor]] = {}
        self._former: list[tuple[Any, Any]] = []
        self._tables: TableTargets | None = None
        self._missing, self.unexpected = list[str](), list[str]()
        self._table_options, self._save = table_options, 0

    def compare(self, found: Checkpoint, *, alone: bool = True) -> dict[str, list[str]]:
        """Compare targets and checkpoint, and let a loader reject its state.

        No target was written to if this raises.

        Returns
        -------
        dict of str to list of str
            By root, the names that only the checkpoint has: an error, if `alone`.
        """
        if self.strict:
            check_tables_of_modules(self._given, self._embeddings, "loaded")
        self._roots = [
            _RootTarget(found, name, value, self.strict) for name, value in self._given.items()
        ]
        names = {root.name: root.compare_names(found, alone) for root in self._roots}
        self._reads = _targets_of_boxes(found, self._roots, self._cast, self.strict)
        tables = TableTargets(
            repr(found), found.table_entries, self._embeddings, self.strict, self._table_options
        )
        self._extra = found.tree("extra")
        for root in self._roots:
            if root.is_early:
                self._former.append((root.given, copy.deepcopy(root.given.state_dict())))
                root.finish()
        self._tables = tables
        names["embeddings"] = tables.unexpected
        self._missing = [name for root in self._roots for name in root.missing] + tables.missing
        self.unexpected = [name for more in names.values() for name in more]
        return names

    def read(self, found: Checkpoint) -> Loaded:
        """Read the tensors, then give objects their states."""
        assert self._tables is not None
        self._tables.read(found.table)
        _read_tensors(found, self._reads)
        self._save = found.save
        for root in self._roots:
            if not root.is_early:
                root.finish()
        commit = found.generation, found.step, found.time
        return Loaded(*commit, self._extra, self._missing, self.unexpected)

    def commit(self) -> None:
        """End the load, after all ranks have read: `roll_back` has no effect any more."""
        assert self._tables is not None
        self._former.clear()
        self._tables.remember(self._save)

    def roll_back(self) -> None:
        """Give loaders the states they had, and remove the rows that were put into tables."""
        if self._tables is not None:
            self._tables.clear()
        while self._former:
            given, state = self._former.pop()
            given.load_state_dict(state)


#: Values of LBFGS that are lists of any length, or may be a number or a tensor.
_HISTORY = {"H_diag", "al", "old_dirs", "old_stps", "ro", "t"}
#: Options that learning rate schedulers of torch add to the groups of an optimizer.
_SCHEDULED = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}


class _RootTarget:
    """An object to load into: its tensors by the names of their places."""

    def __init__(self, found: Checkpoint, name: str, given: Any, strict: bool) -> None:
        if name not in found.trees:
            raise KeyError(f"{name} was not saved in {found!r}, which has {', '.join(found.trees)}")
        self.name, self.given, self._tree = name, given, found.trees[name]
        self._strict = strict
        self._is_module = isinstance(given, torch.nn.Module)
        self._is_object = not isinstance(given, Mapping) and hasattr(given, "load_state_dict")
        if not self._is_object and not isinstance(given, dict):
            raise TypeError(
                f"`{name}` must be a dict or an object with load_state_dict, got "
                f"{type(given).__name__}"
            )
        self._state = given.state_dict() if hasattr(given, "state_dict") else given
        self._places = [*found.places(name)]
        self.saved = dict(self._places)
        self.targets = dict(_tensors(self._state, name))
        self._make_missing = self._is_object and not self._is_module
        # A loader may reject its state, so it gets it before anything is written.
        self.is_early = name == "loader" and self._is_object and not self.saved
        self.made: dict[str, torch.Tensor] = {}
        self.missing: list[str] = []
        if self._make_missing:
            for place in self.saved.keys() - self.targets.keys():
                self.made[place] = self._new_tensor(place, found.info(place))

    def _new_tensor(self, place: str, info: TensorInfo) -> torch.Tensor:
        """Return a tensor for missing state; an optimizer's is cut like its parameter."""
        inside = re.fullmatch(rf"{self.name}/state/(\d+)/.*", place)
        params = [p for group in getattr(self.given, "param_groups", ()) for p in group["params"]]
        if inside is not None and int(inside[1]) < len(params):
            param = params[int(inside[1])]
            if is_distributed(param) and tuple(param.shape) == info.shape:
                return torch.empty_like(param, dtype=info.dtype, requires_grad=False)
        return torch.empty(info.shape, dtype=info.dtype)

    def compare_names(self, found: Checkpoint, alone: bool) -> list[str]:
        """Compare names; return the names that only the checkpoint has."""
        self._compare_keys(repr(found))
        if isinstance(self.given, torch.optim.Optimizer):
            places = iter(self._places)
            state = state_json.decode(self._tree, lambda _: found.info(next(places)[0]))
            compare_optimizer(self.name, self.given, state, repr(found), self._strict)
        own, saved = {*self.targets}, {*self.saved}
        lost = sorted(own - saved)
        if isinstance(self.given, torch.optim.LBFGS):  # its history is of any length
            lost = [name for name in lost if name.split("/")[3] not in _HISTORY]
        more = [] if self._make_missing else sorted(saved - own)
        if not self._make_missing:  # such an object checks its numbers and text itself
            plain_lost, plain_more = self._compare_plain_values()
            lost, more = sorted({*lost, *plain_lost}), sorted({*more, *plain_more})
        common = not self._is_disjoint(alone)
        if not common or (self._strict and (lost or (more and alone))):
            only = more if common else sorted({*more, *saved})
            text = name_mismatch_message(self.name, repr(found), lost, only, common=common)
            raise KeyError(text)
        self.missing = lost
        return more

    def _is_disjoint(self, alone: bool) -> bool:
        """Return True if no tensor of the target, or nothing at all, would be loaded.

        A tensor on one side and a list or dict on the other are one name.
        """
        if isinstance(self.given, torch.optim.Optimizer):  # it takes all, and checks its groups
            return False
        places = state_json.dict_places(self._tree, self.name)
        places -= {place.rpartition("/")[0] for place in places}  # a dict is no name
        saved, own = places | self.saved.keys(), {*self.targets}
        if not own:
            # A dict gets the numbers that were saved; a rank of a group may have nothing to load.
            own = set() if self._is_object else _plain_places(self._state, self.name)
            if self._is_object or places - self.saved.keys() or not (own or alone):
                return False
            if not (own and saved):
                return bool(saved)
        inside = {way for name in saved for way in _ways(name)}
        known = (name in inside or not saved.isdisjoint(_ways(name)) for name in own)
        return not any(known)

    def _compare_keys(self, found: str) -> None:
        """Raise a KeyError for a key that is text on one side and a number on the other.

        The places of both have the same name, so all tensors would be read. But a dict would get
        the other key as well, and an optimizer would assign the states to no parameter.
        """
        state = self._state
        if isinstance(self.given, torch.optim.Optimizer):  # one without states has no keys yet
            count = sum(len(group["params"]) for group in self.given.param_groups)
            state = {**state, "state": {**dict.fromkeys(range(count)), **state.get("state", {})}}
        keys = () if self._is_module else _mismatched_keys(state, self._tree, self.name)
        for name, key, own in keys:
            raise KeyError(
                f"{name} has the key {key!r} in {found}, expected {own!r}: dcp.save converts "
                "numbers to text, so load its checkpoints with dcp.load"
            )

    def _compare_plain_values(self) -> tuple[set[str], set[str]]:
        """Return the places of other values than tensors that only one side has."""
        if not self._is_module:  # a dict takes values that only the checkpoint has
            places = _plain_places(self._state, self.name)
            return places - state_json.dict_places(self._tree, self.name), set()
        # A module checks the inside of its extra state itself.
        own = {f"{self.name}/{key}" for key in self._state}
        saved = state_json.dict_places(self._tree, self.name, deepest=1)
        return own - saved - self.targets.keys(), saved - own - self.saved.keys()

    def finish(self) -> None:
        """Put numbers and text in their places, and give the object its state."""
        every = {**self.made, **self.targets}
        # By place: two places of one saved tensor may be two tensors here.
        places = iter(self._places)
        state = state_json.decode(
            self._tree, lambda _: every.get(next(places)[0], state_json.ABSENT)
        )
        if self._is_module:
            if not all(isinstance(value, torch.Tensor) for value in self._state.values()):
                self.given.load_state_dict(state_json.merge_state(dict(self._state), state))
        elif self._is_object:
            if not self._strict and isinstance(self.given, torch.optim.Optimizer):
                # What only the optimizer has stays.
                state["state"] = {**self._state["state"], **state.get("state", {})}
            self.given.load_state_dict(state_json.restore_types(self._state, state))
        else:
            state_json.merge_state(self.given, state)


def _targets_of_boxes(
    found: Checkpoint, roots: list[_RootTarget], cast: bool, strict: bool
) -> dict[tuple[str, Box], list[torch.Tensor]]:
    """Return the targets of each box of a saved tensor, each target memory once."""
    reads: dict[tuple[str, Box], list[torch.Tensor]] = {}
    known: dict[Any, tuple[str, tuple[str, Box]]] = {}
    for root in roots:
        for place, value in {**root.targets, **root.made}.items():
            if place not in root.saved:
                continue
            local = to_local_tensor(place, value)
            entry = found.entries[root.saved[place]]
            if local.shape != entry.shape:
                raise ValueError(
                    f"{place} has shape {local.shape}, expected {entry.shape} as saved"
                )
            dtype = torch_dtype(entry.dtype)
            if local.dtype != dtype and not cast:
                raise TypeError(
                    f"{place} has dtype {local.dtype}, expected {dtype} as saved; cast=True casts"
                )
            for piece in local.pieces:
                _check_memory(place, piece.tensor)
            if dtype.is_complex and not local.dtype.is_complex:
                raise TypeError(f"{place} is {dtype}, expected a complex target for it")
            for piece in local.pieces:
                tensor, key = piece.tensor, (entry.name, piece.box)
                view = tensor.dtype, tensor.device, tensor.shape, tensor.stride()
                memory = tensor.data_ptr(), *view, tensor.is_conj(), tensor.is_neg()
                other, known_key = known.setdefault(memory, (place, key))
                if other == place:
                    reads.setdefault(key, []).append(tensor)
                    continue
                is_same = known_key == key or not strict
                if not (is_same or _are_equal(found, known_key, key, tensor)):
                    raise ValueError(
                        f"{other} and {place} are one tensor here, expected two, since they have "
                        f"different values in {found!r}; strict=False takes those of {other}"
                    )
    return reads


def _are_equal(
    found: Checkpoint, one: tuple[str, Box], other: tuple[str, Box], target: torch.Tensor
) -> bool:
    """Return whether boxes of two saved tensors have the same bytes."""
    if shape_of(one[1]) != shape_of(other[1]):
        return False
    both = [torch.empty(target.shape, dtype=target.dtype) for _ in range(2)]
    for (name, box), tensor in zip((one, other), both, strict=True):
        found.read_into(name, [tensor], box)
    first, second = (tensor.reshape(-1).view(torch.uint8) for tensor in both)
    return torch.equal(first, second)


def _check_memory(place: str, tensor: torch.Tensor) -> None:
    """Raise a ValueError for a target in which several elements share one place in memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.numel() and any(size > 1 and not stride for size, stride in pairs):
        raise ValueError(
            f"{place} has elements that share memory, as expand() makes them: expected memory for "
            "each"
        )


def _read_tensors(found: Checkpoint, reads: Mapping[tuple[str, Box], list[torch.Tensor]]) -> None:
    written: set[str] = set()
    every = {name for name, _ in reads}
    try:
        with torch.no_grad():
            for target in (target for targets in reads.values() for target in targets):
                if not target.is_inference():  # autograd does not see writes to the memory
                    increment_version(target)
            wanted = ((name, targets, box) for (name, box), targets in reads.items())
            total = sum(targets[0].nbytes for targets in reads.values())
            with report_bytes("loading", total) as advance:
                for name, nbytes in found.read_many(wanted):
                    written.add(name)
                    advance(nbytes)
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
    """Yield the tensors in a state with the names of their places."""
    if isinstance(state, (torch.Tensor, Partition)):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _tensors(value, f"{name}/{key}")
    elif isinstance(state, (list, tuple)):
        for i, value in enumerate(state):
            yield from _tensors(value, f"{name}/{i}")


def _ways(name: str) -> Iterator[str]:
    """Yield a name, and the names of what it is in."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _plain_places(state: Any, name: str) -> set[str]:
    """Return the places in nested dicts of values that are neither tensors nor dicts."""
    if not isinstance(state, Mapping):
        return set() if isinstance(state, (torch.Tensor, Partition)) else {name}
    return {place for key, item in state.items() for place in _plain_places(item, f"{name}/{key}")}


def compare_optimizer(
    name: str, optimizer: torch.optim.Optimizer, saved: Any, where: str, strict: bool = True
) -> None:
    """Raise a ValueError for a state of other parameters or of another class of optimizer.

    The class is not stored. It differs if a step would need an option or a value that was not
    saved; with `strict` also if each side has options of torch that the other lacks: one side alone
    may have more by another version of torch, or by users and schedulers.

    Parameters
    ----------
    saved
        The state, in which tensors may be any objects with their shapes.
    """
    own_way = type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict
    if own_way or optimizer._optimizer_load_state_dict_pre_hooks:
        return
    try:
        groups = saved["param_groups"]
        sizes = [len(group["params"]) for group in groups]
    except (KeyError, TypeError):
        return
    here = [len(group["params"]) for group in optimizer.param_groups]
    if here != sizes:
        raise ValueError(f"{name} has groups of {here} parameters, expected {sizes} as in {where}")
    kind = type(optimizer).__name__
    for group, other in zip(optimizer.param_groups, groups, strict=True):
        known = dict[int, tuple[dict[str, bool], str]]()
        lost = sorted(optimizer.defaults.keys() - other.keys() - _SCHEDULED)
        more = sorted((other.keys() & _options_of_torch()) - group.keys() - _SCHEDULED)
        if strict and lost and more:
            raise ValueError(
                f"{name} is of another class than in {where}: only this {kind} has the options "
                f"{lost}, only the saved one {more}"
            )
        states = [saved.get("state", {}).get(number) for number in other["params"]]
        for number, param, state in zip(other["params"], group["params"], states, strict=True):
            if not state or torch.nn.parameter.is_lazy(param):
                continue
            if param.ndim not in known:
                known[param.ndim] = _values_of_parameter(optimizer, group, other, param.ndim)
            values, option = known[param.ndim]
            if option:
                raise ValueError(
                    f"{name} is of another class than in {where}: this {kind} needs the option "
                    f"{option!r}, only {sorted(map(str, other))} were saved"
                )
            # Users add values, also before the first step of the optimizer.
            for key, is_whole in values.items() if values.keys() & state.keys() else ():
                place = f"{name}/state/{number}/{key}"
                if key not in state:
                    raise ValueError(
                        f"{name} is of another class than in {where}: this {kind} needs {place}, "
                        f"only {sorted(state)} were saved"
                    )
                found = tuple(getattr(state.get(key), "shape", param.shape))
                if is_whole and found != param.shape:
                    raise ValueError(
                        f"{place} has shape {found} in {where}, expected {tuple(param.shape)} for "
                        "the parameter in this place"
                    )


#: Options that are not taken from a checkpoint here: they do not change which values there are.
_WITHOUT_EFFECT = {"params", "param_names", "lr", "foreach", "fused", "capturable"}


def _values_of_parameter(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], saved: Mapping[str, Any], ndim: int
) -> tuple[dict[str, bool], str]:
    """Return the values that an optimizer of torch makes for a parameter of some dimensions.

    Another one of its class gets the saved options and makes a step for a small parameter. Some
    optimizers cannot do that: then nothing is known.

    Returns
    -------
    dict of str to bool, str
        Whether the value of a name has the parameter's shape; and an option that was not saved,
        without which a step fails, or an empty text.
    """
    kinds = [kind for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim")]
    kind: Any = kinds[0]
    step = inspect.unwrap(kind.step)  # without hooks
    if step is not inspect.unwrap(type(optimizer).step):
        return {}, ""
    names = inspect.signature(kind).parameters.keys() - _WITHOUT_EFFECT
    param = torch.nn.Parameter(torch.ones([*range(2, 2 + ndim)]))
    param.grad = torch.ones_like(param)
    try:
        other = kind([param], **{key: value for key, value in group.items() if key in names})
        (own,) = other.state_dict()["param_groups"]
        given = {key: value for key, value in saved.items() if not hasattr(value, "shape")}
        kept = {key: own[key] for key in own.keys() & (_WITHOUT_EFFECT | (saved.keys() - given))}
        other.load_state_dict({"state": {}, "param_groups": [{**given, **kept}]})
        with torch.no_grad():
            step(other)
    except KeyError as error:
        return {}, str(error.args[0])
    except Exception:
        return {}, ""
    state = other.state[param]
    return {key: getattr(value, "shape", None) == param.shape for key, value in state.items()}, ""


@cache
def _options_of_torch() -> frozenset[str]:
    """Return the names of the options of all optimizers of torch."""
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    optimizers = [kind for kind in kinds if issubclass(kind, torch.optim.Optimizer)]
    return frozenset(name for kind in optimizers for name in inspect.signature(kind).parameters)


def _mismatched_keys(state: Any, tree: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield keys in nested dicts that differ in type only: place, saved key, key here."""
    if not isinstance(state, Mapping) or type(tree) is not dict or "dict" not in tree:
        return
    known = {str(key): key for key in state}
    for key, item in tree["dict"]:
        own = known.get(str(key), key)
        if own != key:
            yield name, key, own
        yield from _mismatched_keys(state.get(own), item, f"{name}/{key}")
