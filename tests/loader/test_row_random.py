"""Random numbers of rows: published values of Philox, and independence of the batch."""

from __future__ import annotations

import numpy as np
import pytest

from support.row_randoms import row_random
from windeck._core import hash_words

#: Counter, key and words of Philox4x32-10 in the known answers of Random123.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Return four words of 32 bits: Philox4x32-10, in integers of Python."""
    mask = 2**32 - 1
    for number in range(10):
        first, third = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        one, other = key[0] + number * 0x9E3779B9, key[1] + number * 0xBB67AE85
        counter = [
            (third >> 32) ^ counter[1] ^ (one & mask),
            third & mask,
            (first >> 32) ^ counter[3] ^ (other & mask),
            first & mask,
        ]
    return counter


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_the_model_gives_the_known_answers(counter: str, key: str, wanted: str) -> None:
    assert philox(words(counter), words(key)) == words(wanted)


#: The key of the numbers of rows is a hash of the seed and this number.
PURPOSE = 21


def numbers(seed: int, position: int, call: int, count: int) -> list[float]:
    """Return the numbers of a row in one call of `uniform`."""
    key = hash_words(seed, PURPOSE)
    drawn: list[float] = []
    for block in range(-(-count // 2)):
        counter = [block, call, position & 2**32 - 1, position >> 32]
        found = philox(counter, [key & 2**32 - 1, key >> 32])
        drawn += [((h >> 5) * 2**26 + (w >> 6)) / 2**53 for h, w in (found[:2], found[2:])]
    return drawn[:count]


POSITIONS = np.array([0, 1, 2**32 - 1, 2**32, 2**62], np.int64)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (0,)])
def test_a_row_has_its_numbers_in_any_batch(shape: tuple[int, ...]) -> None:
    together = row_random(3, POSITIONS)
    whole = [together.uniform(*shape), together.normal(*shape), together.integers(-2, 9, *shape)]
    assert [one.shape for one in whole] == [(5, *shape)] * 3
    for row in range(5):
        alone = row_random(3, POSITIONS[row : row + 1])
        drawn = [alone.uniform(*shape), alone.normal(*shape), alone.integers(-2, 9, *shape)]
        for one, other in zip(whole, drawn, strict=True):
            assert np.array_equal(one[row], other[0])
        ours = [row_random(3, p).generator(r).random(4) for p, r in ((POSITIONS, row),)]
        assert np.array_equal(ours[0], alone.generator(0).random(4))


@pytest.mark.parametrize("seed", [0, 3, 2**64 - 1])
def test_numbers_are_those_of_the_model(seed: int) -> None:
    random = row_random(seed, POSITIONS)
    for call, count in enumerate((1, 5, 4)):
        expected = [numbers(seed, position, call, count) for position in POSITIONS.tolist()]
        assert random.uniform(count).tolist() == expected


def test_seeds_positions_and_calls_are_independent() -> None:
    drawn = [row_random(seed, POSITIONS).uniform(2) for seed in (3, 4)]
    random = row_random(3, POSITIONS)
    drawn += [random.uniform(2), random.uniform(2)]
    assert np.array_equal(drawn[0], drawn[2])
    different = np.concatenate([drawn[0], drawn[1], drawn[3]]).ravel()
    assert len(np.unique(different)) == different.size
    assert row_random(3, POSITIONS).uniform(2)[0].tolist() == drawn[0][0].tolist()


def test_numbers_are_uniform_and_normal() -> None:
    random = row_random(1, np.arange(20_000))
    numbers = random.uniform(5)
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    counts, _ = np.histogram(numbers, 64, (0, 1))
    assert ((counts - 1562.5) ** 2 / 1562.5).sum() < 63 + 5 * np.sqrt(2 * 63)
    assert abs(np.corrcoef(numbers.T)[0, 1:]).max() < 5 / np.sqrt(20_000)
    normal = random.normal()
    assert abs(normal.mean()) < 5 / np.sqrt(20_000)
    assert abs(normal.std() - 1) < 5 / np.sqrt(40_000)
    whole = random.integers(-3, 4)
    assert (whole.min(), whole.max()) == (-3, 3)
    with pytest.raises(ValueError, match=r"high - low must be at least 1, got 0"):
        random.integers(4, 4)
