"""One HTML page of a report, or of several side by side: no script, nothing loaded.

All text is escaped, and the page's security policy allows one style, by its hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from windeck.diagnosis.drawing import rate_bars, share_bar, timeline
from windeck.diagnosis.measurements import Measurements
from windeck.diagnosis.tables import TextTable, compared_table, difference_of, tables_of
from windeck.diagnosis.verdict import (
    findings_of,
    loader_shares,
    lost_shares,
    sample_rate,
    verdict_of,
)

__all__ = ["render"]

_STYLE = """
:root {
  color-scheme: light dark;
  --back: #fbfbfa; --panel: #ffffff; --ink: #1c1e21; --soft: #5d636b; --line: #dcdfe3;
  --step: #2f7d4f; --wait: #d9822b; --slow: #b3261e; --disk: #7a4fa3; --idle: #c9ced4;
  --loader: #4f8fc9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #15171a; --panel: #1c1f23; --ink: #e6e8eb; --soft: #9aa2ab; --line: #30353b;
    --step: #4fae78; --wait: #e79a4b; --slow: #ff8a80; --disk: #b18ae0; --idle: #474d54;
    --loader: #74b4ee;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem; max-width: 110rem; background: var(--back); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 1.3rem; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h3 { font-size: .95rem; margin: 1.5rem 0 .4rem; }
.reports {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(34rem, 1fr)); gap: 1.2rem;
}
section {
  background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 1.1rem;
  min-width: 0; overflow-x: auto; margin-bottom: 1.2rem;
}
.verdict {
  font-size: 1.05rem; border-left: 4px solid var(--wait); padding-left: .8rem; margin: 0 0 .9rem;
}
.verdict.step { border-color: var(--step); }
.verdict.cores, .verdict.others { border-color: var(--slow); }
table { border-collapse: collapse; font-size: .88rem; margin: 0; }
th, td { text-align: right; padding: .18rem .7rem .18rem 0; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
.text td { white-space: normal; overflow-wrap: anywhere; }
td { font-variant-numeric: tabular-nums; }
ul { margin: .4rem 0 0; padding-left: 1.1rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 12px; }
svg text.soft { fill: var(--soft); }
svg text.number { font-variant-numeric: tabular-nums; }
.step, .key.step { fill: var(--step); } .wait { fill: var(--wait); } .slow { fill: var(--slow); }
.disk { fill: var(--disk); } .idle { fill: var(--idle); } .loader { fill: var(--loader); }
line { stroke: var(--line); }
footer { color: var(--soft); font-size: .85rem; }
"""


def render(reports: Sequence[tuple[str, Measurements]]) -> str:
    """Return the page of one report, or of several, each with a name."""
    title = "windeck doctor" + "".join(f", {name}" for name, _ in reports if name)
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    compared = ""
    if len(reports) > 1:
        compared = (
            f'<section><h2>Compared</h2><p class="verdict">{_sentence(difference_of(reports))}</p>'
            f"{_table(compared_table(reports))}</section>"
        )
    sections = "".join(f"<section>{_report(name, one)}</section>" for name, one in reports)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1>{compared}<div class="reports">{sections}</div>'
        "<footer>Measured by windeck doctor. This page loads nothing.</footer></body></html>\n"
    )


def _report(name: str, measured: Measurements) -> str:
    findings = findings_of(measured)
    kind = findings[0].kind if findings[0].kind in ("step", "cores", "others") else ""
    parts = [
        f"<h2>{escape(name or measured.subject.kind)}</h2>",
        f'<p class="verdict {kind}">{_sentence(verdict_of(measured))}</p>',
        *_pictures(measured),
    ]
    for table in tables_of(measured):
        parts += [f"<h3>{escape(table.title.capitalize())}</h3>", _table(table)]
    parts += ["<h3>Notes</h3>", _list([*(one.sentence for one in findings), *measured.notes])]
    return "".join(parts)


def _pictures(measured: Measurements) -> Iterable[str]:
    unit, both, alone = measured.subject.unit, measured.both, measured.step
    rates = [("batches alone", sample_rate(measured, measured.loader), "loader")]
    if both is not None and alone is not None:
        rates.insert(0, ("step alone", sample_rate(measured, alone), "step"))
        rates.append(("batches and step", sample_rate(measured, both), "wait"))
        waiting, slower = lost_shares(measured)
        parts = [
            ("step", max(1 - waiting - slower, 0.0), "step"),
            ("slowed by the loader", slower, "slow"),
            ("waiting for batches", waiting, "wait"),
        ]
    yield f"<h3>{escape(unit.capitalize())} per second</h3>"
    yield rate_bars(rates)
    if both is not None and alone is not None:
        yield "<h3>Time of the loop</h3>"
        yield share_bar(parts)
    shares = loader_shares(measured)
    yield "<h3>Time of the processes that make batches</h3>"
    yield share_bar(
        [
            ("on a core", shares.busy, "loader"),
            ("ready, without one", shares.queued, "slow"),
            ("reading a disk", shares.disk, "disk"),
            ("asleep", shares.asleep, "idle"),
        ]
    )
    yield "<h3>Timeline</h3>"
    lanes = [("loop", (both or measured.loader).timeline)]
    if alone is not None:
        lanes.append(("step alone", alone.timeline))
    yield timeline(lanes)


def _table(table: TextTable) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.headings)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    kind = ' class="text"' if len(table.headings) == 2 else ""
    return f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _list(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_sentence(sentence)}</li>' for sentence in sentences)}</ul>"


def _sentence(text: str) -> str:
    """Return escaped text in which no line ends before a percent sign."""
    return escape(text).replace(" %", "&nbsp;%")
