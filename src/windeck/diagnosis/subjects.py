"""Facts about a loader without a loop over it: its kind, sizes of batches, and its state."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from windeck.sources import Source

if TYPE_CHECKING:
    from windeck.loader.loader import Loader

__all__ = ["column_facts", "is_torch_loader", "is_windeck_loader", "kind_of", "queued_batches"]
__all__ += ["restored", "size_of", "source_of", "unit_of"]


def kind_of(loader: Any) -> str:
    """Return the full name of a loader's type."""
    kind = type(loader)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def is_windeck_loader(loader: object) -> TypeGuard[Loader]:
    """Return whether it is a `windeck.Loader`."""
    module = sys.modules.get("windeck.loader.loader")
    return module is not None and isinstance(loader, module.Loader)


def is_torch_loader(loader: Any) -> bool:
    """Return whether it is a `DataLoader` of torch, or a subclass."""
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(loader, module.DataLoader)


def queued_batches(loader: Any) -> int:
    """Return the batches that a loader may hold ready: they say nothing of its rate."""
    if is_torch_loader(loader):
        return int(loader.num_workers) * int(loader.prefetch_factor or 2)
    return loader.prefetch if is_windeck_loader(loader) else 0


def source_of(loader: object) -> Source | None:
    """Return the source that a `windeck.Loader` of one source reads, or None."""
    if not is_windeck_loader(loader):
        return None
    from windeck.loader.stream import Stream

    return loader.stream.source if isinstance(loader.stream, Stream) else None


def unit_of(loader: object) -> str:
    """Return the word for the samples of a loader."""
    name = type(source_of(loader)).__name__
    return {"Windows": "windows", "PackedSequences": "sequences"}.get(name, "samples")


def column_facts(loader: object) -> tuple[int, int]:
    """Return the columns that windows read out of a mapped table, and their bytes; else zeros."""
    source = source_of(loader)
    if source is None:
        return 0, 0
    from windeck.windows.windows import Windows

    if not isinstance(source, Windows) or source.table.origin is None:
        return 0, 0
    if not source.table.origin.mapped:
        return 0, 0
    names = source.column_names
    return len(names), sum(source.table.column(name).nbytes for name in names)


def size_of(batch: Any, samples: int | Callable[[Any], int] | None = None) -> tuple[int, int]:
    """Return the samples and the bytes of a batch.

    Parameters
    ----------
    batch
        Arrays or tensors, in any nesting of dicts, lists, tuples and objects.
    samples
        The number of samples, or a function that returns it. By default the length of the first
        array, or of the first list of numbers or text; 1 without any. A list of dicts or tuples
        has a sample in each.

    Examples
    --------
    >>> size_of({"x": np.zeros((32, 8), np.float32), "y": np.zeros(32, np.int64)})
    (32, 1280)
    """
    count = samples(batch) if callable(samples) else samples
    if samples is None:
        count = _samples(batch)
    return (1 if count is None else int(count)), _nbytes(batch, 0)


def _is_array(value: Any) -> bool:
    return hasattr(value, "nbytes") and hasattr(value, "shape")


def _members(value: Any) -> list[Any] | None:
    """Return what a container holds; None for anything else."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return list(vars(value).values())
    return None


def _samples(batch: Any) -> int | None:
    if _is_array(batch):
        return int(batch.shape[0]) if len(batch.shape) else None
    members = _members(batch)
    if not members:
        return None
    plain = (bool, int, float, str, bytes, type(None))
    many = isinstance(batch, list) and isinstance(members[0], (*plain, Mapping, tuple, list))
    if many:
        return len(members)
    found = (_samples(member) for member in members if not isinstance(member, plain))
    return next((count for count in found if count is not None), None)


def _nbytes(value: Any, depth: int) -> int:
    if _is_array(value):
        return int(value.nbytes)
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return len(value)
    if isinstance(value, (bool, int, float)):
        return 8
    members = _members(value) if depth < 8 else None
    return sum(_nbytes(member, depth + 1) for member in members or ())


@contextmanager
def restored(loader: Any, notes: list[str]) -> Iterator[None]:
    """Restore states that loops change when the block ends, also after an error.

    These are the states of the loader, its sampler and its dataset, where they have `state_dict`
    and `load_state_dict`, and those of the random numbers of Python, NumPy and torch. What cannot
    be restored becomes a note.
    """
    holders: Sequence[Any] = [loader]
    if is_torch_loader(loader):
        holders = [loader, loader.sampler, loader.batch_sampler, loader.dataset]
    states = []
    for holder in {id(one): one for one in holders}.values():
        if hasattr(holder, "state_dict") and hasattr(holder, "load_state_dict"):
            try:
                states.append((holder, holder.state_dict()))
            except Exception as error:  # of any loader: it is measured all the same
                notes.append(
                    f"the state of {type(holder).__name__} could not be saved, so it has moved: "
                    f"{error}"
                )
    generators = _generators(loader)
    numbers = [generator.get_state() for generator in generators]
    torch = sys.modules.get("torch")
    python, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    host = None if torch is None else torch.get_rng_state()
    on_gpu = torch is not None and torch.cuda.is_initialized()
    devices = torch.cuda.get_rng_state_all() if torch is not None and on_gpu else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch is not None and host is not None:
            torch.set_rng_state(host)
        if torch is not None and devices is not None:
            torch.cuda.set_rng_state_all(devices)
        for generator, state in zip(generators, numbers, strict=True):
            generator.set_state(state)
        for holder, state in states:
            _load(holder, state, notes)


def _load(holder: Any, state: Any, notes: list[str]) -> None:
    try:
        holder.load_state_dict(state)
    except Exception as error:
        if is_windeck_loader(holder):
            raise
        notes.append(f"the state of {type(holder).__name__} was not restored: {error}")


def _generators(loader: Any) -> list[Any]:
    """Return the generators of torch that a DataLoader and its sampler draw from."""
    if not is_torch_loader(loader):
        return []
    found = [getattr(one, "generator", None) for one in (loader, loader.sampler)]
    with suppress(AttributeError):
        found.append(loader.batch_sampler.sampler.generator)
    return list({id(one): one for one in found if one is not None}.values())
