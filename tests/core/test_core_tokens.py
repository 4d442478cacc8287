"""TokenShard against plain Python lists of documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import token_model as model
from models.token_model import INTEGERS
from windeck._core import TokenShard


@given(
    raw=st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=12),
    dtype=st.sampled_from(INTEGERS),
    strip=st.lists(st.integers(-1, 6), max_size=3),
    min_length=st.integers(0, 4),
    gap=st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_from_arrays_equals_the_lists(
    raw: list[list[int]], dtype: str, strip: list[int], min_length: int, gap: int
) -> None:
    values = np.array([0] * gap + [token for document in raw for token in document], dtype)
    offsets = gap + np.cumsum([0, *map(len, raw)])
    shard = TokenShard.from_arrays(
        values, offsets, strip=np.array(strip, np.int64), min_length=min_length
    )
    model.assert_equals(shard, raw, dtype, strip, min_length)


def test_values_may_be_strided() -> None:
    values = np.arange(20, dtype=np.int32)[::-2]
    shard = TokenShard.from_arrays(values, np.array([1, 3, 10]))
    model.assert_equals(shard, [[17, 15], [13, 11, 9, 7, 5, 3, 1]], "int32")


def test_lengths_go_into_an_array() -> None:
    shard = TokenShard.from_arrays(np.zeros(5, np.uint8), np.array([0, 2, 5]))
    out = np.empty(2, np.int64)
    assert shard.lengths(out) is out
    assert out.tolist() == [2, 3]
    with pytest.raises(ValueError, match=r"out has shape \(3,\), expected \(2,\)"):
        shard.lengths(np.empty(3, np.int64))
    with pytest.raises(TypeError, match="out has dtype int32, expected int64"):
        shard.lengths(np.empty(2, np.int32))


@given(
    raw=st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=12),
    dtype=st.sampled_from(INTEGERS),
    strip=st.lists(st.integers(-1, 6), max_size=3),
    min_length=st.integers(0, 4),
    gaps=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
@settings(max_examples=300, deadline=None)
def test_from_spans_equals_the_lists(
    raw: list[list[int]], dtype: str, strip: list[int], min_length: int, gaps: list[int]
) -> None:
    """Documents are at any byte, aligned or not, in any order."""
    memory, starts = b"", {}
    for number in sorted(range(len(raw)), key=lambda number: (gaps[number], number)):
        memory += b"\xff" * gaps[number]
        starts[number] = len(memory)
        memory += np.array(raw[number], dtype).tobytes()
    shard = TokenShard.from_spans(
        np.frombuffer(memory, np.uint8),
        np.array([starts[number] for number in range(len(raw))], np.int64),
        np.array([len(document) for document in raw], np.int64),
        dtype=dtype,
        strip=np.array(strip, np.int64),
        min_length=min_length,
    )
    model.assert_equals(shard, raw, dtype, strip, min_length)
    assert not shard.mapped


SPANS: dict[str, Any] = {
    "data": np.arange(5, dtype=np.uint8),
    "starts": np.array([0, 1]),
    "lengths": np.array([1, 2]),
    "dtype": "uint16",
}
BAD_SPANS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"data": np.zeros(5, np.int8)}, TypeError, "data has dtype int8, expected uint8"),
    ({"data": bytes(5)}, TypeError, "data is of type bytes, expected a uint8 array"),
    (
        {"data": np.zeros((5, 2), np.uint8)},
        ValueError,
        r"data has shape \(5, 2\), expected one con",
    ),
    ({"starts": np.array([0, 1], np.int32)}, TypeError, "starts has dtype int32, expected int64"),
    ({"starts": np.array([0])}, ValueError, "'it' has 1 starts and 2 lengths of documents"),
    ({"starts": np.array([0, 2])}, ValueError, "document 1 of 'it' has 2 tokens from byte 2 on, "),
    ({"starts": np.array([0, -1])}, ValueError, "has 2 tokens from byte -1 on, expected tokens in"),
    ({"starts": np.array([0, 6])}, ValueError, "from byte 6 on, expected tokens inside of 5 bytes"),
    (
        {"starts": np.array([2**63 - 1, 0])},
        ValueError,
        "document 0 of 'it' has 1 tokens from byte ",
    ),
    ({"lengths": np.array([1, -1])}, ValueError, "document 1 of 'it' has -1 tokens from byte 1"),
    ({"lengths": np.array([2**62, 0])}, ValueError, "document 0 of 'it' has 4611686018427387904 t"),
    ({"lengths": np.array([2**63 - 1, 0])}, ValueError, "document 0 of 'it' has 92233720368547758"),
    ({"dtype": "float32"}, TypeError, "dtype is 'float32', expected integers of 8 to 64 bits"),
    ({"dtype": "bool"}, TypeError, "dtype is 'bool', expected integers"),
    ({"dtype": "<u2"}, TypeError, "dtype is '<u2', expected integers"),
    ({"file": -2}, ValueError, "file is -2, expected an integer from -1"),
    ({"file": 10**6}, OSError, "descriptor 1000000 of 'it' cannot be duplicated"),
    ({"min_length": -1}, ValueError, "min_length is -1, expected an integer from 0"),
]


@pytest.mark.parametrize(("replaced", "error", "message"), BAD_SPANS)
def test_bad_spans(replaced: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TokenShard.from_spans(**(SPANS | replaced), name="it")


def test_a_span_may_end_with_the_data() -> None:
    shard = TokenShard.from_spans(**(SPANS | {"starts": np.array([5, 1]), "lengths": [0, 2]}))
    model.assert_equals(shard, [[], [0x0201, 0x0403]], "uint16")


GOOD: dict[str, Any] = {"values": np.arange(5, dtype=np.int32), "offsets": np.array([0, 5])}
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"values": [1, 2]}, TypeError, "values is of type list, expected an array of integers"),
    ({"values": np.zeros(5)}, TypeError, "values has dtype float64, expected native integers"),
    ({"values": np.zeros(5, bool)}, TypeError, "values has dtype bool, expected native integers"),
    ({"values": np.zeros(5, ">i4")}, TypeError, "values has dtype >i4, expected native integers"),
    ({"values": np.zeros((5, 1), int)}, ValueError, r"values has shape \(5, 1\), expected one dim"),
    ({"offsets": np.array([], np.int64)}, ValueError, "offsets is empty, expected one more entry"),
    ({"offsets": np.array([0.0, 5])}, TypeError, "offsets has dtype float64, expected int64"),
    ({"offsets": np.array([0, 6])}, ValueError, "document 0 of 'it' has the offsets 0 to 6"),
    ({"offsets": np.array([0, 4, 3])}, ValueError, "document 1 of 'it' has the offsets 4 to 3"),
    ({"offsets": np.array([-1, 4])}, ValueError, "expected offsets from 0 to 5 that never decrea"),
    ({"strip": np.array([1], np.int32)}, TypeError, "strip has dtype int32, expected int64"),
    ({"min_length": -1}, ValueError, "min_length is -1, expected an integer from 0"),
    ({"min_length": 1.5}, TypeError, "min_length is of type float, expected an integer"),
]


@pytest.mark.parametrize(("replaced", "error", "message"), BAD)
def test_bad_arrays(replaced: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = GOOD | replaced
    with pytest.raises(error, match=message):
        TokenShard.from_arrays(
            arguments.pop("values"), arguments.pop("offsets"), name="it", **arguments
        )


def test_documents_out_of_range() -> None:
    shard = TokenShard.from_arrays(np.zeros(5, np.uint8), np.array([0, 2, 5]))
    for number in (2, -1, 2**70):
        with pytest.raises(IndexError, match=rf"document {number} is out of range, .* in \[0, 2\)"):
            shard.document(number)
    with pytest.raises(TypeError, match="document is of type float, expected an integer"):
        shard.document(1.0)  # type: ignore[arg-type]
