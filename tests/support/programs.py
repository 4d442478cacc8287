"""Python programs run in child processes, and `windeck` commands run in this one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock


def printed(program: str, *arguments: str, **environment: str) -> str:
    """Return the output of a program; raise AssertionError with its errors if it fails."""
    command = [sys.executable, "-c", program, *arguments]
    surroundings = {**os.environ, **environment}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_little_memory(program: str, url: str) -> None:
    """Assert that a program's save and load each need less than 64 MiB.

    The program prints by how many MiB each raises its peak.
    """
    saved, loaded = map(float, printed(program, url).split())
    assert saved < 64
    if not url.startswith("leveldb:"):  # maps the files it reads from, which counts as resident
        assert loaded < 64


def assert_not_imported(heavy: set[str], *arguments: str) -> None:
    """Assert that `windeck ARGUMENTS` works without importing these modules."""
    printed(
        f"""if True:
        import sys
        sys.argv = {["windeck", *arguments]!r}
        from windeck.cli.main import main
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
        heavy = {heavy!r} & set(sys.modules)
        assert not heavy, heavy
        """
    )


def command(*words: str) -> tuple[int, str, str]:
    """Run ``windeck WORDS`` in this process; return its exit code, stdout and stderr.

    Neither is a terminal, and both are UTF-8. Help is 200 columns wide.
    """
    from windeck.cli.main import main

    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    code = 0
    with (
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
        mock.patch.dict(os.environ, COLUMNS="200"),
    ):
        try:
            main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):  # the interpreter prints it
                print(end.code, file=streams[1])
    texts = []
    for stream in streams:
        stream.seek(0)
        texts.append(stream.read())
    return code, texts[0], texts[1]
