"""Every format number is the one stated here, and docs/design/formats.md lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

import windeck as wd

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "windeck"
NUMBERED = re.compile(r"^((?:_[A-Z]+)?_?FORMAT|_MAGIC) = (\d+|b?\"[^\"]*\")", re.MULTILINE)
#: Formats of other software.
OTHERS = {("documents/megatron.py", "_MAGIC")}
#: Names that a number follows, or is beside.
OTHERS |= {("checkpoint/format/values.py", "_MAGIC"), ("checkpoint/stores/segments.py", "_MAGIC")}
#: Numbers that are not 1 any more, by file and name as in `OTHERS`. Their former ones are read.
RAISED: dict[tuple[str, str], str] = {}


def listed() -> set[tuple[str, str]]:
    text = (ROOT / "docs" / "design" / "formats.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| ")][1:]
    return {(row[4].strip("|").strip().strip("`"), row[3].strip("`")) for row in rows}


def test_all_numbers_are_listed() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        for name, value in NUMBERED.findall(path.read_text(encoding="utf-8")):
            place = path.relative_to(SOURCE).as_posix(), name
            if place not in OTHERS:
                found.add(place)
                assert re.findall(r"\d+", value) == [RAISED.get(place, "1")], place
    (order,) = listed() - found
    assert order[1] == "ORDER_VERSION"
    assert wd.ORDER_VERSION == 1
    assert found == listed() - {order}
