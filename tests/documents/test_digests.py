"""Digests of files, and their sums in saved states."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.internals import combine_digests, file_digest

#: Digests are numbers below this prime, of the format of stored counts.
PRIME = 2**61 - 1


def digests(count: int, seed: int = 0) -> list[int]:
    """Return random digests of `count` files."""
    rng = random.Random(seed)
    return [rng.randrange(PRIME) for _ in range(count)]


class TestCombinedDigests:
    def test_the_prime(self) -> None:
        # Lucas and Lehmer: 2^61 - 1 is prime iff s_59 = 0, with s_0 = 4, s_(i+1) = s_i^2 - 2.
        s = 4
        for _ in range(59):
            s = (s * s - 2) % PRIME
        assert s == 0

    def test_in_saved_states(self) -> None:
        assert combine_digests([PRIME - 1, 2, 3]) == "4:c"
        assert combine_digests(digests(1000)) == "4858e1f5ef89ac2:12187c31d9afae2"

    @pytest.mark.parametrize("count", [1, 2, 1000])
    def test_any_one_change(self, count: int) -> None:
        before, rng = digests(count), random.Random(1)
        for place in {0, count - 1}:
            after = list(before)
            after[place] = rng.randrange(PRIME)
            assert combine_digests(after) != combine_digests(before)

    def test_files_that_changed_places(self) -> None:
        before = digests(10)
        assert combine_digests(before) != combine_digests(before[::-1])


class TestDigests:
    def test_of_equal_files_wherever_they_are(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / name).write_bytes(b"data" * 5000)
        assert file_digest(str(tmp_path / "a"), [1]) == file_digest(str(tmp_path / "b"), [1])
        assert file_digest(str(tmp_path / "a"), [1]) != file_digest(str(tmp_path / "a"), [2])

    @pytest.mark.parametrize("size", [1, 100, 4096, 4097, 20_000, 32_767, 32_768])
    def test_every_byte_of_a_small_file_counts(self, size: int, tmp_path: Path) -> None:
        path, data = tmp_path / "x", random.Random(size).randbytes(size)
        path.write_bytes(data)
        before = file_digest(str(path), [])
        for place in {0, size // 3, size // 2, size - 1, *range(0, size, 1500)}:
            changed = bytearray(data)
            changed[place] ^= 1
            path.write_bytes(changed)
            assert file_digest(str(path), []) != before

    def test_ends_and_size_of_a_large_one(self, tmp_path: Path) -> None:
        path, data = tmp_path / "x", bytes(1_000_000)
        path.write_bytes(data)
        before = file_digest(str(path), [])
        for changed in (b"\1" + data[1:], data[:-1] + b"\1", data + b"\0", data[1:]):
            path.write_bytes(changed)
            assert file_digest(str(path), []) != before

    def test_of_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").touch()
        assert 0 <= file_digest(str(tmp_path / "x"), []) < PRIME
