"""Fingerprints, whole, of every source, stream and order: states hold them."""

from __future__ import annotations

import json
from pathlib import Path

from support.frozen_data import read_json
from support.frozen_states import fingerprints


def test_fingerprints_are_the_same_to_the_last_field(tmp_path: Path) -> None:
    found, expected = json.loads(json.dumps(fingerprints(tmp_path))), read_json("fingerprints.json")
    assert list(found) == list(expected)
    for name, fields in expected.items():
        assert found[name] == fields, name
        assert list(found[name]) == list(fields), f"the fields' order of {name}"
