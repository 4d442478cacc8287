"""The page on bridges does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pages import Page
from support.store_servers import need
from windeck import checkpoint

PAGE = Page("docs/bridges.md")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    assert len(PAGE.blocks) == 2
    names = PAGE.run()
    assert [commit.step for commit in checkpoint.log(names["url"])] == [200, 100]
    assert [commit.step for commit in checkpoint.log("memory://copy")] == [200]
    assert tuple(names["load_file"]("model.safetensors")["weight"].shape) == (2, 8)
    assert sorted(path.name for path in tmp_path.glob("parts*")) == [
        "parts-00001-of-00002.safetensors",
        "parts-00002-of-00002.safetensors",
        "parts.safetensors.index.json",
    ]


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
