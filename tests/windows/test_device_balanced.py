"""Balanced windows on a device: batches, order and states of `BalancedWindows`, bit for bit."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import windeck as wd
from models import reference as ref
from support.cases import Drawn, drawn_cases
from support.held_tensors import held_tensors
from support.internals import original, plant, planted
from support.meta_device import META, moved
from windeck import Loader
from windeck.device_orders import permute
from windeck.loader import as_tensors

Tensors = dict[str, torch.Tensor]

QUIET = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    ),
]
WORDS = st.integers(0, 2**64 - 1)


def windows_of(lengths: list[int], **options: Any) -> wd.Windows:
    """Return windows of 3 + 1 rows of float32; every seventh value is missing."""
    offsets = np.cumsum([0, *lengths])
    load = np.arange(float(offsets[-1]))
    load[::7] = np.nan
    table = wd.Table.from_columns({"load": load}, offsets=offsets)
    given = {"context_length": 3, "prediction_length": 1, "dtype": "float32", "pad": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of short series
        return wd.Windows(table, **{**given, **options})


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor, in which NaN equals itself."""
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b""


def check_equal(found: Tensors, expected: Tensors) -> None:
    """Compare keys, their order, dtypes, shapes and bits."""
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape), key
        assert bits(found[key]) == bits(tensor), key


def check_epoch(
    source: Any, balanced: Any, epoch: int, seed: int, rng: np.random.Generator
) -> None:
    """Compare all window numbers of an epoch, and some batches."""
    one, two = source.at_epoch(epoch, seed=seed), balanced.at_epoch(epoch, seed=seed)
    assert len(one) == len(two) == len(source) == len(balanced)
    assert one.fingerprint == two.fingerprint
    places = np.arange(min(len(one), 500))
    numbers = one.base_samples(places)
    assert numbers.device == source.device
    assert numbers.tolist() == two.window_numbers(places).tolist()
    chosen: list[Any] = [places[:20], rng.integers(0, len(one), 5), []]
    for some in chosen:
        expected = as_tensors(two.gather(some), balanced.torch_dtypes)
        check_equal(one.gather_tensors(some), expected)


def check_drawn(drawn: Drawn, device: str, random: int, seed: int, epoch: int) -> None:
    """Compare a random case with random weights, as it is, joined, or in part."""
    if not ref.windows(drawn.case):
        return
    rng = np.random.default_rng(random)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of short series
        windows = drawn.windows()
    if rng.random() < 0.5 and drawn.case.prediction_length and windows.layout != "columns":
        windows = windows.joined()
    if rng.random() < 0.3:
        windows = windows.subset(indices=np.flatnonzero(rng.random(len(windows)) < 0.7).tolist())
    if not len(windows):
        return
    sizes = np.diff(windows.balanced().balance.starts)
    weights = None
    options: dict[str, Any] = {}
    if rng.random() < 0.7:
        weights = np.where(sizes > 0, rng.integers(1, 9, len(sizes)), 0)
        options["epoch_length"] = int(rng.integers(10 * len(sizes), 900))
    balanced = windows.balanced(weights, **options)
    source = balanced.to(device)
    assert source.fingerprint == balanced.fingerprint
    assert source.nbytes <= balanced.device_bytes()
    check_epoch(source, balanced, epoch, seed, rng)
    check_epoch(windows.to(device).balanced(weights, **options), balanced, 0, seed, rng)
    expected = as_tensors(balanced.gather([0]), balanced.torch_dtypes)
    check_equal(source.gather_tensors([0]), expected)


@pytest.mark.parametrize("device", DEVICES)
@settings(QUIET, max_examples=40)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5), WORDS, st.integers(0, 2**40), st.data()
)
def test_weights_of_windows_equal_the_host(
    device: str, lengths: list[int], seed: int, epoch: int, data: Any
) -> None:
    lengths[0] = max(lengths[0], 4)
    windows = windows_of(lengths)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    weights = random.choice([0.0, 1e-9, 0.3, 1.0, 7.5], len(windows))
    weights[0] = 1.0
    series, _ = windows.locate(np.arange(len(windows)))
    weights[np.bincount(series, weights)[series] < 1] = 0.0
    balanced = windows.balanced(
        window_weights=weights, epoch_length=data.draw(st.integers(500, 900))
    )
    source = balanced.to(device)
    assert source.fingerprint == balanced.fingerprint
    assert source.nbytes <= balanced.device_bytes()
    check_epoch(source, balanced, epoch, seed, random)
    again = pickle.loads(pickle.dumps(source))
    check_epoch(again, balanced, epoch + 1, seed, random)


