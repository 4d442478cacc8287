"""Tests of runs of chunks: each needed chunk is read once, in groups of limited size."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
import torch

from support.internals import (
    FETCH_PORTION_BYTES,
    ChunkRange,
    chunk_ranges,
    intersection,
    split_ranges,
)
from windeck.checkpoint.format import Box, TensorEntry, TensorPart, shape_of, whole


def parts_of(shape: Sequence[int], cuts: Sequence[int]) -> list[Box]:
    """Return boxes that tile a tensor, with each dimension cut into the given number of parts."""
    ranges = []
    for size, count in zip(shape, cuts, strict=True):
        ends = [size * i // count for i in range(count + 1)]
        ranges.append(list(itertools.pairwise(ends)))
    return list(itertools.product(*ranges))


def entry_of(boxes: Sequence[Box], shape: Sequence[int], chunk_bytes: int) -> TensorEntry:
    parts = tuple(TensorPart(box, 0, i, 1, 2) for i, box in enumerate(boxes))
    return TensorEntry("w", "float32", tuple(shape), parts, chunk_bytes)


def touching(part: TensorPart, items: int, wanted: Box) -> set[int]:
    """Return the numbers of the chunks that hold an element of a box, found element by element."""
    found = set()
    for place, index in enumerate(itertools.product(*(range(a, b) for a, b in part.box))):
        if all(a <= i < b for i, (a, b) in zip(index, wanted, strict=True)):
            found.add(place // items)
    return found


@pytest.mark.parametrize("seed", range(150))
def test_each_chunk_with_something_of_the_box_is_in_one_run(seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.randint(1, 9) for _ in range(draw.randrange(4))]
    boxes = parts_of(shape, [draw.randint(1, min(3, size)) for size in shape])
    items = draw.choice([1, 2, 5, 1000])
    entry = entry_of(boxes, shape, 4 * items)
    ends = [sorted(draw.sample(range(size + 1), 2)) for size in shape]
    box = draw.choice([None, tuple((a, b) for a, b in ends)])
    wanted = whole(shape) if box is None else box
    target = torch.zeros(shape_of(wanted))
    found: dict[int, list[int]] = {part.item: [] for part in entry.parts}
    for span in chunk_ranges({"w": entry}, [("w", [target], box)]):
        assert (span.name, span.dtype, span.box, span.items) == ("w", torch.float32, wanted, items)
        found[span.part.item] += range(span.first, span.stop)
        sizes = [span.bytes_of(number) for number in range(span.first, span.stop)]
        assert max(sizes) <= span.chunk_bytes <= 4 * items
    for part in entry.parts:
        assert found[part.item] == sorted(touching(part, items, wanted))


def test_elements_of_chunks_go_where_they_belong() -> None:
    """For rows that are cut in three, into targets of rows that are cut elsewhere."""
    saved = torch.arange(70.0).view(10, 7)
    boxes: list[Box] = [((0, 3), (0, 7)), ((3, 4), (0, 7)), ((4, 10), (0, 7))]
    entry = entry_of(boxes, (10, 7), 20)
    for first, stop in [(0, 10), (2, 5), (3, 4), (9, 10), (4, 4)]:
        for columns in [(0, 7), (2, 5)]:
            shape = (stop - first, columns[1] - columns[0])
            plain, doubled = torch.full(shape, torch.nan), torch.full(shape, torch.nan).double()
            turned = torch.full(shape[::-1], torch.nan).t()
            targets = [plain, doubled, turned]
            for span in chunk_ranges({"w": entry}, [("w", targets, ((first, stop), columns))]):
                flat = saved[slice(*span.part.box[0])].reshape(-1)
                for number in range(span.first, span.stop):
                    chunk = flat[number * 5 :][:5].numpy().tobytes()
                    assert span.bytes_of(number) == len(chunk)
                    span.write(number, memoryview(chunk))
            expected = saved[first:stop, slice(*columns)]
            assert all(torch.equal(target.float(), expected) for target in targets)


def any_ranges(draw: random.Random) -> list[ChunkRange]:
    made = []
    for i in range(draw.randrange(40)):
        items = draw.choice([1, 10, 1000, 20_000, 300_000])
        box = ((0, draw.choice([1, 9, 30_000, 1_000_000])),)
        size = math.prod(shape_of(box))
        first = draw.randrange(-(-size // items))
        stop = draw.randint(first + 1, min(-(-size // items), first + 3000))
        part = TensorPart(box, 0, i, 1, 2)
        made.append(ChunkRange(f"{i}", torch.float32, [], box, part, first, stop, items, size))
    return made


@pytest.mark.parametrize("seed", range(60))
def test_groups_have_all_chunks_in_order_and_are_small(seed: int) -> None:
    given = any_ranges(random.Random(seed))
    found: list[tuple[str, int]] = []
    for portion in split_ranges(given):
        chunks = [(span, number) for span in portion for number in range(span.first, span.stop)]
        size = sum(span.bytes_of(number) for span, number in chunks)
        assert len(chunks) == 1 or (chunks and size <= FETCH_PORTION_BYTES)
        assert len(chunks) <= 33_000
        found += [(span.name, number) for span, number in chunks]
    assert found == [
        (span.name, number) for span in given for number in range(span.first, span.stop)
    ]


def test_chunks_of_full_groups_are_not_left_for_a_small_one() -> None:
    """A tensor of a little more than a portion: its last chunk goes with the next one's first."""
    box = ((0, 33 << 18),)
    part = TensorPart(box, 0, 0, 1, 2)
    given = [
        ChunkRange(f"{i}", torch.float32, [], box, part, 0, 33, 1 << 18, 33 << 18)
        for i in range(15)
    ]
    counts = [sum(span.stop - span.first for span in portion) for portion in split_ranges(given)]
    assert counts == [32] * 15 + [15]


def test_common_is_what_touching_means() -> None:
    """The model of the tests above agrees with the box's own arithmetic."""
    part = TensorPart(((2, 5), (1, 4)), 0, 0, 1, 2)
    for wanted in [((0, 3), (0, 2)), ((4, 9), (3, 9)), ((0, 2), (0, 9))]:
        assert bool(touching(part, 1, wanted)) == (intersection(part.box, wanted) is not None)
