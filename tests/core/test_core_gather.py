"""The native gather against the readable model, on every instruction set and in every form."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import gather_cases as cases
from support.programs import printed
from windeck import _core

ROWS = 40


def small(fields: list[Any], bounds: Any = None, first: Any = None, count: Any = None) -> Any:
    """A gather over two series of 20 rows, a window at every row."""
    bounds = np.array([0, 20, ROWS]) if bounds is None else bounds
    first = np.array([0, 20]) if first is None else first
    count = np.array([20, 20]) if count is None else count
    return _core.Gather(_core.WindowIndex(first, count, 1), bounds, fields)


def column(values: Any = None, **options: Any) -> Any:
    return _core.Column(np.arange(ROWS) * 1.5 if values is None else values, name="load", **options)


def field(columns: Any = None, **options: Any) -> Any:
    options = {"step_spans": [(0, 4)], "dtype": "float64", **options}
    return _core.Field("past", [column()] if columns is None else columns, **options)


@pytest.mark.parametrize("part", range(8))
def test_equals_the_model_on_random_configurations(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        case = cases.random_case(seed)
        cases.assert_equals_model(case, cases.run(case, threads=1 + seed % 3))


@pytest.mark.slow
@given(st.integers(min_value=10_000, max_value=2**60))
@settings(max_examples=4000, deadline=None)
def test_equals_the_model_on_many_configurations(seed: int) -> None:
    case = cases.random_case(seed)
    cases.assert_equals_model(case, cases.run(case))


DIGEST = """
import hashlib, sys
from support import gather_cases as cases
digest = hashlib.sha256()
for seed in range(500, 800):
    case = cases.random_case(seed)
    batch = cases.run(case)
    for key, values in batch.items() if isinstance(batch, dict) else [("error", str(batch))]:
        digest.update(key.encode())
        digest.update(values.tobytes() if key != "error" else values.encode())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    found = {}
    for level in ("baseline", ""):
        path = os.pathsep.join(sys.path)
        found[level] = printed(DIGEST, WINDECK_SIMD=level, PYTHONPATH=path)
    assert found[""] == found["baseline"]


def test_out_is_written_and_returned() -> None:
    gather = small([field(mask=True)])
    fresh = gather.gather(np.arange(12))
    out = {key: np.full_like(value, 7) for key, value in fresh.items()}
    again = gather.gather(np.arange(12), out=out)
    for key, value in fresh.items():
        assert again[key] is out[key]
        assert np.array_equal(value, out[key])


def test_a_fresh_batch_is_aligned_writable_and_its_own() -> None:
    gather = small(
        [field(mask=True, dtype="float32"), _core.Field("n", [column()], step_spans=[(0, 1)])]
    )
    first, second = gather.gather(np.arange(5)), gather.gather(np.arange(5))
    for key, value in first.items():
        assert value.ctypes.data % 64 == 0
        assert value.flags.writeable
        assert value.flags.c_contiguous
        assert not np.shares_memory(value, second[key])


