"""Windows on a device: the bits of the native gather, on `cpu` and on CUDA where there is one."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
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
from support.window_tables import mixed, table_of
from windeck import Windows
from windeck.loader import as_tensors

# First rows of columns that vary are what batches have all the same.
pytestmark = pytest.mark.filterwarnings("ignore:static covariates vary:UserWarning")

__all__ = ["mixed"]

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


def native(windows: Windows, numbers: Any) -> Tensors:
    """Return the batch of the native gather as tensors."""
    return as_tensors(windows.gather(numbers), windows.torch_dtypes)


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor, in which NaN equals itself."""
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b""


def check_equal(found: Tensors, expected: Tensors) -> None:
    """Compare keys, their order, dtypes, shapes and bits."""
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype, key
        assert found[key].shape == tensor.shape, key
        assert found[key].is_contiguous(), key
        assert bits(found[key]) == bits(tensor), key


def check_all(windows: Windows, device: str, rng: np.random.Generator) -> Any:
    """Compare batches of windows, in stored order, and of some with repetitions."""
    moved = windows.to(device)
    assert len(moved) == len(windows)
    assert moved.nbytes <= windows.device_bytes()
    chosen: list[Any] = [np.arange(min(len(windows), 40)), rng.integers(0, len(windows), 5), []]
    for numbers in chosen:
        check_equal(moved.gather_tensors(numbers), native(windows, numbers))
    return moved


def check_drawn(drawn: Drawn, device: str, seed: int) -> None:
    """Compare the windows of a random case, of its parts and of a subset with a bitmap."""
    if not ref.windows(drawn.case):
        return
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of short series
        windows = drawn.windows()
    check_all(windows, device, rng)
    chosen = np.flatnonzero(rng.random(len(windows)) < 0.5)
    if len(chosen):
        check_all(windows.subset(indices=chosen), device, rng)
    names = list(windows.gather([0]))
    wanted = {name for name in names if rng.random() < 0.5} | {names[0]}
    wanted |= {name.removesuffix("_mask") for name in wanted}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_all(replace(drawn, options={**drawn.options, "keys": wanted}).windows(), device, rng)
    series = int(windows.locate(0)[0])
    check_all(windows.subset(series=[series]), device, rng)


@pytest.mark.parametrize("device", DEVICES)
@settings(QUIET, max_examples=400)
@given(drawn_cases(), st.integers(0, 2**32))
def test_batches_have_the_bits_of_the_native_gather(device: str, drawn: Drawn, seed: int) -> None:
    """Batches on a device equal those of the native gather for any options of windows."""
    check_drawn(drawn, device, seed)


@settings(QUIET, max_examples=60)
@given(drawn_cases(), st.integers(0, 2**32))
def test_a_device_that_copies_views_reads_value_by_value(drawn: Drawn, seed: int) -> None:
    """Batches are the same where the rows of a view must not overlap, as on MPS."""

    def lookups(rows: Any, steps: Any, static: bool) -> Any:
        with planted("device.STRIDED", ()):
            return real(rows, steps, static)

    real = original("device._DeviceRows").lookups
    with planted("device._DeviceRows.lookups", lookups):
        check_drawn(drawn, "cpu", seed)


@pytest.mark.slow
@settings(QUIET, max_examples=10_000, derandomize=False)
@given(drawn_cases(), st.integers(0, 2**32))
def test_many_more_batches_have_the_bits_of_the_native_gather(drawn: Drawn, seed: int) -> None:
    """As above, for many more random options."""
    check_drawn(drawn, "cpu", seed)


@pytest.mark.parametrize("layout", ["btc", "bct"])
@pytest.mark.parametrize("gap", [0, 2, -1])
def test_joined_windows_are_views_on_a_device_too(layout: Any, gap: int) -> None:
    """Past and future are views of one buffer, with the bits of the native gather."""
    load = np.where(np.arange(90) % 7 == 0, np.nan, np.arange(90.0))
    table = table_of(offsets=[0, 40, 90], load=load, price=np.arange(90.0))
    windows = Windows(
        table, context_length=5, prediction_length=3, gap=gap, pad="both", layout=layout,
        known_covariates="price",
    ).joined()  # fmt: skip
    source = windows.to("cpu")
    found, expected = source.gather_tensors([3, 40, 0]), native(windows, [3, 40, 0])
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert bits(found[key]) == bits(tensor), key
        assert found[key].stride() == tensor.stride(), key
    one, two = (found[key].untyped_storage() for key in ("past_target", "future_target"))
    assert one.data_ptr() == two.data_ptr()
    for pair in zip(wd.Loader(windows, batch_size=7), wd.Loader(source, batch_size=7), strict=True):
        assert all(torch.equal(pair[0][key], pair[1][key]) for key in expected)


