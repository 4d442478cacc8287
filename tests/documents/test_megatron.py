"""Files of tokens with an index of Megatron-LM against plain lists."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import token_model as model
from support.internals import DocumentOptions, find_megatron_shards, plant
from support.token_files import MEGATRON_CODES, write_megatron

OPTIONS = DocumentOptions.validated("tokens", None, 0, ())
DOCS = [[[1, 2, 3]], [[4]], [], [[5, 6], [], [7]]]
FLAT = [[1, 2, 3], [4], [], [5, 6, 7]]
HEAD = 34


def write(folder: Path, name: str = "a_text_document", **more: object) -> Path:
    path = folder / f"{name}.bin"
    write_megatron(path, DOCS, **more)  # type: ignore[arg-type]
    return path


@given(
    docs=st.lists(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=3), max_size=8),
    dtype=st.sampled_from(sorted(MEGATRON_CODES)),
    modes=st.booleans(),
    chunk=st.integers(1, 9),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_documents(
    tmp_path: Path, docs: list[list[list[int]]], dtype: str, modes: bool, chunk: int
) -> None:
    path = tmp_path / "a.bin"
    write_megatron(path, docs, dtype, modes=modes)
    flat = [[token for sequence in doc for token in sequence] for doc in docs]
    with pytest.MonkeyPatch.context() as context:
        plant(context, "megatron._CHUNK", chunk)
        shard = OPTIONS.open(str(path))
    model.assert_equals(shard, flat, dtype)
    summary = OPTIONS.checker()(str(path))
    assert (summary.documents, summary.size) == (len(docs), path.stat().st_size)


def edit(path: Path, place: int, content: bytes) -> None:
    index = path.with_suffix(".idx")
    whole = bytearray(index.read_bytes())
    whole[place : place + len(content)] = content
    index.write_bytes(whole)


LENGTHS, POINTERS, BOUNDS = HEAD, HEAD + 4 * 5, HEAD + 12 * 5
BAD = [
    (0, b"PK", ValueError, "is not an index of Megatron-LM: it starts with"),
    (9, b"\2", ValueError, "has version 2, expected 1"),
    (17, b"\7", TypeError, "are float32; expected integers"),
    (17, b"\0", ValueError, "dtype code 0, expected one of 1, 2, 3, 4, 5, 8"),
    (17, b"\4", ValueError, "expected 0 or more at byte 12"),
    (18, b"\xff" * 8, ValueError, "states 18,446,744,073,709,551,615 sequences"),
    (26, b"\xff" * 8, ValueError, "18,446,744,073,709,551,615 bounds"),
    (26, bytes(8), ValueError, "0 bounds"),
    (LENGTHS, struct.pack("<i", -3), ValueError, "sequence 0 of .* has -3 tokens at byte 0"),
    (LENGTHS + 16, struct.pack("<i", 2), ValueError, "has 14 bytes, expected 16 for 8 tokens"),
    (
        POINTERS,
        struct.pack("<q", -2),
        ValueError,
        "tokens at byte -2, expected 0 or more at byte 0",
    ),
    (POINTERS + 8, struct.pack("<q", 4), ValueError, "sequence 1 .* at byte 4, .* at byte 6"),
    (POINTERS + 8, struct.pack("<q", 2**62), ValueError, "sequence 1 of"),
    (BOUNDS, struct.pack("<q", 1), ValueError, "start at the sequences 1 to 5"),
    (BOUNDS + 8, struct.pack("<q", 6), ValueError, "never decrease"),
    (BOUNDS + 8, struct.pack("<q", -(2**63)), ValueError, "never decrease"),
    (BOUNDS + 8, struct.pack("<q", 2**63 - 1), ValueError, "never decrease"),
    (BOUNDS + 32, struct.pack("<q", 4), ValueError, "start at the sequences 0 to 4, .* to 5"),
]


@pytest.mark.parametrize(("place", "content", "error", "message"), BAD)
def test_bad_indices(
    tmp_path: Path, place: int, content: bytes, error: type[Exception], message: str
) -> None:
    path = write(tmp_path)
    edit(path, place, content)
    with pytest.raises(error, match=message) as refused:
        OPTIONS.open(str(path))
    assert "a_text_document." in str(refused.value)


def test_every_byte_of_an_index(tmp_path: Path) -> None:
    """An edit is refused, or moves the border of a document: the index has no checksum."""
    path = write(tmp_path)
    index = path.with_suffix(".idx")
    whole, tokens = index.read_bytes(), list(itertools.chain(*FLAT))
    outcomes = {"refused": 0, "moved": 0, "unnamed": 0}
    for place in range(len(whole)):
        for bit in (0, 7):
            edit(path, place, bytes([whole[place] ^ 1 << bit]))
            try:
                shard = OPTIONS.open(str(path))
            except (ValueError, TypeError) as error:
                outcomes["refused" if "a_text_document." in str(error) else "unnamed"] += 1
            else:
                found = [shard.document(number).tolist() for number in range(len(shard))]
                assert list(itertools.chain(*found)) == tokens
                assert place >= BOUNDS
                outcomes["moved"] += 1
            index.write_bytes(whole)
    assert outcomes["refused"] > 2 * BOUNDS
    assert outcomes["moved"]
    assert not outcomes["unnamed"]


def test_truncated_files(tmp_path: Path) -> None:
    path = write(tmp_path, modes=True)
    for file in (path, path.with_suffix(".idx")):
        whole = file.read_bytes()
        for size in range(len(whole)):
            # Without its last bytes, a multimodal index is one of text.
            if file.suffix == ".idx" and size == len(whole) - 5:
                continue
            file.write_bytes(whole[:size])
            with pytest.raises(ValueError, match="a_text_document"):
                OPTIONS.open(str(path))
        file.write_bytes(whole)
    model.assert_equals(OPTIONS.open(str(path)), FLAT, "uint16")


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_megatron(path, [[list(range(9000))]] * 2)
    shard = OPTIONS.open(str(path))
    path.write_bytes(np.zeros(10, np.uint16).tobytes())
    with pytest.raises(OSError, match="became shorter while it was mapped"):
        shard.document(1)


def test_files_without_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    cases: list[tuple[list[list[list[int]]], list[list[int]]]] = [([], []), ([[], [[]]], [[], []])]
    for docs, flat in cases:
        write_megatron(path, docs)
        model.assert_equals(OPTIONS.open(str(path)), flat, "uint16")


class TestFindShards:
    def test_pairs(self) -> None:
        walked = ["b.bin", "a.bin", "a.idx", "b.idx", "notes.txt"]
        assert find_megatron_shards("/home", walked) == ["b.bin", "a.bin"]
        assert find_megatron_shards("/home", ["model.bin", "x.txt"]) == []
        assert find_megatron_shards("/home", ["model.idx"]) == []

    def test_a_missing_partner(self) -> None:
        for gone, there in (("b.bin", "b.idx"), ("b.idx", "b.bin")):
            with pytest.raises(FileNotFoundError, match=f"'/home/{there}' has no '{gone}'"):
                find_megatron_shards("/home", ["a.bin", "a.idx", there])
