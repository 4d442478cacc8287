"""Tests of copies in an S3 server: equal to their source, or not there, whatever fails."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from checkpoint.test_verifying import fill
from support.internals import plant
from support.object_servers import ACCESS, SECRET, Answer, Bucket, bucket_of, retry_quickly
from support.store_servers import DURABLE
from windeck import checkpoint
from windeck.checkpoint import Partition, copy, diff, verify
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]
#: Requests that read bytes of segments, that write any, and that end the upload of one.
READS, WRITES, DONE = r"^GET .*/segments/.* bytes=", r"^(PUT|POST|DELETE) ", r"^POST .*\?uploadId="


def opened(s3: Bucket, folder: str = "run") -> Any:
    store = open_store(f"{s3.url}/{folder}", storage_options=s3.options)
    assert keys.has_segments(store)
    return store


def contents(store: Store) -> dict[bytes, bytes]:
    """Return keys and values, but for manifests of writers, which are not copied."""
    return {key: value for key, value in store.scan() if not key.startswith(b"windeck/s/")}


def bytes_read(s3: Bucket) -> int:
    """Return the bytes of segments that the server was asked for."""
    ranges = [re.search(r"bytes=(\d+)-(\d+)", one) for one in s3.proxy.requests]
    asked = [one for one, text in zip(ranges, s3.proxy.requests, strict=True) if "segments" in text]
    return sum(int(one[2]) + 1 - int(one[1]) for one in asked if one is not None)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "objects.SEGMENT_BYTES", 6000)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("kind", ["memory", *DURABLE])
def test_from_any_store_and_back(kind: str, fresh: Fresh, s3: Bucket) -> None:
    url = fresh(kind)
    with open_store(url) as source, opened(s3) as target, open_store("memory://") as back:
        numbers = fill(source)
        checkpoint.tag(source, "best", generation=numbers[0])
        seen: list[int] = []
        done = copy(source, target, progress=seen.append)
        assert done.generations == numbers[::-1]
        assert (done.values, done.bytes) == (len(seen), sum(seen))
        with opened(s3) as found:
            assert len(found.segments) > 3
            assert contents(found) == contents(source)
            report = verify(found, deep=True)
            assert (report.ok, report.unreferenced, report.generations) == (True, 0, numbers[::-1])
            assert checkpoint.log(found) == checkpoint.log(source)
            copy(found, back)
        assert contents(back) == contents(source)
        assert not diff(source, None, None, other=back)


def test_everything_loads_as_from_the_source(s3: Bucket, memory: Store) -> None:
    rng = torch.Generator().manual_seed(1)
    model = {f"w{i}": torch.randn(40, 30, generator=rng) for i in range(20)}
    model["half"] = torch.randn(500_000, generator=rng).to(torch.bfloat16)
    table = wd.EmbeddingTable(4, optimizer="adam", lr=0.1, seed=1)
    ids = np.arange(-5000, 5000, dtype=np.int64) * 977
    table.core.lookup(ids, insert=True)
    checkpoint.save(memory, step=7, model=model, embeddings={"user": table}, extra={"lr": 0.5})
    with opened(s3) as target:
        copy(memory, target)
    with opened(s3) as found:
        fresh = wd.EmbeddingTable(4, optimizer="adam", lr=0.1, seed=1)
        into = {name: torch.zeros_like(value) for name, value in model.items()}
        loaded = checkpoint.load(found, model=into, embeddings={"user": fresh})
        assert (loaded.step, loaded.extra) == (7, {"lr": 0.5})
        assert all(torch.equal(into[name], model[name]) for name in model)
        with checkpoint.open(found) as a, checkpoint.open(memory) as b:
            ours, theirs = a.table("user").rows(ids[::50]), b.table("user").rows(ids[::50])
            assert np.array_equal(ours.values, theirs.values)
            assert ours.admitted.all()
    here, there = (one.core.snapshot().read(0, 1024) for one in (fresh, table))
    assert all(np.array_equal(here[name], there[name]) for name in here)


@pytest.mark.usefixtures("small_segments")
def test_only_what_is_not_there_is_written(s3: Bucket, memory: Store) -> None:
    fill(memory, 2)
    with opened(s3) as target:
        first = copy(memory, target)
        assert first.values > 0
        was = {one.name for one in target.segments}
        s3.proxy.clear()
        again = copy(memory, target)
        assert (again.generations, again.values, again.bytes) == ([2, 1], 0, 0)
        assert s3.proxy.count(WRITES) == 0
        # A tag alone writes a list, and no segment.
        checkpoint.tag(memory, "best", generation=1)
        copy(memory, target)
        assert s3.proxy.count(r"^P.* /.*/segments/") == 0
        assert [one.tags for one in checkpoint.log(target)] == [(), ("best",)]
        # An incremental save refers to data that are there.
        checkpoint.save(
            memory, step=3, model={"w": torch.arange(200.0)}, chunk_bytes=80, incremental=True,
            tag="best",
        )  # fmt: skip
        s3.proxy.clear()
        assert copy(memory, target).generations == [3, 2, 1]
        names = {one.name for one in target.segments}
        assert was < names
        assert s3.proxy.count(DONE) == len(names - was) + 1
        # The source need not have older generations any more.
        checkpoint.gc(memory, keep=1)
        checkpoint.save(memory, step=4, model={"w": torch.zeros(9)}, keep=1)
        copy(memory, target)
        found = [(one.generation, one.tags) for one in checkpoint.log(target)]
        assert found == [(4, ()), (3, ("best",)), (2, ()), (1, ())]
    with opened(s3) as target:
        assert verify(target, deep=True).ok


def test_chosen_generations_and_then_all(s3: Bucket, memory: Store) -> None:
    numbers = fill(memory, 4)
    with opened(s3) as target:
        copy(memory, target, generations=[numbers[2]])
        assert [one.generation for one in checkpoint.log(target)] == [numbers[2]]
        assert verify(target, deep=True).ok
        copy(memory, target, generations=[numbers[0]])  # an earlier one of the same run
        assert [one.generation for one in checkpoint.log(target)] == [numbers[2], numbers[0]]
        copy(memory, target)
        assert contents(target) == contents(memory)


def test_tags_are_those_of_the_source(tmp_path: Path, memory: Store) -> None:
    target = f"file://{tmp_path}/run"

    def tags(store: Store | str) -> dict[int, tuple[str, ...]]:
        return {one.generation: one.tags for one in checkpoint.log(store)}

    checkpoint.save(memory, step=1, model={"w": torch.ones(3)}, tag="gold")
    copy(memory, target)
    assert tags(target) == {1: ("gold",)}
    # Removed, and then the generation, too: `gc` may remove it from the copy.
    checkpoint.untag(memory, "gold")
    checkpoint.save(memory, step=2, model={"w": torch.ones(3)}, keep=1)
    copy(memory, target)
    assert tags(target) == {2: (), 1: ()}
    with pytest.raises(FileNotFoundError, match="gold"):
        checkpoint.load(target, model={"w": torch.ones(3)}, generation="gold")
    assert checkpoint.gc(target, keep=1) == [1]
    # Set and moved on generations that are not among those to be copied.
    checkpoint.save(memory, step=3, model={"w": torch.ones(3)})
    checkpoint.tag(memory, "best", generation=3)
    checkpoint.tag(memory, "last", generation=2)
    copy(memory, target, generations=[3])
    assert tags(target) == {3: ("best",), 2: ("last",)}
    checkpoint.tag(memory, "best", generation=2)
    checkpoint.save(memory, step=4, model={"w": torch.ones(3)}, tag="last")
    copy(memory, target, generations=[3])
    assert tags(target) == {3: (), 2: ("best",)}
    copy(memory, target, generations=[4])
    assert tags(target) == tags(memory) == {4: ("last",), 3: (), 2: ("best",)}


def test_another_run_is_refused_unless_it_replaces(s3: Bucket, memory: Store) -> None:
    fill(memory, 2)
    with opened(s3) as target, open_store("memory://") as other:
        checkpoint.save(other, step=77, model={"v": torch.ones(3)})
        copy(other, target)
        was = contents(target)
        with pytest.raises(FileExistsError, match=r"^s3://.* another run in windeck, .* replace="):
            copy(memory, target)
        assert contents(target) == was
        copy(memory, target, target_namespace="beside/it")
        copy(memory, target, replace=True)
        assert [one.step for one in checkpoint.log(target)] == [2, 1]
        assert {one.name for one in target.segments} == {*target.segment_files()}
        assert verify(target, deep=True).unreferenced == 0
        assert verify(target, deep=True, namespace="beside/it").ok
        # Replaced by a part of itself: what is there is not written again.
        s3.proxy.clear()
        copy(memory, target, replace=True, generations=[2])
        assert [one.step for one in checkpoint.log(target)] == [2]
        assert verify(target, deep=True).ok
        with pytest.raises(FileExistsError, match="has a checkpoint of another run"):
            copy(other, target)


def test_gc_removes_what_no_generation_needs(s3: Bucket, memory: Store) -> None:
    for step in range(1, 6):
        model = {"w": torch.full((1000,), float(step)), "fixed": torch.arange(900.0)}
        checkpoint.save(memory, step=step, model=model, incremental=step in (2, 3))
    with opened(s3) as target:
        copy(memory, target)
        copy(memory, target, target_namespace="other")
        checkpoint.tag(memory, "best", generation=3)
        copy(memory, target)
        before = target.segment_files()
        assert checkpoint.gc(target, keep=1, dry_run=True) == [1, 4]
        assert target.segment_files() == before
        assert checkpoint.gc(target, keep=1) == [1, 4]  # 3 needs data of 2
        assert [one.generation for one in checkpoint.log(target)] == [5, 3]
        assert verify(target, deep=True).ok
        assert verify(target, deep=True, namespace="other").ok
        checkpoint.untag(memory, "best")
        copy(memory, target, generations=[3])
        assert checkpoint.gc(target, keep=1) == [2, 3]
        assert [one.generation for one in checkpoint.log(target)] == [5]
        assert verify(target, deep=True).ok
        assert len(checkpoint.log(target, namespace="other")) == 5
        # What a killed copy of an old generation left, and one that may go on.
        group = next(one.name for one in target.segments if one.name.startswith(_hash("windeck")))
        old, new = (group.replace(f"-{5:016x}-", f"-{n:016x}-") for n in (2, 9))
        s3.put(f"run/segments/{old}", b"left")
        s3.put(f"run/segments/{new}", b"uploaded")
        assert checkpoint.gc(target, keep=1) == [2]
        assert new in target.segment_files()
        assert old not in target.segment_files()
    with opened(s3, "begun") as begun:  # by a first copy that was killed
        begun.begin_copy()
        s3.put(f"begun/segments/{old}", b"left")
        assert checkpoint.gc(begun, keep=1) == [2]
        assert begun.segment_files() == {}
        assert checkpoint.gc(begun, keep=1) == []


def _hash(namespace: str) -> str:

    return keys.segment_group(namespace, 0, 0).partition("-")[0]


def test_a_reader_of_what_gc_removed_gets_an_error(s3: Bucket, memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.ones(3)})
    checkpoint.save(memory, step=2, model={"w": torch.ones(3)})
    with opened(s3) as target:
        copy(memory, target)
        with opened(s3) as reader, checkpoint.open(target, generation=1):
            checkpoint.gc(target, keep=1)
            with pytest.raises(CorruptStoreError, match=r"is missing, .* open the store again"):
                checkpoint.open(reader, generation=1)


class TestRangesRead:
    """Only what is asked for is read, counted in bytes at the server."""

    TENSORS, ROWS, COLUMNS = 12, 600, 1000
    model: dict[str, torch.Tensor]
    manifest: int
    index: int

    @pytest.fixture(scope="class")
    @classmethod
    def s3(cls, s3_port: int) -> Iterator[Bucket]:
        """Yield a bucket with a copy, which all tests of the class read."""
        made = torch.Generator().manual_seed(2)
        shape = cls.ROWS, cls.COLUMNS
        cls.model = {f"l{i}": torch.randn(shape, generator=made) for i in range(cls.TENSORS)}
        table = wd.EmbeddingTable(16, optimizer="sgd", lr=0.1, seed=1)
        table.core.lookup(np.arange(100_000), insert=True)
        with pytest.MonkeyPatch.context() as patch, bucket_of(s3_port) as bucket:
            retry_quickly(patch)
            with open_store("memory://") as memory, opened(bucket) as target:
                checkpoint.save(memory, step=1, model=cls.model, embeddings={"user": table})
                copy(memory, target)
                cls.index = sum(one.size - one.values_size for one in target.segments)
                cls.manifest = checkpoint.log(target)[0].manifest_bytes
            yield bucket

    @pytest.fixture(autouse=True)
    def _clear(self, s3: Bucket) -> None:
        s3.proxy.clear()

    def test_one_tensor_of_many(self, s3: Bucket) -> None:
        with opened(s3) as store, checkpoint.open(store) as found:
            known = bytes_read(s3)
            assert known <= self.manifest + self.index
            assert torch.equal(found.tensor("model/l7"), self.model["l7"])
            width = self.ROWS * self.COLUMNS * 4
            assert width <= bytes_read(s3) - known <= width + 1000

    def test_one_row(self, s3: Bucket) -> None:
        with opened(s3) as store, checkpoint.open(store) as found:
            known = bytes_read(s3)
            assert torch.equal(found.row("model/l3", 17), self.model["l3"][17])
            assert bytes_read(s3) - known <= (1 << 20) + 1000  # a chunk

    def test_one_row_of_a_table(self, s3: Bucket) -> None:
        with opened(s3) as store, checkpoint.open(store) as found:
            known = bytes_read(s3)
            assert found.table("user").rows([777]).found.all()
            assert bytes_read(s3) - known <= (512 << 10) + 5000  # the index, and a block

    def test_a_share_of_three_ranks(self, s3: Bucket) -> None:
        size = self.TENSORS * self.ROWS * self.COLUMNS * 4
        for rank in range(3):
            s3.proxy.clear()
            rows, first = self.ROWS // 3, self.ROWS // 3 * rank
            parts = {
                name: torch.zeros(rows, self.COLUMNS) for name in self.model
            }  # fmt: skip
            model = {
                name: Partition(part, offset=(first, 0), shape=(self.ROWS, self.COLUMNS))
                for name, part in parts.items()
            }
            with opened(s3) as store:
                checkpoint.load(store, model=model)
            for name, part in parts.items():
                assert torch.equal(part, self.model[name][first : first + rows])
            # A third, in whole chunks of 1 MiB: up to two of the three of a tensor.
            assert bytes_read(s3) < size

    def test_large_reads_are_parallel(self, s3: Bucket) -> None:
        s3.proxy.delay = 0.05
        with opened(s3) as store:
            into = {name: torch.zeros_like(value) for name, value in self.model.items()}
            checkpoint.load(store, model=into)
        assert all(torch.equal(into[name], self.model[name]) for name in into)
        assert s3.proxy.most >= 3
        assert s3.proxy.count(READS) < 20


def test_four_ranks_saved_and_three_load(s3: Bucket, memory: Store) -> None:
    """Each rank reads its rows, and the chunks at the borders of those of the four."""
    whole = torch.randn(1200, 500)
    plan = checkpoint.begin(memory, step=1, writers=4, chunk_bytes=20_000)
    for writer in range(4):
        part = Partition(
            whole[300 * writer :][:300].clone(), offset=(300 * writer, 0), shape=whole.shape
        )
        checkpoint.save_shard(memory, plan, writer=writer, model={"w": part})
    checkpoint.merge(memory, plan)
    with opened(s3) as target:
        copy(memory, target)
        index = sum(one.size - one.values_size for one in target.segments)
    for rank in range(3):
        s3.proxy.clear()
        rows = torch.zeros(400, 500)
        with opened(s3) as store:
            model = {"w": Partition(rows, offset=(400 * rank, 0), shape=whole.shape)}
            checkpoint.load(store, model=model)
        assert torch.equal(rows, whole[400 * rank :][:400])
        chunks = 400 * 500 * 4 + 4 * 20_000
        assert 400 * 500 * 4 < bytes_read(s3) <= chunks + 100 * 64 + index + 5000


PASSING = [("status", 503), ("status", 500), ("cut", 0), ("reset", 0), ("short", 0)]


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(("kind", "amount"), [*PASSING, ("shift", 7)])
def test_faults_that_pass_do_not_show(kind: str, amount: float, s3: Bucket, memory: Store) -> None:
    fill(memory)
    with opened(s3) as target:
        planned = []
        if kind in ("status", "reset"):
            requests = (r"^PUT .*segments.*partNumber", r"^POST .*segments.*uploadId", "^GET.*list")
            planned = [s3.proxy.plan(kind, one, amount=amount, times=2) for one in requests]
        copy(memory, target)
        assert all(one.fired for one in planned)
    planned = [
        s3.proxy.plan(kind, READS, amount=amount, times=2, skip=skip) for skip in (0, 2, 5)
    ]  # fmt: skip
    with opened(s3) as found:
        assert contents(found) == contents(memory)
    assert all(one.fired for one in planned)


def test_a_server_that_stays_away_is_an_error(s3: Bucket, memory: Store) -> None:
    fill(memory)
    with opened(s3) as target:
        s3.proxy.plan("status", r"^PUT .*segments", amount=503, times=99)
        with pytest.raises(ConnectionError, match=r"cannot write 's3://.*: 4 attempts failed"):
            copy(memory, target)
        s3.proxy.clear()
        assert checkpoint.log(target) == []
        copy(memory, target)
    s3.proxy.plan("status", READS, amount=503, times=99)
    with opened(s3) as found, pytest.raises(ConnectionError, match="4 attempts failed"):
        checkpoint.open(found)


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied", "InvalidAccessKeyId"])
def test_credentials_that_expire(code: str, s3: Bucket, memory: Store) -> None:
    fill(memory)
    with opened(s3) as target:
        s3.proxy.plan("status", r"^PUT .*segments", amount=403, code=code, times=99, skip=1)
        with pytest.raises(PermissionError, match="access is denied") as caught:
            copy(memory, target)
        assert not any(one in str(caught.value) for one in (ACCESS, SECRET))
        s3.proxy.clear()
        assert checkpoint.log(opened(s3)) == []
        copy(memory, target)
    s3.proxy.plan("status", READS, amount=403, code=code, times=99)
    with opened(s3) as found, pytest.raises(PermissionError, match="access is denied") as caught:
        checkpoint.load(found, model={"w": torch.zeros(200)})
    assert not any(one in str(caught.value) for one in (ACCESS, SECRET))
    files = s3.direct.get_file_info(_everything(s3))
    for file in files:
        if file.size:
            content = s3.direct.open_input_stream(file.path).read()
            assert not any(one.encode() in content for one in (ACCESS, SECRET, "127.0.0.1"))


def _everything(s3: Bucket) -> Any:
    from pyarrow.fs import FileSelector

    return FileSelector(s3.name, recursive=True)


@pytest.mark.parametrize("what", ["flipped", "shorter", "longer", "missing", "swapped"])
def test_a_damaged_segment_is_an_error_that_names_it(what: str, s3: Bucket, memory: Store) -> None:
    for step in (1, 2):
        checkpoint.save(memory, step=step, model={"w": torch.full((5000,), float(step))})
    with opened(s3) as target:
        copy(memory, target)
        first, second = target.segments

    def content(name: str) -> bytes:
        found: bytes = s3.direct.open_input_stream(f"{s3.name}/run/segments/{name}").read()
        return found

    was = content(second.name)
    assert len(content(first.name)) == len(was)
    damaged = {
        "flipped": was[:9000] + bytes([was[9000] ^ 8]) + was[9001:],
        "shorter": was[:-1],
        "longer": was + b"\0",
        "swapped": content(first.name),
    }
    if what == "missing":
        s3.delete(f"run/segments/{second.name}")
    else:
        s3.put(f"run/segments/{second.name}", damaged[what])
    with opened(s3) as found:
        into = {"w": torch.zeros(5000)}
        assert checkpoint.load(found, model=into, generation=1).step == 1
        assert (into["w"] == 1).all()
        with pytest.raises(CorruptStoreError, match=second.name):
            checkpoint.load(found, model=into)
        report = verify(found, deep=True)
        assert not report.ok
        assert all(second.name in one.problem for one in report.damages)
        with open_store("memory://") as back:
            with pytest.raises(CorruptStoreError, match=second.name):
                copy(found, back)
            assert checkpoint.log(back) == []
    with opened(s3) as target:
        if what in ("shorter", "longer", "missing"):
            with pytest.raises(CorruptStoreError, match=rf"{second.name} .*replace=True"):
                copy(memory, target)
        copy(memory, target, replace=True)
        assert verify(target, deep=True).ok
    with opened(s3) as found:
        assert contents(found) == contents(memory)


@pytest.mark.parametrize("cut", [0, 9, -9])
def test_a_damaged_list_is_repaired_as_its_error_says(
    cut: int, memory: Store, tmp_path: Path
) -> None:
    target, lists = f"file://{tmp_path}", tmp_path / "lists"
    fill(memory, 2)
    copy(memory, target, generations=[1])
    first = next(iter(lists.iterdir()))
    whole = first.read_bytes()
    copy(memory, target)
    newest, former = max(lists.iterdir()), sorted(lists.iterdir())[-2]
    newest.write_bytes(newest.read_bytes()[:cut])
    for replace in (False, True):
        words = rf"{newest.name} is damaged: .*; remove it to go on from lists/{former.name}, and"
        with pytest.raises(CorruptStoreError, match=words):
            copy(memory, target, replace=replace)
    newest.unlink()
    copy(memory, target, replace=True)
    with open_store(target) as found:
        assert contents(found) == contents(memory)
        assert verify(found, deep=True).ok
    for one in lists.iterdir():
        one.unlink()
    first.write_bytes(whole[:cut])
    with pytest.raises(CorruptStoreError, match=rf"{first.name} .*; copy to a new folder$"):
        copy(memory, target, replace=True)


PROGRAM = """
import json, os, sys
import pyarrow.fs
from support.internals import replace
from windeck import checkpoint
from windeck._util import retry
from windeck.checkpoint.stores import open_store

