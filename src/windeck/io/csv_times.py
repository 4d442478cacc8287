"""Time stamps in CSV files that are in a format of `strptime`: none that the calendar lacks."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["impossible_time", "parse_times"]

_ZONE = r"\s*(?P<zone>Z|[+-]\d\d:?\d\d)$"
#: Directives of C that Python lacks.
_COMPOUND = {
    "%D": "%m/%d/%y",
    "%F": "%Y-%m-%d",
    "%R": "%H:%M",
    "%T": "%H:%M:%S",
    "%e": "%d",
    "%h": "%b",
    "%n": " ",
    "%r": "%I:%M:%S %p",
    "%t": " ",
}

#: Directives in the order of ISO 8601, each with the text before it; and which of them a format
#: must have: those of a date, of a time to the minute, or of a time to the second.
_ISO_PARTS = {"%Y": "", "%m": "-", "%d": "-", "%H": " ", "%M": ":", "%S": ":"}
_ISO = [[place < count for place in range(6)] for count in (3, 5, 6)]


def parse_times(texts: Any, layout: str, where: str, row: int = 0) -> Any:
    """Parse texts as time stamps in seconds, in UTC if the format has a zone; null stays null.

    Arrow's parser of formats takes 31 April for 1 May, and 23:59:60 for the next day. Digits in
    full width are put into the order of ISO 8601, of which Arrow is strict. Other texts are parsed,
    formatted again and compared, with zeros before single digits if they have none. Where they
    differ, they must have the same numbers and names, and Python, which is strict, parses the text.

    Parameters
    ----------
    texts : pyarrow.Array or ChunkedArray of strings
    layout : str
        The format, such as "%d/%m/%Y".
    where : str
        The column and its file, for messages.
    row : int
        Number of the first row, for messages.

    Raises
    ------
    ValueError
        A text is no time of this format; the message names it and its row.

    Examples
    --------
    >>> parse_times(pa.array(["1/4/2024"]), "%d/%m/%Y", "column 'day'").to_pylist()
    [datetime.datetime(2024, 4, 1, 0, 0)]
    >>> parse_times(pa.array(["31/04/2024"]), "%d/%m/%Y", "column 'day'")
    Traceback (most recent call last):
    ValueError: column 'day' has '31/04/2024' in row 0, which is no time; expected \
timestamp_format='%d/%m/%Y' in every row
    """
    coded = texts.dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.unify_dictionaries().combine_chunks()
    words = coded.dictionary.cast(pa.string())
    stamps, zone = _parsed(words, layout), "UTC" if "%z" in layout else None
    if stamps.null_count:
        known = pc.fill_null(stamps.take(coded.indices).is_valid(), True)
        bad = np.asarray(pc.and_(coded.indices.is_valid(), pc.invert(known)))
        place = int(np.argmax(bad))
        raise ValueError(
            f"{where} has {texts[place].as_py()!r} in row {row + place}, which is no time; "
            f"expected timestamp_format={layout!r} in every row"
        )
    return stamps.take(coded.indices).cast(pa.timestamp("s", zone))


def impossible_time(texts: Sequence[str], layout: str) -> str | None:
    """Return the first text that is no time of a format; None if all are."""
    known = _parsed(pa.array(texts, pa.string()), layout).is_valid().to_pylist()
    return None if all(known) else texts[known.index(False)]


def _parsed(words: Any, layout: str) -> Any:
    """Return time stamps in seconds, in UTC if the format has a zone, null for other texts."""
    words = pc.utf8_trim_whitespace(words)
    for short, long in _COMPOUND.items():
        layout = layout.replace(short, long)
    if "%z" not in layout:
        return _local(words, layout)
    if not layout.rstrip().endswith("%z"):
        return pa.array([_strict(word, layout) for word in words.to_pylist()], pa.timestamp("s"))
    zones = pc.struct_field(pc.extract_regex(words, _ZONE), "zone").dictionary_encode()
    offsets = pa.array(map(_offset, zones.dictionary.to_pylist()), pa.duration("s"))
    wall = _local(pc.replace_substring_regex(words, _ZONE, ""), layout.rstrip()[:-2].rstrip())
    return pc.subtract(wall, offsets.take(zones.indices))


def _offset(zone: str) -> int:
    if zone == "Z":
        return 0
    seconds = 3600 * int(zone[1:3]) + 60 * int(zone[-2:])
    return -seconds if zone[0] == "-" else seconds


def _local(words: Any, layout: str) -> Any:
    quick = _as_iso(words, layout)
    if quick is not None:
        return quick
    stamps = pc.strptime(words, format=layout, unit="s", error_is_null=True)
    if layout == "%s":  # Seconds since 1970, which `strftime` lacks.
        again = stamps.cast(pa.int64()).cast(pa.string())
    else:
        again = pc.strftime(stamps, format=layout)
    same = pc.fill_null(pc.equal(again, words), False)
    # As 1/4/2024 and 01/04/2024; one digit is no year.
    if "%y" not in layout and not pc.all(same).as_py():
        padded = pc.replace_substring_regex(words, r"\b([0-9])\b", r"0\1")
        same = pc.or_(same, pc.fill_null(pc.equal(again, padded), False))
    if "%Y" in layout:  # Its two digits would be of the first century.
        same = pc.and_(same, pc.fill_null(pc.greater(pc.year(stamps), 999), False))
    others = pc.invert(same)
    pairs = zip(words.filter(others).to_pylist(), again.filter(others).to_pylist(), strict=True)
    strict = [_strict(word, layout) if _says_same(word, back) else None for word, back in pairs]
    return pc.replace_with_mask(stamps, others, pa.array(strict, pa.timestamp("s")))


def _as_iso(words: Any, layout: str) -> Any | None:
    """Parse texts of digits alone, in full width, by way of ISO 8601, of which Arrow is strict.

    None are returned if the format has other parts, or a text is not like this.
    """
    parts = re.findall(r"%.|[^%]+", layout)
    places = [part for part in parts if part[0] == "%"]
    given = [part in places for part in _ISO_PARTS]
    if not set(places) <= set(_ISO_PARTS) or len(set(places)) < len(places) or given not in _ISO:
        return None
    pattern = "".join(
        rf"(\d{{{4 if part == '%Y' else 2}}})" if part in places else re.escape(part)
        for part in parts
    )
    if pc.all(pc.match_substring_regex(words, f"^{pattern}$")).as_py() is not True:
        return None
    found = "".join(
        f"{mark}\\{places.index(part) + 1}" for part, mark in _ISO_PARTS.items() if part in places
    )
    try:
        return pc.replace_substring_regex(words, f"^{pattern}$", found).cast(pa.timestamp("s"))
    except pa.ArrowInvalid:
        return None


def _says_same(word: str | None, back: str | None) -> bool:
    """Return True for two texts whose numbers are equal, and whose names begin alike."""
    if word is None or back is None:
        return False
    parts, others = (re.findall(r"\d+|[^\W\d_]+", text.lower()) for text in (word, back))
    return len(parts) == len(others) and all(map(_is_like, parts, others))


def _is_like(part: str, other: str) -> bool:
    if part.isdigit() and other.isdigit():
        return int(part) == int(other)
    return part.startswith(other) or other.startswith(part)


def _strict(word: str, layout: str) -> dt.datetime | None:
    """Return a time as Python parses it, in UTC if it has a zone."""
    for names in (layout, layout.replace("%B", "%b").replace("%A", "%a")):
        try:
            found = dt.datetime.strptime(word.strip(), names)
            break
        except ValueError:
            continue
    else:
        return None
    if found.tzinfo is not None:
        found = found.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return found.replace(microsecond=0)
