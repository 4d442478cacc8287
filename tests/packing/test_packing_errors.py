"""Errors of packing: types and messages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from models.packing_model import Model, ModelCorpus
from support.packing_cases import packing
from windeck import PackedSequences


def corpus(*shards: list[list[int]], **filters: Any) -> ModelCorpus:
    return ModelCorpus(list(shards) or [[[1, 2, 3], [4, 5]]], ["int64"] * 9, **filters)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sequence_length": 0}, ValueError, "`sequence_length` must be at least 1, got 0"),
    ({"sequence_length": -3}, ValueError, "`sequence_length` must be at least 1, got -3"),
    ({"sequence_length": 2.0}, TypeError, "`sequence_length` must be an integer, got float 2.0"),
    ({"sequence_length": 2**31}, ValueError, "`sequence_length` must be at most 2147483646"),
    (
        {"sequence_length": 5},
        ValueError,
        "the documents have 5 tokens with their frames, expected 6 or more for a sequence of "
        "`sequence_length` 5 and its targets",
    ),
    (
        {"order": "local"},
        ValueError,
        "`order` must be one of shards, global, mixed, mixed-global, got 'local'",
    ),
    (
        {"order": "global", "padded": True},
        ValueError,
        "`order` must be 'shards' for padded=True",
    ),
    ({"pad": 3}, ValueError, "`pad` must be 0 without padded=True, got 3"),
    ({"padded": True, "pad": None}, TypeError, "`pad` must be an integer, got NoneType None"),
    ({"bos": 2**31, "dtype": "int32"}, ValueError, "`bos` must fit into int32, got 2147483648"),
    ({"eos": -(2**63) - 1}, ValueError, "`eos` must be at least -9223372036854775808"),
    (
        {"padded": True, "pad": -(2**40), "dtype": "int32"},
        ValueError,
        "`pad` must fit into int32, got -1099511627776",
    ),
    ({"eos": "</s>"}, TypeError, "`eos` must be an integer, got str '</s>'"),
    ({"dtype": "int16"}, ValueError, "`dtype` must be 'int64' or 'int32', got 'int16'"),
    ({"dtype": np.float32}, ValueError, "`dtype` must be 'int64' or 'int32', got 'float32'"),
    ({"dtype": torch.uint8}, ValueError, "`dtype` must be 'int64' or 'int32', got 'uint8'"),
    ({"live_shards": 0}, ValueError, "`live_shards` must be at least 1, got 0"),
    ({"threads": 0}, ValueError, "`threads` must be at least 1, got 0"),
    ({"progress": 3}, TypeError, "`progress` must be True, False or a function"),
    ({"cache": 3}, TypeError, "`cache` must be True, False or a folder, got 3"),
    ({"cache": True}, ValueError, "`cache` must be a path for ModelCorpus, which has no folder"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        PackedSequences(corpus(), **{"sequence_length": 2, **options})


def test_dtypes_go_by_any_name() -> None:
    for dtype in ("int32", np.int32, np.dtype("int32"), torch.int32):
        batch = PackedSequences(corpus(), sequence_length=2, dtype=dtype).gather([0])
        assert batch["inputs"].dtype == np.dtype("int32")


def test_documents_that_are_no_corpus() -> None:
    message = "`documents` must be a Documents or .* got list without shard_documents, shard_kept"
    with pytest.raises(TypeError, match=message):
        PackedSequences([[1, 2, 3]], sequence_length=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "counts", "error", "message"),
    [
        (
            "shard_tokens",
            [5],
            TypeError,
            "`shard_tokens` must be a one-dim.* got list",
        ),
        (
            "shard_kept",
            np.array([2.0]),
            TypeError,
            r"`shard_kept` must be a one-dimensional int64 array, got float64 array of shape \(1",
        ),
        ("shard_documents", np.array([[2]]), TypeError, r", got int64 array of shape \(1, 1\)"),
        ("shard_documents", np.array([2, 0]), ValueError, "must have equal lengths, got 2, 1, 1"),
        (
            "shard_tokens",
            np.array([-1]),
            ValueError,
            "2 documents, 2 of them kept, with -1",
        ),
        (
            "shard_kept",
            np.array([3]),
            ValueError,
            "2 documents, 3 of them kept, with 5 tokens",
        ),
        (
            "shard_kept",
            np.array([0]),
            ValueError,
            "2 documents, 0 of them kept, with 5 tokens",
        ),
    ],
)
def test_counts_that_cannot_be(
    name: str, counts: Any, error: type[Exception], message: str
) -> None:
    wrong = corpus()
    setattr(wrong, name, counts)
    with pytest.raises(error, match=message):
        PackedSequences(wrong, sequence_length=2)


@pytest.mark.parametrize("options", [{}, {"order": "global"}, {"padded": True}])
def test_no_token_to_pack(options: Any) -> None:
    message = "there is no token to pack in 2 documents, 0 of them filtered"
    with pytest.raises(ValueError, match=message):
        PackedSequences(corpus([[], []], []), sequence_length=1, **options)
    message = "there is no token to pack in 3 documents, 3 of them filtered"
    filtered = corpus([[1], [1, 2]], [[3]], min_length=3)
    with pytest.raises(ValueError, match=message):
        PackedSequences(filtered, sequence_length=1, eos=0, **options)
    with pytest.raises(ValueError, match="there is no token to pack in 0 documents"):
        PackedSequences(corpus([]), sequence_length=1, bos=1, **options)


@pytest.mark.parametrize("options", [{}, {"order": "global"}, {"padded": True}])
def test_a_sequence_that_does_not_exist(options: Any) -> None:
    packed = PackedSequences(corpus(), sequence_length=1, **options)
    n = len(packed)
    for wrong in (n, -1, 2**62):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range for {n} sequences"):
            packed.gather([0, wrong])
        with pytest.raises(IndexError, match=f"sample {wrong} is out of range for {n} sequences"):
            packed.documents(wrong)
    with pytest.raises(TypeError, match="`indices` must be integers of shape"):
        packed.gather([0.5])
    with pytest.raises(TypeError, match="`indices` must be integers of shape"):
        packed.gather([[0]])
    with pytest.raises(TypeError, match="`sample` must be an integer"):
        packed.documents(0.0)  # type: ignore[arg-type]


def test_a_document_that_does_not_exist() -> None:
    packed = PackedSequences(corpus(), sequence_length=2)
    for wrong in (("even", 0), "even", ["even", 0, 0], (0, 0, 0)):
        with pytest.raises(TypeError, match=r"must be \(dataset_id, shard_id, doc_id\), got"):
            packed.sequences_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="there is no shard 1 of 'even'"):
        packed.sequences_of(("even", 1, 0))
    for number in (-1, 2):
        with pytest.raises(
            IndexError,
            match=f"document {number} is out of range for the 2 documents of shard 0 of 'even'",
        ):
            packed.sequences_of(("even", 0, number))


@pytest.mark.parametrize("epoch", [-1, 2**64])
def test_an_epoch_that_does_not_exist(epoch: int) -> None:
    packed = PackedSequences(corpus(), sequence_length=2)
    with pytest.raises(ValueError, match="`epoch` must be at"):
        packed.at_epoch(epoch)
    with pytest.raises(ValueError, match="`seed` must be at"):
        packed.at_epoch(0, seed=epoch)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "shard 0 of 'even' has 2 documents of 6 tokens with their frames, expected 2 of 5"),
        ({"order": "global"}, "the documents have 6 tokens with their frames, expected 5 as"),
        ({"padded": True}, "shard 0 of 'even' has 2 documents of 6 tokens with their frames"),
    ],
)
def test_a_shard_that_holds_something_else(options: Any, expected: str) -> None:
    wrong = corpus()
    packed = PackedSequences(wrong, sequence_length=2, **options)
    wrong.shards[0][1].append(6)
    with pytest.raises(ValueError, match=expected):
        packed.gather([0])


def test_sequences_that_are_not_what_was_counted() -> None:
    changed = corpus([[1, 2, 3], [4, 5], [6]])
    packed = PackedSequences(changed, sequence_length=2, padded=True)
    changed.shards[0] = [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(ValueError, match="shard 0 of 'even' has 3 sequences, expected 2 as"):
        packed.gather([0])


def test_a_block_that_is_not_what_was_indexed() -> None:
    changed = corpus([[1]] * 2000)
    packed = PackedSequences(changed, sequence_length=1, order="global")
    packed.build_index()
    changed.shards[0][0] = [1] * 5
    with pytest.raises(ValueError, match=r"block \d of the global order has \d+ tokens with"):
        packed.gather(range(len(packed)))


@pytest.mark.parametrize("options", [{}, {"order": "global"}, {"padded": True}])
def test_a_token_that_the_dtype_cannot_hold(options: Any) -> None:
    packed = PackedSequences(
        corpus([[1, 2], [3, 2**31, 4]]), sequence_length=2, dtype="int32", **options
    )
    message = "document 1 of 'shard0' holds token 2147483648, which int32 cannot hold"
    with pytest.raises(ValueError, match=message):
        packed.gather(range(len(packed)))


def test_an_error_of_opening_is_the_callers_and_is_not_kept() -> None:
    class Failing(ModelCorpus):
        fails = True

        def open(self, shard: int) -> Any:
            if self.fails:
                raise OSError("the disk is away")
            return super().open(shard)

    for order, padded in (("shards", False), ("global", False)):
        failing = Failing([[[1, 2, 3]]], ["uint8"])
        packed = packing(Model(failing, 1, order=order, padded=padded))
        with pytest.raises(OSError, match="the disk is away"):
            packed.gather([0])
        failing.fails = False
        assert packed.gather([0, 1])["inputs"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "has 3 documents of 5 tokens with their frames, expected 2 of 5 as counted"),
        ({"order": "global"}, "^shard 0 of 'even' has 3 documents, expected 2 as counted at the"),
    ],
)
@pytest.mark.parametrize("shard", [[[1, 2], [3], [4, 5]], [[1, 2, 3, 4, 5]]])
def test_a_shard_of_as_many_tokens_in_other_documents(
    options: Any, expected: str, shard: list[list[int]]
) -> None:
    wrong = corpus()
    packed = PackedSequences(wrong, sequence_length=2, **options)
    wrong.shards[0] = shard
    with pytest.raises(
        ValueError, match=expected.replace("3 documents", rf"{len(shard)} documents")
    ):
        packed.gather([0])


def test_sequences_are_counted_of_what_was_said_to_be_there() -> None:
    wrong = corpus()
    wrong.shards[0] = [[1, 2, 3, 4, 5, 6], []]
    with pytest.raises(ValueError, match=r"has 2 documents of 6 tokens .*, expected 2 of 5 as"):
        PackedSequences(wrong, sequence_length=2, padded=True)
