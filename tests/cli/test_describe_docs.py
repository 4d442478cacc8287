"""`docs/describe.md`: it shows what the command prints, and names every role."""

from __future__ import annotations

import re

import pytest

from support.pages import Page
from support.programs import command

PAGE = Page("docs/describe.md")


@pytest.mark.usefixtures("demo_folder")
def test_the_page_shows_what_the_command_prints() -> None:
    pytest.importorskip("torch")  # without it no loader is printed
    (line,) = re.findall(r"```bash\nwindeck (.*?)\n```", PAGE.text)
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.text, re.DOTALL)
    assert command(*line.split()) == (0, shown, "")
