"""The files of `windeck demo`, written once for each process of tests, and its runs in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.internals import original
from support.programs import command


@cache
def _written() -> TemporaryDirectory[str]:
    """Write the files into a folder that is deleted with the process."""
    folder = TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    code, _, err = command("demo", "--files-only", "--out", folder.name)
    assert (code, err) == (0, "")
    return folder


def copy_demo_files(out: Path) -> None:
    """Give a folder the files of the demo, by hard links: code of pages must not change them."""
    shutil.copytree(_written().name, out, copy_function=os.link)


@pytest.fixture
def demo_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder in which `windeck demo` has run; return it."""
    copy_demo_files(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_hours(path: Path, *, sites: int = 2, days: int = 10) -> Path:
    """Write hourly loads of some sites, in order of site and timestamp, as Parquet."""
    stamps = np.arange(24 * days) * np.timedelta64(3600, "s") + np.datetime64("2021-01-01", "s")
    load = np.random.default_rng(0).random(len(stamps) * sites) + np.tile(
        np.sin(stamps.astype(int) / 86400 * 2 * np.pi), sites
    )
    columns = {
        "site": np.repeat([f"site-{number}" for number in range(sites)], len(stamps)),
        "timestamp": np.tile(stamps, sites),
        "load": load,
    }
    pq.write_table(pa.table(columns), path)
    return path


class Killed(Exception):
    """An exception in place of a kill, after which nothing is saved."""


def trained_here(at: int | None = None) -> Callable[..., None]:
    """Return what trains in this process, in place of a process of the demo that is killed.

    It is killed before the step after `at`, or where the demo kills its process.
    """
    train = original("demo_job.train")

    def run(job: Any, log: Path, state: Path, kill_at: int | None = None) -> None:
        if kill_at is None:
            train(job, log=log, state=state, resume=True)
            return
        with suppress(Killed), mock.patch("time.sleep", side_effect=Killed):
            train(job, log=log, state=state, wait_at=at or kill_at)

    return run
