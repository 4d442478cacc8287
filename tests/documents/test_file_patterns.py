"""File patterns, compared with regular expressions."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from support.internals import first_unmatched, parse_patterns, path_filter

PATHS = [
    "/".join(parts)
    for depth in (1, 2, 3)
    for parts in itertools.product(("a", "ab", "b1", "x.part1.arrow"), repeat=depth)
]
PATTERNS = ["a", "a/b1", "*", "a*", "?", "a/*", "**", "**/b1", "a/**", "a/**/x.*", "*/b[0-9]"]
PATTERNS += ["[ab]*/**/*.part1.arrow", "**/a/**/b1", "a/**/**/b1", "**/*"]


def model(pattern: str) -> re.Pattern[str]:
    """Translate the pattern into a regular expression."""
    said = ""
    for part in pattern.split("/"):
        if part == "**":
            said += "(?:[^/]+/)*"
            continue
        name = re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        said += name.replace(r"\[", "[").replace(r"\]", "]").replace(r"\-", "-") + "/"
    return re.compile(f"{said}(?:[^/]+/)*")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_against_its_regular_expression(pattern: str) -> None:
    is_selected = path_filter((pattern,))
    expected = [path for path in PATHS if model(pattern).fullmatch(f"{path}/")]
    assert [path for path in PATHS if is_selected(path)] == expected
    assert expected  # or the test would show nothing


def test_several_patterns_mean_what_any_of_them_means() -> None:
    is_selected = path_filter(("a/b1", "b*"))
    assert {path for path in PATHS if is_selected(path)} == {
        path for path in PATHS if path_filter(("a/b1",))(path) or path_filter(("b*",))(path)
    }


def test_all_of_it() -> None:
    assert all(map(path_filter(None), PATHS))
    assert all(map(path_filter(parse_patterns("./")), PATHS))


def test_names_with_magic_in_them_may_be_named() -> None:
    assert path_filter(("dataset=a/x[1].arrow",))("dataset=a/x[1].arrow")


def test_which_pattern_means_nothing() -> None:
    assert first_unmatched(("a", "a/*", "**"), PATHS) is None
    assert first_unmatched(("a", "c", "d"), PATHS) == "c"
    assert first_unmatched(("a", "c*/x"), PATHS) == "c*/x"


def test_forms_of_the_argument() -> None:
    assert parse_patterns(None) is None
    assert parse_patterns("./dataset=a//x/") == ("dataset=a/x",)
    assert parse_patterns([Path("a"), "b"]) == ("a", "b")


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        (3, TypeError, "`files` must be a glob or several globs, got 3"),
        ([3], TypeError, "`files` must hold globs relative to the root, got 3"),
        (b"a", TypeError, "`files` must hold globs relative to the root, got 97"),
        ([], ValueError, "`files` must hold at least one glob, got none"),
        ("/etc/*", ValueError, "`files` must hold globs relative to the root, got '/etc/.*'"),
        ("a/../../b", ValueError, "`files` must hold globs relative to the root, got '../b'"),
    ],
)
def test_what_is_no_pattern(files: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        parse_patterns(files)
