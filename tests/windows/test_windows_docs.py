"""The code of the pages on windows, scalers and the gather, and of docstrings, runs."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from support.pages import Page


@pytest.mark.parametrize("page", ["windows.md", "scaler.md"])
def test_code_on_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # The pages write files.
    Page(f"docs/{page}").run()


@pytest.mark.parametrize("page", ["gather.md", "device.md"])
def test_examples_on_the_page_have_their_results(page: str) -> None:
    path = str(Page(f"docs/{page}").path)
    found = doctest.testfile(path, module_relative=False)
    assert found.attempted > 0
    if found.failed:
        doctest.testfile(path, module_relative=False, raise_on_error=True)  # perhaps skipped
        pytest.fail("the examples fail once")
