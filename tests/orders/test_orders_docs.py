"""The page on orders, and the examples in the code, do what they say."""

from __future__ import annotations

import pytest

from support.pages import Page

PAGE = Page("docs/orders.md")


def test_code_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PAGE.blocks) == 5
    names = PAGE.run()
    assert names["order"].index(names["batch"][0]) == 64
    assert names["saved"] == names["lcg"].state
    assert "FAILED" not in capsys.readouterr().out
