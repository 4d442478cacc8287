"""`windeck prepare`: options, summary, and errors of one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import windeck as wd
from support.prepare_cases import contents, unsorted_rows, write_file, write_files
from support.programs import assert_not_imported, command


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "in", unsorted_rows(), 3)
    return Path("in")


@pytest.mark.usefixtures("source")
def test_options_are_those_of_the_function(tmp_path: Path) -> None:
    code, out, err = command(
        *("prepare", "in/0.parquet", "in/[12].parquet", "out", "--id", "site", "--time", "time"),
        *("--columns", "load,number", "--dtype", "float32", "--duplicates", "last"),
        *("--scaler", "minmax", "--scaler", "robust", "--train-start", "2024-01-02"),
        *("--train-stop", "2024-02-01", "--sample", "50", "--seed", "7", "--file-bytes", "2KiB"),
        *("--row-group-bytes", "1KiB", "--compression", "none", "--memory-budget", "1 GB"),
        *("--threads", "1", "--per-series", "--scratch", "scratch"),
    )
    assert code == 0, err
    assert not list((tmp_path / "scratch").iterdir())
    assert out.startswith("out: 300 rows of 5 series in ")
    assert "from 3 source files" in out
    wd.prepare(
        ["in/0.parquet", "in/1.parquet", "in/2.parquet"],
        "same",
        id_columns="site",
        timestamp_column="time",
        columns=["load", "number"],
        dtype="float32",
        duplicates="last",
        scaler=["minmax", "robust"],
        train=("2024-01-02", "2024-02-01"),
        sample=50,
        seed=7,
        per_series=True,
        file_bytes=2048,
        row_group_bytes=1024,
        compression="none",
    )
    assert contents(tmp_path / "out") == contents(tmp_path / "same")


def test_options_of_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("b;02.01.2024;1,5\na;01.01.2024;2,5\n", encoding="latin-1")
    words = ["--id", "site", "--time", "day", "--delimiter", ";", "--decimal", ",", "--quiet"]
    words += ["--header", "site,day,load", "--encoding", "latin-1", "--sample", "all"]
    code, out, err = command("prepare", "a.csv", "out", *words, "--timestamp-format", "%d.%m.%Y")
    assert (code, out, err) == (0, "", "")
    assert wd.Table.read("out", id_columns="site", timestamp_column="day")["load"].tolist() == [
        2.5,
        1.5,
    ]
    code, _, err = command(
        "prepare", "a.csv", "out2", "--header", "no", "--delimiter", ";", "--quiet"
    )
    assert code == 1
    assert "windeck prepare: column 'f1'" in err or "decimal=','" in err


def test_words_for_missing_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("load\n1.5\noops\n-999\n?\n")
    code, _, err = command("prepare", "a.csv", "out", "--quiet")
    assert code == 1
    assert "it has 'oops' in row 1 among numbers; pass missing=['oops']" in err
    assert "--missing" in err
    code, out, err = command("prepare", "a.csv", "out", "--quiet", "--missing", "oops,-999")
    assert (code, out, err) == (0, "", "")
    assert wd.Table.read("out").column("load").observed().tolist() == [True, False, False, False]
    code, out, err = command("prepare", "a.csv", "text", "--quiet", "--missing", "")
    assert (code, out, err) == (0, "", "")
    assert wd.Table.read("text", categories=True).column("load").categories == (
        *("1.5", "oops", "-999", "?"),
    )


@pytest.mark.usefixtures("source")
def test_bad_files_are_told(tmp_path: Path) -> None:
    Path("in/1.parquet").write_bytes(b"PAR1")
    words = ("prepare", "in", "out", "--id", "site", "--time", "time", "--quiet")
    code, out, err = command(*words)
    assert (code, out) == (1, "")
    assert err.startswith("windeck prepare: 'in/1.parquet' cannot be read as Parquet")
    assert err.count("\n") == 1
    code, _, err = command(*words, "--on-error", "skip")
    assert code == 0
    assert err.startswith("windeck prepare: 1 file of 3 were left out, the first is 'in/1.parquet'")


@pytest.mark.usefixtures("source")
def test_errors_are_one_line() -> None:
    for words, code, text in [
        (["in"], 2, "the following arguments are required: DEST"),
        (["in", "out", "--train-stop", "3"], 2, "--train-start and --train-stop need --time"),
        (["in", "out", "--threads", "0"], 2, "expected a whole number from 1 on"),
        (["in", "out", "--scaler", "max"], 2, "invalid choice: 'max'"),
        (["none", "out"], 1, "file 'none' does not exist"),
        (["in", "s3://bucket/out"], 1, "is the URL 's3://bucket/out', expected scratch="),
        (["in", "s3://bucket/out"], 1, "(here: --scratch)\n"),
        (["in", "out", "--id", "site"], 1, "(here: --columns, --time)\n"),
        (["in", "out", "--id", "sight"], 1, "did you mean 'site'"),
        (["in", "out", "--memory-budget", "x"], 1, "`memory_budget` must be bytes as text"),
        (["in", "out", "--columns", "load", "--memory-budget", "1MB"], 1, "one worker takes about"),
        (["in", "out", "--columns", "load", "--memory-budget", "999"], 1, "one worker takes about"),
    ]:
        found = command("prepare", *words, "--quiet")
        assert found[0] == code, found
        assert text in found[2], found
        assert found[2].count("\n") == 1, found


@pytest.mark.usefixtures("source")
def test_the_same_command_twice_and_another(tmp_path: Path) -> None:
    words = ("prepare", "in", "out", "--id", "site", "--time", "time")
    first, again = command(*words), command(*words)
    assert first[0] == again[0] == 0
    assert first[1] == again[1]
    other = command(*words, "--dtype", "float32")
    assert other[0] == 1
    assert "has the result of other sources or options" in other[2]
    assert command(*words, "--dtype", "float32", "--overwrite")[0] == 0


@pytest.mark.usefixtures("source")
def test_a_bar_shows_rates_on_a_terminal_or_not() -> None:
    pytest.importorskip("rich")
    words = ["-m", "windeck", "prepare", "in", "out", "--id", "site", "--time", "time"]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, timeout=60
    )
    assert "rows/s" in done.stderr
    assert "reading" in done.stderr
    assert "sorting" in done.stderr


def test_its_help_imports_nothing_heavy() -> None:
    assert_not_imported({"numpy", "pyarrow", "torch", "rich", "filelock"}, "prepare", "--help")


def test_a_file_can_be_added_after_an_error(source: Path) -> None:
    write_file(source / "3.parquet", unsorted_rows().slice(0, 1))
    words = ("prepare", "in", "out", "--id", "site", "--time", "time", "--quiet")
    code, _, err = command(*words)
    assert code == 1
    assert "has several rows with time" in err
    assert err.endswith("(here: --duplicates)\n")
    assert command(*words, "--duplicates", "first")[0] == 0
