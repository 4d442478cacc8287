"""Examples of the page on tables and of docstrings."""

from __future__ import annotations

import pytest

from support.pages import Page

PAGE = Page("docs/table.md")


@pytest.mark.usefixtures("demo_folder")
def test_code_on_the_page_runs() -> None:
    assert len(PAGE.blocks) == 10
    names = PAGE.run(only=slice(1))
    assert names["table"].column("wind").categories == ("W", "S", "E", "N")
    assert names["table"].num_rows == 4 * 90 * 24
    assert PAGE.run(names, only=slice(1, None))["table"]["load"].tolist() == [1, 2, 3]
