"""Members of sources and streams: only declared ones are asked for, and each is optional."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

import windeck as wd
from models.oracle import Numbers
from models.packed_model import Packed
from models.packing_model import ModelCorpus
from support.recorded_members import Recorded, declared_members
from windeck import IterDataset, Loader, MapDataset, Mixture, Stream, doctor
from windeck.loader import MappedStream
from windeck.sources import gather_rows, present, whole

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


#: Uses of a loader, and the errors of those that its data may not support.
USES: dict[str, tuple[Callable[[Loader], object], str]] = {
    "batches": (lambda loader: list(itertools.islice(loader, 5)), ""),
    "peek": (Loader.peek, ""),
    "state": (lambda loader: loader.load_state_dict(loader.state_dict()), ""),
    "plot": (lambda loader: loader.plot(ax=Figure().subplots()), r"has no samples\(\)"),
    "other data": (
        lambda loader: loader.load_state_dict({**loader.state_dict(), "fingerprint": {"x": 1}}),
        "the state does not belong to this data",
    ),
    "samples": (lambda loader: loader.samples(0), r"has no samples\(\)"),
    "documents": (lambda loader: loader.documents(0), r"has no documents(_at)?\(\)"),
    "step of": (lambda loader: loader.step_of(loader.samples(1)[0]), r"has no samples\(\)"),
    "visited": (lambda loader: loader.visited(loader.samples(1)[0]), r"has no samples\(\)"),
    "visited document": (
        lambda loader: loader.visited(("even", 0, 3)),
        "has no (sequences_of|document_runs)|no shard 0 of 'even'|no part of the mixture has"
        "|each have a document",
    ),
    "served": (Loader.served, ""),
    "blocks": (
        lambda loader: loader.explain_io(steps=2),
        r"does not state its blocks|has no blocks_of\(\)|of a table in memory read no blocks",
    ),
    "doctor": (lambda loader: doctor(loader, batches=3, seconds=0.01, disk=False), ""),
}


@pytest.mark.parametrize("name", DATA)
def test_only_declared_members_are_asked_for(name: str) -> None:
    asked: set[str] = set()
    inner = DATA[name]()
    data: Any = Recorded(inner, asked)
    is_stream = hasattr(inner, "epoch_length")
    streams: list[Any] = [data] if is_stream else [Stream(data, seed=1)]
    if not is_stream:
        streams.append(Stream(data, grown=[(7, data)]))
    streams.append(Mixture({"one": (data, 1), "two": (data, 2)}))
    if not name.startswith("device"):  # A function of NumPy arrays is not called on a device.
        streams.append(MappedStream(streams[0], unchanged))
    loaders = [Loader(stream, batch_size=4, prefetch=0) for stream in streams]
    loaders += [Loader(data, batch_size=4, threads=2), *shuffled(data, is_stream)]
    done = set()
    for loader, use in itertools.product(loaders, USES):
        function, refused = USES[use]
        try:
            function(loader)
            done.add(use)
        except (TypeError, ValueError, KeyError) as error:
            if not refused or not re.search(refused, str(error)):
                raise
    if not name.startswith("device"):
        for of_dataset in datasets(data, is_stream):
            of_dataset()
    assert asked <= declared_members()
    assert asked >= {"gather_rows", "torch_dtypes", "explain_change"}
    assert done >= {use for use, (_, refused) in USES.items() if not refused}


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


#: A lookup by a literal name; its object may contain a call.
LOOKUP = re.compile(r'(?:get|has)attr\((?:[^"()]|\([^()]*\))*, "(\w+)"')
#: Names that modules of a folder must not look up in what they are given; None for any name.
LOOKUPS: dict[str, set[str] | None] = {
    **dict.fromkeys(("sources", "loader", "packing", "diagnosis"), declared_members()),
    **dict.fromkeys(("windows", "jagged", "adapters")),
}


@pytest.mark.parametrize("folder", LOOKUPS)
def test_names_of_members_are_looked_up_in_one_module(folder: str) -> None:
    """No module asks a source or stream for a member by a literal name; `members` has them all."""
    names = LOOKUPS[folder]
    found = set()
    for path in (SOURCES / folder).rglob("*.py"):
        for call in LOOKUP.finditer(path.read_text("utf-8")):
            if names is None or call[1] in names - {"__len__"}:
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


class Forwarding(Numbers):
    """A source that passes on a member that the source inside it lacks."""

    inner = Numbers(3)

    @property
    def epoch_length(self) -> Any:
        return self.inner.epoch_length  # type: ignore[attr-defined]


def test_a_property_that_finds_no_epoch_length_is_of_a_source() -> None:
    batch = next(iter(Loader(Forwarding(10), batch_size=4)))
    assert batch["sample"].tolist() == [0, 1, 2, 3]
    assert list(Mixture({"one": (Forwarding(10), 1)}).gather([0])) == ["sample", "row"]


class Spoken(Shown):
    """A source with an attribute of its own by the name of a member of streams."""

    presenter = "Alice"


def test_a_source_has_no_presenter() -> None:
    assert list(MapDataset(Spoken(10))[0]) == ["number"]
    assert list(Stream(Spoken(10)).gather([0])) == ["number"]
    assert list(next(iter(Loader(Spoken(10), batch_size=4)))) == ["number"]


class Unasked(Numbers):
    """A source that cannot state facts about its batches."""

    def _refuse(self) -> Any:
        raise RuntimeError("asked")

    supports_threads = torch_dtypes = property(_refuse)


def test_a_plain_gather_asks_for_no_options() -> None:
    assert Stream(Unasked(10), order=wd.Sequential).gather([2])["sample"].tolist() == [2]


def test_a_source_that_stops_reading_ahead_is_not_released() -> None:
    class Stopping(Numbers):
        calls = 0
        reads = True

        @property
        def expect(self) -> Callable[..., None] | None:
            return self._expect if self.reads else None

        def _expect(self, parts: object, following: object) -> None:
            self.calls += 1

    source = Stopping(4)
    stream = Stream(source, grown=[(4, Numbers(10))])
    stream.gather([0])
    source.reads = False
    stream.gather([5])
    assert source.calls == 1


class Around:
    """A source around another one, which holds a dataset of itself."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.dataset = MapDataset(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def gather(self, indices: NDArray[np.int64], out: Batch | None = None) -> Batch:
        found: Batch = self.inner.gather(indices, out)
        return found