@pytest.mark.parametrize("shuffled", [False, True])
def test_batches_of_places_are_those_of_their_windows(shuffled: bool) -> None:
    """The model is `gather` of the windows of each batch; rows need not fill 64 bytes."""
    rng = np.random.default_rng(4)
    compared = 0
    for seed in range(400):
        gather = cases.random_case(seed).gather
        if not len(gather):
            continue
        order = _core.Permutation(len(gather), seed=seed) if shuffled else None
        windows = np.arange(len(gather)) if order is None else order[:]
        count = int(rng.integers(1, 5))
        step = int(rng.integers(1, max(len(gather) // count, 1) + 1))
        rows = int(rng.integers(0, step + 1))
        if (count - 1) * step + rows > len(gather):
            continue
        start = int(rng.integers(0, len(gather) - (count - 1) * step - rows + 1))
        each = [windows[first : first + rows] for first in range(start, start + count * step, step)]
        made = lambda array: array, {"start": np.ndarray.tolist}
        arguments = (order, start, start + rows, count, step, *made)
        try:
            expected = [gather.gather(one) for one in each]
        except ValueError:
            with pytest.raises(ValueError, match="cannot hold"):
                gather.batches(*arguments)
            continue
        found = gather.batches(*arguments)
        assert len(found) == count
        for one, other in zip(found, expected, strict=True):
            assert list(one) == list(other)
            for key, values in one.items():
                if key == "start":
                    assert values == other[key].tolist()
                    continue
                assert values.dtype == other[key].dtype
                assert values.shape == other[key].shape
                assert values.tobytes() == other[key].tobytes()
                assert values.ctypes.data % 64 == 0
                assert values.flags.writeable
        assert gather.row_bytes * rows == sum(values.nbytes for values in expected[0].values())
        compared += 1
    assert compared > 200


BAD_PLACES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"stop": 41}, ValueError, "stop is 41, expected an integer from 0 to 40"),
    ({"start": 9}, ValueError, "start is 9, expected an integer from 0 to 8"),
    ({"start": -1}, ValueError, "start is -1, expected an integer from 0 to 8"),
    ({"start": 1.5}, TypeError, "start is of type float, expected an integer"),
    ({"step": 7}, ValueError, "step is 7, expected an integer from 8 to 40"),
    ({"step": 41}, ValueError, "step is 41, expected an integer from 8 to 40"),
    ({"stop": 0, "step": 0}, ValueError, "step is 0, expected an integer from 1 to 40"),
    ({"count": 5}, ValueError, "count is 5, expected an integer from 1 to 4"),
    ({"count": 0}, ValueError, "count is 0, expected an integer from 1 to 4"),
    ({"stop": 0, "count": 2**62}, ValueError, f"count is {2**62}, expected an integer from 1 to 5"),
    ({"order": _core.Permutation(5)}, ValueError, "stop is 8, expected an integer from 0 to 5"),
    ({"order": [3, 4]}, TypeError, "order is of type list, expected Permutation or None"),
    ({"wrap": 3}, TypeError, "batches"),
    ({"wrap": len, "wrap_keys": {"past": lambda array: 1 / 0}}, ZeroDivisionError, "by zero"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_PLACES)
def test_bad_places(options: dict[str, Any], error: type[Exception], message: str) -> None:
    valid: dict[str, Any] = {"order": None, "start": 0, "stop": 8, "count": 2, "step": 10}
    with pytest.raises(error, match=message):
        small([field()]).batches(**(valid | {"wrap": len, "wrap_keys": {}} | options))


@pytest.mark.parametrize("threads", [None, 1, 2, 5])
def test_threads_change_nothing(threads: int | None) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(5000, 6))
    values[rng.random(values.shape) < 0.05] = np.nan
    columns = [_core.Column(values[:, c]) for c in range(6)]
    fields = [_core.Field("x", columns, step_spans=[(0, 50)], mask=True, scale=np.arange(1.0, 7.0))]
    index = _core.WindowIndex(np.array([0]), np.array([4951]), 1)
    gather = _core.Gather(index, np.array([0, 5000]), fields)
    indices = rng.integers(0, len(index), 999)
    batch = gather.gather(indices, threads=threads)
    windows = np.lib.stride_tricks.sliding_window_view(values, 50, axis=0)[indices].swapaxes(1, 2)
    expected = np.where(np.isnan(windows), 0, windows * np.arange(1.0, 7.0)).astype(np.float32)
    assert np.array_equal(batch["x"], expected)
    assert np.array_equal(batch["x_mask"], ~np.isnan(windows))
    assert np.array_equal(batch["start"], indices)


def test_long_windows_are_cut_into_blocks() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(size=(9000, 70)).astype(np.float32)
    for stored in (values, np.asfortranarray(values)):
        columns = [_core.Column(stored[:, c]) for c in range(70)]
        fields = [
            _core.Field(layout, columns, step_spans=[(0, 4000)], layout=layout, dtype="float64")
            for layout in ("btc", "bct")
        ]
        index = _core.WindowIndex(np.array([0]), np.array([5001]), 1)
        batch = _core.Gather(index, np.array([0, 9000]), fields).gather([3, 5000])
        for b, start in enumerate((3, 5000)):
            assert np.array_equal(batch["btc"][b], values[start : start + 4000])
            assert np.array_equal(batch["bct"][b], values[start : start + 4000].T)


