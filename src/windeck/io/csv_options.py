"""Options of reading CSV, and checks that name the option a file is likely to need."""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from windeck.io import conversion, filesystem
from windeck.io.csv_times import impossible_time

#: True: the first line has names. False: it is data. Names: it is data, and these are its columns.
Header: TypeAlias = bool | Sequence[str] | None

#: Words for a missing value in columns of numbers and times, besides those that Arrow knows in all
#: columns. Blanks before or after them are no difference.
WORDS = tuple(
    f"{before}{word}{after}"
    for word in (
        *("", "?", "-", "--", ".", "NA", "na", "N/A", "n/a", "<NA>", "NaT", "NaN", "nan"),
        *("None", "none", "NONE", "NULL", "null", "nil"),
    )
    for before in ("", " ")
    for after in ("", " ")
)
_HEAD_BYTES = 1 << 16
_LOOKED_AT = 1000
#: Lines in which the header of another format is looked for.
_HEADER = 100
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|nan|[+-]?inf", re.IGNORECASE)
_ISO = r"\d{4}-\d\d-\d\d([ T]\d\d(:?\d\d(:?\d\d(\.\d+)?)?)?)?(Z|[+-]\d\d:?\d\d)?"
_FORMAT = re.compile(r"%[a-zA-Z]")
#: Parts of time stamps that no format gives.
_UNREAD_PARTS = {"%f": "fractions of seconds", "%Z": "names of time zones"}
_UNREAD = re.compile(r"(?<!%)(?:%%)*(%[fZ])")
_COMMA_NUMBER = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?|[+-]?\d*(,\d+)?([eE][+-]?\d+)?")
#: Commas between thousands, or a decimal comma with three digits.
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_DATE = re.compile(
    r"(?P<a>\d{1,4})(?P<sep>[/.-])(?P<b>\d{1,2})(?P=sep)(?P<c>\d{1,4})"
    r"((?P<gap>[ T])(?P<hour>\d{1,2}):\d{2}(?P<second>:\d{2})?(?P<half> ?[AP]M)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CsvOptions:
    """Options of CSV files.

    `timestamp_format` is that of the column `time`; `ids` and `categories` are names of columns.
    `missing` has words besides the usual ones; none at all if it is empty.
    """

    header: Header = None
    delimiter: str | None = None
    decimal: str = "."
    encoding: str | None = None
    timestamp_format: str | None = None
    missing: tuple[str, ...] | None = None
    time: str | None = None
    ids: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @classmethod
    def from_arguments(
        cls,
        header: Header = None,
        delimiter: str | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
        timestamp_format: str | None = None,
        missing: str | Iterable[str] | None = None,
        time: str | None = None,
        ids: tuple[str, ...] = (),
        categories: tuple[str, ...] = (),
    ) -> CsvOptions:
        """Return the options for a user's arguments; an error names a wrong one."""
        if not (header is None or isinstance(header, bool)):
            if isinstance(header, str) or not all(isinstance(name, str) for name in header):
                raise TypeError(f"`header` must be True, False or names of columns, got {header!r}")
            header = tuple(header)
        for name, value in (("delimiter", delimiter), ("decimal", decimal)):
            if value is not None and not (isinstance(value, str) and len(value) == 1):
                raise ValueError(f"`{name}` must be one character, got {value!r}")
        if decimal is not None and decimal == delimiter:
            raise _one_character_for_both(decimal)
        if encoding is not None:
            try:
                "".encode(encoding)
            except (LookupError, TypeError):
                raise ValueError(f"`encoding` must be an encoding, got {encoding!r}") from None
        if timestamp_format is not None and (time is None or not isinstance(timestamp_format, str)):
            raise ValueError(
                "`timestamp_format` must be a format such as '%d/%m/%Y' of the timestamp_column=, "
                f"got {timestamp_format!r} for timestamp_column={time!r}"
            )
        if timestamp_format is not None and not _FORMAT.search(timestamp_format):
            raise ValueError(
                "`timestamp_format` must be a format such as '%d/%m/%Y', of strptime, got "
                f"{timestamp_format!r}"
            )
        lacking = _UNREAD.search(timestamp_format or "")
        if lacking is not None:
            raise ValueError(
                f"`timestamp_format` has {lacking[1]}, for {_UNREAD_PARTS[lacking[1]]}, which are "
                "not read in a format; expected times in ISO 8601, which need none"
            )
        if missing is not None:
            missing = (missing,) if isinstance(missing, str) else tuple(missing)
            if not all(isinstance(word, str) for word in missing):
                raise TypeError(f"`missing` must be texts such as '?', got {missing!r}")
        given = (header, delimiter, decimal or ".", encoding, timestamp_format, missing)
        return cls(*given, time, ids, categories)

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that differ from their defaults."""
        usual = CsvOptions()
        names = ("header", "delimiter", "decimal", "encoding", "timestamp_format", "missing")
        return tuple(name for name in names if getattr(self, name) != getattr(usual, name))

    @property
    def words(self) -> tuple[str, ...]:
        """The words for missing values in columns of numbers, with the words of all columns."""
        return (*WORDS, *(self.missing or ()))

    def has_words(self, name: str) -> bool:
        """Return True for a column in which `words` are missing values if it has numbers."""
        return self.missing != () and name not in self.ids and name not in self.categories

    def delimiter_of(self, path: str) -> str:
        """Return the delimiter of a file: the one given, or a tab or a comma by the suffix."""
        tabs = path.lower().endswith((".tsv", ".tsv.gz", ".tsv.bz2"))
        return self.delimiter or ("\t" if tabs else ",")


def _one_character_for_both(character: str) -> ValueError:
    return ValueError(
        f"`decimal` and `delimiter` must differ, got {character!r} for both; expected "
        "delimiter=';' or another character with decimal=','"
    )


def check_first_line(path: str, options: CsvOptions) -> None:
    """Raise ValueError for a first line that has another delimiter, or that has no names.

    Without it the first row of a file without a header would become names, and be lost.
    """
    delimiter = options.delimiter_of(path)
    if options.decimal == delimiter:
        raise _one_character_for_both(delimiter)
    with filesystem.open_stream(path) as stream:
        head = bytes(stream.read(_HEAD_BYTES))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and options.encoding is None:
        raise ValueError(f"{path!r} begins with the mark of UTF-16; pass encoding='utf-16'")
    text = head.decode(options.encoding or "utf-8", errors="replace").lstrip("\ufeff")
    lines = [line for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else ""
    if line.lstrip().startswith(('{"', "[{", "[[")):
        raise ValueError(
            f"{path!r} has JSON where CSV was expected: read it with polars or datasets, and pass "
            "the result to Table.from_series for lists in each row, else to Table.from_arrow"
        )
    if (mark := re.fullmatch(r'"?sep=(.)"?', line, re.IGNORECASE)) is not None:
        raise ValueError(
            f"the first line of {path!r} is {line!r}, as Excel writes; remove that line, and pass "
            f"delimiter={mark[1]!r}"
        )
    if any(
        re.match(r"@(relation|attribute|data)\b", one, re.IGNORECASE) for one in lines[:_HEADER]
    ):
        reader = "sktime.datasets.load_tsf_to_dataframe, and pass its series to Table.from_series"
        if path.lower().endswith(".arff"):
            reader = "scipy.io.arff.loadarff, and pass its columns to Table.from_columns"
        raise ValueError(
            f"{path!r} has a header with '@' where CSV was expected: read it with {reader}"
        )
    if options.delimiter is None and delimiter not in line:
        _check_blanks(path, lines[:_HEADER], delimiter)
        counted = Counter(char for char in line if char in ";\t|,")
        if counted:
            found, times = counted.most_common(1)[0]
            decimal = _decimal_advice(lines, found)
            raise ValueError(
                f"the first line of {path!r} has no {delimiter!r} and {times} of {found!r}; pass "
                f"delimiter={found!r}{decimal}, or delimiter={delimiter!r} if it is one column"
            )
    if options.header is None:
        rows = csv.reader(lines[:2], delimiter=delimiter)
        _check_names(path, next(rows, []), next(rows, []), options.decimal)


def _check_blanks(path: str, lines: Sequence[str], delimiter: str) -> None:
    """Raise ValueError for columns that are separated by blanks."""
    widths = {len(line.split()) for line in lines}
    if len(lines) < 2 or len(widths) > 1 or min(widths) < 2 or re.search("[;\t|,]", lines[0]):
        return
    if any(re.search(r"^\s|\s\s|\s$", line) for line in lines):
        cure = r"read it with pandas.read_csv(path, sep='\s+'), and pass that to Table.from_arrow"
    else:
        cure = f"pass delimiter=' '{_decimal_advice(lines, ' ')}"
    raise ValueError(
        f"{path!r} has {widths.pop()} columns with blanks between them; {cure}, or "
        f"delimiter={delimiter!r} if it is one column"
    )


def _decimal_advice(lines: Sequence[str], delimiter: str) -> str:
    cells = next(csv.reader(lines[1:2], delimiter=delimiter), [])
    commas = delimiter != "," and any("," in cell and _is_comma_number(cell) for cell in cells)
    return " and decimal=','" if commas else ""


def _check_names(path: str, names: Sequence[str], row: Sequence[str], decimal: str) -> None:
    """Raise ValueError for a first line that has a row of values, not names.

    All names are numbers or dates, and one at least is a number; or there are such values beside
    texts, and all are of the kind of the next line.
    """
    kinds = [_kind(name, decimal) for name in names]
    known = {kind for kind in kinds if kind}
    if known and known <= {"number", "date"} and "number" in known:
        what = "numbers"
    elif _are_values(names, kinds, row, decimal):
        what = "values as in the next line"
    else:
        return
    shown = ", ".join(map(repr, names[:4])) + ", ..." * (len(names) > 4)
    raise ValueError(
        f"the first line of {path!r} has {what} where names were expected: {shown}; pass "
        f"header=False or header=[{len(names)} names] if it is data, or header=True if these "
        "are the names"
    )


def _are_values(
    names: Sequence[str], kinds: Sequence[str], row: Sequence[str], decimal: str
) -> bool:
    """Return True if names are likely to be values, given the row of the next line.

    Whole numbers are names of columns in wide files, so another sign is needed: a fraction, a date,
    or a text that the next line repeats.
    """
    if not {"number", "date"} & set(kinds) or len(names) != len(row):
        return False
    pairs = list(zip(names, kinds, row, strict=True))
    if any(kind and text.strip() and kind != _kind(text, decimal) for _, kind, text in pairs):
        return False
    return any(
        kind == "date"
        or (kind == "number" and not name.strip().isdigit())
        or (kind == "text" and name == text)
        for name, kind, text in pairs
    )


def _kind(text: str, decimal: str) -> str:
    """Return "number", "date", "text", or "" for the text of a cell."""
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped.replace(decimal, ".")):
        return "number"
    return ("date" if _is_date(stripped) else "text") if stripped else ""


def _is_date(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return _DATE.fullmatch(text) is not None
    return True


def _is_comma_number(text: str) -> bool:
    return bool(text.strip()) and _COMMA_NUMBER.fullmatch(text.strip()) is not None


@contextlib.contextmanager
def hint_at_options(path: str, options: CsvOptions) -> Iterator[None]:
    """Add the option that is likely to help to the error about text that cannot be parsed."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if options.encoding is None and ("UTF8" in text or "utf-8" in text):
            raise ValueError(
                f"{text}; {path!r} is not UTF-8: pass encoding='latin-1', 'cp1252' or its own"
            ) from error
        raise


def text_hint(column: Any, *, time: bool) -> str:
    """Return the likely reason for text in a column of numbers or times, "" if there is none.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        Parsed values of a CSV file.
    time : bool
        Whether the column is the one of timestamps.
    """
    kind = conversion.value_type(column.type)
    if pa.types.is_binary(kind):
        return "it has bytes that are not UTF-8; pass encoding='latin-1', 'cp1252' or its own"
    if not conversion.is_string(kind):
        return ""
    values = [text.strip() for text in column.drop_null().slice(0, _LOOKED_AT).to_pylist()]
    values = [text for text in values if text]
    if not values:
        return ""
    if any("," in text for text in values) and all(map(_is_comma_number, values)):
        grouped = next((text for text in values if "." in text), None)
        if grouped is not None:
            return f"it has points between thousands, such as {grouped!r}, which are not read"
        given = next(text for text in values if "," in text)
        if all(_GROUPED.fullmatch(text) for text in values if "," in text):
            return (
                f"it has commas such as {given!r}: commas between thousands are not read; pass "
                "decimal=',' if they are decimal commas"
            )
        return f"it has decimal commas, such as {given!r}; pass decimal=','"
    grouped = next((text for text in values if _GROUPED.fullmatch(text)), None)
    if grouped is not None and not time:
        return f"it has commas between thousands, such as {grouped!r}, which are not read"
    found = _date_formats(values)
    formats = [text for text in found if impossible_time(values, text) is None]
    if found and not formats:
        wrong = impossible_time(values, found[0])
        if wrong == values[0]:
            return f"it has {wrong!r}, which is no date or time; expected it to be corrected"
        return f"it has dates such as {values[0]!r}, and {wrong!r}, which is none"
    if formats:
        asked = "" if time else "timestamp_column= and "
        several = " or ".join(f"timestamp_format={text!r}" for text in formats)
        return f"it has dates such as {values[0]!r}; pass {asked}{several}"
    return ""


def date_formats(values: Sequence[str]) -> list[str]:
    """Return the formats of dates that fit all texts, none if one is not such a date.

    Two formats mean that no date of the texts tells days from months.

    Examples
    --------
    >>> date_formats(["01/02/2024", "01/13/2024"]), date_formats(["1.2.2024 08:30"])
    (['%m/%d/%Y'], ['%d.%m.%Y %H:%M', '%m.%d.%Y %H:%M'])
    >>> date_formats(["30/02/2024"])
    []
    """
    return [text for text in _date_formats(values) if impossible_time(values, text) is None]


def _date_formats(values: Sequence[str]) -> list[str]:
    """Return the formats by their order and separators, also of days that no calendar has."""
    found = [_DATE.fullmatch(text) for text in values]
    dates = [match for match in found if match is not None]
    if not dates or len(dates) < len(found) or len({match["sep"] for match in dates}) > 1:
        return []
    year_first, sep = len(dates[0]["a"]) == 4, dates[0]["sep"]
    if year_first:
        formats = [f"%Y{sep}%m{sep}%d"]
    else:
        year = "%Y" if len(dates[0]["c"]) == 4 else "%y"
        day_first, month_first = f"%d{sep}%m{sep}{year}", f"%m{sep}%d{sep}{year}"
        formats = []
        if all(int(match["b"]) <= 12 for match in dates):
            formats.append(day_first)
        if all(int(match["a"]) <= 12 for match in dates):
            formats.append(month_first)
    return [text + _time_format(dates[0]) for text in formats]


def _time_format(date: re.Match[str]) -> str:
    if date["hour"] is None:
        return ""
    half = " %p" if (date["half"] or "").startswith(" ") else "%p"
    hour = "%I" if date["half"] else "%H"
    return f"{date['gap']}{hour}:%M{':%S' if date['second'] else ''}{half if date['half'] else ''}"


def misfit_hint(name: str, column: Any, options: CsvOptions, row: int = 0, *, kept: bool) -> str:
    """Return which text is among the numbers or times of a column, "" if it has none or few.

    Parameters
    ----------
    row : int
        Number of the first row.
    kept : bool
        Whether text is no error, so that one word has to be among numbers, or few texts.
    """
    if not conversion.is_string(column.type):
        return ""
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    fits = pc.match_substring_regex(
        pc.replace_substring(texts, options.decimal, "."),
        rf"^({_ISO if name == options.time else _NUMBER.pattern})$",
        ignore_case=True,
    )
    known = pc.or_kleene(fits, pc.is_in(texts, pa.array(options.words)))
    misfits = column.filter(pc.fill_null(pc.invert(known), False))
    numbers = pc.sum(fits).as_py() or 0
    one_word, few = len(misfits.unique()) == 1, len(misfits) <= numbers
    if kept:
        few = 9 * len(misfits) <= numbers or (one_word and few)
    if not len(misfits) or not numbers or not (few or (one_word and not kept)):
        return ""
    word, place = misfits[0].as_py(), row + pc.index(known, False).as_py()
    if name == options.time:
        return f"it has {word!r} in row {place} among times; expected a time in every row"
    keep = f"categories=[{name!r}] to read all of them as codes"
    if kept:
        keep = "missing=[] to keep the column as text"
    return (
        f"it has {word!r} in row {place} among numbers; pass missing=[{word!r}] if that stands for "
        f"a missing value, or {keep}"
    )
