"""The paths that CONTRIBUTING.md names exist, and its table has a row for frequent changes."""

from __future__ import annotations

import re

import pytest

from support.pages import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: Pairs (what changes, what to edit).
ROWS = re.findall(
    r"^\| ([^|`]+(?:`[^`]+`[^|`]*)*) \| (.+) \|$", TEXT.partition("| X | Y |")[2], re.M
)
FOLDERS = ("benchmarks", "cpp", "docs", "src", "tests")


def test_paths_exist() -> None:
    paths = re.findall(r"`((?:src|cpp|tests|docs|benchmarks)/[\w/.-]*)`", TEXT)
    assert len(paths) > 30
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_files_of_the_table_exist() -> None:
    """A name without its folder is that of one file or more."""
    files = [str(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    assert len(ROWS) > 30
    for what, where in ROWS:
        for name in re.findall(r"`([\w/-]+\.(?:py|hpp|cpp|md|txt|toml|json))`", where):
            known = (ROOT / name).exists() or any(path.endswith(f"/{name}") for path in files)
            assert known, f"{name}, in the row of {what}"


@pytest.mark.parametrize(
    "change",
    [
        "float8",
        "LMDB",
        "last partial batch",
        "a packing strategy",
        "hf://",
        "a cause that the doctor names",
        "the row of a saved table",
        "clipping",
        "retries of remote reads",
        "what a state holds",
    ],
)
def test_the_first_file_of_a_row_can_be_opened(change: str) -> None:
    ((_, where),) = [row for row in ROWS if change in row[0]]
    first = re.search(r"`([^`]+)`", where)
    assert first is not None
    assert (ROOT / first[1]).is_file()
