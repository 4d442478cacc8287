"""Tests of examples/fms_order.py, with a model of that order in plain Python.

The model follows the published arithmetic and shares no code with the example: it walks one value
at a time, in lists, and knows every document by its file's name and its number there.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from support.loaded_examples import EXAMPLES, example
from support.token_files import write_arrow_tokens

SCRIPT = EXAMPLES / "fms_order.py"
EOS = 999


@pytest.fixture(scope="module")
def fms_order() -> ModuleType:
    return example("fms_order")


# The model.

Files = dict[str, tuple[int, int]]  # name -> (bytes, documents)


def ranges(files: Files, rank: int, world: int, ownership: str) -> list[tuple[str, int, int]]:
    names = sorted(files)
    if ownership == "pieces":
        pieces = [(name, piece) for name in names for piece in range(world)]
        own = pieces[rank * len(names) : (rank + 1) * len(names)]
        spans: dict[str, list[int]] = {}
        for name, piece in own:
            documents = files[name][1]
            ends = [documents * piece // world, documents * (piece + 1) // world]
            spans[name] = [spans.get(name, ends)[0], ends[1]]
        return [(name, low, high) for name, (low, high) in spans.items()]
    total = sum(size for size, _ in files.values())
    first, last = rank / world, (rank + 1) / world
    found, passed = [], 0.0
    for name in names:
        part = files[name][0] / total
        if passed <= last and passed + part >= first:
            low = min(max((first - passed) / part, 0), 1)
            high = min(max((last - passed) / part, 0), 1)
            found.append((name, round(files[name][1] * low), round(files[name][1] * high)))
        passed += part
    return found


def epoch(files: Files, rank: int, world: int, seed: int, ownership: str) -> list[tuple[str, int]]:
    order = ranges(files, rank, world, ownership)
    random.seed(seed + rank)
    random.shuffle(order)
    state = seed + rank
    visits = []
    for name, low, high in order:
        for _ in range(high - low):
            while True:
                state = (5 * state + (rank + seed) * 2 + 1) % 2 ** math.ceil(math.log2(high - low))
                if state < high - low:
                    break
            visits.append((name, low + state))
    return visits


def chunks(document: list[int], size: int, bos: int | None) -> list[list[int]]:
    """Return the chunks of a document; the first has one token less if there is `bos`."""
    if not document:
        return []
    frame = 1 if bos is None else 2
    count = math.ceil((len(document) + frame) / size)
    found = []
    for number in range(count):
        if bos is None:
            chunk = document[number * size : (number + 1) * size]
        elif number == 0:
            chunk = [bos, *document[: size - 1]]
        else:
            chunk = document[number * size - 1 : number * size - 1 + size]
        found.append(chunk + [EOS] * (number == count - 1))
    return found


# Corpora.

Corpus = dict[int, list[list[int]]]  # part number -> documents


def write(root: Path, dataset: str, parts: Corpus) -> Files:
    folder = root / f"dataset={dataset}"
    folder.mkdir(parents=True)
    files = {}
    for part, documents in parts.items():
        path = folder / f"x.part{part}.arrow"
        write_arrow_tokens(path, documents, row_per_token=part % 2 == 0)
        files[path.name] = (path.stat().st_size, len(documents))
    return files


def part_of(name: str) -> int:
    return int(name.split(".part")[1].removesuffix(".arrow"))


def tokens(order: Any) -> Iterator[tuple[int, int]]:
    """Return (part, document) of each visit of an order, as its walk gives them."""
    return ((visit.shard_id, visit.doc_id) for visit in order.walk())


SIZES = [*range(1, 70), 127, 128, 129, 255, 256, 257, 511, 512, 513, 700, 1024]


@pytest.fixture(scope="module")
def by_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sizes")
    for size in SIZES:
        write(root, f"n{size}", {1: [[number] for number in range(size)]})
    return root


@pytest.mark.parametrize("size", SIZES)
def test_one_file_of_any_size(fms_order: ModuleType, by_size: Path, size: int) -> None:
    for seed in (0, 42, 1000):
        order = fms_order.FmsOrder(
            by_size, f"n{size}", rank=0, world_size=1, delimiter=EOS, seed=seed
        )
        visits = epoch({"x.part1.arrow": (1, size)}, 0, 1, seed, "pieces")
        assert [(part, doc) for part, doc in tokens(order)] == [(1, doc) for _, doc in visits]
        assert sorted(doc for _, doc in visits) == list(range(size))
        served = list(islice(order, 2 * size))
        assert served == 2 * [[doc, EOS] for _, doc in visits]


PARTS: Corpus = {
    part: [[100 * part + number] * (1 + (7 * number + part) % 5) for number in range(count)]
    for part, count in {0: 16, 2: 1, 3: 40, 9: 2, 10: 33, 11: 5, 100: 64}.items()
}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Files]:
    root = tmp_path_factory.mktemp("several")
    return root, write(root, "c4", PARTS)


@pytest.mark.parametrize("ownership", ["bytes", "pieces"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 16])
def test_several_files_and_ranks(
    fms_order: ModuleType, several: tuple[Path, Files], ownership: str, world: int
) -> None:
    root, files = several
    for seed in (0, 42):
        everyone: list[tuple[int, int]] = []
        for rank in range(world):
            visits = epoch(files, rank, world, seed, ownership)
            if not visits:
                continue
            order = fms_order.FmsOrder(
                root, "c4", rank=rank, world_size=world, delimiter=EOS, seed=seed,
                ownership=ownership,
            )  # fmt: skip
            assert list(tokens(order)) == [(part_of(name), doc) for name, doc in visits]
            assert len(order) == len(visits)
            everyone += tokens(order)
        stored = [(part, doc) for part, own in PARTS.items() for doc in range(len(own))]
        assert sorted(everyone) == sorted(stored)


def test_golden(fms_order: ModuleType, several: tuple[Path, Files]) -> None:
    """As computed by the model once; ownership by bytes depends on how Arrow lays files out."""
    root, _ = several
    options = {"world_size": 3, "delimiter": EOS, "ownership": "pieces"}
    order = fms_order.FmsOrder(root, "c4", rank=1, **options)
    assert list(tokens(order))[:12] == [
        *((11, doc) for doc in (0, 2, 1, 4, 3)),
        *((100, doc) for doc in (59, 42, 21, 44, 31, 30, 25)),
    ]


@pytest.mark.parametrize("bos", [None, 998])
@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_chunks_and_going_on_from_any_of_them(
    fms_order: ModuleType, several: tuple[Path, Files], bos: int | None, size: int
) -> None:
    """The order continues from the state after any chunk of an epoch and more."""
    root, files = several
    options = {"rank": 1, "world_size": 2, "delimiter": EOS, "bos": bos, "max_chunksize": size}
    expected = [
        chunk
        for name, doc in epoch(files, 1, 2, 42, "pieces")
        for chunk in chunks(PARTS[part_of(name)][doc], size, bos)
    ]
    order, fresh = (fms_order.FmsOrder(root, "c4", **options) for _ in range(2))
    endless = iter(order)
    for given in range(len(expected) + 5):
        if given % 23 == 0 or given >= len(expected) - 2:
            fresh.load_state_dict(order.state_dict())
            rest = list(fresh.rest_of_epoch())
            begin = given if given == len(expected) else given % len(expected)
            assert rest == expected[begin:]
            assert list(islice(fresh, 3)) == expected[:3]
        assert next(endless) == expected[given % len(expected)]
    assert order.state_dict()["StreamingDocDataset.epochs_seen"] == 1


def test_counts_of_what_was_seen(fms_order: ModuleType, several: tuple[Path, Files]) -> None:
    root, files = several
    order = fms_order.FmsOrder(
        root, "c4", rank=0, world_size=2, delimiter=EOS, bos=998, max_chunksize=2
    )
    names = ("epochs_seen", "tokens_seen", "docs_seen", "percent_seen")
    assert [order.state_dict()[f"StreamingDocDataset.{name}"] for name in names] == [-1, 0, 0, 0]
    given = list(order.rest_of_epoch())
    visits = epoch(files, 0, 2, 42, "pieces")
    found = [order.state_dict()[f"StreamingDocDataset.{name}"] for name in names]
    assert found[:3] == [0, sum(map(len, given)) - 2 * len(visits), len(visits)]
    assert found[3] == pytest.approx(100)


def test_empty_short_and_stripped_documents(fms_order: ModuleType, tmp_path: Path) -> None:
    """An empty document takes its turn and no more, wherever the walk meets it."""
    documents = [[], [7], [7, 7, 1, 2, 7, 7], [1], [7, 7], [], [3, 4, 5], []]
    write(tmp_path, "c4", {4: documents})
    options = {"rank": 0, "world_size": 1, "delimiter": EOS}
    order = fms_order.FmsOrder(tmp_path, "c4", **options)
    visits = [doc for _, doc in epoch({"x.part4.arrow": (1, 8)}, 0, 1, 42, "pieces")]
    whole = [[*documents[doc], EOS] for doc in visits if documents[doc]]
    assert list(order.rest_of_epoch()) == whole
    assert list(order.rest_of_epoch()) == whole
    # At most one token of each end; what is left may be nothing.
    order = fms_order.FmsOrder(tmp_path, "c4", strip_tokens=[7], min_length=3, **options)
    left = {2: [7, 1, 2, 7], 6: [3, 4, 5]}
    assert list(order.rest_of_epoch()) == [[*left[doc], EOS] for doc in visits if doc in left]


def test_a_state_of_theirs(fms_order: ModuleType, several: tuple[Path, Files]) -> None:
    """With tensors, with names as they are or bare, and with entries of other layers."""
    root, files = several
    visits = epoch(files, 0, 2, 42, "pieces")
    lows = {name: low for name, low, _ in ranges(files, 0, 2, "pieces")}
    before = visits[19][1] - lows[visits[19][0]]
    own = {"docset_index": torch.tensor(20), "chunk_index": 0, "lcg_state": torch.tensor(before)}
    for state in (own, {f"StreamingDocDataset.{k}": v for k, v in own.items()} | {"Other.x": "y"}):
        order = fms_order.FmsOrder(root, "c4", rank=0, world_size=2, delimiter=EOS)
        order.load_state_dict(state)
        expected = [[*PARTS[part_of(name)][doc], EOS] for name, doc in visits[21:]]
        assert list(order.rest_of_epoch()) == expected


def nested(leaf: dict[str, Any], shards: int, own: int) -> dict[str, Any]:
    """Return a worker's checkpoint of the layers above: datasets with some logical shards each."""
    leaf = {f"StreamingDocDataset.{name}": value for name, value in leaf.items()}

    def scalable(dataset: str, at: int) -> dict[str, Any]:
        other = leaf | {"StreamingDocDataset.docset_index": 0}
        states = [dict(leaf if shard == at else other) for shard in range(shards)]
        for state in states:
            state["StreamingDocDataset.dataset"] = dataset
        return {
            "ScalableShardDataset.current_reader": None,
            "ScalableShardDataset.n_docs_remaining": [5] * shards,
            "ScalableShardDataset.logical_shard_states": states,
        }

    return {
        "PreloadBufferDataset.buffer": [[1, 2]],
        "BufferDataset.buffer": [3],
        "SamplingDataset.tokens_seen": [7, 8],
        "SamplingDataset.sample_iterator_states": [
            scalable("dataset=wiki", -1),
            scalable("dataset=c4", own),
        ],
    }


