"""Golden values of the packed order: the place of every document.

``python tests/support/golden_packing.py > tests/golden/packing_v1.json`` writes them. They change
with ORDER_VERSION alone.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

import windeck as wd
from models.packing_model import Model, ModelCorpus
from support.packing_cases import packing

#: Documents of each shard; one is empty, one has several blocks, one document is long.
SIZES = [[3, 0, 5, 40], [], [1] * 2500, [7, 7, 7, 200, 12], [0, 2]]

WAYS: list[dict[str, Any]] = [
    {"order": "shards"},
    {"order": "shards", "bos": 1000, "eos": 1001},
    {"order": "global", "eos": 1001},
    {"order": "shards", "padded": True, "eos": 1001, "pad": 1002},
    {"order": "mixed", "eos": 1001},
    {"order": "mixed", "mixed_shards": 2},
    {"order": "mixed-global", "mixed_shards": 2, "bos": 1000},
    {"order": "mixed", "mixed_shards": 1, "padded": True, "eos": 1001, "pad": 1002},
]
KEYS = [(0, 0), (1, 0), (0, 1), (2**40, 2**63)]  # (epoch, seed)


def corpus() -> ModelCorpus:
    """Return a corpus whose tokens count through it, so that each shows its place."""
    shards, token = [], 0
    for sizes in SIZES:
        shard = []
        for size in sizes:
            shard.append([(token + i) % 997 for i in range(size)])
            token += size
        shards.append(shard)
    return ModelCorpus(shards, ["int32"] * len(shards), min_length=1)


def golden(way: dict[str, Any], epoch: int, seed: int, *, by_model: bool = False) -> dict[str, Any]:
    """Return the first sequence of an epoch, and a digest of all its sequences."""
    model = Model(corpus(), 8, **way)
    if by_model:
        batch: dict[str, Any] = model.batch(model.rows(epoch, seed), "int64")
        tokens = np.concatenate([batch["inputs"], batch["targets"][:, -1:]], axis=1)
    else:
        source = packing(model).at_epoch(epoch, seed=seed)
        batch = source.gather_rows(range(len(source)))
        tokens = batch["tokens"]
    state = hashlib.blake2b(tokens.astype("<i8").tobytes(), digest_size=16)
    state.update(batch["position_ids"].astype("<i8").tobytes())
    if "targets_mask" in batch:
        state.update(batch["targets_mask"].astype("u1").tobytes())
    return {
        **way,
        "epoch": epoch,
        "seed": seed,
        "sequences": len(tokens),
        "first": tokens[0].tolist(),
        "blake2b": state.hexdigest(),
    }


def main() -> None:
    """Print the file."""
    rows = [golden(way, epoch, seed) for way in WAYS for epoch, seed in KEYS]
    lines = ",\n".join(json.dumps(row) for row in rows)
    print(f'{{"order_version": {wd.ORDER_VERSION}, "packed": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
