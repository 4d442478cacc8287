"""`docs/doctor.md`: its code runs, and it names every cause, loop and option."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.pages import Page
from windeck.cli.main import main
from windeck.diagnosis import CAUSES

PAGE = Page("docs/doctor.md")


def test_the_code_runs_and_names_the_planted_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    PAGE.run()
    assert capsys.readouterr().out.endswith("\nsleep\n")
    assert json.loads((tmp_path / "here.json").read_text())["findings"][0]["kind"] == "sleep"
    assert (tmp_path / "here.html").exists()


def test_every_cause_and_option_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    causes = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE.text, re.MULTILINE)
    assert {name.strip("`") for names in causes for name in names.split(", ")} == {*CAUSES}
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert set(re.findall(r"(?<=\s)--[a-z-]+", PAGE.text)) <= known


def test_links() -> None:
    PAGE.check_links()
    assert "docs/doctor.md" in Page("README.md").text
