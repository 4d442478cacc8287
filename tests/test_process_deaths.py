"""A process of tests that dies ends the run, and all that it has started ends with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.process_guard import VARIABLE, kill_marked
from support.programs import printed

pytest.importorskip("xdist")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are guarded on Linux")

#: Tests of a process that starts others, each in a way of its own, and then dies.
DYING = """
import ctypes, multiprocessing, os, signal, subprocess, time
from pathlib import Path
import pytest

def start_others():
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sh", "-c", "sleep 1000 & exit"]).wait()
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=[1000])
    process.start()
    if os.fork() == 0:  # it has all open files of the worker, its connection too
        time.sleep(1000)

def die():
    HOW
    raise AssertionError("lives on")

@pytest.fixture(scope="session", autouse=True)
def session(request):
    # A plugin's hook, as it is called by a worker after the last test.
    class Plugin:
        def pytest_sessionfinish(self):
            if WHERE == "end":
                start_others()
                die()
    request.config.pluginmanager.register(Plugin())

@pytest.mark.parametrize("number", range(5))
def test_dies(number):
    if number == WHERE:
        start_others()
        die()
"""
#: A test of another process, which ends only if its process is ended.
WAITING = """
import time

def test_waits():
    while True:
        time.sleep(0.01)
"""
ENDS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "ctypes.string_at(0)",
    "status 0": "os._exit(0)",
}


class Planted:
    """Runs of pytest in a folder of planted tests, and the processes that they start."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, uuid.uuid4().hex
        (folder / "pytest.ini").write_text("[pytest]\n")

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start pytest with the plugin of all tests."""
        guards = f"{os.environ.get(VARIABLE, '')} {self.name}"
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-psupport.crashes", "-pno:cacheprovider", *options],
            cwd=self.folder,
            env={**os.environ, VARIABLE: guards, "PYTHONPATH": str(Path(__file__).parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def processes(self) -> list[str]:
        """Return the commands of all processes of the runs that are alive."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.name.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
        return found

    def wait_for_end(self) -> None:
        """Wait until none of the processes is alive."""
        deadline = time.monotonic() + 60
        while found := self.processes():
            assert time.monotonic() < deadline, found
            time.sleep(0.02)


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Planted]:
    runs = Planted(tmp_path)
    yield runs
    kill_marked(runs.name)  # none, unless the test has failed


@pytest.mark.parametrize(
    ("where", "how"),
    [(0, "SIGKILL"), (2, "SIGSEGV"), ("end", "status 0")],
)
def test_a_death_ends_the_run(planted: Planted, where: int | str, how: str) -> None:
    dying = DYING.replace("WHERE", repr(where)).replace("HOW", ENDS[how])
    (planted.folder / "test_dying.py").write_text(dying)
    (planted.folder / "test_waiting.py").write_text(WAITING)
    run = planted.start("-n2", "--dist=loadfile", "--no-loadscope-reorder")
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 2, output
    place = "after its last test" if where == "end" else f"in test_dying.py::test_dies[{where}]"
    assert how in output
    assert place in output
    assert ("Fatal Python error: Segmentation fault" in output) == (how == "SIGSEGV")
    planted.wait_for_end()


def test_a_test_that_waits_for_ever_ends_the_run(planted: Planted) -> None:
    """Its process waits for a child that has stopped."""
    waiting = "child = os.fork()\n    time.sleep(1000) if child == 0 else os.waitpid(child, 0)"
    (planted.folder / "test_dying.py").write_text(
        DYING.replace("WHERE", "2").replace("HOW", waiting)
    )
    limit = ["faulthandler_timeout=3", "faulthandler_exit_on_timeout=true"]
    run = planted.start("-n1", *(f"-o{option}" for option in limit))
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 2, output
    assert "ended with status 1 in test_dying.py::test_dies[2]" in output
    assert 'test_dying.py", line' in output.partition("most recent call first")[2]
    planted.wait_for_end()


@pytest.mark.parametrize("options", [["-n2"], []], ids=["controller", "alone"])
def test_what_a_killed_run_has_started_ends(planted: Planted, options: list[str]) -> None:
    program = DYING.replace("WHERE", "0").replace(
        "HOW", 'Path("started").touch(); time.sleep(1000)'
    )
    (planted.folder / "test_dying.py").write_text(program)
    run = planted.start(*options)
    deadline = time.monotonic() + 120
    while not (planted.folder / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(planted.processes()) > 5
    run.kill()
    run.communicate(timeout=300)  # until no process has its output open
    planted.wait_for_end()


def test_this_run_is_guarded(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.has_plugin("support.crashes")
    assert request.config.getini("faulthandler_exit_on_timeout")
    assert float(request.config.getini("faulthandler_timeout")) > 0


def test_programs_wait_for_threads_of_gloo_at_their_end() -> None:
    found = printed("import sitecustomize; print(sitecustomize.__file__)").strip()
    assert Path(found) == Path(__file__).parent / "support" / "at_exit" / "sitecustomize.py"
    watched = """if True:
        import sitecustomize, sys, types
        sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
        answers = [False, True, False, False, True]
        sitecustomize.working = lambda: print(len(answers)) or answers.pop(0)
    """
    assert printed(watched).split() == ["5", "4", "3", "2"]  # until it was idle twice in a row