class PresentedWindows(Windows):
    """Windows of a user's class that show one more key."""

    def gather_rows(self, indices: Any, out: Any = None, threads: int = 1) -> Any:
        return super().gather(indices, out, threads)

    def whole(self, rows: Any) -> Any:
        return {}

    def present(self, batch: Any) -> Any:
        batch["last"] = batch["past_target"][:, -1]
        return batch

    def gather(self, indices: Any, out: Any = None, threads: int = 1) -> Any:
        return self.present(self.gather_rows(indices, out, threads))


@pytest.mark.parametrize(
    "on_cpu",
    [
        lambda windows: windows.to("cpu"),
        lambda windows: windows.balanced().to("cpu"),
        lambda windows: windows.to("cpu").balanced(),
        lambda windows: pickle.loads(pickle.dumps(windows.to("cpu"))),
    ],
    ids=["to", "balanced to", "to balanced", "pickled"],
)
def test_a_users_class_shows_its_batches_on_a_device_too(on_cpu: Any) -> None:
    table = wd.Table.from_columns({"load": np.arange(12.0)}, offsets=[0, 9, 12])
    windows = on_cpu(PresentedWindows(table, context_length=3))
    for batch in (windows.gather_tensors([1, 0]), next(iter(wd.Loader(windows, batch_size=2)))):
        assert batch["last"].tolist() == batch["past_target"][:, -1].tolist()


def test_parts_of_a_split_share_the_columns() -> None:
    """Windows with the same columns and scaler take one copy on a device, others their own."""
    windows = Windows(table_of(load=np.arange(200.0)), context_length=4, prediction_length=2)

    def column_of(part: Any) -> int:
        """Return the address of the largest tensor."""
        held = held_tensors(part)
        return max(held, key=lambda address: held[address])

    parts = [part.to("cpu") for part in windows.split()]
    assert len({column_of(part) for part in parts}) == 1
    scaled = windows.with_scaler(wd.Scaler.fit(windows)).to("cpu")
    assert column_of(scaled) != column_of(parts[0]) == column_of(windows.to("cpu"))


def test_more_padding_moves_the_columns_again() -> None:
    """Windows that begin further before their series do not use the columns of others."""
    table = table_of(load=np.arange(40.0))
    short = Windows(table, context_length=3, pad=True).to("cpu")
    long = Windows(table, context_length=9, pad=True)
    check_all(long, "cpu", np.random.default_rng(0))
    check_equal(short.gather_tensors([0]), native(short.windows, [0]))
    check_all(Windows(table, context_length=2), "cpu", np.random.default_rng(0))


def test_device_bytes_are_known_before_anything_moves(mixed: wd.Table) -> None:
    """The bytes are those of values, masks and index; without missing values there are fewer."""
    windows = Windows(mixed, context_length=2, target_columns="load", dtype="float32")
    index = 2 * 24 + 8 + 3 * 8
    assert windows.device_bytes() == windows.explain().device_bytes == 12 * (4 + 1) + index
    assert str(windows.explain()).endswith(f"\n  at most {12 * (4 + 1) + index} bytes on a device")
    assert windows.to("cpu").nbytes == windows.device_bytes()
    whole = Windows(table_of(load=np.arange(12.0)), context_length=2)
    assert whole.device_bytes() == 12 * (8 + 1) + 32 + 16
    assert whole.to("cpu").nbytes == 12 * 8 + 32 + 16


