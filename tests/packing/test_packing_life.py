"""Packing: caches, threads, pickles, states and reports."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import weakref
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import windeck as wd
from models.packing_model import Model, ModelCorpus
from support.corpora import write_corpus
from support.internals import original, plant
from support.packing_cases import WAYS, corpus, packing, tokens
from support.threads import at_once
from windeck import PackedSequences
from windeck._util import LRUCache

# --- live shards and blocks -----------------------------------------------------------------------


def test_live_shards_are_opened_once_and_few_are_kept() -> None:
    data = corpus()
    packed = PackedSequences(data, sequence_length=50, live_shards=3)
    assert data.opened == []
    for start in range(len(packed)):
        packed.gather([start])
    assert sorted(data.opened) == list(range(12))
    packed.gather([len(packed) - 1])
    assert len(data.opened) == 12
    packed.gather([0])
    assert data.opened[12:] == data.opened[:1]


def test_a_batch_may_need_more_shards_than_are_live() -> None:
    data = corpus()
    plain = tokens(PackedSequences(data, sequence_length=3000, live_shards=100))
    assert np.array_equal(tokens(PackedSequences(data, sequence_length=3000, live_shards=1)), plain)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_of_very_many_shards_is_written_in_parts(
    way: dict[str, Any], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        plant(monkeypatch, "global_shuffle.LARGE_BLOCK", 10)
    packed = PackedSequences(corpus(40), sequence_length=60, **way)
    indices = np.random.default_rng(1).permutation(len(packed))
    expected = packed.gather(indices)
    plant(monkeypatch, "layout.MAX_PARTS", 3)
    found = packed.gather(indices, threads=2)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert np.array_equal(found[key], array)
    out = {key: np.zeros_like(array) for key, array in packed.gather_rows(indices).items()}
    assert packed.gather_rows(indices, out)["tokens"] is out["tokens"]
    assert np.array_equal(out["tokens"][:, 1:], expected["targets"])


def test_out_of_a_batch_of_very_many_shards_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "layout.MAX_PARTS", 2)
    packed = PackedSequences(corpus(), sequence_length=50)
    out = packed.gather_rows(range(len(packed) - 1))
    message = rf"^out\['tokens'\] has shape \({len(packed) - 1}, 51\), expected {len(packed)} rows$"
    with pytest.raises(ValueError, match=message):
        packed.gather_rows(range(len(packed)), out)
    with pytest.raises(TypeError, match=r"^`out` must be a dict of arrays, got list$"):
        packed.gather_rows(range(len(packed)), cast(Any, [out]))
    del out["tokens"]
    with pytest.raises(KeyError, match=r"^\"out\['tokens'\] is missing"):
        packed.gather_rows(range(len(packed) - 1), out)


class Watched:
    """A corpus that records the number of open descriptors when a shard is opened."""

    def __init__(self, documents: wd.Documents) -> None:
        self.documents = documents
        self.descriptors: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.documents, name)

    def open(self, shard: int) -> Any:
        found = self.documents.open(shard)
        self.descriptors.append(len(os.listdir("/proc/self/fd")))
        return found


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors here")
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:order=.(mixed-)?global.:UserWarning")
def test_a_batch_of_very_many_files_opens_a_few_at_a_time(
    way: dict[str, Any], large: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_corpus(
        tmp_path, {f"dataset=a/x.part{part}.arrow": [[part] * 9] * 3 for part in range(150)}
    )
    plant(monkeypatch, "layout.MAX_PARTS", 8)
    if large:
        plant(monkeypatch, "global_shuffle.LARGE_BLOCK", 10)
    before = len(os.listdir("/proc/self/fd"))
    data = Watched(wd.Documents(tmp_path, open_files=2))
    packed = PackedSequences(data, sequence_length=20, live_shards=2, threads=2, **way)
    packed.gather(range(len(packed)))
    # Two per file: 8 of rows, 2 open, 2 live, and 16 that threads open.
    assert max(data.descriptors) - before < 2 * (8 + 2 + 2 + 16) < 2 * 150


def test_large_blocks_map_what_a_batch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = corpus(30)
    model = Model(data, 40, 3, 4, "global")
    rows = model.rows(1, 2)
    plant(monkeypatch, "global_shuffle.LARGE_BLOCK", 0)
    packed = packing(model).at_epoch(1, seed=2)
    packed.gather([0])
    data.opened.clear()
    batch = packed.gather([7, 3, 3])
    expected = model.batch([rows[i] for i in (7, 3, 3)], "int64")
    assert all(np.array_equal(batch[key], array) for key, array in expected.items())
    assert set(data.opened) == {piece[0] for i in (7, 3) for piece in rows[i] if piece}
    assert np.array_equal(tokens(packed)[:, :-1], model.batch(rows, "int64")["inputs"])
    assert packed.documents(5)[0][2:] == rows[5][0][1:]


def test_live_runs_are_made_once_by_threads_that_ask_together() -> None:
    live = LRUCache(2)
    found = at_once(8, lambda _: live.get("a", object))
    assert len(set(found)) == live.misses == 1
    live.get("b", lambda: 1)
    live.get("a", lambda: 2)
    live.get("c", lambda: 3)  # "b" goes, which was asked for longest ago
    assert live.get("a", lambda: 4) is found[0]
    assert live.get("b", lambda: 5) == 5
    assert len(live) == 2


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("lasting", [False, True])
def test_a_fork_leaves_the_locks_of_other_threads_behind(lasting: bool) -> None:
    live, begun, done = LRUCache(2, keep_after_fork=lasting), threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        done.wait(30)
        return "parent"

    thread = threading.Thread(target=live.get, args=("a", slow))
    thread.start()
    begun.wait(30)
    live.get("b", lambda: "made")
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # instead of hanging
        kept = live.get("b", lambda: "made anew") == ("made" if lasting else "made anew")
        os._exit(0 if kept and live.get("a", lambda: "child") == "child" else 1)
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()
    assert live.get("a", lambda: "again") == "parent"


@pytest.mark.parametrize("way", WAYS)
def test_threads_share_one_object(way: Any) -> None:
    packed = PackedSequences(corpus(), sequence_length=16, live_shards=2, **way)
    expected = [tokens(packed.at_epoch(epoch, seed=1)) for epoch in range(3)]

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(40):
            epoch = int(rng.integers(3))
            rows = rng.integers(0, len(packed), 5)
            found = packed.at_epoch(epoch, seed=1).gather_rows(rows, threads=2)["tokens"]
            assert np.array_equal(found, expected[epoch][rows]), (epoch, rows)

    at_once(8, work)


@pytest.mark.parametrize("way", WAYS)
def test_pickles(way: Any) -> None:
    packed = PackedSequences(corpus(), sequence_length=16, bos=9, dtype="int32", **way)
    again: Any = pickle.loads(pickle.dumps(packed))
    assert again.fingerprint == packed.fingerprint
    assert repr(again) == repr(packed)
    assert np.array_equal(tokens(again), tokens(packed))
    # A worker process does not repeat the pass.
    if way.get("padded"):
        assert again.corpus.opened.count(0) == 2  # by the pass before, and for the batch


@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_is_pickled_with_all_it_is_of(way: Any) -> None:
    epoch = PackedSequences(corpus(), sequence_length=16, **way).at_epoch(3, seed=4)
    again: Any = pickle.loads(pickle.dumps(epoch))
    assert repr(again) == repr(epoch)
    assert np.array_equal(tokens(again), tokens(epoch))


def test_an_index_is_made_once_for_all_processes() -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order="global")
    packed.build_index(7)
    expected = tokens(packed.at_epoch(1, seed=7))
    again: Any = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(packed))))
    again.corpus.opened.clear()
    again.build_index(7)
    assert again.corpus.opened == []
    assert np.array_equal(tokens(again.at_epoch(1, seed=7)), expected)
    again.corpus.opened.clear()
    again.build_index(8)
    assert sorted(again.corpus.opened) == list(range(12))


@pytest.mark.parametrize("way", WAYS)
def test_one_object_serves_many_seeds_by_turns(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PackedSequences(corpus(), sequence_length=16, **way)
    made: list[tuple[int, int]] = []
    make = original("epochs.epoch_layout")

    def noted(layout: Any, epoch: int, seed: int) -> Any:
        made.append((epoch, seed))
        return make(layout, epoch, seed)

    plant(monkeypatch, "epochs.epoch_layout", noted)
    parts = {f"part{number}": (packed, 1) for number in range(9)}
    mixture = wd.Mixture(parts, seed=3)
    for start in range(0, 90, 18):
        mixture.gather(range(start, start + 18))
    assert len(made) == len(set(made)) == 9


def test_nothing_of_packing_outlives_its_users() -> None:
    packed = PackedSequences(corpus(), sequence_length=16)
    tokens(packed)
    tokens(packed.at_epoch(1, seed=2))
    gone = weakref.ref(packed)
    del packed
    assert gone() is None  # at once, and not when the collector runs


# --- states ---------------------------------------------------------------------------------------


def test_a_fingerprint_tells_what_is_served_and_nothing_else() -> None:
    data = corpus()
    base: dict[str, Any] = {"sequence_length": 16, "bos": 1, "eos": 2}
    packed = PackedSequences(data, **base)
    assert packed.fingerprint == {
        "documents.shards": 12,
        "documents.tokens": data.fingerprint["tokens"],
        "sequence_length": 16,
        "bos": 1,
        "eos": 2,
        "order": "shards",
        "padded": 0,
        "sequence_bos": "none",
        "sequence_eos": "none",
        "samples": len(packed),
    }
    of_epoch = {**packed.fingerprint, "epoch": 3, "seed": 9}
    assert packed.at_epoch(3, seed=9).fingerprint == of_epoch
    same = PackedSequences(data, **base, dtype="int32", live_shards=1, threads=3)
    assert same.fingerprint == packed.fingerprint
    for change in ({"bos": None}, {"eos": 3}, {"order": "global"}, {"padded": True}):
        assert PackedSequences(data, **{**base, **change}).fingerprint != packed.fingerprint
    padded = [PackedSequences(data, **base, padded=True, pad=pad).fingerprint for pad in (0, 1)]
    assert padded[0] != padded[1]


def test_a_single_epoch_is_a_source_that_no_other_one_is_taken_for() -> None:
    packed = PackedSequences(corpus(), sequence_length=16)
    loader = wd.Loader(packed.at_epoch(2, seed=5), batch_size=4)
    first = next(iter(loader))
    state = loader.state_dict()
    again = wd.Loader(packed.at_epoch(2, seed=5), batch_size=4)
    again.load_state_dict(state)
    assert np.array_equal(first["inputs"], packed.at_epoch(2, seed=5).gather(range(4))["inputs"])
    for epoch, seed, field in ((3, 5, "epoch"), (2, 6, "seed")):
        other = wd.Loader(packed.at_epoch(epoch, seed=seed), batch_size=4)
        with pytest.raises(ValueError, match=rf"its fingerprint has source\.{field} = "):
            other.load_state_dict(state)


def test_a_change_is_explained_by_the_corpus() -> None:
    packed = PackedSequences(corpus(), sequence_length=4)
    assert packed.explain_change("documents.tokens", 3, 4) == "tokens was 3 and is 4"
    assert packed.explain_change("documents.shards", 3, 4) is None
    assert packed.explain_change("tokens", 3, 4) is None


# --- with streams and loaders ---------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_serves_what_the_model_says(way: Any) -> None:
    data = corpus(3)
    model = Model(data, 16, None, 7, way.get("order", "shards"), "pad" in way, way.get("pad", 0))
    loader = wd.Loader(packing(model), batch_size=6, seed=11)
    for epoch in range(2):
        rows = model.rows(epoch, 11)
        start = 0
        for batch in loader:
            expected = model.batch(rows[start : start + 6], "int64")
            assert set(batch) == set(expected)
            for key, array in expected.items():
                assert torch.equal(batch[key], torch.from_numpy(array.copy())), key
            start += len(batch["inputs"])
        assert start == len(rows)


def test_present_takes_tensors() -> None:
    packed = PackedSequences(corpus(), sequence_length=4)
    rows = packed.gather_rows([0, 1])
    shown = packed.present({key: torch.from_numpy(a) for key, a in rows.items()})
    assert shown["inputs"].data_ptr() == rows["tokens"].ctypes.data
    assert torch.equal(shown["inputs"][:, 1:], shown["targets"][:, :-1])
    assert "tokens" in rows


def test_reports_and_reprs() -> None:
    data = ModelCorpus([[[1, 2, 3], [], [4]], [[5] * 9]], ["uint8"] * 2, min_length=1)
    packed = PackedSequences(data, sequence_length=5, eos=0)
    assert str(packed.explain()) == (
        "3 sequences of 5 tokens and their targets\n"
        "  16 tokens of 3 documents, 3 of them BOS or EOS\n"
        "  1 document filtered\n"
        "  at most 272 bytes on a device"  # 16 tokens of int64, and orders of 4 documents
    )
    assert packed.explain().device_bytes == 16 * 8 + 2 * 8 * (2 * 4 + 1)
    padded = PackedSequences(data, sequence_length=5, padded=True)
    assert str(padded.explain()) == (
        "3 sequences of 5 tokens and their targets\n"
        "  13 tokens of 3 documents, 0 of them BOS or EOS\n"
        "  1 document filtered\n"
        "  4 tokens of padding, 22.2% of all\n"
        "  at most 288 bytes on a device"
    )
    # 13 tokens of int64; segments of 4 documents and 3 cuts; sizes of 3 sequences, and two orders.
    assert padded.explain().device_bytes == 13 * 8 + 8 * (2 * (4 + 3) + 3 + 2 * 3)
    assert repr(packed.at_epoch(2, seed=5)) == "PackedEpoch(3 sequences, epoch=2, seed=5)"
    assert repr(packed).endswith(
        "sequence_length=5, bos=None, eos=0, order='shards', padded=False)"
    )
