"""Files of bare tokens, written from the public descriptions of their formats."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

Docs = Sequence[Sequence[int]]


def nanogpt_bytes(
    docs: Docs, end_token: int, dtype: str = "uint16", *, end_first: bool = False
) -> bytes:
    """Return the tokens of all documents, an end token after (or before) each of them."""
    tokens: list[int] = []
    for doc in docs:
        tokens += [end_token, *doc] if end_first else [*doc, end_token]
    return np.array(tokens, np.dtype(dtype).newbyteorder("<")).tobytes()


def llm_c_header(tokens: int, magic: int = 20240520, version: int = 1) -> bytes:
    """Return the header of a file of llm.c: 256 int32."""
    return struct.pack("<3i", magic, version, tokens).ljust(1024, b"\0")


MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_megatron(
    path: Path, docs: Sequence[Docs], dtype: str = "uint16", *, modes: bool = False
) -> None:
    """Write `path`, a `.bin` file, and its index; a document is a list of sequences."""
    sequences = [sequence for doc in docs for sequence in doc]
    kind = np.dtype(dtype).newbyteorder("<")
    path.write_bytes(b"".join(np.array(one, kind).tobytes() for one in sequences))
    index = b"MMIDIDX\0\0" + struct.pack("<QB", 1, MEGATRON_CODES[dtype])
    index += struct.pack("<QQ", len(sequences), len(docs) + 1)
    index += b"".join(struct.pack("<i", len(one)) for one in sequences)
    place = 0
    for one in sequences:
        index += struct.pack("<q", place)
        place += len(one) * kind.itemsize
    first = 0
    for doc in [*docs, []]:
        index += struct.pack("<q", first)
        first += len(doc)
    path.with_suffix(".idx").write_bytes(index + bytes(len(sequences) * modes))


MDS_CODES = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "uint32": 32,
    "int32": 33,
    "uint64": 64,
    "int64": 65,
}


def mds_value(doc: Sequence[int], encoding: str, dtype: str) -> bytes:
    """Return a document as MDS encodes it in a column."""
    values = np.array(doc, np.dtype(dtype).newbyteorder("<")).tobytes()
    if encoding == "bytes" or encoding.count(":") == 2:
        return values
    wide = next(k for k in range(4) if len(doc) < 1 << (8 << k))
    shape = bytes([4 + wide]) + len(doc).to_bytes(1 << wide, "little")
    return (bytes([MDS_CODES[dtype]]) if encoding == "ndarray" else b"") + shape + values


def mds_config(columns: Mapping[str, str], compression: str | None = None) -> dict[str, Any]:
    """Return the description of columns in a shard and in the index."""
    fixed = {"int": 8, "uint16": 2}
    sizes = []
    for encoding in columns.values():
        size = fixed.get(encoding)
        if encoding.count(":") == 2:
            _, dtype, shape = encoding.split(":")
            size = int(np.prod([int(one) for one in shape.split(",")])) * np.dtype(dtype).itemsize
        sizes.append(size)
    return {
        "version": 2,
        "format": "mds",
        "compression": compression,
        "hashes": [],
        "size_limit": 1 << 26,
        "column_names": list(columns),
        "column_encodings": list(columns.values()),
        "column_sizes": sizes,
    }


def mds_shard(samples: Sequence[Sequence[bytes]], config: Mapping[str, Any]) -> bytes:
    """Return a shard of samples, whose columns are encoded."""
    encoded = []
    for sample in samples:
        sizes = zip(sample, config["column_sizes"], strict=True)
        head = b"".join(struct.pack("<I", len(one)) for one, size in sizes if not size)
        encoded.append(head + b"".join(sample))
    text = json.dumps(config, sort_keys=True).encode()
    place = 4 * (len(samples) + 2) + len(text)
    offsets = struct.pack("<I", place)
    for one in encoded:
        place += len(one)
        offsets += struct.pack("<I", place)
    return struct.pack("<I", len(samples)) + offsets + text + b"".join(encoded)


def write_mds(
    folder: Path,
    shards: Sequence[Docs],
    *,
    encoding: str = "ndarray:uint16",
    dtype: str = "uint16",
    others: Mapping[str, tuple[str, bytes]] | None = None,
    zstd: bool = False,
) -> None:
    """Write shards of documents in the column "tokens", and their index.

    `others` are other columns, with their encoding and the value of every sample.
    """
    columns = {"tokens": encoding, **{name: kind for name, (kind, _) in (others or {}).items()}}
    columns = dict(sorted(columns.items()))
    config = mds_config(columns, "zstd:3" if zstd else None)
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, docs in enumerate(shards):
        rows = [
            [
                mds_value(doc, encoding, dtype) if name == "tokens" else (others or {})[name][1]
                for name in columns
            ]
            for doc in docs
        ]
        raw = mds_shard(rows, config)
        name = f"shard.{number:05}.mds"
        entry = {
            **config,
            "samples": len(docs),
            "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}},
            "zip_data": None,
        }
        if zstd:
            packed = pa.Codec("zstd", 3).compress(raw, asbytes=True)
            entry["zip_data"] = {"basename": f"{name}.zstd", "bytes": len(packed), "hashes": {}}
            name, raw = f"{name}.zstd", packed
        (folder / name).write_bytes(raw)
        entries.append(entry)
    write_mds_index(folder, json.dumps({"version": 2, "shards": entries}))


#: Times of the indices that are written: each is another version of the file.
_TIMES = count(1_700_000_000)


def write_mds_index(folder: Path, text: str) -> None:
    """Write the index of a folder of shards."""
    path, time = folder / "index.json", next(_TIMES)
    path.write_text(text)
    os.utime(path, (time, time))


def write_arrow_tokens(path: Path, docs: Docs, *, row_per_token: bool) -> None:
    """Write uint16 tokens as Arrow IPC: a record batch for each document, or one of lists."""
    if row_per_token:
        schema = pa.schema([("tokens", pa.uint16())])
        columns = [pa.array(list(map(int, doc)), pa.uint16()) for doc in docs]
    else:
        schema = pa.schema([("tokens", pa.list_(pa.uint16()))])
        columns = [pa.array([list(map(int, doc)) for doc in docs], pa.list_(pa.uint16()))]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for column in columns:
            writer.write_batch(pa.record_batch([column], schema=schema))
