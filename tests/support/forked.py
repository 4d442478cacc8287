"""Python programs that start in milliseconds, as forks of a server that has imported torch.

Where torch is not installed, the server has imported the rest.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import forkserver, reduction
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

PRELOADED = [
    "pyarrow.dataset",
    "pytest",
    "torch._dynamo",  # the first optimizer of a process imports it
    "torch.distributed.run",
    "torch.distributed.tensor",
    "windeck.checkpoint.dcp",
    "windeck.checkpoint.group_saving",
    "windeck.checkpoint.loading",
    "windeck.checkpoint.maintenance",
    "windeck.checkpoint.saving",
    "windeck.checkpoint.stores.leveldb",
    "windeck.checkpoint.stores.redis",
    "windeck.checkpoint.stores.rocksdb",
    "windeck.embeddings",
    "windeck.loader",
    "windeck.packing.packing",
    "windeck.windows.windows",
]
#: Attributes that a process needs to have others forked by the server of another process.
ADDRESS = ("_forkserver_address", "_forkserver_authkey")
_server: Any = forkserver._forkserver
_loaded: set[str] = set()


def context(*more: str) -> ForkServerContext:
    """Return the context of multiprocessing whose server has imported torch and `more`."""
    found = multiprocessing.get_context("forkserver")
    if not _loaded.issuperset(wanted := {*PRELOADED, *more}):
        _server._stop()  # it imports at its start only
        found.set_forkserver_preload(sorted(wanted))
        _loaded.clear()
        _loaded.update(wanted)
    _server.ensure_running()
    return found


class Forked(subprocess.Popen[Any]):
    """A `subprocess.Popen` that runs Python programs in a fork of the server.

    It has a process, environment, folder and streams of its own, and its children are forked too.
    Variables that torch reads when it is imported have no effect. Another command runs as usual.
    """

    #: Whether programs end as the interpreter does, with destructors, and not by `os._exit`.
    finalize = False
    _process: Any = None

    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        self._session = options.get("start_new_session", False)
        super().__init__(args, *rest, **options)

    def _execute_child(self, args: Any, *given: Any) -> None:
        """Start the program, given what `Popen` has made of its arguments."""
        cwd, env, shell, pipes = given[4], given[5], given[8], given[9:15]
        words = [] if shell or isinstance(args, str) else [os.fspath(word) for word in args]
        if words[:1] != [sys.executable]:
            super()._execute_child(args, *given)  # type: ignore[misc]
            return
        self._process = context().Process(
            target=_main,
            args=(
                words[1:],
                os.getcwd() if cwd is None else os.fspath(cwd),
                dict(os.environ if env is None else env),
                self._session,
                self.finalize,
                *(
                    reduction.DupFd(fd if pipe == -1 else pipe)
                    for pipe, fd in ((pipes[3], 1), (pipes[5], 2))
                ),
                {name: getattr(_server, name) for name in ADDRESS if hasattr(_server, name)},
            ),
        )
        self._process.start()
        self.pid = self._process.pid
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *given: Any, **options: Any) -> int | None:
        if self._process is None:
            return super()._internal_poll(*given, **options)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._process is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            self._process.join(timeout)
            if self._internal_poll() is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


RunInChild = Callable[..., Any]


@contextmanager
def ray_in_child(**options: Any) -> Iterator[RunInChild]:
    """Yield a function that runs others in a child process, the driver of a new local Ray.

    A driver that has lost its servers ends its process, by `_exit` and after a minute.
    """
    import ray

    start = partial(
        ray.init, include_dashboard=False, log_to_driver=False, logging_level="ERROR", **options
    )
    with ProcessPoolExecutor(1, mp_context=context(), initializer=start) as pool:
        yield lambda work, *arguments: pool.submit(work, *arguments).result()
        pool.submit(ray.shutdown).result()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start programs of Python as forks of the server."""
    monkeypatch.setattr(subprocess, "Popen", Forked)
    yield
    for process in multiprocessing.active_children():
        if isinstance(process, ForkServerProcess):  # not a worker of torch that waits for its end
            process.kill()


@pytest.fixture
def finalized(forked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start programs of Python as forks of the server that end as the interpreter does."""
    monkeypatch.setattr(Forked, "finalize", True)


def _main(
    words: Sequence[str],
    cwd: str,
    env: dict[str, str],
    session: bool,
    finalize: bool,
    out: Any,
    errors: Any,
    address: dict[str, Any],
) -> None:
    """Run a program in this process, as the interpreter does with `words`."""
    gc.freeze()  # what the server has imported is not looked through again
    if session:
        os.setsid()
    for number, stream in ((1, out), (2, errors)):
        os.dup2(stream.detach(), number)
    vars(_server).update(address, ensure_running=lambda: None)
    _loaded.update(PRELOADED)
    subprocess.Popen = Forked  # type: ignore
    with suppress(ImportError):  # where torch is not installed
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

        subprocess_handler.Popen = Forked  # type: ignore
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if words[0] == "-u":
        words = words[1:]
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if words[0] == "-m":
        sys.argv, sys.path = list(words[1:]), [cwd, *paths, *sys.path]
        sys.modules.pop(words[1], None)  # imported by the server
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    module = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv, sys.path, text = ["-c", *words[2:]], ["", *paths, *sys.path], words[1]
    else:
        sys.argv, text = list(words), Path(words[0]).read_text(encoding="utf-8")
        sys.path = [str(Path(words[0]).parent), *paths, *sys.path]
        module.__file__ = words[0]
    sys.modules["__main__"] = module
    code = compile(text, sys.argv[0], "exec")
    if not finalize:
        exec(code, module.__dict__)
        return
    status = 0
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    ctypes.pythonapi.Py_Exit(status)
