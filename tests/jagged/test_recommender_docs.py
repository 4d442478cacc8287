"""The code and the links of the page for recommenders work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.pages import Page
from support.store_servers import need

PAGE = Page("docs/recommender.md")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = PAGE.run()
    losses = names["losses"]
    assert len(losses) == 3 * 40
    assert sum(losses[-40:]) < 0.7 * sum(losses[:40])
    assert names["loader"].position == 30_000 + 512
    assert names["again"].items.rows == names["model"].items.rows == 500
    found = names["arguments"]
    assert found["keys"] == ["seen"]
    assert len(found["values"]) == found["lengths"].sum()


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
