"""Output of commands: JSON, or text with tables that are framed on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from windeck._util.terminal import escaped, escaped_lines
from windeck.cli.session import UsageError

__all__ = [
    "aligned",
    "as_json",
    "check_output_file",
    "colored",
    "format_number",
    "format_size",
    "format_time",
]
__all__ += ["histogram_lines", "on_terminal", "print_json", "print_lines", "print_table"]
__all__ += ["unicode_ok"]

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_STYLES = {"dim": "2", "bold": "1", "cyan": "36", "green": "32", "red": "31", "yellow": "33"}
#: Before and after the name of a style in what is printed: no text from outside has it.
_MARK = f"\ufdd0{os.urandom(8).hex()}"
_PORTION, _LINES = 1 << 14, 100
_BLOCKS = " ▏▎▍▌▋▊▉█"


def as_json(value: Any) -> Any:
    """Return the value with nan, inf and -inf as text, which JSON cannot express.

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


def print_json(value: Any) -> None:
    """Print one document on one line."""
    _put(json.dumps(as_json(value), allow_nan=False) + "\n")


def print_lines(*lines: str) -> None:
    """Print lines of text, control characters escaped; all output of commands passes here."""
    for start in range(0, len(lines), _LINES):  # joined lines are copied several times
        _put("\n".join(lines[start : start + _LINES]) + "\n")


def _put(text: str) -> None:
    text = _shown(text)
    # In portions: an unbuffered stdout would write a part of a long text, without an error when its
    # reader goes away.
    for start in range(0, len(text), _PORTION):
        sys.stdout.write(text[start : start + _PORTION])


def _shown(text: str) -> str:
    """Return text with control characters escaped, but for line ends and our own colours."""
    if _MARK not in text:
        return escaped_lines(text)
    spans = text.split(_MARK)  # text and styles in turn
    spans[::2] = map(escaped_lines, spans[::2])
    spans[1::2] = [f"\x1b[{_STYLES.get(style, '0')}m" for style in spans[1::2]]
    return "".join(spans)


def on_terminal() -> bool:
    """Return whether stdout is a terminal, and colours are wanted."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def unicode_ok() -> bool:
    """Return whether stdout can encode more than ASCII."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")


def colored(text: str, style: str) -> str:
    """Return the text for `print_lines`, which colours it on a terminal."""
    return f"{_MARK}{style}{_MARK}{escaped(text)}{_MARK}{_MARK}" if on_terminal() else text


@lru_cache(1000)
def format_size(count: int | None) -> str:
    """Return bytes as text: three digits and a decimal unit.

    Examples
    --------
    >>> [format_size(count) for count in (999, 1_234_567, 100 * 10**9, None)]
    ['999 B', '1.23 MB', '100 GB', '?']
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


def format_time(seconds: float) -> str:
    """Return a time in UTC as text.

    Examples
    --------
    >>> format_time(0)
    '1970-01-01 00:00:00 UTC'
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return f"{seconds!r} s"


def format_number(value: Any) -> str:
    """Return a number as text: integers whole, others with six digits.

    Examples
    --------
    >>> [format_number(value) for value in (1234567, 0.1 + 0.2, float("nan"), 1 - 2j, True)]
    ['1234567', '0.3', 'nan', '1-2j', 'True']
    """
    if isinstance(value, complex):
        sign = "" if math.copysign(1, value.imag) < 0 and value.imag == value.imag else "+"
        return f"{value.real:.6g}{sign}{value.imag:.6g}j"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def aligned(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Return rows as lines, columns two spaces apart, those in `right` aligned to the right.

    Examples
    --------
    >>> aligned([("name", "bytes"), ("w", "12 B")], right=[1])
    ['name  bytes', 'w      12 B']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    at_right = set(right)
    return [
        "  ".join(
            cell.rjust(width) if i in at_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[int] = (),
) -> None:
    """Print a table: with frames on a terminal, else in plain columns."""
    at_right, body = set(right), [[escaped(cell) for cell in row] for row in rows]
    if not (on_terminal() and unicode_ok()):
        print_lines(*aligned([headings, *body], right=at_right))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(box=box.SIMPLE_HEAD)
    for i, heading in enumerate(headings):
        view.add_column(
            Text(escaped(heading)), justify="right" if i in at_right else "left", overflow="fold"
        )
    for row in body:
        view.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, highlight=False).print(view)


def histogram_lines(edges: Sequence[float], counts: Sequence[int], *, width: int = 40) -> list[str]:
    """Return a line for each bin: its range, a bar, its count. No bar is rounded to nothing."""
    most = max(counts, default=0)
    cells = [format_number(float(edge)) for edge in edges]
    left, right = max(map(len, cells[:-1])), max(map(len, cells[1:]))
    digits = len(f"{most:,}")
    lines = []
    for i, count in enumerate(counts):
        last = "]" if i == len(counts) - 1 else ")"
        bar = _bar(count / most if most else 0.0, width, count > 0)
        span = f"[{cells[i]:>{left}}, {cells[i + 1]:>{right}}{last}"
        lines.append(f"{span}  {colored(bar.ljust(width), 'cyan')}  {count:>{digits},}")
    return lines


def _bar(share: float, width: int, any_: bool) -> str:
    if not unicode_ok():
        return "#" * max(round(share * width), int(any_))
    eighths = max(round(share * width * 8), int(any_))
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()


def check_output_file(file: Path, *, force: bool) -> None:
    """Raise `UsageError` if a file cannot be written, or exists and `force` is not set."""
    if file.is_dir():
        raise UsageError(f"{file} is a folder, expected the name of a file")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent} to write {file.name} into")
    if file.exists() and not force:
        raise UsageError(f"{file} exists already, expected a new file, or --force")
