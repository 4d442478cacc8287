"""Tests of `windeck view` on a terminal, in a pipe, and with errors."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.internals import plant
from support.view_cases import Fresh, refused, run, run_json, saved
from windeck import checkpoint
from windeck._core import crc32c

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(*arguments: str, **settings: str) -> tuple[int, str]:
    """Exit code and output of a command whose stdout and stderr are a terminal."""
    command = [sys.executable, "-m", "windeck", "view", *arguments]
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment = {**clean, "TERM": "xterm-256color", "COLUMNS": "100", **settings}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        told = b""
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # on Linux: the other end is closed
                break
            if not piece:
                break
            told += piece
    os.close(ours)
    return process.returncode, told.decode().replace("\r\n", "\n")


def test_tables_have_frames_and_colours_on_a_terminal(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"), 10, 20)
    code, told = on_terminal(url, "log")
    assert code == 0
    assert "─────" in told
    assert COLOUR.search(told)
    rows = [line.split() for line in COLOUR.sub("", told).splitlines()]
    assert [row[:2] for row in rows if row and row[0].isdecimal()] == [["2", "20"], ["1", "10"]]


def test_a_tree_looks_the_same_but_for_colours(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    code, told = on_terminal(url, "ls")
    assert code == 0
    assert COLOUR.search(told)
    assert COLOUR.sub("", told) == run(url, "ls")[1]
    assert on_terminal(url, "ls", NO_COLOR="1") == (0, run(url, "ls")[1])


def test_values_fit_on_the_terminal(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    checkpoint.save(url, step=1, model={"w": torch.full((2, 100), -1.23456e-30)})
    code, told = on_terminal(url, "show", "model/w", COLUMNS="60")
    assert code == 0
    assert max(map(len, COLOUR.sub("", told).splitlines()[1:])) <= 60
    assert "and 97 columns more" in told


def test_errors_are_red_on_a_terminal(fresh: Fresh) -> None:
    code, told = on_terminal("nowhere", "ls")
    assert code == 2
    assert told.startswith("\x1b[1;31mwindeck view:\x1b[0m expected the URL of a store")


def test_without_unicode(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    command = [sys.executable, "-m", "windeck", "view", url]
    for words in (["ls"], ["show", "model/layers.0.w", "--stats"], ["log"]):
        done = subprocess.run(
            [*command, *words],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
        assert (b"|- " in done.stdout) == (words == ["ls"])
        assert (b"######" in done.stdout) == ("--stats" in words)


def test_what_a_name_says_is_never_done(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    name = "evil\x1b]0;title\x07\x1b[2J[bold]\u202ename"
    checkpoint.save(url, step=1, model={name: torch.ones(2)})
    shown = r"model/evil\x1b]0;title\x07\x1b[2J[bold]\u202ename"
    for words in (["ls"], ["ls", "--flat"], ["find", "--eq", "1"], ["diff", "1", "2"]):
        if words[0] == "diff":
            checkpoint.save(url, step=2, model={})
        code, told = (
            on_terminal(url, *words, "--generation", "1")
            if words[0] != "diff"
            else (on_terminal(url, *words))
        )
        assert code == (words[0] == "diff")
        assert "\x1b]" not in told
        assert "\x1b[2J" not in told
        plain = COLOUR.sub("", told).replace("\n", "").replace(" ", "")
        assert r"\x1b]0;title\x07\x1b[2J[bold]\u202e" in plain
    assert run_json(url, "ls", "--generation", "1")["tensors"][0]["name"] == f"model/{name}"
    code, told = on_terminal(url, "show", f"model/{name}", "--generation", "1")
    assert COLOUR.sub("", told).startswith(shown)


def test_interrupted(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    url = saved(fresh("rocksdb"))
    plant(monkeypatch, "catalog.find_commit", interrupt)
    assert run(url, "ls") == (130, "", "")


def test_a_library_that_is_missing(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fresh("leveldb")
    for name in [name for name in sys.modules if name.startswith("windeck.checkpoint.stores.lev")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plyvel", None)
    told = refused(url, "ls", code=3)
    assert told == "leveldb:// needs the package plyvel: pip install 'windeck[leveldb]'"


def test_a_later_format(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    with checkpoint.stores.open_store(url) as store:
        value = bytearray(store.get(b"windeck/HEAD") or b"")
        value[4] = 2
        value[60:64] = crc32c(bytes(value[:60])).to_bytes(4, "little")
        store.put_many([(b"windeck/HEAD", bytes(value))])
    told = refused(url, "ls", code=3)
    assert told == "windeck/HEAD has format 2, expected 1: a later windeck wrote it"


def test_another_database_and_a_folder_without_one(tmp_path: Path, fresh: Fresh) -> None:
    saved(fresh("leveldb"))
    (folder,) = tmp_path.glob("database-*")
    told = refused(f"rocksdb://{folder}", "ls", code=3)
    assert str(folder) in told
    (tmp_path / "file").write_text("x")
    assert refused(f"rocksdb://{tmp_path}/file", "ls", code=3)


def test_a_bug_of_ours_is_not_hidden(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("ours")

    plant(monkeypatch, "catalog.find_commit", broken)
    with pytest.raises(KeyError, match="ours"):
        run(saved(fresh("rocksdb")), "ls")


def test_the_traceback_on_demand(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDECK_TRACEBACK", "1")
    with pytest.raises(Exception, match="expected the URL of a store"):
        run("nowhere", "ls")
