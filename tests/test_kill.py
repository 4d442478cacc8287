"""Processes of the demo: none outlives it, and one that fails is quoted."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from windeck.tools.job import Job
from windeck.tools.kill import kill_and_resume, trainee
from windeck.tools.stage import Page


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_does_not_outlive_the_demo(tmp_path: Path) -> None:
    with trainee(tmp_path, "--log", str(tmp_path / "log")) as process:
        assert is_running(process.pid)
    assert not is_running(process.pid)


def test_a_process_that_fails_is_quoted(tmp_path: Path) -> None:
    page = Page(Console(file=io.StringIO()), progress=False)
    task = Job(str(tmp_path / "nowhere.parquet"), (), (), "load", steps=9)
    with pytest.raises(RuntimeError, match=r"process failed, and said: .*nowhere\.parquet"):
        kill_and_resume(task, 5, tmp_path, page)