@pytest.mark.parametrize("copied", [copy.deepcopy, unpickled])
def test_a_source_that_holds_its_dataset_can_be_copied(copied: Callable[[Any], Any]) -> None:
    assert copied(Around(Numbers(9))).dataset[3]["sample"] == 3


def test_the_steps_of_gather_are_functions_too() -> None:
    source = Packed([9, 30, 17, 44])
    rows = gather_rows(source, np.array([1, 0]))
    batch = present(source, {**rows, **whole(source, rows)})
    expected = source.gather(np.array([1, 0]))
    assert batch.keys() == expected.keys()
    assert all(np.array_equal(batch[key], expected[key]) for key in expected)
    assert list(gather_rows(Endless(), np.array([41]))["x"]) == [1]
    assert whole(Numbers(3), {}) == {}
    out = Numbers(3).gather(np.array([0]))
    assert gather_rows(Numbers(3), np.array([2]), out) is out


class Moved(Numbers):
    """A source with other numbers."""

    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        return {"sample": indices + 100}


def test_a_dataset_serves_the_source_that_is_set() -> None:
    dataset = MapDataset(Numbers(10))
    assert dataset[3]["sample"] == 3
    dataset.source = Moved(7)
    assert (len(dataset), int(dataset[3]["sample"])) == (7, 103)
    with pytest.raises(TypeError, match="expected a source"):
        dataset.source = Endless()  # type: ignore[assignment]

    class Own(MapDataset):
        def __init__(self, source: Any) -> None:
            self.source = source

    assert Own(Numbers(10))[3]["sample"] == 3


def test_a_stream_that_is_set_is_served() -> None:
    first, second = (Stream(kind(10), order=wd.Sequential) for kind in (Numbers, Moved))
    dataset = IterDataset(first, batch_size=2)
    dataset.stream = second
    assert next(iter(dataset))["sample"].tolist() == [100, 101]
    mapped = first.map(unchanged)
    mapped.stream = second
    assert mapped.gather([3])["sample"].tolist() == [103]
    with pytest.raises(TypeError, match=r"`stream` must be a stream, got Numbers"):
        mapped.stream = Numbers(10)  # type: ignore[assignment]


def test_the_stream_of_a_loader_cannot_be_set() -> None:
    loader = Loader(Numbers(10), batch_size=2)
    with pytest.raises(AttributeError, match="stream"):
        loader.stream = Stream(Moved(10))  # type: ignore[misc]


