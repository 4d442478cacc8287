"""Run the code blocks of a page, top to bottom, in the current folder.

    python tests/support/page_session.py PAGE

Blocks of ``python`` share one session, those of ``bash`` run in a shell in the same folder, with
the commands of this environment. The exit code is 1 if a block fails: the last line of the output
names page, line and error. A comment above a block changes what happens to it
(docs/design/docs.md):

    <!-- docs-test: file NAME -->    the block is written to NAME, for a later block to use
    <!-- docs-test: needs NAME -->   skipped where the module NAME is not installed
    <!-- docs-test: needs gpu -->    skipped where torch finds none
    <!-- docs-test: skip REASON -->  never run

Lines ``skipped LINE: REASON`` name the blocks that were not run.
"""

from __future__ import annotations

import importlib.util
import linecache
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"(?:^<!-- docs-test: (?P<order>file|needs|skip) (?P<argument>[^\n]+?) -->\n+)?"
    r"^```(?P<language>python|bash)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of code, the line of its first line, and the comment above it."""

    language: str
    code: str
    line: int
    order: str
    argument: str

    def reason_to_skip(self) -> str:
        """Return why the block is not run; empty if it is."""
        if self.order == "skip":
            return self.argument
        if self.order != "needs":
            return ""
        if self.argument == "gpu":
            import torch

            return "" if torch.cuda.is_available() else "needs a GPU"
        found = importlib.util.find_spec(self.argument)
        return "" if found else f"needs {self.argument}, which is not installed"


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    for match in BLOCK.finditer(text):
        yield Block(
            language=match["language"],
            code=match["code"],
            line=text.count("\n", 0, match.start("code")) + 1,
            order=match["order"] or "",
            argument=match["argument"] or "",
        )


def run_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    """Run a block; tracebacks and `inspect` see the lines of the page."""
    if ">>> " in block.code:
        run_doctest(block, page, names)
    else:
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def run_doctest(block: Block, page: Path, names: dict[str, Any]) -> None:
    """Run the examples of a block and compare what they print."""
    import doctest

    test = doctest.DocTestParser().get_doctest(block.code, names, page.name, str(page), None)
    test.globs = names  # those of later blocks too
    test.lineno = block.line - 1
    if doctest.DocTestRunner().run(test, clear_globs=False).failed:
        raise AssertionError("an example prints something else")


def run_bash(block: Block) -> None:
    """Run a block in a shell, until its first command that fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", block.code]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})


def failed_line(error: BaseException, block: Block, page: Path) -> int:
    """Return the line of the page that raised the error last."""
    if isinstance(error, SyntaxError) and error.filename == str(page):
        return error.lineno or block.line
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(page) and frame.lineno]
    return lines[-1] if lines else block.line


def run(page: Path) -> int:
    """Run all blocks; return the exit code."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    linecache.lazycache(str(page), names)
    for block in blocks_of(text):
        if reason := block.reason_to_skip():
            print(f"skipped {block.line}: {reason}", flush=True)
            continue
        try:
            if block.order == "file":
                Path(block.argument).write_text(block.code, encoding="utf-8")
            elif block.language == "bash":
                run_bash(block)
            else:
                run_python(block, page, names)
        except Exception as error:
            traceback.print_exc()
            line = failed_line(error, block, page)
            print(f"{page.name}:{line}: {type(error).__name__}: {error}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    # As in an interactive session: modules of the current folder can be imported.
    sys.path[0] = ""
    sys.exit(run(Path(sys.argv[1]).resolve()))
