"""The index of a pandas frame: its levels are ids and time where asked for, and never lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windeck as wd

pd = pytest.importorskip("pandas")

HOURS = np.array(["2024-01-01T00", "2024-01-01T01"], "M8[us]")
INDEXES: dict[str, tuple[Any, dict[str, str]]] = {
    "site and time": (
        pd.MultiIndex.from_product([["a", "b"], HOURS], names=["site", "time"]),
        {"id_columns": "site", "timestamp_column": "time"},
    ),
    "two levels without names": (
        pd.MultiIndex.from_product([[7, 8], HOURS]),
        {"id_columns": "__index_level_0__", "timestamp_column": "__index_level_1__"},
    ),
    "integers in two levels": (
        pd.MultiIndex.from_product([[7, 8], [0, 1]]),
        {"id_columns": "__index_level_0__", "timestamp_column": "__index_level_1__"},
    ),
    "time": (
        pd.DatetimeIndex([*HOURS, *(HOURS + 7200000000)], name="at"),
        {"timestamp_column": "at"},
    ),
    "time without a name": (
        pd.DatetimeIndex([*HOURS, *(HOURS + 7200000000)]),
        {"timestamp_column": "__index_level_0__"},
    ),
    "a named integer": (pd.Index([3, 4, 5, 6], name="hour"), {"timestamp_column": "hour"}),
    "names": (pd.Index(["a", "a", "b", "b"]), {"id_columns": "__index_level_0__"}),
}


def in_arrow(frame: Any, folder: Path) -> Any:
    return pa.Table.from_pandas(frame)


def in_parquet(frame: Any, folder: Path) -> Any:
    pq.write_table(in_arrow(frame, folder), folder / "a.parquet")
    return folder / "a.parquet"


def in_feather(frame: Any, folder: Path) -> Any:
    data = in_arrow(frame, folder)
    with pa.ipc.new_file(folder / "a.arrow", data.schema) as writer:
        writer.write_table(data)
    return folder / "a.arrow"


def prepared(path: Path, **options: Any) -> wd.Table:
    wd.prepare(path, path.parent / "out", overwrite=True, **options)
    names = ("id_columns", "timestamp_column")
    given = {name: options[name] for name in names if name in options}
    return wd.Table.read(path.parent / "out", **given)


WAYS: dict[str, tuple[Callable[[Any, Path], Any], Callable[..., wd.Table]]] = {
    "frame": (lambda frame, folder: frame, wd.Table.from_arrow),
    "Arrow": (in_arrow, wd.Table.from_arrow),
    "Parquet": (in_parquet, wd.Table.read),
    "Parquet streamed": (in_parquet, lambda p, **o: wd.Table.read(p, in_memory=False, **o)),
    "Feather": (in_feather, wd.Table.read),
    "Feather mapped": (in_feather, lambda p, **o: wd.Table.read(p, in_memory=False, **o)),
    "prepare": (in_parquet, prepared),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", INDEXES)
def test_levels_are_asked_for_or_an_error(tmp_path: Path, kind: str, way: str) -> None:
    index, names = INDEXES[kind]
    frame = pd.DataFrame({"load": [1.0, 2.0, 3.0, 4.0]}, index=index)
    write, read = WAYS[way]
    data = write(frame, tmp_path)
    with pytest.raises(ValueError, match=r"has an index of pandas with .* would be lost") as caught:
        read(data)
    for name in names.values():
        assert repr(name) in str(caught.value)
    table = read(data, **names)
    assert wd.Windows(table, context_length=2)[0]["past_target"].ravel().tolist() == [1.0, 2.0]
    assert table.column_names == ("load",)
    assert (table.timestamps is not None) == ("timestamp_column" in names)
    expected = list(dict.fromkeys(index.get_level_values(0))) if "id_columns" in names else [0]
    assert list(table.series_names) == expected
    if len(names) == 2:  # One of two levels is not enough.
        with pytest.raises(ValueError, match=f"with {names['timestamp_column']!r}, which"):
            read(data, id_columns=names["id_columns"])
    assert read(data, columns="load").num_series == 1


@pytest.mark.parametrize("way", WAYS)
def test_an_index_that_numbers_the_rows_is_left_out(tmp_path: Path, way: str) -> None:
    frame = pd.DataFrame({"load": [1.0, 2.0, 3.0, 4.0]})
    write, read = WAYS[way]
    assert read(write(frame, tmp_path)).column_names == ("load",)
    selected = read(write(frame[frame["load"] > 2], tmp_path))
    assert selected.column_names == ("load",)
    assert len(selected) == 2


def test_levels_of_wide_frames() -> None:
    wide = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, index=pd.DatetimeIndex(HOURS, name="t"))
    with pytest.raises(ValueError, match="'t', which would be lost"):
        wd.Table.from_wide(wide, series="columns")
    table = wd.Table.from_wide(wide, series="columns", timestamp_column="t")
    assert table.timestamps is not None
    assert table.timestamps.tolist() == [*HOURS.tolist(), *HOURS.tolist()]
    rows = pd.DataFrame({"0": [1.0, 2.0], "1": [3.0, 4.0]}, index=pd.Index(["a", "b"], name="site"))
    with pytest.raises(ValueError, match="'site', which would be lost"):
        wd.Table.from_wide(rows)
    assert wd.Table.from_wide(rows, id_columns="site").series_names == ("a", "b")


def test_levels_of_series_of_pandas() -> None:
    levels = pd.Series([1.0, 2.0, 3.0, 4.0], index=INDEXES["site and time"][0])
    message = "has an index of several levels, which would be lost"
    for series in ([levels], {"all": levels}):
        with pytest.raises(ValueError, match=message):
            wd.Table.from_series(series)
    with pytest.raises(ValueError, match=message):
        wd.Table.from_columns({"load": levels})
    hours = pd.Series([1.0, 2.0], index=pd.Index([3, 4], name="hour"))
    with pytest.raises(ValueError, match="series 0 has an index 'hour' that has no time stamps"):
        wd.Table.from_series([hours])
    assert wd.Table.from_series([hours.reset_index(drop=True)]).num_rows == 2
    sites = levels.index.get_level_values(0)
    table = wd.Table.from_columns({"load": levels, "site": sites.to_numpy()}, id_columns="site")
    assert table.series_names == ("a", "b")
    table = wd.Table.from_columns({"load": levels}, offsets=[0, 2, 4])
    assert table.num_series == 2
