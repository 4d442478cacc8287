"""`docs/describe.md`: it shows what the command prints, and names every role."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.internals import write_load_curve
from support.pages import Page
from support.programs import command

PAGE = Page("docs/describe.md")


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")  # without it no loader is printed
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    write_load_curve("out/load-curve.parquet")
    (line,) = re.findall(r"```bash\nwindeck (.*?)\n```", PAGE.text)
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.text, re.DOTALL)
    assert command(*line.split()) == (0, shown, "")
