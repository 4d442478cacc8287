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
from support.corpora import open_file
from support.internals import plant
from support.token_files import MEGATRON_CODES, write_megatron
from windeck import Documents

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
    write_megatron(tmp_path / "z.bin", [[[1]]])
    flat = [[token for sequence in doc for token in sequence] for doc in docs]
    with pytest.MonkeyPatch.context() as context:
        plant(context, "megatron._PORTION", chunk)
        shard = open_file(path, "z.bin")
    model.assert_equals(shard, flat, dtype)


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
    (17, b"\4", ValueError, "has 14 bytes, expected 12 for 3 tokens of int32"),
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
        open_file(path)
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
                shard = open_file(path)
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
                open_file(path)
        file.write_bytes(whole)
    model.assert_equals(open_file(path), FLAT, "uint16")


def test_a_file_that_lost_all_its_tokens_is_not_passed_over(tmp_path: Path) -> None:
    """A shard without tokens is never opened for a batch."""
    for name in "ab":
        path = write(tmp_path, name)
    path.write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"b\.bin' has 0 bytes, expected 14 for 7 tokens of uint16"
    ):
        Documents(tmp_path)


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_megatron(path, [[list(range(9000))]] * 2)
    shard = open_file(path)
    path.write_bytes(np.zeros(10, np.uint16).tobytes())
    with pytest.raises(OSError, match="became shorter while it was mapped"):
        shard.document(1)


def test_files_without_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    cases: list[tuple[list[list[list[int]]], list[list[int]]]] = [([], []), ([[], [[]]], [[], []])]
    for docs, flat in cases:
        write_megatron(path, docs)
        write_megatron(tmp_path / "z.bin", [[[1]]])
        model.assert_equals(open_file(path, "z.bin"), flat, "uint16")


class TestFindShards:
    def test_pairs(self, tmp_path: Path) -> None:
        write(tmp_path, "b")
        write(tmp_path, "a")
        (tmp_path / "notes.txt").touch()
        documents = Documents(tmp_path)
        names = [Path(documents.shard_path(shard)).name for shard in range(2)]
        assert names == ["a.bin", "b.bin"]
        assert "\n1 other file ignored" in documents.explain()

    @pytest.mark.parametrize("name", ["model.bin", "model.idx"])
    def test_other_files_of_these_names(self, name: str, tmp_path: Path) -> None:
        (tmp_path / name).touch()
        (tmp_path / "x.txt").touch()
        with pytest.raises(FileNotFoundError, match="has no dataset"):
            Documents(tmp_path)
        with pytest.raises(FileNotFoundError, match="has no dataset"):
            Documents(tmp_path, format="megatron")

    @pytest.mark.parametrize(("gone", "there"), [("b.bin", "b.idx"), ("b.idx", "b.bin")])
    def test_a_missing_partner(self, gone: str, there: str, tmp_path: Path) -> None:
        write(tmp_path, "a")
        write(tmp_path, "b")
        (tmp_path / gone).unlink()
        with pytest.raises(FileNotFoundError, match=f"/{there}' has no '{gone}'"):
            Documents(tmp_path)
