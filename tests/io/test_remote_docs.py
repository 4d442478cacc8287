"""The page on object stores: its code runs against an S3 server."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.corpora import write_corpus
from support.object_servers import ACCESS, SECRET, bucket_of
from support.pages import Page

PAGE = Page("docs/remote.md")


def test_code_on_the_page_runs(
    s3_port: int, quick_retries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = io.BytesIO()
    parquet.write_table(pa.table({"site": ["a"] * 5, "load": np.arange(5.0)}), sink)
    shards = {"c4/x.part0": [[1, 2, 3]] * 200, "c4/x.part1": [[4, 5]] * 200}
    root = write_corpus(tmp_path / "corpus", shards)
    with bucket_of(s3_port, "loads") as bucket:
        bucket.put("2024/site-1.parquet", sink.getvalue())
        for path in root.rglob("*.arrow"):
            bucket.put(f"corpus/{path.relative_to(root)}", path.read_bytes())
        endpoint = f"http://127.0.0.1:{bucket.proxy.port}"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert len(PAGE.blocks) == 3
        names = PAGE.run({"__name__": "page", "endpoint": endpoint})
        assert names["table"]["load"].tolist() == [0, 1, 2, 3, 4]
        assert next(iter(names["loader"]))["inputs"].shape == (4, 64)
        assert any(path.suffix == ".object" for path in (tmp_path / "cache").iterdir())


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
