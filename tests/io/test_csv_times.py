"""Times in CSV files: those of the calendar, or an error that names the text and its row."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.internals import planted
from windeck.io import date_formats

Fields = tuple[int, int, int, int, int, int]
ZONES = {"Z": 0, "+0200": 7200, "-05:30": -19800}


def texts_of(layout: str) -> Callable[[Fields], str]:
    """A writer of a format for any numbers, also of days that no calendar has."""

    def write(fields: Fields) -> str:
        year, month, day, hour, minute, second = fields
        parts = {
            "%Y": f"{year:04}",
            "%y": f"{year % 100:02}",
            "%m": f"{month:02}",
            "%d": f"{day:02}",
            "%H": f"{hour:02}",
            "%I": f"{(hour - 1) % 12 + 1 if hour < 24 else hour:02}",
            "%p": "AM" if hour < 12 else "PM",
            "%M": f"{minute:02}",
            "%S": f"{second:02}",
            "%T": f"{hour:02}:{minute:02}:{second:02}",
            "%F": f"{year:04}-{month:02}-{day:02}",
            "%e": f"{day:2}",
        }
        text = layout
        for directive, part in parts.items():
            text = text.replace(directive, part)
        return text

    return write


def moment_of(fields: Fields, layout: str) -> dt.datetime | None:
    """The moment of some numbers by Python's calendar, None for numbers that it lacks."""
    year, month, day, hour, minute, second = fields
    has_time = any(part in layout for part in ("%H", "%I", "%T"))
    has_seconds = any(part in layout for part in ("%S", "%T"))
    year = year if "%y" not in layout else (2000 if year % 100 < 69 else 1900) + year % 100
    time = (hour, minute, second if has_seconds else 0) if has_time else (0, 0, 0)
    try:
        return dt.datetime(year, month, day, *time)
    except ValueError:
        return None


def all_fields() -> Iterator[Fields]:
    for year, month, day in itertools.product(
        (1999, 2023, 2024), range(14), (0, 1, 9, 28, 29, 30, 31, 32)
    ):
        yield year, month, day, 12, 34, 56
    for time in (
        (24, 0, 0),
        (23, 60, 0),
        (23, 59, 60),
        (23, 59, 61),
        (0, 0, 0),
        (25, 0, 0),
        (12, 5, 9),
    ):
        yield 2024, 6, 30, *time


LAYOUTS = [
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y%m%d",
    "%d.%m.%y",
    "%Y-%m-%d %H:%M",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %I:%M %p",
    "%F %T",
    "%e/%m/%Y",
    "%dT%m %Y",
]


def read(path: Path, layout: str) -> Any:
    table = wd.Table.read(path, timestamp_column="t", timestamp_format=layout)
    return table.timestamps


def read_in_blocks(path: Path, layout: str) -> Any:
    with planted("csv._SAMPLE_BYTES", 64):
        return read(path, layout)


def prepared(path: Path, layout: str) -> Any:
    with planted("csv._SAMPLE_BYTES", 64):
        wd.prepare(
            path,
            path.parent / "out",
            timestamp_column="t",
            timestamp_format=layout,
            file_bytes=1 << 10,
            duplicates="keep",
            overwrite=True,
        )
    return wd.Table.read(path.parent / "out", timestamp_column="t").timestamps


@pytest.mark.parametrize("layout", LAYOUTS)
def test_days_are_those_of_the_calendar(tmp_path: Path, layout: str) -> None:
    write = texts_of(layout)
    good = [fields for fields in all_fields() if moment_of(fields, layout) is not None]
    bad = [fields for fields in all_fields() if moment_of(fields, layout) is None]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["t,x", *(f"{write(one)},1" for one in good)]) + "\n")
    expected = sorted(moment_of(fields, layout) or dt.datetime.min for fields in good)
    for reader in (read, read_in_blocks, prepared):
        assert reader(path, layout).astype("M8[us]").tolist() == expected, reader
    assert len(bad) > 20
    for number, fields in enumerate(bad):
        readers = [read_in_blocks, prepared] if number % 20 == 0 else [read]
        lines = [f"{write(one)},1" for one in good[:60]]
        lines.insert(41, f"{write(fields)},1")
        path.write_text("\n".join(["t,x", *lines]) + "\n")
        for reader in readers:
            with pytest.raises(ValueError, match=r"column 't' of .*a.csv' has") as caught:
                reader(path, layout)
            assert f"has {write(fields)!r} in row 41, which is no time; " in str(caught.value)
            assert f"expected timestamp_format={layout!r} in" in str(caught.value)


