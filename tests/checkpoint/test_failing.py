"""Tests of stores that fail during a save or a load: the current checkpoint stays intact."""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from support.failing import READS, WRITES, Between, error_of, load, save
from support.store_servers import EMBEDDED, KINDS, RedisServer, need
from support.stored_keys import data_generations
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

Fresh = Callable[[str], str]


def full() -> None:
    raise OSError(errno.ENOSPC, "no space left for the test")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("incremental", [False, True])
def test_an_error_of_any_write(kind: str, incremental: bool, fresh: Fresh) -> None:
    """Before HEAD is set the former checkpoint is the current one, afterwards the new one."""
    with open_store(fresh(kind)) as store:
        save(store, 0)
        force = 0
        for left in range(100):
            watched = Between(store, WRITES, left, full)
            error = error_of(partial(save, watched, left + 1, incremental=incremental))
            if error is None:
                break
            assert (error.errno, error.strerror) == (errno.ENOSPC, "no space left for the test")
            if watched.made[-2:] == ["sync", "compare_and_set"]:  # but for the last sync
                force = left + 1
            assert load(store) == force
        assert load(store) == left + 1
        assert watched.made[-3:] == ["sync", "compare_and_set", "sync"]
        assert watched.made[0] == "compare_and_set"  # NEXT
        assert watched.made.count("compare_and_set") == 2
        assert left == len(watched.made) > 5
        checkpoint.gc(store, keep=1)
        assert load(store) == left + 1
        report = checkpoint.verify(store, deep=True)
        assert report.ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_save_by_another_before_any_write(kind: str, fresh: Fresh) -> None:
    """Of two concurrent saves one wins; the other raises an error and leaves nothing."""
    with open_store(fresh(kind)) as store:
        save(store, 0)
        for left in range(100):
            step = 2 * left + 1
            watched = Between(store, WRITES, left, partial(save, store, step + 1))
            if watched_fails(watched, step):
                assert load(store) == step + 1
                continue
            break
        assert watched.made[-2:] == ["compare_and_set", "sync"]
        assert left == len(watched.made) - 1  # before the last sync: HEAD was set by both
        assert left > 5
        assert load(store) == step + 1
        assert [commit.step for commit in checkpoint.log(store)][:3] == [step + 1, step, step - 1]
        kept = {commit.generation for commit in checkpoint.log(store)}
        assert data_generations(store) <= kept
        assert checkpoint.verify(store, deep=True).ok


def watched_fails(watched: Between, step: int) -> bool:
    """Return True if the save fails because another one was committed meanwhile."""
    try:
        save(watched, step)
    except RuntimeError as error:
        return f"of step {step + 1} was meanwhile" in str(error)
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_any_write_of_several_writers(kind: str, fresh: Fresh) -> None:
    """A failed write can be repeated with the same plan, until the merge is committed."""
    with open_store(fresh(kind)) as store:
        save(store, 0)
        plan = checkpoint.begin(store, step=5, writers=2)
        for writer in range(2):
            rows = torch.full((3, 4), float(writer))
            part = checkpoint.Partition(rows, offset=(3 * writer, 0), shape=(6, 4))
            share = partial(checkpoint.save_shard, plan=plan, writer=writer, model={"w": part})
            again_until_done(store, share)
            assert load(store) == 0
        again_until_done(store, partial(checkpoint.merge, plan=plan), ("sync", "compare_and_set"))
        target = {"w": torch.zeros(6, 4)}
        assert checkpoint.load(store, model=target).step == 5
        assert target["w"].sum() == 12


