"""Golden values of all orders, printed by `python tests/support/golden_orders.py > FILE`.

FILE is tests/golden/orders_v<ORDER_VERSION>.json. It was written once, when the order was
published, and is not written again: an order that changes needs a new order version and a new
file, and the old file stays as the record of what the old version gave.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Any

import numpy as np

import windeck as wd

FACTORIES: dict[str, Any] = {
    "Permutation": wd.Permutation,
    "BlockPermutation(block_size=10)": partial(wd.BlockPermutation, block_size=10),
    "BlockPermutation(block_size=10, blocks_in_buffer=4)": partial(
        wd.BlockPermutation, block_size=10, blocks_in_buffer=4
    ),
    "Lanes(lanes=7)": partial(wd.Lanes, lanes=7),
}
SIZES = (
    *(1, 2, 3, 10, 100, 255, 256, 257, 1000, 4096, 65_535, 65_536, 65_537, 262_145, 1_048_577),
    *(10**6, 10**8, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 10**12, 2**53 + 1),
    *(2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1),
)
KEYS = ((0, 0), (42, 1), (43, 0), (2**64 - 1, 2**64 - 1))
LONGEST = 2000


def golden(factory: str, size: int, seed: int, epoch: int) -> dict[str, Any]:
    """Return the first samples, and a digest of more samples from both ends."""
    order = FACTORIES[factory](size, seed=seed, epoch=epoch)
    first = order.slice(0, min(size, LONGEST))
    last = order.slice(max(0, size - LONGEST), size)
    samples = np.concatenate([first, last]).astype("<i8")
    return {
        "factory": factory,
        "size": size,
        "seed": seed,
        "epoch": epoch,
        "first": first[:8].tolist(),
        "blake2b": hashlib.blake2b(samples.tobytes(), digest_size=16).hexdigest(),
    }


def main() -> None:
    rows = [
        golden(factory, size, seed, epoch)
        for factory in FACTORIES
        for size in SIZES
        for seed, epoch in KEYS
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    print(f'{{"order_version": {wd.ORDER_VERSION}, "orders": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
