"""Tests of the parts of a tensor, which cover it exactly, with an array that counts visits."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from windeck import checkpoint
from windeck._core import crc32c
from windeck.checkpoint import Checkpoint, Commit
from windeck.checkpoint.format import (
    Box,
    Kind,
    Label,
    check_tiling,
    encode,
    encode_head,
    encode_json,
    encode_manifest,
    keys,
    slices,
    state_json,
)
from windeck.checkpoint.stores import CorruptStoreError, MappingStore


def read(lines: bytes, *, generation: int = 7, save: int = 77, bases: Any = ()) -> Checkpoint:
    """Return the checkpoint that has a manifest and nothing else."""
    value = encode(Label(Kind.MANIFEST, generation, save), lines)
    commit = Commit(generation, save, 0, 0.0, len(value), crc32c(value), tuple(bases))
    stored = {keys.manifest("windeck", generation): value}
    stored[keys.head("windeck")] = encode_head([commit])
    return checkpoint.open(MappingStore(stored))


def tiles(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    visits = np.zeros(shape, np.int64)
    for box in boxes:
        visits[slices(box)] += 1
    return bool((visits == 1).all())


def accepted(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    try:
        check_tiling("w", shape, boxes)
    except ValueError as error:
        told = str(error)
    else:
        return True
    assert re.search("^w has (parts .* and .*, which overlap|.* elements in its parts, exp)", told)
    return False


def sides(size: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(size + 1) for b in range(a, size + 1)]


def test_every_set_of_boxes_of_small_shapes() -> None:
    for shape in ((), (0,), (3,), (2, 2), (2, 0), (1, 2)):
        every = list(itertools.product(*map(sides, shape)))
        for count in range(4):
            for boxes in itertools.combinations_with_replacement(every, count):
                assert accepted(shape, list(boxes)) == tiles(shape, list(boxes)), (shape, boxes)


@some.composite
def cuts(draw: some.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """Draw a shape that is cut repeatedly, then perhaps a box moved, lost or doubled."""
    shape = tuple(draw(some.lists(some.integers(0, 6), max_size=4)))
    boxes: list[Box] = [tuple((0, size) for size in shape)]
    for _ in range(draw(some.integers(0, 12)) if shape else 0):
        box = boxes.pop(draw(some.integers(0, len(boxes) - 1)))
        axis = draw(some.integers(0, len(shape) - 1))
        at = draw(some.integers(*box[axis]))
        ends = (box[axis][0], at), (at, box[axis][1])
        boxes.extend((*box[:axis], side, *box[axis + 1 :]) for side in ends)
    boxes = draw(some.permutations(boxes))
    place = draw(some.integers(0, len(boxes) - 1))
    change = draw(some.sampled_from(["none", "other", "lost", "twice"]))
    if change == "other":
        boxes[place] = tuple(draw(some.sampled_from(sides(size))) for size in shape)
    elif change == "lost":
        del boxes[place]
    elif change == "twice":
        boxes.append(boxes[place])
    return shape, boxes


@given(cuts())
def test_boxes_that_were_cut(case: tuple[tuple[int, ...], list[Box]]) -> None:
    assert accepted(*case) == tiles(*case)


def test_many_parts_and_the_one_that_is_wrong() -> None:
    side = 70
    grid: list[Box] = [
        ((10 * i, 10 * i + 10), (0, 5), (7 * j, 7 * j + 7))
        for i in range(side)
        for j in range(side)
    ]
    shape = (10 * side, 5, 7 * side)
    check_tiling("w", shape, grid[::-1])
    with pytest.raises(ValueError, match="w has 1,713,600 elements in its parts, expected 1,715,0"):
        check_tiling("w", shape, grid[:-4])
    twice = [*grid[:-1], grid[777]]
    with pytest.raises(ValueError, match=re.escape(f"w has parts {grid[777]} and {grid[777]}, wh")):
        check_tiling("w", shape, twice)
    line: list[Box] = [((i, i + 1),) for i in range(5000)]
    check_tiling("w", (5000,), line)
    # As many dimensions as tensors have, each cut.
    deep: list[Box] = [tuple((int(i == j), 2) for j in range(60)) for i in range(60)]
    with pytest.raises(ValueError, match="which overlap"):
        check_tiling("w", (2,) * 60, deep)


@given(some.lists(some.tuples(some.integers(1, 4), some.booleans()), max_size=12))
def test_sources_of_chunks(pieces: list[tuple[int, bool]]) -> None:
    model, runs, at = {}, [], 0
    for serial, (length, is_kept) in enumerate(pieces):
        if is_kept:
            runs.append([at, at + length, serial, 100 + serial, 3, serial])
        for number in range(at, at + length):
            model[number] = (serial, 100 + serial, 3, serial) if is_kept else (50, 500, 1, 2)
        at += length
    part = {"box": [[0, 99]], "writer": 1, "item": 2, "kept": runs}
    tensor = {"name": "m", "dtype": "int8", "shape": [99], "parts": [part]}
    lines = encode_manifest(
        {"chunk_bytes": 16, "tensors": [tensor], "trees": {"m": {"tensor": "m"}}}
    )
    bases = range(len(pieces))
    (found,) = read(lines, generation=50, save=500, bases=bases).entries["m"].parts
    assert {number: found.source(number) for number in range(at)} == model
    assert found.source(at + 5) == (50, 500, 1, 2)


def test_what_is_read_back() -> None:
    run = [0, 1, 3, 33, 2, 8]
    whole = {"box": [[0, 4]], "writer": 2, "item": 9, "kept": [run]}
    halves = [{"box": [[a, a + 2], [0, 3]], "writer": 0, "item": a} for a in (0, 2)]
    found: dict[str, Any] = {
        "chunk_bytes": 16,
        "tensors": [
            {"name": "m/w", "dtype": "int8", "shape": [4], "parts": [whole]},
            {"name": "m/v", "dtype": "int8", "shape": [4, 3], "chunk_bytes": 6, "parts": halves},
            {"name": "m/u", "dtype": "int8", "shape": [4], "parts": [{**whole, "kept": []}]},
        ],
        "trees": {"m": {"dict": [[name, {"tensor": f"m/{name}"}] for name in ("v", "u", "w")]}},
    }
    first, second = encode_manifest(found).decode().split("\n")
    assert json.loads(first) == {
        "kinds": [
            {"dtype": "int8", "shape": [4, 3], "chunk_bytes": 6},
            {"dtype": "int8", "shape": [4], "chunk_bytes": 16},
        ],
        "tensors": [0, 1, 1],
        "trees": {"m": {"dict": ["v", "u", "w"]}},
    }
    assert json.loads(second) == [
        [[0, 0, [[0, 2], [0, 3]]], [0, 2, [[2, 4], [0, 3]]]],
        [[2, 9, None, []]],
        [[2, 9, None, [run]]],
    ]
    entries = read(f"{first}\n{second}".encode(), bases=[3]).entries
    assert [(entry.name, *entry[1:3], entry.chunk_bytes) for entry in entries.values()] == [
        ("m/v", "int8", (4, 3), 6), ("m/u", "int8", (4,), 16), ("m/w", "int8", (4,), 16)
    ]  # fmt: skip
    (part,) = entries["m/w"].parts
    assert part[:5] == (((0, 4),), 2, 9, 7, 77)
    assert [tuple(kept) for kept in part.kept] == [tuple(run)]
    assert [part.box for part in entries["m/v"].parts] == [((0, 2), (0, 3)), ((2, 4), (0, 3))]
    found["tensors"] *= 2
    with pytest.raises(ValueError, match="the tensor m/w is listed twice, expected once"):
        encode_manifest(found)


def with_number(place: str, number: Any) -> bytes:
    """Return a manifest of one tensor with some value in place of a number."""
    kept = [0, 1, 3, 33, 2, 8]
    sizes: dict[str, Any] = {"shape": 8, "chunk_bytes": 16, "writer": 2, "item": 9, "end": 8}
    if place.isdecimal():
        kept[int(place)] = number
    else:
        sizes[place] = number
    kind = {"dtype": "int8", "shape": [sizes["shape"]], "chunk_bytes": sizes["chunk_bytes"]}
    catalog = {"kinds": [kind], "tensors": [0], "trees": {"m": {"tensor": "m"}}}
    part = [sizes["writer"], sizes["item"], [[0, sizes["end"]]], [kept]]
    return f"{json.dumps(catalog)}\n{json.dumps([[part]])}".encode()


@pytest.mark.parametrize(
    "place", ["shape", "chunk_bytes", "writer", "item", "end", *map(str, range(6))]
)
def test_numbers_that_are_no_sizes(place: str) -> None:
    assert read(with_number("item", 9), bases=[3]).names() == ["m"]
    for wrong in (True, 1.0, -1, 1 << 63, "1", None):
        with pytest.raises(CorruptStoreError, match="cannot be read as a manifest: a size must be"):
            read(with_number(place, wrong), bases=[3])


def test_tensors_and_trees_that_do_not_agree() -> None:
    entry = {"name": "m/w", "dtype": "int8", "shape": [], "parts": []}
    of = {"chunk_bytes": 16, "tensors": [entry]}
    with pytest.raises(ValueError, match="the tensor m/w is in no tree, expected tensors and tre"):
        encode_manifest({**of, "trees": {"m": {"dict": []}}})
    tree = {"dict": [["w", {"tensor": "m/w"}], ["v", {"tensor": "m/v"}]]}
    with pytest.raises(ValueError, match="the tensor m/v is in a tree, but is missing, expec"):
        encode_manifest({**of, "trees": {"m": tree}})


def test_a_manifest_as_it_is_stored() -> None:
    """Every tensor of its own kind, roots in no order of their names, keys alone at any depth."""

    def at(name: str) -> dict[str, str]:
        return {"tensor": name}

    inner = {"dict": [["v", at("m/in/v")], ["w", at("m/w")], [0, at("m/in/0")]]}
    model = {"dict": [["w", at("m/w")], ["in", inner], ["l", [{"dict": [["x", at("m/l/0/x")]]}]]]}
    extra = {"tuple": [{"dict": [["y", at("e/0/y")], ["w", at("m/w")]]}]}
    kinds: list[Any] = [["int8", [2], 16], ["int8", [2], 32], ["bool", [2], 16], ["int8", [3], 16]]
    kinds.append(["int8", [2], 48])
    names = ["m/w", "m/in/v", "m/in/0", "m/l/0/x", "e/0/y"]
    tensors = [
        {"name": name, "dtype": dtype, "shape": shape, "chunk_bytes": chunk_bytes}
        | {"parts": [{"box": [[0, shape[0]]], "writer": 0, "item": item}]}
        for item, (name, (dtype, shape, chunk_bytes)) in enumerate(zip(names, kinds, strict=True))
    ]
    lines = encode_manifest(
        {"tensors": tensors, "trees": {"m": model, "e": extra}, "chunk_bytes": 64}
    )
    stated = ",".join(
        f'{{"dtype":"{dtype}","shape":[{shape[0]}],"chunk_bytes":{chunk_bytes}}}'
        for dtype, shape, chunk_bytes in kinds
    )
    assert lines.decode() == (
        f'{{"kinds":[{stated}],"tensors":[0,1,2,3,4],"trees":'
        '{"m":{"dict":["w",["in",{"dict":["v",["w",{"tensor":"m/w"}],[0,{"tensor":"m/in/0"}]]}],'
        '["l",[{"dict":["x"]}]]]},'
        '"e":{"tuple":[{"dict":["y",["w",{"tensor":"m/w"}]]}]}}}'
        "\n[[[0,0]],[[0,1]],[[0,2]],[[0,3]],[[0,4]]]"
    )
    found = read(lines)
    assert list(found.entries) == names
    assert list(found.places("e")) == [("e/0/y", "e/0/y"), ("e/0/w", "m/w")]
    assert encode_json(["\u00e9", None]) == rb'["\u00e9",null]'
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_json({"a": [float("nan")]})


def test_the_largest_tensor_and_the_smallest_chunks() -> None:
    """Elements of 16 bytes, the widest there are, take less than 2^63 bytes."""

    def entry(shape: list[int], chunk_bytes: int) -> Any:
        kind = {"dtype": "int8", "shape": shape, "chunk_bytes": chunk_bytes}
        catalog = {"kinds": [kind], "tensors": [0], "trees": {"m": {"tensor": "m"}}}
        return read(f"{json.dumps(catalog)}\n[[[0, 0]]]".encode()).entries["m"]

    large = entry([(1 << 59) - 1, 1], 5)
    assert (large.dtype, large.shape, large.chunk_bytes) == ("int8", ((1 << 59) - 1, 1), 5)
    assert entry([1 << 62, 0], 1).shape == (1 << 62, 0)
    for shape in ([1 << 59], [1 << 30, 1 << 29], [1 << 62] * 9):
        with pytest.raises(
            CorruptStoreError, match=r"a tensor has shape \(.*\), expected fewer th"
        ):
            entry(shape, 16)
    assert entry([2], 0).chunk_bytes == 1  # a chunk has an element at least


@given(
    some.recursive(
        some.sampled_from(["t", None, True, 3, 0.5, "text", float("inf")]),
        lambda inner: (
            some.lists(inner, max_size=4)
            | some.lists(inner, max_size=4).map(tuple)
            | some.dictionaries(some.sampled_from(["a", "b", "a/b", 0, 1, ""]), inner, max_size=5)
        ),
        max_leaves=12,
    )
)
def test_trees_are_stored_short_and_come_back_whole(value: Any) -> None:
    """With a text "t" for a tensor, each third of which is the same as the one before."""
    names: list[str] = []

    def tensors(tree: Any, place: str) -> Any:
        if tree == "t":
            names.append(names[-1] if len(names) % 3 == 2 else place)
            return {"tensor": names[-1]}
        if isinstance(tree, dict) and "dict" in tree:
            return {"dict": [[k, tensors(v, f"{place}/{k}")] for k, v in tree["dict"]]}
        if isinstance(tree, dict) and "tuple" in tree:
            return {"tuple": tensors(tree["tuple"], place)}
        if isinstance(tree, list):
            return [tensors(item, f"{place}/{i}") for i, item in enumerate(tree)]
        return tree

    tree = tensors(state_json.encode(value, "m", lambda *_: ""), "m")
    kinds = {name: (f"int{8 * (1 + i % 2)}", i % 3) for i, name in enumerate(dict.fromkeys(names))}
    entries = [
        {"name": name, "dtype": dtype, "shape": [size], "parts": [{"box": [[0, size]], "item": 1}]}
        for name, (dtype, size) in kinds.items()
    ]
    lines = encode_manifest({"chunk_bytes": 16, "tensors": entries[::-1], "trees": {"m": tree}})
    found = read(lines)
    assert found.trees == {"m": tree}
    assert [name for _, name in found.places("m")] == names
    assert list(found.places("m")) == list(state_json.iter_tensors(tree, "m"))
    assert [(name, entry.dtype, *entry.shape) for name, entry in found.entries.items()] == [
        (name, *kind) for name, kind in kinds.items()
    ]
    stored = json.loads(lines.split(b"\n")[0])["trees"]["m"]
    if stored != tree:
        with pytest.raises(ValueError, match="expected a key and a value"):
            list(state_json.iter_tensors(stored, "m"))  # what else has trees has whole ones
