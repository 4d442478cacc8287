"""Tests of JSON from outside that is damaged or nested: a ValueError, wherever it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.token_files import write_mds
from windeck import checkpoint
from windeck.checkpoint.stores import open_store
from windeck.diagnosis import Diagnosis

#: Texts that are no JSON of any of the formats.
TEXTS = {
    "lists": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "closed lists": "[" * 50_000 + "]" * 50_000,
    "nested objects": '{"a":' * 500 + "1" + "}" * 500,
    "digits": "1" * 100_000,
    "cut": '{"a": [1, ',
    "bytes": "\udcff\udcfe",
    "nothing": "",
    "null": "null",
    "number": "3",
    "text": '"a"',
}


def _header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def _safetensors(path: Path, text: bytes) -> None:
    path.with_suffix(".safetensors").write_bytes(_header(text))
    with open_store("memory://") as store:
        checkpoint.import_(path.with_suffix(".safetensors"), store)


def _safetensors_metadata(path: Path, text: bytes) -> None:
    inside = json.dumps({"__metadata__": {"windeck": text.decode(errors="replace")}})
    _safetensors(path, inside.encode())


def _index(path: Path, text: bytes, suffix: str) -> None:
    path = path.with_suffix(suffix)
    path.write_bytes(text)
    with open_store("memory://") as store:
        checkpoint.import_(path, store)


def _prepared(path: Path, text: bytes) -> None:
    path.mkdir()
    (path / "manifest.json").write_bytes(text)
    wd.Prepared.read(path)


def _mds(path: Path, text: bytes) -> None:
    write_mds(path, [[[1, 2], [3]]])
    (path / "index.json").write_bytes(text)
    len(wd.Documents(path))


def _json_lines(path: Path, text: bytes) -> None:
    path.mkdir()
    (path / "a.jsonl").write_bytes(text + b"\n")
    len(wd.Documents(path, files="*.jsonl"))


READERS: dict[str, Callable[[Path, bytes], Any]] = {
    "scaler": lambda path, text: wd.Scaler.from_json(text.decode(errors="replace")),
    "report": lambda path, text: Diagnosis.from_json(text.decode(errors="replace")),
    "safetensors": _safetensors,
    "metadata of safetensors": _safetensors_metadata,
    "index of safetensors": lambda path, text: _index(path, text, ".safetensors.index.json"),
    "index of torch": lambda path, text: _index(path, text, ".bin.index.json"),
    "prepared": _prepared,
    "json lines": _json_lines,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("reader", READERS)
def test_json_from_outside(reader: str, text: str, tmp_path: Path) -> None:
    content = TEXTS[text].encode(errors="surrogateescape")
    if reader == "json lines" and text == "nothing":
        pytest.skip("an empty file has no documents")
    # An object without the column is a KeyError.
    errors = (ValueError, KeyError) if reader == "json lines" else ValueError
    with pytest.raises(errors) as caught:
        READERS[reader](tmp_path / "file", content)
    assert len(str(caught.value)) < 1000
    if reader not in ("scaler", "report"):
        assert "file" in str(caught.value)


@pytest.mark.parametrize("text", ["lists", "objects", "closed lists", "digits", "cut", "bytes"])
def test_indexes_of_documents(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"index.json"):
        _mds(tmp_path / "file", TEXTS[text].encode(errors="surrogateescape"))


def test_names_of_series_that_are_nested(tmp_path: Path) -> None:
    table = wd.Table.from_columns({"a": np.arange(9.0)}, offsets=[0, 9])
    plain = json.loads(wd.Scaler.fit(table, per_series=True).to_json())
    for depth in (20, 900):
        name: Any = 0
        for _ in range(depth):
            name = [name]
        text = json.dumps({**plain, "series": [name]}) if depth < 100 else None
        text = text or json.dumps({**plain, "series": ["?"]}).replace(
            '"?"', "[" * depth + "0" + "]" * depth
        )
        with pytest.raises(ValueError, match="scaler's JSON cannot be read"):
            wd.Scaler.from_json(text)
