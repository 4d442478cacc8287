"""Edited and truncated files give an error or documents, never a crash."""

from __future__ import annotations

import pathlib

import numpy as np
import pyarrow as pa
import pytest

from documents.test_readers import DOCUMENTS, batch_of, batches_of, write_ipc
from support.corpora import open_file, write_parquet


def test_offsets_edited_in_the_file(tmp_path: pathlib.Path) -> None:
    """No value of the offsets makes a document exceed the stored tokens."""
    documents = [[7] * 11, [7] * 13, [7] * 17]
    path = tmp_path / "a.arrow"
    write_ipc(path, batches_of(documents, pa.list_(pa.int32()), []))
    whole = path.read_bytes()
    offsets = np.array([0, 11, 24, 41], np.int32).tobytes()
    place = whole.index(offsets)
    assert whole.count(offsets) == 1
    for hostile, document in (
        ([0, 24, 11, 41], 1),
        ([0, 2**31 - 1, 24, 41], 0),
        ([0, 11, -24, 41], 1),
        ([-1, 11, 24, 41], None),
        ([0, 11, 24, 42], None),
        ([0, 11, 24, 2**31 - 1], None),
    ):
        path.write_bytes(whole.replace(offsets, np.array(hostile, np.int32).tobytes()))
        found = "cannot be read as Arrow IPC" if document is None else f"document {document} of '"
        with pytest.raises(ValueError, match=found) as refused:
            open_file(path)
        assert "a.arrow'" in str(refused.value)
    # The same for edits of a file that is already open.
    path.write_bytes(whole)
    shard = open_file(path)
    rng = np.random.default_rng(1)
    with open(path, "r+b") as file:
        for _ in range(200):
            file.seek(place)
            edited = (
                rng.integers(-(2**31), 2**31, 4) if rng.random() < 0.5 else rng.integers(0, 50, 4)
            )
            file.write(edited.astype(np.int32).tobytes())
            file.flush()
            lengths = shard.lengths()
            assert (lengths >= 0).all()
            assert (lengths <= 41).all()
            assert all(set(shard.document(number)) <= {7} for number in range(3))


def opened_or_refused(path: pathlib.Path) -> str:
    try:
        shard = open_file(path, strip_tokens=[1], min_length=1, threads=1)
    except MemoryError:
        return "refused"
    except (ValueError, KeyError, TypeError) as error:
        return "refused" if str(path.parent) in str(error) else f"silent: {error}"
    kept = [length for length in shard.lengths().tolist() if length > 0]
    assert sum(len(shard.document(j)) for j in range(len(shard))) == sum(kept)
    return "documents"


def test_random_bytes_edited_in_the_file(tmp_path: pathlib.Path) -> None:
    """Damaged files give documents, or an error that names the path."""
    rng = np.random.default_rng(2)
    path = tmp_path / "a.arrow"
    told = dict.fromkeys(("documents", "refused"), 0)
    for dtype, compression in (("uint16", None), ("int64", None), ("int32", "lz4")):
        kind = pa.list_(pa.type_for_alias(dtype))
        for form in ("lists", "plain"):
            batches = batches_of(DOCUMENTS, kind, [2])
            if form == "plain":
                batches = [batch_of(pa.array(d, kind.value_type)) for d in DOCUMENTS]
            write_ipc(path, batches, compression)
            edit(path, 120, rng, told)
    write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    edit(tmp_path / "a.parquet", 200, rng, told)
    assert min(told.values()) > 100


def edit(path: pathlib.Path, times: int, rng: np.random.Generator, told: dict[str, int]) -> None:
    """Edit some bytes of a file, time after time, and count what comes of it."""
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    for _ in range(times):
        edited = whole.copy()
        places = rng.integers(0, len(whole), int(rng.integers(1, 6)))
        edited[places] = rng.choice([0, 1, 127, 128, 255], len(places))
        path.write_bytes(edited.tobytes())
        told[opened_or_refused(path)] += 1
