"""List columns of every Arrow type become int64 ids; what would lose data is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("inner", INTEGERS)
@pytest.mark.parametrize("outer", ["list_", "large_list", "list_view"])
def test_every_integer_becomes_int64(inner: str, outer: str) -> None:
    kind = getattr(pa, inner)()
    info = np.iinfo(inner)
    largest = min(int(info.max), 2**63 - 1)
    rows = [[int(info.min), largest], None, [], [7]]
    data = pa.table({"seen": pa.array(rows, getattr(pa, outer)(kind))})
    batch = wd.JaggedTable.from_arrow(data).gather([3, 0, 1, 2])
    assert batch["seen"].dtype == np.int64
    assert batch["seen"].tolist() == [7, int(info.min), largest]
    assert batch["seen_offsets"].tolist() == [0, 1, 3, 3, 3]


@pytest.mark.parametrize("inner", ["float16", "float32", "float64"])
def test_floats_keep_their_dtype(inner: str) -> None:
    values = pa.array(np.array([0.5, 0.25], inner))
    data = pa.table({"share": pa.ListArray.from_arrays([0, 2, 2], values)})
    found = wd.JaggedTable.from_arrow(data).gather([1, 0])["share"]
    assert found.dtype == np.dtype(inner)
    assert found.tolist() == [0.5, 0.25]


def test_slices_fixed_sizes_and_hidden_values() -> None:
    # A null list may hide values in Arrow; a slice has offsets that do not begin with 0.
    offsets, values = pa.array([0, 2, 4, 5], pa.int32()), pa.array([1, 2, 3, 4, 5])
    mask = pa.array([False, True, False])
    hidden = pa.ListArray.from_arrays(offsets, values, mask=mask)
    table = wd.JaggedTable.from_arrow(pa.table({"seen": hidden}))
    assert table.gather([0, 1, 2])["seen"].tolist() == [1, 2, 5]
    sliced = wd.JaggedTable.from_arrow(pa.table({"seen": hidden}).slice(1))
    assert sliced.gather([0, 1])["seen"].tolist() == [5]
    fixed = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2))
    table = wd.JaggedTable.from_arrow(pa.table({"seen": fixed}))
    assert table.gather([2, 1, 0])["seen_offsets"].tolist() == [0, 2, 2, 4]
    assert table.gather([2, 1, 0])["seen"].tolist() == [3, 4, 1, 2]
    coded = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1]), pa.array([50, 60]))
    lists = pa.ListArray.from_arrays([0, 1, 3], coded)
    table = wd.JaggedTable.from_arrow(pa.table({"seen": lists}))
    assert table.gather([0, 1])["seen"].tolist() == [60, 50, 60]


def test_widths_may_differ_between_files_and_lists_may_all_be_empty(tmp_path: Path) -> None:
    kinds = (pa.list_(pa.uint32()), pa.list_(pa.int32()), pa.list_(pa.null()))
    rows: list[Any] = [[[2**32 - 1]], [[-1, 5]], [[]]]
    for part, (kind, given) in enumerate(zip(kinds, rows, strict=True)):
        data = pa.table({"seen": pa.array(given, kind)})
        parquet.write_table(data, tmp_path / f"part{part}.parquet")
    batch = wd.JaggedTable.read(tmp_path).gather([0, 1, 2])
    assert batch["seen"].tolist() == [2**32 - 1, -1, 5]
    assert batch["seen_offsets"].tolist() == [0, 1, 3, 3]


def read(data: dict[str, Any], **options: Any) -> wd.JaggedTable:
    return wd.JaggedTable.from_arrow(pa.table(data), **options)


def test_ids_beyond_int64_are_an_error() -> None:
    seen = pa.array([[1], [], [5, 2**63]], pa.list_(pa.uint64()))
    with pytest.raises(OverflowError, match=r"'seen' of the data has the id 9223372036854775808 in"
                       r" row 2, which exceeds int64"):  # fmt: skip
        read({"seen": seen})


def test_nulls_inside_of_lists_are_an_error() -> None:
    with pytest.raises(ValueError, match="a null inside of the list of row 2"):
        read({"seen": [[1], [], [5, None]]})


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ([["a"]], "lists of string; expected integers or floats: hash other ids to int64"),
        ([[True]], "lists of bool; expected integers or floats"),
        ([[[1]]], r"lists of list<item: int64>; expected integers or floats"),
    ],
)
def test_lists_of_others_are_an_error(column: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        read({"seen": column})


def test_nulls_of_scalars() -> None:
    columns = {"age": [3, None], "height": [None, 1.5]}
    with pytest.raises(ValueError, match=r"'age' is null in row 1 and int64 has no missing value; "
                       r"expected a value for it, fill=\{'age': 0\}"):  # fmt: skip
        read(columns)
    batch = read(columns, fill={"age": -1}).gather([0, 1])
    assert batch["age"].tolist() == [3, -1]
    assert np.isnan(batch["height"][0])
    full = read(columns, fill={"age": -1, "height": 0.5}).gather([0, 1])
    assert full["height"].tolist() == [0.5, 1.5]
    with pytest.raises(ValueError, match=r"fill\['age'\] must be a int64, got 0.5"):
        read(columns, fill={"age": 0.5})


def test_weights_have_the_lengths_of_their_lists() -> None:
    columns = {"seen": [[1, 2], [3]], "share": [[0.5], [0.5, 0.5]]}
    with pytest.raises(ValueError, match="row 0 has 2 values in 'seen' and 1 in its weights"):
        read(columns, weights={"seen": "share"})
    with pytest.raises(TypeError, match="weights 'liked' are lists of integers; expected floats"):
        read({**columns, "liked": [[1, 2], [3]]}, lists="seen", columns=[],
             weights={"seen": "liked"})  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"lists": ["sen"]}, KeyError, "no column 'sen'; did you mean 'seen'"),
        ({"columns": ["seen"]}, TypeError, "expected it in lists="),
        (
            {"lists": ["age"], "columns": []},
            TypeError,
            "'age' of the data is int64; expected a list",
        ),
        ({"columns": ["name"]}, TypeError, "'name' of the data is string; expected numbers"),
        ({"lists": ["seen"], "columns": ["seen"]}, ValueError, "must have one use"),
        ({"weights": {"age": "share"}}, ValueError, "`weights` must name lists, got 'age'"),
        ({"fill": {"seen": 0}}, ValueError, "`fill` must name scalar columns, got 'seen'"),
        ({"fill": 0}, TypeError, "`fill` must be a mapping by column, got a int"),
        ({"lists": [], "columns": []}, ValueError, "no column to read"),
    ],
)
def test_wrong_options_are_named(options: Any, error: type[Exception], told: str) -> None:
    columns = {"seen": [[1]], "share": [[0.5]], "age": [3], "name": ["x"]}
    with pytest.raises(error, match=told):
        read(columns, **options)


def test_damaged_and_other_files_are_named(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"seen": [[1]], "age": [1]}), tmp_path / "part0.parquet")
    parquet.write_table(pa.table({"seen": [[1]], "sex": [1]}), tmp_path / "part1.parquet")
    with pytest.raises(ValueError, match=r"part1.parquet' has no column 'age'"):
        wd.JaggedTable.read(tmp_path)
    with pytest.raises(ValueError, match=r"part1.parquet' has 0 columns named 'age'|no column"):
        wd.JaggedTable.read(tmp_path, lists="seen", columns="age")
    parquet.write_table(pa.table({"seen": [[0.5]], "age": [1]}), tmp_path / "part1.parquet")
    with pytest.raises(TypeError, match=r"part1.*lists of integers and lists of floats"):
        wd.JaggedTable.read(tmp_path)
    path = tmp_path / "part0.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"part0.parquet' cannot be read as Parquet"):
        wd.JaggedTable.read(path)
    parquet.write_table(pa.table({"seen": [[1]]}).slice(1), path)
    with pytest.raises(ValueError, match="has no rows"):
        wd.JaggedTable.read(path)
    (tmp_path / "x.csv").write_text("seen,age\n1,2\n")
    with pytest.raises(TypeError, match=r"'seen' of .*x.csv' is int64; expected a list"):
        wd.JaggedTable.read(tmp_path / "x.csv", lists="seen")


def test_lists_of_floats_that_are_all_empty_are_floats() -> None:
    kind = pa.list_(pa.float32())
    data = pa.table({"a": pa.array([[], []], kind), "b": pa.array([[0.25], []], kind)})
    batch = wd.JaggedTable.from_arrow(data, layout="keyed").gather([0, 1])
    assert batch["values"].dtype == np.float32
    assert batch["lengths"].tolist() == [0, 0, 1, 0]
    table = wd.JaggedTable.from_arrow(data, dtype="float64")
    assert table.gather([0])["a"].dtype == np.float64


def test_one_column_of_weights_for_two_lists() -> None:
    data = pa.table({"a": [[1], [2, 3]], "b": [[4], [5, 6]], "w": [[0.5], [1.5, 2.5]]})
    table = wd.JaggedTable.from_arrow(data, weights={"a": "w", "b": "w"})
    batch = table.gather([1])
    assert batch["a_weights"].tolist() == batch["b_weights"].tolist() == [1.5, 2.5]
