"""Tests of text from outside with control sequences: no command obeys or passes one."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import windeck as wd
from cli.test_terminal import COLOUR, on_terminal
from models.table_model import ModelCore, ModelTable
from support.diagnoses import measured
from support.programs import command
from support.view_cases import Fresh
from windeck import checkpoint
from windeck._core import crc32c
from windeck.checkpoint.format import Kind, Label, keys, manifests, values
from windeck.checkpoint.stores import Store, open_store
from windeck.diagnosis import Diagnosis, comparison

#: Clears, titles, links, colours, C1 controls, bidirectional controls, returns and bells.
EVIL = (
    "\x1b[2J\x1b]0;t\x07\x1b]8;;http://x\x1b\\a\x1b]8;;\x1b\\\x1b[31m\x9b2J\x9d0;t\x9c\r\x08\x7f"
    "\u202e\u2066\u200f\ufdd01\ufdd0\ue000\x00\x0b\x0c\x85\u2028"
)
#: Everything of it that a terminal may obey.
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def strings(found: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all strings in JSON."""
    if isinstance(found, str):
        yield at
    for key in (
        found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
    ):
        yield from strings(found[key], (*at, key))


def changed(found: Any, at: tuple[Any, ...], value: Any) -> Any:
    copied = json.loads(json.dumps(found))
    holder = copied
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = value
    return copied


def check(*words: str) -> str:
    _, out, err = command(*words)
    for text in (out, err):
        assert not CONTROLS.search(text), (words, CONTROLS.findall(text), text[:500])
    return out + err


def put(store: Store, payload: bytes) -> None:
    """Replace the manifest of the current generation."""
    head = manifests.read_head(store, "windeck")
    commit, *older = head.commits
    value = values.encode(Label(Kind.MANIFEST, commit.generation, commit.save), payload)
    now = commit._replace(manifest_bytes=len(value), manifest_crc=crc32c(value))
    store.put_many([
        (keys.manifest("windeck", commit.generation), value),
        (keys.head("windeck"), manifests.encode_head([now, *older])),
    ])  # fmt: skip


def fill(store: Store) -> None:
    core = ModelCore(3, 1)
    core.fill(range(20), np.random.default_rng(1))
    for step in (1, 2):
        checkpoint.save(
            store, step=step, model={"w": torch.arange(6.0) * step, f"n{EVIL}": torch.ones(2)},
            extra={"text": EVIL, f"key{EVIL}": "x", "n": 0.5},
            embeddings={"user": ModelTable(core)},
        )  # fmt: skip


COMMANDS = [
    ("ls",), ("ls", "--flat"), ("ls", "--json"), ("ls", EVIL), ("show", "model/w"),
    ("show", f"model/n{EVIL}"), ("show", f"extra/key{EVIL}"), ("show", "extra/text"), ("log",),
    ("find", "abs > 0"), ("find", "abs > 0", "--json"), ("diff", "1"), ("diff", "1", "2", "--json"),
    ("verify", "--deep"), ("stats",), ("row", "embeddings/user", "3"), ("row", EVIL, "3"),
    ("show", EVIL), ("show", "embeddings/user"), ("gc", "--keep", "2", "--dry-run"), (EVIL,),
    ("log", "--namespace", EVIL), ("ls", "--generation", EVIL), ("find", EVIL),
]  # fmt: skip


def test_every_string_of_a_checkpoint(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    with open_store(url) as store:
        fill(store)
        (commit, *_) = manifests.read_head(store, "windeck").commits
        key = keys.manifest("windeck", commit.generation)
        label = Label(Kind.MANIFEST, commit.generation, commit.save)
        lines = bytes(values.decode(key, store.get(key), label)).split(b"\n")
    for words in COMMANDS:
        check("view", url, *words)
    found = json.loads(lines[0])
    for at in strings(found):
        with open_store(url) as store:
            put(store, json.dumps(changed(found, at, f"x{EVIL}")).encode() + b"\n" + lines[1])
        for words in (("ls",), ("ls", "--flat"), ("find", "abs > 0"), ("verify",), ("diff", "1"),
                      ("show", "model/w"), ("row", "embeddings/user", "3")):  # fmt: skip
            check("view", url, *words)


def test_on_a_terminal_there_are_only_our_colours(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    with open_store(url) as store:
        fill(store)
        (commit, *_) = manifests.read_head(store, "windeck").commits
        key = keys.manifest("windeck", commit.generation)
        label = Label(Kind.MANIFEST, commit.generation, commit.save)
        lines = bytes(values.decode(key, store.get(key), label)).split(b"\n")
        found = json.loads(lines[0])
        found["kinds"][0]["dtype"] = f"x{EVIL}"
        put(store, json.dumps(found).encode() + b"\n" + lines[1])
    for words in (("ls",), ("find", "abs > 0"), ("log",), ("show", "extra/text")):
        _, told = on_terminal(url, *words)
        assert "\x1b[31m\\x9b" not in told
        assert not CONTROLS.search(COLOUR.sub("", told)), words


def test_every_string_of_a_report(tmp_path: Path) -> None:
    plain = Diagnosis(measured(0.004, 0.01, workers=2, stages={"gather": 0.002}))
    document = json.loads(plain.to_json())
    file, other = tmp_path / "a.json", tmp_path / "b.json"
    other.write_text(plain.to_json())
    tried = 0
    for at in strings(document):
        file.write_text(json.dumps(changed(document, at, f"x{EVIL}")))
        told = check("doctor", "--compare", str(file), str(other))
        check("doctor", "--compare", str(file), str(other), "--json")
        tried += bool(told)
        try:
            found = Diagnosis.from_json(file.read_text())
        except ValueError:
            continue
        for text in (str(found), comparison([(f"x{EVIL}", found), ("b", plain)])):
            assert not CONTROLS.search(text)
    assert tried > 5
    noted = replace(plain.measured, notes=(f"a note\n{EVIL}",))
    assert not CONTROLS.search(str(Diagnosis(noted)))


def test_names_of_columns_files_and_ids(tmp_path: Path) -> None:
    name = "".join(c for c in EVIL if c not in "\x00/") + "e"
    table = pa.table({name: [1.0, 2.0, 3.0, 4.0], "id": [name, name, "b", "b"], "t": [1, 2, 1, 2]})
    folder = tmp_path / name
    folder.mkdir()
    pq.write_table(table, folder / f"{name}.parquet")
    (folder / f"{name}.csv").write_text(f"a,b\n1,{name.replace(chr(13), '')}\n", encoding="utf-8")
    found = wd.Table.read(folder / f"{name}.parquet", id_columns="id", columns=[name])
    assert not CONTROLS.search(found.explain())
    assert not CONTROLS.search(wd.Scaler.fit(found).explain())
    for number, (source, more) in enumerate(itertools.product(
        (folder / f"{name}.parquet", folder / f"{name}.csv", folder / name, folder),
        ((), ("--columns", name), ("--columns", f"other{name}"), ("--id-columns", name)),
    )):  # fmt: skip
        check("prepare", str(source), str(tmp_path / f"to{number}"), *more)
    check("prepare", str(folder / f"{name}.parquet"), str(tmp_path / f"to{name}"), "--time", name)


@pytest.mark.parametrize("words", [("prepare",), ("doctor",), ("view",), (), ("demo",)])
def test_words_that_are_no_commands(words: tuple[str, ...]) -> None:
    for more in (
        (EVIL,),
        (EVIL, EVIL),
        (f"--{EVIL}",),
        (f"redis://{EVIL}", "ls"),
        (f"{EVIL}://a",),
    ):
        check(*words, *more)
