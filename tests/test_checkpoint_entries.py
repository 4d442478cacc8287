"""Parts of a tensor cover it exactly; an array that counts visits is the model."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from windeck.checkpoint.format.boxes import Box, slices
from windeck.checkpoint.format.entries import Part, Run, check_tiles, parse_entries, whole_number


def tiles(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    visits = np.zeros(shape, np.int64)
    for box in boxes:
        visits[slices(box)] += 1
    return bool((visits == 1).all())


def accepted(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    try:
        check_tiles("w", shape, boxes)
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
    """A shape cut again and again, then perhaps a box moved, lost or doubled."""
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
    check_tiles("w", shape, grid[::-1])
    with pytest.raises(ValueError, match="w has 1,713,600 elements in its parts, expected 1,715,0"):
        check_tiles("w", shape, grid[:-4])
    twice = [*grid[:-1], grid[777]]
    with pytest.raises(ValueError, match=re.escape(f"w has parts {grid[777]} and {grid[777]}, wh")):
        check_tiles("w", shape, twice)
    line: list[Box] = [((i, i + 1),) for i in range(5000)]
    check_tiles("w", (5000,), line)
    # As many dimensions as tensors have, each cut.
    deep: list[Box] = [tuple((int(i == j), 2) for j in range(60)) for i in range(60)]
    with pytest.raises(ValueError, match="which overlap"):
        check_tiles("w", (2,) * 60, deep)


@given(some.lists(some.tuples(some.integers(1, 4), some.booleans()), max_size=12))
def test_sources_of_chunks(pieces: list[tuple[int, bool]]) -> None:
    model, runs, at = {}, [], 0
    for serial, (length, is_kept) in enumerate(pieces):
        if is_kept:
            runs.append(Run(at, at + length, serial, 100 + serial, 3, serial))
        for number in range(at, at + length):
            model[number] = (serial, 100 + serial, 3, serial) if is_kept else (50, 500, 1, 2)
        at += length
    part = Part(((0, 99),), 1, 2, 50, 500, tuple(runs))
    assert {number: part.source(number) for number in range(at)} == model
    assert part.source(at + 5) == (50, 500, 1, 2)


def test_what_is_read_back() -> None:
    part = {"box": [[0, 4]], "writer": 2, "item": 9, "kept": [[0, 1, 3, 33, 2, 8]]}
    found = {"chunk_bytes": 16, "tensors": [{"name": "w", "dtype": "int8", "shape": [4]}]}
    found["tensors"][0]["parts"] = [part]  # type: ignore[index]
    (entry,) = parse_entries(found, 7, 77).values()
    assert entry.parts == (Part(((0, 4),), 2, 9, 7, 77, (Run(0, 1, 3, 33, 2, 8),)),)
    assert (entry.shape, entry.dtype, entry.chunk_bytes) == ((4,), "int8", 16)
    found["tensors"] *= 2  # type: ignore[operator]
    with pytest.raises(ValueError, match="w is there twice, expected each tensor once"):
        parse_entries(found, 7, 77)
    for wrong in (True, 1.0, -1, 1 << 63, "1", None):
        with pytest.raises(ValueError, match=f"expected a size, found {wrong!r}"):
            whole_number(wrong)
