"""Wheels for Linux: built by Zig's clang against an old glibc, and tested as installed.

``make wheels`` and ``make test-wheels`` run this; docs/design/installing.md says why it is so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST, BUILD = ROOT / "dist", ROOT / "build" / "wheels"
BUILD_TOOLS = ["scikit-build-core", "pybind11"]
#: The oldest glibc that the current PyTorch, NumPy and pyarrow need, or an older one.
GLIBC = "2.17"
NEWEST_POLICY = (2, 28)
MAX_EXTENSION_BYTES = 3_000_000
#: Not in the copy of the checkout in which an installed wheel is tested: sources, and their tests.
LEFT_OUT = ["src", "cpp", "CMakeLists.txt", "build", "dist", "out", ".*", "test_building.py"]
LEFT_OUT += ["test_check.py", "test_contributing.py", "test_cpp_layers.py", "test_faces.py"]
LEFT_OUT += ["test_formats.py", "test_language.py", "test_layout.py", "test_members.py"]
LEFT_OUT += ["test_stubs.py"]
#: No wheel of its only requirement exists for all Pythons.
EXTRAS_WITHOUT_WHEELS = {"leveldb"}


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> None:
    """Run a command with more variables of the environment; exit if it fails."""
    status = subprocess.run(command, cwd=cwd, env=os.environ | variables, check=False).returncode
    if status:
        sys.exit(f"exit status {status} from: {' '.join(map(str, command))}")


def environment(python: str, directory: Path, *requirements: str) -> Path:
    """Return the interpreter of a new virtual environment with some requirements installed."""
    shutil.rmtree(directory, ignore_errors=True)
    run(python, "-m", "venv", directory)
    install(directory / "bin" / "python", "pip>=25.1", *requirements)
    return directory / "bin" / "python"


def install(python: Path, *requirements: str | Path) -> None:
    """Install wheels of requirements: no compiler is used."""
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    flags = ["-c", ROOT / "constraints.txt", "--only-binary", ":all:"]
    run(*pip, *flags, *requirements, CC="/bin/false", CXX="/bin/false")


def build(pythons: list[str], machine: str) -> None:
    """Build a wheel for every interpreter into dist/.

    The objects of the core, which does not know Python, are compiled once. scikit-build-core
    deletes all objects when its own path has changed, so all interpreters import one copy of it.
    """
    import ziglang

    shutil.rmtree(DIST, ignore_errors=True)
    zig = Path(ziglang.__file__).parent / "zig"
    tools = BUILD / "tools"
    for python in pythons:
        folder = BUILD / Path(python).name
        interpreter = environment(python, folder / "venv")
        install(interpreter, "--upgrade", "--target", tools, *BUILD_TOOLS)
        shutil.rmtree(folder / "dist", ignore_errors=True)
        run(
            *[interpreter, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"],
            *[f"--config-settings=build-dir={BUILD / machine}", "-w", folder / "dist", "."],
            CMAKE_TOOLCHAIN_FILE=str(ROOT / "packaging" / "zig.cmake"),
            ZIG=str(zig),
            ZIG_TARGET=f"{machine}-linux-gnu.{GLIBC}",
            PYTHONPATH=str(tools),
        )
        (wheel,) = (folder / "dist").iterdir()
        run(sys.executable, "-m", "auditwheel", "repair", "-w", DIST, wheel)
    for wheel in sorted(DIST.iterdir()):
        check(wheel)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST)


def check(wheel: Path) -> None:
    """Exit unless a wheel is for a glibc old enough, and its extension is small."""
    run(sys.executable, "-m", "auditwheel", "show", wheel)
    policies = re.findall(r"manylinux_(\d+)_(\d+)", wheel.name)
    if not policies or min((int(a), int(b)) for a, b in policies) > NEWEST_POLICY:
        sys.exit(f"{wheel.name} is for a newer glibc than {NEWEST_POLICY}")
    with zipfile.ZipFile(wheel) as archive:
        (size,) = (one.file_size for one in archive.infolist() if one.filename.endswith(".so"))
    if size > MAX_EXTENSION_BYTES:
        sys.exit(
            f"the extension in {wheel.name} has {size:,} bytes, expected {MAX_EXTENSION_BYTES:,}"
        )
    print(f"{wheel.name}: the extension has {size:,} bytes")


def test(wheels: list[Path], arguments: list[str]) -> None:
    """Run the tests with installed wheels, in a copy of the checkout without its sources.

    The wheel of the Python that runs this is tested with all that the tests can use, the others
    without torch: it may be large, and not exist for them.
    """
    for wheel in wheels:
        major, minor = re.findall(r"-cp(\d)(\d+)-", wheel.name)[0]
        python = f"python{major}.{minor}"
        own = sys.version_info[:2] == (int(major), int(minor))
        folder = BUILD / "tests" / python
        interpreter = environment(sys.executable if own else python, folder / "venv")
        if own:
            install(interpreter, f"windeck[all] @ {wheel.resolve().as_uri()}",
                    "--group", "test", "--group", "frameworks")  # fmt: skip
        else:
            install(interpreter, "--no-deps", wheel)
            install(interpreter, *without_torch(wheel, f"{major}.{minor}"), "--group", "test")
        shutil.rmtree(folder / "checkout", ignore_errors=True)
        shutil.copytree(ROOT, folder / "checkout", ignore=shutil.ignore_patterns(*LEFT_OUT))
        run(interpreter, "-m", "pytest", *arguments, cwd=folder / "checkout",
            CC="/bin/false", CXX="/bin/false", PYTHONPATH="")  # fmt: skip


def without_torch(wheel: Path, version: str) -> list[str]:
    """Return the requirements of a wheel and of its extras, torch excepted."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    extras = {"", *metadata.get_all("Provides-Extra", ())} - EXTRAS_WITHOUT_WHEELS
    chosen = []
    for text in metadata.get_all("Requires-Dist", ()):
        one = Requirement(text)
        marker, one.marker = one.marker, None
        places = [{"python_version": version, "extra": extra} for extra in extras]
        wanted = marker is None or any(marker.evaluate(place) for place in places)
        if wanted and one.name not in ("torch", "windeck"):
            chosen.append(str(one))
    return chosen


def main() -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build wheels into dist/")
    building.add_argument("pythons", nargs="+", metavar="PYTHON")
    building.add_argument("--machine", default="x86_64")
    testing = commands.add_parser("test", help="run the tests with the wheels in dist/")
    testing.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], help="for pytest")
    given = parser.parse_args()
    if given.command == "build":
        build(given.pythons, given.machine)
    else:
        test(sorted(DIST.glob("*.whl")), given.arguments)


if __name__ == "__main__":
    main()
