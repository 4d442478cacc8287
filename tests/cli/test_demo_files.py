"""The files that `windeck demo` writes for the documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq

import windeck as wd
from support.demo_folder import write_hours
from support.programs import command


def contents(root: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder, by path."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_files_only_writes_all_and_imports_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from windeck.cli.main import main; main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, "demo", "--files-only", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "next to it" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(".windeck-demo", "clicks.parquet", "load-curve.parquet", "parts", "raw", "text", "tokens")
    ]
    assert len(wd.Documents(tmp_path / "text" / "stdlib-corpus")) > 100


def written(out: Path, seed: int = 0) -> str:
    """Write the files of the demo; return the error, if there is one."""
    code, _, err = command("demo", "--files-only", "--seed", str(seed), "--out", str(out))
    assert code == bool(err)
    return err


def test_the_same_files_are_written_again(tmp_path: Path) -> None:
    for name in ("one", "two", "two"):
        assert not written(tmp_path / name, seed=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_file_of_the_user_writes_no_others(tmp_path: Path) -> None:
    path = write_hours(tmp_path / "mine.parquet", sites=1, days=30)
    code, _, _ = command("demo", str(path), "--files-only", "--out", str(tmp_path / "out"))
    assert code == 0
    assert not list((tmp_path / "out").iterdir())


def test_clicks_follow_a_rule_that_a_model_can_learn(demo_folder: Path) -> None:
    data = pq.read_table(demo_folder / "out" / "clicks.parquet").to_pydict()
    assert len(data["user"]) == 10_000
    for seen, item, clicked in zip(data["seen"], data["item"], data["clicked"], strict=True):
        large = sum(seen) > 250 * len(seen)
        assert clicked == (large == (item > 250))
    assert [] in data["seen"]


def test_raw_files_have_the_rows_of_the_parts_in_no_order(demo_folder: Path) -> None:
    out = demo_folder / "out"
    files = sorted((out / "raw").iterdir())
    assert [path.name for path in files] == ["2021-01.csv", "2021-02.csv", "2021-03.csv"]
    rows = [row for path in files for row in csv.read_csv(path)["timestamp"].to_pylist()]
    assert rows != sorted(rows)
    table = wd.Table.read(
        out / "parts", columns=["load"], id_columns="site", timestamp_column="timestamp"
    )
    assert table.num_series == 4
    assert len(rows) == table.num_rows == 4 * 90 * 24
    assert table.step == np.timedelta64(1, "h")


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("in the way")
    assert "text" in written(tmp_path)


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    clicks = tmp_path / "clicks.parquet"
    clicks.write_text("mine")
    assert "has clicks.parquet, which is not of a demo" in written(tmp_path)
    assert clicks.read_text() == "mine"
    clicks.unlink()
    assert not written(tmp_path)
    assert not written(tmp_path)  # those of a demo are
