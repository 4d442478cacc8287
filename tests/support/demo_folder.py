"""The files of `windeck demo`, written once for each process of tests."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.internals import write_files, write_load_curve


@cache
def _written() -> TemporaryDirectory[str]:
    """Write the files into a folder that is deleted with the process."""
    folder = TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    write_load_curve(Path(folder.name, "load-curve.parquet"))
    write_files(Path(folder.name))
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