class Sampled(Endless):
    """A stream that finds samples."""

    def samples(self, positions: Any) -> NDArray[np.int64]:
        return np.asarray(positions) % 40

    def position_of(self, samples: Any, *, epoch: int) -> NDArray[np.int64]:
        return np.asarray(samples) + 40 * epoch


class Third(Sampled):
    """A stream that finds epochs by itself."""

    def epoch_of(self, sample: Any, *, at: int) -> int:
        return 3


class Unending(Sampled):
    """A stream without epochs."""

    epoch_length = None  # type: ignore[assignment]


def test_a_stream_finds_epochs_by_itself() -> None:
    for stream, epoch in ((Sampled(), 2), (Third(), 3)):
        assert MappedStream(stream, unchanged).epoch_of(1, at=85) == epoch
        mixture = Mixture({"one": (stream, 1)})
        assert mixture.epoch_of((0, 1), at=85) == epoch
    for wrapped in (MappedStream(Unending(), unchanged), Mixture({"one": (Unending(), 1)})):
        with pytest.raises(TypeError, match=r"^Unending has no epoch_of\(\)$"):
            wrapped.epoch_of((0, 1), at=85)


@pytest.mark.parametrize("wrap", [lambda stream: stream, lambda s: MappedStream(s, unchanged)])
def test_a_loader_finds_samples_of_a_stream_without_epochs(wrap: Callable[[Any], Any]) -> None:
    loader = Loader(wrap(Unending()), batch_size=4)
    next(iter(loader))
    assert loader.visited(3)
    assert not loader.visited(4)


#: Members of other types than declared, and what is done with a loader of their source.
WRONG: dict[str, tuple[Any, Callable[[Loader], object]]] = {
    "gather_rows": (True, Loader.peek),
    "whole": (3, Loader.peek),
    "wholes": (1, Loader.peek),
    "present": ("x", Loader.peek),
    "at_epoch": (1, Loader.peek),
    "gather_tensors": (3, Loader.peek),
    "expect": (5, Loader.peek),
    "torch_dtypes": (["x"], Loader.peek),
    "supports_threads": ("no", Loader.peek),
    "independent_rows": ("yes", Loader.peek),
    "default_order": (5, Loader.peek),
    "documents": (4, lambda loader: loader.documents(0)),
    "count_served": (3, Loader.served),
    "blocks_of": (3, Loader.explain_io),
    "explain_change": (3, lambda loader: loader.load_state_dict(other_state(loader))),
}


def other_state(loader: Loader) -> dict[str, Any]:
    state = loader.state_dict()
    return {**state, "fingerprint": {**state["fingerprint"], "source.size": 9}}


@pytest.mark.parametrize("name", WRONG)
def test_a_member_of_another_type_is_named(name: str) -> None:
    value, use = WRONG[name]
    source: Any = type("Wrong", (Blocks,), {name: value})(40)
    message = rf"^`{name}` of Wrong is {re.escape(repr(value))}, expected a \w+$"
    with pytest.raises(TypeError, match=message):
        use(Loader(source, batch_size=4, shuffle=True, threads=2, prefetch=0))


@pytest.mark.parametrize("name", ["torch_dtypes", "default_order", "expect", "present", "whole"])
def test_an_error_in_a_property_is_not_a_missing_member(name: str) -> None:
    def broken(source: Any) -> Any:
        return source.no_such_attribute

    source: Any = type("Broken", (Numbers,), {name: property(broken)})(40)
    with pytest.raises(AttributeError, match="no attribute 'no_such_attribute'"):
        Loader(source, batch_size=4, shuffle=True, prefetch=0).peek()
    stream: Any = type("Stream", (Endless,), {"epoch_length": property(broken)})()
    with pytest.raises(AttributeError, match="no attribute 'no_such_attribute'"):
        Loader(stream, batch_size=4)


def test_a_property_may_find_that_its_member_is_missing() -> None:
    """A source around another one passes on what that one has."""

    class Around(Numbers):
        inner = Numbers(40)

        @property
        def block_bytes(self) -> Any:
            return self.inner.block_bytes  # type: ignore[attr-defined]

        @property
        def default_order(self) -> Any:
            raise AttributeError("no order")

    loader = Loader(Around(40), batch_size=4, shuffle=True)
    assert len(loader.peek()["sample"]) == 4
    with pytest.raises(TypeError, match="Around does not state its blocks"):
        loader.explain_io()
