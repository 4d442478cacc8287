"""The page on embedding tables does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from store_servers import need
from windeck import checkpoint

PAGE = Path(__file__).resolve().parents[1] / "docs" / "embeddings.md"


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    first, second, third = blocks
    names: dict[str, Any] = {}
    exec(compile(first, str(PAGE), "exec"), names)
    assert names["same"]
    assert names["again"].item.rows == names["model"].item.rows > 90
    assert [commit.step for commit in checkpoint.log(names["url"])] == [10]
    shown = re.findall(r"^(table\.\S.*?)  +# (\(.*?\)|\[.*?\])", second, re.MULTILINE)
    assert len(shown) == 4
    exec(compile(second.split("\n\n")[0], str(PAGE), "exec"), names)
    for line, wanted in shown:
        assert str(eval(line, names)) == wanted
    meeting = third.replace("/tmp/windeck-meeting", f"{tmp_path}/meeting")
    exec(compile(meeting, str(PAGE), "exec"), names)
    assert names["table"].rows == 2


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text(encoding="utf-8"))
    assert all((PAGE.parent / link).exists() for link in links)
