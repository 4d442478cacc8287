"""`Diagnosis`: measurements with their verdict, as text, JSON and HTML."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from windeck._util.html import html_table
from windeck._util.terminal import escaped
from windeck._util.text import parse_json
from windeck.diagnosis.measurements import Measurements
from windeck.diagnosis.page import render
from windeck.diagnosis.tables import TextTable, aligned, compared_table, difference_of, tables_of
from windeck.diagnosis.verdict import Finding, findings_of, verdict_of

__all__ = ["Diagnosis", "as_text", "comparison", "comparison_html"]

_WIDTH = 100


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of a loader, with a verdict that is computed from them.

    Attributes
    ----------
    measured
        The numbers.
    """

    measured: Measurements

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes of lost time, the largest first."""
        return findings_of(self.measured)

    @property
    def verdict(self) -> str:
        """One sentence: rates, the share of waiting, its cause, and what may help."""
        return verdict_of(self.measured)

    def tables(self) -> list[TextTable]:
        """Return the figures as tables of text."""
        return tables_of(self.measured)

    def compare(self, *others: Diagnosis, names: Sequence[str] = ()) -> str:
        """Return a sentence and a table that compare this report with others."""
        reports = [self, *others]
        labels = [*names, *(f"report {i}" for i in range(len(names) + 1, len(reports) + 1))]
        return comparison(list(zip(labels, reports, strict=False)))

    def to_document(self) -> dict[str, Any]:
        """Return the verdict, the findings and the numbers, fit for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        return {"verdict": self.verdict, "findings": findings, **self.measured.to_document()}

    def to_json(self) -> str:
        """Return the report as JSON, which `from_json` reads on any machine."""
        return json.dumps(self.to_document(), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Diagnosis:
        """Return the report of a JSON text; the verdict is computed anew from its numbers.

        Raises
        ------
        ValueError
            For a text that is not such a report.
        """
        return cls(Measurements.from_document(parse_json(text, "the report")))

    def to_html(self) -> str:
        """Return one page that needs nothing else: verdict, timeline and tables."""
        return render([("", self.measured)])

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        parts = [html_table(table.title, table.headings, table.rows) for table in self.tables()]
        return html_table(self.verdict, (), []) + "".join(parts)


def as_text(found: Diagnosis) -> str:
    """Return the verdict, the tables and the notes as lines of text."""
    lines = textwrap.wrap(found.verdict, _WIDTH)
    for table in found.tables():
        lines += ["", *aligned(table)]
    lines += [""] if found.findings or found.measured.notes else []
    for text in (*(finding.sentence for finding in found.findings), *found.measured.notes):
        lines += textwrap.wrap(text, _WIDTH, initial_indent="* ", subsequent_indent="  ")
    return "\n".join(map(escaped, lines))


def comparison(reports: Sequence[tuple[str, Diagnosis]]) -> str:
    """Return a sentence on the first two reports, a table of all, and the verdict of each.

    Raises
    ------
    ValueError
        For fewer than two reports.
    """
    measured = [(name, report.measured) for name, report in reports]
    lines = textwrap.wrap(difference_of(measured), _WIDTH)
    lines += ["", *aligned(compared_table(measured)), ""]
    for name, report in reports:
        lines += textwrap.wrap(f"{name}: {report.verdict}", _WIDTH, subsequent_indent="  ")
    return "\n".join(map(escaped, lines))


def comparison_html(reports: Sequence[tuple[str, Diagnosis]]) -> str:
    """Return one page with the reports side by side."""
    return render([(name, report.measured) for name, report in reports])
