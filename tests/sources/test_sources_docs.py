"""The code in docs/sources.md runs, and the page lists every member."""

from __future__ import annotations

import re
import sys

from support.pages import Page
from support.recorded_members import declared_members
from windeck import sources

PAGE = Page("docs/sources.md")


def test_code_on_the_page_runs_from_top_to_bottom() -> None:
    PAGE.run()
    PAGE.check_links()
    assert len(PAGE.blocks) == 3


def test_the_page_lists_every_protocol_and_member() -> None:
    named = set(re.findall(r"`(\w+)", PAGE.text))
    assert declared_members() - {"__len__", "epoch_length"} <= named | {"gather"}
    kinds = {
        name
        for name in sys.modules[sources.Source.__module__].__all__
        if name.endswith(("Source", "Stream", "Rows", "Options", "Data"))
    }
    assert kinds - {"Source", "Stream"} <= named
    assert set(sources.__all__) >= kinds
