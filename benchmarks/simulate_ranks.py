"""Bytes that 1,024 ranks read of 1,000,000 shards in an epoch, for several ways to deal them.

    python benchmarks/simulate_ranks.py [--shards 1000000] [--ranks 1024] [--sampled 16]

Computed by `Loader.explain_io` from the order alone, for some of the ranks; no data is read.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import windeck as wd


class Sizes:
    """A corpus of given numbers of tokens, without files."""

    def __init__(self, tokens: Any) -> None:
        self.shard_tokens = tokens
        self.shard_documents = self.shard_kept = np.ones(len(tokens), np.int64)
        self.fingerprint: Mapping[str, Any] = {"shards": len(tokens)}

    def shard_name(self, shard: int) -> tuple[str, int]:
        return "generated", shard

    def shard_index(self, dataset_id: str, shard_id: int) -> int:
        return shard_id

    def open(self, shard: int) -> Any:
        raise AssertionError("nothing is read")

    def explain_change(self, field: str, was: object, now: object) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=10**6)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--sampled", type=int, default=16, help="ranks that are computed")
    args = parser.parse_args()
    length, batch = 4096, 8
    draw = np.random.default_rng(0)
    tokens = draw.integers(40, 120, args.shards) * length  # 0.6 to 2 MB as int32
    orders: dict[str, dict[str, Any]] = {
        "shards": {"order": "shards"},
        "mixed, 8 shards": {"order": "mixed"},
        "mixed, 32 shards": {"order": "mixed", "mixed_shards": 32},
    }
    half, odd = args.ranks // 2, args.ranks * 3 // 4
    for name, options in orders.items():
        packed = wd.PackedSequences(Sizes(tokens), sequence_length=length, **options)
        # The bytes of a shard group and of the next block, on average, and half as many again.
        group = 1.5 * float(packed.block_bytes.mean()) * (1 + options.get("mixed_shards", 8))
        print(f"{args.shards:,} shards, {len(packed):,} sequences, order {name}")
        print("| lanes | unit | ranks | batch size | groups kept | of the data | GB a rank |")
        print("|---|---|---|---|---|---|---|")
        for lanes, unit in ((0, 0), (args.ranks, batch), (4 * args.ranks, batch // 4)):
            order: Any = wd.Sequential
            if lanes:
                order = partial(wd.Lanes, lanes=lanes, unit=unit, order=wd.Sequential)
            loader = wd.Loader(packed, order=order, batch_size=batch, seed=1)
            for world, size in ((args.ranks, batch), (half, 2 * batch), (odd, batch)):
                groups = 2 * max(1, lanes // world)
                report = loader.explain_io(
                    world_size=world,
                    batch_size=size,
                    ranks=np.linspace(0, world - 1, args.sampled).astype(int).tolist(),
                    resident_bytes=int(groups * group),
                )
                each = float(np.mean(list(report.bytes_read.values()))) / 1e9
                print(
                    f"| {lanes or 'none'} | {unit or ''} | {world} | {size} | {groups} | "
                    f"{report.ratio:.3g}x | {each:.3g} |"
                )


if __name__ == "__main__":
    main()