@pytest.mark.parametrize(("rank", "workers"), [(0, 4), (1, 4), (1, 2), (3, 2), (2, 1)])
def test_a_whole_checkpoint(
    fms_order: ModuleType, several: tuple[Path, Files], rank: int, workers: int
) -> None:
    """The logical shard of the rank, of the dataset of that name."""
    root, files = several
    visits = epoch(files, rank, 4, 42, "pieces")
    lows = {name: low for name, low, _ in ranges(files, rank, 4, "pieces")}
    before = visits[9][1] - lows[visits[9][0]]
    leaf = {"docset_index": 10, "chunk_index": 0, "lcg_state": before}
    shards = 4 // workers
    state = nested(leaf, shards, rank % shards)
    order = fms_order.FmsOrder(root, "c4", rank=rank, world_size=4, delimiter=EOS)
    order.load_state_dict(state)
    expected = [[*PARTS[part_of(name)][doc], EOS] for name, doc in visits[11:]]
    assert list(order.rest_of_epoch()) == expected
    alone = state["SamplingDataset.sample_iterator_states"][1]
    order.load_state_dict(alone)
    assert order.docset_index == 10
    with pytest.raises(ValueError, match="belongs to the dataset 'wiki': expected 'c4'"):
        order.load_state_dict({**leaf, "dataset": "dataset=wiki"})
    del state["SamplingDataset.sample_iterator_states"][1]
    with pytest.raises(ValueError, match="has 0 of its 1 datasets named 'c4': expected one"):
        order.load_state_dict(state)
    alone["ScalableShardDataset.logical_shard_states"] *= 3
    with pytest.raises(ValueError, match=r"has \d+ logical shards: expected a number that divides"):
        order.load_state_dict(alone)


