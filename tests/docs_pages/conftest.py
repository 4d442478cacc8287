"""A folder in which `windeck demo` ran once, as the pages expect it."""

from __future__ import annotations

from pathlib import Path

import pytest

from windeck.cli.main import main


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `windeck demo` with a short training; return the folder with its files."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["demo", "--steps", "2"])
    if not (folder / "out" / "clicks.parquet").exists():
        pytest.skip("this `windeck demo` does not write the files of the pages")
    return folder
