"""Tests of `windeck doctor`: of a file, of a function, and of reports side by side."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from support.demo_folder import write_hours
from support.programs import assert_not_imported, command
from windeck.cli.main import main
from windeck.diagnosis import Diagnosis

QUICK = ("--seconds", "0.05", "--no-disk")

MODULE = """
import time

def setup():
    return [[1.0, 2.0]] * 5, lambda batch: time.sleep(0.002)

def alone():
    return [[1.0, 2.0]] * 5

def wrong():
    return 3

def fails():
    raise ValueError("of my own")

number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of the user, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_doctored_job.py").write_text(MODULE)
    return tmp_path


def test_a_file(here: Path) -> None:
    """Windows of the inferred target; the disk is that of the file."""
    pytest.importorskip("torch")
    write_hours(here / "curve.parquet", sites=2, days=100)
    code, out, err = command("doctor", "curve.parquet", "--seconds", "0.05")
    assert (code, err) == (0, "")
    assert out.startswith("the loader gives ")
    for words in ("windows/s", "gather", "256 windows", "(curve.parquet"):
        assert words in out, words


def test_a_csv_file_takes_the_options_of_csv(here: Path) -> None:
    pytest.importorskip("torch")
    rows = [f"{1 + n // 24:02}.01.2024 {n % 24:02}:00;{n},5" for n in range(700)]
    (here / "last.csv").write_text("Zeit;Last\n" + "\n".join(reversed(rows)) + "\n")
    options = ("--context", "8", "--horizon", "2", *QUICK, "--json")
    csv = ("--delimiter", ";", "--decimal", ",", "--time", "Zeit")
    format = ("--timestamp-format", "%d.%m.%Y %H:%M")
    code, out, err = command("doctor", "last.csv", *options, *csv, *format)
    assert (code, err) == (0, "")
    assert Diagnosis.from_json(out).measured.subject.samples == 256
    code, out, err = command("doctor", "last.csv", *options, *csv[:4], *format)
    message = "--timestamp-format is of a column of time stamps, expected --time COLUMN"
    assert (code, out, err.strip()) == (1, "", f"windeck doctor: {message}")


class Terminal(io.StringIO):
    """A text that is taken for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("here")
def test_a_line_at_a_terminal_says_what_is_measured() -> None:
    with redirect_stderr(Terminal()) as err, redirect_stdout(io.StringIO()):
        main(["doctor", "my_doctored_job:setup", *QUICK, "--json"])
    line = "measuring: 3 loops of 0.05 s at most, then stages and the machine\n"
    assert err.getvalue() == line


def test_columns_of_a_mapped_file(here: Path) -> None:
    """The report says how many columns are read out of the map, and their bytes."""
    pytest.importorskip("torch")
    table = pa.table({name: np.arange(5000.0) for name in "abc"})
    feather.write_feather(table, here / "wide.arrow", compression="uncompressed")
    options = ("--mapped", "--columns", "a,b", "--columns", "c", "--context", "8", "--horizon", "0")
    code, out, err = command(
        "doctor", "wide.arrow", *options, "--batch-size", "16", *QUICK, "--json"
    )
    assert (code, err) == (0, "")
    subject = Diagnosis.from_json(out).measured.subject
    assert (subject.columns, subject.column_bytes) == (3, 3 * 5000 * 8)
    assert subject.samples == 16
    assert subject.nbytes >= 16 * 8 * 3 * 4
    assert subject.mapped == (("wide.arrow", (here / "wide.arrow").stat().st_size),)
    code, _, err = command("doctor", "wide.arrow", "--context", "5000", "--horizon", "0")
    assert code == 1


def test_a_function_and_a_comparison(here: Path) -> None:
    """Reports are kept as JSON, and compared as text, JSON and one page."""
    for name in ("setup", "alone"):
        code, out, err = command("doctor", f"my_doctored_job:{name}", *QUICK, "--json")
        assert (code, err) == (0, "")
        (here / f"{name}.json").write_text(out)
    assert json.loads((here / "setup.json").read_text())["findings"][0]["kind"] == "step"
    code, out, err = command("doctor", "--compare", "setup.json", "alone.json")
    assert (code, err) == (0, "")
    assert out.startswith("from setup to alone, the loader is ")
    assert "\nfigure" in out
    code, out, _ = command(
        "doctor", "--compare", "setup.json", "alone.json", "--json", "--html", "both.html"
    )
    assert code == 0
    assert list(json.loads(out)) == ["setup", "alone"]
    page = (here / "both.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<h2>setup</h2>" in page
    (here / "more").mkdir()
    (here / "more" / "setup.json").write_text((here / "alone.json").read_text())
    assert "from setup.json to more/setup.json," in " ".join(
        command("doctor", "--compare", "setup.json", "more/setup.json")[1].split()
    )


def test_a_page(here: Path) -> None:
    """A page is written beside the text, and not over another without --force."""
    words = ("doctor", "my_doctored_job:setup", *QUICK, "--html", "page.html")
    code, out, _ = command(*words)
    assert code == 0
    assert out.endswith("wrote page.html\n")
    assert "<svg" in (here / "page.html").read_text()
    code, _, err = command(*words)
    assert code == 2
    assert "page.html exists already, expected a new file, or --force" in err
    assert command(*words, "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ((), 2, "expected FILE, MODULE:FUNCTION or --compare"),
        (("x", "--compare", "a"), 2, "expected FILE, MODULE:FUNCTION or --compare"),
        (("nowhere.parquet",), 1, ""),
        (("my_doctored_job:nothing",), 1, ""),
        (("my_doctored_job:number",), 1, ""),
        (("my_doctored_job:wrong",), 1, ""),
        (("no_such_module:f",), 1, ""),
        (("no.such.module:f",), 1, ""),
        (("--compare", "my_doctored_job.py"), 1, ""),
        (("--compare", "my_doctored_job.py", "nowhere.json"), 1, ""),
        (("x.parquet", "--seconds", "0"), 2, "expected seconds above 0"),
        (("x.parquet", "--columns", "a,,b"), 2, "expected names with commas"),
        (("x.parquet", "--batch-size", "0"), 2, "expected a whole number from 1 on"),
        (("x.parquet", "--html", "nowhere/x.html"), 2, "there is no folder"),
        (("my_doctored_job:setup", "--time", "t"), 2, "--time is an option of FILE"),
        (("my_doctored_job:setup", "--context", "5"), 2, "expected none beside my_doctored_job"),
        (("my_doctored_job:setup", "--decimal", ","), 2, "--decimal is an option of FILE"),
        (("--compare", "a.json", "--id", "x"), 2, "expected none beside --compare"),
    ],
)
@pytest.mark.usefixtures("here")
def test_errors_are_one_line(words: tuple[str, ...], code: int, error: str) -> None:
    found, out, err = command("doctor", *words)
    assert (found, out) == (code, "")
    assert error in err
    assert len(err.splitlines()) <= 1


@pytest.mark.usefixtures("here")
def test_errors_of_the_user_have_their_traceback() -> None:
    with pytest.raises(ValueError, match="of my own"):
        command("doctor", "my_doctored_job:fails")


def test_help_and_comparisons_need_no_torch(here: Path) -> None:
    assert_not_imported({"torch", "pyarrow"}, "doctor", "--help")
    text = command("doctor", "my_doctored_job:setup", *QUICK, "--json")[1]
    (here / "one.json").write_text(text)
    one = str(here / "one.json")
    assert_not_imported({"torch", "pyarrow"}, "doctor", "--compare", one, one)
