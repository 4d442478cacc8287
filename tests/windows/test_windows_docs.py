"""The pages on windows and scalers, and the examples in the code, do what they say."""

from __future__ import annotations

import pytest

from support.pages import Page


@pytest.mark.parametrize("page", ["windows.md", "scaler.md"])
def test_code_on_the_page_runs(page: str) -> None:
    found = Page(f"docs/{page}")
    assert found.blocks
    for number in range(len(found.blocks)):
        found.run(only=slice(number, number + 1))
