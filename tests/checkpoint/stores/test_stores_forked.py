"""Embedded stores in forked processes, where the threads of the engines do not exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.store_servers import EMBEDDED, need

pytestmark = pytest.mark.usefixtures("finalized")

#: Opens a database before a fork, then runs a statement in the child, which ends as usual.
PROGRAM = """if True:
    import os, signal, sys
    import torch
    from windeck import checkpoint
    from windeck.checkpoint.stores import open_store
    url = sys.argv[1]
    model = {"w": torch.ones(2_000_000)}
    {before}
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            {statement}
        except RuntimeError as error:
            print(error, flush=True)
        else:
            print("done", flush=True)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    {after}
"""
SAVE = "checkpoint.save(url, step=1, model=model)"


def run(url: str, before: str, statement: str, after: str = "") -> str:
    program = PROGRAM.replace("{before}", before).replace("{statement}", statement)
    command = [sys.executable, "-c", program.replace("{after}", after or "pass"), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize(
    ("before", "statement"),
    [
        (f"{SAVE}; checkpoint.log(url)", "checkpoint.save(url, step=2, model=model)"),
        (SAVE, "checkpoint.load(url, model=model)"),
        (SAVE, "checkpoint.save(url + '2', step=1, model=model)"),
        ("store = open_store(url)", "store.get(b'a')"),
        ("store = open_store(url)", "store.put_many([(b'a', b'1')])"),
        ("store = open_store(url)", "list(store.scan())"),
        ("view = open_store(url).snapshot()", "view.get(b'a')"),
        ("store = open_store(url)", "store.close()"),
    ],
)
def test_a_fork_is_told_what_to_do(kind: str, before: str, statement: str, tmp_path: Path) -> None:
    """It gets an error at once, and does not wait without end, not even when it ends."""
    need(kind)
    told = run(f"{kind}://{tmp_path}/x", before, statement)
    assert "this process was forked from process" in told
    assert "'spawn' or 'forkserver'" in told


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_fork_ends_silently_beside_an_open_checkpoint(kind: str, tmp_path: Path) -> None:
    need(kind)
    before = f"{SAVE}; saved = checkpoint.open(url)"
    assert run(f"{kind}://{tmp_path}/x", before, "pass", "saved.tensor('model/w')") == "done\n"


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_store_closed_before_the_fork(kind: str, tmp_path: Path) -> None:
    need(kind)
    before = "store = open_store(url); store.close()"
    assert run(f"{kind}://{tmp_path}/x", before, "store.close()") == "done\n"


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize(
    "statement",
    ["store.close()", "store.put_many([(b'a', b'1')])", "store.sync()", "store.delete_range(b'a')"],
)
def test_a_fork_beside_a_thread_that_writes(kind: str, statement: str, tmp_path: Path) -> None:
    """In the child no thread would release that lock."""
    need(kind)
    before = (
        "import threading; store = open_store(url); "
        "writer = threading.Thread(target=store._lock.acquire); "
        "writer.start(); writer.join()"
    )
    told = run(f"{kind}://{tmp_path}/x", before, statement, "os._exit(0)")
    assert "this process was forked from process" in told


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_fork_from_a_process_without_databases(kind: str, tmp_path: Path) -> None:
    need(kind)
    after = "assert [one.step for one in checkpoint.log(url)] == [1]"
    assert run(f"{kind}://{tmp_path}/x", "pass", SAVE, after) == "done\n"


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_fork_beside_an_open_store(kind: str, tmp_path: Path) -> None:
    """The store of the parent still works after the child has ended."""
    need(kind)
    before = "store = open_store(url); store.put_many([(b'a', b'1')])"
    after = "store.sync(); print(store.get(b'a')); store.close()"
    assert run(f"{kind}://{tmp_path}/x", before, "pass", after) == "done\nb'1'\n"
