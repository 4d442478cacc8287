"""Tests of the page on tables in checkpoints, and of the examples in docstrings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.pages import Page
from support.store_servers import need
from windeck._core import bucket_of

PAGE = Page("docs/tables.md")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    names = PAGE.run()
    user, again, some = names["user"], names["again"], names["some"]
    with user.core.snapshot() as one, again.core.snapshot() as two:
        a, b = one.read(0, 1024), two.read(0, 1024)
        assert all(np.array_equal(a[name], b[name]) for name in a)
    faster, narrow, other = names["faster"], names["narrow"], names["other"]
    assert faster.rows == narrow.rows == user.rows
    assert (faster.core.clock, narrow.core.clock) == (0, 3)
    assert other.rows == user.rows + 50
    with names["checkpoint"].open("rocksdb://./runs/shop") as saved:
        assert saved.tables["user"].rows == len({i * s for i in range(1000) for s in (1, 2, 3)})
        # More than half of the ids changed in the second step.
        assert [link.since for link in saved.tables["user"].links][-1] == -1
    assert some.found.tolist() == [True, True, False]
    assert some.values.shape[1] == 32
    # The first generation's first block, as the page takes it to pieces.
    keys = names["keys"]
    assert (names["entries"], names["dead"], names["dim"], names["slots"]) == (1000, 0, 16, 1)
    assert keys.tolist() == sorted(range(1000), key=lambda i: (bucket_of([i])[0], i))
    assert names["values"].shape == (1000, 32)
    with names["checkpoint"].stores.open_store("rocksdb://./runs/served") as store:
        row = store.get(b"shop/r/user/3")
    assert row == user.core.lookup(np.array([3]), insert=False).tobytes()


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
