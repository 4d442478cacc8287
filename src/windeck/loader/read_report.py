"""Prediction of the bytes that each rank will read in an epoch, computed from the order.

A source states its blocks, the units in which it is read, such as shards and row groups; see
`windeck.sources.BlockSource`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from windeck._util.text import format_bytes
from windeck.loader.sharding import Sharding
from windeck.sources import Indices
from windeck.sources.members import StreamMembers

__all__ = ["ReadReport", "count_reads"]

#: Positions whose blocks are computed at a time.
_PORTION = 1 << 16


@dataclass(frozen=True)
class ReadReport:
    """Bytes that ranks will read in an epoch, in whole blocks.

    Attributes
    ----------
    world_size, batch_size
        W and B.
    steps
        Steps of the epoch.
    blocks, data_bytes
        Number of blocks of the data, and their bytes.
    resident_bytes
        Bytes of the blocks that a rank keeps, those it used last; None for all.
    reads
        Blocks that each rank reads, by rank; a block counts again when it was dropped meanwhile.
    bytes_read
        Bytes of these blocks, by rank.

    Examples
    --------
    >>> report = ReadReport(2, 8, 10, 4, 400, None, {0: 2, 1: 3}, {0: 200, 1: 300})
    >>> report.ratio
    1.25
    >>> print(report)
    2 ranks with batches of 8, 10 steps: 500 bytes are read, 1.25x of the data (400 bytes)
      a rank reads 200 bytes to 300 bytes, in 2 to 3 of 4 blocks
    """

    world_size: int
    batch_size: int
    steps: int
    blocks: int
    data_bytes: int
    resident_bytes: int | None
    reads: dict[int, int]
    bytes_read: dict[int, int]

    @property
    def ratio(self) -> float:
        """Bytes that all ranks together read, over the bytes of the data.

        Estimated from the ranks of the report, if these are not all.
        """
        mean = sum(self.bytes_read.values()) / len(self.bytes_read)
        return mean * self.world_size / self.data_bytes

    def __str__(self) -> str:
        nbytes, reads = self.bytes_read.values(), self.reads.values()
        total = format_bytes(round(self.ratio * self.data_bytes))
        about = "" if len(nbytes) == self.world_size else "about "
        return (
            f"{self.world_size:,} ranks with batches of {self.batch_size:,}, {self.steps:,} steps: "
            f"{about}{total} are read, {self.ratio:.3g}x of the data "
            f"({format_bytes(self.data_bytes)})\n"
            f"  a rank reads {format_bytes(min(nbytes))} to {format_bytes(max(nbytes))}, in "
            f"{min(reads):,} to {max(reads):,} of {self.blocks:,} blocks"
        )


def count_reads(
    stream: StreamMembers,
    sharding: Sharding,
    start: int,
    steps: int,
    ranks: Iterable[int],
    resident_bytes: int | None,
) -> ReadReport:
    """Return what ranks read in some steps from a position on; see `Loader.explain_io`."""
    blocks_of, sizes, extra = stream.blocks_of, stream.block_bytes(), stream.bytes_behind_blocks()
    reads, bytes_read = {}, {}
    for rank in ranks:
        kept = _Resident(sizes, extra, resident_bytes)
        for positions, step_of in _positions(sharding, start, steps, rank):
            rows, blocks = blocks_of(positions)
            used = np.unique(step_of[rows] * len(sizes) + blocks)
            kept.use(used % len(sizes))
        reads[rank], bytes_read[rank] = kept.reads, kept.bytes_read
    world, batch = sharding.world_size, sharding.batch_size
    total = int(sizes.sum())
    return ReadReport(world, batch, steps, len(sizes), total, resident_bytes, reads, bytes_read)


def _positions(
    sharding: Sharding, start: int, steps: int, rank: int
) -> Iterator[tuple[Indices, Indices]]:
    """Yield positions of a rank, and the step of each counted from the first of these."""
    most = max(1, _PORTION // sharding.batch_size)
    while steps:
        start = sharding.step_start(start)
        count = sharding.full_steps(start, min(steps, most))
        if count:
            positions = sharding.positions_of_steps(start, rank, range(count))
            yield positions, np.repeat(np.arange(count), sharding.batch_size)
            start += count * sharding.step_size
        else:
            count, positions = 1, sharding.positions(start, rank)
            yield positions, np.zeros(len(positions), np.int64)
            start = sharding.step_end(start)
        steps -= count


class _Resident:
    """An LRU cache of the blocks of a rank, bounded in bytes, that keeps at least one block.

    The bytes next to a block are read once, and kept besides.
    """

    def __init__(self, sizes: Indices, extra: Indices, most_bytes: int | None) -> None:
        self._sizes, self._extra, self._most = sizes, extra, most_bytes
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._seen = np.zeros(len(sizes), np.bool_)
        self._bytes = self.reads = self.bytes_read = 0

    def use(self, blocks: Indices) -> None:
        """Use blocks in turn: read those that are not kept."""
        new = np.unique(blocks[~self._seen[blocks]])
        self._seen[new] = True
        self.bytes_read += int(self._extra[new].sum())
        if self._most is None:
            self.reads += len(new)
            self.bytes_read += int(self._sizes[new].sum())
            return
        kept = self._kept
        for block in blocks.tolist():
            if block in kept:
                kept.move_to_end(block)
                continue
            size = int(self._sizes[block])
            self.reads, self.bytes_read = self.reads + 1, self.bytes_read + size
            kept[block], self._bytes = None, self._bytes + size
            while self._bytes > self._most and len(kept) > 1:
                self._bytes -= int(self._sizes[kept.popitem(last=False)[0]])
