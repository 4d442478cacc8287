"""What `infer` takes for time, ids and target, and what it says about it."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from windeck.tools import peek
from windeck.tools.infer import describe_step, infer

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
HOUR = np.timedelta64(1, "h")

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


def real(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name} is not beside this checkout")
    return path


def test_server_metrics() -> None:
    found = infer(real("nab.parquet"))
    assert (found.time, found.ids, found.target) == (("timestamp",), ("series",), "value")
    assert found.step == np.timedelta64(5, "m")
    assert found.num_rows == 365_558
    assert found.why["ids"] == "67% of the time stamps repeat; it tells them apart"


def test_air_quality_has_a_text_column_that_is_not_an_id() -> None:
    found = infer(real("beijing_pm25.parquet"))
    assert (found.time, found.ids, found.target) == (("timestamp",), (), "pm25")
    assert found.step == HOUR
    assert found.why["target"] == "by its name, among 7 columns of numbers"


def test_air_quality_as_first_published_with_parts_of_dates(save: Save) -> None:
    table = pq.read_table(real("beijing_pm25.parquet"))
    stamps = table["timestamp"].to_numpy().astype("datetime64[s]").astype(object)
    parts = {part: [getattr(stamp, part) for stamp in stamps] for part in peek.DATE_PARTS[:4]}
    rest = {name: table[name] for name in table.column_names if name != "timestamp"}
    rest["pm2.5"] = rest.pop("pm25")
    found = infer(save({"No": list(range(1, len(stamps) + 1)), **parts, **rest}))
    assert found.time == ("year", "month", "day", "hour")
    assert (found.ids, found.target, found.step) == ((), "pm2.5", HOUR)
    assert found.why["time"] == "parts of a date, put together"


@pytest.mark.parametrize("name", ["file.parquet", "file.feather", "file.arrow", "file.csv"])
def test_formats(save: Save, name: str) -> None:
    path = save({"ds": hours(50), "y": np.arange(50) ** 1.5}, name)
    found = infer(path)
    assert (found.time, found.target, found.step, found.num_rows) == (("ds",), "y", HOUR, 50)


def test_a_directory_and_a_glob(save: Save, tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet"):
        save({"ds": hours(5), "y": np.arange(5.0)}, name)
    assert infer(tmp_path).num_rows == 10
    assert infer(tmp_path / "*.parquet").num_rows == 10


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
    assert found.why["time"] == "text that reads as time stamps"


def test_whole_numbers_as_time(save: Save) -> None:
    found = infer(save({"power": [1, 5, 2], "ts": [100, 200, 300]}))
    assert (found.time, found.target, found.step) == (("ts",), "power", 100)
    found = infer(save({"row": [3, 4, 5], "power": [1, 5, 2]}))
    assert (found.time, found.target, found.step) == (("row",), "power", 1)


def test_no_time_at_all(save: Save) -> None:
    found = infer(save({"sensor": ["a", "a", "b"], "x": [1.0, 3.0, 2.0]}))
    assert (found.time, found.ids, found.target, found.step) == ((), ("sensor",), "x", None)
    assert found.why["time"] == "no column of times, so rows are taken in order"


def test_several_times_are_chosen_by_name(save: Save) -> None:
    found = infer(save({"created": hours(4), "timestamp": hours(4), "v": [1.0, 2.0, 1.5, 3.0]}))
    assert found.time == ("timestamp",)
    assert found.why["time"] == "time stamps, as created is; first choice by name"


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
    assert set(found.why.values()) == {"as told"}
    assert infer(path, ids=()).ids == ()


def test_repeated_stamps_that_nothing_explains(save: Save) -> None:
    found = infer(save({"time": hours(2).take(pa.array([0, 1] * 5)), "y": np.arange(10.0) ** 2}))
    assert found.ids == ()
    assert found.why["ids"] == "80% of the time stamps repeat, and no column tells the rows apart"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"t": ["a"], "u": ["b"]}, {}, r"no column of numbers to forecast; .* t \(string\), u"),
        ({"load": [1.0]}, {"target": "laod"}, r"no column 'laod'; did you mean 'load'\?"),
        ({"load": [1.0]}, {"time": "xyz"}, "no column 'xyz'; it has load"),
        ({"load": [1.0], "t": ["a"]}, {"target": "t"}, "'t' of .* holds string, which cannot"),
        ({"load": [1.0], "t": ["a"]}, {"time": "t"}, "'t' does not read as a time"),
        ({"load": [1.0, 2.0], "t": [1, None]}, {"time": "t"}, "'t' has no value in row 1"),
        ({"load": pa.array([], pa.float64())}, {}, "has no rows"),
    ],
)
def test_bad_columns(
    save: Save, columns: dict[str, Any], options: dict[str, str], message: str
) -> None:
    path = save(columns)
    with pytest.raises(ValueError, match=message):
        infer(path, **options)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere\.parquet"):
        infer(tmp_path / "nowhere.parquet")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        infer(tmp_path / "*.parquet")
    with pytest.raises(FileNotFoundError, match="file in the directory"):
        infer(tmp_path)
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(ValueError, match=r"cannot read .*junk\.parquet as parquet: "):
        infer(tmp_path / "junk.parquet")
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"ends in '\.txt'; expected one of \.parquet"):
        infer(tmp_path / "note.txt")


def test_a_truncated_file_says_so(save: Save, tmp_path: Path) -> None:
    whole = save({"time": hours(1000), "y": np.random.default_rng(0).random(1000)}, "w.arrow")
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(whole.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"cannot read .*cut\.arrow as ipc: "):
        infer(cut)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (np.timedelta64(1, "h"), "1 hour"),
        (np.timedelta64(90, "m"), "90 minutes"),
        (np.timedelta64(14, "D"), "2 weeks"),
        (np.timedelta64(250, "ms"), "250000 microseconds"),
        (7, "7"),
        (None, "unknown"),
    ],
)
def test_steps_in_words(step: np.timedelta64 | int | None, words: str) -> None:
    assert describe_step(step) == words
