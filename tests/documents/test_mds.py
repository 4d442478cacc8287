"""MDS shards against plain lists."""

from __future__ import annotations

import datetime
import gc
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import fsspec.implementations.memory
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import token_model as model
from support.corpora import stated_counts
from support.internals import plant
from support.token_files import mds_config, mds_shard, mds_value, write_mds, write_mds_index
from windeck import Documents
from windeck._core import TokenShard

DOCS = [[1, 2, 3], [4], [5] * 300, [6, 7]]
OTHERS = {
    "a": ("str", b"text"),
    "id": ("int", bytes(8)),
    "z": ("json", b"{}"),
}


def opened(folder: Path, **options: Any) -> TokenShard:
    """Open the first shard of a folder."""
    return Documents(folder, **options).open(0)


def path_of(folder: Path, shard: int = 0) -> str:
    return next(str(path) for path in sorted(folder.glob(f"shard.{shard:05}.mds*")))


def counted(folder: Path, **options: Any) -> tuple[int, int] | None:
    """Return documents and tokens of a shard that is not read; None if its samples have to be."""
    documents = stated_counts(folder, **options)
    if documents is None:
        return None
    return len(documents), int(documents.shard_tokens.sum())


@given(
    docs=st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=9), max_size=9),
    dtype=st.sampled_from(model.INTEGERS),
    encoding=st.sampled_from(["ndarray", "ndarray:{}", "bytes"]),
    others=st.sets(st.sampled_from(sorted(OTHERS))),
    zstd=st.booleans(),
    chunk=st.integers(1, 99),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_documents(
    tmp_path: Path,
    docs: list[list[int]],
    dtype: str,
    encoding: str,
    others: set[str],
    zstd: bool,
    chunk: int,
) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    encoding = encoding.format(dtype)
    more = {name: OTHERS[name] for name in others}
    # A corpus has a token: that of another shard.
    write_mds(tmp_path, [docs, [[1]]], encoding=encoding, dtype=dtype, others=more, zstd=zstd)
    with pytest.MonkeyPatch.context() as context:
        plant(context, "mds._PORTION_BYTES", chunk)
        shard = opened(tmp_path, dtype=dtype if encoding == "bytes" else None)
    is_stated = docs or encoding != "ndarray"
    model.assert_equals(shard, docs, dtype if is_stated else "int32")
    assert shard.mapped == (not zstd)
    assert shard.name == path_of(tmp_path)


@pytest.mark.parametrize("length", [1, 255, 256, 65535, 65536, 70000])
@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:int32", "ndarray:int32:{}", "bytes"])
def test_lengths_around_the_widths_of_shapes(tmp_path: Path, encoding: str, length: int) -> None:
    docs = [list(range(length)), list(range(length, 0, -1))]
    encoding = encoding.format(length)
    write_mds(tmp_path, [docs], encoding=encoding, dtype="int32")
    model.assert_equals(opened(tmp_path, dtype="int32"), docs, "int32")
    by_sizes = None if encoding == "ndarray" else (2, 2 * length)
    assert counted(tmp_path, dtype="int32") == by_sizes


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64"])
def test_counts_by_the_sizes_of_samples(tmp_path: Path, dtype: str) -> None:
    lengths = [*range(1, 9), *range(250, 260), *range(65530, 65540)]
    docs = [[1] * length for length in lengths]
    for encoding in ("bytes", f"ndarray:{dtype}"):
        write_mds(tmp_path, [docs], encoding=encoding, dtype=dtype)
        assert counted(tmp_path, dtype=dtype) == (len(docs), sum(lengths))


def test_no_counts_by_sizes(tmp_path: Path) -> None:
    """With other columns, compressed, or of arrays too short for a head, samples are read."""
    write_mds(tmp_path / "a", [DOCS], others=OTHERS)
    write_mds(tmp_path / "b", [DOCS], zstd=True)
    write_mds(tmp_path / "c", [DOCS[:2]])
    raw = bytearray(Path(path_of(tmp_path / "c")).read_bytes())
    (second,) = struct.unpack_from("<I", raw, 8)
    (first,) = struct.unpack_from("<I", raw, 4)
    struct.pack_into("<I", raw, 8, first + 1)
    assert second > first + 1
    Path(path_of(tmp_path / "c")).write_bytes(raw)
    for name in "abc":
        assert counted(tmp_path / name) is None
    with pytest.raises(ValueError, match="sample 0 has fewer bytes than the sizes of its columns"):
        opened(tmp_path / "c")


