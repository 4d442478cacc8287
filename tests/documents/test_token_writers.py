"""Token files of the libraries that define them: what they write and read is what is read here.

`pip install --no-deps megatron-core mosaicml-streaming`; the latter imports what it needs for
uploads and pictures as well.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.real_corpus import is_text, sources
from windeck import Documents

# Their warnings are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")


def library(name: str) -> Any:
    """Import a library that may be missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


def contents() -> list[np.ndarray[Any, Any]]:
    """Return real documents: the bytes of Python's own sources."""
    files = [path for paths in sources().values() for path in paths if is_text(path)]
    tokens = [np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64) for path in files]
    return [one for one in tokens if len(one)][::4]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint8, np.int64])
def test_megatron(dtype: Any, tmp_path: Path) -> None:
    module = library("megatron.core.datasets.indexed_dataset")
    docs = contents()
    for part in range(2):
        builder = module.IndexedDatasetBuilder(str(tmp_path / f"x{part}.bin"), dtype=dtype)
        for doc in docs[part::2]:
            half = len(doc) // 2
            if half % 2:
                builder.add_document(torch.from_numpy(doc), [half, len(doc) - half])
            else:
                builder.add_item(torch.from_numpy(doc))
                builder.end_document()
        builder.finalize(str(tmp_path / f"x{part}.idx"))
    # Their merge of data sets, too.
    merged = tmp_path / "merged"
    merged.mkdir()
    builder = module.IndexedDatasetBuilder(str(merged / "all.bin"), dtype=dtype)
    for part in range(2):
        builder.add_index(str(tmp_path / f"x{part}"))
    builder.finalize(str(merged / "all.idx"))

    ordered = [doc for part in range(2) for doc in docs[part::2]]
    for documents in (Documents(tmp_path, files="*.bin"), Documents(merged)):
        assert len(documents) == len(docs)
        assert documents[0].dtype == dtype
        assert all(np.array_equal(*pair) for pair in zip(documents, ordered, strict=True))
    theirs = module.IndexedDataset(str(merged / "all"))
    bounds = theirs.document_indices
    for number, found in enumerate(Documents(merged)):
        parts = [theirs[place] for place in range(bounds[number], bounds[number + 1])]
        assert np.array_equal(found, np.concatenate(parts))


@pytest.mark.parametrize("compression", [None, "zstd", "zstd:9"])
@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [("ndarray", "uint16"), ("ndarray:uint16", "uint16"), ("ndarray:int32", "int32"),
     ("bytes", "int64")],
)  # fmt: skip
def test_mds(encoding: str, dtype: str, compression: str | None, tmp_path: Path) -> None:
    streaming = library("streaming")
    docs = contents()
    columns = {"tokens": encoding, "name": "str", "length": "int"}
    options = {"columns": columns, "compression": compression, "size_limit": 1 << 18}
    with streaming.MDSWriter(out=str(tmp_path), hashes=["sha1"], **options) as writer:
        for doc in docs:
            tokens = doc.astype(dtype)
            value = tokens.tobytes() if encoding == "bytes" else tokens
            writer.write({"tokens": value, "name": "x" * (len(doc) % 7), "length": len(doc)})
    documents = Documents(tmp_path, dtype=dtype if encoding == "bytes" else None)
    assert len(documents.shard_documents) > 1
    assert len(documents) == len(docs)
    assert documents[0].dtype == dtype
    assert all(np.array_equal(*pair) for pair in zip(documents, docs, strict=True))
    documents.verify()


def test_merged_mds(tmp_path: Path) -> None:
    """Partitions of several processes, and their merged index."""
    streaming = library("streaming")
    util = library("streaming.base.util")
    docs = contents()
    for part in range(3):
        options = {"columns": {"tokens": "ndarray:uint16"}, "size_limit": 1 << 18}
        with streaming.MDSWriter(out=str(tmp_path / f"{part:05}"), **options) as writer:
            for doc in docs[part::3]:
                writer.write({"tokens": doc.astype(np.uint16)})
    ordered = [doc for part in range(3) for doc in docs[part::3]]
    for merge in (False, True):
        if merge:
            util.merge_index(str(tmp_path))
        documents = Documents(tmp_path)
        assert all(np.array_equal(*pair) for pair in zip(documents, ordered, strict=True))
