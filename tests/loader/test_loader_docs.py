"""The code in docs/loader.md runs."""

from __future__ import annotations

import pytest

from support.pages import Page

# Python 3.12 and later warn of forks while torch's threads run.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

PAGE = Page("docs/loader.md")


@pytest.mark.usefixtures("demo_folder")
def test_code_on_the_page_runs_from_top_to_bottom() -> None:
    PAGE.run()
    assert len(PAGE.blocks) > 5
