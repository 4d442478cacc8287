"""Batches made together by one gather are those made one by one, and independent of each other."""

from __future__ import annotations

import gc
import io
import itertools
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from models.oracle import Numbers
from models.packed_model import assert_same
from models.packing_model import ModelCorpus
from support.host_gpu import host_gpu
from windeck import (
    IterDataset,
    Loader,
    MapDataset,
    Mixture,
    PackedSequences,
    Stream,
    Table,
    Windows,
    _core,
    collate,
)

Batch = dict[str, torch.Tensor]


class Independent(Numbers):
    """A source that allows several batches for a call, and records the rows of each call."""

    independent_rows = True

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.calls: list[int] = []

    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        self.calls.append(len(indices))
        return super().gather(indices, out)


def windows(rows: int = 5000, **options: Any) -> Windows:
    table = Table.from_columns({"a": np.arange(float(rows)), "b": np.arange(rows) % 7 * 0.5})
    return Windows(table, context_length=5, prediction_length=3, **options)


class OneByOne:
    """A stream that has to be gathered batch by batch."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        if name == "independent_rows":
            raise AttributeError(name)
        return getattr(self.stream, name)


def packed(
    documents_per_shard: int = 50, keys: Sequence[str] = ("document_ids", "max_seqlen")
) -> PackedSequences:
    rng = np.random.default_rng(3)
    documents = [
        [list(range(rng.integers(0, 12))) for _ in range(documents_per_shard)] for _ in range(3)
    ]
    corpus = ModelCorpus(documents, ["uint16"] * 3)
    return PackedSequences(corpus, sequence_length=6, eos=99, keys=keys)


STREAMS: dict[str, Any] = {
    "windows": Stream(windows(rows=157), seed=4),
    "packed": Stream(packed(), seed=4),
    "mixture": Mixture({"a": (windows(rows=40), 1), "b": (windows(rows=90), 2)}, seed=4),
}


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(0, 290), st.integers(1, 40)), max_size=3),
    st.sampled_from([0, 2]),
    st.sampled_from(list(STREAMS)),
)
def test_groups_change_no_batch_and_no_state(
    batch_size: int,
    world_size: int,
    drop_last: bool,
    position: int,
    excluded: list[tuple[int, int]],
    prefetch: int,
    name: str,
) -> None:
    stream = STREAMS[name]
    if drop_last and batch_size * world_size > (stream.epoch_length or 2**62):
        drop_last = False
    steps = None if stream.epoch_length else 60
    for rank in range(world_size):
        loaders = [
            Loader(
                data,
                batch_size=batch_size,
                rank=rank,
                world_size=world_size,
                drop_last=drop_last,
                prefetch=prefetch,
                steps_per_epoch=steps,
            )
            for data in (stream, OneByOne(stream))
        ]
        for loader in loaders:
            loader.load_state_dict({**loader.state_dict(), "position": position, "step": 0})
            for start, length in excluded:
                loader.exclude(start, start + length)
        for _ in range(2):
            for batch, expected in itertools.zip_longest(*loaders):
                assert_same(batch, expected)
                states = [loader.state_dict() for loader in loaders]
                assert states[0]["position"] == states[1]["position"]
                assert states[0]["step"] == states[1]["step"]


def test_groups_grow_from_one_batch_and_end_with_the_epoch() -> None:
    source = Independent(1000)
    loader = Loader(source, batch_size=3, prefetch=0)
    assert len(list(loader)) == 334
    assert source.calls == [3 * n for n in (1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 14)] + [1]
    source.calls.clear()
    next(iter(loader))
    assert source.calls == [3]


def test_a_group_is_about_a_mebibyte_and_a_half() -> None:
    source = Independent(1 << 20)
    loader = Loader(source, batch_size=2000, prefetch=0)
    nbytes = sum(tensor.nbytes for tensor in loader.peek().values())
    source.calls.clear()
    list(loader)
    most = round((3 << 19) / nbytes)
    assert max(source.calls) == most * 2000
    assert most > 1
    source.calls.clear()
    next(iter(Loader(source, batch_size=1 << 19, prefetch=0)))
    assert source.calls == [1 << 19]


def test_a_group_of_windows_is_about_half_a_mebibyte() -> None:
    loader = Loader(windows(100_000), batch_size=256, prefetch=0)
    nbytes = sum(tensor.nbytes for tensor in loader.peek().values())
    gc.collect()
    before = _core.pool_stats()["live"]
    live = [_core.pool_stats()["live"] - before for _ in loader]
    most = round((1 << 19) / nbytes)
    assert max(live) == most  # A slab for each batch of the group that is not dropped.
    assert most > 1


@pytest.mark.parametrize("batch_size", [5, 32])
def test_each_batch_has_memory_of_its_own(batch_size: int) -> None:
    kept = list(itertools.islice(Loader(windows(), batch_size=batch_size, shuffle=True), 40))
    spans = []
    for batch in kept:
        for key, tensor in batch.items():
            assert tensor.is_contiguous(), key
            assert tensor.data_ptr() % 64 == 0, key
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert tensor.storage_offset() == 0
            spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_kept_batch_of_windows_keeps_no_memory_of_others() -> None:
    gc.collect()
    before = _core.pool_stats()["live_bytes"]
    kept = list(itertools.islice(Loader(windows(), batch_size=32, prefetch=0), 20))[15]
    nbytes = sum(tensor.nbytes for tensor in kept.values())
    assert nbytes <= _core.pool_stats()["live_bytes"] - before < nbytes + 4096


def test_a_saved_batch_holds_its_own_bytes_only() -> None:
    batch = list(itertools.islice(Loader(windows(), batch_size=32), 20))[15]
    file = io.BytesIO()
    torch.save(batch, file)
    assert file.tell() < 2 * sum(tensor.nbytes for tensor in batch.values()) + 10_000


def test_changing_a_batch_does_not_disturb_the_gradients_of_another() -> None:
    weight = torch.ones(2, requires_grad=True, dtype=torch.float64)
    batches = list(itertools.islice(Loader(windows(), batch_size=32), 20))
    first, second = batches[12]["past_target"], batches[13]["past_target"]
    expected = first.sum((0, 1))
    loss = (first * weight).sum()  # Saves `first` for the backward pass.
    second.add_(1)
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.equal(weight.grad, expected)


def test_batches_that_are_kept_never_change() -> None:
    loader = Loader(windows(), batch_size=32, shuffle=True, seed=2)
    kept = [batch for number, batch in enumerate(loader) if number % 9 == 0]
    for _ in range(3):
        for batch in loader:
            batch["past_target"].fill_(-1)
        gc.collect()
    again = Loader(windows(), batch_size=32, shuffle=True, seed=2)
    for batch, expected in zip(kept, itertools.islice(again, 0, None, 9), strict=True):
        assert_same(batch, expected)


def test_the_memory_of_a_group_is_used_again() -> None:
    from windeck._core import pool_stats

    loader = Loader(windows(50_000), batch_size=32, shuffle=True, prefetch=0)
    for _ in itertools.islice(loader, 1000):
        pass
    before = pool_stats()["allocations"]
    for _ in itertools.islice(loader, 500):
        pass
    assert pool_stats()["allocations"] == before


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_is_raised_at_its_batch(prefetch: int) -> None:
    source = Independent(1000)
    bad = {37 * 4 + 2}

    def watch(indices: NDArray[np.int64]) -> None:
        found = bad.intersection(indices.tolist())
        if found:
            raise OSError(f"sample {found.pop()}")

    source.watch = watch
    loader = Loader(source, batch_size=4, prefetch=prefetch)
    loop = iter(loader)
    for step in range(37):
        assert next(loop)["sample"].tolist() == [4 * step, 4 * step + 1, 4 * step + 2, 4 * step + 3]
    with pytest.raises(OSError, match=r"^sample 150$"):
        next(loop)
    assert (loader.position, loader.step) == (148, 37)
    bad.clear()
    assert next(loop)["sample"].tolist() == [148, 149, 150, 151]


def test_a_source_of_dependent_rows_is_called_for_each_batch() -> None:
    class Ragged:
        """A user's source: sample i has i values."""

        fingerprint = {"ragged": 20}  # noqa: RUF012

        def __len__(self) -> int:
            return 20

        def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
            values = np.repeat(indices, indices)
            return {"values": values, "ends": np.cumsum(indices)}

    batches = list(Loader(Ragged(), batch_size=4))
    assert [batch["ends"].tolist()[-1] for batch in batches] == [6, 22, 38, 54, 70]
    assert [len(batch["values"]) for batch in batches] == [6, 22, 38, 54, 70]


