"""TokenShard over the Arrow C data interface, against what pyarrow says of the same arrays."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import token_model as model
from models.token_model import INTEGERS
from windeck._core import TokenShard

TOKENS = st.integers(0, 5)
ROW = st.one_of(st.none(), st.lists(TOKENS, max_size=6))
FORMS: dict[str, Any] = {"list": pa.list_, "large_list": pa.large_list}


@st.composite
def chunks(draw: st.DrawFn, row: Any) -> list[tuple[list[Any], int, int]]:
    """Rows of each array, and which of them a slice leaves."""
    arrays = []
    for _ in range(draw(st.integers(0, 4))):
        rows = draw(st.lists(row, max_size=6))
        start = draw(st.integers(0, len(rows)))
        arrays.append((rows, start, draw(st.integers(start, len(rows)))))
    return arrays


def chunked(arrays: Sequence[tuple[list[Any], int, int]], kind: Any) -> Any:
    """Slices of arrays, whose offsets and bitmaps begin anywhere."""
    made = [pa.array(rows, kind)[start:stop] for rows, start, stop in arrays]
    return pa.chunked_array(made, kind)


def left(arrays: Sequence[tuple[list[Any], int, int]]) -> list[Any]:
    return [row for rows, start, stop in arrays for row in rows[start:stop]]


@given(
    arrays=chunks(ROW),
    form=st.sampled_from(list(FORMS)),
    dtype=st.sampled_from(INTEGERS),
    table=st.booleans(),
    strip=st.lists(TOKENS, max_size=2),
    min_length=st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_lists(
    arrays: Any, form: str, dtype: str, table: bool, strip: list[int], min_length: int
) -> None:
    column = chunked(arrays, FORMS[form](pa.type_for_alias(dtype)))
    stream = pa.table({"tokens": column}) if table else column
    shard = TokenShard.from_stream(stream, strip=np.array(strip, np.int64), min_length=min_length)
    documents = [row or [] for row in left(arrays)]
    model.assert_equals(shard, documents, dtype, strip, min_length)
    assert not shard.mapped


@given(
    arrays=chunks(st.one_of(st.none(), st.lists(TOKENS, min_size=3, max_size=3))),
    dtype=st.sampled_from(INTEGERS),
)
@settings(max_examples=100, deadline=None)
def test_lists_of_one_width(arrays: Any, dtype: str) -> None:
    column = chunked(arrays, pa.list_(pa.type_for_alias(dtype), 3))
    documents = [row or [] for row in left(arrays)]
    model.assert_equals(TokenShard.from_stream(column), documents, dtype)


@given(arrays=chunks(TOKENS), dtype=st.sampled_from(INTEGERS), strip=st.lists(TOKENS, max_size=2))
@settings(max_examples=100, deadline=None)
def test_each_plain_array_is_a_document(arrays: Any, dtype: str, strip: list[int]) -> None:
    column = chunked(arrays, pa.type_for_alias(dtype))
    documents = [rows[start:stop] for rows, start, stop in arrays]
    shard = TokenShard.from_stream(column, strip=np.array(strip, np.int64))
    model.assert_equals(shard, documents, dtype, strip)


def test_struct_slices_count_into_their_children() -> None:
    rows = pa.array([[1], [2, 2], [3], [4, 4], [5]], pa.list_(pa.int32()))
    batch = pa.record_batch({"tokens": rows[1:]}).slice(1, 2)
    structs = pa.chunked_array([batch.to_struct_array()[1:]])
    model.assert_equals(TokenShard.from_stream(structs), [[4, 4]], "int32")
    reader = pa.RecordBatchReader.from_batches(batch.schema, iter([batch, batch]))
    model.assert_equals(TokenShard.from_stream(reader), [[3], [4, 4], [3], [4, 4]], "int32")


def test_lists_of_width_0() -> None:
    empty = pa.array([[], None, []], pa.list_(pa.int16(), 0))
    shard = TokenShard.from_stream(pa.chunked_array([empty]))
    model.assert_equals(shard, [[], [], []], "int16")


def test_null_rows_may_hold_values() -> None:
    """Values stored after a null row are not part of a document."""
    offsets, values = pa.array([0, 2, 4, 5], pa.int32()), pa.array([1, 2, None, 4, 5], pa.uint8())
    null_middle = pa.py_buffer(bytes([0b101]))
    rows = pa.ListArray.from_buffers(
        pa.list_(pa.uint8()), 3, [null_middle, offsets.buffers()[1]], children=[values]
    )
    model.assert_equals(
        TokenShard.from_stream(pa.chunked_array([rows])), [[1, 2], [], [5]], "uint8"
    )


@pytest.mark.parametrize("before", [0, 1, 7, 8, 63, 64, 200])
def test_null_tokens_are_refused(before: int) -> None:
    good = [[1, 2, 3]] * before
    kind = pa.list_(pa.int32())
    rows = pa.chunked_array([pa.array([[9], *good, [1, None, None]], kind)[1:]])
    message = f"document {before} in column 'ids' of 'p.arrow' has 2 null tokens, expected none"
    with pytest.raises(ValueError, match=message):
        TokenShard.from_stream(pa.table({"ids": rows}), name="p.arrow")
    fine = pa.chunked_array([rows.chunk(0)[:before], rows.chunk(0)[:before]])
    assert len(TokenShard.from_stream(fine)) == 2 * before
    with pytest.raises(ValueError, match=f"document {3 * before} in the column of '' has 2 null"):
        TokenShard.from_stream(pa.chunked_array([*fine.chunks, *rows.chunks]))
    plain = pa.chunked_array([pa.array([1]), pa.array([1] * before + [None, 2])[before:]])
    with pytest.raises(ValueError, match="document 1 in the column of '' has 1 null tokens"):
        TokenShard.from_stream(plain)


WRONG: list[tuple[Any, str]] = [
    (pa.array([1.0]), "float64"),
    (pa.array([[1.0]]), "list of float64"),
    (pa.array([True]), "bool"),
    (pa.array([None]), "null"),
    (pa.array(["a"]), "string"),
    (pa.array([["a"]], pa.large_list(pa.large_string())), "large_list of large_string"),
    (pa.array([[[1]]]), "list of list of int64"),
    (pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), "fixed_size_list of float32"),
    (pa.array([1, 1]).dictionary_encode(), "dictionary of int64"),
    (pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), "list of dictionary of s"),
    (pa.array([1], pa.timestamp("s")), "timestamp"),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), "map"),
]


@pytest.mark.parametrize(("array", "kind"), WRONG)
def test_other_types_are_refused(array: Any, kind: str) -> None:
    message = f"column 'ids' of 'p' is {kind}.*, expected integers or lists of integers"
    with pytest.raises(TypeError, match=message):
        TokenShard.from_stream(pa.table({"ids": array}), name="p")


def test_a_stream_of_other_shape_is_refused() -> None:
    two = pa.table({"a": [1], "b": [2]})
    with pytest.raises(ValueError, match="the stream of 'p' has 2 columns, expected one"):
        TokenShard.from_stream(two, name="p")
    nulls = pa.chunked_array([pa.array([None, {"a": 1}], pa.struct({"a": pa.int8()}))])
    with pytest.raises(ValueError, match="column 'a' of 'p' lies in a struct with nulls, expected"):
        TokenShard.from_stream(nulls, name="p")


def hostile(offsets: list[int], values: int, form: str) -> Any:
    """Lists whose offsets changed after pyarrow validated them."""
    written = np.zeros(len(offsets), np.int32 if form == "list" else np.int64)
    child = pa.array(range(values), pa.int32())
    rows = pa.Array.from_buffers(
        FORMS[form](pa.int32()),
        len(offsets) - 1,
        [None, pa.py_buffer(written)],
        0,
        children=[child],
    )
    written[:] = offsets
    return rows


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(
    ("offsets", "document"),
    [([0, 3, 2, 5], 1), ([0, 6], 0), ([0, 1, 2**31 - 1], 1), ([-1, 2], 0), ([0, -5, 2], 0)],
)
def test_hostile_offsets(offsets: list[int], document: int, form: str) -> None:
    good = pa.array([[1], []], FORMS[form](pa.int32()))
    column = pa.chunked_array([good, hostile(offsets, 5, form)])
    found = f"{offsets[document]} to {offsets[document + 1]}"
    message = (
        f"document {document + 2} of 'p' has the offsets {found}, expected offsets from 0 to 5"
    )
    with pytest.raises(ValueError, match=message):
        TokenShard.from_stream(column, name="p")


class Failing:
    """A stream that fails after some batches."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        schema = pa.schema({"tokens": pa.list_(pa.int32())})

        def batches() -> Any:
            yield from [
                pa.record_batch([pa.array([[1, 2]], schema[0].type)], schema)
            ] * self._batches
            raise ValueError("the disk is on fire")

        return pa.RecordBatchReader.from_batches(schema, batches()).__arrow_c_stream__()