def test_integers_are_rounded_half_to_even_and_checked() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, 127.4] + [0.0] * 35)
    gather = small([field([column(values)], step_spans=[(0, 5)], dtype="int8")])
    assert gather.gather([0])["past"].ravel().tolist() == [0, 2, 2, 0, 127]
    values[4] = 127.5
    with pytest.raises(
        ValueError,
        match=r"column 'load' of field 'past' holds 127.5 at row 4, which int8 cannot hold",
    ):
        gather.gather([0])
    values[4] = np.nan
    with pytest.raises(ValueError, match=r"holds nan at row 4, which int8 cannot hold"):
        gather.gather([0])
    masked = small([field([column(values)], step_spans=[(0, 5)], dtype="int8", mask=True, fill=-3)])
    assert masked.gather([0])["past"].ravel().tolist() == [0, 2, 2, 0, -3]


def test_a_validity_bitmap_hides_garbage_that_would_not_fit() -> None:
    values = np.arange(ROWS, dtype=np.int64)
    values[3] = 10**15
    valid = np.ones(ROWS, dtype=bool)
    valid[3] = False
    bits = np.packbits(valid, bitorder="little")
    batch = small([field([column(values, validity=bits)], dtype="int16", fill=9)]).gather([1])
    assert batch["past"].ravel().tolist() == [1, 2, 9, 4]
    assert "past_mask" not in batch


def test_padding_lies_outside_the_series_of_the_window() -> None:
    gather = small([field(mask=True, fill=-1.0)], first=np.array([-2, 18]), count=np.array([3, 3]))
    batch = gather.gather([0, 5])
    assert batch["past"].squeeze(-1).tolist() == [[-1, -1, 0, 1.5], [30, 31.5, 33, 34.5]]
    assert batch["past_mask"].squeeze(-1).tolist() == [[False, False, True, True], [True] * 4]
    before = gather.gather([3])
    assert before["past_mask"].squeeze(-1).tolist() == [[False, False, True, True]]
    assert before["past"].squeeze(-1).tolist() == [[-1, -1, 30, 31.5]]


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_that_overlap_in_memory(dilation: int, dtype: str) -> None:
    """Lags of a series as columns: row i is values i to i + 3, and memory is shared."""
    values = np.arange(ROWS + 3) * 1.0
    lags = np.lib.stride_tricks.sliding_window_view(values, 4)
    for width in (1, 2, 3, 4):
        columns = [_core.Column(lags[:, c]) for c in range(width)]
        options: dict[str, Any] = {"step_spans": [(0, 5)], "dilation": dilation, "dtype": dtype}
        gather = small([field(columns, fill=-1.0, **options)])
        found = gather.gather([0, 15, 19])["past"]
        for b, start in enumerate((0, 15, 19)):
            rows = [start + j * dilation for j in range(5)]
            expected = [[row + c if row < 20 else -1 for c in range(width)] for row in rows]
            assert found[b].tolist() == expected


def test_static_fields_read_the_first_row_of_the_series() -> None:
    static = _core.Field(
        "static", [column()], step_spans=[(0, 1)], layout="bc", dtype="float64", anchor="series"
    )
    batch = small([static]).gather([19, 25])
    assert batch["static"].tolist() == [[0.0], [30.0]]


def test_a_field_of_one_value_has_the_axis_of_the_batch_alone() -> None:
    one = _core.Field(
        "one", [column()], step_spans=[(1, 1)], layout="b", dtype="float64", mask=True
    )
    batch = small([one]).gather([3, 19])
    assert batch["one"].tolist() == [6.0, 0.0]
    assert batch["one_mask"].tolist() == [True, False]


def test_arrays_stay_alive_as_long_as_the_gather() -> None:
    gather = small([field([column(np.arange(ROWS) * 1.0)])])
    assert gather.gather([20])["past"].ravel().tolist() == [20, 21, 22, 23]


