"""The demo's files: a load curve, a corpus, token files of other tools, clicks, files in parts."""

from __future__ import annotations

import json
import struct
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from windeck.io.conversion import number_dtype
from windeck.io.local_files import atomic_file, write_buffers

Tokens = npt.NDArray[np.integer]

#: For each dataset of the corpus: its number of files, their type of tokens, and whether a document
#: is a record batch or an entry of a list column.
DATASETS = {
    "stdlib-modules": (4, pa.uint16(), True),
    "stdlib-packages": (12, pa.uint16(), False),
    "stdlib-short": (2, pa.int32(), False),
}

#: Folders of the standard library that not every machine has.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}

#: Names below the folder of the demo, and of the file that says that they are of a demo.
NAMES, MARK = ("tokens", "clicks.parquet", "parts", "raw"), ".windeck-demo"

#: The end token of the token files: bytes are below it.
END = 256


def write_load_curve(
    path: str | Path, *, sites: int = 8, days: int = 730, missing: float = 0.01, seed: int = 0
) -> Path:
    """Write the table of `load_curve` as Parquet; return the path."""
    with atomic_file(path) as part:
        pq.write_table(load_curve(sites=sites, days=days, missing=missing, seed=seed), part)
    return Path(path)


def load_curve(
    *, sites: int = 8, days: int = 730, missing: float = 0.01, seed: int = 0
) -> pa.Table:
    """Return hourly synthetic demand, sorted by site and time: sites x days x 24 rows.

    Demand (MW; about the share `missing` is null) has two peaks a day, quiet days off and a hump in
    winter. The metadata say that the data are synthetic.
    """
    rng, shape = np.random.default_rng(seed), (sites, days * 24)
    stamps = np.datetime64("2021-01-01", "s") + np.arange(days * 24) * np.timedelta64(3600, "s")
    hour, date = np.arange(days * 24) % 24, stamps.astype("datetime64[D]")
    free = ~np.is_busday(date, holidays=date[::24][::60])  # weekends, and a day in two months
    season = np.cos(2 * np.pi * (np.arange(days * 24) / 24 - 20) / 365.25)
    temperature = 11 - 9 * season + 3.5 * rng.standard_normal((sites, days)).repeat(24, axis=1)
    morning, evening = (np.exp(-0.5 * ((hour - peak) / 2.5) ** 2) for peak in (8.5, 18.5))
    demand = (
        0.55 + 0.3 * morning * np.where(free, 0.3, 1) + 0.3 * evening + 0.03 * rng.random(shape)
    )
    load = rng.uniform(20, 900, (sites, 1)) * (demand + 0.011 * np.maximum(15 - temperature, 0))
    columns = {
        "site": np.repeat([f"site-{number:02d}" for number in range(1, sites + 1)], days * 24),
        "timestamp": np.tile(stamps, sites),
        "load": pa.array(load.round(3).ravel(), mask=rng.random(load.size) < missing),
        "temperature": temperature.ravel(),
        "holiday": np.tile(free, sites),
    }
    note = {"synthetic": f"windeck load curve, seed {seed}"}
    return pa.table(columns).replace_schema_metadata(note)