@pytest.mark.parametrize("device", DEVICES)
@settings(QUIET, max_examples=120)
@given(drawn_cases(), st.integers(0, 2**32), WORDS, st.integers(0, 2**40))
def test_batches_have_the_bits_of_the_native_path(
    device: str, drawn: Drawn, random: int, seed: int, epoch: int
) -> None:
    """Epochs equal those in memory for any options of windows, weights and epoch lengths."""
    check_drawn(drawn, device, random, seed, epoch)


@pytest.mark.slow
@settings(QUIET, max_examples=4000, derandomize=False)
@given(drawn_cases(), st.integers(0, 2**32), WORDS, st.integers(0, 2**40))
def test_many_more_batches_have_the_bits_of_the_native_path(
    drawn: Drawn, random: int, seed: int, epoch: int
) -> None:
    """As above, for many more random options."""
    check_drawn(drawn, "cpu", random, seed, epoch)


@settings(QUIET, max_examples=60)
@given(
    st.lists(st.one_of(st.just(0), st.integers(1, 4), st.integers(1, 700)), max_size=12),
    WORDS, st.integers(0, 2**50), st.data(),
)  # fmt: skip
def test_series_of_all_sizes_are_served_in_the_same_order(
    lengths: list[int], seed: int, epoch: int, data: Any
) -> None:
    """Window numbers are the same with series of no, one, few and many windows."""
    windows = windows_of([*lengths, 9], prediction_length=0)
    weights = [
        data.draw(st.integers(1, 50)) if size else 0
        for size in np.diff(windows.balanced().balance.starts).tolist()
    ]
    balanced = windows.balanced(weights, epoch_length=sum(weights) * data.draw(st.integers(1, 9)))
    check_epoch(balanced.to("cpu"), balanced, epoch, seed, np.random.default_rng(0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("options", [{}, {"order": wd.Permutation}], ids=["inside", "permuted"])
def test_loaders_give_the_same_batches_and_states(
    device: str, joined: bool, options: dict[str, Any]
) -> None:
    """Batches and states are the same on every rank, over borders of epochs, and resume."""
    windows = windows_of([9, 40, 3, 120])
    balanced = (windows.joined() if joined else windows).balanced()
    sides: list[Any] = [balanced, balanced.to(device)]
    for rank in range(2):
        given = {**options, "batch_size": 7, "seed": 2**64 - 1, "rank": rank, "world_size": 2}
        host, other = (Loader(side, **given) for side in sides)
        assert other.prefetch == 0
        for _ in range(3):
            for one, two in zip(host, other, strict=True):
                check_equal(two, one)
                assert two["start"].device.type == device
                assert host.state_dict() == other.state_dict()
    for first, second in (sides, sides[::-1]):
        loader = Loader(first, batch_size=10, seed=9, **options)
        for _ in zip(range(7), loader, strict=False):
            pass
        loader.exclude(90, 100)
        state = json.loads(json.dumps(loader.state_dict()))
        again = [Loader(s, batch_size=6, seed=9, **options) for s in (balanced, second)]
        for one_loader in again:
            one_loader.load_state_dict(state)
        check_equal(again[1].peek(), again[0].peek())
        for _ in range(2):
            for one, two in zip(*again, strict=True):
                check_equal(two, one)
        assert again[0].state_dict() == again[1].state_dict()
        assert again[0].samples(3).tolist() == again[1].samples(3).tolist()


def test_windows_are_chosen_for_many_batches_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader computes the order once for many batches, and any number of places is right."""
    balanced = windows_of([9, 40, 3, 120]).balanced()
    source = balanced.to("cpu")
    calls = []
    real = original("device_balanced.DeviceBalancedEpoch.base_samples")

    def counted(epoch: Any, samples: Any) -> torch.Tensor:
        calls.append(len(samples))
        found: torch.Tensor = real(epoch, samples)
        return found

    plant(monkeypatch, "device_balanced.DeviceBalancedEpoch.base_samples", counted)
    assert len(list(Loader(source, batch_size=7))) > 20
    assert calls == [len(source)]
    for count in (1, 16, 50):
        plant(monkeypatch, "device.POSITIONS_AT_A_TIME", count)
        host, other = Loader(balanced, batch_size=16, prefetch=0), Loader(source, batch_size=16)
        for one, two in zip(host, other, strict=True):
            check_equal(two, one)


def test_batches_across_epochs_are_the_same() -> None:
    """A batch with positions of several epochs has the rows of each, in their order."""
    balanced = windows_of([9, 30]).balanced([1, 3], epoch_length=40)
    for batch_size in (20, 35, 130):
        host, other = (
            Loader(wd.Mixture({"one": (part, 1)}, seed=1), batch_size=batch_size, max_steps=9)
            for part in (balanced, balanced.to("cpu"))
        )
        for loader in (host, other):
            loader.exclude(38, 41)
        for one, two in zip(host, other, strict=True):
            check_equal(two, one)


@pytest.mark.parametrize("device", DEVICES)
def test_mixtures_give_the_same_batches(device: str) -> None:
    """Parts may be balanced or not."""
    windows, other = windows_of([9, 40, 3, 120]), windows_of([50])
    host = wd.Mixture({"one": (windows.balanced(), 0.7), "two": (other, 0.3)}, seed=3)
    there = wd.Mixture(
        {"one": (windows.balanced().to(device), 0.7), "two": (other.to(device), 0.3)}, seed=3
    )
    loaders = Loader(host, batch_size=16), Loader(there, batch_size=16)
    for one, two, _ in zip(*loaders, range(40), strict=False):
        check_equal(two, one)


def test_columns_are_shared() -> None:
    """Balanced windows take the columns of the windows that they are made of."""
    source = windows_of([9, 40]).to("cpu")
    balanced = source.balanced([1, 2], epoch_length=30)
    assert balanced.windows is source
    assert balanced.nbytes == source.nbytes + 8 * (3 * 2 + 1)
    moved_again = balanced.balanced.to("cpu")
    assert type(moved_again.windows) is type(source)
    held = held_tensors(source)
    shared = held.keys() & held_tensors(moved_again.windows).keys()
    assert sum(held[address] for address in shared) > source.nbytes / 2


def test_places_and_epochs_outside_are_refused() -> None:
    """Places below 0 and from the length on are index errors, and an epoch too far a ValueError."""
    source = windows_of([9, 300]).balanced([1, 4], epoch_length=400).to("cpu")
    for epoch in (source.at_epoch(0, seed=0), source.at_epoch(3, seed=1)):
        for place in (-1, 400, 2**62, -(2**63)):
            for wanted in ([0, place], torch.tensor([0, place])):
                with pytest.raises(IndexError, match=rf"^sample {place} is outside of an epoch of"):
                    epoch.gather_tensors(wanted)
    last = (2**63 - 1) // 320 - 1
    assert len(source.at_epoch(last, seed=0).base_samples(np.arange(400))) == 400
    with pytest.raises(ValueError, match=rf"^`epoch` must be at most {last}, got {last + 1}$"):
        source.at_epoch(last + 1, seed=0)


def test_what_needs_arrays_is_refused() -> None:
    """`gather` says that batches are tensors, and gives arrays of no rows."""
    balanced = windows_of([9, 40]).balanced()
    source = balanced.to("cpu")
    for one in (source, source.at_epoch(1, seed=2)):
        with pytest.raises(TypeError, match=r"^windows on cpu give tensors, not NumPy arrays"):
            one.gather([0])
        assert list(one.gather([])) == list(balanced.gather([]))


def test_a_pickled_source_moves_again() -> None:
    """A pickle holds the windows in memory and the name of the device."""
    source = windows_of([9, 40]).balanced([1, 2], epoch_length=30).to("cpu")
    again = pickle.loads(pickle.dumps(source))
    assert repr(again) == repr(source) == f"{source.balanced!r} on cpu"
    assert again.fingerprint == source.fingerprint
    check_equal(again.gather_tensors([3, 29]), source.gather_tensors([3, 29]))


def test_no_operation_of_a_batch_mixes_devices() -> None:
    """All operations but the loop of passes are on the device of the windows."""
    source = windows_of([9, 300]).balanced([1, 4], epoch_length=400).to("cpu")
    epoch = source.at_epoch(1, seed=2)
    expected = epoch.gather_tensors([0, 1, 2])

    def one_pass(values: torch.Tensor, keys: torch.Tensor, *rest: Any) -> torch.Tensor:
        return permute(values, keys.unbind(), rest[0])

    with (
        FakeTensorMode(),
        planted("device_orders.walk", one_pass),
        planted("device_balanced.DeviceBalancedEpoch._check", lambda *given: None),
    ):
        there: Any = moved(epoch)
        batch = there.gather_tensors(torch.empty(3, dtype=torch.int64, device=META))
    assert list(batch) == list(expected)
    for key, tensor in expected.items():
        found = batch[key]
        assert (found.device, found.dtype, found.shape) == (META, tensor.dtype, tensor.shape)
