"""Tables, random generators and process group of a run, for trainers of other frameworks."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from windeck.checkpoint.format.state_json import restore_types
from windeck.checkpoint.inspecting import Checkpoint
from windeck.checkpoint.stores.store_url import StoreURL
from windeck.checkpoint.tables.loading import insert_snapshot
from windeck.checkpoint.tables.writing import forget_saves

__all__ = [
    "compare_count",
    "compare_scheduler",
    "emptied",
    "find_tables",
    "load_state",
    "public_name",
    "random_states",
    "saved_extra",
    "set_random_states",
    "world_group",
]


def public_name(store: Any) -> str:
    """Return the URL of a store without the password, for messages and logs.

    Examples
    --------
    >>> public_name("redis://me:secret@localhost:6379/0")
    'redis://me:***@localhost:6379/0'
    """
    return str(StoreURL.parse(store) if isinstance(store, str) else store.url)


def saved_extra(found: Checkpoint, name: str, saver: str) -> Any:
    """Return the `extra` of a checkpoint that an adapter saved, with its state under a name.

    Raises
    ------
    ValueError
        For a checkpoint that was not saved by the adapter.
    """
    extra = found.tree("extra")
    if not isinstance(extra, dict) or name not in extra:
        raise ValueError(
            f"{found!r} was not saved by {saver}: it has {', '.join(found.trees)}, expected "
            f"extra/{name} as well"
        )
    return extra


def load_state(target: Any, state: Any) -> None:
    """Give an object a saved state, with the subclasses of dict that its own state has."""
    target.load_state_dict(restore_types(target.state_dict(), state))


def compare_count(owner: str, kind: str, here: int, there: int, where: str) -> None:
    """Raise a ValueError for another number of optimizers or schedulers than was saved."""
    if here != there:
        raise ValueError(f"{owner} has {here} {kind}s, expected {there} as saved in {where}")


def compare_scheduler(number: int, scheduler: Any, saved: Mapping[str, Any], where: str) -> None:
    """Raise a ValueError for a scheduler of another class, by the names in its state.

    Each has names that the other lacks, or one has the argument of a class of torch that the other
    lacks. Most private names, and `verbose`, differ between versions of torch. Classes that are not
    of torch are not compared: their values may change, and they may load older ones.
    """
    scheduler = getattr(scheduler, "scheduler", scheduler)  # of accelerate's wrapper
    kind = type(scheduler)
    if not kind.__module__.startswith("torch.optim."):
        return
    own, other = (
        {
            name
            for name in map(str, state)
            if name == "_schedulers" or not (name.startswith("_") or name == "verbose")
        }
        for state in (scheduler.state_dict(), saved)
    )
    lost, more = own - other, other - own
    if (lost and more) or (lost | more) & _scheduler_arguments():
        here = f"this {kind.__name__} has {sorted(lost)}" if lost else ""
        there = f"the saved one has {sorted(more)}" if more else ""
        raise ValueError(
            f"scheduler {number} is of another class than in {where}: only "
            f"{', only '.join(filter(None, (here, there)))}"
        )
    inner, others = getattr(scheduler, "_schedulers", ()), saved.get("_schedulers", ())
    compare_count(f"scheduler {number}", "scheduler", len(inner), len(others), where)
    for one, other_one in zip(inner, others, strict=True):
        compare_scheduler(number, one, other_one, where)


@cache
def _scheduler_arguments() -> frozenset[str]:
    """Return the names of the arguments of all schedulers of torch."""
    kinds = [kind for kind in vars(torch.optim.lr_scheduler).values() if isinstance(kind, type)]
    schedulers = [kind for kind in kinds if issubclass(kind, torch.optim.lr_scheduler.LRScheduler)]
    names = {name for kind in schedulers for name in inspect.signature(kind).parameters}
    return frozenset({*names, "_schedulers", "lr_lambdas"})


def world_group() -> Any:
    """Return the default process group if it has several ranks, otherwise None."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist.group.WORLD if several else None


def find_tables(model: torch.nn.Module) -> dict[str, Any]:
    """Return the embedding tables in a model by the names of their modules.

    Raises
    ------
    RuntimeError
        For a table with gradients that wait for `step`: a checkpoint would lose them.
    """
    tables = {
        name: module
        for name, module in model.named_modules()
        if hasattr(getattr(module, "core", None), "snapshot")
    }
    for name, table in tables.items():
        if getattr(table, "pending", 0):
            raise RuntimeError(
                f"the table {name} has gradients of {table.pending} backward passes, expected its "
                "step() before a checkpoint is saved or loaded: call it with the optimizer's step"
            )
    return tables


@contextmanager
def emptied(tables: Mapping[str, Any]) -> Iterator[None]:
    """Empty tables, to load into them; put their rows back after an error."""
    cores = [table.core for table in tables.values()]
    with ExitStack() as stack:
        former = [(core, stack.enter_context(core.snapshot())) for core in cores]
        _clear(cores)
        try:
            yield
        except BaseException:
            _clear(cores)
            for core, snapshot in former:
                insert_snapshot(core, snapshot)
            raise


def _clear(cores: Iterable[Any]) -> None:
    for core in cores:
        forget_saves(core)
        core.clear()


def random_states() -> dict[str, Any]:
    """Return the states of the random generators of this rank, by the text of its number."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": [str(kind), torch.tensor(np.asarray(keys).tolist()), place, has_gauss, cached],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return {str(_rank()): states}


def set_random_states(saved: Any) -> None:
    """Set the generators of this rank; a rank that saved no states keeps its generators."""
    states = saved.get(str(_rank()))
    if states is None:
        return
    torch.set_rng_state(states["torch"])
    own = states["python"]
    random.setstate((own["version"], tuple(own["words"].tolist()), own["gauss"]))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys.tolist(), np.uint32), *rest))  # noqa: NPY002
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
