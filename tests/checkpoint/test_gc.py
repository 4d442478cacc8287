"""Tests of gc: generations that others are based on, namespaces, damage, and missing databases."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import windeck as wd
from models.incremental_model import CHUNK
from support.store_servers import EMBEDDED, KINDS, need
from windeck import checkpoint
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]


def test_gc_beside_an_incremental_save() -> None:
    """gc keeps the chunks that a concurrent incremental save refers to."""
    state = {"w": torch.zeros(40)}
    with open_store("memory://") as store:
        for step in range(4):
            state["w"][4 * step] = 1
            checkpoint.save(store, step=step, model=state, chunk_bytes=CHUNK, incremental=True)

        class Cleared:
            def bulk_load(self, items: Any) -> int:
                checkpoint.gc(store, keep=1)
                return store.bulk_load(items)

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        state["w"][39] = 5
        number = checkpoint.save(
            Cleared(), step=9, model=state, chunk_bytes=CHUNK, incremental=True
        )
        target = {"w": torch.ones(40)}
        assert checkpoint.load(store, model=target).generation == number == 5
        assert torch.equal(target["w"], state["w"])
        assert checkpoint.log(store)[0].bases == (1, 2, 3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_gc_leaves_other_namespaces(kind: str, fresh: Fresh) -> None:
    """Namespaces whose names begin like the library's keys are kept too."""
    with open_store(fresh(kind)) as store:
        others = ["run/t", "run/m", "run2", "run/d/x", "ru"]
        for step in range(3):
            for name in ("run", *others):
                checkpoint.save(store, step=step, model={"w": torch.ones(3)}, namespace=name)
        before = {key for key in list(store.keys()) if keys.parse("run", key) is None}
        assert checkpoint.gc(store, keep=1, namespace="run") == [1, 2]
        after = set(store.keys())
        assert before <= after
        own = {("m", (3,)), ("t", (3, 0, 0, 0))}
        assert {keys.parse("run", key) for key in after - before} == own
        assert all(len(checkpoint.log(store, namespace=name)) == 3 for name in others)


class Interrupted(Exception):
    """The end of a process between two removals."""


