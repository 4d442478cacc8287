"""The page on bridges does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from store_servers import need
from windeck import checkpoint

PAGE = Path(__file__).resolve().parents[1] / "docs" / "bridges.md"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert [commit.step for commit in checkpoint.log(names["url"])] == [200, 100]
    assert [commit.step for commit in checkpoint.log("memory://copy")] == [200]
    assert tuple(names["load_file"]("model.safetensors")["weight"].shape) == (2, 8)
    assert sorted(path.name for path in tmp_path.glob("parts*")) == [
        "parts-00001-of-00002.safetensors",
        "parts-00002-of-00002.safetensors",
        "parts.safetensors.index.json",
    ]


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text(encoding="utf-8"))
    assert links
    assert all((PAGE.parent / link).exists() for link in links)
