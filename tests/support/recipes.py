"""Recipes of docs/frameworks.md, by the heading of their section."""

from __future__ import annotations

import re
from typing import Any

from support.pages import Page

PAGE = Page("docs/frameworks.md")


def blocks(heading: str) -> list[str]:
    """Return the blocks of Python below a heading."""
    (section,) = re.findall(
        rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.text, re.DOTALL | re.MULTILINE
    )
    found: list[str] = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found


def names(*headings: str) -> dict[str, Any]:
    """Return the names that the code below headings defines."""
    found: dict[str, Any] = {"__name__": "page"}
    for heading in headings:
        for number, block in enumerate(blocks(heading), 1):
            exec(compile(block, f"frameworks.md, {heading}, block {number}", "exec"), found)
    return found
