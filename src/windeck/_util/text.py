"""Text for messages: sizes, counts, near-match names."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any


def parse_json(text: str | bytes, where: str, **options: Any) -> Any:
    """Return the value of a JSON text from outside.

    Parameters
    ----------
    where
        What holds the text, such as the path of a file, for the error message.
    options
        As for `json.loads`.

    Raises
    ------
    ValueError
        For anything else than JSON, and for lists or objects that are nested too deeply.

    Examples
    --------
    >>> parse_json("[1, 2]", "the text")
    [1, 2]
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError(f"{where} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where} cannot be read as JSON: {error}") from error


def unknown_column(
    name: str,
    known: Iterable[str],
    where: str = "the table",
    noun: str = "column",
    option: str = "",
) -> KeyError:
    """Return the error for an unknown column, with the most similar of the known names.

    `option` is that which names the column, if it has a default.
    """
    cure = f"; `{option}=` names another" if option else ""
    return KeyError(f"{where} has no {noun} {name!r}; {similar_names(name, known)}{cure}")


def similar_names(name: str, known: Iterable[str]) -> str:
    """Return a question with the most similar of the known names, or else some of these."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    near += [k for k in names if k.lower() == str(name).lower() and k not in near]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else _some(names)


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
    return f"it has {shown}" if names else "it has none"


#: Number of names in a message.
NAMED = 10


def some_names(names: Sequence[Any], numbers: Iterable[int]) -> str:
    """Return the names with these numbers for a message: the first ten, and dots for the rest.

    Examples
    --------
    >>> some_names("abcdefghijklmno", range(12))
    "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', ..."
    """
    first = list(islice(numbers, NAMED + 1))
    shown = ", ".join(repr(names[number]) for number in first[:NAMED])
    return shown + ", ..." * (len(first) > NAMED)


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes in the largest decimal unit that leaves a number above 1."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return (
                f"{nbytes / size:.3g} {unit}"
                if nbytes < 100 * size
                else (f"{nbytes / size:.0f} {unit}")
            )
    return f"{int(nbytes)} bytes"


def plural(number: int, noun: str) -> str:
    """Return a number and its noun: ``"1 shard"``, ``"2,000 shards"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def verb(number: int, many: str) -> str:
    """Return the form of a verb after a number: ``verb(1, "have")`` is ``"has"``."""
    return {"are": "is", "were": "was", "have": "has", "do": "does"}[many] if number == 1 else many
