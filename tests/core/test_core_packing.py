"""The native calls of packing: right, or refused in one sentence, whatever they are handed."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

from support.programs import printed
from support.threads import at_once
from windeck import _core

Array = np.ndarray[Any, Any]


def shard_of(*documents: list[int], dtype: str = "int32", **options: Any) -> Any:
    values = np.array([t for d in documents for t in d], dtype)
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return _core.TokenShard.from_arrays(values, offsets, name="texts", **options)


def run_of(*documents: list[int], **options: Any) -> Any:
    return _core.DocumentRun(shard_of(*documents), **options)


ARRAY = np.array([0], np.int64)
ROW = {
    "row_offsets": np.array([0, 1]),
    "document_run_of": np.array([0]),
    "starts": np.array([0]),
    "lengths": np.array([3]),
}


def pack(document_runs: Any = None, **options: Any) -> Any:
    given = {**ROW, "sequence_length": 2, **options}
    arrays = [given.pop(name) for name in ROW]
    return _core.pack(
        [run_of([1, 2, 3])] if document_runs is None else document_runs, *arrays, **given
    )


def test_a_row() -> None:
    batch = pack([run_of([5, 6], [7], bos=1, seed=None)], lengths=np.array([4]), sequence_length=3)
    assert batch["tokens"].tolist() == [[1, 5, 6, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2]]
    assert batch["tokens"].dtype == batch["position_ids"].dtype == np.int64
    for array in batch.values():
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0


def test_a_padded_row_of_int32() -> None:
    batch = pack([run_of([5, 6])], lengths=np.array([2]), sequence_length=3, pad=9, dtype="int32")
    assert batch["tokens"].tolist() == [[5, 6, 9, 9]]
    assert batch["position_ids"].tolist() == [[0, 1, 0]]
    assert batch["targets_mask"].tolist() == [[True, False, False]]
    assert batch["tokens"].dtype == batch["position_ids"].dtype == np.int32


BAD_ROWS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"document_runs": [3]},
        TypeError,
        "document_runs holds an object that is of type int, expected DocumentRun",
    ),
    ({"row_offsets": np.empty(0, np.int64)}, ValueError, "row_offsets has no entry, expected one"),
    ({"row_offsets": np.array([1, 1])}, ValueError, "row_offsets do not lead from 0 to 1"),
    ({"row_offsets": np.array([0, 2])}, ValueError, "row_offsets do not lead from 0 to 1"),
    ({"row_offsets": np.array([0, 2, 1])}, ValueError, "row_offsets do not lead from 0 to 1"),
    ({"row_offsets": np.array([0, 1, 1])}, ValueError, "row 1 has less than 3 tokens"),
    (
        {"document_run_of": np.array([1])},
        ValueError,
        "piece 0 is of document run 1, expected one of 1",
    ),
    (
        {"document_run_of": np.array([-1])},
        ValueError,
        "piece 0 is of document run -1, expected one of 1",
    ),
    (
        {"document_run_of": np.array([0], np.int32)},
        TypeError,
        "document_run_of has dtype int32, expected int64",
    ),
    ({"starts": np.array([1])}, ValueError, "piece 0 has 3 tokens from 1 on, expected a part of"),
    ({"starts": np.array([-1])}, ValueError, "piece 0 has 3 tokens from -1 on"),
    (
        {"starts": np.array([2**63 - 1])},
        ValueError,
        "piece 0 has 3 tokens from 92233720368547758",
    ),
    (
        {"starts": np.array([0, 0])},
        ValueError,
        "document_run_of, starts and lengths have 1, 2 and 1",
    ),
    ({"lengths": np.array([-1])}, ValueError, "piece 0 has -1 tokens from 0 on"),
    ({"lengths": np.array([2**63 - 1])}, ValueError, "piece 0 has 9223372036854775807 tokens"),
    ({"sequence_length": 0}, ValueError, "sequence_length is 0, expected an integer from 1"),
    ({"sequence_length": 1}, ValueError, "row 0 has more than 2 tokens, expected exactly as many"),
    ({"sequence_length": 3}, ValueError, "row 0 has less than 4 tokens, expected exactly as many"),
    (
        {"sequence_length": 1, "pad": 0},
        ValueError,
        "more than 2 tokens, expected at most",
    ),
    ({"dtype": "int16"}, ValueError, "dtype is 'int16', expected 'int64' or 'int32'"),
    ({"pad": 2**31, "dtype": "int32"}, ValueError, "pad is 2147483648, which int32 cannot hold"),
    ({"pad": 0.5}, TypeError, "pad is of type float, expected an integer"),
    ({"threads": 0}, ValueError, "threads is 0, expected an integer from 1 to 1024"),
    ({"out": []}, TypeError, "out is of type list, expected a dict of arrays"),
    ({"out": {}}, KeyError, r"out\['tokens'\] is missing"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_ROWS)
def test_bad_rows(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pack(**options)


def outs() -> dict[str, Array]:
    return {"tokens": np.zeros((1, 3), np.int64), "position_ids": np.zeros((1, 2), np.int64)}


BAD_OUTS: list[tuple[str, Any, type[Exception], str]] = [
    ("tokens", np.zeros((1, 3), np.int32), TypeError, r"out\['tokens'\] has dtype int32, expected"),
    ("tokens", np.zeros((1, 2), np.int64), ValueError, r"shape \(1, 2\), expected \(1, 3\)"),
    ("tokens", np.zeros((1, 6), np.int64)[:, ::2], ValueError, "is not contiguous"),
    ("position_ids", np.zeros((2, 2), np.int64), ValueError, r"shape \(2, 2\), expected \(1, 2\)"),
    ("targets_mask", np.zeros((1, 2), bool), KeyError, "'targets_mask', which the batch does not"),
]


@pytest.mark.parametrize(("key", "array", "error", "message"), BAD_OUTS)
def test_bad_memory(key: str, array: Array, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pack(out={**outs(), key: array})


def test_memory_that_overlaps_or_is_read_only() -> None:
    one = np.zeros(3, np.int64)
    shared = {"tokens": one.reshape(1, 3), "position_ids": one[:2].reshape(1, 2)}
    with pytest.raises(ValueError, match=r"out\['.*'\] overlaps out\['.*'\]"):
        pack(out=shared)
    lengths = np.full(3, 3)
    with pytest.raises(ValueError, match=r"out\['tokens'\] overlaps lengths"):
        pack(out={**outs(), "tokens": lengths.reshape(1, 3)}, lengths=lengths[:1])
    frozen = outs()
    frozen["tokens"].flags.writeable = False
    with pytest.raises(ValueError, match=r"out\['tokens'\] is read-only"):
        pack(out=frozen)


@pytest.mark.parametrize(
    ("stored", "token", "dtype"),
    [
        ("int64", 2**31, "int32"),
        ("int64", -(2**31) - 1, "int32"),
        ("uint32", 2**31, "int32"),
        ("uint64", 2**31, "int32"),
        ("uint64", 2**63, "int64"),
        ("uint64", 2**64 - 1, "int32"),
    ],
)
def test_a_token_that_does_not_fit_is_named(stored: str, token: int, dtype: str) -> None:
    shard = shard_of([1], [2, token, 3], dtype=stored)
    rows = {"lengths": np.array([4]), "sequence_length": 3, "dtype": dtype}
    message = f"document 1 of 'texts' holds token {token}, which {dtype} cannot hold"
    with pytest.raises(ValueError, match=message):
        pack([_core.DocumentRun(shard)], **rows)
    for fitting in [2**31 - 1, -(2**31)] if stored == "int64" else [2**31 - 1]:
        run = _core.DocumentRun(shard_of([1], [2, fitting, 3], dtype=stored))
        assert pack([run], **rows)["tokens"].tolist() == [[1, 2, fitting, 3]]


def test_a_frame_that_does_not_fit_is_named() -> None:
    for name in ("bos", "eos"):
        with pytest.raises(ValueError, match=f"{name} is 2147483648, which int32 cannot hold"):
            pack([run_of([1, 2], **{name: 2**31})], dtype="int32")


BAD_RUNS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([1], {}, TypeError, "documents is of type list, expected TokenShard or DocumentBlock"),
    (None, {"seed": -1}, ValueError, "seed is -1, expected an integer from 0"),
    (None, {"seed": 1.0}, TypeError, "seed is of type float, expected an integer"),
    (None, {"seed": 1, "epoch": 2**64}, ValueError, "epoch is 18446744073709551616, expected"),
    (None, {"bos": "x"}, TypeError, "bos is of type str, expected an integer"),
    (None, {"eos": 2**63}, ValueError, "eos is 9223372036854775808, expected an integer from"),
    (None, {"threads": 0}, ValueError, "threads is 0, expected an integer from 1 to 1024"),
]


@pytest.mark.parametrize(("documents", "options", "error", "message"), BAD_RUNS)
def test_bad_runs(
    documents: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _core.DocumentRun(shard_of([1]) if documents is None else documents, **options)


def test_runs_know_their_documents() -> None:
    run = run_of([1, 2], [], [3], eos=0)
    assert (len(run), run.total) == (3, 6)
    assert [run.extent(d) for d in range(3)] == [(0, 3), (3, 4), (4, 6)]
    assert [a.tolist() for a in run.spans(1, 4)] == [[0, 1, 2], [1, 0, 0], [3, 1, 1]]
    assert [a.tolist() for a in run.spans(6, 0)] == [[], [], []]
    for document in (-1, 3):
        with pytest.raises(IndexError, match=f"document {document} is out of range for 3"):
            run.extent(document)
    with pytest.raises(ValueError, match="length is 4, expected an integer from 0 to 3"):
        run.spans(3, 4)


def test_blocks_are_filled_before_a_run_is_made_of_them() -> None:
    shard = shard_of([1, 2], [3])
    block = _core.DocumentBlock(2)
    both = np.arange(2)
    with pytest.raises(TypeError, match="shard is of type int, expected TokenShard"):
        block.read(3, both, both)
    with pytest.raises(ValueError, match="places has 1 entries, expected 2"):
        block.read(shard, both, both[:1])
    for documents, places in (([2], [0]), ([-1], [0]), ([0], [2]), ([0], [-1])):
        with pytest.raises(IndexError, match=r"document -?\d for place -?\d is out of range for 2"):
            block.read(shard, np.array(documents), np.array(places))
    with pytest.raises(ValueError, match="take is 'all', expected copies, addresses or lengths"):
        block.read(shard, both, both, take="all")
    block.read(shard, both, both[::-1].copy(), take="lengths")
    bare = block.bare()
    row = {"lengths": np.array([3]), "sequence_length": 2}
    with pytest.raises(ValueError, match="document 1 of 'texts' is there by its length alone"):
        pack([_core.DocumentRun(bare)], **row)
    block = bare.bare()
    block.read(shard, both, both[::-1].copy(), take="addresses")
    assert pack([_core.DocumentRun(block)], **row)["tokens"].tolist() == [[3, 1, 2]]
    block = _core.DocumentBlock(2)
    block.read(shard, both, both[::-1].copy())
    run = _core.DocumentRun(block, eos=0)
    del shard
    assert pack([run], lengths=np.array([5]), sequence_length=4)["tokens"].tolist() == [
        [3, 0, 1, 2, 0]
    ]
    with pytest.raises(ValueError, match="a document run was made of the block"):
        block.read(shard_of([1]), np.array([0]), np.array([0]))
    with pytest.raises(ValueError, match="seed is given, expected none for a block"):
        _core.DocumentRun(block, seed=3)


def test_part_orders_refuse() -> None:
    order = _core.PartOrder(np.array([3, 0, 2]))
    for call, message in (
        (lambda: order.at(3), "place 3 is out of range for 3"),
        (lambda: order.index(-1), "part -1 is out of range for 3"),
        (lambda: order.size(3), "part 3 is out of range for 3"),
        (lambda: order.pieces([2], 1, 4, 2), "index 2 is out of range for 2 sequences"),
        (lambda: order.pieces([-1], 1, 4, 2), "index -1 is out of range for 2 sequences"),
    ):
        with pytest.raises(IndexError, match=message):
            call()
    for samples, stride, length in ((3, 1, 4), (1, 1, 6), (2**62, 4, 1), (2, 2**63 - 1, 1)):
        with pytest.raises(ValueError, match="do not fit into 5"):
            order.pieces([0], stride, length, samples)
    with pytest.raises(ValueError, match="sizes is empty"):
        _core.PartOrder(np.empty(0, np.int64))
    with pytest.raises(ValueError, match="part 0 has size -1, expected 0 or more"):
        _core.PartOrder(np.array([-1]))
    with pytest.raises(OverflowError, match="more than 2\\^63 - 1"):
        _core.PartOrder(np.array([2**62, 2**62]))
    sizes = np.array([1, 2])
    order = _core.PartOrder(sizes)
    sizes[:] = 0  # it has a copy of its own
    assert order.total == 3
    assert order.pieces([0], 1, 3, 1)[4].sum() == 3


def test_best_fits_refuse() -> None:
    run = run_of([1, 2], [3])
    with pytest.raises(ValueError, match="capacity is 1, expected an integer from 2"):
        _core.BestFit(run, 1)
    fit = _core.BestFit(run, 3)
    assert (len(fit), fit.tokens, fit.sequences_with(0, 3).tolist()) == (1, 3, [0])
    with pytest.raises(TypeError, match="fits holds an object that is of type int, expected Best"):
        _core.fit_pieces([3], ARRAY, ARRAY)
    for fits, sequences, message in (
        ([1], [0], "fit 1 is out of range for 1"),
        ([-1], [0], "fit -1 is out of range for 1"),
        ([0], [1], "sequence 1 is out of range for 1"),
        ([0], [-1], "sequence -1 is out of range for 1"),
    ):
        with pytest.raises(IndexError, match=message):
            _core.fit_pieces([fit], np.array(fits), np.array(sequences))


def test_block_sums_refuse() -> None:
    given: dict[str, Any] = {"size": 4, "seed": 0, "first": 0, "block_size": 2, "frame": 0}
    sums = np.zeros(2, np.int64)
    _core.add_block_sums(shard_of([1, 2], [3]), **given, sums=sums)
    assert sums.sum() == 3
    for change, message in (
        ({"first": 3}, "documents 3 to 5 of 4 in blocks of 2 do not fit the 2 sums"),
        ({"size": 5}, "do not fit the 2 sums"),
        ({"frame": 3}, "frame is 3, expected an integer from 0 to 2"),
        ({"sums": np.zeros((1, 2), np.int64)}, "sums has shape"),
        ({"sums": np.zeros(4, np.int64)[::2]}, "sums is not contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            _core.add_block_sums(shard_of([1, 2], [3]), **{**given, "sums": sums, **change})
    with pytest.raises(TypeError, match="sums has dtype float64, expected int64"):
        _core.add_block_sums(shard_of([1]), **given, sums=np.zeros(2))


def test_bounds_of_pieces() -> None:
    ids = np.array([[0, 1, 0], [0, 1, 2], [0, 0, 0], [0, 1, 0]])
    for dtype in (np.int64, np.int32):
        (found,) = _core.cu_seqlens(ids.astype(dtype))
        assert found.dtype == np.dtype(np.int32)
        assert found.tolist() == [0, 2, 3, 6, 7, 8, 9, 11, 12]
        halves = _core.cu_seqlens(ids.astype(dtype), 2)
        assert [half.tolist() for half in halves] == [[0, 2, 3, 6], [0, 1, 2, 3, 5, 6]]
        assert all(half.ctypes.data % 64 == 0 and half.flags.writeable for half in halves)
    empty = np.zeros((0, 3), np.int64)
    assert [one.tolist() for one in _core.cu_seqlens(empty, 2)] == [[0], [0]]


def test_bounds_of_wrong_ids() -> None:
    with pytest.raises(TypeError, match="position_ids is of type list, expected an array"):
        _core.cu_seqlens([0])
    with pytest.raises(TypeError, match="position_ids has dtype float64, expected int64 or int32"):
        _core.cu_seqlens(np.zeros(3))
    with pytest.raises(ValueError, match="position_ids is not contiguous"):
        _core.cu_seqlens(np.zeros((2, 3), np.int64).T)
    with pytest.raises(ValueError, match="batches is 2, which does not divide 3 position_ids"):
        _core.cu_seqlens(np.zeros(3, np.int64), 2)
    with pytest.raises(ValueError, match="batches is 0, expected"):
        _core.cu_seqlens(np.zeros(3, np.int64), 0)
    for ids, where in (([0, 2], "2 at 1"), ([0, -1], "-1 at 1"), ([0, 7, 1], "1 at 2")):
        expected = f"position_ids has {where}, expected the distance from the last 0"
        with pytest.raises(ValueError, match=expected):
            _core.cu_seqlens(np.array(ids))


DIGEST = """
import hashlib
import numpy as np
from support.packing_cases import STORED, packing
from models.packing_model import Model, ModelCorpus

