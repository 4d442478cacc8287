"""The code of the pages on windows, scalers and the gather, and of docstrings, runs."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

import windeck.windows.scaler
import windeck.windows.windows
from support.pages import Page, check_examples


@pytest.mark.parametrize("page", ["windows.md", "scaler.md"])
def test_code_on_the_page_runs(page: str) -> None:
    found = Page(f"docs/{page}")
    assert found.blocks
    for number in range(len(found.blocks)):
        found.run(only=slice(number, number + 1))


@pytest.mark.parametrize("module", [windeck.windows.scaler, windeck.windows.windows])
def test_examples_in_docstrings(module: ModuleType) -> None:
    check_examples(module.__name__)


def test_examples_on_the_page_on_the_gather() -> None:
    found = doctest.testfile(str(Page("docs/gather.md").path), module_relative=False)
    assert found.attempted > 0
    assert not found.failed
