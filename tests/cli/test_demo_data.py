"""The demo's data: the columns that are inferred, and the shapes of the synthetic load curve."""

import argparse
import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from support.internals import (
    DATE_PARTS,
    Job,
    add_parser,
    csv_arguments,
    read_table,
    run,
    timestamps,
    write_load_curve,
)
from support.internals import infer_columns as infer
from support.object_servers import Website
from support.real_data import real_data

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def save(columns: dict[str, Any], name: str = "file.parquet") -> Path:
        path = tmp_path / name
        table = pa.table(columns)
        if path.suffix == ".csv":
            csv.write_csv(table, path)
        elif path.suffix == ".parquet":
            pq.write_table(table, path)
        else:
            feather.write_feather(table, path, compression="uncompressed")
        return path

    return save


def hours(count: int) -> pa.Array:
    start = datetime.datetime(2024, 1, 1)
    return pa.array([start + datetime.timedelta(hours=n) for n in range(count)], pa.timestamp("s"))


def test_server_metrics() -> None:
    found = infer(real_data("nab.parquet"))
    assert (found.time, found.ids, found.target) == (("timestamp",), ("series",), "value")


def test_air_quality_has_a_text_column_that_is_not_an_id() -> None:
    found = infer(real_data("beijing_pm25.parquet"))
    assert (found.time, found.ids, found.target) == (("timestamp",), (), "pm25")


def test_air_quality_as_first_published_with_parts_of_dates(save: Save) -> None:
    table = pq.read_table(real_data("beijing_pm25.parquet"))
    stamps = table["timestamp"].to_numpy().astype("datetime64[s]").astype(object)
    parts = {part: [getattr(stamp, part) for stamp in stamps] for part in DATE_PARTS[:4]}
    rest = {name: table[name] for name in table.column_names if name != "timestamp"}
    rest["pm2.5"] = rest.pop("pm25")
    found = infer(save({"No": list(range(1, len(stamps) + 1)), **parts, **rest}))
    assert found.time == ("year", "month", "day", "hour")
    assert (found.ids, found.target) == ((), "pm2.5")


@pytest.mark.parametrize(
    "parts",
    [(2024, 4, 31, 0), (2023, 2, 29, 0), (2024, 13, 1, 0), (2024, 1, 1, 24), (2024, 1, 0, 0)],
)
def test_parts_of_dates_that_no_calendar_has(parts: tuple[int, ...]) -> None:
    rows = [(2024, 1, 1, 0), parts]
    table = pa.table(dict(zip(DATE_PARTS, map(list, zip(*rows, strict=True)), strict=False)))
    date = "-".join(f"{part:02}" for part in parts[:3])
    with pytest.raises(ValueError, match=rf"'year' does not read as a time: .*'{date}"):
        timestamps(table, table.column_names)


@pytest.mark.parametrize("name", ["file.parquet", "file.feather", "file.arrow", "file.csv"])
def test_formats(save: Save, name: str) -> None:
    path = save({"ds": hours(50), "y": np.arange(50) ** 1.5}, name)
    found = infer(path)
    assert (found.time, found.target) == (("ds",), "y")