def write_files(out: Path, *, seed: int = 0) -> None:
    """Write all files below `out`, 40 MB: ``text``, ``tokens``, ``clicks.parquet``, ``parts``,
    ``raw``.

    Files of a former demo are written again, with the same content for the same `seed` and Python.

    Raises
    ------
    FileExistsError
        If one of these names exists and is not of a demo.
    """
    mark = out / MARK
    names = [name for name in NAMES if (out / name).exists()]
    if names and not mark.exists():
        raise FileExistsError(
            f"{out} has {names[0]}, which is not of a demo and would be replaced, expected "
            "a folder without it: --out names another"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_buffers(mark, (b"windeck demo replaces its files in this folder\n",))
    write_corpus(out / "text" / "stdlib-corpus")
    write_token_files(out / "tokens")
    write_clicks(out / "clicks.parquet", seed=seed)
    write_parts(out, seed=seed)


def write_corpus(root: Path, folder: Path | None = None) -> dict[str, list[int]]:
    """Write the corpus below `root`; return the number of bytes of each document, by dataset.

    Each source file below `folder` (the standard library by default) is a document, and its bytes
    are the tokens. FileNotFoundError if there are fewer sources than files to write.
    """
    folder = _standard_library() if folder is None else folder
    sources: dict[str, list[Path]] = {name: [] for name in DATASETS}
    for path in _sources(folder):
        kind = "modules" if path.parent == folder else "packages"
        sources[f"stdlib-{'short' if path.stat().st_size < 1024 else kind}"].append(path)
    for dataset, (parts, kind, batches) in DATASETS.items():
        paths = sources[dataset]
        if len(paths) < parts:
            raise FileNotFoundError(
                f"expected at least {parts} sources for {dataset} below {folder}, got {len(paths)}"
            )
        place = root / f"dataset={dataset}"
        place.mkdir(parents=True, exist_ok=True)
        for stale in place.glob("*.part*.arrow"):
            stale.unlink()
        for part in range(parts):
            own = paths[len(paths) * part // parts : len(paths) * (part + 1) // parts]
            texts = [np.frombuffer(path.read_bytes(), np.uint8) for path in own]
            name = f"{dataset.removeprefix('stdlib-')}.part{part}.arrow"
            write_shard(place / name, texts, kind, batches)
    return {name: [path.stat().st_size for path in paths] for name, paths in sources.items()}


def write_shard(
    path: Path, texts: Sequence[Tokens], kind: pa.DataType, batch_per_document: bool
) -> None:
    """Write one Arrow file with a column ``tokens``, uncompressed, so that it can be mapped."""
    arrays = [pa.array(text.astype(number_dtype(kind))) for text in texts]
    if batch_per_document:
        batches = [pa.record_batch([array], names=["tokens"]) for array in arrays]
        schema = pa.schema([("tokens", kind)])
    else:
        offsets = np.cumsum([0, *map(len, arrays)])
        values = pa.concat_arrays([pa.array([], kind), *arrays])
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        batches = [pa.record_batch([lists], names=["tokens"])]
        schema = batches[0].schema
    with (
        atomic_file(path) as part,
        pa.OSFile(str(part), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


def _standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _sources(folder: Path) -> list[Path]:
    """Return the Python files below a folder in order, without those of folders left out."""
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if LEFT_OUT.isdisjoint(path.relative_to(folder).parts) and path.is_file()
    ]


def write_token_files(root: Path, documents: int = 100) -> None:
    """Write the same documents in the formats of other tools, each in a folder below `root`.

    The folders are ``nanogpt``, ``llmc``, ``megatron``, ``mds/train``, ``mds/bytes``, ``jsonl`` and
    ``parquet``. Documents are modules of the standard library; tokens are their bytes, with `END`
    as end token where the format has one.
    """
    small = [path for path in _standard_library().glob("*.py") if path.stat().st_size < 20_000]
    texts = [path.read_text("utf-8", errors="replace") for path in sorted(small)[:documents]]
    docs = [np.frombuffer(text.encode(), np.uint8).astype("<u2") for text in texts]
    places = [root / name for name in ("nanogpt", "llmc", "megatron", "jsonl", "parquet")]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    nanogpt, llmc, megatron, jsonl, parquet = places
    end = np.array([END], "<u2")
    split = len(docs) * 9 // 10
    for name, some in (("train", docs[:split]), ("val", docs[split:])):
        write_buffers(nanogpt / f"{name}.bin", (_bytes(doc, end) for doc in some))
    tokens = b"".join(_bytes(end, doc) for doc in docs)
    header = struct.pack("<3i", 20240520, 1, len(tokens) // 2).ljust(1024, b"\0")
    write_buffers(llmc / "corpus_train_000001.bin", (header, tokens))
    _write_megatron(megatron / "corpus_text_document", [_bytes(doc, end) for doc in docs])
    # An array has its size before it, in one byte or two; the other column is bare bytes of int64.
    sizes = [bytes([4, len(d)]) if len(d) < 256 else struct.pack("<BH", 5, len(d)) for d in docs]
    arrays = [size + doc.tobytes() for size, doc in zip(sizes, docs, strict=True)]
    _write_mds(root / "mds" / "train", "ndarray:uint16", arrays)
    _write_mds(root / "mds" / "bytes", "bytes", [doc.astype("<i8").tobytes() for doc in docs])
    lines = (json.dumps({"text": text}).encode() + b"\n" for text in texts)
    write_buffers(jsonl / "texts.jsonl", lines)
    _write_parquet(pa.table({"text": texts}), parquet / "texts.parquet")


def _bytes(*arrays: Tokens) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


def _write_megatron(path: Path, docs: Sequence[bytes]) -> None:
    """Write a pair of files of Megatron-LM; each document is one sequence of uint16."""
    write_buffers(path.with_suffix(".bin"), docs)
    sizes = np.array([len(doc) // 2 for doc in docs], "<i4")
    pointers = np.concatenate([[0], np.cumsum(sizes, dtype="<i8")[:-1] * 2]).astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(docs), len(docs) + 1)
    ends = np.arange(len(docs) + 1, dtype="<i8")
    write_buffers(path.with_suffix(".idx"), (head, _bytes(sizes, pointers, ends)))


def _write_mds(folder: Path, encoding: str, values: Sequence[bytes]) -> None:
    """Write a shard of MosaicML Streaming with the column ``tokens``, and its index."""
    config = {
        "version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": 1 << 26,
        "column_names": ["tokens"], "column_encodings": [encoding], "column_sizes": [None],
    }  # fmt: skip
    text = json.dumps(config, sort_keys=True).encode()
    samples = [struct.pack("<I", len(value)) + value for value in values]
    first = 4 * (len(samples) + 2) + len(text)
    offsets = first + np.cumsum([0, *map(len, samples)])
    head = struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + text
    raw = {"basename": "shard.00000.mds", "bytes": int(offsets[-1]), "hashes": {}}
    shard = {**config, "samples": len(samples), "raw_data": raw, "zip_data": None}
    folder.mkdir(parents=True, exist_ok=True)
    write_buffers(folder / "shard.00000.mds", (head, *samples))
    write_buffers(folder / "index.json", [json.dumps({"version": 2, "shards": [shard]}).encode()])


def write_clicks(path: Path, *, rows: int = 10_000, seed: int = 0) -> None:
    """Write synthetic clicks: ``user``, ``seen`` (a list of items), ``item`` and ``clicked``."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 8, rows)  # some users have seen nothing
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    seen, item = rng.integers(0, 500, offsets[-1], dtype=np.int32), rng.integers(0, 500, rows)
    sums = np.bincount(np.repeat(np.arange(rows), lengths), seen, rows)
    likes_large = sums > 250 * lengths
    columns = {
        "user": rng.integers(-(2**62), 2**62, rows),
        "seen": pa.ListArray.from_arrays(offsets, seen),
        "item": item,
        "clicked": (likes_large == (item > 250)).astype(np.float32),
    }
    _write_parquet(pa.table(columns), path)


def _write_parquet(data: pa.Table, path: Path) -> None:
    """Write a Parquet file of small row groups."""
    with atomic_file(path) as part:
        pq.write_table(data, part, row_group_size=240)


def write_parts(out: Path, *, sites: int = 4, days: int = 90, seed: int = 0) -> None:
    """Write a load curve as a Parquet file a site in ``parts``, as a CSV file a month in ``raw``.

    The files of ``raw`` have the rows of all sites in no order.
    """
    data = load_curve(sites=sites, days=days, seed=seed)
    wind = np.random.default_rng(seed).choice(["N", "E", "S", "W"], len(data))
    data = data.append_column("wind", pa.array(wind))
    for name in ("parts", "raw"):
        (out / name).mkdir(parents=True, exist_ok=True)
    rows = days * 24
    for site in range(sites):
        _write_parquet(
            data.slice(site * rows, rows), out / "parts" / f"site-{site + 1:02d}.parquet"
        )
    shuffled = data.take(np.random.default_rng(seed).permutation(len(data)))
    months = np.asarray(shuffled["timestamp"].to_numpy()).astype("datetime64[M]")
    for month in np.unique(months):
        with atomic_file(out / "raw" / f"{month}.csv") as part:
            csv.write_csv(shuffled.filter(pa.array(months == month)), part)
