"""Tests of large chunks, read without the checksums of the store: wrong ones are detected."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias

import pytest
import torch

from windeck import checkpoint
from windeck.checkpoint.format import HEADER_BYTES, Kind, Label, encode, keys
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]
Pairs: TypeAlias = MutableMapping[bytes, bytes]
# Two chunks of 80,000 bytes each, which are large.
MODEL = {name: torch.arange(40_000.0) + start for name, start in (("a", 0.0), ("b", 0.5))}
A0, A1, B0 = (keys.chunk("windeck", 1, 0, item, n) for item, n in ((0, 0), (0, 1), (1, 0)))


def saved() -> Pairs:
    with open_store("memory://") as store:
        checkpoint.save(store, step=1, model=MODEL, chunk_bytes=80_000)
        return dict(store.scan())


def put(url: str, pairs: Pairs) -> None:
    """Write all pairs to a new database as one table."""
    with open_store(url) as store:
        store.bulk_load(sorted(pairs.items()))
        store.sync()


def load(url: str) -> dict[str, torch.Tensor]:
    target = {name: torch.full_like(value, -1.0) for name, value in MODEL.items()}
    checkpoint.load(url, model=target)
    return target


def label(pairs: Pairs) -> Label:
    """Return the label of the first chunk."""
    found = Label(Kind.CHUNK, generation=1, save=int.from_bytes(pairs[A0][32:40], "little"))
    assert encode(found, pairs[A0][HEADER_BYTES:]) == pairs[A0]
    return found


def relabelled(pairs: Pairs, **change: Any) -> bytes:
    return encode(label(pairs)._replace(**change), pairs[A0][HEADER_BYTES:])


def swap(one: bytes, other: bytes) -> Callable[[Pairs], None]:
    def change(pairs: Pairs) -> None:
        pairs[one], pairs[other] = pairs[other], pairs[one]

    return change


def set_to(value: Callable[[Pairs], bytes]) -> Callable[[Pairs], None]:
    def change(pairs: Pairs) -> None:
        pairs[A0] = value(pairs)

    return change


def cut(pairs: Pairs, size: int) -> bytes:
    """Return a valid value of another size."""
    return encode(label(pairs), (pairs[A0] + bytes(8))[HEADER_BYTES:][:size])


CHANGES: dict[str, Callable[[Pairs], None]] = {
    "another tensor's": swap(A0, B0),
    "another number's": swap(A0, A1),
    "another save's": set_to(lambda pairs: relabelled(pairs, save=7)),
    "another generation's": set_to(lambda pairs: relabelled(pairs, generation=2)),
    "another writer's": set_to(lambda pairs: relabelled(pairs, part=1)),
    "another kind": set_to(lambda pairs: relabelled(pairs, kind=Kind.BLOCK)),
    "another sum": set_to(lambda pairs: pairs[A0][:-1] + b"\x7f"),
    "a shorter one": set_to(lambda pairs: cut(pairs, 79_996)),
    "a longer one": set_to(lambda pairs: cut(pairs, 80_004)),
    "none of its bytes": set_to(lambda pairs: b""),
    "not there": lambda pairs: pairs.__delitem__(A0),
}


class Counted:
    """A store that notes the keys that are read without its checksums."""

    def __init__(self, store: Store) -> None:
        self._store, self.keys = store, set[bytes]()

    def get_unchecked(self, key: bytes) -> bytes | None:
        self.keys.add(key)
        found: bytes | None = self._store.get_unchecked(key)  # type: ignore[attr-defined]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_is_right_is_read_once(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    put(url, saved())
    found = {name: torch.full_like(value, -1.0) for name, value in MODEL.items()}
    with open_store(url) as store:
        counted: Any = Counted(store)
        checkpoint.load(counted, model=found)
    assert counted.keys == {A0, A1, B0, keys.chunk("windeck", 1, 0, 1, 1)}
    assert all(torch.equal(found[name], value) for name, value in MODEL.items())


@pytest.mark.parametrize("wrong", ["lost", "flipped", "another"])
def test_what_only_the_quick_read_gets_wrong_is_read_again(fresh: Fresh, wrong: str) -> None:
    """As if the file was damaged on its way to memory, or a damaged block names another key."""
    url = fresh("rocksdb")
    put(url, saved())

    class Wrong(Counted):
        def get_unchecked(self, key: bytes) -> bytes | None:
            value = bytearray(super().get_unchecked(key) or b"")
            value[70_000] ^= 1
            another: bytes | None = self.get(B0)
            return {"lost": None, "flipped": bytes(value), "another": another}[wrong]

    found = {name: torch.full_like(value, -1.0) for name, value in MODEL.items()}
    with open_store(url) as store:
        damaged: Any = Wrong(store)
        checkpoint.load(damaged, model=found)
        assert A0 in damaged.keys
    assert all(torch.equal(found[name], value) for name, value in MODEL.items())


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_wrong_is_found_out(fresh: Fresh, change: str) -> None:
    url, pairs = fresh("rocksdb"), saved()
    CHANGES[change](pairs)
    put(url, pairs)
    with pytest.raises(CorruptStoreError, match=rf"{A0.decode()} is (damaged: found|missing, exp)"):
        load(url)


def test_columns_of_tensors_of_several_sizes(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    model = {f"{n}": torch.rand(n, n) for n in (130, 300, 200)}
    checkpoint.save(url, step=1, model=model)
    target = {name: torch.zeros_like(value).t() for name, value in model.items()}
    checkpoint.load(url, model=target)
    assert all(torch.equal(target[name], value) for name, value in model.items())