class Removals:
    """A store that records the keys of each removal, and is interrupted before one of them."""

    def __init__(self, store: Store, interrupted_at: int = -1) -> None:
        self._store, self._at, self.removed = store, interrupted_at, list[list[bytes]]()

    def _note(self, names: list[bytes]) -> None:
        if len(self.removed) == self._at:
            raise Interrupted
        self.removed.append(names)

    def delete_many(self, names: Iterable[bytes]) -> None:
        every = list(names)
        self._note(every)
        self._store.delete_many(every)

    def delete_range(self, prefix: bytes = b"", **ends: Any) -> None:
        self._note(list(self._store.keys(prefix, **ends)))
        self._store.delete_range(prefix, **ends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_goes_before_what_it_names(kind: str, fresh: Fresh) -> None:
    """A generation whose removal was interrupted never looks complete."""
    with open_store(fresh(kind)) as store:
        for step in range(4):
            checkpoint.save(store, step=step, model={f"w{i}": torch.ones(3) for i in range(5)})
        watched: Any = Removals(store)
        assert checkpoint.gc(watched, keep=1) == [1, 2, 3]
        removed = [key for names in watched.removed for key in names]
        for generation in (1, 2, 3):
            own = [key for key in removed if b"%016x" % generation in key]
            assert len(own) > 1
            assert own[0] == keys.manifest("windeck", generation)


def backlog(store: Store, *, incremental: bool) -> None:
    """Save 12 generations, of which 4 and 8 have tags, beside keys that sort between theirs."""
    state = {"w": torch.zeros(40), "v": torch.ones(3)}
    for step in range(12):
        state["w"][3 * step] = step
        options: dict[str, Any] = {"chunk_bytes": CHUNK, "incremental": incremental}
        tag = f"best-{step}" if step in (3, 7) else None
        checkpoint.save(store, step=step, model=state, tag=tag, **options)
        if step in (1, 5):  # sorts after all keys of this generation, before those of the next
            other = f"windeck/t/{step + 1:016x}x"
            checkpoint.save(store, step=step, model=state, namespace=other)


def loaded(store: Store) -> dict[tuple[str, int], list[float]]:
    """Load all generations of all namespaces of `backlog`, and compare them with their steps."""
    found = {}
    for namespace in ("windeck", "windeck/t/0000000000000002x", "windeck/t/0000000000000006x"):
        for commit in checkpoint.log(store, namespace=namespace):
            model = {"w": torch.full((40,), -1.0), "v": torch.zeros(3)}
            where: dict[str, Any] = {"generation": commit.generation, "namespace": namespace}
            assert checkpoint.load(store, model=model, **where).step == commit.step
            expected = torch.zeros(40)
            expected[: 3 * commit.step + 1 : 3] = torch.arange(commit.step + 1.0)
            assert torch.equal(model["w"], expected)
            found[namespace, commit.generation] = model["w"].tolist()
    return found


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("kind", [*EMBEDDED, "memory"])
def test_gc_of_a_backlog_interrupted_between_any_two_removals(
    kind: str, incremental: bool, fresh: Fresh
) -> None:
    """Kept generations load, removed ones are not readable, and the next gc removes the rest."""
    with open_store(fresh(kind)) as store:
        backlog(store, incremental=incremental)
        everything = dict(store.scan())
        assert len(loaded(store)) == 14
        watched: Any = Removals(store)
        gone = checkpoint.gc(watched, keep=1)
        expected, left = loaded(store), set(store.keys())
        assert {number for name, number in expected if name == "windeck"} == {4, 8, 12}
        removals = len(watched.removed)
        if not incremental and store.facts.ordered:
            assert gone == [1, 2, 3, 5, 6, 7, 9, 10, 11]
            # One for all manifests; one for each run of generations without a kept one in it.
            assert removals == 1 + 3
    for at in range(removals):
        with open_store(fresh(kind)) as store:
            store.put_many(everything.items())
            with pytest.raises(Interrupted):
                checkpoint.gc(Removals(store, at), keep=1)
            assert loaded(store) == expected
            for number in set(range(1, 13)) - {4, 8, 12}:
                with pytest.raises(FileNotFoundError, match="there is no generation"):
                    checkpoint.load(store, model=None, generation=number)
            checkpoint.gc(store, keep=1)
            assert loaded(store) == expected
            assert set(store.keys()) == left


@pytest.mark.parametrize("kind", [*EMBEDDED, "memory"])
def test_gc_of_a_backlog_is_one_removal(kind: str, fresh: Fresh) -> None:
    """Not one a generation: 60 generations are removed with as few calls as 6 are."""
    counts = []
    for count in (6, 60):
        with open_store(fresh(kind)) as store:
            for step in range(count):
                checkpoint.save(store, step=step, model={"w": torch.ones(300_000)})
            watched: Any = Removals(store)
            assert len(checkpoint.gc(watched, keep=1)) == count - 1
            counts.append(len(watched.removed))
    assert counts == [2, 2] if store.facts.ordered else [1, 1]  # manifests, and one range of data


def compactions(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the bytes read and written by compactions of RocksDB, by the time of their ends.

    By its logs, of which it keeps the last 2 MiB.
    """
    found, read = {}, {}
    for path in sorted(folder.glob("LOG*"), key=lambda path: (path.name == "LOG", path.name)):
        with contextlib.suppress(FileNotFoundError):  # Replaced meanwhile.
            for line in path.read_text().split("\n")[:-1]:  # The last one may be half written.
                if "compaction_started" in line:
                    event = json.loads(line[line.index("{") :])
                    read[event["job"]] = event["input_data_size"]
                elif "compaction_finished" in line:
                    event = json.loads(line[line.index("{") :])
                    written = event["total_output_size"]
                    found[event["time_micros"]] = read.pop(event["job"], 0), written
    return found


def test_gc_of_a_backlog_is_one_compaction(tmp_path: Path) -> None:
    need("rocksdb")
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for step in range(60):
            checkpoint.save(store, step=step, model={"w": torch.ones(300_000)})
        assert len(checkpoint.gc(store, keep=1)) == 59
    found = [one for one in compactions(tmp_path / "x").values() if one[0] > 100_000]
    assert len(found) == 1
    read, written = found[0]
    assert read > 59 * 80_000  # the bytes of the tables that are deleted
    assert written < 100_000


def test_gc_does_not_guess_what_a_damaged_manifest_needs() -> None:
    state = {"w": torch.zeros(40)}
    with open_store("memory://") as store:
        for step in range(3):
            state["w"][4 * step] = 1
            checkpoint.save(store, step=step, model=state, chunk_bytes=CHUNK, incremental=True)
        key = b"windeck/m/%016x" % 2
        good = store.get(key)
        assert good is not None
        store.put_many([(key, good[:-1] + b"?")])
        before = dict(store.scan())
        with pytest.raises(CorruptStoreError, match=f"{key.decode()} is damaged"):
            checkpoint.gc(store, keep=2)
        assert dict(store.scan()) == before
        assert checkpoint.gc(store, keep=1) == [1, 2]
        target = {"w": torch.ones(40)}
        checkpoint.load(store, model=target)
        assert torch.equal(target["w"], state["w"])


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("dry_run", [False, True])
def test_no_database_is_made_to_be_cleared(kind: str, dry_run: bool, fresh: Fresh) -> None:
    url = fresh(kind)
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="there is no database at"):
            checkpoint.gc(url, keep=1, dry_run=dry_run)
    with open_store(url):
        pass
    assert checkpoint.gc(url, keep=1, dry_run=dry_run) == []  # nothing was saved yet


def used_bytes(folder: Path) -> int:
    """Return the bytes that a folder uses on its disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("kind", EMBEDDED)
def test_gc_frees_the_disk(kind: str, incremental: bool, tmp_path: Path) -> None:
    """The database shrinks to at most 1.2 times the bytes of what is kept."""
    need(kind)
    url = f"{kind}://{tmp_path}/x"
    state = {"old": torch.randn(2_000_000), "new": torch.randn(500_000)}
    most = 0
    for step in range(5):
        state["new"] += 1
        if not incremental:
            state["old"] += 1
        checkpoint.save(url, step=step, model=state, incremental=incremental)
        most = max(most, used_bytes(tmp_path))
    assert checkpoint.gc(url, keep=1) == [1, 2, 3, 4]
    kept = 10_000_000
    assert most > 1.6 * kept
    assert kept < used_bytes(tmp_path) <= 1.2 * kept
    target = {name: torch.zeros_like(value) for name, value in state.items()}
    assert checkpoint.load(url, model=target).step == 4
    assert all(torch.equal(target[name], state[name]) for name in state)
    assert checkpoint.verify(url, deep=True).ok


@pytest.mark.parametrize("kind", EMBEDDED)
def test_saves_that_keep_two_use_the_space_of_two(kind: str, tmp_path: Path) -> None:
    """After every save, not only after a compaction now and then."""
    need(kind)
    url, state = f"{kind}://{tmp_path}/x", {"w": torch.randn(1_250_000)}
    for step in range(8):
        state["w"] += 1
        checkpoint.save(url, step=step, model=state, keep=2)
        kept = 5_000_000 * min(step + 1, 2)
        assert kept < used_bytes(tmp_path) <= 1.2 * kept + (1 << 20)  # of the reserve
    assert [commit.step for commit in checkpoint.log(url)] == [7, 6]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB; skip without the permission to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs the permissions of root on Linux")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write to a file until the disk is full."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY)
    with contextlib.suppress(OSError):
        while True:
            os.write(handle, os.urandom(4096))
    os.close(handle)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_gc_on_a_full_disk(kind: str, small_disk: Path) -> None:
    """A disk that this and other programs filled can be cleared, and the next save succeeds."""
    need(kind)
    url = f"{kind}://{small_disk}/x"
    state = {"w": torch.randn(2_000_000)}
    saved = code = 0
    for step in range(1, 9):
        state["w"] += 1
        try:
            checkpoint.save(url, step=step, model=state)
        except OSError as error:
            code = error.errno or 0
            break
        saved = step
    assert code == errno.ENOSPC
    assert saved >= 3
    fill(small_disk / "other")
    assert shutil.disk_usage(small_disk).free == 0
    assert checkpoint.gc(url, keep=1)[: saved - 1] == [*range(1, saved)]
    assert used_bytes(small_disk / "x") <= 1.2 * 8_000_000
    target = {"w": torch.zeros(2_000_000)}
    assert checkpoint.load(url, model=target).step == saved
    (small_disk / "other").unlink()
    for step in range(saved + 1, saved + 7):
        checkpoint.save(url, step=step, model=state, keep=1)
    assert [commit.step for commit in checkpoint.log(url)] == [saved + 6]
    assert used_bytes(small_disk / "x") <= 1.2 * 8_000_000


def trained_table() -> tuple[wd.EmbeddingTable, Callable[[], None]]:
    """Return a table of 8.7 MB, and a function that changes all of it."""
    table, ids = wd.EmbeddingTable(32, optimizer="adagrad", seed=1), torch.arange(30_000)

    def train() -> None:
        table(ids).square().sum().backward()
        table.step()

    return table, train


@pytest.mark.parametrize("kind", EMBEDDED)
def test_tables_on_a_small_disk(kind: str, small_disk: Path) -> None:
    """Saves of tables need the space of one generation more than they keep."""
    need(kind)
    url, (table, train) = f"{kind}://{small_disk}/x", trained_table()
    keep = 2 if kind == "rocksdb" else 1  # LevelDB leaves 12 MiB free
    for step in range(15):
        train()
        checkpoint.save(url, step=step, embeddings={"t": table}, keep=keep)
    assert [commit.step for commit in checkpoint.log(url)] == [14, 13][:keep]
    saved = 0
    with contextlib.suppress(OSError):
        for step in range(15, 20):
            train()
            checkpoint.save(url, step=step, embeddings={"t": table})
            saved = step
    assert 15 <= saved < 19
    for step in range(saved + 1, saved + 4):  # also with the space that is held back for this
        fill(small_disk / "other")
        checkpoint.gc(url, keep=1)
        assert used_bytes(small_disk / "x") <= 1.2 * 8_700_000 + (1 << 20)
        (small_disk / "other").unlink()
        train()
        checkpoint.save(url, step=step, embeddings={"t": table})
    assert [commit.step for commit in checkpoint.log(url)] == [saved + 3, saved + 2]
    assert checkpoint.verify(url, deep=True).ok


@pytest.mark.parametrize("names", ["a", "ba"])
@pytest.mark.parametrize("kind", EMBEDDED)
def test_growing_tables_on_a_small_disk(kind: str, names: str, small_disk: Path) -> None:
    """A full disk is cleared whatever files the generations of one or two namespaces are in."""
    need(kind)
    url, step = f"{kind}://{small_disk}/x", 0
    tables = {name: wd.EmbeddingTable(32, optimizer="adagrad") for name in names}
    rows = dict.fromkeys(names, 2000)

    def save(name: str, keep: int) -> None:
        nonlocal step
        rows[name] += 400
        tables[name](torch.arange(rows[name])).square().sum().backward()
        tables[name].step()
        step += 1
        checkpoint.save(url, step=step, embeddings={"t": tables[name]}, namespace=name, keep=keep)

    def save_until_full() -> None:
        while step < 200:
            save(names[step * step % 3 % len(names)], 3)

    for _ in range(2):
        with pytest.raises(OSError, match=r"No space left|the disk has [\d,]+ bytes left"):
            save_until_full()
        fill(small_disk / "other")
        for name in names:
            checkpoint.gc(url, keep=1, namespace=name)
        assert used_bytes(small_disk / "x") <= 1.2 * 290 * sum(rows.values()) + (1 << 20)
        (small_disk / "other").unlink()
        for name in names * 2:
            save(name, 1)
        assert all(checkpoint.verify(url, namespace=name, deep=True).ok for name in names)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_gc_of_incremental_saves_on_a_full_disk(kind: str, small_disk: Path) -> None:
    """Generations without needed values make the space to rewrite one that has some."""
    need(kind)
    url, state = f"{kind}://{small_disk}/x", {"w": torch.randn(2_500_000)}
    saved = -1
    with contextlib.suppress(OSError):
        for step in range(20):
            state["w"][step :: 2 << 18] += 1  # every second chunk
            checkpoint.save(url, step=step, model=state, incremental=True)
            saved = step
    assert 4 < saved < 19
    fill(small_disk / "other")
    checkpoint.gc(url, keep=1)
    assert used_bytes(small_disk / "x") <= 1.2 * 10_000_000
    target = {"w": torch.zeros(2_500_000)}
    assert checkpoint.load(url, model=target).step == saved


@pytest.mark.parametrize("rows", [0, 50, 30_000])
@pytest.mark.parametrize("kind", EMBEDDED)
def test_many_saves_leave_few_files(kind: str, rows: int, tmp_path: Path) -> None:
    """Files of manifests and of removed ones are merged, whatever is between them."""
    need(kind)
    table, ids = wd.EmbeddingTable(16, optimizer="sgd"), torch.arange(max(rows, 1))
    given: dict[str, Any] = {"embeddings": {"t": table}} if rows else {}
    most = 0
    with open_store(f"{kind}://{tmp_path}/x") as store:
        for step in range(60):
            table(ids).sum().backward()
            table.step()
            checkpoint.save(store, step=step, model={"w": torch.ones(50)}, keep=3, **given)
            names = [path.suffix for path in (tmp_path / "x").iterdir()]
            most = max(most, names.count(".sst") + names.count(".ldb"))
        assert checkpoint.verify(store, deep=True).ok
    assert most < 40


@pytest.mark.parametrize("kind", EMBEDDED)
def test_manifests_of_removed_generations_are_freed(kind: str, tmp_path: Path) -> None:
    """They lie between the values of tables and of tensors, whose ranges are removed apart."""
    need(kind)
    table = wd.EmbeddingTable(8)
    model = {"frozen": torch.randn(100_000), "head": torch.zeros(20_000)}
    model |= {f"w{i}": torch.zeros(1) for i in range(200)}
    with open_store(f"{kind}://{tmp_path}/x") as store:
        for step in range(60):
            table(torch.randint(0, 2000, (200,))).sum().backward()
            table.step()
            model["head"] += 1
            checkpoint.save(
                store, step=step, model=model, embeddings={"t": table}, keep=2, incremental=True
            )
        kept = sum(len(value) for _, value in store.scan())
    names = [path for path in (tmp_path / "x").iterdir() if path.suffix in (".sst", ".ldb")]
    assert len(names) < 60
    assert sum(path.stat().st_size for path in names) <= 1.2 * kept + (512 << 10)


def table_bytes(folder: Path) -> int:
    """Return the bytes of the tables of RocksDB; a compaction may remove some meanwhile."""
    held = 0
    for path in folder.glob("*.sst"):
        with contextlib.suppress(FileNotFoundError):
            held += path.stat().st_size
    return held


@pytest.mark.parametrize("count", [12, 20_000, 300_000])
def test_many_saves_that_keep_three_use_the_space_of_four(count: int, tmp_path: Path) -> None:
    """And of a constant, where they are so small that they pass through the log."""
    need("rocksdb")
    state, most = {"w": torch.randn(count), "v": torch.randn(count)}, 0
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for step in range(100):
            state["w"] += 1
            checkpoint.save(store, step=step, model=state, keep=3)
            most = max(most, table_bytes(tmp_path / "x"))
        assert most <= 4 * 8 * count + (3 << 20)
        assert checkpoint.gc(store, keep=1) == [98, 99]
        assert table_bytes(tmp_path / "x") <= 1.2 * 8 * count + (512 << 10)
        loaded = {name: torch.zeros(count) for name in state}
        assert checkpoint.load(store, model=loaded).step == 99
        assert all(torch.equal(loaded[name], state[name]) for name in state)
        assert checkpoint.verify(store, deep=True).ok


@pytest.mark.parametrize(
    ("small_first", "namespaces"),
    [(False, "a"), (False, "ab"), (False, "bab"), (True, "a")],
)
def test_data_are_not_rewritten(small_first: bool, namespaces: str, tmp_path: Path) -> None:
    """Compactions write at most a tenth of what is saved, also in the space of small values."""
    need("rocksdb")
    table, train = trained_table()
    url, step = f"rocksdb://{tmp_path}/x", 0
    if small_first:
        for step in range(20):
            checkpoint.save(url, step=step, model={"w": torch.ones(3)}, namespace="a", keep=3)
    written = 0
    found: dict[str, tuple[int, int]] = {}
    for name in namespaces:
        with open_store(url) as store:
            for _ in range(12):
                step += 1
                train()
                options: dict[str, Any] = {"incremental": True, "namespace": name, "keep": 3}
                options["model"] = {"w": torch.ones(3)}  # goes through the log
                checkpoint.save(store, step=step, embeddings={"t": table}, **options)
                written += 8_700_000
                found |= compactions(tmp_path / "x")
        assert checkpoint.verify(url, namespace=name).ok
        assert used_bytes(tmp_path) < 9_000_000 * (3 * len({*namespaces}) + 1)
    found |= compactions(tmp_path / "x")
    assert sum(rewritten for _, rewritten in found.values()) < written / 10


def test_small_keys_are_seldom_rewritten(tmp_path: Path) -> None:
    """Compactions of 100 saves write at most twice the bytes that were saved."""
    need("rocksdb")
    model = {f"w{i}": torch.randn(200) for i in range(100)}
    saved = 0
    found: dict[str, tuple[int, int]] = {}
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for step in range(100):
            checkpoint.save(store, step=step, model=model, keep=3)
            own = b"%016x" % (step + 1)
            saved += sum(len(value) for key, value in store.scan() if own in key)
            found |= compactions(tmp_path / "x")
    found |= compactions(tmp_path / "x")
    assert sum(rewritten for _, rewritten in found.values()) <= 2 * saved


def test_saves_without_tensors_leave_few_files(tmp_path: Path) -> None:
    """Their generations have no data, so there are none to remove."""
    need("rocksdb")
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for step in range(12):
            checkpoint.save(store, step=step, extra={}, keep=1)
        until = time.monotonic() + 60  # Compactions go on in the background.
        while len(list((tmp_path / "x").glob("*.sst"))) >= 8:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_the_log_of_the_engine_stays_small(tmp_path: Path) -> None:
    need("rocksdb")
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for step in range(200):
            checkpoint.save(store, step=step, extra={}, keep=1)
    assert used_bytes(tmp_path) < 4 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_removes_older_generations(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    with open_store(url) as store:
        for step in range(6):
            checkpoint.save(store, step=step, extra={"step": step}, keep=2)
            assert [commit.step for commit in checkpoint.log(store)] == [step, step - 1][: step + 1]
        found = {keys.parse("windeck", key) for key in store.keys()}  # noqa: SIM118
        assert {one[1][0] for one in found if one} == {5, 6}
        with pytest.raises(ValueError, match="`keep` must be an integer of at least 1, got 0"):
            checkpoint.save(store, step=9, extra={}, keep=0)
        assert checkpoint.log(store)[0].step == 5


def test_generations_of_some_steps_are_kept() -> None:
    """The newest ones, and the newest generation of each step that is a multiple."""
    with open_store("memory://") as store:
        for step in (0, 1, 10, 10, 11, 20, 21, 22):
            checkpoint.save(store, step=step, model={"w": torch.full((3,), float(step))},
                            keep=2, keep_every=10)  # fmt: skip
        kept = [(commit.generation, commit.step) for commit in checkpoint.log(store)]
        assert kept == [(8, 22), (7, 21), (6, 20), (4, 10), (1, 0)]
        for generation, step in kept:
            target = {"w": torch.zeros(3)}
            assert checkpoint.load(store, model=target, generation=generation).step == step
            assert target["w"].tolist() == [step] * 3
        assert checkpoint.verify(store, deep=True).ok
        assert checkpoint.gc(store, keep=1, keep_every=20) == [4, 7]
        assert checkpoint.gc(store, keep=1) == [1, 6]
        for every in (0, True, 1.5):
            with pytest.raises(ValueError, match="`keep_every` must be an integer of at least 1"):
                checkpoint.gc(store, keep=1, keep_every=every)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="`keep_every` needs `keep`, got 5 alone"):
            checkpoint.save(store, step=23, extra={}, keep_every=5)


def test_a_save_whose_removal_fails_is_saved() -> None:
    class Kept:
        def delete_many(self, names: Iterable[bytes]) -> None:
            raise OSError(errno.EIO, "the disk says no")

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    with open_store("memory://") as store:
        checkpoint.save(store, step=1, extra={})
        with pytest.warns(RuntimeWarning, match="the step is saved, .* the disk says no"):
            assert checkpoint.save(Kept(), step=2, extra={}, keep=1) == 2
        assert [commit.step for commit in checkpoint.log(store)] == [2]
        assert checkpoint.gc(store, keep=1) == [1]


class Killed(BaseException):
    """Raised in place of SIGKILL."""


def half_a_save(store: Store) -> None:
    """Write the data of a save, but neither its manifest nor HEAD."""

    class Dying:
        def bulk_load(self, items: Any) -> int:
            store.bulk_load(items)
            raise Killed

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    with pytest.raises(Killed):
        checkpoint.save(Dying(), step=1, model={"w": torch.ones(100)})


@pytest.mark.parametrize("kind", KINDS)
def test_gc_before_the_first_commit(kind: str, fresh: Fresh) -> None:
    """Data of killed saves are removed, and a save that began before is refused."""
    with open_store(fresh(kind)) as store:
        assert checkpoint.gc(store, keep=1) == []
        assert list(store.keys()) == []
        half_a_save(store)
        half_a_save(store)
        plan = checkpoint.begin(store, step=1, writers=1)
        checkpoint.save_shard(store, plan, writer=0, model={"w": torch.ones(3)})
        assert checkpoint.gc(store, keep=1, dry_run=True) == [1, 2, 3]
        assert checkpoint.gc(store, keep=1) == [1, 2, 3]
        assert not any(keys.parse("windeck", key) for key in list(store.keys()))
        assert checkpoint.gc(store, keep=1) == []
        assert checkpoint.log(store) == []
        with pytest.raises(RuntimeError, match="generation 3 of windeck was removed by gc"):
            checkpoint.merge(store, plan)
        with pytest.raises(FileNotFoundError):
            checkpoint.load(store, model={"w": torch.ones(3)})
        assert checkpoint.save(store, step=1, model={"w": torch.ones(3)}) == 4
        assert [commit.generation for commit in checkpoint.log(store)] == [4]


@pytest.mark.parametrize("kind", EMBEDDED)
def test_gc_alone_removes_later_generations(kind: str, fresh: Fresh) -> None:
    """No other process can save to a database that gc opened: later saves were killed."""
    url = fresh(kind)
    with open_store(url) as store:
        checkpoint.save(store, step=1, extra={})
        half_a_save(store)
        assert checkpoint.gc(store, keep=1) == []  # the caller may have a save in progress
    assert checkpoint.gc(url, keep=1) == [2]
    plan = checkpoint.begin(url, step=2, writers=1)
    checkpoint.save_shard(url, plan, writer=0, model={"w": torch.ones(3)})
    assert checkpoint.gc(url, keep=1) == []
    assert checkpoint.merge(url, plan) == 3