class Odd:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_streams_that_fail_or_are_none() -> None:
    for batches in (0, 1, 5):
        with pytest.raises(ValueError, match=r"the stream of 'p' failed: .*the disk is on fire"):
            TokenShard.from_stream(Failing(batches), name="p")
    with pytest.raises(TypeError, match="stream is of type list, expected an object with __arrow_"):
        TokenShard.from_stream([1, 2])
    with pytest.raises(TypeError, match="stream gave an object of type int, expected a capsule"):
        TokenShard.from_stream(Odd(5))
    schema = pa.schema({"a": pa.int8()}).__arrow_c_schema__()
    with pytest.raises(
        TypeError, match="gave an object of type PyCapsule, expected a capsule 'arr"
    ):
        TokenShard.from_stream(Odd(schema))
    with pytest.raises(RuntimeError, match="nothing to stream"):
        TokenShard.from_stream(Odd(RuntimeError("nothing to stream")))
    used = pa.chunked_array([[1]]).__arrow_c_stream__()
    assert len(TokenShard.from_stream(Odd(used))) == 1
    with pytest.raises(ValueError, match="stream is used up, expected one that was not read yet"):
        TokenShard.from_stream(Odd(used))


REGIONS: list[tuple[Any, type[Exception], str]] = [
    ((1, 2), TypeError, r"region is of type tuple, expected a tuple \(address, size, descriptor\)"),
    ([1, 2, 3], TypeError, r"region is of type list, expected a tuple \(address, size, descri"),
    ((1.0, 2, 3), TypeError, r"region\[0\] is of type float, expected an integer"),
    ((0, -2, 3), ValueError, r"region\[1\] is -2, expected an integer from 0"),
    ((2**64 - 1, 2, 3), ValueError, "region has 2 bytes, expected a size that ends within the ad"),
    ((0, 2, -2), ValueError, r"region\[2\] is -2, expected an integer from -1"),
    ((0, 2, 2**30), OSError, "the descriptor 1073741824 of 'p' cannot be duplicated: Bad file"),
]


