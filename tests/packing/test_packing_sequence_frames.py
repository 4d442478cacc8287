"""BOS and EOS tokens of every sequence; all packings are compared with lists in test_packing.py."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.packing_model import ModelCorpus
from support.packing_cases import WAYS, corpus
from windeck import Loader, PackedSequences

BOS, EOS = 1000, 2000

FRAMES: list[dict[str, Any]] = [
    {"sequence_bos": BOS},
    {"sequence_eos": EOS},
    {"sequence_bos": BOS, "sequence_eos": EOS},
]


def numbered(shards: int = 6) -> ModelCorpus:
    """Documents whose tokens are all different."""
    numbers = iter(range(10**6))
    sizes = [[3 * n % 17 for n in range(shard, shard + 12)] for shard in range(shards)]
    stored = [[[next(numbers) + 10_000 for _ in range(n)] for n in shard] for shard in sizes]
    return ModelCorpus(stored, ["int32"] * shards)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("way", WAYS)
def test_every_sequence_begins_and_ends_with_the_tokens(way: Any, frame: Any) -> None:
    packed = PackedSequences(numbered(), sequence_length=9, **way, **frame)
    seen = Counter[int]()
    for row in packed.gather_rows(range(len(packed)))["tokens"]:
        filled = row[row != 50] if "pad" in way else row
        assert ("sequence_bos" not in frame) or filled[0] == BOS
        assert ("sequence_eos" not in frame) or filled[-1] == EOS
        inner = filled["sequence_bos" in frame :]
        inner = inner[: len(inner) - ("sequence_eos" in frame)]
        assert (inner >= 10_000).all()
        # A token is a target if another one is before it.
        seen.update(inner.tolist() if "sequence_bos" in frame else inner[1:].tolist())
    # The rest of a long document repeats a token, unless every sequence begins with a BOS.
    assert max(seen.values()) == (2 if "pad" in way and "sequence_bos" not in frame else 1)
    total = int(packed.corpus.shard_tokens.sum())
    if "sequence_bos" in frame:
        assert len(seen) == total - packed.report.tail
    assert packed.report.sequence_frames == len(packed) * len(frame)


def test_keys_put_the_frame_into_the_pieces_next_to_it() -> None:
    data = ModelCorpus([[[11, 12, 13], [21, 22, 23, 24]]], ["int32"])
    keys = ["targets_mask", "document_ids", "max_seqlen"]
    options: dict[str, Any] = {"sequence_bos": 1, "sequence_eos": 2, "keys": keys}
    packed = PackedSequences(data, sequence_length=8, padded=True, pad=99, **options)
    (order,) = packed.at_epoch(0, seed=0).documents(0)[0:1]
    assert order.doc_id == 0
    batch = packed.gather([0])
    assert batch["inputs"].tolist() == [[1, 11, 12, 13, 21, 22, 23, 24]]
    assert batch["targets"].tolist() == [[11, 12, 13, 21, 22, 23, 24, 2]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert batch["targets_mask"].tolist() == [[True, True, True, False, True, True, True, True]]
    assert batch["cu_seqlens"].tolist() == [0, 4, 8]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert batch["max_seqlen"] == 4
    longer = PackedSequences(data, sequence_length=11, padded=True, pad=99, **options).gather([0])
    assert longer["inputs"].tolist() == [[1, 11, 12, 13, 21, 22, 23, 24, 2, 99, 99]]
    assert longer["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1]]
    assert longer["targets_mask"].tolist() == [[True] * 3 + [False] + [True] * 4 + [False] * 3]
    assert longer["cu_seqlens"].tolist() == [0, 4, 9, 11]


def test_sequences_follow_each_other_without_a_token_lost() -> None:
    data = ModelCorpus([[list(range(10, 31))]], ["int32"])

    def rows(length: int, **options: Any) -> Any:
        packed = PackedSequences(data, sequence_length=length, **options)
        return packed.gather_rows(range(len(packed)))["tokens"].tolist(), packed.report.tail

    assert rows(5, sequence_bos=1) == (
        [[1, *range(start, start + 5)] for start in (10, 15, 20, 25)],
        1,
    )
    assert rows(5, sequence_eos=2) == (
        [[*range(start, start + 5), 2] for start in (10, 14, 18, 22, 26)],
        0,
    )
    assert rows(5, sequence_bos=1, sequence_eos=2) == (
        [[1, *range(start, start + 4), 2] for start in (10, 14, 18, 22, 26)],
        1,
    )
    assert rows(1, sequence_bos=1) == ([[1, token] for token in range(10, 31)], 0)


def test_frames_of_documents_and_sequences_are_independent() -> None:
    data = ModelCorpus([[[11, 12], [21]]], ["int32"])
    packed = PackedSequences(
        data, sequence_length=8, bos=3, eos=4, sequence_bos=1, sequence_eos=2, padded=True, pad=99
    )
    assert packed.gather_rows([0])["tokens"].tolist() == [[1, 3, 11, 12, 4, 3, 21, 4, 2]]


def test_an_option_that_is_not_used_changes_nothing() -> None:
    plain = PackedSequences(corpus(), sequence_length=16)
    unused = PackedSequences(corpus(), sequence_length=16, sequence_bos=None, sequence_eos=None)
    assert plain.fingerprint == unused.fingerprint
    assert repr(plain) == repr(unused)
    assert "BOS or EOS of sequences" not in str(plain.report)


@pytest.mark.parametrize("frame", FRAMES)
def test_used_options_are_in_fingerprints_reports_and_pickles(frame: Any) -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order="mixed", padded=True, **frame)
    again = pickle.loads(pickle.dumps(packed))
    assert frame.items() <= packed.fingerprint.items()
    assert again.fingerprint == packed.fingerprint
    np.testing.assert_array_equal(again.gather([4])["inputs"], packed.gather([4])["inputs"])
    assert f"{len(packed) * len(frame):,} tokens more, BOS or EOS of sequences" in str(
        packed.report
    )
    assert all(f"{name}={token}" in repr(packed) for name, token in frame.items())


def test_a_state_of_other_sequences_is_refused() -> None:
    state = Loader(PackedSequences(corpus(), sequence_length=16), batch_size=2).state_dict(step=3)
    framed = Loader(PackedSequences(corpus(), sequence_length=16, sequence_bos=1), batch_size=2)
    with pytest.raises(ValueError, match=r"sequence_bos|samples"):
        framed.load_state_dict(json.loads(json.dumps(state)))


@pytest.mark.parametrize("first", [{}, *FRAMES])
def test_counts_of_padded_sequences_are_cached_for_each_frame(first: Any, tmp_path: Path) -> None:
    # A frame and a longer sequence hold the same number of tokens, but share others.
    for options in [
        {"sequence_length": 16, **first},
        *({"sequence_length": 17, **f} for f in FRAMES),
    ]:
        fresh = PackedSequences(corpus(), padded=True, **options)
        cached = PackedSequences(corpus(), padded=True, cache=tmp_path, **options)
        assert len(cached) == len(fresh)
        assert cached.report == fresh.report


def test_tokens_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^`sequence_length` must be at least 2 with `sequence_eos`, got 1: a seq"
    ):
        PackedSequences(corpus(), sequence_length=1, sequence_eos=2)
    with pytest.raises(ValueError, match=r"^`sequence_bos` must fit into int32, got 2147483648$"):
        PackedSequences(corpus(), sequence_length=8, sequence_bos=2**31, dtype="int32")
    with pytest.raises(TypeError, match=r"^`sequence_eos` must be an integer, got bool True$"):
        PackedSequences(corpus(), sequence_length=8, sequence_eos=True)
    short = ModelCorpus([[[1, 2, 3]]], ["int32"])
    with pytest.raises(ValueError, match=r"^the documents have 3 tokens .* expected 4 or more for"):
        PackedSequences(short, sequence_length=4, sequence_bos=2)
    assert len(PackedSequences(short, sequence_length=3, sequence_bos=2)) == 1
