"""The language of docstrings: plain first lines, and no words that have to be read twice."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "windeck"

#: First words that make a noun of a question.
QUESTIONS = {"how", "what", "when", "where", "whether", "which", "who", "whose", "why"}
#: First words of a noun phrase: a function's docstring is an instruction and begins with a verb.
NOUN_PHRASES = {"a", "all", "an", "any", "each", "every", "it", "its", "no", "one", "some"}
NOUN_PHRASES |= {"that", "the", "their", "these", "they", "this", "those", "two"}
#: Verbs that end in a single "s" and are imperatives all the same.
IMPERATIVES = {"alias", "bias", "focus"}
BANNED = re.compile(
    r"how-manieth|whoever|nobody|somebody|one's own|of its own accord|\bhouses?\b|\bdoors?\b"
    r"|\brooms?\b|\btells? of\b|\btold of\b|\bthere is no third\b|\bfor ever\b|\briddle",
    re.IGNORECASE,
)


def faults(path: Path) -> Iterator[str]:
    """Yield the faults of the docstrings, comments and messages of a file."""
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        for found in BANNED.finditer(line):
            yield f"{path}:{number}: {found.group()!r}"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        first = (ast.get_docstring(node) or "").split("\n")[0]
        word = re.sub(r"[^a-z-]", "", first.split(" ")[0].lower())
        line_number = getattr(node, "lineno", 1)
        where = f"{path}:{line_number}: {first!r}"
        if word in QUESTIONS:
            yield f"{where} begins with a question word"
        is_property = any(
            getattr(mark, "id", getattr(mark, "attr", "")).endswith(("property", "getter"))
            for mark in getattr(node, "decorator_list", ())
        )
        if isinstance(node, ast.FunctionDef) and not is_property and first:
            third_person = re.search(r"[^s]s$", word) and word not in IMPERATIVES
            if word in NOUN_PHRASES or third_person:
                yield f"{where} does not begin with an imperative"


@pytest.mark.parametrize(
    "path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES))
)
def test_docstrings_are_plain(path: Path) -> None:
    assert not list(faults(path))


if __name__ == "__main__":
    for place in sys.argv[1:]:
        below = [Path(place)] if Path(place).is_file() else sorted(Path(place).rglob("*.py"))
        for source in below:
            print(*faults(source), sep="\n", end="\n")