def test_a_directory_and_a_glob(save: Save, tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet"):
        save({"ds": hours(5), "y": np.arange(5.0)}, name)
    for place in (tmp_path, tmp_path / "*.parquet"):
        assert infer(place).target == "y"


@pytest.mark.parametrize("name", ["{}.parquet", "{}.arrow", "{}.csv"])
def test_a_file_for_each_series(save: Save, tmp_path: Path, name: str) -> None:
    """Rows of all files are looked at, also of those after an empty one."""
    for site in ("north", "south", "west"):
        columns = {"when": hours(40), "place": [site] * 40, "y": np.arange(40) ** 1.5}
        save(columns, name.format(site))
    if "csv" not in name:
        empty = pa.table(columns).slice(0, 0)
        save(dict(zip(empty.column_names, empty.columns, strict=True)), name.format("a"))
    found = infer(tmp_path)
    assert (found.time, found.ids, found.target) == (("when",), ("place",), "y")
    job = Job(found)
    assert read_table(job).series_names == ("north", "south", "west")


def test_series_after_the_first_block_of_a_csv_file(save: Save) -> None:
    """A first block of one series alone has no time stamp twice."""
    rows = 40_000
    columns = {
        "when": pa.concat_arrays([hours(rows)] * 2),
        "place": np.repeat(["north", "south"], rows),
        "y": np.arange(2 * rows) ** 1.5,
    }
    path = save(columns, "file.csv")
    assert path.stat().st_size > 2 << 20
    assert infer(path).ids == ("place",)


def test_two_ids_are_needed_and_a_third_name_is_not(save: Save) -> None:
    shop, item, moment = (axis.ravel() for axis in np.mgrid[0:3, 0:4, 0:40])
    found = infer(
        save(
            {
                "weather": np.array(["sun", "rain"])[moment % 2],
                "item": item,
                "shop": np.array(list("abc"))[shop],
                "date": hours(40).take(pa.array(moment)),
                "sold": moment * 1.0,
            }
        )
    )
    assert set(found.ids) == {"item", "shop"}
    assert found.target == "sold"


@pytest.mark.parametrize("text", ["2024-01-01 00:00:00", "2024-01-01T00:00", "2024-01-01"])
def test_text_that_reads_as_time(save: Save, text: str) -> None:
    column = [text] * 3
    found = infer(save({"place": ["x", "x", "x"], "when": column, "load": [1.0, 2.0, 3.0]}))
    assert found.time == ("when",)


def test_whole_numbers_as_time(save: Save) -> None:
    found = infer(save({"power": [1, 5, 2], "ts": [100, 200, 300]}))
    assert (found.time, found.target) == (("ts",), "power")
    found = infer(save({"row": [3, 4, 5], "x": [1, 5, 2]}))
    assert (found.time, found.target) == ((), "x")


def test_dates_of_another_format_are_named(save: Save) -> None:
    """`01/02/2024` is not read as a time; the reason says so."""
    path = save({"date": ["01/02/2024", "01/03/2024"], "load": [1.0, 3.0]}, "a.csv")
    found = infer(path)
    assert found.time == ()
    assert "'date' has dates such as '01/02/2024', which are not ISO 8601" in found.note
    assert "rows are taken in order" in found.note
    with pytest.raises(ValueError, match=r"time: it has dates such as '01/02/2024'; pass .*%m/"):
        infer(path, time="date")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5,1\n1.5,2\n", "numbers where names were expected.*header=False"),
        ("a;b\n1;2\n", "pass delimiter=';'"),
        ("Gerät,load\n1,2\n", "is not UTF-8: pass encoding='latin-1'"),
        ("a,b\n" + "1,2\n" * 3 + "1,2,3\n", "Expected 2 columns, got 3"),
    ],
)
def test_csv_of_other_kinds(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / ("long" * 40)  # the path alone is longer than an error used to be
    folder.mkdir()
    (folder / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        infer(folder / "a.csv")


def test_a_url(save: Save, web: Website) -> None:
    path = save({"ds": hours(50), "y": np.arange(50) ** 1.5})
    web.objects["load.parquet"] = path.read_bytes()
    for url in (f"file://{path}", f"{web.url}/load.parquet"):
        found = infer(url)
        assert (found.path, found.time, found.target) == (url, ("ds",), "y")
        table = read_table(Job(found))
        assert table["y"].tolist() == (np.arange(50) ** 1.5).tolist()
    with pytest.raises(ValueError, match="no file system has the scheme nosuch"):
        infer("nosuch://bucket/a.parquet")


def test_no_time_at_all(save: Save) -> None:
    found = infer(save({"sensor": ["a", "a", "b"], "x": [1.0, 3.0, 2.0]}))
    assert (found.time, found.ids, found.target) == ((), ("sensor",), "x")


def test_several_times_are_chosen_by_name(save: Save) -> None:
    found = infer(save({"created": hours(4), "timestamp": hours(4), "v": [1.0, 2.0, 1.5, 3.0]}))
    assert found.time == ("timestamp",)


def test_times_of_day_and_durations_are_no_time_stamps(save: Save) -> None:
    clock = pa.array([datetime.time(n) for n in range(4)])
    length = pa.array([datetime.timedelta(n) for n in range(4)])
    found = infer(save({"clock": clock, "for": length, "v": [1.0, 2.0, 1.5, 3.0]}))
    assert found.time == ()


def test_numbers_kept_as_categories_can_be_ids(save: Save) -> None:
    kind = pa.array([7] * 5 + [9] * 5).dictionary_encode()
    columns = {"t": pa.concat_arrays([hours(5)] * 2), "k": kind, "y": np.arange(10.0)}
    found = infer(save(columns, "file.arrow"))
    assert found.ids == ("k",)


def test_constant_columns_are_not_forecast(save: Save) -> None:
    found = infer(save({"time": hours(3), "flat": [1.0, 1.0, 1.0], "wave": [1.0, 0.0, 1.0]}))
    assert found.target == "wave"


def test_what_is_told_is_taken(save: Save) -> None:
    path = save({"time": hours(4), "other": hours(4), "k": ["a"] * 4, "y": [1.0] * 4, "z": [2] * 4})
    found = infer(path, time="other", ids=("k",), target="z")
    assert (found.time, found.ids, found.target) == (("other",), ("k",), "z")
    assert infer(path, ids=()).ids == ()


def test_repeated_stamps_that_nothing_explains(save: Save) -> None:
    found = infer(save({"time": hours(2).take(pa.array([0, 1] * 5)), "y": np.arange(10.0) ** 2}))
    assert found.ids == ()


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"t": ["a"], "u": ["b"]}, {}, r"no column of numbers to forecast; .* t \(string\), u"),
        (
            {"load": [1.0], "t": ["a"]},
            {"target": "t"},
            "'t' of .* must hold numbers to forecast, got st",
        ),
        ({"load": [1.0], "t": ["a"]}, {"time": "t"}, "'t' does not read as a time"),
        ({"load": [1.0, 2.0], "t": [1, None]}, {"time": "t"}, "'t' has no value in row 1"),
        ({"load": pa.array([], pa.float64())}, {}, "has no rows"),
    ],
)
def test_bad_columns(
    save: Save, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    path = save(columns)
    with pytest.raises(ValueError, match=message):
        infer(path, **options)


def test_unknown_columns(save: Save) -> None:
    path = save({"load": [1.0]})
    with pytest.raises(KeyError, match=r"no column 'laod'; did you mean 'load'\?"):
        infer(path, target="laod")
    with pytest.raises(KeyError, match="no column 'xyz'; it has 'load'"):
        infer(path, time="xyz")


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"file '.*nowhere\.parquet' does not exist"):
        infer(tmp_path / "nowhere.parquet")
    with pytest.raises(FileNotFoundError, match=r"no file matches .*\*"):
        infer(tmp_path / "*.parquet")
    with pytest.raises(FileNotFoundError, match="has no data file"):
        infer(tmp_path)
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(ValueError, match=r"junk\.parquet' cannot be read as Parquet: "):
        infer(tmp_path / "junk.parquet")
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(ValueError, match="cannot be read as CSV"):
        infer(tmp_path / "note.txt")


