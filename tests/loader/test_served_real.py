"""Counters on a real corpus, compared with the tokens and documents found in delivered batches."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.corpora import write_batches
from support.real_corpus import sources
from support.real_data import real_data
from windeck import Documents, Loader, Mixture, PackedSequences, Stream, Table, Windows

LENGTH, SEED, PAD, BOS, EOS = 256, 6, 2**50, 2**51, 2**52

WAYS: list[dict[str, Any]] = [
    {"order": "mixed"},
    {"order": "global", "sequence_bos": BOS},
    {"order": "mixed", "padded": True, "pad": PAD},
    {"order": "mixed-global", "sequence_bos": BOS, "sequence_eos": EOS},
]
#: Batch size, ranks, drop_last, steps: a run, and its resumptions by other runs.
LEGS = [(16, 2, False, 11), (5, 3, True, 70), (32, 1, False, 20), (64, 2, True, 30)]


class Library:
    """Files of Python's library as documents: a token is a byte and its place in the corpus."""

    def __init__(self, root: Path, names: dict[str, int]) -> None:
        self.root = root
        self.documents: list[int] = []  # of every place
        for name, count in names.items():
            files = [path for path in sources()[name] if path.stat().st_size][:count]
            for part in range(3):
                path = root / f"dataset={name}" / f"py.part{part}.arrow"
                path.parent.mkdir(parents=True, exist_ok=True)
                texts = [self.tokens(file) for file in files[part::3]]
                write_batches(path, texts, dtype="int64")  # type: ignore[arg-type]
        self.document_of = np.array(self.documents)

    def tokens(self, path: Path) -> NDArray[np.int64]:
        text = np.frombuffer(path.read_bytes(), np.uint8)
        number = self.documents[-1] + 1 if self.documents else 0
        places = np.arange(len(text)) + len(self.documents)
        self.documents += [number] * len(text)
        return places * 256 + text

    def packed(self, name: str, way: dict[str, Any]) -> PackedSequences:
        documents = Documents(self.root, files=[f"dataset={name}"])
        return PackedSequences(documents, sequence_length=LENGTH, mixed_shards=2, **way)

    def documents_in(self, row: NDArray[np.int64]) -> set[int]:
        return set(self.document_of[row[row < PAD] >> 8].tolist())


class Delivered:
    """The rows of all ranks, by epoch."""

    def __init__(self, library: Library, packed: PackedSequences) -> None:
        self.library, self.packed = library, packed
        self.rows: dict[int, list[NDArray[np.int64]]] = defaultdict(list)

    def counts(self) -> tuple[int, int, int, int]:
        """Return samples, tokens, and documents begun and finished."""
        found = np.zeros(4, np.int64)
        for epoch, rows in self.rows.items():
            found[0] += len(rows)
            found[1] += sum(int((row[1:] != PAD).sum()) for row in rows)
            served = {row.tobytes() for row in rows}
            source = self.packed.at_epoch(epoch, seed=SEED)
            held: dict[int, set[bytes]] = defaultdict(set)
            for row in source.gather_rows(np.arange(len(source)))["tokens"].astype(np.int64):
                for document in self.library.documents_in(row):
                    held[document].add(row.tobytes())
            found[2] += sum(not served.isdisjoint(all_rows) for all_rows in held.values())
            found[3] += sum(served >= all_rows for all_rows in held.values())
        samples, tokens, begun, finished = found.tolist()
        return samples, tokens, begun, finished


def rows_of(batch: Any) -> NDArray[np.int64]:
    return np.concatenate([batch["inputs"].numpy(), batch["targets"][:, -1:].numpy()], 1)


def counted(served: Any) -> tuple[int | None, ...]:
    return served.samples, served.tokens, served.documents_begun, served.documents_finished


def ranks(data: Any, leg: tuple[int, int, bool, int], state: str | None) -> list[Loader]:
    """Return the loaders of all ranks, resumed from a state in JSON."""
    batch_size, world_size, drop_last, _ = leg
    options: dict[str, Any] = {"batch_size": batch_size, "world_size": world_size}
    loaders = [Loader(data, rank=r, drop_last=drop_last, **options) for r in range(world_size)]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(json.loads(state))
    return loaders


