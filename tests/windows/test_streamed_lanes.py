"""Ranks that read lanes of a streamed table: the same batches, and each group on one rank."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.internals import original, plant
from support.streamed_tables import arrow_table, assert_same, read_both, write_files

OPTIONS: dict[str, Any] = {
    "context_length": 8,
    "prediction_length": 4,
    "target_columns": ["load"],
    "known_covariates": ["wind"],
}


@pytest.fixture(scope="module", params=["parquet", "uncompressed"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    return write_files(arrow_table([400, 700, 300, 900]), folder, [500, 1500], 50, request.param)


def in_lanes(windows: wd.Windows, lanes: int, unit: int) -> Any:
    return functools.partial(wd.Lanes, lanes=lanes, unit=unit, order=windows.default_order)


@pytest.mark.parametrize(("world", "batch", "lanes", "unit"), [(2, 8, 4, 4), (4, 4, 4, 4)])
def test_ranks_in_lanes_give_the_batches_of_memory_and_read_groups_once(
    files: list[Path], world: int, batch: int, lanes: int, unit: int
) -> None:
    reads, groups = 0, 0
    for rank in range(world):
        memory, streamed = read_both(files, group_bytes=800)
        windows, expected = wd.Windows(streamed, **OPTIONS), wd.Windows(memory, **OPTIONS)
        order = in_lanes(windows, lanes, unit)
        options = {"batch_size": batch, "order": order, "rank": rank, "world_size": world}
        loaders = [wd.Loader(w, **options, prefetch=0) for w in (windows, expected)]
        for one, other in zip(*loaders, strict=True):
            assert_same(one, other)
        reads += streamed.groups.reads
        in_group = windows.default_order.keywords["blocks_in_buffer"]  # type: ignore[attr-defined]
        groups = -(-len(windows.block_bytes) // in_group)
    assert groups > 10
    # A lane may begin and end inside of a group, and the last step of an epoch is dealt otherwise.
    assert groups <= reads <= groups + lanes + 2 * world


def test_resume_in_lanes_at_another_world_size(files: list[Path]) -> None:
    memory, streamed = read_both(files, group_bytes=800)
    windows, expected = wd.Windows(streamed, **OPTIONS), wd.Windows(memory, **OPTIONS)
    order = in_lanes(windows, 4, 4)
    first = wd.Loader(windows, batch_size=16, order=order, seed=1)
    loop = iter(first)
    for _ in range(37):
        next(loop)
    for world, batch in ((2, 8), (3, 5)):
        for rank in range(world):
            options = {"batch_size": batch, "order": order, "seed": 1}
            loaders = [
                wd.Loader(w, **options, rank=rank, world_size=world) for w in (windows, expected)
            ]
            for loader in loaders:
                loader.load_state_dict(
                    {**first.state_dict(), "fingerprint": loader.stream.fingerprint}
                )
            for one, other in zip(*loaders, strict=True):
                assert_same(one, other)


def test_a_budget_for_one_lane_is_refused_for_several(files: list[Path]) -> None:
    _, streamed = read_both(files, group_bytes=800)
    told = re.search(
        r"least memory_budget is ([\d,]+)", str(wd.Windows(streamed, **OPTIONS).explain())
    )
    assert told is not None
    least = int(told[1].replace(",", ""))
    _, tight = read_both(files, group_bytes=800, memory_budget=least)
    windows = wd.Windows(tight, **OPTIONS)
    assert len(next(iter(wd.Loader(windows, batch_size=16, shuffle=True)))["past_target"]) == 16
    with pytest.raises(MemoryError, match=r"for 8 groups of 1 block with .* fewer lanes"):
        next(iter(wd.Loader(windows, batch_size=16, order=in_lanes(windows, 4, 4))))


def test_reads_are_told_beforehand(files: list[Path]) -> None:
    _, streamed = read_both(files, group_bytes=800)
    windows = wd.Windows(streamed, **OPTIONS)
    stored = sum(
        file.file.stored_bytes(name)[part]
        for file in streamed.reader.files
        for name in ("load", "wind")
        for part in range(len(file.file.part_rows))
    )
    assert windows.block_bytes.sum() == pytest.approx(stored, rel=0.1)
    rows, blocks = windows.blocks_of([5, 0, 700])
    order: Any = windows.default_order
    offsets = order.keywords["block_offsets"]
    assert rows.tolist() == [0, 1, 2]
    for block, number in zip(blocks, [5, 0, 700], strict=True):
        assert offsets[block] <= number < offsets[block + 1]
    apart = wd.Loader(windows, batch_size=4, order=in_lanes(windows, 4, 4)).explain_io(world_size=4)
    together = wd.Loader(windows, batch_size=4, shuffle=True).explain_io(world_size=4)
    assert together.ratio > 2.5
    assert sum(apart.reads.values()) < 1.6 * apart.blocks
    assert apart.ratio < together.ratio / 2
    memory, _ = read_both(files)
    with pytest.raises(TypeError, match="windows of a table in memory read no blocks"):
        wd.Loader(wd.Windows(memory, **OPTIONS), batch_size=4).explain_io()


def test_places_in_lanes_are_those_of_the_inner_order() -> None:
    from windeck.orders import inner_positions

    for size, lanes, unit in ((50, 3, 4), (48, 4, 4), (7, 10, 2), (9, 2, 50)):
        order = wd.Lanes(size, lanes=lanes, unit=unit, order=wd.Permutation, seed=2)
        inner, places, ends = inner_positions(order, np.arange(size))
        np.testing.assert_array_equal(inner.take(places), order[:])
        lane = np.arange(size) // unit % lanes
        for one in range(lanes):
            mine = places[lane == one]
            if len(mine):
                assert mine.tolist() == list(range(mine[0], mine[0] + len(mine)))
                assert set(ends[lane == one].tolist()) == {mine[0] + len(mine)}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The blocks of each group that is read."""
    found: list[tuple[int, ...]] = []
    load = original("streamed.BlockedWindows.load")

    def noted(self: Any, blocks: tuple[int, ...], *queued: Any) -> Any:
        found.append(blocks)
        return load(self, blocks, *queued)

    plant(monkeypatch, "streamed.BlockedWindows.load", noted)
    return found


@pytest.mark.parametrize(("world", "batch", "lanes", "unit"), [(2, 8, 4, 4), (4, 4, 4, 4)])
def test_no_group_is_read_that_no_window_of_a_rank_is_in(
    files: list[Path],
    world: int,
    batch: int,
    lanes: int,
    unit: int,
    read: list[tuple[int, ...]],
) -> None:
    for rank in range(world):
        _, streamed = read_both(files, group_bytes=800)
        windows = wd.Windows(streamed, **OPTIONS)
        order = in_lanes(windows, lanes, unit)
        options: dict[str, Any] = {"rank": rank, "world_size": world, "drop_last": True}
        loader = wd.Loader(windows, batch_size=batch, order=order, **options)
        samples = np.concatenate([loader.samples(step) for step in range(len(loader))])
        used = set(windows.blocks_of(samples)[1].tolist())
        read.clear()
        for _ in loader:
            pass
        # Each group once, but those at a border of two lanes of this rank, which ends one of them
        # and begins the other; and none without a window of this rank, also not after a lane.
        assert len(set(read)) > 5
        assert len(read) - len(set(read)) < lanes // world
        assert all(used.intersection(blocks) for blocks in read)
