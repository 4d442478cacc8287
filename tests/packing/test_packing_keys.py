"""Keys of packed batches that are made on request, compared with the model."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packing_model import Model
from support.packing_cases import QUIET, corpus, models, packing
from windeck import IterDataset, Loader, Mixture, PackedSequences, Stream

KEYS = ("targets_mask", "document_ids", "max_seqlen")


@QUIET
@given(models(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_keys_equal_the_model(model: Model, epoch: int, random: Any) -> None:
    source = packing(model, keys=KEYS).at_epoch(epoch, seed=1)
    rows = model.rows(epoch, 1)
    chosen = [random.randrange(len(rows)) for _ in range(random.randrange(7))]
    batch = source.gather(np.array(chosen, np.int64))
    # The model makes a mask for padded rows.
    padded = Model(**{**vars(model), "padded": True})
    expected = padded.batch([rows[row] for row in chosen], "int64")
    assert batch["targets_mask"].dtype == bool
    for key, array in expected.items():
        np.testing.assert_array_equal(batch[key], array, err_msg=key)
    number, run, longest = -1, 0, 0
    for place, position in enumerate(batch["position_ids"].reshape(-1).tolist()):
        run = 1 if position == 0 else run + 1
        number, longest = number + (position == 0), max(longest, run)
        assert batch["document_ids"].reshape(-1)[place] == number
    assert batch["document_ids"].dtype == batch["max_seqlen"].dtype == np.int32
    assert batch["document_ids"].shape == (len(chosen), model.length)
    assert batch["max_seqlen"].shape == ()
    assert batch["max_seqlen"] == longest


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("padded", [False, True])
def test_arrays_of_several_batches_are_those_of_each(dtype: str, padded: bool) -> None:
    options: Any = {"padded": padded, "dtype": dtype, "keys": list(KEYS)}
    packed = PackedSequences(corpus(), sequence_length=16, **options)
    rows = packed.gather_rows(range(12))
    for source in (packed, packed.at_epoch(0)):
        for count in (1, 3, 4, 12):
            found = source.wholes(rows, count)
            assert set(map(len, found.values())) == {count}
            size = 12 // count
            for number in range(count):
                own = slice(number * size, (number + 1) * size)
                expected = packed.whole({key: array[own] for key, array in rows.items()})
                assert found.keys() == expected.keys()
                for key, array in expected.items():
                    np.testing.assert_array_equal(found[key][number], array, err_msg=key)
                    assert found[key][number].dtype == array.dtype
        with pytest.raises(ValueError, match="batches is 5, which does not divide"):
            source.wholes(rows, 5)


@pytest.mark.parametrize("keys", [(), *((key,) for key in KEYS), KEYS])
def test_only_what_was_asked_for_is_added(keys: Any) -> None:
    plain = PackedSequences(corpus(), sequence_length=16)
    packed = PackedSequences(corpus(), sequence_length=16, keys=keys)
    assert packed.fingerprint == plain.fingerprint
    expected = plain.gather([3, 1])
    for source in (packed, pickle.loads(pickle.dumps(packed)), packed.at_epoch(0, seed=0)):
        batch = source.gather([3, 1])
        assert batch.keys() == expected.keys() | set(keys)
        for key, array in expected.items():
            np.testing.assert_array_equal(batch[key], array)
    assert packed.shuffled().gather([3, 1]).keys() == batch.keys()


def test_arrays_of_a_batch_are_aligned_to_64_bytes() -> None:
    packed = PackedSequences(corpus(), sequence_length=16, keys=list(KEYS))
    held = [packed.gather(range(count)) for count in (1, 2, 3, 5, 8, 9)]
    views = {"inputs", "targets", "targets_mask"}
    assert {"cu_seqlens", "document_ids", "max_seqlen"} <= held[0].keys() - views
    for batch in held:
        for key in batch.keys() - views:
            assert batch[key].ctypes.data % 64 == 0, key
            assert batch[key].flags.writeable, key


def test_keys_of_loaders_and_mixtures_belong_to_the_whole_batch() -> None:
    def part(**options: Any) -> PackedSequences:
        return PackedSequences(corpus(), sequence_length=16, keys=list(KEYS), **options)

    mixture = Mixture({"a": (part(), 1), "b": (part(order="mixed"), 2)}, seed=1)
    for data in (Stream(part(order="mixed"), seed=1), mixture):
        for batch in (
            next(iter(Loader(data, batch_size=9))),
            next(iter(IterDataset(data, batch_size=9))),
        ):
            offsets = batch["cu_seqlens"].numpy()
            ids = batch["document_ids"].numpy().reshape(-1)
            lengths = np.bincount(ids)
            assert lengths.tolist() == np.diff(offsets).tolist()
            assert int(batch["max_seqlen"]) == lengths.max()
            # A target of the same document follows its input.
            flat = batch["position_ids"].numpy()
            mask = batch["targets_mask"].numpy()
            same = flat[:, 1:] == flat[:, :-1] + 1
            assert mask[:, :-1].tolist() == same.tolist()
    other = PackedSequences(corpus(), sequence_length=16)
    with pytest.raises(ValueError, match=r"part 'b' has no key 'targets_mask', unlike part 'a'"):
        Mixture({"a": (part(), 1), "b": (other, 1)})


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (["masks"], ValueError, r"some of targets_mask, document_ids, max_seqlen, got 'masks'$"),
        ("max_seqlen", TypeError, r"^`keys` must be a sequence of strings, got 'max_seqlen'$"),
        (None, TypeError, r"^`keys` must be a sequence of strings, got None$"),
    ],
)
def test_bad_keys(keys: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PackedSequences(corpus(), sequence_length=16, keys=keys)
