"""Columns of different number types in one key: cast where that loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from support.window_tables import mixed, table_of

__all__ = ["mixed"]  # a fixture

QUIET = settings(deadline=None, derandomize=True, database=None, max_examples=200)
NUMBERS = ("float64", "float32", "float16", "int64", "int32", "int16", "int8")
UNSIGNED = ("uint64", "uint32", "uint16", "uint8", "bool")


def windows_of(table: wd.Table, **options: Any) -> wd.Windows:
    return wd.Windows(table, context_length=2, **options)


@QUIET
@given(
    st.lists(st.sampled_from(NUMBERS + UNSIGNED), min_size=2, max_size=4),
    st.sampled_from([None, "float64", "float32", "float16"]),
)
def test_the_dtype_holds_small_values_of_every_column(kinds: list[str], asked: str | None) -> None:
    rows = {f"c{i}": np.array([i % 2, 1, 0], dtype=kind) for i, kind in enumerate(kinds)}
    table = wd.Table.from_columns(rows)
    integers = [kind for kind in kinds if not kind.startswith("float")]
    if len(integers) == len(kinds) and np.result_type(*integers).kind == "f":
        with pytest.raises(TypeError, match="give it another role"):
            windows_of(table)
        return
    found = windows_of(table, dtype=asked).gather([0, 1])["past_target"]
    expected = np.stack([column.astype(np.float64) for column in rows.values()], axis=1)
    np.testing.assert_array_equal(found[0], expected[:2])
    np.testing.assert_array_equal(found[1], expected[1:])
    if len(integers) == len(kinds):
        assert found.dtype == np.result_type(*integers)
    elif asked is not None:
        assert found.dtype == asked
    else:
        floats = [kind for kind in kinds if kind.startswith("float")]
        assert found.dtype == np.result_type(*floats)


def as_bfloat16(value: int) -> int:
    torch = pytest.importorskip("torch")
    return int(torch.tensor(value, dtype=torch.int64).to(torch.bfloat16).to(torch.float64))


EXACT = {
    "float64": lambda value: int(float(value)),
    "float32": lambda value: int(np.float32(value)),
    "bfloat16": as_bfloat16,
}


@QUIET
@given(st.sampled_from(sorted(EXACT)), st.integers(0, 2**63 - 1), st.integers(0, 62), st.booleans())
def test_an_integer_is_refused_exactly_where_the_dtype_cannot_hold_it(
    dtype: str, value: int, cut: int, negative: bool
) -> None:
    value = (value >> cut) << (cut // 2) & (2**63 - 1)
    value = -value if negative else value
    table = table_of(load=np.zeros(3), count=np.array([0, value, 1], dtype=np.int64))
    if EXACT[dtype](value) != value:
        with pytest.raises(ValueError, match=rf"'count' of past_target holds {value}, which"):
            windows_of(table, dtype=dtype)
        return
    batch = windows_of(table, dtype=dtype)
    if dtype != "bfloat16":
        assert int(batch[0]["past_target"][1, 1]) == value


@pytest.mark.parametrize("value", [65505, 65536, -70000, 2049])
def test_float16_holds_no_larger_integers(value: int) -> None:
    table = table_of(load=np.zeros(2, np.float16), count=np.array([65504, value]))
    with pytest.raises(ValueError, match=rf"holds {value}, which float16 cannot hold exactly"):
        windows_of(table)


@pytest.mark.parametrize("value", [2**64 - 1, 2**53 + 1])
def test_unsigned_integers_are_refused_where_they_are_lost(value: int) -> None:
    table = table_of(load=np.zeros(2), count=np.array([2**63, value], dtype=np.uint64))
    with pytest.raises(ValueError, match=rf"holds {value}, .* dtype={{'count': 'float64'}}"):
        windows_of(table)
    windows_of(table, dtype={"count": "float64"})  # the cure


def test_nulls_do_not_count(mixed: wd.Table) -> None:
    data = pa.table({"load": [0.5, 1.5, 2.5], "count": pa.array([1, None, 2])})
    table = wd.Table.from_arrow(data)
    assert windows_of(table).gather([1])["past_target"].tolist() == [[[1.5, 0], [2.5, 2]]]


def test_values_in_null_slots_do_not_count() -> None:
    validity = pa.py_buffer(np.packbits([1, 0, 1], bitorder="little").tobytes())
    values = pa.py_buffer(np.array([1, 2**53 + 1, 2], dtype=np.int64).tobytes())
    count = pa.Array.from_buffers(pa.int64(), 3, [validity, values])
    table = wd.Table.from_arrow(pa.table({"load": [0.5, 1.5, 2.5], "count": count}))
    assert table["count"][1] == 2**53 + 1
    assert windows_of(table).gather([1])["past_target_mask"][0, :, 1].tolist() == [False, True]


def test_scaled_integers_are_cast_without_a_check() -> None:
    table = table_of(load=np.arange(3.0), count=np.array([0, 2**53 + 1, 2]))
    scaler = wd.Scaler.fit(table)
    assert windows_of(table, scaler=scaler)[0]["past_target"].dtype == np.float64


def test_columns_follow_the_one_whose_dtype_is_asked_for() -> None:
    table = table_of(a=np.arange(3), b=np.arange(3, dtype=np.int8), c=np.arange(3.0))
    found = windows_of(table, target_columns=["a", "b"], dtype={"a": "float32"})
    assert found[0]["past_target"].dtype == np.float32
    with pytest.raises(
        TypeError, match="'c' of past_target is float64, expected float32 as column"
    ):
        windows_of(table, dtype={"a": "float32"})


def test_a_streamed_table_is_checked_where_it_is_read(tmp_path: Path) -> None:
    count = np.arange(100)
    count[70] = 2**53 + 1
    data = pa.table({"load": np.zeros(100), "count": count})
    pq.write_table(data, tmp_path / "a.parquet", row_group_size=10)
    streamed = wd.Table.read(tmp_path / "a.parquet", in_memory=False, group_bytes=200)
    windows = windows_of(streamed)
    assert windows.gather([3])["past_target"][0, :, 1].tolist() == [3, 4]
    with pytest.raises(ValueError, match="'count' of past_target holds 9007199254740993"):
        windows.gather([70])


def test_text_is_no_target_beside_floats(mixed: wd.Table) -> None:
    windows = windows_of(mixed)
    assert windows.roles.target == ("load", "count", "hour", "flag")
    assert windows.gather([1])["past_target"].tolist() == [[[1, 1, 1, 0], [2, 2, 2, 1]]]
    cast = windows_of(mixed, dtype={"kind": "float64"})
    assert cast.roles.target == ("load", "count", "hour", "kind", "flag")
    assert "kind" in windows_of(mixed, layout="columns").roles.target