@pytest.mark.parametrize("zone", ZONES)
def test_times_with_a_zone(tmp_path: Path, zone: str) -> None:
    path = tmp_path / "a.csv"
    rows = [f"01/0{month}/2024 03:00{zone},1" for month in range(1, 9)]
    path.write_text("\n".join(["t,x", *rows]) + "\n")
    expected = [
        dt.datetime(2024, month, 1, 3) - dt.timedelta(seconds=ZONES[zone]) for month in range(1, 9)
    ]
    for layout in ("%d/%m/%Y %H:%M%z", "%d/%m/%Y %R%z"):
        assert read(path, layout).tolist() == expected
    for text in ("31/04/2024 03:00", "01/04/2024 03:00"):
        path.write_text(f"t,x\n01/01/2024 00:00Z,1\n{text}{zone if text[0] == '3' else ''},1\n")
        with pytest.raises(ValueError, match=rf"has '{text}.*' in row 1, which is no time"):
            read(path, "%d/%m/%Y %H:%M%z")


@pytest.mark.parametrize(
    ("layout", "text", "expected"),
    [
        ("%d/%m/%Y", "1/4/2024", "2024-04-01"),
        ("%d/%m/%Y", " 01/04/2024 ", "2024-04-01"),
        ("%d/%m/%Y", "01/04/24", None),
        ("%d/%m/%y", "01/04/2024", None),
        ("%d/%m/%Y", "01/04/2024 ", "2024-04-01"),
        ("%d/%m/%Y", "01/04/2024x", None),
        ("%d %b %Y", "3 apr 2024", "2024-04-03"),
        ("%d %B %Y", "3 April 2024", "2024-04-03"),
        ("%d %B %Y", "31 April 2024", None),
        ("%a %d %b %Y", "Wed 3 Apr 2024", "2024-04-03"),
        ("%a %d %b %Y", "Mon 3 Apr 2024", None),
        ("%Y-%j", "2024-366", "2024-12-31"),
        ("%Y-%j", "2023-366", None),
        ("%Y%m%d", "2024111", None),
        ("%m/%d/%Y %I:%M %p", "1/2/2024 1:05 pm", "2024-01-02T13:05"),
        ("%m/%d/%Y %I:%M %p", "1/2/2024 13:05 pm", None),
        ("%s", "1712102400", "2024-04-03"),
    ],
)
def test_texts_beside_the_format(
    tmp_path: Path, layout: str, text: str, expected: str | None
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"t,x\n{text},1\n")
    if expected is None:
        with pytest.raises(ValueError, match=f"has '{text}' in row 0, which is no time"):
            read(path, layout)
    else:
        assert read(path, layout)[0] == np.datetime64(expected)


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        ("%d/%m/%Y %H:%M:%S.%f", "has %f, for fractions of seconds, which are"),
        ("%d/%m/%Y %%%Z", "has %Z, for names of time zones, which are not read"),
        ("", "must be a format such as '%d/%m/%Y', of strptime, got ''"),
        ("dd/mm/yyyy", "must be a format such as '%d/%m/%Y', of strptime, got 'dd/mm/yyyy'"),
    ],
)
def test_formats_that_are_not_read(tmp_path: Path, layout: str, found: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,x\n30/04/2024 00:00:00.5,1\n")
    with pytest.raises(ValueError, match=f"`timestamp_format` {found}"):
        read(path, layout)


@pytest.mark.parametrize(
    "layout", ["%d/%m/%Y %H:%M:%S", "%A %d %B %Y %I:%M:%S %p", "%j of %Y at %X"]
)
def test_every_time_that_python_writes_is_read(tmp_path: Path, layout: str) -> None:
    first, last = dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)
    days = [dt.datetime(2024, 1, 1) + dt.timedelta(days=day, hours=day % 24) for day in range(366)]
    seconds = random.Random(0).sample(range(int((last - first).total_seconds())), 2000)
    drawn = {first + dt.timedelta(seconds=count) for count in seconds}
    moments = sorted({first, last, *days, *drawn})
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["t,x", *(f"{moment.strftime(layout)},1" for moment in moments)]))
    assert read(path, layout).astype("datetime64[us]").tolist() == moments


@pytest.mark.parametrize(
    "text", ["31/04/2024", "30/02/2023", "2024-02-30", "29.02.2023", "00/01/2024"]
)
def test_no_format_is_advised_that_changes_days(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    other = text.replace("31", "30").replace("30", "28").replace("29", "28").replace("00", "28")
    path.write_text(f"t,x\n{other},1\n{text},2\n")
    assert date_formats([other, text]) == []
    for time in (None, "t"):
        with pytest.raises(
            TypeError, match=rf"dates such as '{other}', and '{text}', which is no"
        ) as at:
            wd.Table.read(path, timestamp_column=time)
        assert "timestamp_format" not in str(at.value)
    path.write_text(f"t,x\n{text},1\n{other},2\n")
    with pytest.raises(TypeError, match=f"it has '{text}', which is no date or time; expected it"):
        wd.Table.read(path, timestamp_column="t")


@pytest.mark.parametrize(
    "text", ["2024-02-30", "2024-01-01 24:00:00", "2024-12-31 23:59:60", "2024-13-01", "2024-1-1"]
)
def test_iso_times_that_do_not_exist_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"t,x\n2024-01-01 00:00:00,1\n2024-01-01 01:00:00,1\n{text},2\n")
    with pytest.raises(TypeError, match=rf"'{text}'"):
        wd.Table.read(path, timestamp_column="t")
