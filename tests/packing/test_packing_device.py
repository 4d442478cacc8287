"""Packed sequences on a device: the values of the native packing, on `cpu` and on CUDA."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from models.packing_model import Model, ModelCorpus
from support.held_tensors import held_tensors
from support.internals import plant, planted
from support.meta_device import META, moved
from support.packing_cases import QUIET, WAYS, corpus, models, packing
from windeck import Loader, Mixture, PackedSequences
from windeck.loader import as_tensors

#: Further keys of a batch.
KEYS = ("targets_mask", "document_ids", "max_seqlen")

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    ),
]
Tensors = dict[str, torch.Tensor]


def check_equal(found: Tensors, expected: Tensors) -> None:
    """Compare keys, their order, dtypes, shapes and values."""
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key].cpu(), tensor), key


@pytest.mark.parametrize("device", DEVICES)
@settings(QUIET, max_examples=250)
@given(models(), st.sampled_from(["int64", "int32"]), st.integers(0, 9), st.integers(0, 2**64 - 1))
def test_batches_equal_those_of_the_native_packing(
    device: str, model: Model, dtype: str, epoch: int, seed: int
) -> None:
    """All sequences of an epoch, in any order and with any frames, are those in host memory."""
    packed = packing(model, dtype=dtype, keys=KEYS)
    moved = packed.to(device)
    assert len(moved) == len(packed)
    assert moved.fingerprint == packed.fingerprint
    one, two = moved.at_epoch(epoch, seed=seed), packed.at_epoch(epoch, seed=seed)
    rng = np.random.default_rng(epoch)
    chosen: list[Any] = [np.arange(len(packed)), rng.integers(0, len(packed), 3), []]
    for numbers in chosen:
        check_equal(one.gather_tensors(numbers), as_tensors(two.gather(numbers), {}))
    assert sum(held_tensors(moved).values()) <= packed.device_bytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_loaders_give_the_same_batches_and_states(
    device: str, way: dict[str, Any], shuffle: bool
) -> None:
    """Batches and states are the same on every rank, over borders of epochs, and resume."""
    packed = PackedSequences(corpus(), sequence_length=16, eos=99, bos=98, **way)
    moved = packed.to(device)
    options: dict[str, Any] = {"batch_size": 3, "shuffle": shuffle, "world_size": 2, "rank": 1}
    host, other = Loader(packed, **options), Loader(moved, **options)
    assert other.prefetch == 0
    for _ in range(2):
        for one, two in zip(host, other, strict=True):
            check_equal(two, one)
            assert host.state_dict() == other.state_dict()
    next(iter(host))
    state = json.loads(json.dumps(host.state_dict()))
    options |= {"batch_size": 4, "world_size": 1, "rank": 0}
    host, other = Loader(packed, **options), Loader(moved, **options)
    host.load_state_dict(state)
    other.load_state_dict(state)
    check_equal(other.peek(), host.peek())
    for one, two in zip(host, other, strict=True):
        check_equal(two, one)
    document = packed.documents(0)[0][:3]
    assert other.visited(document) == host.visited(document)
    assert other.served() == host.served()
    assert other.served(documents=False) == host.served(documents=False)
    assert host.served().documents_finished is not None
    epoch = moved.at_epoch(1)
    assert epoch.tokens_per_sample == packed.at_epoch(1).tokens_per_sample


def test_batches_across_epochs_are_the_same() -> None:
    """A batch of several epochs has the rows of each, and one `cu_seqlens`."""
    packed = PackedSequences(corpus(2), sequence_length=50, eos=99)
    host, other = (
        Loader(Mixture({"one": (part, 1)}, seed=5), batch_size=2 * len(packed) + 3, max_steps=3)
        for part in (packed, packed.to("cpu"))
    )
    for one, two in zip(host, other, strict=True):
        check_equal(two, one)


@pytest.mark.parametrize(
    ("dtypes", "tokens", "stored"),
    [
        (["uint8"], [0, 255], "uint8"),
        (["uint16"], [0, 65535], "uint16"),
        (["uint8", "uint16"], [7], "uint16"),
        (["int8"], [-3, 100], "int32"),
        (["int32"], [-(2**31), 2**31 - 1], "int32"),
        (["uint32"], [2**32 - 1], "int64"),
        (["int64"], [-(2**63), 2**63 - 1], "int64"),
        (["uint64"], [2**63 - 1], "int64"),
    ],
)
def test_tokens_take_few_bytes_and_keep_their_values(
    dtypes: list[str], tokens: list[int], stored: str
) -> None:
    """The stored dtype is the narrowest for the dtypes of shards; extreme tokens are right."""
    documents = [[tokens * 4, tokens] for _ in dtypes]
    packed = PackedSequences(ModelCorpus(documents, dtypes), sequence_length=2, eos=3)
    moved = packed.to("cpu")
    framed = len(dtypes) * (5 * len(tokens) + 2)
    assert sum(held_tensors(moved).values()) == framed * np.dtype(stored).itemsize
    numbers = np.arange(len(packed))
    check_equal(moved.gather_tensors(numbers), as_tensors(packed.gather(numbers), {}))


def test_frames_widen_the_stored_dtype() -> None:
    """A frame that the dtype of tokens cannot hold is stored all the same."""
    for eos, stored in ((255, "uint8"), (256, "uint16"), (70_000, "int32"), (-1, "int32")):
        packed = PackedSequences(
            ModelCorpus([[[1, 2], [3]]], ["uint8"]), sequence_length=2, eos=eos
        )
        moved = packed.to("cpu")
        assert sum(held_tensors(moved).values()) == 5 * np.dtype(stored).itemsize
        check_equal(moved.gather_tensors([0, 1]), as_tensors(packed.gather([0, 1]), {}))


def test_a_token_that_does_not_fit_is_refused_when_it_moves() -> None:
    """The error of the native packing names the token and its document."""
    documents = ModelCorpus([[[1, 2, 3], [4, 2**40]]], ["int64"])
    packed = PackedSequences(documents, sequence_length=2, dtype="int32")
    with pytest.raises(ValueError, match=r"holds token 1099511627776, which int32 cannot hold$"):
        packed.to("cpu")


def test_tokens_are_copied_some_at_a_time() -> None:
    """Copies that end within documents, with one token left, give the same tokens."""
    data = corpus(3)
    packed = PackedSequences(data, sequence_length=16, eos=99)
    numbers = np.arange(len(packed))
    expected = as_tensors(packed.gather(numbers), {})
    for count in (1, 7, int(data.shard_tokens[0] + data.shard_documents[0]) - 1):
        with planted("device.TOKENS_AT_A_TIME", count):
            moved = packed.to("cpu")
        check_equal(moved.gather_tensors(numbers), expected)


def test_the_mixed_order_shares_the_tokens() -> None:
    """`shuffled` copies no tokens, and keeps an order that is mixed."""
    moved = PackedSequences(corpus(3), sequence_length=16, eos=99).to("cpu")
    mixed = moved.shuffled()
    assert held_tensors(mixed) == held_tensors(moved)
    assert mixed.shuffled() is mixed
    assert mixed.packed.options.order == "mixed"


@pytest.mark.parametrize("bos", [None, 98])
@pytest.mark.parametrize("eos", [None, 99])
def test_padded_sequences_that_are_full_by_a_token_more_or_less(
    bos: int | None, eos: int | None
) -> None:
    """Documents around the length of a sequence fill it, or are cut, as in the native packing."""
    sizes = [7, 8, 9, 15, 16, 17, 1, 2, 0, 24, 25, 3]
    documents = [[list(range(size)) for size in sizes], [], [[5]], [list(range(8))] * 3]
    for length in (2, 7, 8, 9):
        packed = PackedSequences(
            ModelCorpus(documents, ["uint16"] * 4), sequence_length=length, padded=True, pad=50,
            sequence_bos=bos, sequence_eos=eos, dtype="int32", keys=KEYS,
        )  # fmt: skip
        moved = packed.to("cpu")
        numbers = np.arange(len(packed))
        for epoch in range(3):
            one, two = moved.at_epoch(epoch, seed=4), packed.at_epoch(epoch, seed=4)
            check_equal(one.gather_tensors(numbers), as_tensors(two.gather(numbers), {}))


def test_padded_sequences_are_shared_by_the_mixed_order() -> None:
    """`shuffled` of padded sequences copies neither tokens nor segments."""
    source = PackedSequences(corpus(3), sequence_length=16, padded=True).to("cpu")
    mixed = source.shuffled()
    assert mixed.packed.options.order == "mixed"
    held = held_tensors(source)
    assert held_tensors(mixed) == held
    assert len(held) == 4  # Tokens, and of the segments their borders and shifts, and what is held.
    mixed.at_epoch(2, seed=1).gather_tensors([0])
    # An epoch has the numbers of its sequences.
    of_epoch = held_tensors(mixed).items() - held.items()
    assert [nbytes for _, nbytes in of_epoch] == [8 * len(mixed)]


def test_device_bytes_are_known_before_anything_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are those of tokens and of two epochs, and what does not fit is refused."""
    data = corpus(3)
    tokens = int(data.shard_tokens.sum())
    packed = PackedSequences(data, sequence_length=16, eos=99, order="mixed")
    needed = packed.device_bytes()
    orders = 2 * 8 * (2 * 120 + 1 + len(packed))
    assert needed == (tokens + 120) * 2 + orders
    # In a report without opening a shard: in the dtype of batches.
    assert packed.explain().device_bytes == (tokens + 120) * 8 + orders
    padded = PackedSequences(data, sequence_length=16, padded=True)
    stored = 2 * (120 + len(padded)) + len(padded) + 2 * len(padded)
    assert padded.device_bytes() == tokens * 2 + 8 * stored
    plant(monkeypatch, "device._free_bytes", lambda device: needed - 1)
    with pytest.raises(MemoryError, match=rf"^the tokens need {needed:,} bytes on cpu, expected"):
        packed.to("cpu")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_no_operation_of_a_batch_mixes_devices(way: dict[str, Any]) -> None:
    """All operations of the rows of a batch are on the device of the tokens."""
    packed = PackedSequences(corpus(3), sequence_length=16, eos=99, keys=KEYS, **way)
    source: Any = packed.to("cpu")
    expected = source.at_epoch(1, seed=2).gather_row_tensors([0, 1])
    with FakeTensorMode():
        epoch = moved(source).at_epoch(2, seed=2)
        rows = epoch.gather_row_tensors(torch.empty(2, dtype=torch.int64, device=META))
    assert list(rows) == list(expected)
    assert all(tensor.device == META for tensor in rows.values())
    assert all(rows[key].shape == expected[key].shape for key in expected)


