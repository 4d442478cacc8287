"""Tests of damaged values: a load returns what was saved, or names the damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from windeck import checkpoint
from windeck._core import crc32c
from windeck.checkpoint.format import Kind, Label, keys, manifests, values
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]
MODEL = {"a": torch.tensor([1.5, -2.0, float("nan"), 4.0, 5.0]), "b": torch.tensor(7)}
INVALID = "tensors were written to before, expected all of them: the targets are invalid"


def save(store: Store, step: int = 1, **options: Any) -> dict[bytes, bytes]:
    """Save a small checkpoint; return its keys and values."""
    extra = {"note": "short", "rate": 0.5}
    checkpoint.save(store, step=step, model=MODEL, extra=extra, chunk_bytes=16, **options)
    return dict(store.scan(b""))


def load(store: Store) -> None:
    """Load; assert that the result is what was saved."""
    target = {name: torch.zeros_like(value) for name, value in MODEL.items()}
    loaded = checkpoint.load(store, model=target)
    for name, value in MODEL.items():
        assert torch.equal(
            target[name].reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8)
        )
    assert loaded.extra == {"note": "short", "rate": 0.5}


def test_every_flipped_byte_of_every_value(store: Store) -> None:
    for key, value in save(store).items():
        for at in range(len(value)):
            for mask in (0x01, 0x80, 0xFF):
                wrong = value[:at] + bytes([value[at] ^ mask]) + value[at + 1 :]
                store.put_many([(key, wrong)])
                if key == b"windeck/NEXT":  # only saves look at it
                    load(store)
                    with pytest.raises(CorruptStoreError, match="windeck/NEXT is damaged: found"):
                        save(store)
                else:
                    with pytest.raises(CorruptStoreError, match=f"{key.decode()} is damaged: fo"):
                        load(store)
        store.put_many([(key, value)])
    load(store)


def test_every_truncated_lengthened_and_missing_value(store: Store) -> None:
    for key, value in save(store).items():
        if key == b"windeck/NEXT":
            continue
        for wrong in (*(value[:size] for size in range(len(value))), value + b"\0", value * 2):
            store.put_many([(key, wrong)])
            with pytest.raises(CorruptStoreError, match=f"{key.decode()} is damaged: found"):
                load(store)
        store.delete_many([key])
        with pytest.raises(CorruptStoreError, match=f"{key.decode()} is missing.*, expected "):
            load(store)
        store.put_many([(key, value)])
    load(store)


def test_every_pair_of_swapped_values(store: Store) -> None:
    found = save(store)
    del found[b"windeck/NEXT"]
    for one in found:
        for two in found:
            if one < two:
                store.put_many([(one, found[two]), (two, found[one])])
                with pytest.raises(CorruptStoreError, match=r"is damaged: found .*, expected"):
                    load(store)
                store.put_many([(one, found[one]), (two, found[two])])
    load(store)


def test_stale_values_of_another_save(store: Store) -> None:
    first = save(store)
    second = save(store, step=2)
    for key, value in first.items():
        newer = key.replace(b"%016x" % 1, b"%016x" % 2)
        if newer == key:
            continue
        store.put_many([(newer, value)])
        with pytest.raises(CorruptStoreError, match=r"of generation 1, expected generation 2"):
            load(store)
        store.put_many([(newer, second[newer])])
    load(store)
    # The same generation of another attempt: all begins anew, numbers too.
    store.delete_range(b"")
    third = save(store)
    for key, value in first.items():
        if b"/t/" in key or b"/m/" in key:
            store.put_many([(key, value)])
            with pytest.raises(CorruptStoreError, match=r"a value of save \d+, expected save"):
                load(store)
            store.put_many([(key, third[key])])


def test_an_error_after_the_first_tensor_says_that_targets_are_invalid(store: Store) -> None:
    save(store)
    store.delete_many([keys.chunk("windeck", 1, 0, 1, 0)])
    with pytest.raises(CorruptStoreError, match=rf"chunk; at least 1 of 2 {INVALID}"):
        load(store)


def test_lost_numbers_do_not_bring_back_old_ones(store: Store) -> None:
    save(store)
    save(store)
    store.delete_many([b"windeck/NEXT"])
    save(store)
    assert [commit.generation for commit in checkpoint.log(store)] == [3, 2, 1]
    # Nor do those of a backup that is older than HEAD.
    old = values.encode(Label(Kind.NEXT), (2).to_bytes(8, "little"))
    store.put_many([(b"windeck/NEXT", old)])
    save(store)
    assert [commit.generation for commit in checkpoint.log(store)] == [4, 3, 2, 1]


def put(store: Store, payload: bytes) -> None:
    """Store a forged manifest, and a HEAD that matches it."""
    was, (commit,), _ = manifests.read_head(store, "windeck")
    assert was is not None
    value = values.encode(Label(Kind.MANIFEST, 1, commit.save), payload)
    now = manifests.Commit(1, commit.save, 1, 0.0, len(value), crc32c(value))
    head = manifests.encode_head([now])
    store.put_many([(keys.manifest("windeck", 1), value), (keys.head("windeck"), head)])


def rewrite(store: Store, *, parts: Any = None, **changes: Any) -> None:
    """Store a changed manifest of one tensor, in the format of docs/checkpoint.md."""
    kind = {"dtype": "float32", "shape": [5], "chunk_bytes": 16}
    kind |= {name: changes.pop(name) for name in tuple(changes) if name in kind}
    found = {"kinds": [kind], "tensors": [0], "trees": {"model": {"dict": ["a"]}}, **changes}
    lines = found, [[[0, 0]]] if parts is None else parts
    put(store, b"\n".join(map(manifests.encode_json, lines)))


def box(*boxes: Any) -> list[Any]:
    return [[[0, item, box] for item, box in enumerate(boxes)]]


def kept(*runs: Any) -> list[Any]:
    return [[[0, 0, [[0, 5]], list(runs)]]]


TREES: Any = [
    {"model": {"dict": ["a", "b"]}}, {"model": {"dict": []}}, {"model": {"dict": ["a", "a"]}},
    {"model": {"dict": ["a", ["a", 1]]}}, {"model": {"dict": [["a", 1], "a"]}}, {"model": ["a"]},
    {"model": {"dict": ["a", 7]}}, {"model": {"dict": ["a", ["b"]]}}, ["model"],
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": [2**62, 2**62]}, "has shape .* expected fewer than"),
        ({"shape": [-5]}, "a size must be at least 0, got -5"),
        ({"shape": [5.0]}, "a size must be an integer, got float 5.0"),
        ({"shape": [2**63]}, "a size must be at most 9223372036854775807"),
        ({"dtype": 3}, "a tensor has dtype '3', expected the name of one"),
        ({"chunk_bytes": "16"}, "a size must be an integer, got str '16'"),
        (
            {"shape": [6], "parts": box([[0, 5]])},
            "model/a has 5 elements in its parts, expected 6 of shape",
        ),
        ({"parts": box([[0, 4]])}, "model/a has 4 elements in its parts"),
        ({"parts": [[]]}, "model/a has 0 elements in its parts"),
        ({"shape": [3], "parts": box([[0, 4]])}, r"expected one inside \(\(0, 3\),\)"),
        ({"parts": box([[0, 5], [0, 1]])}, r"expected one inside \(\(0, 5\),\)"),
        (
            {"parts": box([[0, 3]], [[1, 3]])},
            r"model/a has parts \(\(0, 3\),\) and \(\(1, 3\),\), which overlap",
        ),
        ({"parts": [[[0, 0], [0, 1]]]}, r"model/a has parts .*, which overlap"),
        (
            {"parts": kept([0, 1, 1, 5, 0, 0])},
            "refers to chunks of generation 1, expected one before",
        ),
        (
            {"parts": kept([0, 1, 0, 5, 0, 0])},
            r"chunks of generation 0, expected one of \[\]",
        ),
        (
            {"parts": kept([1, 1, 0, 5, 0, 0])},
            r"refers to chunks \[1, 1\), expected a range from 0 on",
        ),
        (
            {"parts": kept([0, 9, 0, 5, 0, 0])},
            r"refers to chunks \[0, 9\), expected a range from 0 on",
        ),
        ({"parts": kept([1, 2, 0, 5, 0, 0], [0, 1, 0, 5, 0, 0])}, r"expected a range from 2 on"),
        ({"parts": kept([0, 1, 0, 5, 0])}, "missing 1 required positional argument"),
        (
            {"parts": [[[0]]]},
            r"model/a has a part '\[0\]', expected a writer, an item, a box",
        ),
        ({"parts": [[[0, 0, None, [], 1]]]}, "model/a has a part '.*', expected a writer, an item"),
        ({"parts": [["00"]]}, "model/a has a part '00', expected a writer, an item"),
        ({"parts": [[[0, -1]]]}, "a size must be at least 0, got -1"),
        ({"parts": []}, "expected parts of 1 tensors, found"),
        ({"parts": [[[0, 0]], [[0, 1]]]}, "expected parts of 1 tensors, found"),
        ({"parts": {"0": 1}}, "expected parts of 1 tensors, found"),
        ({"tensors": [1]}, r"its tensors are of kinds \[1\], expected numbers below 1"),
        ({"tensors": [-1]}, r"its tensors are of kinds \[-1\], expected numbers below 1"),
        ({"tensors": [False]}, r"its tensors are of kinds \[False\], expected numbers below 1"),
        ({"tensors": [0.0]}, r"its tensors are of kinds \[0.0\], expected numbers below 1"),
        ({"tensors": [0, 0]}, "its trees name 1 tensors, expected as many kinds of tensors, found"),
        ({"tensors": "0"}, "its trees name 1 tensors, expected as many kinds of tensors, found 0"),
        (
            {"trees": TREES[0], "tensors": [-1, 0]},
            r"its tensors are of kinds \[-1, 0\], expected numbers below 1",
        ),
        ({"kinds": []}, r"its tensors are of kinds \[0\], expected numbers below 0"),
        ({"trees": TREES[0]}, "its trees name 2 tensors, expected as many"),
        ({"trees": TREES[1]}, "its trees name 0 tensors, expected as many"),
        ({"trees": TREES[2]}, "model has the key 'a' twice, expected once"),
        ({"trees": TREES[3]}, "model has the key 'a' twice, expected once"),
        ({"trees": TREES[4]}, "model has the key 'a' twice, expected once"),
        ({"trees": TREES[5]}, "its trees name 0 tensors, expected as many"),
        ({"trees": TREES[6]}, "model has '7', expected a key and a value"),
        ({"trees": TREES[7]}, r"model has \"\['b'\]\", expected a key and a value"),
        ({"trees": TREES[8]}, r"expected trees by root, found \"\['model'\]\""),
    ],
)
def test_manifests_that_cannot_be(fresh: Fresh, changes: dict[str, Any], words: str) -> None:
    with open_store("memory://") as store:
        save(store)
        rewrite(store)
        assert torch.equal(checkpoint.open(store).tensor("model/a")[3:], MODEL["a"][3:])
        rewrite(store, **changes)
        with pytest.raises(CorruptStoreError, match=f"cannot be read as a manifest: .*({words})"):
            checkpoint.open(store)


def test_manifests_of_another_number_of_lines(fresh: Fresh) -> None:
    with open_store("memory://") as store:
        save(store)
        put(store, b'{"kinds":[],"tensors":[],"trees":{}}')
        with pytest.raises(
            CorruptStoreError, match="a manifest: expected two lines of JSON, found one"
        ):
            checkpoint.open(store)
        put(store, b'{"kinds":[],"tensors":[],"trees":{}}\n[]\n[]')
        with pytest.raises(CorruptStoreError, match="cannot be read as a manifest: Extra data: li"):
            checkpoint.open(store)


def test_a_dtype_this_torch_has_not(fresh: Fresh) -> None:
    with open_store("memory://") as store:
        save(store)
        for name in ("float5", "load", "__name__"):
            rewrite(store, dtype=name)
            with pytest.raises(ValueError, match=f"has no dtype '{name}', expected one it has"):
                checkpoint.load(store, model={"a": torch.zeros(5)})


def test_head_without_its_manifest_and_another_manifest(fresh: Fresh) -> None:
    with open_store("memory://") as store:
        save(store)
        (commit,) = manifests.read_head(store, "windeck").commits
        value = store.get(keys.manifest("windeck", 1))
        assert value is not None
        label = Label(Kind.MANIFEST, 1, commit.save)
        other = values.encode(label, bytes(values.decode(b"", value, label)) + b" ")
        store.put_many([(keys.manifest("windeck", 1), other)])
        with pytest.raises(CorruptStoreError, match="is not the manifest that windeck/HEAD was"):
            load(store)
        store.delete_range(b"windeck/m/")
        with pytest.raises(CorruptStoreError, match=r"windeck/m/0{15}1 is missing, expected a man"):
            load(store)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bases": [1]}, r"generation 1 is based on \(1,\)"),
        ({"bases": [0, 2]}, r"generation 1 is based on \(0, 2\)"),
        ({"bases": [-1]}, "a size must be at least 0, got -1"),
        ({"generation": "1"}, "`generation` must be an integer, got str '1'"),
        ({"save": 0.5}, "`save` must be an integer, got float 0.5"),
        ({"time": None}, "generation 1 has a time or checksum of another type"),
        ({"manifest_crc": True}, "generation 1 has a time or checksum of another type"),
    ],
)
def test_heads_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with open_store("memory://") as store:
        save(store)
        (commit,) = manifests.read_head(store, "windeck").commits
        kept = [{**commit._asdict(), **changes}]
        payload = manifests.encode_json({"kept": kept, "removed": 0, "tags": {}})
        store.put_many([(keys.head("windeck"), values.encode(Label(Kind.HEAD), payload))])
        with pytest.raises(CorruptStoreError, match=f"HEAD cannot be read as a HEAD: {words}"):
            load(store)


@pytest.mark.parametrize("field", ["kept", "removed", "tags", "bases"])
def test_every_field_of_head_is_needed(field: str) -> None:
    with open_store("memory://") as store:
        save(store)
        (commit,) = manifests.read_head(store, "windeck").commits
        entry = {name: value for name, value in commit._asdict().items() if name != field}
        content = {"kept": [entry], "removed": 0, "tags": {}}
        content = {name: value for name, value in content.items() if name != field}
        head = values.encode(Label(Kind.HEAD), manifests.encode_json(content))
        store.put_many([(keys.head("windeck"), head)])
        with pytest.raises(CorruptStoreError, match=f"HEAD cannot be read as a HEAD: '{field}'"):
            load(store)