BAD_FIELDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dtype": "int8", "fill": 300}, ValueError, "has fill 300.0+, which int8 cannot hold"),
    ({"dtype": "int8", "fill": 0.5}, ValueError, "has fill 0.50+, which int8 cannot hold"),
    ({"dtype": "int32", "fill": np.nan}, ValueError, "fill is nan, expected an integer"),
    ({"dtype": "int64", "fill": 2**53 + 1}, ValueError, "expected an integer that float64 holds"),
    ({"fill": "0"}, TypeError, "fill is of type str, expected a number"),
    ({"dtype": "complex64"}, ValueError, "dtype is 'complex64', expected one of float64 float32"),
    (
        {"layout": "tbc"},
        ValueError,
        "layout is 'tbc', expected one of 'btc', 'bct', 'bt', 'bc', 'b'",
    ),
    ({"layout": "bc"}, ValueError, "field 'past' has 4 steps, layout bc takes 1"),
    ({"layout": "b"}, ValueError, "field 'past' has 4 steps, layout b takes 1"),
    ({"layout": "b", "columns": [column(), column()]}, ValueError, "has 2 columns, layout b takes"),
    ({"anchor": "row"}, ValueError, "anchor is 'row', expected one of 'window', 'series'"),
    ({"dilation": 0}, ValueError, "dilation is 0, expected an integer from 1"),
    ({"dilation": 1.5}, TypeError, "dilation is of type float, expected an integer"),
    ({"step_spans": []}, ValueError, "has no steps"),
    ({"step_spans": [(0, -1)]}, ValueError, "length of a step span is -1"),
    ({"step_spans": [(0, 2**50)]}, ValueError, "expected 0 to 2\\^40 steps"),
    ({"step_spans": [(2**62, 3)]}, ValueError, "has rows beyond 2\\^62"),
    ({"step_spans": [(0, 3)], "dilation": 2**62}, ValueError, "has rows beyond 2\\^62"),
    ({"step_spans": [3]}, TypeError, r"step_spans holds 3, expected pairs \(offset, length\)"),
    ({"scale": np.ones(2)}, ValueError, r"scale has shape \(2,\), expected \(columns,\)"),
    ({"scale": np.ones((3, 1))}, ValueError, "has 3 entries of scale, expected 2"),
    ({"shift": np.ones(1, np.float32)}, TypeError, "shift has dtype float32, expected float64"),
    ({"scale": [1.0]}, TypeError, "scale is of type list, expected a float64 array"),
    ({"columns": []}, ValueError, "has no columns"),
    ({"columns": [np.zeros(3)]}, TypeError, "columns holds an object of type numpy.ndarray"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_FIELDS)
