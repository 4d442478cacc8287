"""Pages with code of other libraries, of which blocks run where these are installed."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from support.pages import Page

BLOCK = re.compile(
    r"(?:^<!-- needs ([\w., ]+) -->\n)?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE
)


class RivalPage(Page):
    """A page whose blocks of Python may have the line ``<!-- needs MODULE, ... -->`` above them.

    A block runs if all modules that it needs are installed.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        found = BLOCK.findall(self.text)
        assert [code for _, code in found] == self.blocks
        self.needs = [re.findall(r"[\w.]+", needs) for needs, _ in found]

    def missing(self) -> list[str]:
        """Return the modules that blocks need and that are not installed."""
        needed = {module for needs in self.needs for module in needs}
        return sorted(name for name in needed if importlib.util.find_spec(name) is None)

    def run_installed(self) -> dict[str, Any]:
        """Run the blocks whose modules are installed, in one namespace; return its names."""
        missing, names = set(self.missing()), {"__name__": "page"}
        for number, (needs, block) in enumerate(zip(self.needs, self.blocks, strict=True), 1):
            if missing.isdisjoint(needs):
                exec(compile(block, f"{self.path.name}, block {number}", "exec"), names)
        return names