def test_a_truncated_file_says_so(save: Save, tmp_path: Path) -> None:
    whole = save({"time": hours(1000), "y": np.random.default_rng(0).random(1000)}, "w.arrow")
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(whole.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"cut\.arrow' cannot be read as Arrow IPC: "):
        infer(cut)


Curve = Callable[..., pa.Table]


@pytest.fixture
def curve(tmp_path: Path) -> Curve:
    def curve(**options: Any) -> pa.Table:
        return pq.read_table(write_load_curve(tmp_path / "curve.parquet", **options))

    return curve


def loads(table: pa.Table, sites: int) -> np.ndarray:
    return np.asarray(table["load"].to_numpy().reshape(sites, -1, 24))


def test_shape_order_and_types(curve: Curve) -> None:
    table = curve(sites=3, days=10)
    assert table.num_rows == 3 * 10 * 24
    names = table["site"].combine_chunks().to_pylist()
    assert names == sorted(names)
    stamps = table["timestamp"].to_numpy().reshape(3, 240)
    assert (np.diff(stamps, axis=1) == np.timedelta64(3600, "s")).all()
    assert (stamps == stamps[0]).all()


def test_equal_seeds_give_equal_tables_and_other_seeds_do_not(curve: Curve) -> None:
    assert curve(sites=2, days=9, seed=5).equals(curve(sites=2, days=9, seed=5))
    assert not curve(sites=2, days=9, seed=5).equals(curve(sites=2, days=9, seed=6))


