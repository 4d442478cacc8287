"""Public names and their signatures are those of `tests/golden/frozen/public_names.txt`.

Where one is added or changed on purpose, ``python tests/golden/frozen/make.py names`` writes the
file anew, and its difference belongs to the commit.
"""

from __future__ import annotations

import difflib
import subprocess
import sys

from support.frozen_data import FROZEN
from support.frozen_names import MODULES, described


def test_public_names_and_signatures_are_the_same() -> None:
    expected = (FROZEN / "public_names.txt").read_text(encoding="utf-8").splitlines()
    found = described().splitlines()
    lines = difflib.unified_diff(expected, found, "public_names.txt", "the package", "", "", 3, "")
    assert found == expected, "\n" + "\n".join(lines)


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """Importing ``package.name`` binds `name` in the package, over a function of that name."""
    program = f"""
import importlib, pkgutil, sys, types, windeck

names = {MODULES!r}
before = {{
    (name, public): getattr(importlib.import_module(name), public)
    for name in names
    for public in importlib.import_module(name).__all__
}}
for module in pkgutil.walk_packages(windeck.__path__, "windeck."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # a library that is optional
            assert error.name.split(".")[0] not in ("windeck", "torch", "pyarrow"), error
for (name, public), value in before.items():
    now = getattr(sys.modules[name], public)
    assert now is value, f"{{name}}.{{public}} was {{value!r}} and is {{now!r}} now"
    is_module = public == "stores" or f"{{name}}.{{public}}" in names
    assert isinstance(now, types.ModuleType) == is_module, (name, public)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
