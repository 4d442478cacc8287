"""Saves in a background thread, one at a time in a process."""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from windeck._util.threads import Task, holds_lock

__all__ = ["BackgroundSave", "settle", "spare_memory", "start", "wait", "wait_quietly"]

_lock = threading.RLock()
#: The save in progress, or the last one, until its error was raised.
_current: BackgroundSave | None = None
_exit_registered = False
#: The main thread has ended.
_exiting = False
#: Memory of the copies of the last save, for the next one: the first access to new memory costs
#: more than the copy.
spare_memory: list[Any] = []


class BackgroundSave:
    """A save in progress, which ``checkpoint.save(..., background=True)`` returns.

    Attributes
    ----------
    step
        The step that is being saved.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> with checkpoint.stores.open_store("memory://") as store:
    ...     weights = torch.ones(3)
    ...     saving = checkpoint.save(store, step=100, model={"w": weights}, background=True)
    ...     _ = weights.zero_()
    ...     saving.wait()
    ...     _ = checkpoint.load(store, model={"w": weights})
    1
    >>> saving.done(), saving.step, weights
    (True, 100, tensor([1., 1., 1.]))
    """

    def __init__(self, step: int, run: Callable[[], int], finish: Callable[[], None]) -> None:
        self.step, self._process = step, os.getpid()
        self._task, self._finish = Task(run), [finish]
        #: False until the thread is started, before which a signal handler may need the save.
        self._is_started = False

    def __repr__(self) -> str:
        failed = self.done() and self._task.error() is not None
        state = "failed" if failed else "done" if self.done() else "in progress"
        return f"<BackgroundSave of step {self.step}, {state}>"

    def done(self) -> bool:
        """Return True if the save has ended, with a commit or with an error."""
        return self._task.done()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the save; return the generation committed, which is durable.

        Parameters
        ----------
        timeout
            Seconds to wait at most; None: no limit.

        Raises
        ------
        TimeoutError
            When the save is still in progress after `timeout`; it goes on.
        RuntimeError
            In a process forked from the one that saves; or in a signal handler, if the save may
            need what the interrupted call has taken.
        Exception
            The error of the save, as `save` raises it; again in every call.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                f"the background save of step {self.step} belongs to process {self._process}, of "
                "which this process is a fork: wait for it there"
            )
        if not self._wait(timeout):
            raise TimeoutError(
                f"the background save of step {self.step} is in progress after {timeout} seconds, "
                "expected it to end"
            )
        _forget(self)
        return self._task.result()

    def _wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, or make the save if no thread has begun it; return True at the end."""
        if not self.done() and holds_lock():
            raise RuntimeError(
                f"the background save of step {self.step} may wait for the call that a signal "
                "handler interrupted, and the handler for the save: expected no wait in a handler; "
                "let it set a flag, and save where the training loop finds the flag set"
            )
        if timeout is None and not self._is_started:
            self._task.run()
        return self._task.wait(timeout)

    def _work(self) -> None:
        with suppress(BaseException):  # the error of the task
            self._task.run()

    def _work_at_exit(self) -> None:
        self._work()
        if self._task.error() is not None:
            _report(self)


def start(
    step: int,
    run: Callable[[], int],
    finish: Callable[[], None],
    cancel: Callable[[], None],
) -> BackgroundSave:
    """Start a save in a background thread.

    If this is interrupted, by KeyboardInterrupt for instance, when the thread has begun, the save
    goes on, and the next save and `wait` wait for it.

    Parameters
    ----------
    run
        Writes and commits, and returns the generation.
    finish
        Called once after `run`, even if that failed, in the thread that waits for the save.
    cancel
        Called before an error is raised, if `run` was not and will not be called.
    """
    global _current
    save = BackgroundSave(step, run, finish)
    with _lock:
        try:
            _register_exit()
            settle()
            _current = save
            if _exiting:  # The exit waits for a thread that is no daemon.
                threading.Thread(target=save._work_at_exit, daemon=False).start()
            else:
                _thread.start_new_thread(save._work, ())
            save._is_started = True
        except BaseException:
            if save._task.cancel():
                _current = None if _current is save else _current
                cancel()
            raise
    return save


def settle() -> None:
    """Wait for the save in progress; raise its error, unless it was raised before."""
    save = _current
    if save is None or _is_own_thread(save):
        return
    if save._wait() and (error := save._task.error()) is not None and _current is save:
        note = f"It is the error of the background save of step {save.step}. Nothing else was done."
        getattr(error, "add_note", lambda text: None)(note)  # new in Python 3.11
    save.wait()


def wait_quietly() -> None:
    """Wait for the save in progress; leave its error to the next save or `wait`.

    In the thread that saves it does nothing.
    """
    save = _current
    if save is not None and not _is_own_thread(save):
        save._wait()


def wait(timeout: float | None = None) -> None:
    """Wait for the end of the background save in progress, if there is one.

    The memory of its copies, which is kept for the next background save, is freed.

    Parameters
    ----------
    timeout
        Seconds to wait at most; None: no limit.

    Raises
    ------
    TimeoutError
        When it is still in progress after `timeout`; it goes on.
    Exception
        The error of the last background save, as `save` raises it, unless it was raised before.

    Examples
    --------
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> _ = checkpoint.save(store, step=100, extra={}, background=True)
    >>> checkpoint.wait()
    >>> [commit.step for commit in checkpoint.log(store)]
    [100]
    """
    save = _current
    if save is not None:
        save.wait(timeout)
    spare_memory.clear()


def _is_own_thread(save: BackgroundSave) -> bool:
    return save._task.is_mine()


def _forget(save: BackgroundSave) -> None:
    """Call `finish` of a save that has ended, and count its error as raised."""
    global _current
    with _lock:
        if _current is save:
            _current = None
        while save._finish:
            save._finish.pop()()


def _register_exit() -> None:
    """Let the exit of the interpreter wait for the save in progress, before it stops threads."""
    global _exit_registered, _exiting
    if _exit_registered:
        return
    atexit.register(_report_at_exit)  # for a thread that starts a save as the main thread ends
    # Before all functions of `atexit`, which may close what the save needs.
    try:
        threading._register_atexit(_report_at_exit)  # type: ignore[attr-defined]
    except RuntimeError:  # in a thread that goes on after the main thread has ended
        _exiting = True
    _exit_registered = True


def _report_at_exit() -> None:
    """Wait for the save in progress, and report its error. The main thread has ended."""
    global _exiting
    # Threads that are no daemons go on, and may save: those saves report their errors themselves.
    _exiting = True
    save = _current
    if save is not None:
        save._wait()
        _report(save)


def _report(save: BackgroundSave) -> None:
    """Print the error of a save that has ended, unless it was raised, and fail the exit status."""
    if _current is not save:
        return
    try:
        save.wait()
    except BaseException as error:
        print(
            f"windeck: step {save.step} was not saved: its background save failed, and neither "
            "another save nor wait() followed, which would have raised the error:",
            file=sys.stderr,
        )
        traceback.print_exception(type(error), error, error.__traceback__)
        if sys.stdout is not None:
            sys.stdout = _FailingStream(sys.stdout, save.step)


class _FailingStream:
    """A stream whose last flush fails, so that the exit status of the interpreter is 120.

    That status means an error of the cleanup (see `sys.exit`). Nothing else sets the status once
    the program has ended: errors of threads and functions at exit do not, and `os._exit` would
    leave out other cleanup.
    """

    def __init__(self, stream: Any, step: int) -> None:
        self._stream, self._step = stream, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        self._stream.flush()
        if sys.is_finalizing():
            raise RuntimeError(f"step {self._step} was not saved, so the exit status is 120")


def _start_anew() -> None:
    """Forget the save of the parent process after a fork: its thread does not exist here."""
    global _current, _lock
    _current, _lock = None, threading.RLock()
    spare_memory.clear()


os.register_at_fork(after_in_child=_start_anew)
