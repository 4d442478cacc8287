"""Tests of damaged values of incremental checkpoints: detected, or without effect."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from support.stored_keys import parsed
from windeck import checkpoint
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

FIRST = {"w": torch.arange(10.0), "b": torch.tensor(7)}
SECOND = {"w": torch.arange(10.0), "b": torch.tensor(8)}
SECOND["w"][0] = -1.0
THIRD = {"w": SECOND["w"] * 1.0, "b": torch.tensor(9)}


def save(store: Store, state: dict[str, torch.Tensor]) -> None:
    checkpoint.save(store, step=1, model=state, chunk_bytes=16, incremental=True)


def load(store: Store, wanted: dict[str, torch.Tensor], generation: int) -> None:
    target = {name: torch.full_like(tensor, 99) for name, tensor in wanted.items()}
    checkpoint.load(store, model=target, generation=generation)
    assert all(torch.equal(target[name], wanted[name]) for name in wanted)


def two(store: Store) -> dict[bytes, bytes]:
    save(store, FIRST)
    save(store, SECOND)
    assert [commit.bases for commit in checkpoint.log(store)] == [(1,), ()]
    return dict(store.scan(b""))


def readers(key: bytes) -> set[int]:
    """The generations that cannot be read without a value. Of w's chunks, 1 and 2 are kept."""
    if key == b"windeck/HEAD":
        return {1, 2}
    found = keys.parse("windeck", key)
    if found is None or found[0] == "d":  # NEXT, digests
        return set()
    letter, (own, *place) = found
    kept = letter == "t" and own == 1 and place in ([0, 0, 1], [0, 0, 2])
    return {1, 2} if kept else {own}


def check(store: Store, key: bytes, words: str) -> None:
    """Both generations, with a value that is wrong."""
    for generation, state in ((1, FIRST), (2, SECOND)):
        if generation in readers(key):
            with pytest.raises(CorruptStoreError, match=words):
                load(store, state, generation)
        else:
            load(store, state, generation)


def test_every_flipped_byte_of_every_value(store: Store) -> None:
    found = two(store)
    assert len(found) == 2 + 2 + 2 + 4 + 2
    for key, value in found.items():
        for at in range(len(value)):
            wrong = value[:at] + bytes([value[at] ^ (1 << at % 8)]) + value[at + 1 :]
            store.put_many([(key, wrong)])
            check(store, key, f"{key.decode()} is damaged: found")
        store.put_many([(key, value)])


def test_every_missing_short_and_swapped_value(store: Store) -> None:
    found = two(store)
    del found[b"windeck/HEAD"]
    for key, value in found.items():
        store.delete_many([key])
        check(store, key, f"{key.decode()} is missing, expected a")
        for wrong in (value[:-1], value[:63], b"", value + b"\0"):
            store.put_many([(key, wrong)])
            check(store, key, f"{key.decode()} is damaged: found")
        store.put_many([(key, value)])
    for one in found:
        for other in found:
            if one < other:
                store.put_many([(one, found[other]), (other, found[one])])
                for generation, state in ((1, FIRST), (2, SECOND)):
                    if generation in readers(one) | readers(other):
                        with pytest.raises(CorruptStoreError, match="is damaged: found"):
                            load(store, state, generation)
                    else:
                        load(store, state, generation)
                store.put_many([(one, found[one]), (other, found[other])])


@pytest.mark.parametrize("generation", [1, 2])
def test_damaged_digests_make_a_full_save_and_no_wrong_one(generation: int) -> None:
    key = b"~windeck~%016x/d/00000000/00000000" % generation
    with open_store("memory://") as store:
        found = two(store)
        value = found[key]
        assert len(value) == 64 + 4 * 16
        wrong = [value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :] for at in range(len(value))]
        for damaged in (*wrong, value[:-1], value[:64], b"", value + value, None):
            store.delete_range(b"")
            store.put_many(found.items())
            store.delete_many([key])
            if damaged is not None:
                store.put_many([(key, damaged)])
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                save(store, THIRD)
            words = [str(warning.message) for warning in told]
            if generation == 2 and damaged is not None:
                assert len(words) == 1
                form = f"^{key.decode()} is damaged: found .*, expected .*: everything is written$"
                assert re.search(form, words[0])
            else:
                assert not words
            load(store, THIRD, 3)
            bases = checkpoint.log(store)[0].bases
            assert bases == (() if generation == 2 else (1, 2))


def test_a_damaged_manifest_in_force_makes_a_full_save() -> None:
    with open_store("memory://") as store:
        found = two(store)
        key = b"windeck/m/%016x" % 2
        store.put_many([(key, found[key][:-1] + b"?")])
        with pytest.warns(
            RuntimeWarning, match=f"{key.decode()} is damaged: .*: everything is written$"
        ):
            save(store, THIRD)
        load(store, THIRD, 3)
        assert checkpoint.log(store)[0].bases == ()


def test_stale_chunks_of_another_life_of_a_generation() -> None:
    """All was removed and began anew: generation 1 is there again, but it is another save."""
    with open_store("memory://") as store:
        first = two(store)
        store.delete_range(b"")
        second = two(store)
        assert first.keys() == second.keys()
        for key, value in first.items():
            if parsed(key)[0] in ("t", "m"):
                store.put_many([(key, value)])
                check(store, key, r"a value of save \d+, expected save|found a value of save")
                store.put_many([(key, second[key])])
            elif parsed(key) == ("d", 2):
                store.put_many([(key, value)])
                with pytest.warns(RuntimeWarning, match=r"a value of save \d+, expected save"):
                    save(store, THIRD)
                load(store, THIRD, 3)