def test_a_source_that_has_too_few_rows_is_refused() -> None:
    class Wrong(Independent):
        def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
            return {"x": indices[:4].copy()}

    loop = iter(Loader(Wrong(100), batch_size=4, prefetch=0))
    next(loop)
    # The group is made again batch by batch, as for any other error, and is right then.
    assert len(list(loop)) == 24


def test_a_moved_loader_drops_the_rest_of_a_group() -> None:
    loader = Loader(windows(), batch_size=8)
    loop = iter(loader)
    for _ in range(20):
        next(loop)
    loader.exclude(160, 800)
    assert int(next(loop)["start"][0]) == 800
    state = loader.state_dict()
    other = iter(loader)
    assert int(next(other)["start"][0]) == 808
    assert int(next(loop)["start"][0]) == 816
    loader.load_state_dict(state)
    assert int(next(other)["start"][0]) == 808


def test_parts_of_a_mixture_make_groups() -> None:
    parts = {"a": (Independent(1000), 3), "b": (Independent(500), 1)}
    mixture = Mixture(parts, seed=1)
    assert mixture.independent_rows
    found = list(itertools.islice(Loader(mixture, batch_size=8, prefetch=0), 50))
    for step, batch in enumerate(found):
        assert_same(batch, mixture.gather(np.arange(8 * step, 8 * step + 8)))
    assert max(parts["a"][0].calls) > 8
    assert not Mixture({"a": (Numbers(10), 1), "b": (Independent(10), 1)}).independent_rows


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_make_groups(workers: int) -> None:
    stream = Stream(windows(), seed=4)
    loader = DataLoader(IterDataset(stream, batch_size=8), batch_size=None, num_workers=workers)
    expected = Loader(stream, batch_size=8)
    for batch, other in itertools.zip_longest(loader, expected):
        assert batch.pop("position") == expected.position
        assert_same(batch, other)


