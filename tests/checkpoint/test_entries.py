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

from support.internals import KeptChunks, check_size, expand_tree, parse_catalog, parse_entries
from windeck.checkpoint.format import (
    Box,
    TensorPart,
    check_tiling,
    encode_json,
    encode_manifest,
    slices,
    state_json,
)


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
            runs.append(KeptChunks(at, at + length, serial, 100 + serial, 3, serial))
        for number in range(at, at + length):
            model[number] = (serial, 100 + serial, 3, serial) if is_kept else (50, 500, 1, 2)
        at += length
    part = TensorPart(((0, 99),), 1, 2, 50, 500, tuple(runs))
    assert {number: part.source(number) for number in range(at)} == model
    assert part.source(at + 5) == (50, 500, 1, 2)


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
    entries = parse_entries(parse_catalog(first), json.loads(second), 7, 77)
    assert [(entry.name, *entry[1:3], entry.chunk_bytes) for entry in entries.values()] == [
        ("m/v", "int8", (4, 3), 6), ("m/u", "int8", (4,), 16), ("m/w", "int8", (4,), 16)
    ]  # fmt: skip
    assert entries["m/w"].parts == (
        TensorPart(((0, 4),), 2, 9, 7, 77, (KeptChunks(0, 1, 3, 33, 2, 8),)),
    )
    assert [part.box for part in entries["m/v"].parts] == [((0, 2), (0, 3)), ((2, 4), (0, 3))]
    found["tensors"] *= 2
    with pytest.raises(ValueError, match="the tensor m/w is listed twice, expected once"):
        encode_manifest(found)
    for wrong in (True, 1.0, -1, 1 << 63, "1", None):
        with pytest.raises((TypeError, ValueError), match="a size must be "):
            check_size(wrong)


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
    catalog = parse_catalog(lines.decode().split("\n")[0])
    assert list(catalog.tensors) == names
    assert catalog.names["e"] == ["e/0/y", "e/0/w"]
    assert catalog.data["e"] == ["e/0/y", "m/w"]
    assert encode_json(["\u00e9", None]) == rb'["\u00e9",null]'
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_json({"a": [float("nan")]})


def test_the_largest_tensor_and_the_smallest_chunks() -> None:
    """Elements of 16 bytes, the widest there are, take less than 2^63 bytes."""

    def read(shape: list[int], chunk_bytes: int) -> Any:
        kind = {"dtype": "int8", "shape": shape, "chunk_bytes": chunk_bytes}
        (found,) = parse_catalog(json.dumps({"kinds": [kind], "tensors": [], "trees": {}})).kinds
        return found

    assert read([(1 << 59) - 1, 1], 5) == ("int8", ((1 << 59) - 1, 1), 5)
    assert read([1 << 62, 0], 1).shape == (1 << 62, 0)
    for shape in ([1 << 59], [1 << 30, 1 << 29], [1 << 62] * 9):
        with pytest.raises(ValueError, match=r"a tensor has shape \(.*\), expected fewer than"):
            read(shape, 16)
    assert read([2], 0).chunk_bytes == 1  # a chunk has an element at least


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
    entries = [
        {"name": name, "dtype": f"int{8 * (1 + i % 2)}", "shape": [i % 3], "parts": []}
        for i, name in enumerate(dict.fromkeys(names))
    ]
    found = {"chunk_bytes": 16, "tensors": entries[::-1], "trees": {"m": tree}}
    catalog = parse_catalog(encode_manifest(found).decode().split("\n")[0])
    assert expand_tree(catalog.trees["m"], "m") == tree
    assert catalog.data["m"] == names
    assert list(zip(catalog.names["m"], names, strict=True)) == list(
        state_json.iter_tensors(tree, "m")
    )
    assert [(name, *catalog.kinds[kind][:2]) for name, kind in catalog.tensors.items()] == [
        (entry["name"], entry["dtype"], tuple(entry["shape"])) for entry in entries
    ]
    if catalog.trees["m"] != tree:
        with pytest.raises(ValueError, match="expected a key and a value"):
            list(
                state_json.iter_tensors(catalog.trees["m"], "m")
            )  # what else has trees has whole ones
