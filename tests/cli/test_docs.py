"""`docs/viewer.md`: its commands print what it says, and it names every command and key."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from support.pages import Page
from support.programs import command
from support.store_servers import need
from windeck.cli.main import VIEW_COMMANDS

PAGE = Page("docs/viewer.md")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
#: Of what pyarrow writes, a version more or less changes the bytes.
FILE = re.compile(r"(wrote users.parquet, ).*")
#: The random number of a save has a digit or two less now and then.
MANIFEST = re.compile(r"(\(a time\) +86)\d B")


def neutral(text: str) -> str:
    text = MANIFEST.sub(r"\1. B", TIME.sub("(a time)", text))
    return FILE.sub(r"\1...", text).strip()


def test_the_page_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("rocksdb")
    need("leveldb")
    monkeypatch.chdir(tmp_path)
    PAGE.run()
    blocks = re.findall(r"```console\n(.*?)```", PAGE.text, re.DOTALL)
    said = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.M) if part]
    assert len(said) > 15
    for part in said:
        line, _, expected = part.partition("\n")
        program, *arguments = shlex.split(line)
        assert program == "windeck"
        code, out, err = command(*arguments)
        assert code in (0, 1), err
        assert neutral(out + err) == neutral(expected), line
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "last.pt",
        "runs",
        "tower.npy",
        "users.parquet",
    ]


def test_every_command_and_key_is_on_the_page() -> None:
    assert len(VIEW_COMMANDS) == 11
    for name in VIEW_COMMANDS:
        assert f"`{name}" in PAGE.text or f" {name} " in PAGE.text, name
    documents = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| .*`\w+`.* \|$", PAGE.text, re.MULTILINE)
    told = {name.strip("`") for names in documents for name in names.split(", ")}
    assert told == {*VIEW_COMMANDS}


def test_links() -> None:
    PAGE.check_links()
