"""The build of the extension, as far as it ends before it compiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]


def configure(environment: dict[str, str], build: Path) -> str:
    """Configure a build that has to fail, with these variables of the environment; return errors.

    PATH is the only variable that has a default: that of the tests.
    """
    scripts = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    tools = {name: shutil.which(name, path=scripts) for name in ("cmake", "ninja")}
    if None in tools.values() or not (HOME / "CMakeLists.txt").exists():
        pytest.skip("cmake and ninja are not installed: pip install cmake ninja")
    environment = {"HOME": str(build), "PATH": os.environ["PATH"]} | environment
    if subprocess.run([str(tools["cmake"]), "--version"], env=environment, check=False).returncode:
        pytest.skip("cmake is a script that needs other programs")
    command = [str(tools["cmake"]), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools['ninja']}"]
    done = subprocess.run(
        [*command, "-S", str(HOME), "-B", str(build)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("CMake Error") == 1
    assert len(done.stderr.splitlines()) < 10, done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.parametrize("compiler", ["/bin/false", "/no/compiler", None])
def test_a_missing_compiler_is_one_sentence(compiler: str | None, tmp_path: Path) -> None:
    """One that is broken, one that is named and does not exist, and none at all."""
    environment = {"PATH": str(tmp_path)} if compiler is None else {"CXX": compiler}
    words = configure(environment, tmp_path / "build")
    assert "No C++ compiler works here, and windeck is built from C++20 sources: install" in words


def test_a_compiler_that_is_too_old_is_one_sentence(tmp_path: Path) -> None:
    compiler = tmp_path / "g++-9"
    compiler.write_text('#!/bin/sh\nexec g++ -w -U__GNUC__ -D__GNUC__=9 "$@"\n')
    compiler.chmod(0o755)
    if shutil.which("g++") is None or b"9" not in subprocess.check_output(
        [compiler, "-E", "-P", "-x", "c++", "-"], input=b"__GNUC__"
    ):
        pytest.skip("needs g++: the test makes one pretend to be older")
    words = configure({"CXX": str(compiler)}, tmp_path / "build")
    assert re.search(r"g\+\+-9 is GNU 9\.[\d.]+, and windeck is built from C\+\+20 sources", words)
