"""A preparation that is killed goes on to the same bytes; what `dest` must not hold is refused."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd
from support.internals import plant
from support.prepare_cases import SMALL, contents, unsorted_rows, write_file, write_files

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}
OPTIONS: dict[str, Any] = {**KEYS, "file_bytes": SMALL, "threads": 1, "scaler": "standard"}

#: Arguments: source, destination, the call at which the process ends, and before, after or within.
KILLED = f"""
import os, signal, sys
import pyarrow.parquet as parquet
import windeck as wd

src, dest, at, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
calls = 0

def counted(call, leaves):
    def run(*arguments, **options):
        global calls
        calls += leaves
        if calls > at and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = call(*arguments, **options)
        if calls > at:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return run

if when == "within":  # rows are written, and the file is not complete
    parquet.ParquetWriter.write_table = counted(parquet.ParquetWriter.write_table, 1)
else:
    os.replace = counted(os.replace, 1)
wd.prepare(src, dest, **{OPTIONS!r})
print(calls)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_files(tmp_path / "in", unsorted_rows(series=4, length=70), 4)
    return tmp_path / "in"


def run(source: Path, folder: Path, at: int, when: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED, str(source), str(folder), str(at), when]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def complete(folder: Path) -> dict[str, int]:
    """Return the inodes of files under their final names, each of which can be read as a whole."""
    found = {}
    for path in folder.glob("part-*.parquet"):
        assert parquet.read_table(path).num_rows
        found[path.name] = path.stat().st_ino
    return found


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("when", ["before", "after", "within"])
def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    tmp_path: Path, source: Path, when: str
) -> None:
    whole = run(source, tmp_path / "whole", 10**6, when)
    assert whole.returncode == 0, whole.stderr
    expected = contents(tmp_path / "whole")
    assert len(expected) > 4
    calls = int(whole.stdout)
    assert calls >= (3 if when == "within" else 15)
    steps = {"before": range(0, calls, 4), "after": range(2, calls, 4), "within": range(1)}
    for at in {*steps[when], calls - 1}:
        folder = tmp_path / f"killed{at}"
        assert run(source, folder, at, when).returncode == -9
        before = complete(folder)
        last = when == "after" and at == calls - 1
        assert (folder / "manifest.json").exists() == last
        wd.prepare(source, folder, **OPTIONS)
        assert contents(folder) == expected
        # A finished file is not written again, but for one that was not yet recorded.
        after = complete(folder)
        assert sum(after[name] != inode for name, inode in before.items()) <= 1


@pytest.mark.usefixtures("forked")
def test_killed_several_times_in_a_row(tmp_path: Path, source: Path) -> None:
    ends: list[int] = []
    while 0 not in ends:
        ends.append(run(source, tmp_path / "out", 6, "after").returncode)
        assert len(ends) < 20
    assert ends.count(-9) == len(ends) - 1 > 1
    wd.prepare(source, tmp_path / "other", **OPTIONS)
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


@pytest.mark.usefixtures("forked")
def test_finished_tasks_are_not_done_again(tmp_path: Path, source: Path) -> None:
    assert run(source, tmp_path / "out", 9, "after").returncode == -9
    work = tmp_path / "out" / "_prepare"
    before = {path.name: path.stat().st_ino for path in work.glob("sorted-*.json")}
    assert len(before) > 3
    kept: dict[str, int] = {}

    def look(done: int, total: int) -> None:
        kept.update({path.name: path.stat().st_ino for path in work.glob("sorted-*.json")})

    wd.prepare(source, tmp_path / "out", **OPTIONS, progress=look)
    assert before.items() <= kept.items()


@pytest.mark.usefixtures("forked")
def test_tasks_with_results_of_former_names_are_done_again(tmp_path: Path, source: Path) -> None:
    assert run(source, tmp_path / "out", 9, "after").returncode == -9
    results = [*(tmp_path / "out" / "_prepare").glob("sorted-*.json")]
    assert len(results) > 3
    for path in results:
        path.write_text(path.read_text().replace('"sorted_files"', '"runs"'))
        path.rename(path.with_name(path.name.replace("sorted", "task")))
    wd.prepare(source, tmp_path / "out", **OPTIONS)
    wd.prepare(source, tmp_path / "other", **OPTIONS)
    assert contents(tmp_path / "out") == contents(tmp_path / "other")
    assert not (tmp_path / "out" / "_prepare").exists()


def test_a_finished_result_is_returned_and_not_written_again(tmp_path: Path, source: Path) -> None:
    first = wd.prepare(source, tmp_path / "out", **OPTIONS)
    before = complete(tmp_path / "out")
    again = wd.prepare(source, tmp_path / "out", **{**OPTIONS, "threads": 2})
    assert again == first
    assert complete(tmp_path / "out") == before
    assert not (tmp_path / "out" / "_prepare").exists()


