"""The page on preparing files: its code runs, its links and options exist."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

import windeck as wd
from support.object_servers import bucket_of
from support.pages import Page
from support.prepare_cases import unsorted_rows, write_files
from support.programs import command

PAGE = Page("docs/prepare.md")


@pytest.fixture(autouse=True)
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "raw", unsorted_rows(), 3, (".csv",))


def test_code_on_the_page_runs(s3_port: int, quick_retries: None) -> None:
    with bucket_of(s3_port, "loads") as bucket:
        names = PAGE.run({"__name__": "page", "options": bucket.options})
        names["sorted_files"].verify()
    assert names["by_site"].series == ("s0", "s1", "s2", "s3", "s4")
    assert names["table"].num_rows == 300
    assert names["result"].scalers["standard"] == names["scaler"]
    assert names["scaler"].counts.tolist() == [[10, 10]]


def test_the_first_command_on_the_page_runs() -> None:
    line = next(line for line in PAGE.text.splitlines() if line.startswith("    windeck prepare"))
    code, out, err = command(*shlex.split(line)[1:])
    assert code == 0, err
    assert out.startswith("sorted: 300 rows of 5 series in 1 file")


def test_links_and_options_exist() -> None:
    PAGE.check_links()
    options = set(re.findall(r"`(\w+)=", PAGE.text))
    assert options - {"in_memory", "categories"} <= set(inspect.signature(wd.prepare).parameters)
