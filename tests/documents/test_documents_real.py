"""Documents of a real corpus, compared with its files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.real_corpus import is_text, sources, write_library
from windeck import Documents


@pytest.mark.parametrize("form", ["batches", "lists", "text"])
@pytest.mark.parametrize("counts", [False, True])
def test_every_document_is_its_file(form: str, counts: bool, tmp_path: Path) -> None:
    files = write_library(tmp_path, form, counts=counts)
    text = form == "text"
    documents = Documents(
        tmp_path,
        column="text" if text else "tokens",
        tokenizer=str.encode if text else None,
        open_files=2,
    )
    assert len(documents) == len(files) > 150
    assert int(documents.shard_tokens.sum()) == sum(path.stat().st_size for path in files)
    for number, path in enumerate(files):
        assert documents[number].astype(np.uint8).tobytes() == path.read_bytes()
    places = documents.locate(np.arange(len(files)))
    assert documents.index(places).tolist() == list(range(len(files)))
    documents.verify()


def texts() -> list[str]:
    """Return files of Python's library."""
    paths = [path for folder in sources().values() for path in folder[:40]]
    return [path.read_text(encoding="utf-8") for path in paths if is_text(path)]


def write_json_lines(root: Path) -> None:
    """Write four shards, of which two are compressed and two escape what is not ASCII."""
    for part in range(4):
        rows = [json.dumps({"text": text}, ensure_ascii=part % 2 == 0) for text in texts()[part::4]]
        data = ("\n".join(rows) + "\n").encode()
        name = f"code-{part:05}-of-00004.jsonl"
        if part < 2:
            (root / name).write_bytes(data)
        else:
            (root / f"{name}.gz").write_bytes(gzip.compress(data, 1))


def write_saved_dataset(root: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    ordered = [text for part in range(4) for text in texts()[part::4]]
    datasets.Dataset.from_dict({"text": ordered}).save_to_disk(root, num_shards=4)


@pytest.mark.parametrize("make", [write_json_lines, write_saved_dataset])
def test_text_of_other_tools_is_read_as_it_is(make: Any, tmp_path: Path) -> None:
    make(tmp_path)
    documents = Documents(tmp_path, column="text", tokenizer=str.encode)
    expected = [text.encode() for part in range(4) for text in texts()[part::4]]
    found = [documents[n].astype(np.uint8).tobytes() for n in range(len(documents))]
    assert found == expected


def test_parts_of_a_split_stay_as_they_are_when_a_real_corpus_grows(tmp_path: Path) -> None:
    folder = tmp_path / "dataset=py"
    folder.mkdir()
    everything = texts()
    parts: list[set[tuple[str, int, int]]] = []
    for shard, stop in enumerate(range(20, len(everything) + 1, 20)):
        rows = pa.table({"text": everything[stop - 20 : stop]})
        parquet.write_table(rows, folder / f"x.part{shard}.parquet")
        if shard not in (2, 4):
            continue
        documents = Documents(tmp_path, column="text", tokenizer=str.encode)
        split = documents.split(validation=0.2, test=0.1, seed=1)
        now = [
            {one.locate(n) for n in range(len(one)) if len(one[n])}  # filtered ones are empty
            for one in split
        ]
        names = {documents.locate(n) for n in range(len(documents)) if len(documents[n])}
        assert set.union(*now) == names
        assert sum(map(len, now)) == len(names)
        assert all(before <= after for before, after in zip(parts, now, strict=False))
        assert all(now)
        parts = now
