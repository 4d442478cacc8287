"""The page on the loader, and the examples in the code, do what they say."""

from __future__ import annotations

import pytest

from support.pages import Page

# Forks beside torch's threads: Python 3.12 and later warn of them.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

PAGE = Page("docs/loader.md")


def test_code_on_the_page_runs_from_top_to_bottom() -> None:
    PAGE.run()
    assert len(PAGE.blocks) > 5
