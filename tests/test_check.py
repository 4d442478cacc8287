"""`make check` runs the files of tests that tests/check.txt lists: some of every package."""

from __future__ import annotations

import pytest

from support.pages import ROOT

TESTS = ROOT / "tests"
LINES = (TESTS / "check.txt").read_text(encoding="utf-8").split()
#: Tests of these files that take more than five seconds.
LEFT_OUT = [line.removeprefix("--deselect=") for line in LINES if line.startswith("--")]
CHOSEN = [line for line in LINES if not line.startswith("--")]
PACKAGES = sorted(
    path.stem
    for path in (ROOT / "src" / "windeck").iterdir()
    if (path / "__init__.py").exists() or (path.suffix == ".py" and (TESTS / path.stem).is_dir())
)


def test_the_files_exist() -> None:
    assert sorted(set(CHOSEN)) == CHOSEN
    assert not [name for name in CHOSEN if not (ROOT / name).is_file()]


@pytest.mark.parametrize("test", LEFT_OUT)
def test_a_test_that_is_left_out_exists(test: str) -> None:
    path, function = test.split("::")
    assert path in CHOSEN
    assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("package", [*PACKAGES, "core", "frozen"])
def test_every_package_has_a_file(package: str) -> None:
    assert any(name.startswith(f"tests/{package}/") for name in CHOSEN)
