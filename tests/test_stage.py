"""The page the demo writes on: wraps under itself, shows what it is given, and no bar in a file."""

import io

from rich.console import Console

from windeck.tools.stage import INDENT, Page


def page(width: int = 60) -> tuple[Page, io.StringIO]:
    text = io.StringIO()
    return Page(Console(file=text, width=width, highlight=False), progress=True), text


def test_acts_are_numbered_and_aligned() -> None:
    sheet, text = page()
    sheet.act("Data", "a file")
    sheet.line("time", "ds", "the only one")
    sheet.act("Windows", "many")
    assert text.getvalue().splitlines() == [
        "1 Data      a file",
        "  time      ds · the only one",
        "2 Windows   many",
    ]


def test_long_words_wrap_under_themselves() -> None:
    sheet, text = page(40)
    sheet.note("one two three four five six seven eight nine ten")
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 40 for line in lines)
    assert lines[1].startswith(" " * INDENT)


def test_brackets_are_shown_and_not_obeyed() -> None:
    sheet, text = page()
    sheet.line("target", "[red]load[/]", "why [not]")
    assert "[red]load[/] · why [not]" in text.getvalue()


def test_no_bars_where_nobody_watches() -> None:
    sheet, text = page()
    with sheet.bar("training", 10) as bar:
        bar.report(3, 0.5)
        bar.stopped(4)
    with sheet.waiting("measuring"):
        pass
    assert text.getvalue() == ""
