"""Make notebooks of pages: `python docs/notebooks.py PAGE... --out FOLDER`.

Blocks of Python become cells of code, blocks of Bash cells of the shell; the text between them
becomes cells of Markdown.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)


def notebook_of(page: Path) -> dict[str, Any]:
    """Return the notebook of a page, as a dict that is the JSON of an `.ipynb` file."""
    text = page.read_text(encoding="utf-8")
    cells: list[dict[str, Any]] = []
    end = 0
    for block in BLOCK.finditer(text):
        _append(cells, "markdown", _without_links(text[end : block.start()]))
        shell = "%%bash\n" if block[1] == "bash" else ""
        _append(cells, "code", shell + block[2])
        end = block.end()
    _append(cells, "markdown", _without_links(text[end:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _append(cells: list[dict[str, Any]], kind: str, source: str) -> None:
    if not source.strip():
        return
    cell: dict[str, Any] = {"id": f"cell-{len(cells)}", "cell_type": kind, "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    cells.append(cell | {"source": source.strip("\n").splitlines(keepends=True)})


def _without_links(text: str) -> str:
    """Replace links to other pages by their texts: a notebook has no pages next to it."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)\s]+\)", r"\1", text)


def main() -> None:
    """Write the notebooks of the pages that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", metavar="PAGE", nargs="+", type=Path)
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=Path("out/notebooks"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for page in options.pages:
        target = options.out / f"{page.stem}.ipynb"
        target.write_text(json.dumps(notebook_of(page), indent=1) + "\n", encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
