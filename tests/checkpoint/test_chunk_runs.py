"""Tests of runs of chunks: each needed chunk is read once, in groups of limited size."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
import torch

from windeck.checkpoint.format.boxes import Box, intersection, shape_of, whole
from windeck.checkpoint.format.entries import TensorEntry, TensorPart
from windeck.checkpoint.read import fetching as module
from windeck.checkpoint.read.fetching import ChunkRun, chunk_runs, group_runs


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
    direct = draw.choice([False, True])
    for run in chunk_runs({"w": entry}, [("w", [target], box)], direct=direct):
        assert (run.name, run.dtype, run.box, run.items) == ("w", torch.float32, wanted, items)
        assert run.place is None  # small ones are not read to their place
        found[run.part.item] += range(run.first, run.stop)
        sizes = [run.bytes_of(number) for number in range(run.first, run.stop)]
        assert max(sizes) <= run.chunk_bytes <= 4 * items
    for part in entry.parts:
        assert found[part.item] == sorted(touching(part, items, wanted))


def test_a_chunk_lies_in_the_target_where_its_elements_belong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For rows that are cut in three, into targets of rows that are cut elsewhere."""
    monkeypatch.setattr(module, "LARGE_BYTES", 1)
    saved = torch.arange(70.0).view(10, 7)
    boxes: list[Box] = [((0, 3), (0, 7)), ((3, 4), (0, 7)), ((4, 10), (0, 7))]
    entry = entry_of(boxes, (10, 7), 20)
    for first, stop in [(0, 10), (2, 5), (3, 4), (9, 10)]:
        target = torch.full((stop - first, 7), torch.nan)
        job = ("w", [target], ((first, stop), (0, 7)))
        for run in chunk_runs({"w": entry}, [job], direct=True):
            flat = saved[slice(*run.part.box[0])].reshape(-1)
            for number in range(run.first, run.stop):
                chunk = flat[number * 5 :][:5].numpy().tobytes()
                assert run.bytes_of(number) == len(chunk)
                memory = run.memory(number)
                if memory is None:  # not all of it is wanted
                    run.write(number, memoryview(bytearray(chunk)))
                else:
                    memory[:] = chunk
        assert torch.equal(target, saved[first:stop])


def test_no_place_for_two_targets_or_another_dtype_or_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 1)
    entry = entry_of([((0, 4), (0, 6))], (4, 6), 40)
    plain = torch.zeros(4, 6)
    jobs: list[tuple[list[torch.Tensor], Box | None, bool]] = [
        ([plain], None, True),
        ([plain, plain.clone()], None, False),
        ([plain.double()], None, False),
        ([torch.zeros(6, 4).t()], None, False),
        ([torch.zeros(4, 3)], ((0, 4), (0, 3)), False),
    ]
    for targets, box, placed in jobs:
        (run,) = chunk_runs({"w": entry}, [("w", targets, box)], direct=True)
        assert (run.place is not None) == placed
        assert run.memory(0) is None or placed
    (run,) = chunk_runs({"w": entry}, [("w", [plain], None)], direct=False)
    assert run.place is None


def any_runs(draw: random.Random) -> list[ChunkRun]:
    made = []
    for i in range(draw.randrange(40)):
        items = draw.choice([1, 10, 1000, 20_000, 300_000])
        box = ((0, draw.choice([1, 9, 30_000, 1_000_000])),)
        size = math.prod(shape_of(box))
        first = draw.randrange(-(-size // items))
        stop = draw.randint(first + 1, min(-(-size // items), first + 3000))
        part = TensorPart(box, 0, i, 1, 2)
        made.append(ChunkRun(f"{i}", torch.float32, [], box, part, first, stop, items, size, None))
    return made


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("direct", [False, True])
def test_groups_have_all_chunks_in_order_and_are_small(seed: int, direct: bool) -> None:
    given = any_runs(random.Random(seed))
    found: dict[bool, list[tuple[str, int]]] = {True: [], False: []}
    for large, group in group_runs(given, direct=direct):
        chunks = [(run, number) for run in group for number in range(run.first, run.stop)]
        assert all((direct and run.chunk_bytes >= 65_536) == large for run, _ in chunks)
        most = module.LARGE_GROUP_BYTES if large else module.GROUP_BYTES
        size = sum(run.bytes_of(number) for run, number in chunks)
        assert len(chunks) == 1 or (chunks and size <= most)
        assert large or len(chunks) <= 1100
        found[large] += [(run.name, number) for run, number in chunks]
    for large in (False, True):
        assert found[large] == [
            (run.name, number)
            for run in given
            if (direct and run.chunk_bytes >= 65_536) == large
            for number in range(run.first, run.stop)
        ]


def test_chunks_of_full_groups_are_not_left_for_a_small_one() -> None:
    """A tensor of a little more than a group: its last chunk goes with the next one's first."""
    box = ((0, 33 << 18),)
    part = TensorPart(box, 0, 0, 1, 2)
    given = [
        ChunkRun(f"{i}", torch.float32, [], box, part, 0, 33, 1 << 18, 33 << 18, None)
        for i in range(15)
    ]
    counts = [
        sum(run.stop - run.first for run in group) for _, group in group_runs(given, direct=True)
    ]
    assert counts == [32] * 15 + [15]


def test_a_large_group_comes_last() -> None:
    """While one thread reads the large group, the other reads the small ones."""
    given = []
    for i, size in enumerate([100, 1 << 18, 200, 3 << 18]):
        box = ((0, size),)
        part = TensorPart(box, 0, i, 1, 2)
        run = ChunkRun(
            f"{i}", torch.float32, [], box, part, 0, -(-size // (1 << 18)), 1 << 18, size, None
        )
        given.append(run)
    found = [
        (large, [run.name for run in group]) for large, group in group_runs(given, direct=True)
    ]
    assert found == [(False, ["0", "2"]), (True, ["1", "3"])]


def test_common_is_what_touching_means() -> None:
    """The model of the tests above agrees with the box's own arithmetic."""
    part = TensorPart(((2, 5), (1, 4)), 0, 0, 1, 2)
    for wanted in [((0, 3), (0, 2)), ((4, 9), (3, 9)), ((0, 2), (0, 9))]:
        assert bool(touching(part, 1, wanted)) == (intersection(part.box, wanted) is not None)
