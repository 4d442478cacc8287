"""Balanced windows that are dealt in blocks: the model, whole cycles, and few reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from support.streamed_tables import arrow_table, assert_same, read_both, write_files
from windeck._core import hash_words
from windeck.windows import BalancedWindows


def windows_of(lengths: list[int]) -> wd.Windows:
    """Return windows of 3 rows; the value of each row is its number in the table."""
    offsets = np.cumsum([0, *lengths])
    table = wd.Table.from_columns({"x": np.arange(float(offsets[-1]))}, offsets=offsets)
    return wd.Windows(table, context_length=3)


def model(
    lengths: list[int], counts: list[int], offsets: list[int], in_group: int, seed: int, epoch: int
) -> list[int]:
    """Return the windows of an epoch, from the definition, by loops."""
    sizes = [max(length - 2, 0) for length in lengths]
    starts = np.cumsum([0, *sizes]).tolist()
    borders = sorted({*starts, *offsets})
    pieces = list(pairwise(borders))

    def block_of(window: int) -> int:
        return max(block for block, first in enumerate(offsets[:-1]) if first <= window)

    served = []
    for series, count in enumerate(counts):
        mine = [
            number
            for number, (first, _) in enumerate(pieces)
            if starts[series] <= first < starts[series + 1]
        ]
        for visit in range(epoch * count, (epoch + 1) * count):
            cycle, place = divmod(visit, sizes[series])
            key = hash_words(hash_words(seed, 13), series)
            order = wd.Permutation(len(mine), seed=key, epoch=cycle)
            for number in (mine[order[j]] for j in range(len(mine))):
                first, stop = pieces[number]
                if place < stop - first:
                    key = hash_words(hash_words(seed, 12), number)
                    local = wd.Permutation(stop - first, seed=key, epoch=cycle)[place]
                    served.append((block_of(first), series, visit, first + local))
                    break
                place -= stop - first
    served = sorted(served, key=lambda one: one[0])
    # Within a block: by series, cycle, and place in the cycle's order, as they were listed.
    blocks = sorted({block for block, *_ in served})
    sums = np.cumsum([0, *(sum(one[0] == block for one in served) for block in blocks)])
    dealt = wd.BlockPermutation(
        len(served),
        block_offsets=sums.astype(np.int64),
        blocks_in_buffer=in_group,
        seed=hash_words(seed, 11),
        epoch=epoch,
    )
    return [int(served[slot][3]) for slot in dealt[:]]


def served(balanced: BalancedWindows[wd.Windows], epoch: int, seed: int) -> list[int]:
    numbers = balanced.at_epoch(epoch, seed=seed).window_numbers(np.arange(len(balanced)))
    return [int(number) for number in numbers]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 30), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 5),
    in_group=st.integers(1, 4),
    data=st.data(),
)
def test_epochs_equal_the_model(
    lengths: list[int], seed: int, epoch: int, in_group: int, data: Any
) -> None:
    counts = [data.draw(st.integers(0, 40)) for _ in lengths]
    counts[0] = max(counts[0], 1)
    total = sum(length - 2 for length in lengths)
    cuts = data.draw(st.sets(st.integers(1, max(total - 1, 1)), max_size=6)) if total > 1 else set()
    offsets = [0, *sorted(cuts), total]
    balanced = windows_of(lengths).balanced(
        counts, epoch_length=sum(counts), blocks=(np.array(offsets), in_group)
    )
    assert balanced.counts.tolist() == counts
    assert served(balanced, epoch, seed) == model(lengths, counts, offsets, in_group, seed, epoch)


OPTIONS: dict[str, Any] = {
    "context_length": 8,
    "prediction_length": 4,
    "target_columns": ["load"],
    "known_covariates": ["wind"],
}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[wd.Windows, wd.Windows]:
    """Return windows in memory and of a streamed table, of more groups than are resident."""
    files = write_files(
        arrow_table([700, 150, 1300, 400]), tmp_path, [600, 610, 1340], 16, "parquet"
    )
    memory, streamed = read_both(files, group_bytes=4000)
    return wd.Windows(memory, **OPTIONS), wd.Windows(streamed, **OPTIONS)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_are_those_in_memory_and_each_group_is_read_once(
    pair: tuple[wd.Windows, wd.Windows], joined: bool, ranks: int
) -> None:
    memory, streamed = (windows.joined() if joined else windows for windows in pair)
    source = streamed.balanced()
    assert source.blocks is not None
    same = memory.balanced(blocks=source.blocks)
    groups = streamed.table.groups  # type: ignore[attr-defined]
    before, blocks = groups.reads, len(source.blocks[0]) - 1
    assert blocks > 4 * source.blocks[1]
    for rank in range(ranks):
        options: dict[str, Any] = {"seed": 3, "rank": rank, "world_size": ranks, "batch_size": 16}
        loaders = [wd.Loader(one, **options) for one in (source, same)]
        for _ in range(2):
            for one, other in zip(*loaders, strict=True):
                assert_same(one, other)
    epochs = 2 * ranks
    # The next epoch's first group may be read ahead.
    assert groups.reads - before <= epochs * -(-blocks // source.blocks[1]) + epochs


@pytest.mark.parametrize("joined", [False, True])
def test_windows_in_groups_are_those_in_memory(
    pair: tuple[wd.Windows, wd.Windows], joined: bool
) -> None:
    memory, streamed = (windows.joined() if joined else windows for windows in pair)
    groups = streamed.table.groups  # type: ignore[attr-defined]
    before = groups.reads
    order = streamed.default_order
    loaders = [wd.Loader(one, batch_size=16, seed=3, order=order) for one in (streamed, memory)]
    for one, other in zip(*loaders, strict=True):
        assert_same(one, other)
    offsets, in_group = order.keywords.values()  # type: ignore[attr-defined]
    assert groups.reads - before <= -(-(len(offsets) - 1) // in_group) + 1


def test_a_loader_goes_on_with_another_batch_size(pair: tuple[wd.Windows, wd.Windows]) -> None:
    source = pair[1].balanced()
    same = pair[0].balanced(blocks=source.blocks)
    expected = [row for batch in wd.Loader(same, batch_size=1, seed=3) for row in batch["start"]]
    first = wd.Loader(source, batch_size=7, seed=3)
    rows = [row for _, batch in zip(range(11), first, strict=False) for row in batch["start"]]
    second = wd.Loader(same, batch_size=5, seed=3)
    third = wd.Loader(source, batch_size=5, seed=3)
    third.load_state_dict(first.state_dict())
    rows += [row for batch in third for row in batch["start"]]
    assert rows == expected
    # A table in memory has another fingerprint.
    with pytest.raises(ValueError, match=r"balanced|files|contents"):
        second.load_state_dict(first.state_dict())


def test_blocks_are_part_of_the_fingerprint_and_checked(
    pair: tuple[wd.Windows, wd.Windows],
) -> None:
    memory, streamed = pair
    blocks = streamed.balanced().blocks
    assert blocks is not None
    plain = memory.balanced()
    assert plain.blocks is None
    assert "balanced.blocks" not in plain.fingerprint
    dealt = memory.balanced(blocks=blocks)
    assert dealt.fingerprint != plain.fingerprint
    assert dealt.fingerprint != memory.balanced(blocks=(blocks[0], blocks[1] + 1)).fingerprint
    with pytest.raises(TypeError, match="dealt in blocks have no order on a device"):
        dealt.to("cpu")
    with pytest.raises(TypeError, match="`blocks` must be a pair"):
        memory.balanced(blocks=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="offsets"):
        memory.balanced(blocks=(blocks[0][:-1], blocks[1]))
    with pytest.raises(ValueError, match="the blocks of a group"):
        memory.balanced(blocks=(blocks[0], 0))
