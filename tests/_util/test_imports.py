"""Handlers of signals that interrupt the imports of what is used for the first time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.programs import printed

SCRIPT = """
import json, sys
from windeck import checkpoint

place, found, inside = sys.argv[1], [], False

def handler(event, arguments):
    # Called where a module of windeck is imported, as a handler of a signal could be.
    global inside
    if event != "import" or not arguments[0].startswith("windeck") or inside:
        return
    inside = True
    try:
        checkpoint.save(f"{place}-handler", step=1, extra={})
        found.append("saved")
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    inside = False

sys.addaudithook(handler)
checkpoint.save(f"{place}-loop", step=1, extra={"a": 1})
inside = True
with checkpoint.open(f"{place}-loop") as saved:
    assert saved.tree("extra") == {"a": 1}
print(json.dumps(found))
"""


@pytest.mark.parametrize("place", ["rocksdb://.", "leveldb://.", "memory://"])
def test_a_handler_in_the_first_use_of_a_function_is_told_so(place: str, tmp_path: Path) -> None:
    found = set(json.loads(printed(SCRIPT, place.replace(".", f"{tmp_path}/") + "store")))
    assert found - {"saved"}
    assert all("signal handler that interrupts the import" in one for one in found - {"saved"})
    assert all(one.startswith("RuntimeError: windeck.") for one in found - {"saved"})
