"""Tests of the command line: messages without its extras, and arguments."""

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

import windeck
from support.internals import plant
from support.programs import assert_not_imported, command
from windeck.cli.main import main


def run(*arguments: str) -> tuple[int, str]:
    code, out, err = command(*arguments)
    return code, out + err


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in absent else find(name, package)

    plant(monkeypatch, "main.find_spec", find_spec)


def test_the_viewer_needs_an_extra_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "rich", "matplotlib")
    code, told = run("view", "memory://", "log")
    assert code == 3
    assert told.startswith("windeck view: there is no checkpoint at memory://")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit, match="The command line needs rich: pip install"):
        main(["view", "memory://", "log"])


@pytest.mark.parametrize("closed", [1, 2])
def test_a_stream_that_is_closed_is_no_traceback(closed: int) -> None:
    command = [sys.executable, "-m", "windeck", "view", "memory://", "log"]
    shell = f'"$@" {closed}>&-'
    done = subprocess.run(["sh", "-c", shell, "sh", *command], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == ""
    assert (done.stderr == "") == (closed == 2)
    assert "Traceback" not in done.stderr


def test_version() -> None:
    assert run("--version") == (0, f"windeck {windeck.__version__}\n")


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["--version"], 0, f"windeck {windeck.__version__}\n", ""),
        (["view", "memory://", "log"], 3, "", "windeck view: there is no checkpoint at memory://"),
    ],
)
def test_it_is_a_module_too(words: list[str], code: int, out: str, err: str) -> None:
    command = [sys.executable, "-m", "windeck", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr.startswith(err)
    assert (done.stderr == "") == (err == "")


def test_without_a_command_it_helps() -> None:
    code, words = run()
    assert code in (0, 2)
    assert "demo" in words


@pytest.mark.parametrize(
    "arguments",
    [["deal"], ["demo", "--context", "0"], ["demo", "--steps", "many"], ["demo", "--nonsense"]],
)
def test_what_is_not_understood_is_refused(arguments: list[str]) -> None:
    assert run(*arguments)[0] == 2


def test_help_needs_no_torch() -> None:
    assert_not_imported({"torch", "matplotlib"}, "demo", "--help")