def test_empty_documents(tmp_path: Path) -> None:
    write_mds(tmp_path, [[[], [1], []]], encoding="bytes")
    model.assert_equals(opened(tmp_path, dtype="uint16"), [[], [1], []], "uint16")


def test_a_raw_file_beside_the_compressed_one(tmp_path: Path) -> None:
    write_mds(tmp_path, [DOCS], zstd=True)
    packed = path_of(tmp_path)
    raw = packed.removesuffix(".zstd")
    for path, mapped in ((packed, False), (raw, True)):
        if mapped:
            Path(raw).write_bytes(pa.CompressedInputStream(packed, "zstd").read())
        shard = opened(tmp_path)
        assert shard.name == path
        model.assert_equals(shard, DOCS, "uint16")
        assert shard.mapped == mapped


def test_a_frame_without_its_size_and_several_frames(tmp_path: Path) -> None:
    """Streams of zstd need not state their size, and frames may follow each other."""
    write_mds(tmp_path, [DOCS], zstd=True)
    path = path_of(tmp_path)
    raw = pa.CompressedInputStream(path, "zstd").read()
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(raw)
    frames = b"".join(pa.compress(part, "zstd", asbytes=True) for part in (raw[:99], raw[99:]))
    for packed in (sink.getvalue().to_pybytes(), frames):
        change_index(tmp_path, zip_data={"basename": Path(path).name, "bytes": len(packed)})
        Path(path).write_bytes(packed)
        model.assert_equals(opened(tmp_path), DOCS, "uint16")


def change_index(folder: Path, **fields: Any) -> None:
    index = json.loads((folder / "index.json").read_text())
    for name, value in fields.items():
        index["shards"][0][name] = value
    write_mds_index(folder, json.dumps(index))


@pytest.mark.parametrize("factor", [-1, 1, 10**6])
def test_more_or_fewer_bytes_than_the_index_states(tmp_path: Path, factor: int) -> None:
    """A small file that gives much more than its index states is not decompressed as a whole."""
    write_mds(tmp_path, [DOCS], zstd=True)
    path = path_of(tmp_path)
    raw = pa.CompressedInputStream(path, "zstd").read()
    changed = raw[:-1] if factor < 0 else raw + bytes(factor)
    packed = pa.compress(changed, "zstd", asbytes=True)
    Path(path).write_bytes(packed)
    change_index(tmp_path, zip_data={"basename": Path(path).name, "bytes": len(packed)})
    before = pa.total_allocated_bytes()
    more = "more than " if factor > 0 else ""
    found = f"{min(len(changed), len(raw)):,}"
    with pytest.raises(ValueError, match=f"has {more}{found} bytes when it is decompressed"):
        opened(tmp_path)
    gc.collect()
    assert pa.total_allocated_bytes() - before < 10**5