def test_names_without_part_numbers(fms_order: ModuleType, tmp_path: Path) -> None:
    """Sorted as strings for the order, and by their numbers for the names of documents."""
    folder = tmp_path / "dataset=c4" / "en"
    folder.mkdir(parents=True)
    files: Files = {}
    for number in (2, 10, 1):
        path = folder / f"x{number}.arrow"
        documents = [[100 * number + doc] for doc in range(number + 5)]
        write_arrow_tokens(path, documents, row_per_token=True)
        files[f"en/{path.name}"] = (path.stat().st_size, len(documents))
    order = fms_order.FmsOrder(tmp_path, "c4", rank=0, world_size=1, delimiter=EOS)
    visits = epoch(files, 0, 1, 42, "pieces")
    expected = [
        [100 * int(name.removesuffix(".arrow").split("x")[1]) + doc, EOS] for name, doc in visits
    ]
    assert list(order.rest_of_epoch()) == expected
    assert sorted(order.shard_ids) == [0, 1, 2]
    (folder / "y.feather").write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="has 3 Arrow files, windeck reads 4 shards"):
        fms_order.FmsOrder(tmp_path, "c4", rank=0, world_size=1, delimiter=EOS)


def test_known_weaknesses_are_the_same(fms_order: ModuleType, by_size: Path) -> None:
    """The order's, which the example's text speaks of: if they went, it would be another order."""
    sizes, documents = [4] * 4, [10**6, 10, 10, 10]
    owned = [fms_order.owned_by_pieces(sizes, documents, rank, 4) for rank in range(4)]
    assert [sum(map(len, own)) for own in owned] == documents
    follows = [_successors(fms_order, by_size, rank) for rank in range(3)]
    assert all((one + other) % 2 for one, other in follows[0].items())
    sides = range(256)
    assert any(
        all(follows[2][(x + d) % 256] == (follows[0][x] + d) % 256 for x in sides) for d in sides
    )
    assert any(
        all(follows[1][(d - x) % 256] == (d - follows[0][x]) % 256 for x in sides) for d in sides
    )
    order = fms_order.FmsOrder(by_size, "n69", rank=0, world_size=1, delimiter=EOS)
    assert list(islice(order, 69)) == list(islice(order, 69))


