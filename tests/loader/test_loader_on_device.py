"""Loaders over sources on a device: batches, order and state are those of the source in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from support.host_gpu import host_gpu
from support.internals import plant
from windeck import Loader, Sequential, Stream, Windows
from windeck.sources import Batch

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    ),
]
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True, "seed": 2**64 - 1},
    "stored": {},
    "sequential": {"order": Sequential},
    "blocks": {"order": partial(wd.BlockPermutation, block_size=7), "seed": 3},
    "buffered": {"order": partial(wd.BlockPermutation, block_size=5, blocks_in_buffer=3)},
    "lanes": {"order": partial(wd.Lanes, lanes=8), "seed": 1},
}


def windows(rows: int = 900, **options: Any) -> Windows:
    """Return windows of two series and two columns with missing values."""
    rng = np.random.default_rng(rows)
    load, price = rng.normal(size=rows), rng.normal(size=rows).astype(np.float32)
    load[rng.random(rows) < 0.1] = np.nan
    table = wd.Table.from_columns({"load": load, "price": price}, offsets=[0, rows // 3, rows])
    given = {"context_length": 6, "prediction_length": 3, "dtype": "float32", "pad": True}
    return Windows(table, **{**given, **options})


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether batches have equal keys in equal order, dtypes and values."""
    return list(one) == list(other) and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key].cpu(), other[key].cpu())
        for key in one
    )


def unchanged(batch: Batch, random: object) -> Batch:
    """Return a batch as it is."""
    return batch


class Samples:
    """A source of any size on a device, whose batches are the numbers of their samples."""

    def __init__(self, size: int, device: str = "cpu") -> None:
        self.size, self.device = size, torch.device(device)
        self.fingerprint = {"samples": size}

    def __len__(self) -> int:
        return self.size

    def gather(self, indices: Any, out: Any = None) -> Any:
        return {"sample": indices.copy()}

    def gather_tensors(self, samples: torch.Tensor) -> dict[str, torch.Tensor]:
        assert samples.device.type == self.device.type
        return {"sample": samples.clone()}


def sizes() -> Iterator[int]:
    """Yield small sizes, and sizes around powers of two up to the largest."""
    yield from [*range(1, 257, 17), 256, *range(257, 300)]
    for bits in range(9, 64):
        yield from {2**bits - 1, *([2**bits, 2**bits + 1] if bits < 63 else [])}


