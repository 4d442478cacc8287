"""A plugin of pytest: a process of tests that dies ends the run, and all that it has started."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from typing import Any

import pytest

from support.process_guard import guard_this_process


def pytest_configure() -> None:
    """Guard each process of pytest, those that run tests and the one that divides them."""
    guard_this_process()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """End the run when a worker of xdist dies, with the test that it ran and how it ended.

    xdist would start another one, or wait for the rest of the tests.
    """
    if not error or error == "keyboard-interrupt":
        return
    scheduler = node.config.pluginmanager.getplugin("dsession").sched
    test = scheduler.remove_node(node) if node in scheduler.nodes else None
    process = node.gateway._io.popen
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    how = "has closed its connection" if process.poll() is None else _end(process.returncode)
    pytest.exit(f"a process of tests ({node.gateway.id}) {how} {_place(test)}")


def _end(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _place(test: str | None) -> str:
    return f"in {test}" if test else "after its last test, or before its first"
