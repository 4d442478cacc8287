"""Tests of pages of documentation: their code runs, their links lead to files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from support.page_session import blocks_of

ROOT = Path(__file__).resolve().parents[2]


class Page:
    """A page, given by its path from the root of the repository."""

    def __init__(self, path: str) -> None:
        self.path = ROOT / path
        self.text = self.path.read_text(encoding="utf-8")
        self.blocks: list[str] = re.findall(
            r"^```python\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE
        )

    def run(
        self, names: dict[str, Any] | None = None, *, only: slice = slice(None)
    ) -> dict[str, Any]:
        """Run blocks one after the other; return the names that they define.

        A block below ``<!-- docs-test: needs NAME -->`` is left out where NAME is not installed.
        """
        needing = [block for block in blocks_of(self.text) if block.order == "needs"]
        skipped = {
            block.code
            for block in needing
            if block.argument not in sys.modules and block.reason_to_skip()
        }
        names = {"__name__": "page"} if names is None else names
        assert self.blocks[only], f"{self.path.name} has {len(self.blocks)} blocks of Python"
        for number, block in enumerate(self.blocks[only], 1 + (only.start or 0)):
            if block in skipped:
                continue
            exec(compile(block, f"{self.path.name}, block {number}", "exec"), names)
        return names

    def check_links(self) -> None:
        """Assert that all links to files lead to a file."""
        links = re.findall(r"\]\(([^)#:]+)\)", self.text.replace("\n", " "))
        for link in links:
            assert (self.path.parent / link).exists(), link


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def named_block(path: str, name: str) -> dict[str, Any]:
    """Run the block of a page that contains `name`; return the names that it defines."""
    (block,) = (block for block in Page(path).blocks if name in block)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, f"{path}, {name}", "exec"), names)
    return names