class TestIndex:
    def write(self, folder: Path, **fields: Any) -> str:
        write_mds(folder, [DOCS])
        change_index(folder, **fields)
        return path_of(folder)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"format": "json"}, "it has format 'json' and version 2, expected 'mds' and 2"),
            ({"version": 3}, "version 3"),
            ({"raw_data": None}, "shard 0 in .*index.json' cannot be read"),
            ({"raw_data": {"basename": "../shard", "bytes": 1}}, "its name is '../shard'"),
            ({"raw_data": {"basename": "/etc/passwd", "bytes": 1}}, "its name is '/etc/passwd'"),
            ({"raw_data": {"basename": 7, "bytes": 1}}, "its name is 7"),
            ({"raw_data": {"basename": "x", "bytes": -1}}, "it has the number -1"),
            ({"raw_data": {"basename": "x", "bytes": 2**32}}, "the number 4294967296"),
            ({"raw_data": {"basename": "x", "bytes": True}}, "the number True"),
            ({"samples": 1.5}, "the number 1.5"),
            ({"samples": "7"}, "the number '7'"),
            ({"column_names": ["a", "b"]}, "its columns are not lists of one length"),
            ({"column_names": [7]}, "names or encodings that are not text"),
            ({"column_sizes": [-1]}, "the number -1"),
            ({"compression": "zstd"}, "its compression is 'zstd', and its zip_data None"),
        ],
    )
    def test_bad_entries(self, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
        self.write(tmp_path, **fields)
        with pytest.raises(ValueError, match=message) as refused:
            Documents(tmp_path)
        assert "index.json'" in str(refused.value)

    @pytest.mark.parametrize(
        ("fields", "error", "message"),
        [
            ({"samples": 5}, ValueError, "it has 4 samples, expected 5 from its index.json"),
            ({"samples": 2**31}, ValueError, "too few for 2,147,483,648 samples"),
            ({"column_sizes": [2]}, ValueError, "it has the columns"),
            ({"column_encodings": ["ndarray:int16"]}, ValueError, "it has the columns"),
            ({"column_encodings": ["pkl"]}, TypeError, "is 'pkl'; expected 'ndarray' of integers"),
            ({"column_encodings": ["ndarray:float32"]}, TypeError, "is 'ndarray:float32'"),
            ({"column_encodings": ["ndarray:int16:3,2"]}, TypeError, "arrays of one dimension"),
            ({"column_encodings": ["ndarray:int16:0"]}, TypeError, "arrays of one dimension"),
            ({"column_encodings": ["ndarray:int16:-1"]}, TypeError, "arrays of one dimension"),
            ({"column_encodings": ["ndarray:int16:" + "9" * 5000]}, TypeError, "of one dimension"),
            ({"column_encodings": ["ndarray::3"]}, TypeError, "expected 'ndarray' of integers"),
            ({"column_encodings": ["bytes"]}, ValueError, "expected `dtype`"),
            ({"column_names": ["x"]}, KeyError, "has no column 'tokens'"),
        ],
    )
    def test_entries_that_contradict_the_shard(
        self, tmp_path: Path, fields: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        path = self.write(tmp_path, **fields)
        with pytest.raises(error, match=message) as refused:
            Documents(tmp_path)
        assert Path(path).name in str(refused.value)

    def test_another_dtype_than_the_user_gave(self, tmp_path: Path) -> None:
        for encoding, message in (
            ("ndarray:uint16", "is 'ndarray:uint16', but `dtype` is 'int32'"),
            ("ndarray", "sample 0 has an array of another dtype than int32"),
        ):
            write_mds(tmp_path, [DOCS], encoding=encoding)
            with pytest.raises(ValueError, match=message):
                Documents(tmp_path, dtype="int32")

    def test_codecs_that_are_not_read(self, tmp_path: Path) -> None:
        path = self.write(
            tmp_path,
            compression="gz:9",
            zip_data={"basename": "shard.00000.mds.gz", "bytes": 3},
        )
        gz = f"{path}.gz"
        Path(path).rename(gz)
        with pytest.raises(ValueError, match="compressed by 'gz:9'; expected no compression or z"):
            Documents(tmp_path)

    def test_a_shard_that_no_index_lists(self, tmp_path: Path) -> None:
        write_mds(tmp_path, [DOCS])
        documents = Documents(tmp_path)
        change_index(tmp_path, raw_data={"basename": "other", "bytes": 1})
        with pytest.raises(ValueError, match=r"no index\.json in a folder of .* lists it"):
            documents.open(0)

    def test_merged_indices(self, tmp_path: Path) -> None:
        """A merged index lists the shards of folders below its own."""
        merged = []
        for name in ("00000", "00001"):
            write_mds(tmp_path / name, [DOCS])
            (entry,) = json.loads((tmp_path / name / "index.json").read_text())["shards"]
            entry["raw_data"]["basename"] = f"{name}/{entry['raw_data']['basename']}"
            merged.append(entry)
        names = [entry["raw_data"]["basename"] for entry in merged]

        def check() -> None:
            documents = Documents(tmp_path)
            found = [Path(documents.shard_path(shard)) for shard in range(2)]
            assert [str(path.relative_to(tmp_path)) for path in found] == names
            assert [one.tolist() for one in documents] == DOCS * 2

        check()
        write_mds_index(tmp_path, json.dumps({"version": 2, "shards": merged}))
        (tmp_path / "00001/index.json").unlink()
        check()

    def test_indices_of_several_file_systems(self) -> None:
        """One path, and one size and time, on two file systems: each has its own index."""
        stores = []
        for docs in ([[1, 2], [3]], [[4, 5], [6, 7]]):
            store = fsspec.implementations.memory.MemoryFileSystem(skip_instance_cache=True)
            store.store, store.pseudo_dirs = {}, [""]
            with tempfile.TemporaryDirectory() as folder:
                write_mds(Path(folder), [docs])
                for path in Path(folder).iterdir():
                    store.pipe(f"/corpus/{path.name}", path.read_bytes())
            for file in store.store.values():
                file.created = datetime.datetime(2026, 11, 1, tzinfo=datetime.timezone.utc)
            stores.append(Documents("/corpus", filesystem=store))
        assert [one.tolist() for store in stores for one in store] == [[1, 2], [3], [4, 5], [6, 7]]

    def test_a_missing_shard(self, tmp_path: Path) -> None:
        write_mds(tmp_path, [DOCS], zstd=True)
        Path(path_of(tmp_path)).unlink()
        with pytest.raises(FileNotFoundError, match=r"lists 'shard\.00000\.mds' and 'shard"):
            Documents(tmp_path, format="mds")

    def test_other_files_of_that_name(self, tmp_path: Path) -> None:
        for content in ("[]", "{}", '{"shards": {}}'):
            write_mds_index(tmp_path, content)
            with pytest.raises(FileNotFoundError, match="has no dataset"):
                Documents(tmp_path, format="mds")
        for content in ('{"shards": []', "[" * 10**5):
            write_mds_index(tmp_path, content)
            with pytest.raises(ValueError, match=r"index\.json' cannot be read as JSON"):
                Documents(tmp_path, format="mds")
        write_mds_index(tmp_path, '{"shards": [], "version": 1}')
        with pytest.raises(ValueError, match=r"index\.json' has version 1, expected 2"):
            Documents(tmp_path, format="mds")


class TestDamagedShards:
    @pytest.mark.parametrize("encoding", ["ndarray", "ndarray:uint16", "bytes"])
    def edit_every_byte(self, folder: Path, lengths: list[int], **options: Any) -> tuple[int, int]:
        """Change a bit of each byte; return the numbers of edits refused, and of values."""
        path, messages = Path(path_of(folder)), []
        whole = path.read_bytes()
        for place in range(len(whole)):
            edited = bytearray(whole)
            edited[place] ^= 1 << 6 * (place % 2)
            path.write_bytes(edited)
            try:
                shard = opened(folder, threads=1, **options)
            except ValueError as error:
                messages.append(str(error))
            else:
                assert shard.lengths().tolist() == lengths
        assert all(path.name in message for message in messages)
        return len(messages), len(whole) - len(messages)

    @pytest.mark.parametrize("encoding", ["ndarray", "ndarray:uint16", "bytes"])
    def test_every_byte(self, tmp_path: Path, encoding: str) -> None:
        """An edit is refused, or is one of a value: shards have no checksum."""
        docs = [[1, 2, 3], [4], [5, 6]]
        write_mds(tmp_path, [docs], encoding=encoding, others={"id": OTHERS["id"]})
        dtype = "uint16" if encoding == "bytes" else None
        refused, values = self.edit_every_byte(tmp_path, [3, 1, 2], dtype=dtype)
        # Names and encodings in the shard that the index contradicts, sizes, shapes; of the
        # description of columns, fields that do not matter may change.
        config = len(json.dumps(mds_config({"id": "int", "tokens": encoding}), sort_keys=True))
        assert refused > 4 * 8
        assert values <= config + 3 * 8 + 6 * 2

    @pytest.mark.parametrize(
        ("place", "change", "numbers"),
        [(1, -1, "{0} to {2}"), (1, 1000, "{0} to {2}"), (2, 10**6, "{0} to {2}"),
         (3, -1, "{0} to {2}"), (3, 1, "{0} to {2}")],
    )  # fmt: skip
    def test_offsets(self, place: int, change: int, numbers: str, tmp_path: Path) -> None:
        write_mds(tmp_path, [[[1, 2], [3]]])
        path = Path(path_of(tmp_path))
        head = list(struct.unpack_from("<4I", path.read_bytes()))
        head[place] += change
        if place == 1 and change < 0:
            head[place] = 15  # in the offsets
        path.write_bytes(struct.pack("<4I", *head) + path.read_bytes()[16:])
        found = numbers.format(*(f"{one:,}" for one in head[1:]))
        size = path.stat().st_size
        expected = f"the bytes {found}, expected numbers from 16 to {size} that never decrease"
        with pytest.raises(ValueError, match=expected):
            Documents(tmp_path)

    def test_bytes_that_are_no_tokens(self, tmp_path: Path) -> None:
        write_mds(tmp_path, [[[1, 2, 3], [4]]], encoding="bytes", dtype="uint8")
        with pytest.raises(
            ValueError, match="sample 0 has bytes that are no multiple of 2, for ui"
        ):
            opened(tmp_path, dtype="uint16")

    def test_a_shard_that_grew(self, tmp_path: Path) -> None:
        write_mds(tmp_path, [DOCS])
        path = Path(path_of(tmp_path))
        path.write_bytes(path.read_bytes() + b"more")
        with pytest.raises(ValueError, match=r"bytes, expected [0-9,]+ from its index\.json"):
            Documents(tmp_path)

    def test_truncation(self, tmp_path: Path) -> None:
        for zstd in (False, True):
            folder = tmp_path / str(zstd)
            write_mds(folder, [DOCS[:2]], zstd=zstd)
            path = Path(path_of(folder))
            whole = path.read_bytes()
            for size in range(len(whole)):
                path.write_bytes(whole[:size])
                with pytest.raises(ValueError, match=path.name):
                    Documents(folder, threads=1)

    def test_every_byte_of_a_compressed_shard(self, tmp_path: Path) -> None:
        write_mds(tmp_path, [DOCS], zstd=True)
        refused, values = self.edit_every_byte(tmp_path, [len(doc) for doc in DOCS])
        assert refused > values

    @pytest.mark.parametrize(
        ("sample", "message"),
        [
            (struct.pack("<I", 4), "sample 1 has columns that do not fill its bytes"),
            (b"\0\0", "sample 1 has fewer bytes than the sizes of its columns"),
            (struct.pack("<I", 0), "sample 1 has an array without a dtype"),
            (struct.pack("<I", 1) + b"\x10", "sample 1 has an array without a shape"),
            (struct.pack("<I", 2) + b"\x10\4", "sample 1 has an array without a shape"),
            (struct.pack("<I", 3) + b"\x11\4\0", "sample 1 has an array of another dtype"),
            (struct.pack("<I", 3) + b"\x10\5\0", "sample 1 has an array without a shape"),
            (struct.pack("<I", 3) + b"\x10\x08\0", "array that has not one dimension"),
            (struct.pack("<I", 3) + b"\x10\4\1", "whose values do not fill its bytes"),
            (struct.pack("<I", 4) + b"\x10\4\0\0", "whose values do not fill its bytes"),
            (
                struct.pack("<I", 10) + b"\x10\7" + struct.pack("<Q", 2**63),
                "whose values do not fill its bytes",
            ),
        ],
    )
    def test_samples_that_contradict_themselves(
        self, tmp_path: Path, sample: bytes, message: str
    ) -> None:
        config = mds_config({"tokens": "ndarray"})
        head = mds_shard([[mds_value([1, 2], "ndarray", "uint16")]], config)
        text = len(json.dumps(config, sort_keys=True))
        place = 4 * 4 + text
        first = head[4 * 3 + text :]
        raw = struct.pack("<4I", 2, place, place + len(first), place + len(first) + len(sample))
        raw += head[12 : 12 + text] + first + sample
        write_mds(tmp_path, [[[1, 2], [3]]], encoding="ndarray")
        path = path_of(tmp_path)
        Path(path).write_bytes(raw)
        change_index(tmp_path, raw_data={"basename": Path(path).name, "bytes": len(raw)})
        with pytest.raises(ValueError, match=message) as refused:
            Documents(tmp_path)
        assert Path(path).name in str(refused.value)

    def test_a_file_that_shrinks_after_it_was_opened(self, tmp_path: Path) -> None:
        write_mds(tmp_path, [[list(range(9000))] * 2])
        path = path_of(tmp_path)
        shard = opened(tmp_path)
        Path(path).write_bytes(np.zeros(10, np.uint16).tobytes())
        with pytest.raises(OSError, match="became shorter while it was mapped"):
            shard.document(1)
