"""PackedSequences, compared with a model of plain lists."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.packing_model import Model, ModelCorpus, Row
from support.packing_cases import QUIET, models, packing
from windeck import PackedSequences
from windeck.packing import Piece

Array = np.ndarray[Any, Any]


WAYS = [
    ("shards", False),
    ("global", False),
    ("shards", True),
    ("mixed", False),
    ("mixed-global", False),
]


def equal(batch: dict[str, Array], expected: dict[str, Array]) -> None:
    assert set(batch) == set(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(batch[key], array, err_msg=key, strict=True)


def named(model: Model, row: Row) -> list[Piece]:
    return [Piece(*model.corpus.shard_name(shard), *piece) for shard, *piece in row]


def out_arrays(model: Model, rows: int, dtype: str) -> dict[str, Array]:
    """Return arrays to write into, filled with other values."""
    out = {
        "tokens": np.full((rows, model.length + 1), -7, dtype),
        "position_ids": np.full((rows, model.length), -7, dtype),
    }
    if model.padded:
        out["targets_mask"] = np.full((rows, model.length), True)
    return out


@settings(QUIET, max_examples=250)
@given(
    models(),
    st.integers(0, 3),
    st.sampled_from([0, 1, 2**64 - 1]),
    st.sampled_from(["int64", "int32"]),
    st.randoms(use_true_random=False),
)
def test_an_epoch_equals_the_model(
    model: Model, epoch: int, seed: int, dtype: str, random: Any
) -> None:
    source = packing(model, dtype=dtype).at_epoch(epoch, seed=seed)
    rows = model.rows(epoch, seed)
    assert len(source) == len(rows)
    for chosen in (
        list(range(len(rows))),
        [random.randrange(len(rows)) for _ in range(random.randrange(6))],
    ):
        expected = model.batch([rows[i] for i in chosen], dtype)
        threads = random.choice([1, 3, None])
        equal(source.gather(np.array(chosen, np.int64), threads=threads), expected)
        out = out_arrays(model, len(chosen), dtype)
        batch = source.gather(chosen, out, threads=threads)
        equal(batch, expected)
        assert np.shares_memory(batch["inputs"], out["tokens"]) or not chosen


@settings(QUIET, max_examples=100)
@given(models(), st.integers(0, 2))
def test_documents_and_sequences_are_inverse(model: Model, epoch: int) -> None:
    sequences = packing(model)
    rows = model.rows(epoch, 5)
    holding: dict[tuple[int, int], list[int]] = {}
    for sample, row in enumerate(rows):
        assert sequences.documents(sample, epoch=epoch, seed=5) == named(model, row)
        for shard, document, *_ in row:
            held = holding.setdefault((shard, document), [])
            if sample not in held:
                held.append(sample)
    for shard, documents in enumerate(model.corpus.shards):
        for number in range(len(documents)):
            name = (*model.corpus.shard_name(shard), number)
            found = sequences.sequences_of(name, epoch=epoch, seed=5)
            assert found.dtype == np.int64
            assert found.tolist() == holding.get((shard, number), [])


@settings(QUIET, max_examples=100)
@given(models(), st.integers(0, 2))
def test_every_token_is_served_once_but_the_tail(model: Model, epoch: int) -> None:
    sequences = packing(model)
    targets, firsts = Counter[Any](), Counter[Any]()
    for sample in range(len(sequences)):
        pieces = sequences.documents(sample, epoch=epoch)
        tokens = [(p[:3], i) for p in pieces for i in range(p.start, p.stop)]
        # The first token of a sequence is a target after a token before it only.
        own = 0 if model.padded or model.sequence_bos is not None else 1
        firsts.update(tokens[:own])
        targets.update(tokens[own:])
    total = model.total()
    assert sequences.report.tokens == total
    if model.padded:
        # Adjacent pieces of a split document share one token if it is no target of the second.
        assert len(targets) == total
        assert max(targets.values()) <= (2 if model.sequence_bos is None else 1)
        padding = len(sequences) * (model.length + 1 - model.extra()) - targets.total()
        assert sequences.report.padding == padding
        assert sequences.report.tail == 0
    else:
        assert set(targets.values()) == {1}
        assert len(set(targets) | set(firsts)) == total - sequences.report.tail
        assert 0 <= sequences.report.tail < model.stride()
    assert sequences.report.sequence_frames == len(sequences) * model.extra()


def test_epochs_seeds_and_orders_are_all_different() -> None:
    rng = np.random.default_rng(0)
    shards = [[rng.integers(0, 99, 5).tolist() for _ in range(30)] for _ in range(6)]
    corpus = ModelCorpus(shards, ["int32"] * 6)
    for order, padded in WAYS:
        sequences = packing(Model(corpus, 7, order=order, padded=padded))
        epochs = [sequences.at_epoch(e, seed=s) for e in range(4) for s in (0, 1, 42, 43)]
        tokens = {each.gather_rows(range(len(sequences)))["tokens"].tobytes() for each in epochs}
        assert len(tokens) == 16


def test_the_sequences_themselves_are_epoch_0_of_seed_0() -> None:
    shards = [[[1, 2, 3], [4]], [[5, 6, 7, 8]]]
    corpus = ModelCorpus(shards, ["uint8", "int64"])
    sequences = PackedSequences(corpus, sequence_length=2, eos=9)
    equal(sequences.gather([1, 0]), sequences.at_epoch(0, seed=0).gather([1, 0]))
    assert sequences.documents(1) == sequences.at_epoch(0, seed=0).documents(1)
    assert sequences.at_epoch(0).sequences_of(("odd", 0, 0)).tolist() == (
        sequences.sequences_of(("odd", 0, 0)).tolist()
    )


def test_a_batch_of_no_rows_opens_nothing() -> None:
    corpus = ModelCorpus([[[1, 2, 3]]], ["uint8"])
    sequences = PackedSequences(corpus, sequence_length=2, order="global", dtype="int32")
    batch = sequences.gather([])
    assert {key: a.shape for key, a in batch.items()} == {
        "inputs": (0, 2),
        "targets": (0, 2),
        "position_ids": (0, 2),
        "cu_seqlens": (1,),
    }
    assert {a.dtype.name for a in batch.values()} == {"int32"}
    assert corpus.opened == []


def test_long_documents_many_shards_and_many_blocks() -> None:
    """Sizes that hypothesis does not reach: several blocks, large shards, one long text."""
    rng = np.random.default_rng(3)
    sizes: list[list[int]] = [[], [], [], rng.integers(0, 6, 1500).tolist(), [9000], *[[1]] * 400]
    shards = [[rng.integers(0, 250, n).tolist() for n in shard] for shard in sizes]
    corpus = ModelCorpus(shards, ["uint8"] * len(shards))
    for order, padded in WAYS:
        model = Model(corpus, 100, None, 255, order, padded)
        source = packing(model, threads=2).at_epoch(1, seed=9)
        rows = model.rows(1, 9)
        equal(source.gather(range(len(rows)), threads=2), model.batch(rows, "int64"))
        for document in (0, 700, 1499):
            held = [
                sample
                for sample, row in enumerate(rows)
                if any(piece[:2] == (3, document) for piece in row)
            ]
            assert source.sequences_of(("odd", 1, document)).tolist() == held


@pytest.mark.slow
@settings(QUIET, max_examples=8000, derandomize=False)
@given(models(), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_many_more_epochs_equal_the_model(model: Model, epoch: int, seed: int) -> None:
    rows = model.rows(epoch, seed)
    source = packing(model).at_epoch(epoch, seed=seed)
    equal(source.gather(range(len(rows))), model.batch(rows, "int64"))
