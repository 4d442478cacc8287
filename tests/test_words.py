"""Identifiers use the words run, segment, plan, piece and chunk as docs/words.md does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: The word, the paths that use it, the identifiers that may have it there, and its row in words.md.
USES = [
    ("run", "", r"_?run|_?run_\w+|dry_run|is_run_end_encoded", "run"),
    ("run", "/checkpoint/|/cli/", r"compare_runs|\w*_(same|other)_run\w*|_SAME_RUN", "run"),
    ("run", "", r"\w*(document_runs?|DocumentRun)\w*", "document run"),
    ("run", "/windows/", r"\w+", "window run"),
    ("segment", "/checkpoint/|cli/maintenance", r"\w+", "segment"),
    ("plan", "/checkpoint/", r"\w+", "plan"),
    ("plan", "/preparation/", r"\w+", "preparation plan"),
    ("plan", "/documents/|/packing/", r"plan_reads", "`plan_reads`"),
    ("piece", "/packing/|/loader/", r"\w+", "piece"),
    ("piece", "/checkpoint/", r"\w+", "tensor piece"),
    ("piece", "/checkpoint/", r"\w+", "value pieces"),
    ("chunk", "/checkpoint/|cli/export", r"\w+", "chunk"),
    ("chunk", "/io/|documents/counts", r"\w+", "column chunk"),
    ("chunk", "/preparation/sorting|/table/", r"(num_)?chunks?", "Arrow chunk"),
    ("chunk", "loader/batch", r"chunk", ""),  # a method of torch.Tensor
    ("chunk", "/adapters/", r"(in|out)put_chunk_\w+", "`prediction_length`"),
]
WORDS = sorted({word for word, *_ in USES})
#: Strings and comments of Python, and of C++.
TEXTS = {
    ".py": re.compile(r'"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*'),
    ".hpp": re.compile(r'R"\([\s\S]*?\)"|"(?:\\.|[^"\\\n])*"|//[^\n]*'),
}
TEXTS[".cpp"] = TEXTS[".hpp"]
NAME = re.compile(rf"[A-Za-z_]\w*(?i:{'|'.join(WORDS)})\w*|\b(?i:{'|'.join(WORDS)})\w*")


def words_of(name: str) -> set[str]:
    """Return the words that a name is made of, in lower case and in the singular."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def faults(path: str, text: str) -> Iterator[str]:
    """Yield the identifiers of a source file that no use allows."""
    code = TEXTS[Path(path).suffix].sub(" ", text)
    for name in sorted(set(NAME.findall(code))):
        for word in words_of(name).intersection(WORDS):
            allowed = [at for it, place, at, _ in USES if it == word and re.search(place, path)]
            if not any(re.fullmatch(pattern, name) for pattern in allowed):
                yield f"{path}: {name}"
    if re.search(r"\bfor run in\b", code) and "/windows/" not in path:
        yield f"{path}: for run in"


def test_identifiers_use_words_as_the_table_does() -> None:
    paths = [*(ROOT / "src" / "windeck").rglob("*.py"), *(ROOT / "cpp").rglob("*.[ch]pp")]
    assert len(paths) > 300
    assert not [
        fault
        for path in sorted(paths)
        for fault in faults(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]


def test_every_use_has_a_row() -> None:
    page = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    terms = ", ".join(row.split(" | ")[0] for row in page.splitlines() if row.startswith("| "))
    rows = [row for *_, row in USES if row]
    assert not [row for row in rows if not re.search(rf"(^|\W){re.escape(row)}(\W|$)", terms)]


@pytest.mark.parametrize(
    "fault",
    [
        ("src/windeck/loader/a.py", "for run in batches:"),
        ("src/windeck/io/a.py", "runs = []"),
        ("cpp/src/gather/a.cpp", "FieldPlan plan; // a plan"),
        ("src/windeck/loader/a.py", "class Segment:"),
        ("src/windeck/documents/a.py", "_CHUNK_BYTES = 1"),
        ("cpp/src/base/a.hpp", "int pieces;"),
    ],
)
def test_faults_are_found(fault: tuple[str, str]) -> None:
    assert list(faults(*fault))


def test_texts_and_other_words_are_no_faults() -> None:
    text = '"""A chunk."""\nexplanation = truncated(runtime) + "plan"  # a piece'
    assert not list(faults("src/windeck/io/a.py", text))
