"""Patterns against a plain reading of them as regular expressions."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from windeck.documents.discovery import as_patterns, selector, unmatched

PATHS = [
    "/".join(parts)
    for depth in (1, 2, 3)
    for parts in itertools.product(("a", "ab", "b1", "x.part1.arrow"), repeat=depth)
]
PATTERNS = ["a", "a/b1", "*", "a*", "?", "a/*", "**", "**/b1", "a/**", "a/**/x.*", "*/b[0-9]"]
PATTERNS += ["[ab]*/**/*.part1.arrow", "**/a/**/b1", "a/**/**/b1", "**/*"]


def model(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression, translated by hand."""
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
    means = selector((pattern,))
    expected = [path for path in PATHS if model(pattern).fullmatch(f"{path}/")]
    assert [path for path in PATHS if means(path)] == expected
    assert expected  # or the test would show nothing


def test_several_patterns_mean_what_any_of_them_means() -> None:
    means = selector(("a/b1", "b*"))
    assert {path for path in PATHS if means(path)} == {
        path for path in PATHS if selector(("a/b1",))(path) or selector(("b*",))(path)
    }


def test_all_of_it() -> None:
    assert all(map(selector(None), PATHS))
    assert all(map(selector(as_patterns("./")), PATHS))


def test_names_with_magic_in_them_may_be_named() -> None:
    assert selector(("dataset=a/x[1].arrow",))("dataset=a/x[1].arrow")


def test_which_pattern_means_nothing() -> None:
    assert unmatched(("a", "a/*", "**"), PATHS) is None
    assert unmatched(("a", "c", "d"), PATHS) == "c"
    assert unmatched(("a", "c*/x"), PATHS) == "c*/x"


def test_forms_of_the_argument() -> None:
    assert as_patterns(None) is None
    assert as_patterns("./dataset=a//x/") == ("dataset=a/x",)
    assert as_patterns([Path("a"), "b"]) == ("a", "b")


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        (3, TypeError, "files is 3; expected a glob relative to the root, or several"),
        ([3], TypeError, "files holds 3; expected globs relative to the root"),
        (b"a", TypeError, "files holds 97; expected globs"),
        ([], ValueError, "files is empty; expected a glob"),
        ("/etc/*", ValueError, "files holds '/etc/.*'; expected globs relative to the root"),
        ("a/../../b", ValueError, "files holds '../b'; expected globs relative to the root"),
    ],
)
def test_what_is_no_pattern(files: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        as_patterns(files)
