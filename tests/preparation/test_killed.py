"""`prepare` killed before and after every change of a file, locally and of an object store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import windeck as wd
from support.atomic_files import prepare
from support.prepare_cases import contents, unsorted_rows, write_files

#: Arguments: sources, folder, kind of destination, overwrite, changes before the process ends.
KILLED = """
import os, signal, sys
from pathlib import Path

sys.path.insert(0, "tests")
from support.atomic_files import prepare

source, folder, kind, overwrite, left = sys.argv[1:]
points = 0

def tick():
    global points
    if points == int(left):
        os.kill(os.getpid(), signal.SIGKILL)
    points += 1

def changing(call):
    def run(*arguments, **options):
        tick()
        found = call(*arguments, **options)
        tick()
        return found
    return run

for name in ("replace", "unlink", "remove", "rmdir"):
    setattr(os, name, changing(getattr(os, name)))
prepare(Path(source), Path(folder), kind, overwrite == "True")
print(points)
"""


def run(
    source: Path, folder: Path, kind: str, overwrite: bool, left: int
) -> subprocess.CompletedProcess[str]:
    arguments = map(str, (source, folder, kind, overwrite, left))
    command = [sys.executable, "-c", KILLED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check_result(folder: Path) -> None:
    """Assert that there is either a whole result or none."""
    try:
        found = wd.Prepared.read(folder / "out")
    except FileNotFoundError:
        return
    found.verify()
    table = wd.Table.read(folder / "out", id_columns="site", timestamp_column="time")
    assert sorted(table["number"].tolist()) == list(range(240))
    assert found.scalers["standard"]


CASES = [
    (kind, overwrite, kills)
    for kind in ("local", "scratch", "objects")
    for overwrite in (False, True)
    for kills in (2, 10**6)
]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("kind", "overwrite", "kills"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case[2] > 2 or case[0] == "scratch"))
        for case in CASES
    ],
)
def test_killed_at_any_change(tmp_path: Path, kind: str, overwrite: bool, kills: int) -> None:
    source = tmp_path / "in"
    write_files(source, unsorted_rows(series=4, length=60), 3)

    def begin(name: str) -> Path:
        folder = tmp_path / name
        (folder / "scratch").mkdir(parents=True)
        if overwrite:
            prepare(source, folder, kind, dtype="float32", file_bytes=2048)
        return folder

    whole = begin("whole")
    done = run(source, whole, kind, overwrite, -1)
    assert done.returncode == 0, done.stderr
    expected, points = contents(whole / "out"), int(done.stdout)
    assert points > 30, points
    assert len(expected) >= 4
    every = -(-points // kills)
    # Those of the end are changes after the manifest was written.
    for left in {*range(every // 2, points, every), points - 3}:
        folder = begin(f"killed{left}")
        assert run(source, folder, kind, overwrite, left).returncode == -9
        check_result(folder)
        prepare(source, folder, kind, overwrite)
        assert contents(folder / "out") == expected
        assert not list((folder / "scratch").iterdir())
