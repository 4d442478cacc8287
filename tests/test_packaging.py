"""Tests of pyproject.toml: the extras, and the dependency groups that the Makefile installs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.pages import ROOT

PROJECT: dict[str, Any] = pytest.importorskip("tomllib").loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)
EXTRAS = PROJECT["project"]["optional-dependencies"]
GROUPS = PROJECT["dependency-groups"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    """Return the packages that requirements name; those of extras of windeck included."""
    found: set[str] = set()
    for requirement in requirements:
        name, extras = re.findall(r"^([\w-]+)(?:\[([\w,]+)\])?", requirement)[0]
        if name == "windeck":
            found = found.union(*(names(EXTRAS[extra]) for extra in extras.split(",")))
        else:
            found.add(name)
    return found


def test_the_extra_all_has_every_package_of_the_others() -> None:
    assert names(EXTRAS["all"]) == set.union(*(names(EXTRAS[extra]) for extra in EXTRAS))


def test_extras_are_for_users() -> None:
    """Tools for work on windeck are in dependency groups, which the metadata of a wheel omits."""
    assert EXTRAS.keys().isdisjoint(GROUPS)
    assert {"pytest", "mypy"} <= names([*GROUPS["test"], *GROUPS["lint"]])


def test_the_tests_that_need_no_torch_can_be_installed_without_it() -> None:
    assert names(GROUPS["test"]).isdisjoint({"torch", *names(GROUPS["frameworks"])})


def test_the_makefile_installs_extras_and_groups_that_exist() -> None:
    calls = re.findall(r"\$\(call installed,([\w$(),]+?)(?:,([a-z ]+))?\)$", MAKEFILE, re.MULTILINE)
    assert len(calls) == 4
    for extras, groups in calls:
        assert set(extras.split("$(comma)")) <= EXTRAS.keys()
        assert set(groups.split()) <= GROUPS.keys()


def test_make_wheels_builds_for_the_pythons_of_the_path(tmp_path: Path) -> None:
    """The one that is asked for last is not among them."""
    for name in ("python3.12", "python3.10"):
        (tmp_path / name).symlink_to("/bin/true")
    make = shutil.which("make") or pytest.skip("needs make")
    command = [make, "-n", "-o", ".venv/.wheels", "wheels", "SHELL=/bin/sh"]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.rstrip().endswith("build python3.10 python3.12")


def test_wheels_of_all_pythons_share_the_objects_of_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-build-core deletes those of a build folder that a copy elsewhere has made."""
    spec = spec_from_file_location("wheels", ROOT / "packaging" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    wheels = module_from_spec(spec)
    spec.loader.exec_module(wheels)
    calls: list[tuple[list[str], dict[str, str]]] = []

    def run(*command: str | Path, **variables: str) -> None:
        calls.append(([str(word) for word in command], variables))
        if "wheel" in command:
            made = Path(command[command.index("-w") + 1], "windeck.whl")
            made.parent.mkdir(parents=True)
            made.touch()
            wheels.DIST.mkdir(exist_ok=True)

    monkeypatch.setattr(wheels, "run", run)
    monkeypatch.setattr(wheels, "check", lambda wheel: None)
    monkeypatch.setattr(wheels, "BUILD", tmp_path / "build")
    monkeypatch.setattr(wheels, "DIST", tmp_path / "dist")
    monkeypatch.setitem(sys.modules, "ziglang", SimpleNamespace(__file__=str(tmp_path / "zig.py")))
    wheels.build(["python3.10", "python3.12"], "x86_64")
    built = [call for call in calls if "wheel" in call[0]]
    folders = {word for command, _ in built for word in command if "build-dir" in word}
    (path,) = {variables["PYTHONPATH"] for _, variables in built}
    installed = [command for command, _ in calls if "scikit-build-core" in command]
    assert [len(built), len(folders), len(installed)] == [2, 1, 2]
    assert all(command[command.index("--target") + 1] == path for command in installed)


def test_the_sdist_has_all_that_a_wheel_is_built_from(tmp_path: Path) -> None:
    """The same files with the same bytes: the wheel of an sdist is that of the checkout."""
    pytest.importorskip("scikit_build_core")
    program = (
        "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=True)
    (archive,) = tmp_path.iterdir()
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    sources = [ROOT / name for name in ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")]
    package = [path for path in (ROOT / "src").rglob("*.*") if path.is_file()]
    sources += [path for path in package if path.suffix not in (".so", ".pyc")]
    sources += (ROOT / "cpp").rglob("*.?pp")
    assert len(sources) > 300
    for path in sources:
        assert (unpacked / path.relative_to(ROOT)).read_bytes() == path.read_bytes()


def test_all_files_state_one_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [PROJECT["project"]["version"]]


@pytest.mark.parametrize(
    "platform", [("linux", "x86_64"), ("linux", "aarch64"), ("macos", "arm64")]
)
def test_a_release_has_a_wheel_for_every_python(platform: tuple[str, str]) -> None:
    pytest.importorskip("cibuildwheel")
    system, machine = platform
    command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers"]
    command += ["--platform", system, "--archs", machine, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pythons = [f"cp3{minor}" for minor in ("10", "11", "12", "13", "14", "14t")]
    kind = {"linux": "manylinux", "macos": "macosx"}[system]
    assert done.stdout.split() == [f"{python}-{kind}_{machine}" for python in pythons]


def test_actions_are_pinned_by_commit_and_permissions_are_read_only() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        for used in re.findall(r"uses: (.*)", text):
            assert re.fullmatch(r"\$/.*|[\w./-]+@[0-9a-f]{40} # v[\d.]+", used), (path, used)
        assert "\npermissions:\n  contents: read\n\n" in text, path
