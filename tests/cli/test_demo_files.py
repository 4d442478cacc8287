"""The files that `windeck demo` writes for the documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import windeck as wd
from support.internals import write_clicks, write_files, write_parts, write_token_files
from windeck.cli.main import main


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


def test_the_same_files_are_written_again(tmp_path: Path) -> None:
    for name in ("one", "two", "two"):
        write_clicks(tmp_path / f"{name}.parquet", seed=3)
        write_parts(tmp_path / name, seed=3)
        write_token_files(tmp_path / name / "tokens", documents=20)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_a_file_of_the_user_writes_no_others(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    write_parts(tmp_path, sites=1, days=30)
    (tmp_path / "parts" / "site-01.parquet").rename(path)
    main(["demo", str(path), "--files-only", "--out", str(tmp_path / "out")])
    assert not list((tmp_path / "out").iterdir())


def test_clicks_follow_a_rule_that_a_model_can_learn(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks.parquet")
    data = pq.read_table(tmp_path / "clicks.parquet").to_pydict()
    assert len(data["user"]) == 10_000
    for seen, item, clicked in zip(data["seen"], data["item"], data["clicked"], strict=True):
        large = sum(seen) > 250 * len(seen)
        assert clicked == (large == (item > 250))
    assert [] in data["seen"]


def test_raw_files_have_the_rows_of_the_parts_in_no_order(tmp_path: Path) -> None:
    write_parts(tmp_path, sites=2, days=40)
    files = sorted((tmp_path / "raw").iterdir())
    assert [path.name for path in files] == ["2021-01.csv", "2021-02.csv"]
    rows = [row for path in files for row in csv.read_csv(path)["timestamp"].to_pylist()]
    assert rows != sorted(rows)
    table = wd.Table.read(
        tmp_path / "parts", columns=["load"], id_columns="site", timestamp_column="timestamp"
    )
    assert table.num_series == 2
    assert len(rows) == table.num_rows == 2 * 40 * 24
    assert table.step == np.timedelta64(1, "h")


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("in the way")
    with pytest.raises(OSError, match="text"):
        write_files(tmp_path)


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    clicks = tmp_path / "clicks.parquet"
    clicks.write_text("mine")
    with pytest.raises(FileExistsError, match=r"has clicks\.parquet, which is not of a demo"):
        write_files(tmp_path)
    assert clicks.read_text() == "mine"
    clicks.unlink()
    write_files(tmp_path)
    write_files(tmp_path)  # those of a demo are
