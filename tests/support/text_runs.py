"""Settings of training runs over several corpora, for `killed_text_run` and for the oracle.

Both read the same dictionary, which can be stored as JSON, and share nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from models.text_oracle import Corpus, Packing, Place, Streamed, pack
from support.text_corpora import write
from support.text_mixtures import Mixed

#: dataset -> (kind of file, dtype, documents in each shard): see `corpora_of`.
DATASETS = {
    "web": ("lists", "uint16", (14, 0, 9, 21)),
    "code": ("batches", "int32", (6, 11)),
    "wiki": ("parquet", "int64", (30, 1, 17)),
}

SETTINGS: dict[str, Any] = {
    "batch_sizes": [8, 13, 5, 4, 3, 2],
    "parts": {
        "web": {
            "weight": 0.503,
            "seed": 11,
            "dataset": "web",
            "shards": 3,
            "grown": [[150, 4]],
            "documents": {},
            "packing": {"sequence_length": 24, "bos": 1, "eos": 2},
        },
        "rest": {
            "weight": 0.497,
            "parts": {
                "code": {
                    "weight": 2,
                    "seed": 12,
                    "dataset": "code",
                    "shards": 2,
                    "grown": [],
                    "documents": {},
                    "packing": {"sequence_length": 24, "eos": 2, "order": "global"},
                },
                "wiki": {
                    "weight": 1.0,
                    "seed": 13,
                    "dataset": "wiki",
                    "shards": 3,
                    "grown": [],
                    "documents": {"strip_tokens": [7, 9], "min_length": 4},
                    "packing": {"sequence_length": 24, "bos": 3},
                },
            },
            "schedule": [],
        },
    },
    "schedule": [[400, {"web": 0.2, "rest": 0.8}], [1500, {"web": 3, "rest": 1}]],
}


def corpora_of(seed: int) -> dict[str, Corpus]:
    """Return random documents: many short ones, empty ones, some of several sequences."""
    rng = Random(seed)

    def document() -> list[int]:
        size = rng.choice((0, 1, 3, rng.randrange(40), rng.randrange(40), rng.randrange(200)))
        return [rng.choice((7, 9, rng.randrange(10, 500))) for _ in range(size)]

    return {
        name: [[document() for _ in range(count)] for count in counts]
        for name, (_, _, counts) in DATASETS.items()
    }


def write_corpora(corpora: dict[str, Corpus], folder: Path) -> None:
    for name, corpus in corpora.items():
        kind, dtype, _ = DATASETS[name]
        write(corpus, folder / f"dataset={name}", kind, dtype)


def stream_of(part: dict[str, Any], corpora: dict[str, Corpus]) -> Streamed | Mixed:
    """Return the oracle's stream of one part of the settings."""
    if "parts" in part:
        return mixture_of(part, corpora)
    corpus, documents, packing = corpora[part["dataset"]], part["documents"], dict(part["packing"])
    how = Packing(
        length=packing.pop("sequence_length"),
        strip=tuple(documents.get("strip_tokens", ())),
        min_length=documents.get("min_length", 0),
        **packing,
    )
    grown = [(at, pack(corpus[:shards], how)) for at, shards in part["grown"]]
    return Streamed(pack(corpus[: part["shards"]], how), part["seed"], grown=grown)


def mixture_of(settings: dict[str, Any], corpora: dict[str, Corpus]) -> Mixed:
    parts = {
        name: (stream_of(part, corpora), part["weight"]) for name, part in settings["parts"].items()
    }
    return Mixed(parts, [(at, weights) for at, weights in settings["schedule"]])


def batches(
    served: Mixed | Streamed, position: int, batch_size: int, world: int
) -> Iterator[tuple[list[list[Place]], int]]:
    """Yield every rank's share of each step of an endless stream, and the position after it."""
    while True:
        begins = range(position, position + world * batch_size, batch_size)
        position += world * batch_size
        yield [[served.at(p) for p in range(b, b + batch_size)] for b in begins], position


def batch_of(places: list[Place]) -> dict[str, list[Any]]:
    """Return the expected batch, in lists."""
    rows = [place.row() for place in places]
    flat = [number for row in rows for number in row.position_ids]
    begins = [place for place, number in enumerate(flat) if number == 0]
    return {
        "inputs": [row.tokens[:-1] for row in rows],
        "targets": [row.tokens[1:] for row in rows],
        "position_ids": [row.position_ids for row in rows],
        "cu_seqlens": [*begins, len(flat)],
    }
