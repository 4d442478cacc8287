"""Files of real series in `shared/data`, in a folder above or beside this checkout."""

from __future__ import annotations

from pathlib import Path

import pytest


def real_data(name: str) -> Path:
    """Return the path of a file; skip the test where it is absent."""
    above = Path(__file__).resolve().parents[2:]
    for folder in above:
        if (path := folder / "shared" / "data" / name).exists():
            return path
    pytest.skip(f"the data file {name} is not here: no folder above has shared/data/{name}")
