"""Text for terminals, which obey control characters in it."""

from __future__ import annotations

__all__ = ["escaped", "escaped_lines"]


def escaped(text: str) -> str:
    """Escape control characters, so that a terminal shows them and does not obey them.

    Those are escape sequences, line ends, tabs and controls of the direction of text.

    Examples
    --------
    >>> escaped("layer\\x1b[2J.weight")
    'layer\\\\x1b[2J.weight'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def escaped_lines(text: str) -> str:
    """Escape control characters in text of several lines, but for the line ends.

    Examples
    --------
    >>> print(escaped_lines("name\\n  a\\rb"))
    name
      a\\rb
    """
    return text if text.isprintable() else "\n".join(map(escaped, text.split("\n")))
