"""Tests of corpora in an S3 bucket and on a web server: documents, sequences and states."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import re
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch.utils.data import DataLoader

import windeck as wd
from support.corpora import write_corpus
from support.internals import original, plant
from support.object_servers import SECRET, Bucket, Website
from support.token_files import nanogpt_bytes, write_mds, write_megatron
from windeck._util import Task
from windeck.io import filesystem

SHARDS = {
    f"{name}/x.part{part}": [
        list(np.random.default_rng(7 * part + place).integers(1, 60_000, size=150 + place % 5))
        for place in range(30)
    ]
    for name in ("c4", "wiki")
    for part in (2, 10, 3)
}


def upload(root: Path, put: Callable[[str, bytes], None]) -> None:
    for path in sorted(root.rglob("*")):
        if path.is_file():
            put(f"corpus/{path.relative_to(root)}", path.read_bytes())


def batches(documents: wd.Documents, count: int, **options: Any) -> list[np.ndarray[Any, Any]]:
    packed = wd.PackedSequences(documents, sequence_length=64, bos=1)
    loader = wd.Loader(packed, batch_size=4, seed=3, rank=0, world_size=1, **options)
    found: list[np.ndarray[Any, Any]] = []
    while len(found) < count:
        for batch in loader:
            found.append(batch["inputs"].numpy().copy())
            if len(found) == count:
                break
    return found


class TestSame:
    """A corpus of URLs is the corpus on disk, in every respect but its root."""

    @pytest.mark.parametrize(
        ("form", "cached", "counts"),
        [
            ("lists", True, True),
            ("lists", False, False),
            ("batches", False, True),
            ("compressed", True, False),
            ("parquet", True, True),
            ("parquet", False, False),
        ],
    )
    def test_s3(self, s3: Bucket, tmp_path: Path, form: str, cached: bool, counts: bool) -> None:
        root = write_corpus(tmp_path / "corpus", SHARDS, form=form, counts=counts)
        upload(root, s3.put)
        local = wd.Documents(root)
        options: dict[str, Any] = {"storage_options": s3.options}
        if cached:
            options |= {"cache_dir": tmp_path / "cache"}
        remote = wd.Documents(f"{s3.url}/corpus", **options)
        self._compare(local, remote, f"{s3.url}/corpus")
        assert SECRET not in repr(remote.fingerprint) + remote.explain()
        assert SECRET.encode() not in pickle.dumps(remote)

    def test_web(self, web: Website, tmp_path: Path) -> None:
        root = write_corpus(tmp_path / "corpus", SHARDS, counts=True)
        upload(root, web.objects.__setitem__)
        remote = wd.Documents(f"{web.url}/corpus", cache_dir=tmp_path / "cache")
        self._compare(wd.Documents(root), remote, f"{web.url}/corpus")

    def _compare(self, local: wd.Documents, remote: wd.Documents, root: str) -> None:
        assert remote.root == root
        assert (len(remote), remote.dataset_ids) == (len(local), local.dataset_ids)
        assert remote.fingerprint == local.fingerprint
        for number in (0, 29, 30, len(local) - 1):
            assert remote.locate(number) == local.locate(number)
            assert np.array_equal(remote[number], local[number])
        for here, there in zip(batches(local, 12), batches(remote, 12), strict=True):
            assert np.array_equal(here, there)
        remote.verify()

    @pytest.mark.parametrize("cached", [True, False])
    @pytest.mark.parametrize("form", ["nanogpt", "megatron", "mds", "zstd"])
    def test_files_of_other_tools(
        self, s3: Bucket, tmp_path: Path, form: str, cached: bool
    ) -> None:
        docs = [doc for shard in SHARDS.values() for doc in shard]
        root, options = tmp_path / "corpus", dict[str, Any]()
        root.mkdir()
        if form == "nanogpt":
            (root / "train.bin").write_bytes(nanogpt_bytes(docs, 65_000))
            options = {"format": "nanogpt", "end_token": 65_000, "dtype": "uint16"}
        elif form == "megatron":
            write_megatron(root / "train.bin", [[doc] for doc in docs])
        else:
            write_mds(root, [docs[:50], docs[50:]], zstd=form == "zstd")
        upload(root, s3.put)
        cache: dict[str, Any] = {"cache_dir": tmp_path / "cache"} if cached else {}
        remote = wd.Documents(f"{s3.url}/corpus", storage_options=s3.options, **options, **cache)
        self._compare(wd.Documents(root, **options), remote, f"{s3.url}/corpus")

    @pytest.mark.parametrize("form", ["lists", "parquet"])
    def test_memory_of_open_shards(self, s3: Bucket, tmp_path: Path, form: str) -> None:
        """Remote shards count with their bytes against `open_bytes`, those of a cache do not."""
        root = write_corpus(tmp_path / "corpus", SHARDS, form=form)
        upload(root, s3.put)
        options: dict[str, Any] = {"storage_options": s3.options, "open_bytes": 1}
        remote = wd.Documents(f"{s3.url}/corpus", **options)
        cached = wd.Documents(f"{s3.url}/corpus", cache_dir=tmp_path / "cache", **options)
        total = sum(path.stat().st_size for path in root.rglob("*.*") if path.is_file())
        wanted = re.search(r"need open_bytes=(\d+)", str(remote.explain_reopening()))
        assert wanted is not None
        assert int(wanted[1]) >= (total if form == "lists" else int(remote.shard_tokens.sum()) * 2)
        assert (cached.explain_reopening() is None) == (form == "lists")

    def test_a_cache_for_counts_is_local(self, s3: Bucket, tmp_path: Path) -> None:
        upload(write_corpus(tmp_path / "corpus", SHARDS), s3.put)
        options: dict[str, Any] = {"storage_options": s3.options}
        with pytest.raises(ValueError, match="is a URL; expected a local path"):
            wd.Documents(f"{s3.url}/corpus", cache=True, **options)
        wd.Documents(f"{s3.url}/corpus", cache=tmp_path / "counts.csv", **options)
        s3.proxy.clear()
        wd.Documents(f"{s3.url}/corpus", cache=tmp_path / "counts.csv", **options)
        whole = [one for one in s3.proxy.requests if re.search(r"^GET .*bytes=0-(?!4095)", one)]
        assert not whole

    def test_resume(self, s3: Bucket, tmp_path: Path) -> None:
        root = write_corpus(tmp_path / "corpus", SHARDS)
        upload(root, s3.put)

        def loader(documents: wd.Documents) -> wd.Loader:
            packed = wd.PackedSequences(documents, sequence_length=64, bos=1)
            return wd.Loader(packed, batch_size=4, seed=3, rank=0, world_size=1)

        one = loader(wd.Documents(f"{s3.url}/corpus", storage_options=s3.options))
        taken = [batch["inputs"] for batch, _ in zip(one, range(7), strict=False)]
        assert len(taken) == 7
        other = loader(wd.Documents(root))
        other.load_state_dict(one.state_dict())
        again = loader(
            wd.Documents(f"{s3.url}/corpus", storage_options=s3.options, cache_dir=tmp_path / "c")
        )
        again.load_state_dict(one.state_dict())
        for here, there, _ in zip(other, again, range(5), strict=False):
            assert torch.equal(here["inputs"], there["inputs"])


class TestWorkers:
    """Workers of a DataLoader read remote documents, whether forked or started anew."""

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_data_loader(self, s3: Bucket, tmp_path: Path, method: str) -> None:
        root = write_corpus(tmp_path / "corpus", SHARDS)
        upload(root, s3.put)
        remote = wd.Documents(
            f"{s3.url}/corpus", storage_options=s3.options, cache_dir=tmp_path / "cache"
        )
        assert len(remote[0])  # The client of this process is in use.
        found = self._take(remote, 2, method)
        for here, there in zip(self._take(wd.Documents(root), 0, None), found, strict=True):
            assert torch.equal(here, there)

    def _take(
        self, documents: wd.Documents, workers: int, method: str | None
    ) -> list[torch.Tensor]:
        packed = wd.PackedSequences(documents, sequence_length=64, bos=1)
        stream = wd.Stream(packed, seed=3)
        dataset = wd.IterDataset(stream, batch_size=4, rank=0, world_size=1)
        context = None if method is None else multiprocessing.get_context(method)
        loader: Any = DataLoader(
            dataset,
            batch_size=None,
            num_workers=workers,
            multiprocessing_context=context,
            timeout=120 if workers else 0,
        )
        return [batch["inputs"] for batch, _ in zip(loader, range(12), strict=False)]


class TestReadAhead:
    """The next shards of the epoch are in the cache before they are opened."""

    def test_next_shards_are_downloaded(self, s3: Bucket, tmp_path: Path) -> None:
        upload(write_corpus(tmp_path / "corpus", SHARDS, counts=True), s3.put)
        options: dict[str, Any] = {"storage_options": s3.options, "cache_dir": tmp_path / "cache"}
        packed = wd.PackedSequences(
            wd.Documents(f"{s3.url}/corpus", **options), sequence_length=64, bos=1
        )
        epoch = packed.at_epoch(0, seed=3)
        epoch.gather(np.arange(2))
        deadline = time.monotonic() + 30
        while len(self._cached(tmp_path)) < len(SHARDS) + 1:  # with the count file
            assert time.monotonic() < deadline, self._cached(tmp_path)
            time.sleep(0.01)
        s3.proxy.clear()
        for start in range(0, len(epoch), 8):
            epoch.gather(np.arange(start, min(start + 8, len(epoch))))
        assert [one for one in s3.proxy.requests if "bytes=" in one] == []

    def test_the_cache_keeps_what_is_needed_soon(
        self, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A cache that holds four of six shards: an epoch downloads each shard at most once."""
        root = write_corpus(tmp_path / "corpus", SHARDS, counts=True)
        upload(root, s3.put)
        largest = max(path.stat().st_size for path in root.rglob("*.arrow"))
        documents = wd.Documents(
            f"{s3.url}/corpus",
            storage_options=s3.options,
            cache_dir=tmp_path / "cache",
            cache_bytes=4 * (largest + 100),
            open_files=1,
        )
        packed = wd.PackedSequences(documents, sequence_length=64, bos=1)
        expected = wd.PackedSequences(wd.Documents(root), sequence_length=64, bos=1)
        downloads = []
        for number in range(3):
            s3.proxy.clear()
            epoch, local = packed.at_epoch(number, seed=3), expected.at_epoch(number, seed=3)
            for start in range(0, len(epoch), 8):
                rows = np.arange(start, min(start + 8, len(epoch)))
                here, there = epoch.gather(rows), local.gather(rows)
                assert np.array_equal(here["inputs"], there["inputs"])
            wait_for_read_ahead()
            downloads.append(s3.proxy.count(r"^GET .*x\.part\d+\.arrow bytes=0-(?!4095)"))
        assert downloads[0] == len(SHARDS)
        assert max(downloads) <= len(SHARDS)
        used = sum(os.stat(tmp_path / "cache" / name).st_size for name in self._cached(tmp_path))
        assert used <= 4 * (largest + 100)

    def test_a_shard_that_was_passed_is_not_downloaded_again(
        self, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The thread comes to its first shard after the epoch has passed it, and dropped it."""
        root = write_corpus(tmp_path / "corpus", SHARDS, counts=True)
        upload(root, s3.put)
        largest = max(path.stat().st_size for path in root.rglob("*.arrow"))
        documents = wd.Documents(
            f"{s3.url}/corpus",
            storage_options=s3.options,
            cache_dir=tmp_path / "cache",
            cache_bytes=2 * (largest + 100),
            open_files=1,
        )
        epoch = wd.PackedSequences(documents, sequence_length=64, bos=1).at_epoch(0, seed=3)
        released, load = threading.Event(), filesystem.load

        def load_late(*arguments: Any) -> Any:
            if threading.get_ident() != threading.main_thread().ident:
                assert released.wait(60)
            return load(*arguments)

        plant(monkeypatch, "filesystem.load", load_late)
        s3.proxy.clear()
        for start in range(0, len(epoch), 8):
            epoch.gather(np.arange(start, min(start + 8, len(epoch))))
        kept = self._cached(tmp_path)
        released.set()
        wait_for_read_ahead()
        assert s3.proxy.count(r"^GET .*x\.part\d+\.arrow bytes=0-(?!4095)") == len(SHARDS)
        assert self._cached(tmp_path) == kept

    @pytest.mark.parametrize("cached", [True, False])
    def test_errors_are_raised_where_the_shard_is_opened(
        self, s3: Bucket, tmp_path: Path, cached: bool
    ) -> None:
        """Shards are downloaded ahead into a cache, and opened ahead without one."""
        upload(write_corpus(tmp_path / "corpus", SHARDS, counts=True), s3.put)
        documents = wd.Documents(
            f"{s3.url}/corpus",
            storage_options=s3.options,
            cache_dir=tmp_path / "cache" if cached else None,
        )
        packed = wd.PackedSequences(documents, sequence_length=64, bos=1)
        epoch = packed.at_epoch(0, seed=3)
        fault = s3.proxy.plan("status", r"^GET .*bytes=", amount=503, times=10_000, skip=4)
        with pytest.raises(ConnectionError, match=r"\.arrow': 4 attempts failed"):
            epoch.gather(np.arange(len(epoch)))
        assert fault.fired
        s3.proxy.clear()
        assert len(epoch.gather(np.arange(len(epoch)))["inputs"]) == len(epoch)

    def test_a_shard_that_is_replaced(self, s3: Bucket, tmp_path: Path) -> None:
        root = write_corpus(tmp_path / "corpus", SHARDS, counts=True)
        upload(root, s3.put)
        documents = wd.Documents(f"{s3.url}/corpus", storage_options=s3.options)
        name = "dataset=c4/x.part2.arrow"
        content = (root / name).read_bytes()
        s3.put(f"corpus/{name}", content[: len(content) // 2])
        with pytest.raises(ValueError, match=r"x\.part2\.arrow' has .* the file has changed"):
            documents[0]
        s3.delete(f"corpus/{name}")
        with pytest.raises(FileNotFoundError, match=r"x\.part2\.arrow' does not exist"):
            documents[0]

    @pytest.mark.parametrize(
        "form", ["lists", "parquet", "compressed", "nanogpt", "megatron", "mds", "json", "text"]
    )
    def test_without_a_cache_the_next_shards_are_opened(
        self, s3: Bucket, tmp_path: Path, form: str
    ) -> None:
        root, options = write_any(tmp_path / "corpus", form)
        upload(root, s3.put)
        local = wd.PackedSequences(wd.Documents(root, **options), sequence_length=64, bos=1)
        documents = wd.Documents(f"{s3.url}/corpus", storage_options=s3.options, **options)
        # As in another process: shards that were opened to be counted are not open any more.
        documents = pickle.loads(pickle.dumps(documents))
        packed = wd.PackedSequences(documents, sequence_length=64, bos=1)
        for number in range(2):
            s3.proxy.clear()
            epoch, same = packed.at_epoch(number, seed=3), local.at_epoch(number, seed=3)
            epoch.gather(np.arange(2))
            wait_for_read_ahead()
            before = s3.proxy.count("bytes=")
            assert (before > 0) == (number == 0)
            for start in range(0, len(epoch), 8):
                rows = np.arange(start, min(start + 8, len(epoch)))
                here, there = epoch.gather(rows), same.gather(rows)
                assert np.array_equal(here["inputs"], there["inputs"])
            wait_for_read_ahead()
            # All were read ahead, and in the second epoch all are open.
            assert s3.proxy.count("bytes=") == before

    @pytest.mark.parametrize("shards", [1, 2, 3])
    def test_bytes_that_are_open_ahead(
        self, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
    ) -> None:
        """At most half of `open_bytes`; each shard is read once an epoch, the next ones first."""
        root = write_corpus(tmp_path / "corpus", SHARDS, counts=True)
        upload(root, s3.put)
        largest = largest_open(s3)
        documents = wd.Documents(
            f"{s3.url}/corpus",
            storage_options=s3.options,
            open_bytes=2 * shards * largest,
            open_files=1,
        )
        packed = wd.PackedSequences(documents, sequence_length=64, bos=1, live_shards=1)
        local = wd.PackedSequences(wd.Documents(root), sequence_length=64, bos=1)
        opened, opening = list[weakref.ref[Any]](), original("readers.DocumentOptions.open")

        def noted(options: Any, path: str) -> Any:
            shard = opening(options, path)
            if filesystem.is_remote(path):
                opened.append(weakref.ref(shard))
            return shard

        def still_open() -> int:
            return sum(shard() is not None for shard in opened)

        plant(monkeypatch, "readers.DocumentOptions.open", noted)
        for number in range(2):
            s3.proxy.clear()
            epoch, same = packed.at_epoch(number, seed=3), local.at_epoch(number, seed=3)
            for start in range(0, len(epoch), 8):
                rows = np.arange(start, min(start + 8, len(epoch)))
                assert np.array_equal(epoch.gather(rows)["inputs"], same.gather(rows)["inputs"])
                wait_for_read_ahead()
                assert still_open() <= shards + 1  # and the one in use
            assert s3.proxy.count(r"^GET .*x\.part\d+\.arrow bytes=0-(?!4095)") <= len(SHARDS)
        assert still_open() == 1

    def test_two_orders_of_one_corpus_do_not_read_it_over_and_over(
        self, s3: Bucket, tmp_path: Path
    ) -> None:
        upload(write_corpus(tmp_path / "corpus", SHARDS, counts=True), s3.put)
        largest = largest_open(s3)
        documents = wd.Documents(
            f"{s3.url}/corpus", storage_options=s3.options, open_bytes=2 * largest
        )
        packed = wd.PackedSequences(documents, sequence_length=64, bos=1)
        epochs = [packed.at_epoch(number, seed=5) for number in (0, 1)]
        s3.proxy.clear()
        for _ in range(60):
            for epoch in epochs:
                epoch.gather(np.arange(2))
                wait_for_read_ahead()
        assert s3.proxy.count(r"^GET .*x\.part\d+\.arrow bytes=0-(?!4095)") < 40

    def _cached(self, folder: Path) -> list[str]:
        return [name for name in os.listdir(folder / "cache") if name.endswith(".object")]


def write_any(root: Path, form: str) -> tuple[Path, dict[str, Any]]:
    """Write a corpus of several shards in some format; return its folder and options to read it."""
    lists = list(SHARDS.values())
    if form in ("lists", "parquet", "compressed"):
        return write_corpus(root, SHARDS, form=form), {}
    root.mkdir()
    options: dict[str, Any] = {}
    for number, docs in enumerate(lists):
        text = [" ".join(map(str, doc)) for doc in docs]
        if form == "nanogpt":
            (root / f"{number}.bin").write_bytes(nanogpt_bytes(docs, 65_000))
            options = {"format": "nanogpt", "end_token": 65_000, "dtype": "uint16"}
        elif form == "megatron":
            write_megatron(root / f"{number}.bin", [[doc] for doc in docs])
        elif form == "json":
            lines = "".join(json.dumps({"text": one}) + "\n" for one in text)
            (root / f"{number}.jsonl").write_text(lines)
        elif form == "text":
            parquet.write_table(pa.table({"text": text}), root / f"{number}.parquet")
    if form == "mds":
        write_mds(root, lists)
    if form in ("json", "text"):
        options = {"column": "text", "tokenizer": str.encode}
    return root, options


def largest_open(s3: Bucket) -> int:
    """Return the bytes of the largest shard in memory, which are those that it asks for alone."""
    found = []
    for name in SHARDS:
        documents = wd.Documents(
            f"{s3.url}/corpus",
            storage_options=s3.options,
            files=f"dataset={name}.arrow",
            open_bytes=1,
        )
        needed = re.search(r"need open_bytes=(\d+)", documents.explain_reopening() or "")
        assert needed is not None
        found.append(int(needed[1]))
    return max(found)


def wait_for_read_ahead() -> None:
    """Wait for the end of all calls that were given to threads."""
    threads = original("threads._running")
    for task in [one for one in gc.get_referrers(Task) if type(one) is Task]:
        assert task in threads or task.wait(30)
