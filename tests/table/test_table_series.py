"""Series from ids and offsets, sorting by time, and reports on the order of rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.internals import plant
from windeck import Table


def series_table(ids: Any, times: Any = None, **options: Any) -> Table:
    """Return a table whose values are its row numbers."""
    rows = np.arange(len(ids), dtype=np.float64)
    columns: dict[str, Any] = {"row": rows, "id": np.asarray(list(ids))}
    if times is not None:
        columns["time"] = np.asarray(times)
        options["timestamp_column"] = "time"
    return Table.from_columns(columns, id_columns="id", **options)


class TestIds:
    def test_strings_and_integers(self) -> None:
        table = series_table(["b", "b", "a", "c", "c"])
        assert table.series_names == ("b", "a", "c")
        assert table.offsets.tolist() == [0, 2, 3, 5]
        assert table.column_names == ("row",)
        assert series_table([7, 7, -1]).series_names == (7, -1)

    def test_several_id_columns(self) -> None:
        data = pa.table(
            {"site": ["x", "x", "x", "y"], "unit": [1, 1, 2, 1], "load": [0.0, 1.0, 2.0, 3.0]}
        )
        table = Table.from_arrow(data, id_columns=["site", "unit"])
        assert table.series_names == (("x", 1), ("x", 2), ("y", 1))
        assert table.offsets.tolist() == [0, 2, 3, 4]
        assert table.column_names == ("load",)

    def test_scattered_series_are_refused(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"series 'a' is not contiguous: it has rows \[1, 3\) and \[4, 5\) .* sort=True",
        ):
            series_table(["b", "a", "a", "c", "a", "c"])

    def test_sort_brings_scattered_series_together(self) -> None:
        table = series_table(["b", "a", "a", "c", "a", "c"], sort=True)
        assert table.series_names == ("b", "a", "c")
        assert table["row"].tolist() == [0, 1, 2, 4, 3, 5]
        assert table.report.regrouped
        assert "rows grouped by series" in table.explain()

    def test_null_ids_are_refused(self) -> None:
        data = pa.table({"id": ["a", None], "load": [0.0, 1.0]})
        with pytest.raises(ValueError, match="id column 'id' is null in row 1; expected an id"):
            Table.from_arrow(data, id_columns="id")

    def test_other_types_are_refused(self) -> None:
        with pytest.raises(
            TypeError, match="id column 'id' has dtype float64; expected strings or"
        ):
            series_table([0.5, 1.5])
        with pytest.raises(TypeError, match="id column 'id' of the data is double; expected"):
            Table.from_arrow(pa.table({"id": [0.5], "load": [1.0]}), id_columns="id")
        with pytest.raises(TypeError, match="id column 'id' has objects"):
            series_table(np.array([object()]))

    @settings(max_examples=100, deadline=None)
    @given(
        ids=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("xyz")), min_size=1, max_size=30),
        times=st.lists(st.integers(0, 5), min_size=30, max_size=30),
    )
    def test_sorting_equals_a_stable_sort_of_python(
        self, ids: list[tuple[int, str]], times: list[int]
    ) -> None:
        rows = range(len(ids))
        first = {key: ids.index(key) for key in ids}
        order = sorted(rows, key=lambda row: (first[ids[row]], times[row]))
        for storage in ("columns", "rows"):
            table = Table.from_arrow(
                pa.table(
                    {
                        "a": [key[0] for key in ids],
                        "b": [key[1] for key in ids],
                        "time": times[: len(ids)],
                        "row": list(rows),
                        "odd": [None if row % 3 else row for row in rows],
                    }
                ),
                id_columns=["a", "b"],
                timestamp_column="time",
                sort=True,
                storage=storage,
            )
            assert table["row"].tolist() == order
            assert table.column("odd").observed().tolist() == [row % 3 == 0 for row in order]
            assert table.series_names == tuple(sorted(first, key=lambda key: first[key]))
            assert table.timestamps is not None
            assert table.timestamps.tolist() == [times[row] for row in order]


class TestOffsets:
    @pytest.mark.parametrize(
        ("offsets", "message"),
        [
            ([0, 3, 2, 4], r"`offsets` must not decrease, got 2 at index 2 after 3"),
            ([0, 2, 5], r"`offsets` must ascend from 0 to 4, .* got 0 to 5"),
            ([1, 4], r"`offsets` must ascend from 0 to 4, .* got 1 to 4"),
            ([0.0, 4.0], r"`offsets` must be integers .*, got dtype float64"),
            ([[0, 4]], r"shape \(1, 2\)"),
            (np.array([0, 2**63 + 5, 4], dtype=np.uint64), "must ascend from 0 to 4"),
        ],
    )
    def test_bad_ones_are_refused(self, offsets: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Table.from_columns({"load": np.zeros(4)}, offsets=offsets)

    def test_names(self) -> None:
        data = {"load": np.zeros(4)}
        table = Table.from_columns(data, offsets=[0, 4, 4], series_names=["a", "b"])
        assert table.series_names == ("a", "b")
        names: Any = np.array(["a", "b"])
        assert (
            Table.from_columns(data, offsets=[0, 4, 4], series_names=names).series_names[1] == "b"
        )
        assert Table.from_columns(data, offsets=[0, 4, 4]).series_names == (0, 1)
        with pytest.raises(
            ValueError, match="`series_names` must have 2 names, one for each series, got 1"
        ):
            Table.from_columns(data, offsets=[0, 4, 4], series_names=["a"])
        twice = "has 'a' 2 times, expected different names"
        with pytest.raises(ValueError, match=twice):
            Table.from_columns(data, offsets=[0, 4, 4], series_names=["a", "a"])
        with pytest.raises(ValueError, match=twice):
            Table.from_series([[1.0], [2.0]], series_names=["a", "a"])
        with pytest.raises(ValueError, match="must be None with `id_columns`"):
            series_table([0, 1], offsets=[0, 2])

    def test_callers_offsets_stay_theirs(self) -> None:
        offsets = np.array([0, 4])
        table = Table.from_columns({"load": np.zeros(4)}, offsets=offsets)
        offsets[1] = 7
        assert table.offsets.tolist() == [0, 4]
        assert not table.offsets.flags.writeable


class TestTime:
    def test_unsorted_series_are_sorted_and_named(self) -> None:
        table = series_table("aaabbb", [0, 1, 2, 5, 3, 4])
        assert table["row"].tolist() == [0, 1, 2, 4, 5, 3]
        assert table.report.sorted_series == (1,)
        assert table.report.backward.tolist() == [0, 1]
        assert table.explain().endswith("1 series sorted by time (1 backward step)")

    def test_sorting_leaves_the_callers_array_alone(self) -> None:
        load, time = np.arange(3.0), np.array([2, 1, 0])
        table = Table.from_columns({"load": load, "time": time}, timestamp_column="time")
        assert table["load"].tolist() == [2, 1, 0]
        assert load.tolist() == [0, 1, 2]
        assert time.tolist() == [2, 1, 0]
        matrix = np.arange(6.0).reshape(3, 2)
        table = Table.from_rows(matrix, ["a", "b"], timestamps=np.array([1, 2, 0]))
        assert table["b"].tolist() == [5, 1, 3]
        assert table.storage == "rows"
        assert table.matrix is not None
        assert table.matrix.tolist() == [[4, 5], [0, 1], [2, 3]]
        assert np.shares_memory(table["b"], table.matrix)
        assert matrix[0].tolist() == [0, 1]

    def test_duplicates_and_breaks(self) -> None:
        table = series_table("aaaaaabbb", [0, 1, 1, 2, 9, 10, 0, 5, 10])
        assert table.report.duplicates.tolist() == [1, 0]
        assert table.report.breaks.tolist() == [1, 0]
        assert table.report.steps.tolist() == [1, 5]
        assert table.report.irregular.tolist() == [2, 0]
        assert table.step == 1
        said = table.explain()
        assert "1 duplicate stamp in 1 series" in said
        assert "1 break in 1 series (steps larger than the usual one)" in said

    def test_sorting_may_bring_more_duplicates_together(self) -> None:
        report = series_table("aaaa", [0, 1, 0, 1]).report
        assert report.duplicates.tolist() == [0]
        assert report.duplicates_sorted.tolist() == [2]

    def test_step_keeps_its_unit(self) -> None:
        days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[D]")
        table = Table.from_columns({"x": np.zeros(3), "t": days}, timestamp_column="t")
        assert table.step == np.timedelta64(1, "D")
        assert table.timestamps is not None
        assert np.shares_memory(table.timestamps, days)
        assert "usual step 1 day" in table.explain()
        assert series_table("ab", [1, 2]).step is None
        assert Table.from_columns({"x": np.zeros(3)}).step is None

    def test_dates_and_units_of_files(self) -> None:
        for kind, dtype in (
            (pa.date32(), "datetime64[D]"),
            (pa.date64(), "datetime64[ms]"),
            (pa.timestamp("us", "Europe/Berlin"), "datetime64[us]"),
            (pa.int32(), "int64"),
        ):
            times = pa.array([86_400_000 * day for day in range(4)], pa.int64())
            small = pa.array(range(4), pa.int32())
            data = pa.table(
                {
                    "t": (small if kind in (pa.date32(), pa.int32()) else times).cast(kind),
                    "x": [1, 2, 3, 4],
                }
            )
            table = Table.from_arrow(data, timestamp_column="t")
            assert table.timestamps is not None
            assert table.timestamps.dtype == np.dtype(dtype)
            assert table.report.clean

    def test_missing_stamps_are_refused(self) -> None:
        data = pa.table({"t": pa.array([1, None], pa.timestamp("s")), "x": [1, 2]})
        with pytest.raises(ValueError, match="timestamp column 't' is missing in row 1"):
            Table.from_arrow(data, timestamp_column="t")
        with pytest.raises(ValueError, match="timestamp column 'time' is missing in row 1"):
            series_table("aa", np.array([0, "NaT"], dtype="datetime64[s]"))

    @pytest.mark.parametrize("times", [np.zeros(2), np.zeros(2, np.uint64), np.zeros(2, bool)])
    def test_other_types_are_refused(self, times: Any) -> None:
        with pytest.raises(
            TypeError, match=r"timestamp column 'time' has dtype .*; expected dateti"
        ):
            series_table("aa", times)
        with pytest.raises(
            TypeError, match=r"timestamp column 't' of the data is .*; expected times"
        ):
            Table.from_arrow(pa.table({"t": times, "x": [1, 2]}), timestamp_column="t")

    @settings(max_examples=100, deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
        data=st.data(),
    )
    def test_report_equals_a_count_in_python(self, lengths: list[int], data: st.DataObject) -> None:
        series = [
            data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)) for size in lengths
        ]
        ids = np.repeat(np.arange(len(lengths)), lengths)
        report = series_table(ids, np.concatenate(series)).report
        for number, stamps in enumerate(series):
            stored, steps = np.diff(stamps), np.diff(sorted(stamps))
            positive = [step for step in steps if step > 0]
            usual = max(sorted(set(positive)), key=positive.count, default=0)
            assert report.backward[number] == sum(stored < 0)
            assert report.duplicates[number] == sum(stored == 0)
            assert report.duplicates_sorted[number] == sum(steps == 0)
            assert report.steps[number] == usual
            assert report.irregular[number] == sum(steps != usual)
            assert report.breaks[number] == (sum(steps > usual) if usual else 0)
            assert (number in report.sorted_series) == bool((stored < 0).any())


def test_blocks_of_pairs_meet_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 9, size=200)
    times = np.concatenate([np.sort(rng.integers(0, 30, size=size)) for size in lengths])
    ids = np.repeat(np.arange(200), lengths)
    whole = series_table(ids, times).report
    plant(monkeypatch, "timestamps.ROWS_AT_A_TIME", 5)
    parts = series_table(ids, times).report
    for name in ("backward", "duplicates", "irregular", "breaks", "steps"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


class TestMatchSeries:
    def test_places_are_those_of_the_names(self) -> None:
        known = ["b", "a", "c", "d"]
        for names in (["a", "b"], ["d", "c", "b", "a"], ["c"]):
            table = series_table(names)
            assert table.match_series(known).tolist() == [known.index(name) for name in names]
            assert (
                table.match_series(np.array(known)).tolist() == table.match_series(known).tolist()
            )
        table = series_table(["a", "x", "b"])
        assert table.match_series(known, unknown=-1).tolist() == [1, -1, 0]
        assert table.match_series(known, unknown=len(known)).tolist() == [1, 4, 0]
        with pytest.raises(
            KeyError, match=r"series 'x' is not among the 4 `names` \(1 such series"
        ):
            table.match_series(known)
        with pytest.raises(ValueError, match="`names` has 'a' more than once"):
            table.match_series(["a", "b", "a"])

    def test_names_come_back_from_json(self) -> None:
        columns = {"x": np.arange(3.0), "site": np.array(["a", "a", "b"]), "meter": np.arange(3)}
        for ids in (["site", "meter"], ["meter", "site"]):
            table = Table.from_columns(columns, id_columns=ids)
            known = json.loads(json.dumps(table.series_names[::-1]))
            assert table.match_series(known).tolist() == [2, 1, 0]
        assert Table.from_columns({"x": np.arange(3.0)}).match_series([1, 0]).tolist() == [1]
