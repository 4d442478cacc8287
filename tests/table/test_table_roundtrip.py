"""Random tables written as Parquet, Arrow IPC and CSV, compared with pyarrow."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, ipc, parquet

from windeck import Table

TYPES = {
    "float64": pa.float64(),
    "float32": pa.float32(),
    "float16": pa.float16(),
    "int64": pa.int64(),
    "int8": pa.int8(),
    "uint16": pa.uint16(),
    "uint64": pa.uint64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "category": pa.dictionary(pa.int8(), pa.string()),
}
RANGES = {"int64": (-(2**63), 2**63 - 1), "int8": (-128, 127), "uint16": (0, 65535)}
WORDS = st.sampled_from(["north", "east", "a,b", 'say "x"', "ü"])


def values(kind: str) -> st.SearchStrategy[Any]:
    """Draw values of one type, as Python objects."""
    if kind in ("string", "category"):
        return WORDS
    if kind == "bool":
        return st.booleans()
    if kind.startswith("float"):
        return st.floats(width=int(kind[5:]), allow_nan=False)  # type: ignore[arg-type]
    return st.integers(*RANGES.get(kind, (0, 2**64 - 1)))


@st.composite
def tables(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(TYPES)) -> pa.Table:
    """Draw a table of up to 40 rows, with nulls and several chunks in some columns."""
    rows = draw(st.integers(1, 40))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    columns = {}
    for place, kind in enumerate(chosen):
        one = st.one_of(st.none(), values(kind)) if draw(st.booleans()) else values(kind)
        column = draw(st.lists(one, min_size=rows, max_size=rows))
        if kind == "float16":
            column = [None if v is None else np.float16(v) for v in column]
        columns[f"c{place}"] = pa.array(column, TYPES[kind])
    table = pa.table(columns)
    cut = draw(st.integers(0, rows))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)]) if cut else table


def as_lists(table: Table) -> dict[str, list[Any]]:
    """Return the columns as Python lists: None for missing values, names for codes."""
    found = {}
    for name in table.column_names:
        column = table.column(name)
        seen = column.observed()
        if column.categories is not None:
            assert column.values.dtype == np.int32
            words: list[Any] = [
                column.categories[code] if code >= 0 else None for code in column.values
            ]
        else:
            words = column.values.tolist()
        found[name] = [word if ok else None for word, ok in zip(words, seen, strict=True)]
        assert column.missing in (None, found[name].count(None))
    return found


def expected(table: pa.Table) -> dict[str, list[Any]]:
    """Return the columns as pyarrow reads them."""
    return {
        name: [v.item() if isinstance(v, np.generic) else v for v in table.column(name).to_pylist()]
        for name in table.column_names
    }


def write(table: pa.Table, path: Path, batch: int) -> None:
    """Write a table as Parquet, Arrow IPC file or stream, or CSV, by the suffix."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=batch)
    elif path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        opener = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
        options = ipc.IpcWriteOptions(
            compression="lz4" if batch % 2 else None, unify_dictionaries=True
        )
        table = table if path.suffix == ".arrows" else table.unify_dictionaries()
        with opener(str(path), table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=batch)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_typed_files_give_back_what_was_written(suffix: str, data: st.DataObject) -> None:
    table = data.draw(tables())
    order = data.draw(st.permutations(table.column_names))
    start = data.draw(st.integers(0, table.num_rows))
    stop = data.draw(st.integers(start, table.num_rows))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data{suffix}"
        write(table, path, data.draw(st.integers(1, 20)))
        found = Table.read(path, columns=order, rows=(start, stop), categories=True)
        assert found.column_names == tuple(order)
        assert as_lists(found) == expected(table.select(order).slice(start, stop - start))
        assert Table.estimate(path, columns=order, rows=(start, stop), categories=True) == sum(
            found[name].nbytes for name in order
        )


@settings(max_examples=80, deadline=None)
@given(table=tables(("float64", "int64", "string")), batch=st.integers(1, 20))
def test_csv_gives_back_what_pyarrow_reads(table: pa.Table, batch: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        write(table, path, batch)
        options = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        model = csv.read_csv(path, convert_options=options)
        if not model.num_rows:  # a line with nothing in it is no row
            with pytest.raises(ValueError, match="has no rows"):
                Table.read(path)
            return
        kinds = [pa.float64() if pa.types.is_null(f.type) else f.type for f in model.schema]
        model = model.cast(pa.schema(list(zip(model.column_names, kinds, strict=True))))
        assert as_lists(Table.read(path, categories=True)) == expected(model)


@settings(max_examples=80, deadline=None)
@given(table=tables())
def test_arrow_data_in_memory_is_taken_as_it_is(table: pa.Table) -> None:
    assert as_lists(Table.from_arrow(table, categories=True)) == expected(table)


@settings(max_examples=60, deadline=None)
@given(table=tables(("float64", "float32")), dtype=st.sampled_from(["float32", "float64"]))
def test_rows_hold_the_same_as_columns(table: pa.Table, dtype: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.parquet"
        parquet.write_table(table, path, row_group_size=7)
        try:
            plain = Table.read(path, dtype=dtype)
        except OverflowError:
            with pytest.raises(OverflowError):
                Table.read(path, dtype=dtype, storage="rows")
            return
        rows = Table.read(path, dtype=dtype, storage="rows")
    assert rows.matrix is not None
    assert rows.matrix.flags.c_contiguous
    assert rows.matrix.ctypes.data % 64 == 0
    assert as_lists(rows) == as_lists(plain)
    assert rows.fingerprint == plain.fingerprint