def test_samples_outside_are_refused() -> None:
    """Samples below 0 and above the last are index errors in every order."""
    for way in WAYS:
        packed = PackedSequences(corpus(3), sequence_length=16, eos=99, **way)
        moved = packed.to("cpu")
        for sample in (-1, len(packed), 2**40, -(2**40)):
            with pytest.raises(IndexError):
                moved.gather_tensors([0, sample])


def test_what_needs_arrays_is_refused() -> None:
    """`gather` says that batches are tensors."""
    moved = PackedSequences(corpus(3), sequence_length=16, eos=99).to("cpu")
    for source in (moved, moved.at_epoch(1, seed=3)):
        with pytest.raises(TypeError, match=r"^sequences on cpu give tensors, not NumPy arrays"):
            source.gather([0])


def test_a_pickled_source_moves_again() -> None:
    """A pickle holds the sequences in host memory and the name of the device."""
    moved = PackedSequences(corpus(3), sequence_length=16, eos=99).to("cpu")
    again = pickle.loads(pickle.dumps(moved))
    assert repr(again).endswith(" on cpu")
    check_equal(again.gather_tensors([2]), moved.gather_tensors([2]))


def test_mixtures_have_the_keys_of_the_whole_batch() -> None:
    """`cu_seqlens` and the keys on request count through the rows of all parts."""
    options: dict[str, Any] = {"sequence_length": 16, "eos": 99, "keys": KEYS}
    parts = [
        PackedSequences(corpus(3), **options),
        PackedSequences(corpus(5), order="mixed", **options),
    ]
    moved: list[Any] = [part.to("cpu") for part in parts]
    host, other = (
        Mixture({str(number): (part, 0.5) for number, part in enumerate(data)}, seed=1)
        for data in (parts, moved)
    )
    loaders = Loader(host, batch_size=7), Loader(other, batch_size=7)
    for one, two, _ in zip(*loaders, range(40), strict=False):
        check_equal(two, one)
        assert two["inputs"].untyped_storage().data_ptr() == (
            two["targets"].untyped_storage().data_ptr()
        )
