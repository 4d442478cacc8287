"""The committed stub says what the extension offers."""

from pathlib import Path

import pytest

from stubs import generated

STUB = Path(__file__).parents[1] / "src" / "windeck" / "_core.pyi"


def test_the_committed_stub_is_the_generated_one() -> None:
    pytest.importorskip("pybind11_stubgen", reason="pip install pybind11-stubgen")
    assert STUB.read_text() == generated(), "run `make stubs` and commit the result"
