"""The cache of results of passes over a corpus."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.packing_model import ModelCorpus
from support.packing_cases import WAYS, corpus, tokens
from windeck import PackedSequences

PASSES = [way for way in WAYS if way.get("padded") or "global" in way.get("order", "")]


@pytest.mark.parametrize("way", PASSES)
def test_a_pass_is_kept_on_disk(way: Any, tmp_path: Path) -> None:
    data = corpus()
    told: list[tuple[int, int]] = []
    options = {"sequence_length": 16, "cache": tmp_path, **way}
    plain = tokens(PackedSequences(data, **{**options, "cache": False}))
    first = PackedSequences(data, **options, progress=lambda *now: told.append(now))
    assert np.array_equal(tokens(first), plain)
    assert told[-1] == (480, 480)
    (file,) = tmp_path.iterdir()
    written = file.read_bytes()

    data.opened.clear()
    assert np.array_equal(tokens(PackedSequences(data, **options)), plain)
    assert sorted(set(data.opened)) == list(range(12))  # for the batch alone
    if way.get("padded"):
        data.opened.clear()
        PackedSequences(data, **options)
        assert data.opened == []

    for broken in (b"", written[:-1], written + b"\0", written[:70] + b"\7" + written[71:], b"x"):
        file.write_bytes(broken)
        assert np.array_equal(tokens(PackedSequences(data, **options)), plain)
        assert file.read_bytes() == written

    data.fingerprint["tokens"] = 1
    PackedSequences(data, **options).build_index()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_options_a_pass_depends_on(tmp_path: Path) -> None:
    data = corpus()
    ways: list[tuple[dict[str, Any], int]] = [({}, 0), ({}, 2**64 - 1), ({"bos": 1}, 0)]
    for number, (options, seed) in enumerate([*ways, ({"bos": 1, "eos": 2}, 0)]):
        packed = PackedSequences(data, sequence_length=4, order="global", cache=tmp_path, **options)
        packed.build_index(seed)
        assert len(list(tmp_path.iterdir())) == number + 1
    # Values of BOS and EOS, sequence_length and dtype do not change the sums.
    same: list[dict[str, Any]] = [{"eos": 7}, {"bos": 3, "dtype": "int32"}]
    for options in same:
        PackedSequences(
            data, sequence_length=9, order="global", cache=tmp_path, **options
        ).build_index()
    assert len(list(tmp_path.iterdir())) == 4
    for length in (4, 9):
        PackedSequences(data, sequence_length=length, padded=True, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("way", WAYS)
def test_only_a_cache_needs_the_fingerprint(way: Any) -> None:
    class Slow(ModelCorpus):
        @property
        def fingerprint(self) -> Any:
            raise AssertionError("reads every file")

        @fingerprint.setter
        def fingerprint(self, value: Any) -> None:
            pass

    data = Slow([[[1, 2, 3], [4, 5]]], ["uint8"])
    assert len(PackedSequences(data, sequence_length=2, **way).gather([0, 1])["inputs"]) == 2


def test_meta_beside_the_data(tmp_path: Path) -> None:
    data: Any = corpus()
    data.root = tmp_path
    PackedSequences(data, sequence_length=4, padded=True, cache=True)
    assert len(list((tmp_path / "meta").iterdir())) == 1


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_who_may_read_a_cache_is_for_the_process_to_say(mask: int, tmp_path: Path) -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order="global", cache=tmp_path)
    before = os.umask(mask)
    try:
        packed.build_index()
    finally:
        os.umask(before)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_cache_that_cannot_be_written_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="result of a pass over the documents cannot be cached"):
        packed = PackedSequences(
            corpus(), sequence_length=4, padded=True, cache=tmp_path / "file" / "folder"
        )
    assert len(packed) > 0


def test_few_and_many_threads_find_the_same_sums() -> None:
    for shards in (1, 3, 40):
        data = corpus(shards)
        for way in WAYS[1:]:
            one, four = (
                PackedSequences(data, sequence_length=16, threads=threads, **way)
                for threads in (1, 4)
            )
            assert np.array_equal(tokens(one), tokens(four))
