"""Writes the stub of the native core to standard output: `make stubs`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


def generated() -> str:
    """The text of _core.pyi for the extension that is installed."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pybind11_stubgen",
                "windeck._core",
                f"--output-dir={folder}",
                "--numpy-array-use-type-var",
                "--exit-code",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return (Path(folder) / "windeck" / "_core.pyi").read_text()


if __name__ == "__main__":
    print(generated(), end="")
