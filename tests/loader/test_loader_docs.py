"""The code in docs/loader.md runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.corpora import write_corpus
from support.pages import Page

# Python 3.12 and later warn of forks while torch's threads run.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

PAGE = Page("docs/loader.md")


def test_code_on_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus", {"c4/x.part0": [[1] * 50] * 40}, counts=True)
    PAGE.run()
    assert len(PAGE.blocks) > 5
