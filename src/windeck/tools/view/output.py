"""What is printed: JSON for programs, tables for people, plain columns where nobody looks."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from windeck.tools.view.session import shown

__all__ = ["as_json", "bars", "columns", "moment", "number", "paint", "say", "size", "table"]
__all__ += ["unicode_ok", "write_json"]

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_STYLES = {"dim": "2", "bold": "1", "cyan": "36", "green": "32", "red": "31", "yellow": "33"}
_PIECE, _LINES = 1 << 14, 100
_BLOCKS = " ▏▎▍▌▋▊▉█"


def as_json(value: Any) -> Any:
    """The same with nan, inf and -inf as text, which JSON has no numbers for.

    Examples
    --------
    >>> as_json({"mean": float("nan"), "edges": (0.5, float("-inf"))})
    {'mean': 'nan', 'edges': [0.5, '-inf']}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, complex):
        return [as_json(value.real), as_json(value.imag)]
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value


def write_json(value: Any) -> None:
    """One document on one line."""
    _put(json.dumps(as_json(value), allow_nan=False) + "\n")


def say(*lines: str) -> None:
    """Lines of text on stdout."""
    for start in range(0, len(lines), _LINES):  # a text of all would be copied again and again
        _put("\n".join(lines[start : start + _LINES]) + "\n")


def _put(text: str) -> None:
    # Piece by piece: an unbuffered stdout would take a part of a long text and say nothing when
    # its reader goes away.
    for start in range(0, len(text), _PIECE):
        sys.stdout.write(text[start : start + _PIECE])


def on_terminal() -> bool:
    """Whether a person looks, and wants colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def unicode_ok() -> bool:
    """Whether stdout takes more than ASCII."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")


def paint(text: str, style: str) -> str:
    """Text in a colour, on a terminal."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if on_terminal() else text


@lru_cache(1000)
def size(count: int | None) -> str:
    """Bytes for people: three digits and a unit of powers of ten.

    Examples
    --------
    >>> size(999), size(1_234_567), size(100 * 10**9), size(None)
    ('999 B', '1.23 MB', '100 GB', '?')
    """
    if count is None:
        return "?"
    if count < 1000:
        return f"{count} B"
    unit = min((len(str(count)) - 1) // 3, len(_UNITS) - 1)
    scaled = count / 1000**unit
    if scaled >= 999.5 and unit + 1 < len(_UNITS):
        scaled, unit = scaled / 1000, unit + 1
    return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f} {_UNITS[unit]}"


def moment(seconds: float) -> str:
    """A time in UTC.

    Examples
    --------
    >>> moment(0)
    '1970-01-01 00:00:00 UTC'
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return f"{seconds!r} s"


def number(value: Any) -> str:
    """A number for people: integers whole, others with six digits.

    Examples
    --------
    >>> number(1234567), number(0.1 + 0.2), number(float("nan")), number(1 - 2j), number(True)
    ('1234567', '0.3', 'nan', '1-2j', 'True')
    """
    if isinstance(value, complex):
        sign = "" if math.copysign(1, value.imag) < 0 and value.imag == value.imag else "+"
        return f"{value.real:.6g}{sign}{value.imag:.6g}j"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def columns(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Rows as lines, columns two spaces apart, those in `right` aligned there.

    Examples
    --------
    >>> columns([("name", "bytes"), ("w", "12 B")], right=[1])
    ['name  bytes', 'w      12 B']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    places = set(right)
    return [
        "  ".join(
            cell.rjust(width) if i in places else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[int] = (),
    title: str = "",
) -> None:
    """A table: framed and coloured on a terminal, plain columns where stdout is a pipe or file."""
    places, body = set(right), [[shown(cell) for cell in row] for row in rows]
    if not (on_terminal() and unicode_ok()):
        say(*([title] if title else []), *columns([headings, *body], right=places))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(box=box.SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left")
    for i, heading in enumerate(headings):
        view.add_column(heading, justify="right" if i in places else "left", overflow="fold")
    for row in body:
        view.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, highlight=False).print(view)


def bars(edges: Sequence[float], counts: Sequence[int], *, width: int = 40) -> list[str]:
    """A histogram, one bin a line: its range, a bar, its count; no bar is lost to rounding."""
    most = max(counts, default=0)
    cells = [number(float(edge)) for edge in edges]
    left, right = max(map(len, cells[:-1])), max(map(len, cells[1:]))
    digits = len(f"{most:,}")
    lines = []
    for i, count in enumerate(counts):
        last = "]" if i == len(counts) - 1 else ")"
        bar = _bar(count / most if most else 0.0, width, count > 0)
        span = f"[{cells[i]:>{left}}, {cells[i + 1]:>{right}}{last}"
        lines.append(f"{span}  {paint(bar.ljust(width), 'cyan')}  {count:>{digits},}")
    return lines


def _bar(share: float, width: int, any_: bool) -> str:
    if not unicode_ok():
        return "#" * max(round(share * width), int(any_))
    eighths = max(round(share * width * 8), int(any_))
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
