"""The demo's data: the columns that are inferred, and the shapes of the synthetic load curve."""

import datetime
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from support.object_servers import Website
from support.programs import command
from support.real_data import real_data

pytest.importorskip("torch")

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


DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")


class Inferred(NamedTuple):
    """The columns that the demo prints of a file with fewer rows than it can train on."""

    time: str
    series: str
    target: str
    error: str


@pytest.fixture
def infer(tmp_path: Path) -> Callable[..., Inferred]:
    """Run the demo on a file, and return what it prints of its columns."""

    def infer(path: object, *options: str) -> Inferred:
        code, out, err = command("demo", str(path), "--out", str(tmp_path / "out"), *options)
        assert code == 1
        lines = [re.search(rf"^  {name} +(.*)$", out, re.M) for name in Inferred._fields[:3]]
        found = ["" if line is None else line[1] for line in lines]
        assert all(found) == ("expected at least 24" in err), err
        time, series, target = found
        return Inferred(time, series, target, err.removeprefix("windeck demo: ").strip())

    return infer


def described(path: object, *options: str) -> Any:
    """Return the document of `windeck describe`, which infers the same columns of any file."""
    code, out, err = command("describe", "--json", str(path), *options)
    assert (code, err) == (0, "")
    return json.loads(out)


def roles(path: object, *options: str) -> dict[str, list[str]]:
    """Return the names of a file's columns by their roles."""
    found: dict[str, list[str]] = {}
    for column in described(path, *options)["columns"]:
        found.setdefault(column["role"], []).append(column["name"])
    return found


def loaded(path: object, *options: str) -> Any:
    """Return the table that the printed code loads."""
    names: dict[str, Any] = {}
    exec(described(path, *options)["code"], names)
    return names["table"]


Infer = Callable[..., Inferred]


@pytest.mark.filterwarnings("ignore:15 series lost every window")
def test_server_metrics() -> None:
    found = roles(real_data("nab.parquet"))
    assert (found["time"], found["id"], found["target"]) == (["timestamp"], ["series"], ["value"])


def test_air_quality_has_a_text_column_that_is_not_an_id() -> None:
    found = roles(real_data("beijing_pm25.parquet"))
    assert (found["time"], found["target"]) == (["timestamp"], ["pm25"])
    assert "id" not in found


def test_air_quality_as_first_published_with_parts_of_dates(save: Save) -> None:
    table = pq.read_table(real_data("beijing_pm25.parquet"))
    stamps = table["timestamp"].to_numpy().astype("datetime64[s]").astype(object)
    parts = {part: [getattr(stamp, part) for stamp in stamps] for part in DATE_PARTS[:4]}
    rest = {name: table[name] for name in table.column_names if name != "timestamp"}
    rest["pm2.5"] = rest.pop("pm25")
    found = roles(save({"No": list(range(1, len(stamps) + 1)), **parts, **rest}))
    assert found["part of a date"] == ["year", "month", "day", "hour"]
    assert found["target"] == ["pm2.5"]
    assert not {"id", "time"} & set(found)


@pytest.mark.parametrize(
    "parts",
    [(2024, 4, 31, 0), (2023, 2, 29, 0), (2024, 13, 1, 0), (2024, 1, 1, 24), (2024, 1, 0, 0)],
)
def test_parts_of_dates_that_no_calendar_has(
    save: Save, infer: Infer, parts: tuple[int, ...]
) -> None:
    rows = [(2024, 1, 1, 0), parts]
    times = dict(zip(DATE_PARTS, map(list, zip(*rows, strict=True)), strict=False))
    date = "-".join(f"{part:02}" for part in parts[:3])
    error = infer(save({**times, "y": [1.0, 2.5]})).error
    assert re.match(rf"column 'year' does not read as a time: .*'{date}", error)


@pytest.mark.parametrize("name", ["file.parquet", "file.feather", "file.arrow", "file.csv"])
def test_formats(save: Save, infer: Infer, name: str) -> None:
    found = infer(save({"ds": hours(20), "y": np.arange(20) ** 1.5}, name))
    assert (found.time, found.target) == ("ds", "y")


