"""The command line: what it says without its extras, and what it understands."""

import importlib.util
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest
from typer.testing import CliRunner

import windeck
from windeck.tools import cli
from windeck.tools.commands import app

PLAIN = re.compile(r"\x1b\[[0-9;]*m")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})
    return result.exit_code, PLAIN.sub("", result.output)


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ({"rich"}, "The command line needs rich: pip install 'windeck[cli]'"),
        ({"typer", "rich", "matplotlib"}, "The command line needs typer and rich and matplotlib"),
    ],
)
def test_missing_extras_get_one_sentence(
    monkeypatch: pytest.MonkeyPatch, absent: set[str], words: str
) -> None:
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in absent else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert str(caught.value).startswith(words)


def test_the_viewer_needs_the_extras_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["windeck", "view", "memory://", "log"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 3
    assert capsys.readouterr().err.startswith("windeck view: there is no checkpoint at memory://")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert str(caught.value).startswith("The command line needs typer and rich and matplotlib")


@pytest.mark.parametrize("closed", [1, 2])
def test_a_stream_that_is_closed_is_no_traceback(closed: int) -> None:
    command = [sys.executable, "-m", "windeck.tools.cli", "view", "memory://", "log"]
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
    assert "view" in words


@pytest.mark.parametrize("arguments", [["deal"], ["--nonsense"]])
def test_what_is_not_understood_is_refused(arguments: list[str]) -> None:
    assert run(*arguments)[0] == 2
