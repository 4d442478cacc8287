"""States of all classes but loaders, and the samples that follow them."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path
from typing import Any

import windeck as wd
from support.frozen_data import (
    CASES,
    blocks,
    corpus,
    digest,
    digests,
    documents,
    lanes,
    matrix,
    nullable,
    series,
    two_windows,
    windows,
)

SAMPLERS: dict[str, dict[str, Any]] = {
    "permutation": {"seed": 17},
    "blocks": {"order": blocks, "seed": 17, "rank": 1, "world_size": 3},
    "lanes": {"order": lanes, "drop_last": True, "rank": 0, "world_size": 2},
}


def sampler(name: str) -> wd.OrderSampler:
    return wd.OrderSampler(500, **SAMPLERS[name])


def sampled(name: str, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a state in the middle of an epoch (by default a new one) and the samples after it."""
    made = sampler(name)
    if state is None:
        list(islice(made, 100))
        state = made.state_dict()
        made = sampler(name)
    made.load_state_dict(state)
    return {"state": state, "samples": [*made, *islice(made, 10)]}


def datasets() -> dict[str, wd.IterDataset]:
    shuffled = wd.Stream(windows(), seed=11)
    return {
        "windows": wd.IterDataset(shuffled, batch_size=7),
        "mixture": wd.IterDataset(two_windows(), batch_size=7, rank=1, world_size=2),
    }


def iterated(name: str, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the same as `sampled`, for an `IterDataset`."""
    if state is None:
        made = datasets()[name]
        *_, last = islice(made, 6)
        state = made.state_dict(last["position"])
    made = datasets()[name]
    made.load_state_dict(state)
    return {"state": state, "batches": digests(made, 4)}


def mapped() -> str:
    """Return the digest of a batch of a `MapDataset`, which has no state."""
    return digest(wd.MapDataset(windows()).__getitems__([5, 0, 77]))


def orders() -> dict[str, list[int]]:
    """Return samples of the orders that the cases use, and of classic generators."""
    found: dict[str, list[int]] = {}
    for size in (1, 2, 97, 500, 10**12):
        for epoch in (0, 3):
            order = wd.Permutation(size, seed=42, epoch=epoch)
            found[f"{size} {epoch}"] = order[: min(size, 20)].tolist()
    found["lcg"] = wd.LCG(1000, multiplier=5, increment=7, state=3).draw(20).tolist()
    return found


def make_caches(folder: Path) -> None:
    """Write the caches of all classes that keep one, below ``caches``."""
    kept = folder / "caches"
    kept.mkdir()
    root = corpus(folder)
    wd.Documents(root, cache=kept)
    wd.Documents(root, cache=kept, min_length=5, strip_tokens=[1, 2])
    for name, options in (("global", {"order": "global"}), ("padded", {"padded": True})):
        inside = kept / name
        inside.mkdir()
        made = wd.PackedSequences(documents(folder), sequence_length=24, cache=inside, **options)
        if name == "global":
            made.build_index(seed=8)


def fingerprints(folder: Path) -> dict[str, Any]:
    """Return the whole fingerprint of every source, stream and order."""
    sources: dict[str, Any] = {
        "table": series(),
        "table by rows": matrix(),
        "table with nulls": nullable(),
        "documents": documents(folder),
        "documents of one dataset": documents(folder, files="dataset=wiki", min_length=3),
        **{f"sampler, {name}": sampler(name) for name in SAMPLERS},
    }
    found = {name: source.fingerprint for name, source in sources.items()}
    for name, make in CASES.items():
        stream = make(folder).stream
        found[f"stream of {name}"] = stream.fingerprint
        if hasattr(stream, "source"):
            found[f"source of {name}"] = stream.source.fingerprint
    return {name: dict(fingerprint) for name, fingerprint in found.items()}


def cached(folder: Path) -> dict[str, str]:
    """Return the contents of every file below a folder: CSV as text, others as a digest."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        if path.suffix == ".csv"
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