def test_a_directory_and_a_glob(save: Save, infer: Infer, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, rows in (("data/b.parquet", slice(5, 10)), ("data/a.parquet", slice(5))):
        save({"ds": hours(10)[rows], "y": np.arange(5.0)}, name)
    for place in (tmp_path / "data", tmp_path / "data" / "*.parquet"):
        assert infer(place).target == "y"


@pytest.mark.parametrize("name", ["data/{}.parquet", "data/{}.arrow", "data/{}.csv"])
def test_a_file_for_each_series(save: Save, infer: Infer, tmp_path: Path, name: str) -> None:
    """Rows of all files are looked at, also of those after an empty one."""
    (tmp_path / "data").mkdir()
    for site in ("north", "south", "west"):
        columns = {"when": hours(20), "place": [site] * 20, "y": np.arange(20) ** 1.5}
        save(columns, name.format(site))
    if "csv" not in name:
        empty = pa.table(columns).slice(0, 0)
        save(dict(zip(empty.column_names, empty.columns, strict=True)), name.format("a"))
    found = infer(tmp_path / "data")
    assert found[:3] == ("when", "3, named by place", "y")


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
    assert roles(path)["id"] == ["place"]


def test_two_ids_are_needed_and_a_third_name_is_not(save: Save, infer: Infer) -> None:
    shop, item, moment = (axis.ravel() for axis in np.mgrid[0:3, 0:4, 0:20])
    columns = {
        "weather": np.array(["sun", "rain"])[moment % 2],
        "item": item,
        "shop": np.array(list("abc"))[shop],
        "date": hours(20).take(pa.array(moment)),
        "sold": moment * 1.0,
    }
    found = infer(save(columns))
    assert found.series in ("12, named by item + shop", "12, named by shop + item")
    assert found.target == "sold"


@pytest.mark.parametrize("text", ["2024-01-0{} 00:00:00", "2024-01-0{}T00:00", "2024-01-0{}"])
def test_text_that_reads_as_time(save: Save, infer: Infer, text: str) -> None:
    column = [text.format(day) for day in (1, 2, 3)]
    found = infer(save({"place": ["x", "x", "x"], "when": column, "load": [1.0, 2.0, 3.0]}))
    assert found.time == "when"


def test_whole_numbers_as_time(save: Save, infer: Infer) -> None:
    found = infer(save({"power": [1, 5, 2], "ts": [100, 200, 300]}))
    assert (found.time, found.target) == ("ts", "power")
    found = infer(save({"row": [3, 4, 5], "x": [1, 5, 2]}))
    assert (found.time, found.target) == ("rows are taken in order", "x")


def test_dates_of_another_format_are_named(save: Save, infer: Infer) -> None:
    """`01/02/2024` is not read as a time; the reason says so."""
    path = save({"date": ["01/02/2024", "01/03/2024"], "load": [1.0, 3.0]}, "a.csv")
    code, out, _ = command("demo", str(path), "--out", str(path.parent / "out"))
    text = " ".join(out.split())
    assert code == 1
    assert "time column 'date' has dates such as '01/02/2024', which are not ISO 8601" in text
    assert "rows are taken in order" in text
    error = infer(path, "--time", "date").error
    assert re.search(r"time: it has dates such as '01/02/2024'; pass .*%m/", error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5,1\n1.5,2\n", "numbers where names were expected.*header=False"),
        ("a;b\n1;2\n", "pass delimiter=';'"),
        ("Gerät,load\n1,2\n", "is not UTF-8: pass encoding='latin-1'"),
        ("a,b\n" + "1,2\n" * 3 + "1,2,3\n", "Expected 2 columns, got 3"),
    ],
)
def test_csv_of_other_kinds(infer: Infer, tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / ("long" * 40)  # the path alone is longer than an error used to be
    folder.mkdir()
    (folder / "a.csv").write_bytes(text.encode("latin-1"))
    assert re.search(message, infer(folder / "a.csv").error)


def test_a_url(save: Save, infer: Infer, web: Website) -> None:
    path = save({"ds": hours(20), "y": np.arange(20) ** 1.5})
    web.objects["load.parquet"] = path.read_bytes()
    for url in (f"file://{path}", f"{web.url}/load.parquet"):
        found = infer(url)
        assert (found.time, found.target) == ("ds", "y")
        assert found.error.startswith(f"the longest series of {url} has 20 rows")
        assert loaded(url)["y"].tolist() == (np.arange(20) ** 1.5).tolist()
    assert "no file system has the scheme nosuch" in infer("nosuch://bucket/a.parquet").error


def test_no_time_at_all(save: Save, infer: Infer) -> None:
    found = infer(save({"sensor": ["a", "a", "b"], "x": [1.0, 3.0, 2.0]}))
    assert found[:3] == ("rows are taken in order", "2, named by sensor", "x")


def test_several_times_are_chosen_by_name(save: Save, infer: Infer) -> None:
    found = infer(save({"created": hours(4), "timestamp": hours(4), "v": [1.0, 2.0, 1.5, 3.0]}))
    assert found.time == "timestamp"


def test_times_of_day_and_durations_are_no_time_stamps(save: Save, infer: Infer) -> None:
    clock = pa.array([datetime.time(n) for n in range(4)])
    length = pa.array([datetime.timedelta(n) for n in range(4)])
    found = infer(save({"clock": clock, "for": length, "v": [1.0, 2.0, 1.5, 3.0]}))
    assert found.time == "rows are taken in order"


def test_numbers_kept_as_categories_can_be_ids(save: Save, infer: Infer) -> None:
    kind = pa.array([7] * 5 + [9] * 5).dictionary_encode()
    columns = {"t": pa.concat_arrays([hours(5)] * 2), "k": kind, "y": np.arange(10.0)}
    assert infer(save(columns, "file.arrow")).series == "2, named by k"


def test_constant_columns_are_not_forecast(save: Save, infer: Infer) -> None:
    found = infer(save({"time": hours(3), "flat": [1.0, 1.0, 1.0], "wave": [1.0, 0.0, 1.0]}))
    assert found.target == "wave"


def test_what_is_told_is_taken(save: Save, infer: Infer) -> None:
    path = save({"time": hours(4), "other": hours(4), "k": ["a"] * 4, "y": [1.0] * 4, "z": [2] * 4})
    found = infer(path, "--time", "other", "--id", "k", "--target", "z")
    assert found[:3] == ("other", "1, named by k", "z")
    assert infer(path, "--id", "").series == "1, named by nothing"


def test_each_of_three_ids_halves_the_repeats(save: Save) -> None:
    """An id may leave most of the repeated time stamps to the ids after it."""
    a, b, c, moment = (axis.ravel() for axis in np.mgrid[0:2, 0:2, 0:2, 0:10])
    columns = {
        "t": hours(10).take(pa.array(moment)),
        **{name: np.array(["x", "y"])[axis] for name, axis in (("a", a), ("b", b), ("c", c))},
        "y": np.arange(80.0) ** 2,
    }
    assert roles(save(columns))["id"] == ["a", "b", "c"]


def test_a_text_that_explains_few_of_the_repeats_is_no_id(save: Save) -> None:
    """Of 40 rows 10 have a time stamp that no row before has, and with the text 13: too few."""
    columns = {
        "t": hours(10).take(pa.array(np.arange(40) // 4)),
        "state": np.where(np.arange(40) % 16 == 0, "off", "on"),
        "y": np.arange(40.0) ** 2,
    }
    assert "id" not in roles(save(columns))


def test_repeated_stamps_that_nothing_explains(save: Save) -> None:
    found = roles(save({"time": hours(2).take(pa.array([0, 1] * 5)), "y": np.arange(10.0) ** 2}))
    assert "id" not in found


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"t": ["a"], "u": ["b"]}, "", r"no column of numbers to forecast; .* t \(string\), u"),
        (
            {"load": [1.0], "t": ["a"]},
            "--target t",
            "'t' of .* must hold numbers to forecast, got st",
        ),
        ({"load": [1.0], "t": ["a"]}, "--time t", "'t' does not read as a time"),
        ({"load": [1.0, 2.0], "t": [1, None]}, "--time t", "'t' has no value in row 1"),
        ({"load": pa.array([], pa.float64())}, "", "has no rows"),
    ],
)
def test_bad_columns(
    save: Save, infer: Infer, columns: dict[str, Any], options: str, message: str
) -> None:
    assert re.search(message, infer(save(columns), *options.split()).error)


