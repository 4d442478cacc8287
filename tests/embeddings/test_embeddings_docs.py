"""The code and the links of the page on embedding tables work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from support.pages import Page
from support.store_servers import need
from windeck import checkpoint

PAGE = Page("docs/embeddings.md")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    bags, narrow, mixed, second, third = PAGE.blocks[1:]
    names = PAGE.run(only=slice(1))
    assert names["same"]
    assert names["again"].item.rows == names["model"].item.rows > 90
    assert [commit.step for commit in checkpoint.log(names["url"])] == [10]
    exec(compile(bags, "bags", "exec"), names)
    assert names["bags"].rows == 4
    exec(compile(narrow, "narrow", "exec"), names)
    assert (names["rows"].dtype, names["narrow"].core.clock) == (torch.bfloat16, 1)
    clock = names["model"].user.core.clock
    exec(compile(mixed, "mixed", "exec"), names)
    assert names["model"].user.core.clock == clock + 1
    shown = re.findall(
        r"^((?:len\(table\)|table\.)\S.*?)  +# (\(.*?\)|\[.*?\])", second, re.MULTILINE
    )
    assert len(shown) == 4
    exec(compile(second.split("\n\n")[0], "block 2", "exec"), names)
    for line, wanted in shown:
        assert str(eval(line, names)) == wanted
    meeting = third.replace("/tmp/windeck-meeting", f"{tmp_path}/meeting")
    exec(compile(meeting, "block 3", "exec"), names)
    assert names["table"].rows == 2


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
