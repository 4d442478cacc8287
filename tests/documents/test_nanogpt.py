"""Flat files of tokens against a plain split of the array."""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import token_model as model
from support.corpora import open_file
from support.internals import plant
from support.token_files import llm_c_header, nanogpt_bytes
from windeck._core import TokenShard

END = 9
ONCE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def opened(
    path: Path, *beside: str, dtype: str | None = "uint16", end_token: int = END
) -> TokenShard:
    """Open a file, and others in its folder."""
    return open_file(path, *beside, format="nanogpt", end_token=end_token, dtype=dtype)


def split(tokens: list[int]) -> list[list[int]]:
    """Return the pieces between end tokens, without empty ones at both ends of the file."""
    pieces: list[list[int]] = [[]]
    for token in tokens:
        if token == END:
            pieces.append([])
        else:
            pieces[-1].append(token)
    if not pieces[0]:
        pieces.pop(0)
    return pieces[:-1] if pieces and not pieces[-1] else pieces


@given(
    tokens=st.lists(st.integers(6, END), min_size=1, max_size=20),
    dtype=st.sampled_from(model.INTEGERS),
    chunk=st.integers(8, 40),
)
@ONCE
def test_random_tokens(tmp_path: Path, tokens: list[int], dtype: str, chunk: int) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(np.array(tokens, dtype).tobytes())
    (tmp_path / "z.bin").write_bytes(np.array([1], dtype).tobytes())
    with pytest.MonkeyPatch.context() as context:
        plant(context, "nanogpt._PORTION_BYTES", chunk)
        shard = opened(path, "z.bin", dtype=dtype)
    model.assert_equals(shard, split(tokens), dtype)
    assert shard.mapped
    assert shard.name == str(path)


def test_every_short_file(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    (tmp_path / "z.bin").write_bytes(np.array([1], "<u2").tobytes())
    for length in range(1, 6):
        for tokens in itertools.product((1, END), repeat=length):
            path.write_bytes(np.array(tokens, "<u2").tobytes())
            model.assert_equals(opened(path, "z.bin"), split(list(tokens)), "uint16")


@pytest.mark.parametrize("end_first", [False, True])
def test_the_end_token_may_be_before_or_after_documents(tmp_path: Path, end_first: bool) -> None:
    docs = [[1, 2], [3], [4, 5, 6]]
    (tmp_path / "a.bin").write_bytes(nanogpt_bytes(docs, END, end_first=end_first))
    model.assert_equals(opened(tmp_path / "a.bin"), docs, "uint16")


@pytest.mark.parametrize(
    ("magic", "version", "dtype"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")]
)
def test_headers_of_llm_c(tmp_path: Path, magic: int, version: int, dtype: str) -> None:
    docs = [[1, 2], [3]]
    tokens = nanogpt_bytes(docs, END, dtype, end_first=True)
    path = tmp_path / "fineweb_train_000001.bin"
    path.write_bytes(llm_c_header(5, magic, version) + tokens)
    for given_dtype in (None, dtype):
        model.assert_equals(opened(path, dtype=given_dtype), docs, dtype)
    path.rename(tmp_path / "z.bin")
    path.write_bytes(llm_c_header(0, magic, version))
    model.assert_equals(opened(path, "z.bin", dtype=None), [], dtype)


BAD = [
    (b"", "uint16", END, "is empty \\(0 bytes\\)"),
    (b"\1\0\2", "uint16", END, "has 3 bytes, expected a multiple of 2 for tokens of uint16"),
    (b"\1\0", None, END, "no header of llm.c.* expected `dtype`"),
    (b"\1\0", "uint8", 256, "`end_token` is 256, which tokens of .* cannot be: they are uint8"),
    (b"\1\0", "uint16", -1, "`end_token` is -1"),
    (llm_c_header(1), None, END, "has 1,024 bytes, but its header states 1 tokens of uint16"),
    (llm_c_header(-1), None, END, "header states -1 tokens"),
    (llm_c_header(2**31 - 1), None, END, "header states 2,147,483,647 tokens"),
    (llm_c_header(0)[:1000], None, END, "is truncated: it has 1,000 bytes from byte 0 on"),
    (llm_c_header(0, version=2), None, END, "and version 2, expected version 1"),
    (llm_c_header(0), "uint32", END, "has tokens of uint16 .* but `dtype` is 'uint32'"),
]


@pytest.mark.parametrize(("content", "dtype", "end_token", "message"), BAD)
def test_bad_files(
    tmp_path: Path, content: bytes, dtype: str | None, end_token: int, message: str
) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        opened(path, dtype=dtype, end_token=end_token)
    assert "train.bin'" in str(refused.value)


def test_every_byte_of_a_header(tmp_path: Path) -> None:
    """No edit or truncation of a header gives other documents where a check can find it."""
    docs = [[1, 2], [3]]
    path = tmp_path / "a.bin"
    whole = llm_c_header(5) + nanogpt_bytes(docs, END)
    for place in range(12):
        for bit in (0, 3, 7):
            edited = bytearray(whole)
            edited[place] ^= 1 << bit
            path.write_bytes(edited)
            # Without its magic, the header would be tokens: only a dtype that is given allows it.
            with pytest.raises(ValueError, match=r"a\.bin'"):
                opened(path, dtype=None)
    for size in [*range(0, 1020, 17), *range(1020, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"a\.bin'"):
            opened(path, dtype=None)


def test_a_file_that_shrinks_while_it_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(struct.pack("<4H", 1, END, 2, 3))
    plant(monkeypatch, "nanogpt._PORTION_BYTES", 2)
    read = os.pread

    def read_and_cut(file: int, count: int, start: int) -> bytes:
        if count == 2:
            path.write_bytes(struct.pack("<2H", 1, END))
        return read(file, count, start)

    monkeypatch.setattr(os, "pread", read_and_cut)
    with pytest.raises(ValueError, match="is truncated: it has 0 bytes from byte 4 on, expected 2"):
        opened(path)


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(nanogpt_bytes([[1] * 9000, [2] * 9000], END))
    shard = opened(path)
    path.write_bytes(b"")
    with pytest.raises(OSError, match="became shorter while it was mapped"):
        shard.document(1)


def test_a_large_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tokens = tmp_path / "a.bin", 10 * 2**20
    with open(path, "wb") as file:
        file.truncate(2 * tokens)  # zeros, which take no space on disk
        for place in (5, 2**21, 2**21 + 1, tokens - 2):
            file.seek(2 * place)
            file.write(struct.pack("<H", END))
    sizes: list[int] = []
    read = os.pread

    def noted(file: int, count: int, start: int) -> bytes:
        sizes.append(count)
        return read(file, count, start)

    monkeypatch.setattr(os, "pread", noted)
    shard = opened(path)
    assert shard.lengths().tolist() == [5, 2**21 - 6, 0, tokens - 4 - 2**21, 1]
    assert sum(size for size in sizes if size > 4096) == 2 * tokens
    assert max(sizes) == 2**22