def test_a_dataset_raises_an_error_at_its_batch() -> None:
    source = Independent(1000)

    def watch(indices: NDArray[np.int64]) -> None:
        if 150 in indices:
            raise OSError("sample 150")

    source.watch = watch
    loop = iter(IterDataset(Stream(source, order=sequential), batch_size=4))
    for step in range(37):
        assert int(next(loop)["sample"][0]) == 4 * step
    with pytest.raises(OSError, match=r"^sample 150$"):
        next(loop)


def test_samples_of_a_map_dataset_are_one_gather() -> None:
    source = Independent(100)
    loader = DataLoader(MapDataset(source), batch_size=10, collate_fn=collate)
    assert len(list(loader)) == 10
    assert source.calls == [10] * 10


def calls_per_batch(loader: Loader, steps: int) -> float:
    """Return Python's function calls a batch, in all threads."""

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            next(count)

    count = itertools.count()
    threading.setprofile(profile)  # Of the prefetching thread, which starts with the loop.
    loop = iter(loader)
    for _ in range(200):  # Groups have their full size then.
        next(loop)
    count = itertools.count()
    sys.setprofile(profile)
    for _ in range(steps):
        next(loop)
    sys.setprofile(None)
    threading.setprofile(None)
    return next(count) / steps


def test_a_batch_takes_less_than_ten_function_calls() -> None:
    for prefetch in (0, 2):
        loader = Loader(windows(20_000), batch_size=32, shuffle=True, prefetch=prefetch)
        assert 1 <= calls_per_batch(loader, 256) < 10
        loader = Loader(packed(1000, keys=()), batch_size=4, prefetch=prefetch)
        assert 1 <= calls_per_batch(loader, 256) < 10


@pytest.mark.parametrize("batch_size", [1, 32, 256, 4096])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_group_takes_at_most_twenty_calls(batch_size: int, world_size: int) -> None:
    """Whatever its size: calls and generators that go on, for windows of two keys."""
    source = windows(100_000, keys=("past_target", "future_target"), masks=False)
    options: dict[str, Any] = {"shuffle": True, "rank": 0, "world_size": world_size}
    loop = iter(Loader(source, batch_size=batch_size, prefetch=0, **options))
    for _ in itertools.islice(loop, 3 if batch_size > 1024 else 100):
        pass
    counts: list[int] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        counts[-1] += event == "call"

    for _ in range(5 if batch_size > 1024 else 70):
        counts.append(0)
        sys.setprofile(profile)
        next(loop)
        sys.setprofile(None)
    assert 3 < max(counts) <= 20
    assert min(counts) >= 1


class Columns(Independent):
    """Rows of some width and dtype."""

    def __init__(self, array: NDArray[Any]) -> None:
        super().__init__(len(array))
        self.array = array

    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        if out is None:
            return {"x": self.array[indices]}
        out["x"][:] = self.array[indices]
        return {"x": out["x"]}


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from("?bhfd"),
    st.sampled_from([None, "cuda"]),
    st.booleans(),
)
def test_batches_of_a_group_are_aligned_and_apart(
    rows: int, width: int, dtype: str, device: str | None, pin: bool
) -> None:
    array = np.arange(15 * rows * width).reshape(-1, width).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        host_gpu(patch)
        loader = Loader(Columns(array), batch_size=rows, prefetch=0, device=device, pin_memory=pin)
        batches = [batch["x"] for batch in loader]
    assert len(batches) == 15
    for number, tensor in enumerate(batches):
        assert tensor.numpy().dtype == array.dtype
        assert tensor.tolist() == array[number * rows : (number + 1) * rows].tolist()
        assert tensor.is_contiguous()
        # The first batch has the memory of the source, and so have parts that may be aligned.
        if pin or device is not None or (number and tensor.nbytes % 64):
            assert tensor.data_ptr() % 64 == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    versions = [tensor._version for tensor in batches]
    for number, tensor in enumerate(batches):
        tensor.zero_()
        versions[number] += 1
        assert [other._version for other in batches] == versions
        later = array[(number + 1) * rows :].tolist()
        assert [row for other in batches[number + 1 :] for row in other.tolist()] == later


