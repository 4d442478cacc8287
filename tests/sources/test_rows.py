"""Rows, whole and views: put together by streams, loaders, datasets and pinned memory alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from models.oracle import Numbers, Turn
from models.packed_model import Packed, assert_same
from support.host_gpu import host_gpu
from windeck import IterDataset, Loader, MapDataset, Stream, collate
from windeck.sources import RowSource

LENGTHS = [3, 9, 1, 6, 2, 7]  # 28 tokens: 6 sequences of 4, and a tail of 3.

# A fork beside torch's threads: Python 3.12 and later warn of it.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def expected(packed: Packed, positions: list[int], seed: int = 0) -> dict[str, NDArray[Any]]:
    """A batch, row by row, with the bounds of documents counted over all rows."""
    inputs, targets, places, bounds = [], [], list[list[int]](), [0]
    for position in positions:
        epoch = packed.at_epoch(position // len(packed), seed=seed)
        sequence = epoch.sequence(position % len(packed))
        tokens = [packed.salt + 1000 * d + t for d, t in sequence]
        inputs.append(tokens[:-1])
        targets.append(tokens[1:])
        row: list[int] = []
        for place, (_, token) in enumerate(sequence[:-1]):
            begins = place == 0 or token == 0
            if begins and bounds[-1] != len(row) + packed.length * len(places):
                bounds.append(len(row) + packed.length * len(places))
            row.append(0 if begins else row[-1] + 1)
        places.append(row)
    if positions:
        bounds.append(packed.length * len(positions))
    shape = (len(positions), packed.length)
    return {
        "inputs": np.array(inputs, packed.dtype).reshape(shape),
        "targets": np.array(targets, packed.dtype).reshape(shape),
        "position_ids": np.array(places, packed.dtype).reshape(shape),
        "cu_seqlens": np.array(bounds, np.int32),
    }


def test_the_model_is_a_row_source() -> None:
    assert isinstance(Packed(LENGTHS), RowSource)
    assert not isinstance(Numbers(3), RowSource)


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 3))
def test_a_batch_across_epochs_is_whole(positions: list[int], seed: int) -> None:
    packed = Packed(LENGTHS)
    stream = Stream(packed, seed=seed)
    batch = stream.gather(positions)
    assert_same(batch, expected(packed, positions, seed))
    if positions:
        assert np.shares_memory(batch["inputs"], batch["targets"])
    again = stream.gather_rows(positions)
    assert sorted(again) == ["position_ids", "tokens"]
    assert_same(stream.present({**again, **stream.whole(again)}), batch)


def test_rows_are_written_into_out_across_epochs() -> None:
    packed = Packed(LENGTHS)
    positions = [4, 5, 6, 7]
    out = {key: np.zeros_like(a) for key, a in Stream(packed).gather_rows(positions).items()}
    batch = Stream(packed).gather(positions, out)
    assert_same(batch, expected(packed, positions))
    assert np.shares_memory(batch["inputs"], out["tokens"])
    assert sorted(out) == ["position_ids", "tokens"]


def test_threads_reach_the_rows_of_every_epoch() -> None:
    packed = Packed(LENGTHS)
    Stream(packed).gather([5, 6], threads=3)
    assert packed.threads == [3, 3]


def test_a_source_with_rows_and_an_order_from_outside() -> None:
    class Still(Packed):
        at_epoch = None  # type: ignore[assignment]

        def gather_rows(
            self,
            indices: NDArray[np.int64],
            out: dict[str, NDArray[Any]] | None = None,
            threads: int | None = None,
        ) -> dict[str, NDArray[Any]]:
            return Packed.at_epoch(self, 0, seed=0).gather_rows(indices, out, threads)

    still = Still(LENGTHS)
    stream = Stream(still, order=Turn, seed=1)
    positions = [0, 5, 6, 11]
    samples = stream.samples(positions).tolist()
    assert_same(stream.gather(positions), expected(Packed(LENGTHS), samples))


def test_epochs_alone_may_know_of_rows() -> None:
    class Bare:
        """A source of which only the epochs have the three methods."""

        fingerprint = {"bare": 1}  # noqa: RUF012

        def __len__(self) -> int:
            return 6

        def gather(self, indices: NDArray[np.int64], out: object = None) -> dict[str, NDArray[Any]]:
            raise AssertionError

        def at_epoch(self, epoch: int, /, *, seed: int) -> Any:
            found: Any = Packed(LENGTHS).at_epoch(epoch, seed=seed)
            found.whole, found.present = found.packed.whole, found.packed.present
            return found

    assert_same(Stream(Bare()).gather([5, 6]), expected(Packed(LENGTHS), [5, 6]))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_shows_views_of_one_buffer(prefetch: int) -> None:
    packed = Packed(LENGTHS)
    loader = Loader(Stream(packed), batch_size=4, prefetch=prefetch)
    for positions in ([0, 1, 2, 3], [4, 5]):
        batch = next(iter(loader))
        assert_same(batch, expected(packed, positions))
        assert batch["inputs"].data_ptr() + 8 == batch["targets"].data_ptr()
        assert batch["cu_seqlens"].dtype == torch.int32


def test_an_empty_batch_is_whole_too() -> None:
    packed = Packed(LENGTHS)
    batches = list(Loader(packed, batch_size=4, rank=0, world_size=4))
    assert [len(batch["inputs"]) for batch in batches] == [1]
    loader = Loader(packed, batch_size=1, rank=0, world_size=4, prefetch=0)
    assert [len(batch["inputs"]) for batch in loader] == [1, 0]
    assert_same(Stream(packed).gather([]), expected(packed, []))


def test_the_buffer_goes_to_the_device_and_views_are_made_there() -> None:
    class Watched(Packed):
        def present(self, batch: dict[str, Any]) -> dict[str, Any]:
            devices.extend(t.device.type for t in batch.values())
            assert sorted(batch) == ["cu_seqlens", "position_ids", "tokens"]
            return super().present(batch)

    devices: list[str] = []
    batch = next(iter(Loader(Watched(LENGTHS), batch_size=3, device="meta", prefetch=0)))
    assert devices == ["meta"] * 3
    assert {tensor.device.type for tensor in batch.values()} == {"meta"}
    assert batch["inputs"].shape == batch["targets"].shape == (3, 4)


def test_pinned_rows_are_written_in_place_and_presented_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, lengths = Packed(LENGTHS), []
    options: dict[str, Any] = {"batch_size": 1, "shuffle": True, "seed": 2, "prefetch": 0}
    host_gpu(monkeypatch)
    for rank in range(4):
        ranks: Any = {"rank": rank, "world_size": 4}
        pinned = Loader(packed, **options, **ranks, pin_memory=True)
        before, batches = packed.outs, list(pinned)
        assert packed.outs >= before + len(batches)
        for one, other in zip(batches, Loader(packed, **options, **ranks), strict=True):
            assert_same(one, other)
        lengths.append([len(batch["inputs"]) for batch in batches])
    assert lengths == [[1, 0], [1, 1], [1, 0], [1, 1]]


def test_a_map_dataset_fetches_rows_and_shows_views() -> None:
    packed = Packed(LENGTHS)
    dataset = MapDataset(packed)
    assert_same(dataset[[3, 1]], expected(packed, [3, 1]))
    one = dataset[2]
    single = expected(packed, [2])
    assert one["inputs"].tolist() == single["inputs"][0].tolist()
    # What is said of the whole batch is said of a batch of one.
    assert one["cu_seqlens"].tolist() == single["cu_seqlens"].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_behind_torchs_own_loader(workers: int) -> None:
    packed = Packed(LENGTHS)
    options: dict[str, Any] = {"num_workers": workers}
    if workers:
        options["multiprocessing_context"] = "fork"
    dataset = MapDataset(packed)
    batches = list(DataLoader(dataset, batch_size=4, collate_fn=collate, **options))
    stream = IterDataset(Stream(packed), batch_size=4)
    for number, batch in enumerate(DataLoader(stream, batch_size=None, **options)):
        positions = [[0, 1, 2, 3], [4, 5]][number]
        assert batch.pop("position") == positions[-1] + 1
        assert_same(batch, expected(packed, positions))
        assert_same(batches[number], expected(packed, positions))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_views_on_a_gpu_are_of_one_pinned_copy() -> None:
    packed = Packed(LENGTHS)
    loader = Loader(packed, batch_size=3, device="cuda", prefetch=2)
    for positions in ([0, 1, 2], [3, 4, 5]):
        batch = next(iter(loader))
        torch.cuda.synchronize()
        assert batch["inputs"].data_ptr() + 8 == batch["targets"].data_ptr()
        assert_same({key: t.cpu() for key, t in batch.items()}, expected(packed, positions))