def test_a_device_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error names the bytes needed and those free, and columns that moved need none."""
    windows = Windows(table_of(load=np.arange(12.0)), context_length=2)
    plant(monkeypatch, "device._free_bytes", lambda device: 155)
    assert windows.device_bytes() == 156
    with pytest.raises(
        MemoryError,
        match=r"^the windows need 156 bytes on cpu, expected at most the 155 that are free$",
    ):
        windows.to("cpu")
    plant(monkeypatch, "device._free_bytes", lambda device: 156)
    moved = windows.to("cpu")
    plant(monkeypatch, "device._free_bytes", lambda device: 48)
    assert len(windows.subset(rows=(0, 5)).to("cpu")) == 4
    del moved
    with pytest.raises(MemoryError):
        windows.to("cpu")


def test_a_value_that_does_not_fit_is_refused_when_it_moves() -> None:
    """An integer dtype that cannot hold a value is an error that names the column and the row."""
    table = table_of(load=np.array([1, 2, 300, 4]))
    windows = Windows(table, context_length=2, dtype={"load": "uint8"})
    with pytest.raises(ValueError, match=r"column 'load' of field 'rows' holds 300 at row 2"):
        windows.to("cpu")


def test_float64_is_refused_on_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without float64 is refused by the name of the key."""
    plant(monkeypatch, "device.resolve_device", torch.device)
    windows = Windows(table_of(load=np.arange(12.0)), context_length=2)
    with pytest.raises(TypeError, match=r"^past_target is float64, which mps does not have; exp"):
        windows.to("mps")


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    """The error names the device."""
    if getattr(torch, device).is_available():
        pytest.skip(f"there is a device {device!r}")
    windows = Windows(table_of(load=np.arange(12.0)), context_length=2)
    with pytest.raises(RuntimeError, match=f"^`device` is '{device}', but torch finds no"):
        windows.to(device)


def test_numbers_outside_are_refused(mixed: wd.Table) -> None:
    """Numbers below 0 and above the last window are index errors, with a bitmap too."""
    windows = Windows(mixed, context_length=2, target_columns="load")
    for one in (windows, windows.subset(indices=[0, 2, 5])):
        moved = one.to("cpu")
        for number in (-1, len(one), 2**62, -(2**63)):
            with pytest.raises(IndexError):
                moved.gather_tensors([0, number])
            with pytest.raises(IndexError):
                moved.gather_tensors(torch.tensor([0, number]))


@pytest.mark.filterwarnings("ignore:4 of 7 series are shorter")
def test_columns_of_every_dtype_and_many_series_move() -> None:
    """Unsigned columns, series without rows, and series longer than one conversion are right."""
    rng = np.random.default_rng(2)
    lengths = [0, 1, 9000, 0, 3, 5000, 0]
    offsets = [0, *np.cumsum(lengths).tolist()]
    names = ["uint32", "uint64", "uint16", "int8", "bool"]
    columns = {name: rng.integers(0, 2, offsets[-1]).astype(name) for name in names}
    columns["uint64"][:50] += np.uint64(2**63)
    table = wd.Table.from_columns(columns, offsets=offsets)
    for layout in ("columns", "btc"):
        roles: dict[str, Any] = {"layout": layout}
        if layout == "btc":
            roles |= {"past_covariates": "uint16", "known_covariates": "int8"}
            roles |= {"target_columns": "bool", "static_covariates": "uint64"}
        windows = Windows(table, context_length=3, prediction_length=1, pad=True, **roles)
        check_all(windows, "cpu", rng)


def test_a_bitmap_of_many_windows_is_searched() -> None:
    """Windows kept by a bitmap of several words, with long stretches of dropped ones, are found."""
    windows = Windows(table_of(load=np.arange(5000.0)), context_length=3)
    rng = np.random.default_rng(3)
    mask = rng.random(len(windows)) < 0.05
    mask[500:1500] = False
    mask[2000:2600] = True
    for one in (mask, ~mask, np.arange(len(windows)) == 4000):
        kept = windows.subset(mask=one)
        moved = kept.to("cpu")
        numbers = np.arange(len(kept))
        check_equal(moved.gather_tensors(numbers), native(kept, numbers))


def test_the_missing_values_of_later_rows_are_masked() -> None:
    """A mask is made where the first missing value comes after the first rows converted."""
    load = np.arange(300.0)
    load[250] = np.nan
    windows = Windows(table_of(load=load), context_length=5, layout="bct", dtype="float16")
    with planted("device.VALUES_AT_A_TIME", 64):
        check_all(windows, "cpu", np.random.default_rng(4))