@pytest.mark.parametrize("way", WAYS)
def test_counts_are_those_of_the_delivered_batches(way: Any, tmp_path: Path) -> None:
    library = Library(tmp_path, {"asyncio": 20})
    packed = library.packed("asyncio", way)
    delivered, state, step, seen = Delivered(library, packed), None, 0, []
    for leg in LEGS:
        loaders = ranks(Stream(packed, seed=SEED), leg, state)
        for _ in range(leg[3]):
            for batch in [next(iter(loader)) for loader in loaders]:
                # The last batch of an epoch leaves the position at its end.
                epoch = (loaders[0].position - 1) // len(packed)
                delivered.rows[epoch] += [*rows_of(batch)]
            step += 1
            if step % 19 == 0:
                seen.append((step, delivered.counts()))
        assert {counted(loader.served()) for loader in loaders} == {delivered.counts()}
        state = json.dumps(loaders[-1].state_dict())
    assert len(delivered.rows) >= 3
    for step, counts in seen:
        assert counted(loaders[0].served(step)) == counts


def test_counts_of_parts_are_those_of_the_delivered_batches(tmp_path: Path) -> None:
    library = Library(tmp_path, {"asyncio": 9, "email": 9, "top": 12})
    ways = {"asyncio": WAYS[0], "email": WAYS[1], "top": WAYS[3]}
    parts = {name: library.packed(name, way) for name, way in ways.items()}
    delivered = {name: Delivered(library, packed) for name, packed in parts.items()}
    weights = {"asyncio": 5, "email": 2, "top": 1}
    mixture = Mixture(
        {name: (Stream(packed, seed=SEED), weights[name]) for name, packed in parts.items()}
    )
    part_of = np.empty(library.document_of.max() + 1, object)
    for name, packed in parts.items():
        for row in packed.gather_rows(np.arange(len(packed)))["tokens"].astype(np.int64):
            part_of[[*library.documents_in(row)]] = name
    state = None
    for leg in LEGS:
        loaders = ranks(mixture, leg, state)
        for _ in range(leg[3]):
            for batch in [next(iter(loader)) for loader in loaders]:
                for row in rows_of(batch):
                    (name,) = set(part_of[[*library.documents_in(row)]])
                    mine = delivered[name]
                    number = sum(map(len, mine.rows.values()))
                    mine.rows[number // len(mine.packed)].append(row)
        served = loaders[0].served()
        logs = {name: mine.counts() for name, mine in delivered.items()}
        assert {name: counted(part) for name, part in served.parts.items()} == logs
        assert counted(served) == tuple(np.sum([*logs.values()], axis=0))
        state = json.dumps(loaders[0].state_dict())
    assert max(len(mine.rows) for mine in delivered.values()) >= 2


def test_counts_of_real_series_are_those_of_the_delivered_windows() -> None:
    table = Table.read(real_data("nab.parquet"), id_columns="series", timestamp_column="timestamp")
    windows = Windows(table, context_length=168, prediction_length=24, stride=24)
    delivered, dropped, state = set[tuple[int, int, int]](), 0, None
    for leg in [(512, 2, True, 9), (300, 3, False, 7), (1024, 1, True, 21)]:
        loaders = ranks(Stream(windows, seed=SEED), leg, state)
        for _ in range(leg[3]):
            before = loaders[0].position
            batches = [next(iter(loader)) for loader in loaders]
            epoch, begun = (loaders[0].position - 1) // len(windows), before // len(windows)
            dropped += epoch * len(windows) - before if epoch > begun and before else 0
            for batch in batches:
                places = zip(batch["series_id"].tolist(), batch["start"].tolist(), strict=True)
                delivered |= {(epoch, *place) for place in places}
        served = loaders[0].served()
        assert served.samples == len(delivered) == loaders[0].position - dropped
        assert served.epoch == loaders[0].position / len(windows)
        state = json.dumps(loaders[0].state_dict())
    assert dropped > 0
    assert loaders[0].position > 2 * len(windows)