def sequential(size: int, /, *, seed: int, epoch: int) -> Any:
    from windeck import Sequential

    return Sequential(size, seed=seed, epoch=epoch)


#: Views of one buffer.
VIEWS = ("inputs", "targets")


def check_batches(batches: Sequence[Batch], name: str, batch_size: int) -> None:
    """Compare the first batches of a loader with those of its stream."""
    for number, batch in enumerate(batches):
        first = number * batch_size
        assert_same(batch, STREAMS[name].gather(np.arange(first, first + batch_size)))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("batch_size", [3, 8])
def test_a_group_is_copied_to_a_device_at_once(
    name: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the host in place of a GPU: the same calls of torch but for streams and pinning."""
    gpu = host_gpu(monkeypatch)
    loader = Loader(STREAMS[name], batch_size=batch_size, device="cuda", prefetch=0)
    batches = list(itertools.islice(loader, 1 + 2 + 4))
    # Rows are one, and the offsets of all batches another.
    each = 2 if name == "packed" else 1
    assert len(gpu.moved) == len(gpu.pinned) == 3 * each
    check_batches(batches, name, batch_size)
    for batch in batches:
        for key, tensor in batch.items():
            if key not in VIEWS:
                assert tensor.data_ptr() % 64 == 0, key
                assert tensor.untyped_storage().nbytes() == tensor.nbytes, key
    # The step waits once for each group.
    assert len(gpu.current.waited) == len(set(gpu.current.waited)) == 3
    spans = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in gpu.held]
    for batch in batches:
        for tensor in batch.values():
            assert any(a <= tensor.data_ptr() <= b for a, b in spans)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("batch_size", [3, 8])
def test_pinned_batches_of_a_group_are_one_gather(
    name: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies in place of pinned memory: each tensor is one that torch's allocator knows."""
    gpu, stream, calls = host_gpu(monkeypatch), STREAMS[name], list[int]()
    gather = stream.gather_rows

    def counted(positions: Any, *given: Any, **named: Any) -> Any:
        calls.append(len(positions))
        return gather(positions, *given, **named)

    monkeypatch.setattr(stream, "gather_rows", counted)
    loader = Loader(stream, batch_size=batch_size, pin_memory=True, prefetch=0)
    batches = list(itertools.islice(loader, 1 + 2 + 4))
    # The first batch is gathered into pinned memory, after a batch without rows for its layout.
    assert calls == [0, batch_size, 2 * batch_size, 4 * batch_size]
    check_batches(batches, name, batch_size)
    known = [tensor.untyped_storage().data_ptr() for tensor in gpu.pinned]
    found = {tensor.untyped_storage().data_ptr() for batch in batches for tensor in batch.values()}
    assert sorted(found) == sorted(known)


def doubled(gather: Any) -> Any:
    """Return a gather whose values are twice those of another."""
    return lambda *given, **named: {key: 2 * a for key, a in gather(*given, **named).items()}


class Doubled(Windows):
    def gather(self, *given: Any, **named: Any) -> Any:
        return doubled(super().gather)(*given, **named)


def nine_batches(data: Windows) -> list[Batch]:
    return list(itertools.islice(Loader(data, batch_size=16, prefetch=0), 9))


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("replaced", ["of the object", "of the class", "by a derived class"])
def test_a_gather_in_place_of_that_of_windows_makes_the_batches(
    joined: bool, replaced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, name = (windows().joined(), "gather_rows") if joined else (windows(), "gather")
    plain = nine_batches(data)
    if replaced == "by a derived class":
        data = Doubled(data.table, context_length=5, prediction_length=3)
    else:
        owner: Any = data if replaced == "of the object" else type(data)
        monkeypatch.setattr(owner, name, doubled(getattr(owner, name)))
    for batch, other in zip(nine_batches(data), plain, strict=True):
        assert_same(batch, {key: 2 * tensor for key, tensor in other.items()})


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exclusion_while_a_loop_begins_is_not_served(prefetch: int) -> None:
    class Moved(Loader):
        """A loader that another thread moves where a loop first reads its rank."""

        asked = False

        @property
        def rank(self) -> int:
            if not self.asked:
                self.asked = True
                self.exclude(2, 4)
            return super().rank

    loader = Moved(Numbers(12), batch_size=2, prefetch=prefetch)
    served = [batch["sample"].tolist() for batch in loader]
    assert loader.asked
    assert served == [[0, 1], [4, 5], [6, 7], [8, 9], [10, 11]]