def _successors(fms_order: ModuleType, root: Path, rank: int) -> dict[int, int]:
    """Return the successor of each document of a rank's range of 256, over the whole cycle."""
    order = fms_order.FmsOrder(root, "n1024", rank=rank, world_size=4, delimiter=EOS)
    walk = [doc - 256 * rank for _, doc in tokens(order)]
    assert sorted(walk) == list(range(256))
    return dict(zip(walk, [*walk[1:], walk[0]], strict=True))


def test_what_does_not_fit_is_told(fms_order: ModuleType, several: tuple[Path, Files]) -> None:
    root, _ = several
    options: dict[str, Any] = {"rank": 0, "world_size": 2, "delimiter": EOS}
    for wrong, words in (
        ({"rank": 2}, r"rank has to be in \[0, 2\), got 2"),
        ({"max_chunksize": 0}, "max_chunksize has to be at least 1, got 0"),
        ({"ownership": "files"}, "ownership has to be 'bytes' or 'pieces', got 'files'"),
        ({"world_size": 1000}, "rank 0 of 1000 owns none of the 161 documents in 7 files"),
    ):
        with pytest.raises(ValueError, match=words):
            fms_order.FmsOrder(root, "c4", **{**options, **wrong})
    order = fms_order.FmsOrder(root, "c4", **options)
    with pytest.raises(KeyError, match="the state has no chunk_index and no lcg_state"):
        order.load_state_dict({"docset_index": 1})
    with pytest.raises(ValueError, match=r"at document 5000, rank 0 of 2 has \d+"):
        order.load_state_dict({"docset_index": 5000, "chunk_index": 0, "lcg_state": 1})


@pytest.mark.usefixtures("forked")
def test_it_shows_itself() -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True
    )
    first, second = result.stdout.split("going on from the state in the middle:\n")
    assert first.startswith("rank 0 of 2: ")
    assert second.splitlines() == first.splitlines()[-3:]