def test_results_of_other_options_or_sources_are_refused_unless_overwritten(
    tmp_path: Path, source: Path
) -> None:
    out = tmp_path / "out"
    wd.prepare(source, out, **OPTIONS)
    before = contents(out)
    with pytest.raises(FileExistsError, match="has the result of other sources or options"):
        wd.prepare(source, out, **{**OPTIONS, "dtype": "float32"})
    write_file(source / "9.parquet", unsorted_rows(series=1, length=0))
    with pytest.raises(FileExistsError, match="has the result of other sources or options"):
        wd.prepare(source, out, **OPTIONS)
    assert contents(out) == before
    (source / "9.parquet").unlink()
    wd.prepare(source, out, **{**OPTIONS, "file_bytes": 1 << 20}, overwrite=True)
    assert [path.name for path in out.glob("*.parquet")] == ["part-00000.parquet"]
    wd.prepare(source, out, **OPTIONS, overwrite=True)
    assert contents(out) == before


@pytest.mark.usefixtures("forked")
def test_unfinished_work_of_other_options_is_refused(tmp_path: Path, source: Path) -> None:
    assert run(source, tmp_path / "out", 10, "after").returncode == -9
    with pytest.raises(FileExistsError, match="unfinished work of other sources or options"):
        wd.prepare(source, tmp_path / "out", **KEYS)
    wd.prepare(source, tmp_path / "out", **KEYS, overwrite=True)
    wd.prepare(source, tmp_path / "other", **KEYS)
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


def test_an_error_before_anything_is_finished_leaves_a_destination_for_other_options(
    tmp_path: Path, source: Path
) -> None:
    with pytest.raises(MemoryError):
        wd.prepare(source, tmp_path / "out", **KEYS, memory_budget=1e6)
    wd.prepare(source, tmp_path / "out", **OPTIONS)


def mixed(folder: Path) -> None:
    """Write a Parquet file with times, and a CSV file with numbers in their place."""
    write_file(folder / "0.parquet", unsorted_rows())
    (folder / "1.csv").write_text("site,time,load,number\na,5,0.5,1\n")


def repeated(folder: Path) -> None:
    """Write a row twice, in two files."""
    for name in ("0.parquet", "1.parquet"):
        write_file(folder / name, unsorted_rows())


def infinite(folder: Path) -> None:
    """Write a value that no scaler can be fitted to."""
    rows = unsorted_rows()
    load = pa.array([float("inf"), *rows["load"].to_pylist()[1:]])
    write_file(folder / "0.parquet", rows.set_column(2, "load", load))


@pytest.mark.parametrize("write", [mixed, repeated, infinite])
@pytest.mark.parametrize("exists", [False, True])
def test_an_error_of_the_data_leaves_nothing(tmp_path: Path, write: Any, exists: bool) -> None:
    """The same call would fail again, and another one begins anew."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in")
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    with pytest.raises((TypeError, ValueError)):
        wd.prepare(tmp_path / "in", out, **OPTIONS)
    assert out.exists() == exists
    assert not exists or not list(out.iterdir())


def test_an_error_of_options_leaves_the_unfinished_work_of_others(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plant(monkeypatch, "prepared_files.write_parquet", full)
    with pytest.raises(OSError, match="No space"):
        wd.prepare(source, tmp_path / "out", **OPTIONS)
    monkeypatch.undo()
    before = contents(tmp_path / "out")
    assert before
    with pytest.raises(KeyError):
        wd.prepare(source, tmp_path / "out", **{**OPTIONS, "id_columns": "sight"})
    assert contents(tmp_path / "out") == before
    wd.prepare(source, tmp_path / "out", **OPTIONS)


def test_directories_with_other_files_are_never_touched(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"has 'notes.txt', which `prepare` did not write"):
        wd.prepare(source, tmp_path / "out", **OPTIONS, overwrite=True)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    with pytest.raises(FileExistsError, match="is a file; expected a directory"):
        wd.prepare(source, source / "0.parquet", **OPTIONS)


def test_a_destination_below_the_sources_is_not_one_of_them(tmp_path: Path, source: Path) -> None:
    wd.prepare(source, tmp_path / "other", **OPTIONS)
    for _ in range(2):
        wd.prepare(source, source / "out", **OPTIONS)
        assert contents(source / "out") == contents(tmp_path / "other")
    with pytest.raises(ValueError, match="all files of `src` are in `dest`"):
        wd.prepare(source / "out", source / "out", **OPTIONS)


def test_a_source_that_changes_meanwhile_is_an_error(tmp_path: Path, source: Path) -> None:
    def change(done: int, total: int) -> None:
        write_file(source / "3.parquet", unsorted_rows(series=2, length=20))

    with pytest.raises(RuntimeError, match=r"'.*3.parquet' changed while it was prepared"):
        wd.prepare(source, tmp_path / "out", **OPTIONS, progress=change)


@pytest.mark.usefixtures("forked")
def test_two_processes_cannot_prepare_one_destination(tmp_path: Path, source: Path) -> None:
    program = f"""
