"""Tests of the demo command: the synthetic load curve, a file, and unusable files."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from support.demo_folder import trained_here, write_hours
from support.internals import original, plant
from support.programs import printed
from windeck.cli.main import main

CLAIMS = (
    "the same samples as the uninterrupted run",
    "the samples computed from the permutation alone, without a loader",
    "every window once per epoch: none lost, none repeated",
    "the same final weights as the uninterrupted run, bit for bit",
)


def assert_equal_runs(printed: str, out: Path) -> None:
    """All claims hold, and the logs say so too."""
    text = " ".join(printed.split())
    for claim in CLAIMS:
        assert f"✔ {claim}" in text
    assert "✘" not in text
    whole, killed, resumed = (
        np.fromfile(out / f"{name}.samples", np.int64).reshape(-1, 3)
        for name in ("uninterrupted", "killed", "resumed")
    )
    # Killed before it was done, resumed after its first step, and together the whole.
    assert killed[-1, 0] < whole[-1, 0]
    assert resumed[0, 0] > 1
    assert np.array_equal(np.concatenate((killed[killed[:, 0] < resumed[0, 0]], resumed)), whole)
    assert re.search(r"SIGKILL after batch [\d,]+ of [\d,]+ in epoch \d", text)


@pytest.mark.usefixtures("forked")
def test_synthetic(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "windeck", "demo", "--out", str(tmp_path)]
    command += ["--steps", "50"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_equal_runs(done.stdout, tmp_path)
    assert "a synthetic load curve: nothing in it was measured" in done.stdout
    assert "usual step 1 hour" in done.stdout
    assert (tmp_path / "load-curve.parquet").exists()
    assert len(done.stdout.splitlines()) < 45


def test_options_short_series_and_parts_of_dates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CSV of 150 days: the time in pieces, two series, too short for 168 + 24."""
    pytest.importorskip("torch")
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
    out = tmp_path / "out"
    main(["demo", str(file), "--out", str(out), *options])
    told = capsys.readouterr().out
    assert_equal_runs(told, out)
    assert "Year + Month + Day" in told
    assert "168 + 7 steps do not fit the series: cut down" in told
    assert "68 steps in, 7 out" in told
    assert re.search(r"target +taken", told)


def write(path: Path, columns: Mapping[str, object]) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_bad_files_get_one_line(tmp_path: Path) -> None:
    """An exit code of 1, no traceback, and nothing trained."""
    (tmp_path / "junk.parquet").write_bytes(b"no parquet at all")
    names = {"a": ["x", "y"], "b": ["u", "v"]}
    dark = {"time": list(range(400)), "y": pa.array([None] * 400, pa.float64())}
    files = {
        str(tmp_path / "nowhere.parquet"): r"file '.*nowhere\.parquet' does not exist$",
        str(tmp_path / "junk.parquet"): r"'.*junk\.parquet' cannot be read as Parquet: ",
        write(tmp_path / "names.parquet", names): "found no column of numbers to forecast; the ",
        write(tmp_path / "few.parquet", {"y": [1.0, 2.0] * 9}): r".* has 18 rows; expected at lea",
        write(tmp_path / "dark.parquet", dark): r".*missing.*",
        write(tmp_path / "other.parquet", {"load": [1.0]})
        + " --target laod": ".*did you mean 'load'",
    }
    for file, words in files.items():
        with pytest.raises(SystemExit) as caught:
            main(["demo", *file.split(), "--out", str(tmp_path / "out")])
        text = str(caught.value)
        assert re.match(f"windeck demo: {words}", text), text
        assert "\n" not in text
    assert not list((tmp_path / "out").glob("*.samples"))


def test_an_interrupt_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    plant(monkeypatch, "demo_job.train", interrupt)
    file = write_hours(tmp_path / "hours.parquet")
    with pytest.raises(SystemExit) as caught:
        main(["demo", str(file), "--out", str(tmp_path)])
    assert caught.value.code == 130


def test_an_interrupted_training_leaves_nothing_half_written(tmp_path: Path) -> None:
    """A Ctrl-C at a terminal reaches the training process too; a kill may come while it saves."""
    pytest.importorskip("torch")
    (tmp_path / ".state.pt.1-0123456789abcdef.tmp").write_bytes(b"of a killed demo")
    (tmp_path / ".state.pt.tmp").write_bytes(b"of the user")
    command = [sys.executable, "-m", "windeck", "demo", "--out", str(tmp_path), "--steps", "2000"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("3 Train"):
            break
    log = tmp_path / "killed.samples"
    row = 3 * 8  # step, series and start row, of 256 windows a step
    while process.poll() is None and not (log.exists() and log.stat().st_size > 20 * 256 * row):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    names = {path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")}
    assert names == {".state.pt.tmp"}


def test_a_process_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    train = original("demo_job.train_in_process")
    file = write_hours(tmp_path / "hours.parquet")

    def without_file(*arguments: object, **options: object) -> None:
        file.unlink()
        train(*arguments, **options)

    plant(monkeypatch, "demo_job.train_in_process", without_file)
    with pytest.raises(SystemExit, match="the training process failed with exit code 1"):
        main(["demo", str(file), "--out", str(tmp_path / "out"), "--steps", "9"])
    assert "hours.parquet' does not exist" in capfd.readouterr().err


def test_help_names_every_option_and_needs_no_torch() -> None:
    program = """if True:
    import sys
    from windeck.cli.main import main
    try:
        main(["demo", "--help"])
    except SystemExit as end:
        assert not end.code
    assert not {"torch", "matplotlib", "pyarrow"} & set(sys.modules)
    """
    text = printed(program)
    for option in ("time", "id", "target", "context", "horizon", "steps", "batch-size"):
        assert f"--{option} " in text
    for option in ("seed", "out"):
        assert f"--{option}" in text


@pytest.mark.parametrize(
    "words", ["--context 0", "--steps many", "--steps 1", "--seed -1", "--nonsense", "a b"]
)
def test_wrong_options_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    with pytest.raises(SystemExit) as caught:
        main(["demo", *words.split()])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("windeck")


def test_text_is_wrapped_below_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines have a step's name or twelve spaces, and at most 100 columns."""
    plant(monkeypatch, "demo_job.train_in_process", trained_here())
    words = [f"{word} of the columns that name a series" for word in ("one", "two", "three")]
    columns = dict.fromkeys(words, ["a"] * 200)
    file = write(tmp_path / "a.parquet", {**columns, "y": np.arange(200) ** 1.5})
    ids = [word for name in words for word in ("--id", name)]
    main(["demo", file, "--out", str(tmp_path / "out"), "--steps", "4", *ids])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"1 Data      {file}"
    (at,) = [number for number, line in enumerate(lines) if line.startswith("  series")]
    assert lines[at].startswith("  series    1, named by one of")
    assert lines[at + 1].startswith(" " * 12)
    text = " ".join(line[12:] for line in lines[at : at + 2])
    assert text == f"1, named by {' + '.join(words)}"
    assert all(len(line) <= 100 and (line[:12].strip() or line[12] != " ") for line in lines[1:])
