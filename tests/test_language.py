"""Tests of the language of docstrings: plain first words, no banned words."""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src" / "windeck"
BENCHMARKS = TESTS.parent / "benchmarks"

#: First words that make a noun of a question.
QUESTIONS = {"how", "what", "when", "where", "whether", "which", "who", "whose", "why"}
#: First words of a noun phrase: a function's docstring is an instruction and begins with a verb.
NOUN_PHRASES = {"a", "all", "an", "any", "each", "every", "it", "its", "no", "one", "some"}
NOUN_PHRASES |= {"that", "the", "their", "these", "they", "this", "those", "two"}
#: Verbs that end in a single "s" and are imperatives all the same.
IMPERATIVES = {"alias", "bias", "focus"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BANNED = re.compile(
    r"how-manieth|whoever|nobody|somebody|one's own|of its own accord|\bhouses?\b|\bdoors?\b"
    r"|\brooms?\b|\btells? of\b|\btold of\b|\bthere is no third\b|\bfor ever\b|\briddle",
    re.IGNORECASE,
)


@lru_cache(1)
def documented(path: Path) -> list[tuple[ast.AST, str, str]]:
    """Return the documented nodes of a file, with their docstring and their place."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    found: list[tuple[ast.AST, str, str]] = []
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            text = ast.get_docstring(node)
            if text:
                first = text.split("\n")[0]
                found.append((node, text, f"{path}:{getattr(node, 'lineno', 1)}: {first!r}"))
        # Expressions have no statements, and so no functions.
        nodes += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]
    return found


def faults_of_first_words(path: Path, *, imperatives: bool) -> Iterator[str]:
    """Yield the docstrings that begin with a question word, or functions' with no imperative."""
    for node, text, where in documented(path):
        word = re.sub(r"[^a-z-]", "", text.split()[0].lower())
        is_property = any(
            getattr(mark, "id", getattr(mark, "attr", "")).endswith(("property", "getter"))
            for mark in getattr(node, "decorator_list", ())
        )
        if word in QUESTIONS or (word == "that" and not is_property):
            yield f"{where} begins with a question word"
        if text.split("\n\n")[0].endswith("?"):
            yield f"{where} is a question"
        if imperatives and isinstance(node, FUNCTIONS) and not is_property:
            third_person = re.search(r"[^s]s$", word) and word not in IMPERATIVES
            if word in NOUN_PHRASES or third_person:
                yield f"{where} does not begin with an imperative"


def faults(path: Path) -> Iterator[str]:
    """Yield the faults of the docstrings, comments and messages of a source file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for found in BANNED.finditer(line):
            yield f"{path}:{number}: {found.group()!r}"
    yield from faults_of_first_words(path, imperatives=True)


def faults_of_tests(path: Path) -> Iterator[str]:
    """Yield the faults of the docstrings and comments of a test or a benchmark.

    The docstring of a test is a sentence. Functions have to begin with an imperative in models and
    support, which are read first.
    """
    read_first = bool({"models", "support"} & {part.name for part in path.parents})
    yield from faults_of_first_words(path, imperatives=read_first)
    for _, text, where in documented(path):
        for found in BANNED.finditer(text):
            yield f"{where} contains {found.group()!r}"
    if not BANNED.search(path.read_text(encoding="utf-8")):
        return  # Finding comments takes longest.
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                for found in BANNED.finditer(token.string):
                    yield f"{path}:{token.start[0]}: {found.group()!r}"


def test_docstrings_are_plain() -> None:
    assert not [fault for path in sorted(SOURCES.rglob("*.py")) for fault in faults(path)]


def test_messages_and_docstrings_name_no_page_of_the_sources() -> None:
    """An installed package has none: a message says what to do, a docstring "the guide on X"."""
    assert not [
        f"{path}:{node.lineno}: {node.value!r}"
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(r"\bdocs/|\bexamples/", node.value)
    ]


@pytest.mark.parametrize("folder", [TESTS, BENCHMARKS], ids=lambda folder: folder.name)
def test_docstrings_of_tests_and_benchmarks_are_plain(folder: Path) -> None:
    assert not [fault for path in sorted(folder.rglob("*.py")) for fault in faults_of_tests(path)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("What a store does.", "question word"),
        ("That a store is empty.", "question word"),
        ("Return the how-manieth row.", "how-manieth"),
        ("The rows of a store.", "imperative"),
        ("Returns the rows of a store.", "imperative"),
        ("Is a store empty?", "is a question"),
    ],
)
def test_faults_are_found(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "support" / "stores.py"
    path.parent.mkdir()
    path.write_text(f'def rows() -> None:\n    """{text}"""\n', encoding="utf-8")
    assert any(fault in found for found in faults(path))
    assert any(fault in found for found in faults_of_tests(path))


if __name__ == "__main__":
    for place in sys.argv[1:]:
        below = [Path(place)] if Path(place).is_file() else sorted(Path(place).rglob("*.py"))
        for source in below:
            print(*faults(source), sep="\n", end="\n")
