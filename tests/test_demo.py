"""The demo from the outside: run as a user runs it, on made-up and on real data."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from demos import Told, demo
from programs import command

DATA = Path(__file__).parents[2] / "shared" / "data"
CLAIMS = (
    "what the uninterrupted run trained on",
    "what the permutation says, worked out without the loader",
    "every window once an epoch, none lost, none twice",
    "the uninterrupted run's final weights, bit for bit",
)


def short(out: Path, *arguments: str) -> Told:
    """A run as short as it can be."""
    return demo(out, *arguments, "--race-seconds", "0.2")


def real(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name} is not beside this checkout")
    return path


def assert_proved(told: Told) -> None:
    """All claims hold, and hold for what really lies in the files, too."""
    assert told.code == 0, told.errors
    for claim in CLAIMS:
        assert f"✔ {claim}" in told.words
    assert "✘" not in told.words
    logs = [
        np.fromfile(told.out / f"{name}.samples", np.int64).reshape(-1, 3)
        for name in ("uninterrupted", "killed", "resumed")
    ]
    whole, killed, resumed = logs
    # Killed before it was done, resumed after its first step, and together the whole.
    assert killed[-1, 0] < whole[-1, 0]
    assert resumed[0, 0] > 1
    assert np.array_equal(np.concatenate((killed[killed[:, 0] < resumed[0, 0]], resumed)), whole)
    picture = (told.out / "forecast.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000
    assert re.search(r"\d times as many", told.words)
    assert re.search(r"SIGKILL after batch [\d,]+ of [\d,]+ in epoch \d", told.words)


def test_synthetic(tmp_path: Path) -> None:
    told = short(tmp_path, "--steps", "50")
    assert_proved(told)
    assert "synthetic: a made-up load curve, nothing in it was measured" in told.words
    assert "step 1 hour" in told.words
    assert (tmp_path / "load-curve.parquet").exists()
    assert len(told.words.splitlines()) < 45


def test_server_metrics(tmp_path: Path) -> None:
    told = short(tmp_path, str(real("nab.parquet")), "--steps", "40")
    assert_proved(told)
    for words in ("series    58, named by series · ", "target    value · ", "step 5 minutes"):
        assert words in told.words
    assert "duplicate stamps" in told.words


def test_air_quality(tmp_path: Path) -> None:
    told = short(tmp_path, str(real("beijing_pm25.parquet")), "--steps", "40")
    assert_proved(told)
    for words in ("target    pm25 · ", "step 1 hour", "4.7% missing"):
        assert words in told.words


def test_overrides_short_series_and_parts_of_dates(tmp_path: Path) -> None:
    """A CSV of 150 days: the time in pieces, two series, too short for 168 + 24."""
    day = np.arange("2023-01-01", "2023-05-31", dtype="datetime64[D]").astype(object)
    rng = np.random.default_rng(0)
    columns = {
        "shop": ["north"] * len(day) + ["south"] * len(day),
        "Year": [d.year for d in day] * 2,
        "Month": [d.month for d in day] * 2,
        "Day": [d.day for d in day] * 2,
        "visitors": rng.integers(0, 100, 2 * len(day)),
        "taken": rng.random(2 * len(day)),
    }
    file = tmp_path / "shops.csv"
    csv.write_csv(pa.table(columns), file)
    options = ("--target", "taken", "--batch-size", "32", "--steps", "8", "--horizon", "7")
    told = short(tmp_path / "out", str(file), *options)
    assert_proved(told)
    assert "Year + Month + Day" in told.words
    assert "168 + 7 steps do not fit series of at most 150 rows: cut down" in told.words
    assert "68 steps in, 7 out" in told.words
    assert "as told" in told.words


def write(path: Path, columns: Mapping[str, object]) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_bad_files_get_one_sentence(tmp_path: Path) -> None:
    """One sentence each, an exit code of 1, no traceback, and nothing trained."""
    (tmp_path / "junk.parquet").write_bytes(b"no parquet at all")
    names = {"a": ["x", "y"], "b": ["u", "v"]}
    dark = {"time": list(range(400)), "y": pa.array([None] * 400, pa.float64())}
    files = {
        str(tmp_path / "nowhere.parquet"): r"there is no file .*nowhere\.parquet$",
        str(tmp_path / "junk.parquet"): r"cannot read .*junk\.parquet as parquet: ",
        write(tmp_path / "names.parquet", names): "found no column of numbers to forecast; the ",
        write(tmp_path / "few.parquet", {"y": [1.0, 2.0] * 9}): r".* has 18 rows; expected at lea",
        write(tmp_path / "dark.parquet", dark): r".*missing.*",
        write(tmp_path / "other.parquet", {"load": [1.0]})
        + " --target laod": ".*did you mean 'load'",
    }
    for file, words in files.items():
        code, _, errors = command("demo", *file.split(), "--out", str(tmp_path / "out"))
        assert code == 1, errors
        assert re.match(f"windeck demo: {words}", errors), errors
        assert errors.count("\n") == 1, errors
    assert not list((tmp_path / "out").glob("*.samples"))


def test_a_traceback_is_never_shown(tmp_path: Path) -> None:
    told = short(tmp_path, str(tmp_path / "nowhere.csv"))
    assert told.code == 1
    assert re.fullmatch(r"windeck demo: there is no file .*nowhere\.csv\n", told.errors)
    assert not told.words