import sys
import windeck as wd

def wait(done, total):
    print("waiting", flush=True)
    with open(sys.argv[3]) as file:  # a pipe with a name
        file.read()

wd.prepare(sys.argv[1], sys.argv[2], **{OPTIONS!r}, progress=wait)
"""
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", program, str(source), str(out), str(pipe)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        with pytest.raises(RuntimeError, match="another process prepares"):
            wd.prepare(source, out, **OPTIONS)
        child.kill()
    wd.prepare(source, out, **OPTIONS)
    wd.prepare(source, tmp_path / "other", **OPTIONS)
    assert contents(out) == contents(tmp_path / "other")


def damaged(path: Path) -> None:
    """Damage the values of a column in the middle of a Parquet file, and leave its footer."""
    column = parquet.read_metadata(path).row_group(0).column(2)
    data = bytearray(path.read_bytes())
    start = column.data_page_offset
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["page", "truncated", "empty", "text"])
def test_a_bad_file_stops_or_is_left_out_and_listed(
    tmp_path: Path, source: Path, kind: str
) -> None:
    wd.prepare([source / f"{number}.parquet" for number in (0, 1, 3)], tmp_path / "good", **OPTIONS)
    bad = source / "2.parquet"
    if kind == "page":
        damaged(bad)
    elif kind == "truncated":
        bad.write_bytes(bad.read_bytes()[:-20])
    else:
        bad.write_bytes(b"" if kind == "empty" else b"site,time\n" * 100)
    with pytest.raises(ValueError, match=r"2.parquet' (cannot be read as Parquet|is empty)"):
        wd.prepare(source, tmp_path / "out", **OPTIONS)
    out = tmp_path / "skipped"
    for number in range(2):
        with pytest.warns(UserWarning, match=r"1 file of 4 were left out, the first is '.*2.parqu"):
            result = wd.prepare(source, tmp_path / f"out{number}", **OPTIONS, on_error="skip")
        assert [one.path for one in result.skipped] == [str(bad)]
        assert "2.parquet" in str(result.skipped[0].error)
        assert f"1 bad file left out:\n  {bad}: " in str(result)
    good, found = contents(tmp_path / "good"), contents(tmp_path / "out0")
    assert {n: b for n, b in found.items() if n != "manifest.json"} == {
        n: b for n, b in good.items() if n != "manifest.json"
    }
    assert found == contents(tmp_path / "out1")
    assert not out.exists()


def test_a_large_file_that_is_bad_in_one_part_is_left_out_as_a_whole(tmp_path: Path) -> None:
    rows = unsorted_rows(series=10, length=200)
    write_files(tmp_path / "in", rows.slice(0, 500), 1)
    large = tmp_path / "in" / "1.parquet"
    write_file(large, rows.slice(500))
    data = bytearray(large.read_bytes())
    metadata = parquet.read_metadata(large)
    column = metadata.row_group(metadata.num_row_groups - 2).column(3)
    first = column.data_page_offset
    data[first : first + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    large.write_bytes(data)
    with pytest.warns(UserWarning, match="1 file of 2 were left out"):
        result = wd.prepare(
            tmp_path / "in", tmp_path / "out", **KEYS, file_bytes=SMALL, on_error="skip"
        )
    assert result.rows == 500
    assert [source.rows for source in result.sources] == [500, 0]
    numbers = wd.Table.read(tmp_path / "out", **KEYS)["number"]
    assert sorted(numbers.tolist()) == sorted(rows["number"].slice(0, 500).to_pylist())


def test_a_full_disk_is_not_a_bad_source(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plant(monkeypatch, "sorted_files.write_batches", full)
    with pytest.raises(OSError, match="No space left"):
        wd.prepare(source, tmp_path / "out", **OPTIONS, on_error="skip")
    monkeypatch.undo()
    wd.prepare(source, tmp_path / "out", **OPTIONS, on_error="skip")
    assert wd.Prepared.read(tmp_path / "out").rows == 280


def test_nothing_but_bad_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none of 1 file can be read, the first is '.*a.parquet'"):
        wd.prepare(tmp_path / "in", tmp_path / "out", on_error="skip")


def test_a_row_group_is_read_as_a_whole(tmp_path: Path, source: Path) -> None:
    result = wd.prepare(source, tmp_path / "out", **{**OPTIONS, "row_group_bytes": 1024})
    for file in result.files:
        metadata = parquet.read_metadata(tmp_path / "out" / file.name)
        rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        assert len(rows) == file.row_groups
        assert max(rows) - min(rows) <= 1
        assert max(rows) <= 1024 // 24
    assert isinstance(parquet.read_table(tmp_path / "out" / "part-00000.parquet"), pa.Table)
