"""The files that CONTRIBUTING.md names exist, and have the names that it says they have."""

from __future__ import annotations

import re

import pytest

from support.internals import MODULE_OF
from support.pages import ROOT, anchor_of

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE, *PARTS = re.split(
    "^### ", TEXT.partition("| X | Y |")[2].partition("\n## ")[0], flags=re.MULTILINE
)
#: Pairs (what changes, what to edit).
ROWS = re.findall(r"^\| ([^|`]+(?:`[^`]+`[^|`]*)*) \| (.+) \|$", TABLE, re.M)
#: Sections of what to edit, in one line each, by their headings.
SECTIONS = {
    heading: " ".join(text.split()) for heading, _, text in (part.partition("\n") for part in PARTS)
}
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("benchmarks", "cpp", "docs", "src", "tests")
    for path in (ROOT / folder).rglob("*.*")
]
#: The name of a file, and the same before names in parentheses.
FILE = r"`([\w/-]+\.(?:py|js|hpp|cpp|md|txt|toml|json|cff))`"
NAMES_OF_FILE = rf"{FILE} \(([^()]*)\)"


def test_paths_exist() -> None:
    paths = re.findall(r"`((?:src|cpp|tests|docs|benchmarks)/[\w/.-]*)`", TEXT)
    assert len(paths) > 30
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize(
    "where", [*(where for _, where in ROWS), *SECTIONS.values()], ids=[*dict(ROWS), *SECTIONS]
)
def test_files_have_the_names_beside_them(where: str) -> None:
    """Names in parentheses are those of the file before, others those of a file of the sentence."""
    folders = {folder.rstrip("/") for folder in re.findall(r"`((?:\w+/)+)[\w.]*`", where)}
    wrong = []
    for sentence in re.split(r"[.;] (?![^()]*\))", where):  # not in parentheses
        paths = [path_of(name, folders) for name in re.findall(FILE, sentence)]
        for file, inside in re.findall(NAMES_OF_FILE, sentence):
            path = path_of(file, folders)
            wrong += [(name, path) for name in names_in(inside) if not has(path, name)]
        for name in names_in(re.sub(NAMES_OF_FILE, "", sentence)):
            if paths and not any(has(path, name) for path in paths):
                wrong.append((name, " ".join(paths)))
    assert not wrong


def path_of(name: str, folders: set[str]) -> str:
    """Return the path of a file of a row, which is named in full or is in a folder of the row."""
    if (ROOT / name).is_file():
        return name
    found = [path for path in FILES if path.endswith(f"/{name}")]
    near = [path for path in found if path.removesuffix(f"/{name}") in folders]
    assert len(near or found) == 1, f"{name} is {near or found}, expected one file"
    return (near or found)[0]


def names_in(text: str) -> list[str]:
    """Return the names of functions, classes and variables in a text."""
    return [
        name for name in re.findall(r"`([A-Za-z_][\w.]*)`", text) if not re.match(FILE, f"`{name}`")
    ]


def has(path: str, name: str) -> bool:
    """Return whether a file has all words of a name such as ``Class.method``."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return all(re.search(rf"\b{word}\b", text) for word in name.split("."))


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
        "anything that is stored",
    ],
)
def test_a_change_of_many_files_has_a_section(change: str) -> None:
    """The table names the file to open first, which is the first of the section."""
    ((_, where),) = [row for row in ROWS if change in row[0]]
    named = re.fullmatch(r"first `([^`]+)`; \[all places\]\(#([\w-]+)\)", where)
    assert named is not None
    (text,) = [text for heading, text in SECTIONS.items() if anchor_of(heading) == named[2]]
    first = re.search(r"\* Start: `([^`]+)`", text)
    assert first is not None
    assert first[1] == named[1]
    assert (ROOT / first[1]).is_file()


def test_every_section_is_that_of_a_row() -> None:
    linked = re.findall(r"\(#([\w-]+)\)", TABLE)
    assert sorted(linked) == sorted(map(anchor_of, SECTIONS))


def test_the_example_of_a_replaced_name_is_in_the_list() -> None:
    examples = re.findall(r'plant\(monkeypatch, "([\w.]+)"', TEXT)
    assert examples
    assert not set(examples) - MODULE_OF.keys()