@pytest.mark.parametrize(("region", "error", "message"), REGIONS)
def test_bad_regions(region: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TokenShard.from_stream(pa.chunked_array([[1]]), region=region, name="p")


def test_an_array_over_the_end_of_a_region() -> None:
    array = pa.array(range(100))
    address = array.buffers()[1].address
    for begin, size in ((address, 799), (address + 1, 10**6), (address + 9, 9)):
        with pytest.raises(ValueError, match="has an array that reaches over the end of the file"):
            TokenShard.from_stream(pa.chunked_array([array]), region=(begin, size, -1))
    inside = TokenShard.from_stream(
        pa.chunked_array([array]), region=(address, 800, -1), owner=array
    )
    assert inside.mapped
    del array
    gc.collect()
    assert inside.document(0).tolist() == list(range(100))


class Owner:
    """An object whose deletion can be observed."""

    def __init__(self, ends: list[str]) -> None:
        self._ends = ends

    def __del__(self) -> None:
        self._ends.append("gone")


def test_arrays_and_owners_are_released() -> None:
    gc.collect()
    start, ends = pa.total_allocated_bytes(), list[str]()
    kind = pa.list_(pa.int64())
    rows = [list(range(1000))] * 50
    for bad in (False, True):
        column = pa.chunked_array([pa.array(rows, kind), pa.array([[1, None if bad else 2]], kind)])
        if bad:
            with pytest.raises(ValueError, match="document 50 in the column"):
                TokenShard.from_stream(column, owner=Owner(ends))
            assert ends == ["gone", "gone"]
        else:
            shard = TokenShard.from_stream(column, owner=Owner(ends))
            del column
            assert pa.total_allocated_bytes() - start > 50_000 * 8
            assert shard.document(7).tolist() == rows[7]
            assert not ends
            del shard
            assert ends == ["gone"]
    column = bad = None  # type: ignore[assignment]
    for failing in (Failing(0), Failing(9)):
        with pytest.raises(ValueError, match="failed"):
            TokenShard.from_stream(failing, owner=Owner(ends))
    for refused in (
        pa.chunked_array([["a" * 1000]]),
        pa.chunked_array([hostile([0, 9], 5, "list")]),
    ):
        with pytest.raises((TypeError, ValueError), match="expected"):
            TokenShard.from_stream(refused, owner=Owner(ends))
    refused = None
    gc.collect()
    assert len(ends) == 6
    assert pa.total_allocated_bytes() == start
