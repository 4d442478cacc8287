"""Digests of files in the fingerprints of documents, which are part of saved states."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.token_files import nanogpt_bytes
from windeck import Documents

#: Digests are numbers below this prime, of the format of saved states.
PRIME = 2**61 - 1
PAGE, PAGES = 4096, 8
END = 255


def corpus(root: Path) -> Documents:
    """Return the documents of files of bytes, which have neither a header nor an index."""
    return Documents(root, format="nanogpt", end_token=END, dtype="uint8")


def contents(root: Path) -> str | int:
    """Return the digest of the files of a corpus."""
    return corpus(root).fingerprint["contents"]


def tokens(count: int, seed: int = 0) -> bytes:
    """Return random tokens without an end token: one document."""
    return np.random.default_rng(seed).integers(0, END, count, np.uint8).tobytes()


def digest(data: bytes, numbers: list[int]) -> int:
    """Return the digest of a file by its definition: its size, the numbers, and eight pages."""
    last = max(len(data) - PAGE, 0)
    places = [last * page // (PAGES - 1) for page in range(PAGES)]
    if last <= (PAGES - 1) * PAGE:
        places = list(range(0, len(data), PAGE))
    text = b"".join(number.to_bytes(8, "little", signed=True) for number in [len(data), *numbers])
    text += b"".join(data[place : place + PAGE] for place in places)
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little") % PRIME


def combined(digests: list[int]) -> str:
    """Return the sums of digests, and of their multiples by the place of the file."""
    return f"{sum(digests) % PRIME:x}:{sum(i * d for i, d in enumerate(digests, 1)) % PRIME:x}"


def test_the_prime() -> None:
    # Lucas and Lehmer: 2^61 - 1 is prime iff s_59 = 0, with s_0 = 4, s_(i+1) = s_i^2 - 2.
    s = 4
    for _ in range(59):
        s = (s * s - 2) % PRIME
    assert s == 0


def test_digests_are_those_of_their_definition(tmp_path: Path) -> None:
    sizes = [1, 100, PAGE, PAGE + 1, 20_000, 32_767, 32_768, 32_769, 100_000, 1_000_000]
    expected = []
    for part, size in enumerate(sizes):
        data = tokens(size, part)
        (tmp_path / f"x.part{part}.bin").write_bytes(data)
        expected.append(digest(data, [0, part, 1, size]))
    assert contents(tmp_path) == combined(expected)


def test_files_that_changed_places(tmp_path: Path) -> None:
    for folder, order in (("a", (0, 1, 2)), ("b", (0, 2, 1))):
        (tmp_path / folder).mkdir()
        for place, seed in enumerate(order):
            data = nanogpt_bytes([[seed] * 5], END, "uint8")
            (tmp_path / folder / f"{place}.bin").write_bytes(data)
    assert contents(tmp_path / "a") != contents(tmp_path / "b")


def test_of_equal_files_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.bin").write_bytes(tokens(20_000))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("size", [1, 100, 4096, 4097, 20_000, 32_767, 32_768])
def test_every_byte_of_a_small_file_counts(size: int, tmp_path: Path) -> None:
    path, data = tmp_path / "x.bin", tokens(size)
    path.write_bytes(data)
    before = contents(tmp_path)
    random_place = random.Random(size).randrange(size)
    for place in {0, size // 3, size - 1, random_place, *range(0, size, 4000)}:
        changed = bytearray(data)
        changed[place] = (changed[place] + 1) % END
        path.write_bytes(changed)
        assert contents(tmp_path) != before


def test_ends_and_size_of_a_large_one(tmp_path: Path) -> None:
    path, data = tmp_path / "x.bin", bytes(1_000_000)
    path.write_bytes(data)
    before = contents(tmp_path)
    for changed in (b"\1" + data[1:], data[:-1] + b"\1", data + b"\0", data[1:]):
        path.write_bytes(changed)
        assert contents(tmp_path) != before
