"""The page on object stores: its code runs against an S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.object_servers import bucket_of, use_bucket
from support.pages import Page

PAGE = Page("docs/remote.md")


@pytest.mark.usefixtures("quick_retries")
def test_code_on_the_page_runs(
    s3_port: int, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket_of(s3_port, "loads") as bucket:
        use_bucket(bucket, monkeypatch)
        assert len(PAGE.blocks) == 4
        names = PAGE.run()
        assert names["table"].num_rows == 4 * 90 * 24
        assert next(iter(names["loader"]))["inputs"].shape == (4, 64)
        assert any(path.suffix == ".object" for path in (demo_folder / "cache").iterdir())


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