def test_unknown_columns(save: Save, infer: Infer) -> None:
    path = save({"load": [1.0]})
    assert "no column 'laod'; did you mean 'load'?" in infer(path, "--target", "laod").error
    assert "no column 'xyz'; it has 'load'" in infer(path, "--time", "xyz").error


def test_bad_files(infer: Infer, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    assert re.search(
        r"file '.*nowhere\.parquet' does not exist", infer(folder / "nowhere.parquet").error
    )
    assert re.search(r"no file matches .*\*", infer(folder / "*.parquet").error)
    assert "has no data file" in infer(folder).error
    (folder / "junk.parquet").write_bytes(b"PAR1 but not really")
    error = infer(folder / "junk.parquet").error
    assert re.search(r"junk\.parquet' cannot be read as Parquet: ", error)
    (folder / "note.txt").write_text("hello")
    assert "cannot be read as CSV" in infer(folder / "note.txt").error


def test_a_truncated_file_says_so(save: Save, infer: Infer, tmp_path: Path) -> None:
    whole = save({"time": hours(1000), "y": np.random.default_rng(0).random(1000)}, "w.arrow")
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(whole.read_bytes()[:-500])
    assert re.search(r"cut\.arrow' cannot be read as Arrow IPC: ", infer(cut).error)


#: Sites and days of the load curve.
SITES, DAYS = 8, 730


@pytest.fixture
def curve(demo_folder: Path) -> pa.Table:
    """The load curve that the demo writes."""
    return pq.read_table(demo_folder / "out" / "load-curve.parquet")


def test_shape_order_and_types(curve: pa.Table) -> None:
    assert curve.num_rows == SITES * DAYS * 24
    names = curve["site"].combine_chunks().to_pylist()
    assert names == sorted(names)
    assert len(set(names)) == SITES
    stamps = curve["timestamp"].to_numpy().reshape(SITES, -1)
    assert (np.diff(stamps, axis=1) == np.timedelta64(3600, "s")).all()
    assert (stamps == stamps[0]).all()


def test_another_seed_gives_another_curve(curve: pa.Table, tmp_path: Path) -> None:
    """Files of equal seeds are compared in another test, with all files of the demo."""
    code, _, _ = command("demo", "--files-only", "--seed", "6", "--out", str(tmp_path / "six"))
    other = pq.read_table(tmp_path / "six" / "load-curve.parquet")
    assert code == 0
    assert other.schema == curve.schema
    assert not other.equals(curve)
    for seed, table in ((0, curve), (6, other)):
        assert table.schema.metadata[b"synthetic"] == b"windeck load curve, seed %d" % seed


def test_days_weeks_and_years_show(curve: pa.Table) -> None:
    load = curve["load"].to_numpy().reshape(SITES, DAYS, 24)
    relative = load / np.nanmean(load, axis=(1, 2), keepdims=True)
    by_hour = np.nanmean(relative, axis=(0, 1))
    assert by_hour[18] > 1.15 * by_hour[3]
    by_day = np.nanmean(relative, axis=(0, 2))
    free = curve["holiday"].to_numpy().reshape(SITES, DAYS, 24)
    assert (free == free[:1, :, :1]).all()
    weekday = (np.datetime64("2021-01-01").astype(np.int64) + np.arange(DAYS) + 3) % 7
    assert free[0, :, 0][weekday >= 5].all()
    assert 0 < free[0, :, 0][weekday < 5].mean() < 0.1
    assert by_day[~free[0, :, 0]].mean() > 1.05 * by_day[free[0, :, 0]].mean()
    assert by_day[:31].mean() > 1.05 * by_day[120:151].mean()


def test_about_one_value_in_a_hundred_is_missing(curve: pa.Table) -> None:
    assert math.isclose(curve["load"].null_count / curve.num_rows, 0.01, rel_tol=0.25)
    assert curve["temperature"].null_count == 0


def german(folder: Path, header: str = "Zeit;Ort;Last") -> Path:
    """Write hourly values of two sites as a German spreadsheet does."""
    stamps = np.datetime64("2024-01-01T00", "h") + np.arange(20)
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


@pytest.mark.parametrize("header", ["Zeit;Ort;Last", ""])
def test_options_of_csv_files_are_used(tmp_path: Path, infer: Infer, header: str) -> None:
    path = german(tmp_path, header)
    words = [*GERMAN, *([] if header else ["--header", "Zeit,Ort,Last"])]
    assert infer(path, *words)[:3] == ("Zeit", "2, named by Ort", "Last")
    table = loaded(path, *words)
    assert table.series_names == ("Köln", "Fürth")
    assert table["Last"][:3].tolist() == [0.5, 1.5, 2.5]
    assert table.step == np.timedelta64(1, "h")


def test_options_of_csv_files_are_refused_elsewhere(tmp_path: Path, infer: Infer) -> None:
    error = infer("a.csv", "--timestamp-format", "%d.%m.%Y").error
    assert "expected --time COLUMN" in error
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    error = infer(tmp_path / "a.parquet", "--decimal", ",").error
    assert "is Parquet, and `decimal` is an option of CSV" in error
    error = infer(german(tmp_path)).error
    assert re.search(r"pass delimiter=';'.*here: --header, --delimiter", error)
    (tmp_path / "bare.csv").write_text("1\t2.5\n2\t0.5\n")
    bare = loaded(tmp_path / "bare.csv", "--header", "no", "--delimiter", "\\t")
    assert [bare[name].tolist() for name in bare.columns] == [[1, 2], [2.5, 0.5]]
    code, out, _ = command("demo", "--help")
    assert code == 0
    assert "--timestamp-format FORMAT" in out
