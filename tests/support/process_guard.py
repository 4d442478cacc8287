"""Kill the processes that a process of tests has started, once it has ended.

A guard is a process that waits for the end of another, however it ends. Run as a program, with the
arguments of `guard_this_process`, this file imports nothing but the standard library.

PR_SET_PDEATHSIG would need code between fork and exec wherever a process is started, which threads
forbid, and children of children do not inherit it. A process group ends with a new session.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

#: A variable of the environment with the names of all guards, outermost first. The programs that a
#: guarded process executes inherit it.
VARIABLE = "WINDECK_TEST_GUARDS"
#: Seconds after which a guard gives up a process that a signal does not end.
PATIENCE = 60


def guard_this_process() -> None:
    """Start a guard of this process. On other systems than Linux 5.3 nothing is guarded."""
    if sys.platform != "linux":
        return
    try:
        this = os.pidfd_open(os.getpid())
    except OSError:  # an older kernel, or a sandbox
        return
    name = uuid.uuid4().hex
    os.memfd_create(name)  # stays open in what this process forks without executing a program
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(this), name],
        pass_fds=[this],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt from the terminal does not end it
    )
    guard.returncode = 0  # outlives this process, of which `Popen` would warn
    os.close(this)
    os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')} {name}".strip()


def wait_and_kill(guarded: int, name: str) -> None:
    """Wait for the end of the process of a pidfd, and kill all processes that carry the name."""
    end = select.poll()
    end.register(guarded, select.POLLIN)
    end.poll()
    deadline = time.monotonic() + PATIENCE
    while kill_marked(name) and time.monotonic() < deadline:
        time.sleep(0.05)  # they may have started others meanwhile


def kill_marked(name: str) -> bool:
    """Kill all processes that carry the name; return whether there were any."""
    killed = False
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # has ended, or belongs to another user
            # The number may be used again before the signal is sent; what is open here is not.
            process = os.pidfd_open(int(folder.name))
            try:
                if _is_marked(folder, name):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    killed = True
            finally:
                os.close(process)
    return killed


def _is_marked(folder: Path, name: str) -> bool:
    if b"multiprocessing.resource_tracker" in (folder / "cmdline").read_bytes():
        return False  # ends by itself after the others, and removes what they have left
    for entry in (folder / "environ").read_bytes().split(b"\0"):
        if entry.startswith(f"{VARIABLE}=".encode()) and name.encode() in entry:
            return True
    return any(name in os.readlink(file) for file in (folder / "fd").iterdir())


if __name__ == "__main__":
    wait_and_kill(int(sys.argv[1]), sys.argv[2])
