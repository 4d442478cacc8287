"""Predicted reads: equal to the blocks that the batches of every rank have data of."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from support.corpora import write_corpus


class Files:
    """Samples in files of given numbers of samples, 8 bytes each."""

    independent_rows = True

    def __init__(self, *lengths: int) -> None:
        self.lengths = np.array(lengths)
        self.ends = np.cumsum(self.lengths)
        self.block_bytes = 8 * self.lengths
        self.fingerprint = {"files": repr(lengths)}

    def __len__(self) -> int:
        return int(self.ends[-1])

    def gather(self, indices: Any, out: Any = None) -> dict[str, Any]:
        return {"x": np.array(indices)}

    def blocks_of(self, samples: Any) -> tuple[Any, Any]:
        blocks = np.searchsorted(self.ends, samples, side="right")
        return np.arange(len(samples)), blocks


def least_recently_used(steps: list[list[int]], sizes: Any, most: int | None) -> tuple[int, int]:
    """Model of a rank that keeps the blocks it used last: (blocks read, bytes read)."""
    kept: list[int] = []
    reads = total = 0
    for blocks in steps:
        for block in sorted(set(blocks)):
            if block in kept:
                kept.remove(block)
            else:
                reads, total = reads + 1, total + int(sizes[block])
            kept.append(block)
            while most is not None and sum(int(sizes[b]) for b in kept) > most and len(kept) > 1:
                kept.pop(0)
    return reads, total


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_reads_are_those_of_the_batches(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=8))
    source = Files(*lengths)
    order: Any = data.draw(
        st.sampled_from(
            [
                wd.Sequential,
                wd.Permutation,
                partial(wd.BlockPermutation, block_size=4, blocks_in_buffer=2),
                partial(wd.Lanes, lanes=4, unit=2, order=wd.Sequential),
            ]
        )
    )
    batch = data.draw(st.integers(1, min(4, len(source))))
    world = data.draw(st.integers(1, 5))
    most = data.draw(st.one_of(st.none(), st.integers(0, 200)))
    loader = wd.Loader(source, order=order, seed=3, batch_size=batch)
    epoch = data.draw(st.integers(0, 2))
    loader.load_state_dict({**loader.state_dict(), "position": epoch * len(source)})
    plan = loader.explain_io(world_size=world, resident_bytes=most)
    for rank in range(world):
        one = wd.Loader(source, order=order, seed=3, batch_size=batch, rank=rank, world_size=world)
        one.load_state_dict({**loader.state_dict(), "legs": []})
        blocks = [source.blocks_of(b["x"].numpy())[1].tolist() for b in one]
        assert len(blocks) == plan.steps
        expected = least_recently_used(blocks, source.block_bytes, most)
        assert (plan.reads[rank], plan.bytes_read[rank]) == expected
    assert plan.data_bytes == 8 * len(source)
    assert plan.ratio * plan.data_bytes == pytest.approx(sum(plan.bytes_read.values()))


def corpus(folder: Path) -> wd.Documents:
    """Return 12 shards of 5 documents."""
    shards = {
        f"c4/x.part{part}": [[part] * (3 + (part * 7 + doc) % 9) for doc in range(5)]
        for part in range(12)
    }
    return wd.Documents(write_corpus(folder, shards))


@pytest.mark.parametrize(
    "options", [{}, {"order": "mixed", "mixed_shards": 2}, {"padded": True}], ids=str
)
def test_shards_of_packed_sequences(tmp_path: Path, options: dict[str, Any]) -> None:
    documents = corpus(tmp_path)
    packed = wd.PackedSequences(documents, sequence_length=7, eos=9, **options)
    for rank in range(2):
        loader = wd.Loader(packed, batch_size=3, seed=5, rank=rank, world_size=2)
        plan = loader.explain_io()
        blocks = [
            [documents.shard_index(*piece[:2]) for row in loader.documents(step) for piece in row]
            for step in range(len(loader))
        ]
        sizes = documents.shard_bytes
        expected = least_recently_used(blocks, sizes, None)
        assert (plan.reads[rank], plan.bytes_read[rank]) == expected
        tight = loader.explain_io(resident_bytes=int(sizes.max()))
        expected = least_recently_used(blocks, sizes, int(sizes.max()))
        assert (tight.reads[rank], tight.bytes_read[rank]) == expected
    files = sorted((tmp_path / "dataset=c4").iterdir(), key=lambda path: int(path.stem[6:]))
    assert packed.block_bytes.tolist() == [path.stat().st_size for path in files]


def test_lanes_read_each_shard_on_one_rank_and_resume_at_another_world_size(tmp_path: Path) -> None:
    packed = wd.PackedSequences(corpus(tmp_path), sequence_length=2, eos=9)
    lanes: Any = partial(wd.Lanes, lanes=4, unit=2, order=wd.Sequential)
    world = [wd.Loader(packed, order=lanes, batch_size=4, rank=r, world_size=2) for r in range(2)]
    apart, together = (
        world[0].explain_io(),
        wd.Loader(packed, batch_size=4).explain_io(world_size=2),
    )
    assert together.ratio > 1.9
    # Three borders of lanes, and the last step of the epoch.
    assert sum(apart.reads.values()) <= 12 + 3 + 2
    served = [batch["inputs"] for loader in world for batch in loader]
    alone = wd.Loader(packed, order=lanes, batch_size=8)
    expected = np.concatenate([batch["inputs"].numpy() for batch in alone])
    found = np.concatenate([rows.numpy() for rows in served])
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.tolist()))


def test_parts_of_a_mixture_have_blocks_of_their_own() -> None:
    parts: dict[str, Any] = {"a": (Files(5, 5), 0.5), "b": (Files(4, 4, 4), 0.5)}
    mixture = wd.Mixture(parts, seed=1)
    assert mixture.block_bytes.tolist() == [40, 40, 32, 32, 32]
    rows, blocks = mixture.blocks_of(np.arange(12))
    samples = mixture.samples(np.arange(12))
    ends = [np.array([5, 10]), np.array([4, 8, 12])]
    for row, block in zip(rows, blocks, strict=True):
        part, sample = samples[row].tolist()
        assert block == 2 * part + np.searchsorted(ends[part], sample, side="right")
    loader = wd.Loader(mixture, batch_size=2)
    with pytest.raises(ValueError, match="`steps` must be given: Mixture has no epochs"):
        loader.explain_io()
    assert loader.explain_io(steps=3).steps == 3
    assert wd.Loader(mixture, batch_size=2, steps_per_epoch=4).explain_io().steps == 4


def test_blocks_of_a_source_that_grows_follow_those_before() -> None:
    stream = wd.Stream(Files(5, 5), order=wd.Sequential, grown=[(10, Files(5, 5, 3))])
    assert stream.block_bytes.tolist() == [40, 40, 40, 40, 24]
    rows, blocks = stream.blocks_of([0, 9, 10, 22])
    assert rows.tolist() == [0, 1, 2, 3]
    assert blocks.tolist() == [0, 1, 2, 4]


def test_errors(tmp_path: Path) -> None:
    class Bare:
        fingerprint = {"bare": 1}  # noqa: RUF012

        def __len__(self) -> int:
            return 8

        def gather(self, indices: Any, out: Any = None) -> dict[str, Any]:
            return {"x": np.array(indices)}

    with pytest.raises(TypeError, match="Bare"):
        wd.Loader(Bare(), batch_size=2).explain_io()
    loader = wd.Loader(Files(8), batch_size=2)
    with pytest.raises(ValueError, match="`rank` must be below `world_size` = 2, got 2"):
        loader.explain_io(world_size=2, ranks=[2])
    assert loader.explain_io(batch_size=9).steps == 1
    packed = wd.PackedSequences(corpus(tmp_path), sequence_length=4, order="global")
    with pytest.raises(ValueError, match="not in order='global'"):
        wd.Loader(packed, batch_size=2).explain_io()


def read_of_one(shares: dict[str, float], lanes: int | None) -> float:
    """Return bytes that 8 ranks read of a mixture, over those that one rank reads in its place."""
    draw = np.random.default_rng(0)
    files = {name: Files(*draw.integers(20, 60, count)) for name, count in SHARDS.items()}
    parts: dict[str, Any] = {}
    for name, share in shares.items():
        order: Any = wd.Sequential
        if lanes is not None:
            unit = max(1, round(share * 512 / lanes))
            order = partial(wd.Lanes, lanes=lanes, unit=unit, order=wd.Sequential)
        parts[name] = (wd.Stream(files[name], order=order), share)
    mixture, steps = wd.Mixture(parts), sum(map(len, files.values())) // 512
    many = wd.Loader(mixture, batch_size=64).explain_io(world_size=8, steps=steps)
    alone = wd.Loader(mixture, batch_size=512).explain_io(world_size=1, steps=steps)
    return sum(many.bytes_read.values()) / sum(alone.bytes_read.values())


SHARDS = {"a": 2000, "b": 1500, "c": 300}


def read_in_lanes(shares: dict[str, float], lanes: int, world: int, batch: int) -> float:
    """Return the same for a mixture in lanes, in units of 512 // lanes."""
    draw = np.random.default_rng(0)
    files = {name: Files(*draw.integers(20, 60, count)) for name, count in SHARDS.items()}
    parts: dict[str, Any] = {}
    for name, share in shares.items():
        order: Any = partial(wd.Lanes, lanes=lanes, order=wd.Sequential)
        parts[name] = (wd.Stream(files[name], order=order), share)
    mixture = wd.Mixture(parts, lanes=lanes, unit=512 // lanes)
    steps = sum(map(len, files.values())) // (world * batch)
    many = wd.Loader(mixture, batch_size=batch).explain_io(world_size=world, steps=steps)
    alone = wd.Loader(mixture, batch_size=512).explain_io(
        world_size=1, steps=steps * world * batch // 512
    )
    return sum(many.bytes_read.values()) / sum(alone.bytes_read.values())


@pytest.mark.parametrize(
    "shares",
    [{"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 0.5217, "b": 0.3917, "c": 0.0866}, dict(SHARDS)],
    ids=str,
)
def test_ranks_of_a_mixture_in_lanes_read_their_own_for_any_shares(shares: Any) -> None:
    assert read_in_lanes(shares, 8, 8, 64) < 1.2
    assert read_in_lanes(shares, 64, 8, 64) < 1.1
    assert read_in_lanes(shares, 64, 32, 16) < 1.2
    # Another step than lanes * unit, or a number of ranks that does not divide the lanes: more.
    assert 1.5 < read_in_lanes(shares, 64, 8, 60) < 8
    assert 1.5 < read_in_lanes(shares, 64, 5, 64) < 5


def test_ranks_of_a_mixture_read_lanes_of_their_own_where_units_are_whole() -> None:
    whole = {"a": 0.5, "b": 0.25, "c": 0.25}
    assert read_of_one(whole, None) > 2.5
    assert read_of_one(whole, 8) < 1.25
    assert read_of_one(whole, 64) < 1.1
    assert read_of_one({"a": 0.6, "b": 0.3, "c": 0.1}, 64) > 2


def unchanged(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    return batch


@pytest.mark.parametrize("mixed", [False, True])
def test_a_function_of_batches_reads_what_its_stream_reads(mixed: bool) -> None:
    stream: Any = wd.Stream(Files(5, 5, 3), order=wd.Permutation, seed=2)
    if mixed:
        stream = wd.Mixture({"a": (stream, 0.5), "b": (Files(4, 4), 0.5)})
    mapped = stream.map(unchanged)
    plain = wd.Loader(stream, batch_size=2).explain_io(steps=3, world_size=2)
    assert wd.Loader(mapped, batch_size=2).explain_io(steps=3, world_size=2) == plain
    nothing = wd.Stream(windows_in_memory()).map(unchanged)
    with pytest.raises(TypeError, match="of a table in memory read no blocks"):
        wd.Loader(nothing, batch_size=2).explain_io()


def windows_in_memory() -> wd.Windows:
    return wd.Windows(wd.Table.from_columns({"x": np.arange(9.0)}), context_length=2)