def again_until_done(store: Any, call: Any, last: tuple[str, ...] | None = None) -> None:
    """Let each write fail once, the first one first; `last`: but for what comes after these."""
    for left in range(100):
        watched = Between(store, WRITES, left, full)
        error = error_of(partial(call, watched))
        if error is None:
            break
        assert error.errno == errno.ENOSPC
        if tuple(watched.made[-2:]) == last:
            break  # it is in force, but the store could not say that it is durable
    assert left > 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_any_read(kind: str, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        save(store, 0)
        save(store, 1)
        said = []
        for left in range(100):
            watched = Between(store, READS, left, full)
            error = error_of(partial(load, watched))
            if error is None:
                break
            assert error.errno == errno.ENOSPC
            said.append(str(error.strerror))
        assert left >= 4
        assert said[0] == "no space left for the test"  # of HEAD: nothing was written
        assert re.search("no space left for the test; at least . of 2 tensors were", said[-1])
        assert load(store) == 1


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("incremental", [False, True])
def test_a_full_disk(kind: str, incremental: bool, small_disk: Path) -> None:
    need(kind)
    url = f"{kind}://{small_disk}/x"
    items = 1_500_000
    save(url, 0, items=items)
    for step in (7, 8):
        with pytest.raises(OSError, match=re.escape(url)) as caught:
            save(url, step, items=5 * items, incremental=incremental)
        assert caught.value.errno == errno.ENOSPC
        if kind == "rocksdb":  # LevelDB puts its log into a table when it is opened
            assert load(url, items=items) == 0
    subprocess.run(["mount", "-o", "remount,size=300m", str(small_disk)], check=True)
    assert load(url, items=items) == 0
    save(url, 9, items=items, incremental=incremental)
    assert load(url, items=items) == 9
    checkpoint.gc(url, keep=1)
    assert load(url, items=items) == 9
    assert checkpoint.verify(url, deep=True).ok


# --- a place that is none -------------------------------------------------------------------------


def copy_to(place: Any) -> None:
    with open_store("memory://") as store:
        save(store, 1)
        checkpoint.copy(store, place)


CALLS: dict[str, Callable[[str], Any]] = {
    "save": lambda url: save(url, 1),
    "load": load,
    "open": checkpoint.open,
    "log": checkpoint.log,
    "gc": lambda url: checkpoint.gc(url, keep=1),
    "verify": checkpoint.verify,
    "begin": lambda url: checkpoint.begin(url, step=1, writers=2),
    "copy": copy_to,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_url_with_a_typo(call: str) -> None:
    with pytest.raises(ValueError, match=r"begin with rockdb://: .*; did you mean rocksdb\?"):
        CALLS[call]("rockdb:///data/x")
    with pytest.raises(ValueError, match=r"no option 'timeuot': .*; did you mean timeout\?"):
        CALLS[call]("redis://localhost?timeuot=1")
    for kind in EMBEDDED:
        need(kind)
        with pytest.raises(ValueError, match=f"relative/path, got {kind}://data/x$"):
            CALLS[call](f"{kind}://data/x")


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_store(call: str, tmp_path: Path) -> None:
    some: list[Any] = [tmp_path, None, b"memory://x", {}]
    for odd in some:
        words = rf"`store` must be an open store or a URL .*, got {type(odd).__name__}"
        with pytest.raises(TypeError, match=words):
            CALLS[call](odd)


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_password_and_nobody_there(call: str, tmp_path: Path) -> None:
    need("redis")
    with RedisServer(tmp_path / "server", "--requirepass", "right-word") as redis:
        url = redis.url.replace("//", "//:wrong-word@")
        with pytest.raises(PermissionError, match="denies access: opening failed") as caught:
            CALLS[call](url)
        assert "wrong-word" not in str(caught.value)
        redis.kill()
        with pytest.raises(ConnectionError, match="cannot be reached: opening failed"):
            CALLS[call](url)


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("call", CALLS)
def test_a_path_with_something_else(kind: str, call: str, tmp_path: Path) -> None:
    other = EMBEDDED[1 - EMBEDDED.index(kind)]
    need(kind)
    need(other)
    save(f"{other}://{tmp_path}/x", 5)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for path, error, words in (
        ("x", FileExistsError, f"found one of .*: open it as {other}://"),
        ("folder", FileExistsError, "found other files, such as 'notes.txt'"),
        ("file", NotADirectoryError, "expected a folder for .*, found a file"),
    ):
        with pytest.raises(error, match=words):
            CALLS[call](f"{kind}://{tmp_path}/{path}")
    assert load(f"{other}://{tmp_path}/x") == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "x"]
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["notes.txt"]
