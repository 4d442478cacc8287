"""Links of all pages lead to a file and a heading, and pages for users have no measurements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages import ROOT, anchor_of

#: Pages for users: what a thing does, how it is used, and what it costs in a line.
USER_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [
    *USER_PAGES,
    *sorted((ROOT / "docs" / "design").glob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "RESULTS.md",
]

#: Ratios with quartiles, machines, and dates in prose.
MEASUREMENTS = re.compile(r"\([\d.,]+x? to [\d.,]+\)|\d\.\d+x\b|\bEPYC\b|\bXeon\b|\(20\d\d-\d\d\b")


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for heading in re.findall(r"^#+ (.+?)$", text, re.MULTILINE):
        yield anchor_of(heading)


def faults_of_links(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", text):
        target = (page.parent / link).resolve() if link else page
        if not target.exists():
            yield f"{page.name}: {link} does not exist"
        elif anchor and anchor not in set(anchors(target)):
            yield f"{page.name}: {link} has no heading #{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    assert not list(faults_of_links(page))


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_pages_for_users_have_no_measurements(page: Path) -> None:
    found = [line for line in page.read_text("utf-8").splitlines() if MEASUREMENTS.search(line)]
    assert not found


def test_faults_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `thing`, and more\n[a](#one-thing-and-more) [b](gone.md) [c](#two)\n")
    assert list(faults_of_links(page)) == [
        "page.md: gone.md does not exist",
        "page.md:  has no heading #two",
    ]
    for line in ("2.8x (1.3 to 3.7)", "an EPYC", "0.65x", "(2026-11-23)"):
        assert MEASUREMENTS.search(line)
