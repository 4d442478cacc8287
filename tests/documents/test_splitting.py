"""Documents.split: compared with a model of the hash, stable under growth, and exact."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.corpora import WRITERS, write_corpus
from windeck import Documents, Loader, PackedSequences
from windeck._util import check_fingerprint

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def hashed(seed: int, dataset: str, name: int | bytes, document: int, *level: int) -> int:
    """Return the hash of a document, step by step: BLAKE2b of its shard, then SplitMix64."""
    state = hashlib.blake2b(digest_size=16)
    for part in ("split", seed, dataset, name, *level):
        data = repr(part).encode() if isinstance(part, int) else part
        kind = type(part).__name__.encode()
        data = data.encode() if isinstance(data, str) else data
        for piece in (kind, data):
            state.update(b"%d:" % len(piece) + piece)
    z = (int(state.hexdigest()[:16], 16) + (document + 1) * GOLDEN) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def part_of(hash_value: int, validation: float, test: float) -> str:
    if hash_value < validation * 2**64:
        return "validation"
    return "test" if hash_value >= 2**64 - round(test * 2**64) else "train"


def corpus(root: Path, parts: tuple[int, ...] = (0, 3, 10), form: str = "lists") -> Path:
    shards = {f"c4/x.part{part}": [[part, j] * (j % 3) for j in range(200)] for part in parts}
    return write_corpus(root, {**shards, "wiki/y.part0": [[7]] * 50, "w2/z.part1": []}, form=form)


def parts_by_name(split: Any) -> dict[tuple[str, int, int], str]:
    """Return the part of every document with tokens, which is in one part only."""
    found: dict[tuple[str, int, int], str] = {}
    for part, documents in split._asdict().items():
        for number, tokens in enumerate(documents):
            if len(tokens):
                name = documents.locate(number)
                assert name not in found
                found[name] = part
    return found


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize(("validation", "test"), [(0.1, 0.2), (0.5, 0.0), (0.0, 0.3)])
def test_against_the_model(validation: float, test: float, form: str, tmp_path: Path) -> None:
    documents = Documents(corpus(tmp_path, form=form))
    split = documents.split(validation, test, seed=5)
    assert split._fields == ("train", "validation", "test")
    expected = {}
    for number, tokens in enumerate(documents):
        dataset, part, doc = documents.locate(number)
        if len(tokens):
            value = hashed(5, dataset, part, doc)
            expected[dataset, part, doc] = part_of(value, validation, test)
    assert parts_by_name(split) == expected
    for mine in split:
        assert len(mine) == len(documents)
        kept = [mine.open(shard).totals() for shard in range(len(mine.shard_tokens))]
        assert [one[2:] for one in kept] == list(
            zip(mine.shard_kept.tolist(), mine.shard_tokens.tolist(), strict=True)
        )
        mine.verify()
    together = np.sum([mine.shard_kept for mine in split], axis=0)
    assert together.tolist() == documents.shard_kept.tolist()


def test_golden(tmp_path: Path) -> None:
    """As computed once by the model: part of saved states."""
    found = Documents(corpus(tmp_path)).split(0.05, seed=42).validation
    kept = [found.locate(number) for number in range(len(found)) if len(found[number])]
    assert kept[:4] == GOLDEN_NAMES


GOLDEN_NAMES = [("c4", 0, 16), ("c4", 0, 53), ("c4", 0, 68), ("c4", 0, 76)]


def test_growth_and_filters_move_no_document(tmp_path: Path) -> None:
    before = parts_by_name(Documents(corpus(tmp_path)).split(0.1, 0.1, seed=1))
    root = corpus(tmp_path, (0, 1, 2, 3, 10, 11))
    after = parts_by_name(Documents(root).split(0.1, 0.1, seed=1))
    assert before.items() <= after.items()
    few = parts_by_name(Documents(root, min_length=3).split(0.1, 0.1, seed=1))
    assert few.items() <= after.items()
    assert len(few) < len(after)


def test_files_without_part_numbers_go_by_their_paths(tmp_path: Path) -> None:
    def parts(*names: str) -> dict[int, str]:
        shards = {f"c4/en/{name}": [[int(name[1:]), j + 1] for j in range(100)] for name in names}
        documents = Documents(write_corpus(tmp_path / "-".join(names), shards))
        split = documents.split(0.2, seed=3)
        return {
            int(tokens[0]) * 1000 + int(tokens[1]): part
            for part, kept in split._asdict().items()
            for tokens in kept
            if len(tokens)
        }

    before, after = parts("b2", "b9"), parts("a1", "b2", "b5", "b9")
    assert len(before) == 200
    assert before.items() <= after.items()
    value = hashed(3, "c4", b"en/b9.arrow", 7)
    assert before[9008] == part_of(value, 0.2, 0)


def test_a_larger_share_keeps_what_it_had(tmp_path: Path) -> None:
    documents = Documents(corpus(tmp_path))
    small, large = (
        {name for name, part in parts_by_name(split).items() if part == "validation"}
        for split in (documents.split(0.05), documents.split(0.2))
    )
    assert small < large


def test_splits_of_parts(tmp_path: Path) -> None:
    documents = Documents(corpus(tmp_path))
    train = documents.split(0.3, seed=1).train
    again = train.split(0.3, seed=2)
    outer, inner = (documents.split(0.3, seed=seed) for seed in (1, 2))
    names = {part: _names(one) for part, one in again._asdict().items()}
    assert names["train"] == _names(outer.train) & _names(inner.train)
    assert names["validation"] == _names(outer.train) & _names(inner.validation)


def level_hashed(seed: int, level: int, dataset: str, name: int, document: int) -> int:
    return hashed(seed, dataset, name, document, *([level] if level else []))


def test_a_split_of_a_part_with_the_same_seed_has_its_shares(tmp_path: Path) -> None:
    documents = Documents(corpus(tmp_path))
    part, whole = documents, _names(documents)
    for level in range(3):
        split = part.split(0.25, 0.25, seed=4)
        expected: dict[str, set[Any]] = {"train": set(), "validation": set(), "test": set()}
        for name in whole:
            expected[part_of(level_hashed(4, level, *name), 0.25, 0.25)].add(name)
        assert {name: _names(one) for name, one in split._asdict().items()} == expected
        for one in split:
            assert int(one.shard_kept.sum()) >= len(_names(one)) > len(whole) / 8
            one.verify()
        seeds = [text.split(":")[0] for text in str(split.train.fingerprint["part"]).split(",")]
        assert seeds == ["4", "4+1", "4+2"][: level + 1]
        part = split.validation if level == 1 else split.train
        whole = _names(part)


def test_golden_of_levels(tmp_path: Path) -> None:
    """Parts of parts: part of saved states. The first split by a seed is as without levels."""
    train = Documents(corpus(tmp_path)).split(0.05, seed=42).train
    assert sorted(_names(train.split(0.05, seed=42).validation))[:4] == GOLDEN_NAMES_OF_A_PART
    other = train.split(0.05, seed=1)
    assert str(other.validation.fingerprint["part"]).split(",")[1].startswith("1:0-")
    again = other.train.split(0.05, seed=42)
    assert str(again.validation.fingerprint["part"]).split(",")[2].startswith("42+1:0-")


GOLDEN_NAMES_OF_A_PART = [("c4", 0, 28), ("c4", 0, 46), ("c4", 0, 49), ("c4", 0, 62)]


def _names(documents: Documents) -> set[Any]:
    return {documents.locate(i) for i, tokens in enumerate(documents) if len(tokens)}


def test_states_belong_to_their_part(tmp_path: Path) -> None:
    documents = Documents(corpus(tmp_path))
    split = documents.split(0.2, seed=1)
    assert documents.fingerprint["part"] == ""
    assert split.train.fingerprint["part"] == "1:3333333333333400-ffffffffffffffff"
    for other in (split.validation, documents, documents.split(0.2, seed=2).train):
        with pytest.raises(ValueError, match="does not belong to this data"):
            check_fingerprint(split.train.fingerprint, other.fingerprint)
    check_fingerprint(split.train.fingerprint, documents.split(0.2, seed=1).train.fingerprint)
    copied = pickle.loads(pickle.dumps(split.validation))
    assert [tokens.tolist() for tokens in copied] == [t.tolist() for t in split.validation]


def test_packing_serves_every_token_of_a_part(tmp_path: Path) -> None:
    split = Documents(corpus(tmp_path)).split(0.2, seed=1)
    for documents in split[:2]:
        packed = PackedSequences(documents, sequence_length=5, bos=1000)
        loader = Loader(packed, batch_size=1, seed=3, epochs=1)
        served = np.sort(np.concatenate([batch["inputs"].numpy().ravel() for batch in loader]))
        tokens = sorted(int(token) for one in documents for token in one)
        tokens += [1000] * int(documents.shard_kept.sum())
        left = np.unique(tokens, return_counts=True)
        found = np.unique(served, return_counts=True)
        missing = dict(zip(*left, strict=True))
        for token, count in zip(*found, strict=True):
            missing[token] -= count
        assert min(missing.values()) >= 0
        assert sum(missing.values()) == packed.report.tail + 1


def test_text_is_split_and_tokenized_once(tmp_path: Path) -> None:
    (tmp_path / "dataset=c4").mkdir()
    texts = pa.table({"text": [f"text {i}" for i in range(100)]})
    parquet.write_table(texts, tmp_path / "dataset=c4/x.part0.parquet")
    calls: list[str] = []

    def encode(text: str) -> bytes:
        calls.append(text)
        return text.encode()

    documents = Documents(tmp_path, column="text", tokenizer=encode)
    split = documents.split(0.3)
    assert len(calls) == 100
    assert sum(len(_names(part)) for part in split) == 100


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"validation": 1.0}, ValueError, r"`validation` must be in \[0, 1\), got 1.0"),
    ({"validation": -0.1}, ValueError, r"`validation` must be in \[0, 1\), got -0.1"),
    ({"test": "a"}, TypeError, "`test` must be a share of the documents, got 'a'"),
    ({"validation": True}, TypeError, "`validation` must be a share"),
    ({"validation": 0.5, "test": 0.5}, ValueError, "must be below 1 together, got 0.5 and 0.5"),
    ({"seed": -1}, ValueError, "seed"),
    ({"validation": 1e-9}, ValueError, r"`validation` has no token: 0 documents of 650 with seed"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_errors(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        Documents(corpus(tmp_path)).split(**options)


@pytest.mark.parametrize("threads", [1, 4])
def test_progress(threads: int, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report: Callable[[int, int], None] = lambda done, total: told.append((done, total))  # noqa: E731
    Documents(corpus(tmp_path), threads=threads).split(0.5, progress=report)
    assert told[-1] == (5, 5)
