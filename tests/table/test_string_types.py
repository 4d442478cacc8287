"""Strings of every Arrow type are ids and categories in every way of reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windeck as wd

WORDS: list[str | None] = [*"aaabbbccc"]
VALUES = (pa.string(), pa.large_string(), pa.string_view())
KINDS: dict[str, Any] = {str(kind): kind for kind in VALUES}
KINDS |= {
    f"{index} codes of {kind}": pa.dictionary(index, kind)
    for index in (pa.int8(), pa.uint16(), pa.int32(), pa.int64())
    for kind in VALUES
}


def column_of(kind: Any, words: list[str | None], null_entry: bool = False) -> Any:
    """Return words in a type; a null among them is one of the entries of a dictionary."""
    if not pa.types.is_dictionary(kind):
        return pa.array(words, kind)
    entries: list[str | None] = [*sorted({word for word in words if word is not None})]
    entries += [None] if null_entry else []
    codes = [entries.index(word) if word in entries else None for word in words]
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, kind.index_type), pa.array(entries, kind.value_type)
    )


def write(path: Path, table: pa.Table) -> Path:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    return path


def table_of(kind: Any) -> pa.Table:
    columns = {"k": column_of(kind, WORDS), "x": np.arange(9.0), "time": list(range(3)) * 3}
    return pa.table(columns)


@pytest.mark.parametrize("kind", KINDS)
def test_ids(kind: str, tmp_path: Path) -> None:
    data = table_of(KINDS[kind])
    path = write(tmp_path / "a.arrow", data)
    options: dict[str, Any] = {"id_columns": "k", "timestamp_column": "time"}
    shuffled = data.to_batches()[0]
    order = [8, 0, 4, 2, 7, 5, 1, 3, 6]
    shuffled = pa.concat_tables([pa.Table.from_batches([shuffled.slice(i, 1)]) for i in order])
    mixed = write(
        tmp_path / "mixed.arrow", shuffled.unify_dictionaries() if "codes" not in kind else shuffled
    )
    wd.prepare(mixed, tmp_path / "prepared", **options)
    tables = [
        wd.Table.read(path, **options),
        wd.Table.read(path, in_memory=False, memory_budget=1e9, **options),
        wd.Table.from_arrow(data, **options),
        wd.Table.read(mixed, sort=True, **options),
        wd.Table.read(tmp_path / "prepared", **options),
    ]
    for table in tables:
        windows = wd.Windows(table, context_length=3, target_columns=["x"])
        values = windows.gather(np.arange(3))["past_target"][:, :, 0].tolist()
        assert sorted(zip(table.series_names, values, strict=True)) == [
            ("a", [0, 1, 2]),
            ("b", [3, 4, 5]),
            ("c", [6, 7, 8]),
        ]


@pytest.mark.parametrize("null_entry", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_categories(kind: str, null_entry: bool, tmp_path: Path) -> None:
    words: list[str | None] = ["b", None, "a", "b"]
    data = pa.table({"k": column_of(KINDS[kind], words, null_entry), "x": np.arange(4.0)})
    path = write(tmp_path / "a.arrow", data)
    options: dict[str, Any] = {"columns": ["k", "x"]}
    named: dict[str, Any] = {"categories": {"k": ["a", "b"]}}
    wd.prepare(path, tmp_path / "prepared", **options)
    some: dict[str, Any] = {"categories": ["k"]}
    for table in (
        wd.Table.read(path, **options, **some),
        wd.Table.read(path, **options, **named),
        wd.Table.from_arrow(data, **options, **some),
        wd.Table.from_arrow(data, **options, **named),
        wd.Table.read(tmp_path / "prepared", **options, **some),
    ):
        column: Any = table.column("k")
        found = [column.categories[code] for code in column.values.tolist()]
        seen = column.observed().tolist()
        assert [w if ok else None for w, ok in zip(found, seen, strict=True)] == words
    for way in (some, named):
        streamed: Any = wd.Table.read(path, in_memory=False, memory_budget=1e9, **options, **way)
        names = (*streamed.column("k").categories, None)
        codes = streamed.reader.column("k", slice(0, 4)).values.tolist()
        assert [names[code] for code in codes] == words


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_a_series(kind: str, tmp_path: Path) -> None:
    data = pa.table({"k": column_of(KINDS[kind], ["b", "a"]), "x": [[1.0, 2.0], [3.0]]})
    for source in (data, write(tmp_path / "a.arrow", data)):
        table = wd.Table.from_series(source, id_columns="k")
        assert list(table.series_names) == ["b", "a"]
        assert table["x"].tolist() == [1, 2, 3]


def test_runs_are_named(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["a", "b"]))
    path = write(tmp_path / "a.arrow", pa.table({"k": runs, "x": np.arange(4.0)}))
    ways: list[dict[str, Any]] = [{}, {"in_memory": False}]
    for way in ways:
        with pytest.raises(TypeError, match=r"'k' of .* is run_end_encoded.*expected strings"):
            wd.Table.read(path, id_columns="k", **way)
    with pytest.raises(TypeError, match=r"'k' of .* is run_end_encoded.*expected strings"):
        wd.prepare(path, tmp_path / "prepared", id_columns="k")
