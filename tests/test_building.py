"""The build of the extension, as far as it ends before it compiles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]


@pytest.mark.parametrize("compiler", ["/bin/false", "/no/compiler", None])
def test_a_missing_compiler_is_one_sentence(compiler: str | None, tmp_path: Path) -> None:
    """One that is broken, one that is named and does not exist, and none at all."""
    scripts = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    tools = {name: shutil.which(name, path=scripts) for name in ("cmake", "ninja")}
    if None in tools.values() or not (HOME / "CMakeLists.txt").exists():
        pytest.skip("cmake and ninja are not installed: pip install cmake ninja")
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    if compiler is not None:
        environment |= {"CXX": compiler, "PATH": os.environ["PATH"]}
    if subprocess.run([str(tools["cmake"]), "--version"], env=environment, check=False).returncode:
        pytest.skip("cmake is a script that needs other programs")
    command = [str(tools["cmake"]), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools['ninja']}"]
    done = subprocess.run(
        [*command, "-S", str(HOME), "-B", str(tmp_path / "build")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    words = " ".join(done.stderr.split())
    assert "No C++ compiler works here, and windeck is built from C++20 sources: install" in words
    assert words.count("CMake Error") == 1
    assert len(done.stderr.splitlines()) < 10, done.stderr