def test_bad_fields(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        small([field(**options)])


def test_bad_columns() -> None:
    with pytest.raises(TypeError, match="column 'load' has dtype complex128"):
        column(np.zeros(3, complex))
    with pytest.raises(TypeError, match="column 'load' has dtype >f8"):
        column(np.zeros(3, ">f8"))
    with pytest.raises(TypeError, match="column 'load' has dtype <U1"):
        column(np.array(["a"]))
    with pytest.raises(TypeError, match="has dtype float64, which is not bfloat16"):
        column(dtype="bfloat16")
    with pytest.raises(ValueError, match=r"column 'load' has shape \(2, 2\)"):
        column(np.zeros((2, 2)))
    with pytest.raises(TypeError, match="column 'load' is of type list"):
        column([1.0])
    with pytest.raises(ValueError, match="has 32 bits, expected at least 40 from bit 0 on"):
        column(validity=np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="has 40 bits, expected at least 40 from bit 1 on"):
        column(validity=np.zeros(5, np.uint8), validity_offset=1)
    with pytest.raises(TypeError, match="validity of column 'load' has dtype bool"):
        column(validity=np.zeros(40, bool))


def test_bad_bounds_and_names() -> None:
    with pytest.raises(ValueError, match="has column 'load' of 40 rows, expected 41"):
        small([field()], bounds=np.array([0, 20, 41]))
    with pytest.raises(ValueError, match="bounds decrease from 30 to 20 at series 1"):
        small([field()], bounds=np.array([0, 30, 20]))
    with pytest.raises(ValueError, match="bounds begin at -1, expected 0 or more"):
        small([field()], bounds=np.array([-1, 20, 40]))
    with pytest.raises(ValueError, match="windows of series 1, expected fewer than the 1 series"):
        small([field()], bounds=np.array([0, 20]))
    with pytest.raises(TypeError, match="bounds has dtype float64, expected int64"):
        small([field()], bounds=np.array([0.0, 20.0]))
    with pytest.raises(ValueError, match="two arrays of the batch are called 'past'"):
        small([field(), field()])
    with pytest.raises(ValueError, match="two arrays of the batch are called 'start'"):
        small([_core.Field("start", [column()], step_spans=[(0, 1)])])
    with pytest.raises(TypeError, match="index is of type int, expected WindowIndex"):
        _core.Gather(3, np.array([0]), [])
    with pytest.raises(TypeError, match="fields holds an object of type int, expected Field"):
        small([3])


def test_bad_calls() -> None:
    gather = small([field(mask=True)])
    with pytest.raises(IndexError, match="index 40 is out of range for 40 windows"):
        gather.gather([3, 40])
    with pytest.raises(IndexError, match="index -1 is out of range for 40 windows"):
        gather.gather([-1])
    with pytest.raises(TypeError, match="indices has dtype float64, expected int64"):
        gather.gather(np.zeros(3))
    with pytest.raises(TypeError, match="indices is of type int, expected an int64 array"):
        gather.gather(3)
    with pytest.raises(ValueError, match="threads is 0, expected an integer from 1 to 1024"):
        gather.gather([0], threads=0)


def test_bad_out() -> None:
    values = np.arange(ROWS) * 1.0
    gather = small([field([column(values)], mask=True)])
    out = gather.gather([0, 1])

    def refused(error: type[Exception], message: str, **replaced: Any) -> None:
        with pytest.raises(error, match=message):
            gather.gather([0, 1], out={**out, **replaced})

    read_only = out["past"].copy()
    read_only.flags.writeable = False
    refused(TypeError, r"out\['past'\] has dtype float32", past=np.zeros((2, 4, 1), np.float32))
    refused(ValueError, r"out\['past'\] has shape \(2, 4\)", past=np.zeros((2, 4)))
    refused(ValueError, "is not contiguous", past=np.zeros((2, 4, 2))[:, :, :1])
    refused(ValueError, "is read-only", past=read_only)
    refused(ValueError, r"overlaps column 'load'", past=values[:8].reshape(2, 4, 1))
    refused(ValueError, r"out\['start'\] overlaps out\['series_id'\]", start=out["series_id"])
    refused(KeyError, "holds the key 'other', which the batch does not have", other=out["past"])
    with pytest.raises(KeyError, match=r"out\['past'\] is missing"):
        gather.gather([0, 1], out={"past_mask": out["past_mask"]})
    with pytest.raises(TypeError, match="out is of type list, expected a dict"):
        gather.gather([0, 1], out=[])


def test_a_batch_too_large_for_memory_is_an_error() -> None:
    wide = _core.Field("x", [column()], step_spans=[(0, 2**39)], dtype="float64")
    with pytest.raises(MemoryError):
        small([wide]).gather(np.zeros(2**20, dtype=np.int64))


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("stride", [1, 3, -1])
def test_missing_rows_are_counted(dtype: str, stride: int) -> None:
    rng = np.random.default_rng(5)
    named = dtype if dtype == "bfloat16" else None
    for rows in (0, 1, 7, 64, 2047, 2048, 2049, 5000):
        values = cases.random_values(rng, rows * abs(stride), dtype)[::stride]
        wide = (values.astype(np.uint32) << 16).view(np.float32) if named else values
        with np.errstate(invalid="ignore"):
            nan = wide != wide
        offset = int(rng.integers(0, 20))
        valid = rng.random(rows) < 0.9
        bits = np.packbits(np.concatenate([np.zeros(offset, bool), valid]), bitorder="little")
        options: dict[str, Any] = {"validity": bits, "validity_offset": offset, "dtype": named}
        assert _core.Column(values, dtype=named).count_missing() == nan.sum()
        assert _core.Column(values, dtype=named, nan_is_missing=False).count_missing() == 0
        assert _core.Column(values, **options).count_missing() == (nan | ~valid).sum()


def test_missing_rows_of_unaligned_values_are_counted() -> None:
    packed = np.zeros(3000, dtype=[("before", "u1"), ("value", "f4")])
    packed["value"][::7] = np.nan
    assert _core.Column(packed["value"]).count_missing() == len(range(0, 3000, 7))
