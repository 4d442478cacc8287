"""Windows with past and future in one buffer: the same batches as with two."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import windeck as wd
from models import reference as ref
from support.cases import Drawn, drawn_cases
from support.window_tables import table_of
from windeck import Windows

PAIR = ("past_target", "future_target")


def table(rows: int = 60) -> wd.Table:
    rng = np.random.default_rng(3)
    load = rng.normal(size=rows).astype(np.float32)
    load[rng.random(rows) < 0.2] = np.nan
    return table_of(offsets=[0, rows // 2, rows], load=load, hour=rng.integers(0, 24, rows))


def windows_of(**options: Any) -> Windows:
    options = {"context_length": 5, "prediction_length": 3, **options}
    return Windows(table(), target_columns="load", known_covariates="hour", **options)


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare two batches of arrays or of tensors: keys, dtypes, shapes and values."""
    assert set(found) == set(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(array), key, strict=True)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
@pytest.mark.filterwarnings("ignore:.*series are shorter:UserWarning")
@pytest.mark.filterwarnings("ignore:.*lost every window:UserWarning")
@given(drawn_cases())
def test_joined_batches_equal_the_reference(drawn: Drawn) -> None:
    expected = ref.windows(drawn.case)
    if not expected:
        return
    windows = drawn.windows()
    if drawn.case.layout == "columns":
        with pytest.raises(ValueError, match="in one array already"):
            windows.joined()
        return
    chosen = expected[::3]
    indices = np.arange(len(expected))[::3]
    assert_equal(windows.joined().gather(indices), ref.batch(drawn.case, chosen))