replace("objects.SEGMENT_BYTES", 6000)
replace("retry.REQUESTS", retry.RetryPolicy(first_pause=0.001, most_attempts=6))
source, options = sys.argv[1], json.loads(sys.argv[2])
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        with open_store(line.strip(), storage_options=options) as target:
            checkpoint.copy(source, target)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Killing:
    """Answers of a server that kills its client before or after a request that writes."""

    def __init__(self, answer: Answer, left: int, pids: queue.Queue[int]) -> None:
        self._answer, self._left, self._pids = answer, left, pids

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        counts = method in ("PUT", "POST", "DELETE")
        self._tick(counts)
        found = self._answer(method, path, headers, body)
        self._tick(counts)
        return found

    def _tick(self, counts: bool) -> None:
        self._left -= counts
        if counts and self._left == -1:
            os.kill(self._pids.get(timeout=60), signal.SIGKILL)


class Copies:
    """A program that copies from a store to URLs, each time in a process of its own."""

    def __init__(self, source: str, options: Mapping[str, Any]) -> None:
        command = [sys.executable, "-c", PROGRAM, source, json.dumps(options)]
        self._process = subprocess.Popen(
            command,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.pids: queue.Queue[int] = queue.Queue()

    def copy(self, url: str) -> int:
        """Copy, and return the exit code, -9 if the process was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{url}\n")
        self._process.stdin.flush()
        self.pids.put(int(self._process.stdout.readline()))
        code = int(self._process.stdout.readline())
        while not self.pids.empty():
            self.pids.get()
        return code

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)


def kill_copies(s3: Bucket, source: str, points: range) -> tuple[int, int]:
    """Kill copies at some points and repeat them; return how many were killed, and how many not."""
    answer = s3.proxy.answer
    killed = ended = 0
    with (
        Copies(source, s3.options) as copies,
        open_store(f"{source}?readonly=1") as store,
    ):
        expected, steps = contents(store), [one.step for one in checkpoint.log(store)]
        for point in points:
            folder = f"run{point}"
            with opened(s3, folder) as target:
                copy(store, target, generations=[1])
            s3.proxy.answer = Killing(answer, point, copies.pids)
            code = copies.copy(f"{s3.url}/{folder}")
            s3.proxy.answer = answer
            with opened(s3, folder) as found:
                seen = [one.step for one in checkpoint.log(found)]
                assert seen in ([1], steps)
                assert code == -9 or seen == steps
                assert verify(found, deep=True).ok
                complete = found.segment_files()
            killed, ended = killed + (code == -9), ended + (code == 0)
            s3.proxy.requests.clear()
            assert copies.copy(f"{s3.url}/{folder}") == 0
            with opened(s3, folder) as found:
                assert contents(found) == expected
                assert found.segment_files().keys() == {one.name for one in found.segments}
            # What was complete is not uploaded again.
            assert not any(s3.proxy.count(rf"^P.*segments/{name}") for name in complete)
            if code == 0:
                break
    return killed, ended


@pytest.fixture
def source(fresh: Fresh) -> str:
    url = fresh("rocksdb")
    with open_store(url) as store:
        fill(store)
    return url


@pytest.mark.usefixtures("small_segments")
def test_killed_copies_go_on(s3: Bucket, source: str) -> None:
    killed, _ = kill_copies(s3, source, range(2, 26, 9))
    assert killed == 3


@pytest.mark.slow
@pytest.mark.usefixtures("small_segments")
def test_copies_killed_at_every_request(s3: Bucket, source: str) -> None:
    killed, ended = kill_copies(s3, source, range(200))
    assert killed > 20
    assert ended == 1


def test_saving_directly_names_copy(s3: Bucket) -> None:
    with opened(s3) as store:
        for call in (
            lambda: checkpoint.save(store, step=1, model={"w": torch.ones(3)}),
            lambda: checkpoint.begin(store, step=1, writers=2),
        ):
            with pytest.raises(OSError, match=r"^s3://.* copy it here by checkpoint\.copy$"):
                call()
        with pytest.raises(FileNotFoundError, match="there is no checkpoint at s3://"):
            checkpoint.load(store, model={})
    assert s3.proxy.count(WRITES) == 0


class TestView:
    """`windeck view` of a copy, with credentials of the environment."""

    @pytest.fixture(autouse=True)
    def _environment(self, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3.proxy.port}")

    def test_its_commands_print_what_they_print_of_the_source(
        self, s3: Bucket, source: str, tmp_path: Any
    ) -> None:
        from support.view_cases import refused, run, run_json

        url = f"{s3.url}/run"
        done = run_json(source, "copy", url)
        assert (done["target"], done["generations"]) == (url, [3, 2, 1])
        for words in (
            ["ls"], ["ls", "--generation", "2"], ["log"], ["show", "model/w"],
            ["find", "== -1"], ["row", "user", "5"], ["verify", "--deep"],
        ):  # fmt: skip
            ours, theirs = run(url, *words), run(source, *words)
            assert ours[1].replace(url, source) == theirs[1], words
            assert (ours[0], ours[2]) == (theirs[0], theirs[2]), words
        pages = [tmp_path / "ours.html", tmp_path / "theirs.html"]
        assert run(url, "html", str(pages[0]))[0] == run(source, "html", str(pages[1]))[0] == 0
        made = re.compile(r'"made":"[^"]+"')  # the time at which a page was made
        ours_page, their_page = (made.sub("", page.read_text(), count=1) for page in pages)
        assert ours_page.replace(url, source) == their_page
        assert run_json(source, "diff", "3", "3", "--other", url)["tensors"] == []
        assert run_json(url, "gc", "--keep", "3")["kept"] == [3, 2, 1]
        assert run_json(source, "copy", url)["values"] == 0
        secret = f"s3://{ACCESS}:hidden@{s3.name}/none"
        message = refused(secret, "ls", code=3)
        assert "there is no checkpoint at s3://" in message or "denied" in message
        assert "hidden" not in message
