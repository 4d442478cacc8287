"""The paths that CONTRIBUTING.md names exist."""

from __future__ import annotations

import re

from support.pages import ROOT


def test_paths_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|cpp|tests|docs|benchmarks)/[\w/.-]*)`", text)
    assert len(paths) > 30
    assert not [path for path in paths if not (ROOT / path).exists()]