def test_days_weeks_and_years_show(curve: Curve) -> None:
    table = curve(sites=8, days=730, missing=0)
    load = loads(table, 8)
    relative = load / load.mean(axis=(1, 2), keepdims=True)
    by_hour = relative.mean(axis=(0, 1))
    assert by_hour[18] > 1.15 * by_hour[3]
    by_day = relative.mean(axis=(0, 2))
    free = table["holiday"].to_numpy().reshape(8, 730, 24)
    assert (free == free[:1, :, :1]).all()
    weekday = (np.datetime64("2021-01-01").astype(np.int64) + np.arange(730) + 3) % 7
    assert free[0, :, 0][weekday >= 5].all()
    assert 0 < free[0, :, 0][weekday < 5].mean() < 0.1
    assert by_day[~free[0, :, 0]].mean() > 1.05 * by_day[free[0, :, 0]].mean()
    assert by_day[:31].mean() > 1.05 * by_day[120:151].mean()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2])
def test_missing_is_about_the_share_asked_for(share: float, curve: Curve) -> None:
    table = curve(sites=6, days=365, missing=share)
    found = table["load"].null_count / table.num_rows
    assert math.isclose(found, share, rel_tol=0.25, abs_tol=0)
    assert table["temperature"].null_count == 0


def test_the_file_says_that_it_is_synthetic(tmp_path: Path) -> None:
    path = write_load_curve(tmp_path / "load.parquet", sites=1, days=2, seed=3)
    metadata = pq.read_schema(path).metadata
    assert metadata[b"synthetic"] == b"windeck load curve, seed 3"


def german(folder: Path, header: str = "Zeit;Ort;Last") -> Path:
    """Write hourly values of two sites as a German spreadsheet does."""
    stamps = np.datetime64("2024-01-01T00", "h") + np.arange(60)
    lines = [
        f"{stamp.item():%d.%m.%Y %H:%M};{site};{hour},5"
        for site in ("Köln", "Fürth")
        for hour, stamp in enumerate(stamps)
    ]
    path = folder / "last.csv"
    path.write_text("\n".join([header, *lines] if header else lines), encoding="latin-1")
    return path


GERMAN = ["--delimiter", ";", "--decimal", ",", "--encoding", "latin-1"]
GERMAN += ["--timestamp-format", "%d.%m.%Y %H:%M", "--time", "Zeit"]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["demo", *words])


@pytest.mark.parametrize("header", ["Zeit;Ort;Last", ""])
def test_options_of_csv_files_are_used(tmp_path: Path, header: str) -> None:
    path = german(tmp_path, header)
    words = [] if header else ["--header", "Zeit,Ort,Last"]
    options = parsed(str(path), *GERMAN, *words)
    given = csv_arguments(options)
    found = infer(path, time="Zeit", csv=given)
    assert (found.time, found.ids, found.target) == (("Zeit",), ("Ort",), "Last")
    job = Job(found, csv=given)
    table = read_table(job)
    assert table.series_names == ("Köln", "Fürth")
    assert table["Last"][:3].tolist() == [0.5, 1.5, 2.5]
    assert table.step == np.timedelta64(1, "h")


def test_options_of_csv_files_are_refused_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="expected --time COLUMN"):
        csv_arguments(parsed("a.csv", "--timestamp-format", "%d.%m.%Y"))
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(SystemExit, match="is Parquet, and `decimal` is an option of CSV"):
        run(parsed(str(tmp_path / "a.parquet"), "--decimal", ","))
    with pytest.raises(SystemExit, match=r"pass delimiter=';'.*here: --header, --delimiter"):
        run(parsed(str(german(tmp_path))))
    assert csv_arguments(parsed("a.csv", "--header", "no", "--delimiter", "\\t")) == {
        "header": False,
        "delimiter": "\t",
    }
    with pytest.raises(SystemExit):
        parsed("--help")
    assert "--timestamp-format FORMAT" in capsys.readouterr().out
