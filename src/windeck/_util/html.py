"""HTML for notebooks: a caption, a table and notes, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[object]], notes: str = ""
) -> str:
    """Return a caption, a table with a header, and lines of notes, as HTML.

    Examples
    --------
    >>> html_table("a < b", ["name"], [["x"]])
    '<div><b>a &lt; b</b><table><tr><th>name</th></tr><tr><td>x</td></tr></table></div>'
    """
    lines = [_row("th", header), *(_row("td", row) for row in rows)]
    text = f"<pre>{escape(notes)}</pre>" if notes else ""
    return f"<div><b>{escape(caption)}</b><table>{''.join(lines)}</table>{text}</div>"


def _row(tag: str, cells: Sequence[object]) -> str:
    inside = "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells)
    return f"<tr>{inside}</tr>"