@pytest.mark.parametrize("fill", [np.nan, 0.1, -1e300, 65519.9999])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_fills_are_rounded_once(fill: float, dtype: str) -> None:
    """The fill of steps outside a series has the bits of the native gather."""
    windows = Windows(
        table_of(load=np.array([1.0, np.nan, 3.0])), context_length=3, pad=True, fill=fill,
        dtype=dtype,
    )  # fmt: skip
    check_all(windows, "cpu", np.random.default_rng(5))


def test_a_pickled_source_moves_again() -> None:
    """A pickle holds the windows in memory and the name of the device."""
    moved = Windows(table_of(load=np.arange(12.0)), context_length=2).to("cpu")
    again = pickle.loads(pickle.dumps(moved))
    assert repr(again) == repr(moved) == "Windows(11 windows: 2 past; past_target) on cpu"
    assert again.fingerprint == moved.fingerprint == moved.windows.fingerprint
    assert again.device == moved.device
    expected, found = (source.gather_tensors([3, 1]) for source in (moved, again))
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("layout", ["btc", "bct", "columns"])
@pytest.mark.parametrize("pad", [False, True])
def test_no_operation_of_a_batch_mixes_devices(layout: Any, pad: bool) -> None:
    """All operations of a batch are on the device of the columns."""
    load = np.where(np.arange(200) % 7 == 0, np.nan, np.arange(200.0))
    table = table_of(offsets=[0, 90, 200], load=load, price=np.ones(200), kind=np.arange(200) // 90)
    windows = Windows(
        table, context_length=5, prediction_length=2, pad=pad, layout=layout, dtype="float32",
        static_covariates="kind", dilation=1 + (layout == "bct"),
    )  # fmt: skip
    windows = windows.subset(mask=np.arange(len(windows)) % 2 == 0)
    expected = native(windows, [0, 1, 2])
    source = windows.to("cpu")
    with FakeTensorMode():
        batch = moved(source).gather_tensors(torch.empty(3, dtype=torch.int64, device=META))
    assert list(batch) == list(expected)
    for key, tensor in expected.items():
        found = batch[key]
        assert (found.device, found.dtype, found.shape) == (META, tensor.dtype, tensor.shape)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch itself
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_batches_have_the_same_bits(backend: str) -> None:
    """The gather compiles as one graph, with padding, bitmaps, masks and scaled values."""
    rng = np.random.default_rng(6)
    load = rng.normal(size=900)
    load[rng.random(900) < 0.1] = np.nan
    table = wd.Table.from_columns(
        {"load": load, "price": rng.normal(size=900)}, offsets=[0, 300, 900]
    )
    windows = Windows(
        table, context_length=6, prediction_length=3, pad=True, dtype="float32",
        scaler=wd.Scaler.fit(table, per_series=True),
    )  # fmt: skip
    windows = windows.subset(mask=np.arange(len(windows)) % 3 > 0)
    moved = windows.to("cpu")
    compiled = torch.compile(moved.gather_tensors, fullgraph=True, dynamic=True, backend=backend)
    for numbers in (torch.arange(0, 500, 3), torch.tensor([7, 7, 1])):
        check_equal(compiled(numbers), native(windows, numbers.numpy()))


@pytest.mark.parametrize("keys", ["past_target", ("past_target_mask", "past_target", "start")])
@pytest.mark.parametrize("pad", [False, "both"])
def test_keys_that_were_not_asked_for_are_left_out(keys: Any, pad: Any) -> None:
    load = np.where(np.arange(60) % 7 == 3, np.nan, np.arange(60.0))
    table = wd.Table.from_columns({"load": load, "wind": np.arange(60.0)}, offsets=[0, 25, 60])
    options: dict[str, Any] = {"context_length": 6, "prediction_length": 3, "pad": pad}
    some = wd.Windows(table, keys=keys, **options)
    every = wd.Windows(table, **options)
    rng = np.random.default_rng(1)
    # The columns on the device are shared by both, whichever was moved first.
    for windows in (some, every, some):
        check_all(windows, "cpu", rng)
    assert set(some.to("cpu").gather_tensors([0])) == {keys} if isinstance(keys, str) else set(keys)
