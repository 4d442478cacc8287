"""The code in docs/mixture.md runs."""

from __future__ import annotations

import pytest

from support.pages import Page

PAGE = Page("docs/mixture.md")


def test_code_on_the_page_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    PAGE.run()
    assert len(PAGE.blocks) > 5
    assert "wiki: 0.200000 requested, 2 slots = 0.200000" in capsys.readouterr().out
