"""Tests of ranges of chunks: each needed chunk is read once, in calls of limited size."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.format import Box, TensorEntry, TensorPart, keys, slices, whole
from windeck.checkpoint.stores import MappingStore, Store

#: The most bytes of chunks in a call, where the store takes any number of them.
CALL_BYTES = (32 << 20) + (128 << 10)


class Recording:
    """A store that records the chunks of each call of `get_many`: writer, item and number."""

    def __init__(self, store: Store) -> None:
        self._store, self.calls = store, list[list[tuple[int, ...]]]()

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        parsed = [keys.parse("windeck", name) for name in names]
        self.calls.append([found[1][1:] for found in parsed if found and found[0] == "t"])
        return self._store.get_many(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def parts_of(shape: Sequence[int], cuts: Sequence[int]) -> list[Box]:
    """Return boxes that tile a tensor, with each dimension cut into the given number of parts."""
    ranges = []
    for size, count in zip(shape, cuts, strict=True):
        ends = [size * i // count for i in range(count + 1)]
        ranges.append(list(itertools.pairwise(ends)))
    return list(itertools.product(*ranges))


def partition(tensor: torch.Tensor, box: Box, shape: Sequence[int]) -> Partition:
    return Partition(tensor, offset=[first for first, _ in box], shape=shape)


def save_parts(
    store: Store, tensor: torch.Tensor, boxes: Sequence[Box], chunk_bytes: int, names: str = "w"
) -> TensorEntry:
    """Save each box of a tensor by a writer of its own; return its entry."""
    plan = checkpoint.begin(store, step=1, writers=len(boxes), chunk_bytes=chunk_bytes)
    for writer, box in enumerate(boxes):
        part = partition(tensor[slices(box)], box, tensor.shape)
        model = dict.fromkeys(names, part)
        checkpoint.save_shard(store, plan, writer=writer, model=model)
    checkpoint.merge(store, plan)
    with checkpoint.open(store) as found:
        (entry,) = found.entries.values()
    assert entry.chunk_bytes == chunk_bytes
    return entry


def touching(part: TensorPart, items: int, wanted: Box) -> Iterator[tuple[int, int, int]]:
    """Yield for each element of a box in a part the chunk that holds it."""
    for place, index in enumerate(itertools.product(*(range(a, b) for a, b in part.box))):
        if all(a <= i < b for i, (a, b) in zip(index, wanted, strict=True)):
            yield part.writer, part.item, place // items


def assert_read_once(recording: Recording, entry: TensorEntry, items: int, wanted: Box) -> None:
    """Assert that every chunk with an element of a box was read once, and no other one."""
    expected = {chunk for part in entry.parts for chunk in touching(part, items, wanted)}
    assert Counter(itertools.chain(*recording.calls)) == dict.fromkeys(expected, 1)


@pytest.mark.parametrize("seed", range(150))
def test_each_chunk_with_something_of_the_box_is_read_once(seed: int, memory: Store) -> None:
    draw = random.Random(seed)
    shape = [draw.randint(1, 9) for _ in range(draw.randrange(4))]
    boxes = parts_of(shape, [draw.randint(1, min(3, size)) for size in shape])
    dtype, items = draw.choice(
        [(torch.complex128, 1), (torch.float64, 2), (torch.float32, 5), (torch.float32, 1000)]
    )
    saved = torch.arange(math.prod(shape)).to(dtype).view(shape)
    entry = save_parts(memory, saved, boxes, dtype.itemsize * items)
    ends = [sorted(draw.sample(range(size + 1), 2)) for size in shape]
    wanted = draw.choice([whole(shape), tuple((a, b) for a, b in ends)])
    expected, recording = saved[slices(wanted)], Recording(memory)
    target = torch.zeros_like(expected)
    model = {"w": target if wanted == whole(shape) else partition(target, wanted, shape)}
    checkpoint.load(recording, model=model)
    assert torch.equal(target, expected)
    assert_read_once(recording, entry, items, wanted)


@pytest.mark.parametrize("cuts", [*itertools.product(range(1, 4), repeat=2)])
def test_every_box_of_a_small_tensor(cuts: tuple[int, int], memory: Store) -> None:
    """Of 3 x 3 elements, one in each chunk, cut into parts at all places."""
    saved = torch.arange(9).to(torch.complex128).view(3, 3)
    entry = save_parts(memory, saved, parts_of((3, 3), cuts), 16)
    recording: Any = Recording(memory)
    with checkpoint.open(recording) as found:
        sides = [(a, b) for a in range(4) for b in range(a, 4)]
        for wanted in itertools.product(sides, repeat=2):
            recording.calls.clear()
            assert torch.equal(found.slice("model/w", slices(wanted)), saved[slices(wanted)])
            assert_read_once(recording, entry, 1, wanted)


def test_elements_of_chunks_go_where_they_belong(memory: Store) -> None:
    """For rows that are cut in three, into three targets of rows that are cut elsewhere."""
    saved = torch.arange(70.0).view(10, 7)
    boxes: list[Box] = [((0, 3), (0, 7)), ((3, 4), (0, 7)), ((4, 10), (0, 7))]
    entry = save_parts(memory, saved, boxes, 20, names="pdt")
    for rows in [(0, 10), (2, 5), (3, 4), (9, 10), (4, 4)]:
        for columns in [(0, 7), (2, 5)]:
            shape = (rows[1] - rows[0], columns[1] - columns[0])
            plain, doubled = torch.full(shape, torch.nan), torch.full(shape, torch.nan).double()
            turned = torch.full(shape[::-1], torch.nan).t()
            targets = {"p": plain, "d": doubled, "t": turned}
            box, recording = (rows, columns), Recording(memory)
            model = {name: partition(target, box, (10, 7)) for name, target in targets.items()}
            checkpoint.load(recording, model=model, cast=True)
            expected = saved[slices(box)]
            assert all(torch.equal(target.float(), expected) for target in targets.values())
            assert_read_once(recording, entry, 5, box)


def recorded_load(
    model: dict[str, torch.Tensor], chunk_bytes: int, starts: Sequence[int]
) -> tuple[list[list[tuple[int, int]]], dict[tuple[int, int], int]]:
    """Save tensors of bytes, load each from an element on, from a store that takes large calls.

    Returns
    -------
    calls, sizes
        Of each call the numbers of its tensors and chunks; and the bytes of each chunk, in order.
    """
    facts = MappingStore({}).facts._replace(read_bytes=1 << 40)
    recording: Any = Recording(MappingStore({}, facts=facts))
    checkpoint.save(recording, step=1, chunk_bytes=chunk_bytes, model=model)
    targets = {
        name: partition(torch.ones_like(tensor[start:]), ((start, len(tensor)),), tensor.shape)
        for (name, tensor), start in zip(model.items(), starts, strict=True)
    }
    checkpoint.load(recording, model=targets)
    assert not any(part.tensor.any() for part in targets.values())
    sizes = {}
    with checkpoint.open(recording) as found:
        for entry, start in zip(found.entries.values(), starts, strict=True):
            (length,), (part,), step = entry.shape, entry.parts, entry.chunk_bytes
            for number in range(start // step, -(-length // step)):
                sizes[part.item, number] = min(step, length - number * step)
    calls = [[(item, number) for _, item, number in call] for call in recording.calls if call]
    order = {chunk: i for i, chunk in enumerate(sizes)}
    return sorted(calls, key=lambda call: order[call[0]]), sizes  # of several threads


def assert_all_in_small_calls(
    calls: list[list[tuple[int, int]]], sizes: dict[tuple[int, int], int]
) -> None:
    for call in calls:
        assert len(call) == 1 or sum(sizes[chunk] for chunk in call) <= CALL_BYTES
        assert len(call) <= 33_000
    assert list(itertools.chain(*calls)) == list(sizes)


@pytest.mark.parametrize("seed", range(10))
def test_calls_have_all_chunks_in_order_and_are_small(seed: int) -> None:
    draw = random.Random(seed)
    chunk_bytes = draw.choice([30_000, 200_000, 1_200_000, 40_000_000])
    sizes = [draw.choice([1, 9, 30_000, 4_000_000, 50_000_000]) for _ in range(9)]
    model = {f"{i}": torch.zeros(size, dtype=torch.uint8) for i, size in enumerate(sizes)}
    starts = [draw.choice([0, draw.randrange(size)]) for size in sizes]
    assert_all_in_small_calls(*recorded_load(model, chunk_bytes, starts))


def test_calls_have_a_limited_number_of_small_chunks() -> None:
    model = {"w": torch.zeros(40_000 * 16, dtype=torch.uint8)}
    calls, sizes = recorded_load(model, 16, [0])
    assert len(sizes) == 40_000
    assert len(calls) == 2
    assert_all_in_small_calls(calls, sizes)


def test_chunks_of_full_calls_are_not_left_for_a_small_one() -> None:
    """Tensors of a little more than a call: the last chunk goes with the next tensor's first.

    Their odd number of bytes keeps the size of chunks.
    """
    model = {f"{i}": torch.zeros((33 << 20) - 1, dtype=torch.uint8) for i in range(4)}
    calls, sizes = recorded_load(model, 1 << 20, [0] * 4)
    assert [len(call) for call in calls] == [32] * 4 + [4]
    assert_all_in_small_calls(calls, sizes)
