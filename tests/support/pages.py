"""The documents' own code: its blocks run, its links lead somewhere, examples in the code hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Page:
    """A page, by its path from the top of the checkout."""

    def __init__(self, path: str) -> None:
        self.path = ROOT / path
        self.text = self.path.read_text(encoding="utf-8")
        self.blocks: list[str] = re.findall(
            r"^```python\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE
        )

    def run(
        self, names: dict[str, Any] | None = None, *, only: slice = slice(None)
    ) -> dict[str, Any]:
        """Run blocks one after the other; the names they leave."""
        names = {"__name__": "page"} if names is None else names
        assert self.blocks[only], f"{self.path.name} has {len(self.blocks)} blocks of Python"
        for number, block in enumerate(self.blocks[only], 1 + (only.start or 0)):
            exec(compile(block, f"{self.path.name}, block {number}", "exec"), names)
        return names

    def check_links(self) -> None:
        """All links to files lead to one."""
        links = re.findall(r"\]\(([^)#:]+)\)", self.text.replace("\n", " "))
        for link in links:
            assert (self.path.parent / link).exists(), link


def named_block(path: str, name: str) -> dict[str, Any]:
    """Run the one block of a page that contains `name`; the names it leaves."""
    (block,) = (block for block in Page(path).blocks if name in block)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, f"{path}, {name}", "exec"), names)
    return names
