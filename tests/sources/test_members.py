"""Members of sources and streams: only declared ones are asked for, and each is optional."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import windeck as wd
from models.oracle import Numbers
from models.packed_model import Packed
from models.packing_model import ModelCorpus
from support.recorded_members import Recorded, declared_members
from windeck import IterDataset, Loader, MapDataset, Mixture, Stream
from windeck.diagnosis.diagnosing import doctor
from windeck.loader.transforms import MappedStream

SOURCES = Path(__file__).parents[2] / "src" / "windeck"
Batch = dict[str, NDArray[Any]]


class Blocks(Numbers):
    """A source that states its blocks, and not what is read next to them."""

    block_bytes = np.full(4, 80)

    def blocks_of(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.arange(len(samples)), np.asarray(samples) // 10


class Ahead(Numbers):
    """A source that reads ahead, of rows that do not depend on each other."""

    independent_rows = True
    default_order = staticmethod(wd.Sequential)

    def expect(self, parts: list[Any], following: Callable[[], object] | None) -> None:
        assert not parts or len(parts[0]) == 2


class Endless:
    """A stream with no more than the three members."""

    epoch_length = 40
    fingerprint = {"endless": 40}  # noqa: RUF012

    def gather(self, positions: NDArray[np.int64], out: object = None) -> Batch:
        return {"x": positions % 40}


def packed(**options: Any) -> wd.PackedSequences:
    documents = [[number] * (number % 7 + 1) for number in range(60)]
    corpus = ModelCorpus([documents[:40], documents[40:]], ["int64", "int64"])
    return wd.PackedSequences(corpus, sequence_length=8, **options)


def windows() -> wd.Windows:
    table = wd.Table.from_columns({"load": np.arange(48.0)})
    return wd.Windows(table, context_length=6, prediction_length=3)


DATA: dict[str, Callable[[], Any]] = {
    "plain": lambda: Numbers(40),
    "blocks": lambda: Blocks(40),
    "ahead": lambda: Ahead(40),
    "rows": lambda: Packed([9, 30, 17, 44, 21, 11]),
    "packed": packed,
    "windows": windows,
    "balanced": lambda: windows().balanced({0: 1.0}),
    "device windows": lambda: windows().to("cpu"),
    "device epochs": lambda: windows().balanced({0: 1.0}).to("cpu"),
    "device packed": lambda: packed(keys=["max_seqlen"]).to("cpu"),
    "endless": Endless,
    "stream": lambda: Stream(packed(), seed=3),
    "mixture": lambda: Mixture({"a": (packed(), 2), "b": (packed(bos=1), 1)}),
}


def unchanged(batch: Batch, random: object) -> Batch:
    """Return a batch as it is."""
    return batch


def uses(loader: Loader) -> Iterator[Callable[[], object]]:
    """Yield uses of a loader, also those that its data may not support."""
    yield lambda: list(itertools.islice(loader, 5))
    yield loader.peek
    yield lambda: loader.load_state_dict(loader.state_dict())
    yield lambda: loader.load_state_dict({**loader.state_dict(), "fingerprint": {"x": 1}})
    yield lambda: loader.samples(0)
    yield lambda: loader.documents(0)
    yield lambda: loader.step_of(loader.samples(1)[0])
    yield lambda: loader.visited(loader.samples(1)[0])
    yield lambda: loader.visited(("even", 0, 3))
    yield loader.served
    yield lambda: loader.explain_io(steps=2)
    yield lambda: doctor(loader, batches=3, seconds=0.01, disk=False)


@pytest.mark.parametrize("name", DATA)
def test_only_declared_members_are_asked_for(name: str) -> None:
    asked: set[str] = set()
    inner = DATA[name]()
    data: Any = Recorded(inner, asked)
    is_stream = hasattr(inner, "epoch_length")
    streams: list[Any] = [data] if is_stream else [Stream(data, seed=1)]
    if not is_stream:
        streams.append(Stream(data, grown=[(7, data)]))
    streams.append(MappedStream(streams[0], unchanged))
    streams.append(Mixture({"one": (data, 1), "two": (data, 2)}))
    loaders = [Loader(stream, batch_size=4, prefetch=0) for stream in streams]
    loaders += [Loader(data, batch_size=4, threads=2), *shuffled(data, is_stream)]
    done = 0
    for use in itertools.chain(*map(uses, loaders), datasets(data, is_stream)):
        with suppress(TypeError, ValueError, KeyError, IndexError):
            use()
            done += 1
    assert asked <= declared_members()
    assert asked >= {"gather_rows", "torch_dtypes", "explain_change"}
    assert done > 20


def shuffled(data: Any, is_stream: bool) -> list[Loader]:
    return [] if is_stream else [Loader(data, batch_size=4, shuffle=True)]


def datasets(data: Any, is_stream: bool) -> Iterator[Callable[[], object]]:
    """Yield uses of the datasets for a DataLoader of torch."""
    if not is_stream:
        mapped = MapDataset(data)
        yield lambda: mapped[2]
        yield lambda: mapped[[3, 1]]
    iterated = IterDataset(data if is_stream else Stream(data), batch_size=4)
    yield lambda: list(itertools.islice(iterated, 3))
    yield lambda: iterated.load_state_dict(iterated.state_dict(0))


def test_the_recorder_sees_a_member_that_is_not_declared() -> None:
    asked: set[str] = set()
    assert not hasattr(Recorded(Numbers(3), asked), "wholly")
    assert asked - declared_members() == {"wholly"}
    assert {"wholes", "expect", "gather_row_tensors", "fingerprint_at"} <= declared_members()


def test_names_of_members_are_looked_up_in_one_module() -> None:
    """No module asks a source or stream for a member by a literal name; `members` has them all."""
    found = set()
    for folder in ("sources", "loader", "packing", "diagnosis"):
        for path in (SOURCES / folder).rglob("*.py"):
            for call in re.finditer(r'(?:get|has)attr\([^"]*, "(\w+)"', path.read_text("utf-8")):
                if call[1] in declared_members() - {"__len__"}:
                    found.add(f"{path.relative_to(SOURCES)}: {call[0]}")
    assert not found


class Costly(Numbers):
    """A source whose members take time, which no loader may ask for before it needs them."""

    def _refuse(self) -> Any:
        raise AssertionError

    fingerprint = block_bytes = documents = tokens_per_sample = property(_refuse)
    explain_change = count_served = sequences_of = blocks_of = property(_refuse)


def test_members_that_batches_do_not_need_are_not_asked_for() -> None:
    for data in (Costly(10), Stream(Costly(10)), Mixture({"one": (Costly(10), 1)})):
        loader = Loader(data, batch_size=4, prefetch=0)
        assert len(next(iter(loader))["sample"]) == 4
        with pytest.raises(AssertionError):
            loader.state_dict()


class Whole(Numbers):
    """A source with arrays of the whole batch, of one batch at a time."""

    independent_rows = True

    def whole(self, rows: Batch) -> Batch:
        return {"sum": rows["sample"].sum(keepdims=True)}


class Shown(Numbers):
    """A source with another name for its rows."""

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"number": batch["sample"]}


@pytest.mark.parametrize("wrap", [Stream, lambda source: Mixture({"one": (source, 1)})])
def test_a_capability_need_not_be_complete(wrap: Callable[[Any], Any]) -> None:
    loader = Loader(wrap(Blocks(40)), batch_size=4)
    assert loader.explain_io(steps=2).data_bytes == 320
    for batch in Loader(wrap(Whole(40)), batch_size=4, steps_per_epoch=None, max_steps=9):
        assert batch["sum"].tolist() == [batch["sample"].sum()]
    batch = next(iter(Loader(wrap(Shown(40)), batch_size=4)))
    assert list(batch) == ["number"]


def test_a_subclass_without_at_epoch_is_served_in_sequence() -> None:
    class Still(Numbers):
        at_epoch = None

    batch = next(iter(Loader(Still(10), batch_size=10)))
    assert batch["sample"].tolist() == list(range(10))


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "Stream": Stream,
    "Mixture": lambda source: Mixture({"one": (source, 1)}),
    "MappedStream": lambda source: Stream(source).map(unchanged),
    "MapDataset": MapDataset,
    "IterDataset": lambda source: IterDataset(Stream(source), batch_size=2),
    "Loader": lambda source: Loader(source, batch_size=2),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_no_cycle_keeps_the_data_alive(name: str) -> None:
    # In a list: a dataset looks at the variables of its callers, which keeps what they hold.
    held: list[Any] = [Packed([9, 30, 17])]
    gone = weakref.ref(held[0])
    held = [WRAPPERS[name](held.pop())]
    if name == "MapDataset":
        held.append(held[0][0])
    elif name in ("IterDataset", "Loader"):
        held.append(next(iter(held[0])))
    else:
        held += [held[0].gather([1, 2]), held[0].fingerprint, held[0].served(2)]
    gc.collect()
    gc.disable()
    try:
        held.clear()
        assert gone() is None
    finally:
        gc.enable()


def unpickled(data: Any) -> Any:
    return pickle.loads(pickle.dumps(data))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, unpickled])
@pytest.mark.parametrize("name", WRAPPERS)
def test_copies_serve_the_same_batches(name: str, copied: Callable[[Any], Any]) -> None:
    def batches(wrapped: Any) -> list[Any]:
        if name == "MapDataset":
            return [wrapped[[2, 0]]["sample"].tolist()]
        if name in ("IterDataset", "Loader"):
            return [batch["sample"].tolist() for batch in wrapped]
        return [wrapped.gather(np.arange(5, 12))["sample"].tolist()]

    first = WRAPPERS[name](Numbers(7))
    second = copied(first)
    assert batches(second) == batches(WRAPPERS[name](Numbers(7)))
    if name != "IterDataset":
        assert batches(first) == batches(WRAPPERS[name](Numbers(7)))


def test_a_device_source_needs_no_more_than_two_members_more() -> None:
    class Squares(Numbers):
        device = torch.device("cpu")

        def gather_tensors(self, samples: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sample": samples * samples}

    loader = Loader(Squares(5), batch_size=5)
    assert next(iter(loader))["sample"].tolist() == [0, 1, 4, 9, 16]
