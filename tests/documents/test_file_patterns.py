"""File patterns, compared with regular expressions."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest

from support.corpora import write_counts, write_lists
from windeck import Documents

FOLDERS = [
    "".join(f"{name}/" for name in names)
    for depth in range(4)
    for names in itertools.product(("a", "ab", "b1"), repeat=depth)
]
PATHS = sorted(f"{folder}{name}" for folder in FOLDERS for name in ("x.arrow", "y2.arrow"))
PATTERNS = ["a", "a/b1", "*", "a*", "?", "a/*", "**", "**/b1", "a/**", "a/**/x.*", "*/b[0-9]"]
PATTERNS += ["[ab]*/**/*2.arrow", "**/a/**/b1", "a/**/**/b1", "**/*", "?.arrow", "a/x.arrow"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of one document for each of the paths."""
    root = tmp_path_factory.mktemp("corpus")
    for path in PATHS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_lists(root / path, [[1]])
    # With counts of all files, none of them has to be read.
    write_counts(root, ["dataset/filename,documents,tokens", *(f"{path},1,1" for path in PATHS)])
    return root


def selected(root: Path, files: Any) -> list[str]:
    """Return the paths of the shards that patterns select."""
    documents = Documents(root, files=files)
    shards = map(documents.shard_path, range(len(documents)))
    return sorted(os.path.relpath(shard, root) for shard in shards)


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
def test_each_pattern_against_its_regular_expression(pattern: str, corpus: Path) -> None:
    expected = [path for path in PATHS if model(pattern).fullmatch(f"{path}/")]
    assert selected(corpus, pattern) == expected
    assert expected  # or the test would show nothing


def test_several_patterns_mean_what_any_of_them_means(corpus: Path) -> None:
    both = selected(corpus, ["a/b1", "b*"])
    assert both == sorted({*selected(corpus, "a/b1"), *selected(corpus, "b*")})


@pytest.mark.parametrize("files", [None, "./", [Path("."), "a"]])
def test_all_of_it(files: Any, corpus: Path) -> None:
    assert selected(corpus, files) == PATHS


def test_names_with_magic_in_them_may_be_named(tmp_path: Path) -> None:
    write_lists(tmp_path / "x[1].arrow", [[1]])
    write_lists(tmp_path / "y.arrow", [[1]])
    assert selected(tmp_path, "x[1].arrow") == ["x[1].arrow"]


@pytest.mark.parametrize("pattern", ["c", "c*/x.arrow", "a/x", "a/b1/y3.arrow"])
def test_which_pattern_means_nothing(pattern: str, corpus: Path) -> None:
    message = f"no shard below {str(corpus)!r} matches {pattern!r} of `files`"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        Documents(corpus, files=["a", "a/*", "**", pattern, "d"])


def test_forms_of_the_argument(corpus: Path) -> None:
    assert selected(corpus, "./a//b1/") == selected(corpus, [Path("a/b1")])
    assert selected(corpus, ("a/../b1", Path("a"))) == selected(corpus, ["a", "b1"])


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
def test_what_is_no_pattern(files: Any, error: type[Exception], message: str, corpus: Path) -> None:
    with pytest.raises(error, match=f"^{message}"):
        Documents(corpus, files=files)
