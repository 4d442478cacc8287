"""The options of `windeck view`, in any order, and its help."""

from __future__ import annotations

import itertools
from argparse import Namespace
from typing import Any

import pytest

from support.programs import assert_not_imported, command
from windeck.cli.main import VIEW_COMMANDS, view_parser


def parsed(name: str, *words: str) -> dict[str, Any]:
    parser = view_parser([name])[1][name]
    return vars(parser.parse_in_any_order(words, Namespace()))


def given(name: str, *words: str) -> dict[str, Any]:
    """Return the options that differ from those of a command without options."""
    needed = {"show": ["x"], "row": ["x", "1"], "html": ["x"], "export": ["x"], "copy": ["x"]}
    needed |= {"diff": ["1"], "gc": ["--keep", "1"]}
    plain = parsed(name, *needed.get(name, []))
    return {key: value for key, value in parsed(name, *words).items() if plain[key] != value}


def told(*words: str) -> tuple[int, str, str]:
    return command("view", *words)


def test_options_stand_before_between_and_after_arguments() -> None:
    parts = [["--slice", "-1"], ["--stats"], ["model/w"]]
    for order in itertools.permutations(parts):
        words = [word for part in order for word in part]
        assert given("show", *words) == {"name": "model/w", "part": "-1", "stats": True}
    assert given("find", "--nan", "model") == {"nan": True, "name": "model"}
    assert given("row", "t", "-5", "--json", "7") == {"name": "t", "ids": ["-5", "7"], "json": True}


@pytest.mark.parametrize("text", ["-1e5", "-1", "-inf", "--nan", "-1 <= value", "=3", ""])
def test_what_follows_an_option_is_its_value(text: str) -> None:
    assert given("find", "--eq", text, "model") == {"eq": text, "name": "model"}
    assert given("find", f"--eq={text}", "model") == {"eq": text, "name": "model"}


def test_after_two_dashes_all_is_arguments() -> None:
    assert given("show", "--", "--stats") == {"name": "--stats"}
    assert given("show", "--stats", "--", "-n") == {"name": "-n", "stats": True}


def test_options_are_written_out() -> None:
    assert told("memory://", "ls", "--gen", "1")[0] == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected the URL of a store, such as rocksdb:///path: see windeck view --help"),
        (["memory://", "fnd"], "there is no command 'fnd': did you mean find?"),
        (["memory://", "ls", "--flt"], "ls has no option --flt: did you mean --flat?"),
        (["memory://", "ls", "-x"], "ls has no option -x, see --help"),
        (["memory://", "ls", "--depth", "0"], "--depth: expected a whole number from 1 on, found"),
        (["memory://", "ls", "--depth", "x"], "--depth: expected a whole number from 1 on, found"),
        (["memory://", "ls", "--depth"], "--depth: expected one argument"),
        (["memory://", "ls", "1", "--depth"], "--depth: expected one argument"),
        (["memory://", "ls", "--flat=1"], "--flat: ignored explicit argument '1'"),
        (["memory://", "find", "--tol", "x"], "--tol: expected a number, found 'x'"),
        (["ls", "memory://"], "expected the URL before the command: windeck view memory:// ls"),
        (
            ["redis://:secret@h", "--generation", "5", "--json", "log"],
            "expected the command before its options: windeck view redis://:***@h log",
        ),
        (["ls", "redis://:secret@h:x"], "the host and port of a redis:// URL cannot be read"),
        (["redis://h:x", "--json", "log"], "the host and port of a redis:// URL cannot be read"),
        (["memory://", "--flt"], "ls has no option --flt: did you mean --flat?"),
        (["memory://", "ls", "a", "b"], "unrecognized arguments: b"),
        (["memory://", "log", "a"], "unrecognized arguments: a"),
        (["memory://", "row", "t"], "the following arguments are required: ID"),
        (["memory://", "gc"], "the following arguments are required: --keep"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(words: list[str], expected: str) -> None:
    code, out, err = told(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"windeck view: {expected}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", VIEW_COMMANDS)
def test_help_tells_every_argument(name: str) -> None:
    parser = view_parser([name])[1][name]
    code, out, err = told("memory://", name, "--help")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert parser.description is not None
    assert parser.description in words
    for action in parser._actions:
        assert action.help is not None
        assert " ".join(action.help.split()) in words
        for label in action.option_strings or [str(action.metavar or action.dest)]:
            assert label in words
    assert told("memory://", name, "--json", "--help") == (code, out, err)


@pytest.mark.parametrize("words", [["--help"], ["memory://", "--help"]])
def test_help_tells_every_command(words: list[str]) -> None:
    code, out, err = told(*words)
    assert (code, err) == (0, "")
    parsers = view_parser(VIEW_COMMANDS)[1]
    assert parsers.keys() == VIEW_COMMANDS.keys()
    for name, parser in parsers.items():
        assert f"{name} {parser.description}" in " ".join(out.split())
    assert "Exit codes" in out
    assert "view" in command("--help")[1]


def test_help_needs_nothing_heavy() -> None:
    assert_not_imported({"torch", "pyarrow", "matplotlib", "rich"}, "view", "--help")