def check_samples(size: int, device: str, rng: np.random.Generator) -> None:
    """Compare a batch from any place on with the samples of the order in memory."""
    epoch = int(rng.integers(min(9, 2**62 // size) + 1))
    start = epoch * size + int(rng.integers(0, size))
    for skipped in (0, 5):  # Places that are adjacent, and others.
        seed = int(rng.integers(2**62))
        loader = Loader(Samples(size, device), batch_size=40, shuffle=True, seed=seed)
        loader.load_state_dict({**loader.state_dict(), "position": start})
        loader.exclude(start + 3, start + 4 + skipped)
        assert loader.peek()["sample"].tolist() == loader.samples(0).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_permutations_on_a_device_are_those_of_the_core(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adjacent and chosen places of `Permutation` have the same samples on a device."""
    plant(monkeypatch, "device.POSITIONS_AT_A_TIME", 50)
    rng = np.random.default_rng(0)
    for size in sizes():
        check_samples(size, device, rng)


@pytest.mark.parametrize("size", [257, 300, 512, 513, 1000])
def test_permutations_on_a_device_serve_every_sample_once(size: int) -> None:
    """A whole epoch on a device is a permutation of all samples."""
    (batch,) = Loader(Samples(size), batch_size=size, shuffle=True, seed=4)
    assert sorted(batch["sample"].tolist()) == list(range(size))


@pytest.mark.slow
def test_more_permutations_on_a_device_are_those_of_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As above, for thousands of random sizes, seeds and epochs, from many threads of one."""
    plant(monkeypatch, "device.POSITIONS_AT_A_TIME", 50)
    rng = np.random.default_rng(1)
    for _ in range(2500):
        check_samples(int(2 ** rng.uniform(8.1, 63)), "cpu", rng)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", ORDERS.values(), ids=ORDERS)
def test_loaders_give_the_same_batches_and_states(device: str, options: dict[str, Any]) -> None:
    """Epochs of any order are the same batch by batch, on every rank, and so are the states."""
    data = windows()
    moved = data.to(device)
    for rank in range(3):
        ranks: dict[str, Any] = {"rank": rank, "world_size": 3, "batch_size": 16}
        host = Loader(data, **options, **ranks)
        other = Loader(moved, **options, **ranks)
        for _ in range(3):
            for one, two in zip(host, other, strict=True):
                assert same(one, two)
                assert two["start"].device.type == device
                assert host.state_dict() == other.state_dict()


def test_few_positions_at_a_time_give_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are the same where the computed samples end within a batch or with it."""
    data = windows(rows=300)
    for count in (1, 16, 24, 50):
        plant(monkeypatch, "device.POSITIONS_AT_A_TIME", count)
        host = Loader(data, batch_size=16, shuffle=True, prefetch=0)
        other = Loader(data.to("cpu"), batch_size=16, shuffle=True)
        for _ in range(2):
            assert all(same(*pair) for pair in zip(host, other, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_states_resume_on_the_other_side(device: str) -> None:
    """A state saved in memory resumes on a device with other sizes, and the other way round."""
    data = windows()
    sides: list[Any] = [data, data.to(device)]
    for first, second in (sides, sides[::-1]):
        loader = Loader(first, batch_size=10, shuffle=True, seed=9)
        for _ in zip(range(7), loader, strict=False):
            pass
        loader.exclude(120, 160)
        state = json.loads(json.dumps(loader.state_dict()))
        expected = Loader(data, batch_size=7, world_size=2, rank=1, shuffle=True, seed=9)
        resumed = Loader(second, batch_size=7, world_size=2, rank=1, shuffle=True, seed=9)
        expected.load_state_dict(state)
        resumed.load_state_dict(state)
        assert same(resumed.peek(), expected.peek())
        for _ in range(2):
            assert all(same(*pair) for pair in zip(expected, resumed, strict=True))
        assert resumed.state_dict() == expected.state_dict()
        assert resumed.samples(3).tolist() == expected.samples(3).tolist()


def test_batches_across_epochs_are_the_same() -> None:
    """A batch with positions of several epochs of a part has the rows of each, in their order."""
    data = windows(rows=60)
    for batch_size, skipped in ((10, 0), (3 * len(data), 0), (7, 3)):
        host, other = (
            Loader(wd.Mixture({"one": (part, 1)}, seed=1), batch_size=batch_size, max_steps=20)
            for part in (data, data.to("cpu"))
        )
        for loader in (host, other):
            loader.exclude(len(data) - 2, len(data) - 2 + max(skipped, 1))
        assert all(same(*pair) for pair in zip(host, other, strict=True))


def test_ranks_without_rows_get_empty_batches() -> None:
    """A rank that has no row of the remainder gets tensors without rows."""
    data = windows(rows=60, pad=False)
    assert len(data) == 44
    host, other = (
        list(Loader(one, batch_size=14, world_size=3, rank=0)) for one in (data, data.to("cpu"))
    )
    assert [len(batch["start"]) for batch in other] == [14, 0]
    assert all(same(*pair) for pair in zip(host, other, strict=True))


def test_batches_belong_to_the_user() -> None:
    """Writing to a batch changes neither later batches nor the columns."""
    moved = windows(rows=60).to("cpu")
    first = [{key: t.clone() for key, t in batch.items()} for batch in Loader(moved, batch_size=9)]
    for batch in Loader(moved, batch_size=9):
        for tensor in batch.values():
            tensor.zero_()
    assert all(same(*pair) for pair in zip(first, Loader(moved, batch_size=9), strict=True))


def test_a_source_on_a_device_is_served_without_a_thread() -> None:
    """`prefetch` becomes 0, and two loops over one loader do not disturb each other."""
    loader = Loader(windows(rows=60).to("cpu"), batch_size=9, prefetch=3, restart=True)
    assert loader.prefetch == 0
    before = threading.active_count()
    loops = iter(loader), iter(loader)
    assert all(same(next(one), next(two)) for one, two in [loops] * 3)
    assert threading.active_count() == before
    pairs = list(zip(loader, loader, strict=True))
    assert pairs
    assert all(same(*pair) for pair in pairs)


def test_options_of_host_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pin_memory` and another device are errors for a source on a device."""
    moved = windows(rows=60).to("cpu")
    with pytest.raises(ValueError, match=r"^`pin_memory` is True, expected False: the source is"):
        Loader(moved, batch_size=4, pin_memory=True)
    with pytest.raises(ValueError, match=r"^`device` is 'meta', expected 'cpu', as the source$"):
        Loader(moved, batch_size=4, device="meta")
    assert Loader(moved, batch_size=4, device="cpu").prefetch == 0
    host_gpu(monkeypatch)
    moved.device = torch.device("cuda:1")
    for same_device in (None, "cuda", torch.device("cuda:1")):
        assert Loader(moved, batch_size=4, device=same_device).prefetch == 0
    with pytest.raises(ValueError, match=r"^`device` is 'cuda:0', expected 'cuda:1', as the sou"):
        Loader(moved, batch_size=4, device="cuda:0")


def test_what_needs_arrays_is_refused() -> None:
    """Functions of batches and torch's datasets need arrays in host memory, and say so."""
    moved = windows(rows=60).to("cpu")
    with pytest.raises(TypeError, match=r"^windows on cpu give tensors, not NumPy arrays"):
        next(iter(Loader(Stream(moved).map(unchanged), batch_size=4)))
    with pytest.raises(TypeError, match=r"^windows on cpu give tensors, not NumPy arrays"):
        next(iter(wd.IterDataset(Stream(moved), batch_size=4)))
    with pytest.raises(TypeError, match=r"^windows on cpu give tensors, not NumPy arrays"):
        wd.MapDataset(moved)[0]


@pytest.mark.parametrize("device", DEVICES)
def test_mixtures_on_a_device_give_the_same_batches(device: str) -> None:
    """Batches and states of mixtures, nested ones and with a retired part, are the same."""

    def mixtures(move: Any) -> Iterator[Any]:
        one, two = move(windows(rows=300)), move(windows(rows=120))
        yield wd.Mixture({"one": (one, 0.7), "two": (two, 0.3)}, seed=3)
        inner = wd.Mixture({"one": (one, 0.5), "two": (two, 0.5)})
        yield wd.Mixture({"both": (inner, 0.6), "two": (Stream(two, order=Sequential), 0.4)})
        yield wd.Mixture(
            {"old": (None, 0.5), "two": (two, 0.5)}, schedule=[(40, {"old": 0, "two": 1})]
        )

    pairs = zip(mixtures(lambda source: source), mixtures(lambda s: s.to(device)), strict=True)
    for host, other in pairs:
        options: dict[str, Any] = {"batch_size": 16, "world_size": 2, "rank": 1}
        loaders = [Loader(one, **options) for one in (host, other)]
        if "old" in host.names:
            for loader in loaders:
                loader.exclude(0, 40)  # Samples of the retired part cannot be read.
        for one, two, _ in zip(*loaders, range(20), strict=False):
            assert same(one, two)
            assert loaders[0].state_dict() == loaders[1].state_dict()


def test_mixtures_of_two_places_are_refused() -> None:
    """Parts on a device and in host memory are refused by the loader."""
    parts: dict[str, Any] = {"one": (windows(rows=60).to("cpu"), 0.5)}
    parts["two"] = (windows(rows=60), 0.5)
    with pytest.raises(ValueError, match=r"^the parts of the mixture are on cpu and host memory"):
        Loader(wd.Mixture(parts), batch_size=4)


def test_grown_sources_on_a_device_give_the_same_batches() -> None:
    """A stream that grows serves each of its sources from its epoch on."""
    small, large = windows(rows=60), windows(rows=90)
    host = Stream(small, seed=2, grown=[(50, large)])
    moved = Stream(small.to("cpu"), seed=2, grown=[(50, large.to("cpu"))])
    # It has no epochs for a loader: batches pass from one to the next.
    loaders = (Loader(stream, batch_size=25, max_steps=12) for stream in (host, moved))
    assert all(same(*pair) for pair in zip(*loaders, strict=True))
