"""Truncating a mapped file gives an OSError, not a crash; tested in subprocesses."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest

from documents.test_readers import write_ipc
from support.corpora import open_file

DOCUMENTS, TOKENS = 40, 5000

BEGIN = """
import ctypes, faulthandler, mmap, os, signal, sys, threading
from support.corpora import open_file
path = sys.argv[1]

def read(shard):
    told = []
    for call in (shard.lengths, shard.totals, *(lambda j=j: shard.document(j) for j in range(40))):
        try:
            call()
            told.append("read")
        except OSError as error:
            told.append(str(error))
    return told
"""


def write(path: pathlib.Path, form: str) -> str:
    tokens = np.arange(DOCUMENTS * TOKENS, dtype=np.uint32)
    if form == "lists":
        rows = pa.ListArray.from_arrays(
            pa.array(range(0, DOCUMENTS * TOKENS + 1, TOKENS), pa.int32()), pa.array(tokens)
        )
        return write_ipc(path, [pa.record_batch([rows], ["tokens"])])
    pieces = [pa.array(part) for part in tokens.reshape(DOCUMENTS, TOKENS)]
    return write_ipc(path, [pa.record_batch([piece], ["tokens"]) for piece in pieces])


def run(script: str, path: str, *cuts: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(script), path, *map(str, cuts)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("form", ["lists", "plain"])
def test_every_read_of_a_file_cut_short_is_an_error(tmp_path: pathlib.Path, form: str) -> None:
    """Truncate between pages, within a page, to 0 bytes, and by one byte."""
    path = write(tmp_path / "a.part0.arrow", form)
    size = pathlib.Path(path).stat().st_size
    cuts = [0, 1, 4096, 5000, 100_000, size - 4096, size - 1]
    done = run(
        """
        whole = open(path, "rb").read()
        for to in map(int, sys.argv[2:]):
            with open(path, "wb") as file:
                file.write(whole)
            shard = open_file(path, strip_tokens=[0])
            assert set(read(shard)) == {"read"}
            os.truncate(path, to)
            print(*read(shard), sep="\\n")
        """,
        path,
        *cuts,
    )
    assert done.returncode == 0, done.stderr
    messages = [
        f"'{path}' became shorter while it was mapped: it has {to} bytes and had {size}, expected "
        "files that stay as they are"
        for to in cuts
    ]
    expected = [message for message in messages for _ in range(2 + DOCUMENTS)]
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("form", ["lists", "plain"])
def test_from_several_threads(tmp_path: pathlib.Path, form: str) -> None:
    """The file is truncated while threads read it."""
    path = write(tmp_path / "a.part0.arrow", form)
    done = run(
        """
        shard = open_file(path, strip_tokens=[0])
        told, begun, cut = [], threading.Barrier(7), threading.Event()
        def work():
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 30))
            begun.wait()
            last = False
            while not last:
                last = cut.is_set()
                told.append(read(shard))
            assert not any("read" in answer for answer in told[-1:])
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads: thread.start()
        begun.wait()
        os.truncate(path, 0)
        cut.set()
        for thread in threads: thread.join()
        print(len(told), {line for answer in told for line in answer} - {"read"})
        """,
        path,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    count, _, messages = done.stdout.partition(" ")
    assert int(count) >= 6
    assert messages.count("became shorter while it was mapped") == 1


FAULT = """
with open(path, "r+b") as file:
    file.truncate(1 << 20)
    pages = mmap.mmap(file.fileno(), 0)
    file.truncate(0)
pages[1 << 19]
"""


def test_the_fault_handler_of_before_is_back(tmp_path: pathlib.Path) -> None:
    """Python's faulthandler still reports faults outside of mapped files."""
    path = write(tmp_path / "a.part0.arrow", "lists")
    script = """
shard = open_file(path)
os.truncate(path, 0)
print(read(shard)[0], flush=True)  # The fault flushes nothing.
"""
    done = run("faulthandler.enable()\n" + script + FAULT, path)
    assert "became shorter" in done.stdout
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr
    assert done.stderr.count("most recent call first") == 1
    done = run(script + FAULT, path if write(pathlib.Path(path), "lists") else "")
    assert "became shorter" in done.stdout
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error" not in done.stderr


def test_a_handler_in_python_is_back(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.part0.arrow", "plain")
    done = run(
        """
        heard = []
        signal.signal(signal.SIGBUS, lambda number, frame: heard.append(number))
        shard = open_file(path)
        os.truncate(path, 0)
        assert "became shorter" in read(shard)[0] and not heard
        os.kill(os.getpid(), signal.SIGBUS)
        print(heard == [signal.SIGBUS])
        """,
        path,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_file_put_in_the_place_of_another_is_none_of_our_business(
    tmp_path: pathlib.Path,
) -> None:
    """The mapping belongs to the file that was opened, which does not change."""
    path = write(tmp_path / "a.part0.arrow", "lists")
    shard = open_file(path)
    other = write_ipc(tmp_path / "b", [pa.record_batch({"tokens": [[1]]})])
    pathlib.Path(other).replace(path)
    assert shard.document(1).tolist() == list(range(TOKENS, 2 * TOKENS))
    pathlib.Path(path).unlink()
    assert shard.totals() == (DOCUMENTS, DOCUMENTS * TOKENS) * 2


def test_running_out_of_descriptors_is_an_error(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.part0.arrow", "lists")
    done = run(
        """
        import resource
        from windeck import Documents
        for part in range(1, 60):
            os.link(path, path.replace("part0", f"part{part}"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
        documents = Documents(os.path.dirname(path), open_files=1)
        shards = []
        try:
            shards.extend(map(documents.open, range(60)))
        except OSError as error:
            print(error)
        assert 10 < len(shards) < 60
        shards.clear()
        assert set(read(documents.open(0))) == {"read"}
        """,
        path,
    )
    assert done.returncode == 0, done.stderr
    assert "Too many open files, this process may have 80: expected a higher limit" in done.stdout
    assert "a.part" in done.stdout