rng = np.random.default_rng(0)
state = hashlib.blake2b()
for stored in STORED:
    texts = [rng.integers(0, 120, n).tolist() for n in rng.integers(0, 300, 60)]
    for padded, dtype in ((False, "int64"), (False, "int32"), (True, "int64"), (True, "int32")):
        model = Model(ModelCorpus([texts], [stored]), 77, 121, 122, padded=padded)
        source = packing(model, dtype=dtype)
        for array in source.gather(range(len(source))).values():
            state.update(array.tobytes())
print(state.hexdigest())
"""


def test_every_instruction_set_gives_the_same_batches() -> None:
    path = os.pathsep.join(sys.path)
    found = {printed(DIGEST, WINDECK_SIMD=level, PYTHONPATH=path) for level in ("baseline", "")}
    assert len(found) == 1


def test_many_threads_read_one_run() -> None:
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 999, rng.integers(0, 60)).tolist() for _ in range(200)]
    run = run_of(*texts, seed=4, eos=7)
    rows = 100
    length = run.total // rows - 1
    given = {
        "row_offsets": np.arange(rows + 1),
        "document_run_of": np.zeros(rows, np.int64),
        "starts": np.arange(rows) * length,
        "lengths": np.full(rows, length + 1),
    }
    expected = pack([run], **given, sequence_length=length)["tokens"]

    def work(_: int) -> None:
        for _ in range(50):
            batch = pack([run], **given, sequence_length=length, threads=2)
            assert np.array_equal(batch["tokens"], expected)

    at_once(8, work)
