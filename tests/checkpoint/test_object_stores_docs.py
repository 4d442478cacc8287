"""The page on checkpoints in object stores: its code runs against an S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.object_servers import bucket_of, use_bucket
from support.pages import Page
from support.store_servers import need
from windeck.checkpoint.stores import open_store

PAGE = Page("docs/object_stores.md")


def test_code_on_the_page_runs(
    s3_port: int, quick_retries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    with bucket_of(s3_port, "bucket") as bucket:
        use_bucket(bucket, monkeypatch)
        assert len(PAGE.blocks) == 2
        names = PAGE.run()
        checkpoint, archive = names["checkpoint"], names["archive"]
        assert [commit.step for commit in checkpoint.log(archive)] == [200]
        assert [commit.step for commit in checkpoint.log("memory://again")] == [200]
        assert bucket.proxy.count(r"^PUT .*/segments/.*partNumber") == 2
    with open_store("memory://again") as store:
        store.delete_range(b"")


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