def base_of(array: Any) -> Any:
    """Return the array that owns or first holds the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize("layout", ["btc", "bct"])
@pytest.mark.parametrize("gap", [0, 2, -2])
@pytest.mark.parametrize("pad", [False, "start", "both"])
def test_past_and_future_are_views_of_one_buffer(layout: Any, gap: int, pad: Any) -> None:
    plain = windows_of(layout=layout, gap=gap, pad=pad)
    joined = plain.joined()
    numbers = np.arange(len(plain))[::-1]
    batch = joined.gather(numbers)
    assert_equal(batch, plain.gather(numbers))
    for role in ("target", "known"):
        past, future = batch[f"past_{role}"], batch[f"future_{role}"]
        assert base_of(past) is base_of(future)
        assert base_of(past).flags.c_contiguous
        assert base_of(past).ctypes.data % 64 == 0
        assert base_of(past).size == past.size + future.size
        assert past.flags.writeable
    rows = joined.gather_rows(numbers)
    assert {"target", "target_mask", "known"} <= set(rows)
    assert rows["target"].shape == (
        (len(numbers), 8, 1) if layout == "btc" else (len(numbers), 1, 8)
    )


def test_scaled_and_cast_batches_are_equal() -> None:
    plain = windows_of(gap=1, dtype="bfloat16")
    plain = plain.with_scaler(wd.Scaler.fit(plain, kind="minmax"))
    joined = plain.joined()
    assert_equal(joined.gather([3, 9]), plain.gather([3, 9]))
    found, expected = (next(iter(wd.Loader(w, batch_size=7))) for w in (joined, plain))
    assert found["past_target"].dtype == torch.bfloat16
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert set(plain.torch_dtypes) < set(joined.torch_dtypes)


def test_keys_without_their_pair_have_an_array_of_their_own() -> None:
    keys = ("past_target", "past_known", "future_known", "future_known_mask")
    plain = windows_of(keys=keys)
    joined = plain.joined()
    assert_equal(joined.gather([1]), plain.gather([1]))
    assert set(joined.gather_rows([1])) == {"past_target", "known", "known_mask"}


def test_everything_derived_is_joined() -> None:
    plain = windows_of()
    joined = plain.joined()
    scaler = wd.Scaler.fit(plain)
    pairs: list[Any] = [
        (joined, plain),
        (joined.joined(), plain),
        (joined.subset(indices=[1, 5, 7]), plain.subset(indices=[1, 5, 7])),
        (joined.with_scaler(scaler), plain.with_scaler(scaler)),
        (joined.split(validation=0.3, test=0)[1], plain.split(validation=0.3, test=0)[1]),
        (joined.latest(), plain.latest()),
        (joined.balanced(), plain.balanced()),
        (joined.balanced().at_epoch(2, seed=5), plain.balanced().at_epoch(2, seed=5)),
        (pickle.loads(pickle.dumps(joined)), plain),
        (pickle.loads(pickle.dumps(joined.balanced())), plain.balanced()),
    ]
    for found, expected in pairs:
        assert found.fingerprint == expected.fingerprint
        assert_equal(found.gather([1, 0]), expected.gather([1, 0]))


def test_one_sample_has_past_and_future() -> None:
    assert_equal(windows_of().joined()[-1], windows_of()[-1])


def test_out_has_the_buffers() -> None:
    joined = windows_of().joined()
    out = {key: np.zeros_like(array) for key, array in joined.gather_rows([0, 1]).items()}
    batch = joined.gather([4, 2], out=out)
    assert batch["past_target"].base is out["target"]
    assert_equal(batch, windows_of().gather([4, 2]))
    with pytest.raises(KeyError, match="'target'"):
        joined.gather([4, 2], out=windows_of().gather([4, 2]))


@pytest.mark.parametrize("balanced", [False, True])
def test_loaders_serve_the_same_batches_and_exchange_states(balanced: bool) -> None:
    sources: list[Any] = [windows_of(), windows_of().joined()]
    if balanced:
        sources = [one.balanced() for one in sources]
    plain, joined = (wd.Loader(one, batch_size=4, shuffle=not balanced, seed=3) for one in sources)
    for _, expected, found in zip(range(3), plain, joined, strict=False):
        assert_equal(found, expected)
        pair = [found[key] for key in PAIR]
        assert pair[0].untyped_storage().data_ptr() == pair[1].untyped_storage().data_ptr()
    joined.load_state_dict(plain.state_dict())
    assert_equal(next(iter(joined)), next(iter(plain)))


def test_a_mixture_of_joined_windows_is_served() -> None:
    parts = [windows_of(), windows_of(stride=2)]
    mixed = [
        wd.Mixture({"a": (one, 0.5), "b": (other, 0.5)}, seed=1)
        for one, other in (parts, [part.joined() for part in parts])
    ]
    expected, found = (next(iter(wd.Loader(mixture, batch_size=16))) for mixture in mixed)
    assert_equal(found, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_of_a_dataloader_serve_the_same_batches(workers: int) -> None:
    batches = []
    for source in (windows_of(), windows_of().joined()):
        data = wd.MapDataset(source)
        loader = torch.utils.data.DataLoader(
            data, batch_size=8, num_workers=workers, collate_fn=wd.collate
        )
        batches.append(list(loader))
    for expected, found in zip(*batches, strict=True):
        assert_equal(found, expected)


def test_a_saved_batch_holds_the_buffer_once() -> None:
    sizes = []
    for source in (windows_of(), windows_of().joined()):
        batch = next(iter(wd.Loader(source, batch_size=16)))
        file = io.BytesIO()
        torch.save({key: batch[key] for key in PAIR}, file)
        sizes.append(file.tell())
        file.seek(0)
        assert_equal(torch.load(file), {key: batch[key] for key in PAIR})
    assert sizes[1] <= sizes[0]


def test_an_edit_in_place_counts_for_both_views() -> None:
    batch = next(iter(wd.Loader(windows_of(fill=1.0).joined(), batch_size=4)))
    before = batch["future_target"].clone()
    weight = torch.ones((), requires_grad=True)
    loss = (batch["past_target"] * weight).sum()
    batch["past_target"].zero_()
    assert torch.equal(batch["future_target"], before)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)
    batch = next(iter(wd.Loader(windows_of(fill=1.0).joined(), batch_size=4)))
    loss = (batch["past_target"] * weight).sum()
    batch["future_target"].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)
