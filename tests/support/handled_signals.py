"""A program that calls a signal handler, which saves, at the instructions of some work.

    python handled_signals.py WORK COUNT

At `COUNT` of the different instructions of the work, evenly spread, the work is done anew and a
handler is called there. It saves a checkpoint, or a RuntimeError says that it may not. A hang ends
the program with the stacks of its threads.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import windeck as wd
from support.instructions import at_instructions
from support.internals import replace
from windeck import checkpoint
from windeck._util import LRUCache, Pool, parallel_map, read_ahead, run_in_threads
from windeck.checkpoint.stores import open_store

#: Seconds after which a piece of work hangs.
PATIENCE = 60
#: Modules in whose instructions the handler is called, beside windeck.
MODULES = ("threading", "queue", "concurrent.futures.thread", "concurrent.futures._base", "weakref")

Work = Callable[[], None]
#: A piece of work, and what a handler does in it.
Scene = tuple[Work, Work]


def state(step: int) -> dict[str, Any]:
    return {"model": {"w": torch.full((300_000,), float(step)), "b": torch.arange(step % 7)}}


class Saves:
    """A store to which both the work and the handler save, and what came of that."""

    def __init__(self, url: str, **options: Any) -> None:
        self.store = open_store(url)
        self.options, self.saved = options, list[int]()
        self.table = wd.EmbeddingTable(16, name="ids")
        self.table(torch.arange(5000))
        self.save(1)

    def save(self, step: int, **more: Any) -> int:
        embeddings = {"ids": self.table} if self.options.get("tables") else None
        found = checkpoint.save(
            self.store, step=step, **state(step), embeddings=embeddings,
            incremental=self.options.get("incremental", False), lower_step=True, **more,
        )  # fmt: skip
        return found if isinstance(found, int) else found.wait()

    def handle(self) -> None:
        try:
            self.saved.append(self.save(100))
        except RuntimeError as error:
            if "handler" not in str(error):
                raise

    def work(self) -> None:
        try:
            self.save(2, background=self.options.get("background", False))
        except RuntimeError as error:
            # The handler's save was committed since this one began.
            if not (self.saved and "meanwhile" in str(error)):
                raise
        finally:
            checkpoint.wait()

    def read(self) -> None:
        model = state(0)["model"]
        model["b"] = torch.arange(1)
        try:
            checkpoint.load(self.store, model=model)
        except ValueError as error:
            # The handler's save was committed before this load began.
            if not (self.saved and "model/b has shape (1,)" in str(error)):
                raise

    def check(self) -> None:
        report = checkpoint.verify(self.store, deep=True)
        assert not report.damages, report.damages
        known = {commit.generation: commit.step for commit in checkpoint.log(self.store)}
        assert all(known[generation] == 100 for generation in self.saved), (known, self.saved)
        step = max(known.items())[1]
        model = {"w": torch.zeros(300_000), "b": torch.zeros(step % 7, dtype=torch.int64)}
        assert checkpoint.load(self.store, model=model).step == step
        assert bool((model["w"] == step).all())


def saving(url: str, **options: Any) -> Callable[[Path], tuple[Scene, Work]]:
    def make(folder: Path) -> tuple[Scene, Work]:
        saves = Saves(url.format(folder=folder), **options)

        def check() -> None:
            saves.check()
            saves.store.close()

        return (saves.read if options.get("reads") else saves.work, saves.handle), check

    return make


def reading(folder: Path) -> tuple[Scene, Work]:
    """Return a loop over a streamed table, and a handler that reads rows of it and saves."""
    file = folder / "rows.parquet"
    if not file.exists():
        rows = pa.table({"x": np.arange(4000, dtype=np.float32)})
        pq.write_table(rows, file, row_group_size=100)
    table = wd.Table.read(file, in_memory=False, group_bytes=2000)
    windows = wd.Windows(table, context_length=8)
    loader = wd.Loader(windows, batch_size=256, shuffle=True, prefetch=1)
    saves, whole = Saves("memory://"), np.arange(4000, dtype=np.float32)

    def work() -> None:
        seen = [batch["start"] for batch in loader]
        assert len(torch.cat(seen)) == len(windows)

    def handle() -> None:
        for sample in (0, 1500, 3900):
            found = windows.gather(np.array([sample]))["past_target"].ravel()
            assert (found == whole[sample : sample + 8]).all()
        state = loader.state_dict()
        checkpoint.save(saves.store, step=100, extra={"loader": state})

    return (work, handle), lambda: None


def threading_alone(folder: Path) -> tuple[Scene, Work]:
    """Return calls in threads, and a handler that makes the same calls."""
    replace("parallel.THREADS", 2)
    pool, cache = Pool(2), LRUCache(3)

    def work() -> None:
        assert run_in_threads(lambda n: n, 20, 2, portion=1) == list(range(20))
        assert run_in_threads(lambda n: n, 20, 2, portion=1, pool=pool) == list(range(20))
        assert list(parallel_map(range(9), abs, threads=2)) == list(range(9))
        calls = [(1, lambda: 1), (1, lambda: 2), (1, lambda: 3)]
        assert list(read_ahead(calls, limit=2)) == [1, 2, 3]
        assert [cache.get(n, partial(int, str(n))) for n in range(5)] == [0, 1, 2, 3, 4]

    return (work, work), lambda: None


SCENES: dict[str, Callable[[Path], tuple[Scene, Work]]] = {
    "rocksdb": saving("rocksdb://{folder}/store"),
    "rocksdb, tables, incremental": saving(
        "rocksdb://{folder}/store", tables=True, incremental=True
    ),
    "leveldb": saving("leveldb://{folder}/store", tables=True),
    "memory, incremental": saving("memory://", incremental=True, tables=True),
    "background": saving("memory://", background=True),
    "rocksdb, background": saving("rocksdb://{folder}/store", background=True, tables=True),
    "reads": saving("rocksdb://{folder}/store", reads=True),
    "streamed": reading,
    "threads": threading_alone,
}


def main(name: str, count: int) -> None:
    files = {sys.modules[one].__file__ for one in MODULES if importlib.import_module(one)}
    package = str(Path(wd.__file__).parent)

    def chosen(code: CodeType) -> bool:
        return code.co_filename.startswith(package) or code.co_filename in files

    def run(act: Callable[[FrameType], None] | None, folder: Path) -> list[int]:
        """Do the work, with an act in it; return what the handler was called for."""
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        (work, handle), check = SCENES[name](folder)
        called = list[int]()

        def once(frame: FrameType) -> None:
            if act is None:
                places.setdefault((frame.f_code, frame.f_lasti))
            elif not called and (frame.f_code, frame.f_lasti) == place:
                called.append(1)
                handle()

        with at_instructions(once, chosen):
            work()
        check()
        return called

    places: dict[tuple[CodeType, int], None] = {}
    place: tuple[CodeType, int] | None = None
    with tempfile.TemporaryDirectory() as folder:
        run(None, Path(folder))
    found, called = list(places), 0
    for number in range(0, len(found), max(len(found) // count, 1)):
        place = found[number]
        with tempfile.TemporaryDirectory() as folder:
            print(number, place, file=sys.stderr)
            called += len(run(lambda frame: None, Path(folder)))
        gc.collect()  # tables and their threads
    print(f"{len(found)} places, the handler was called in {called}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
