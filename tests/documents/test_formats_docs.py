"""The page on files of other tools does what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.pages import Page
from support.token_files import llm_c_header, nanogpt_bytes, write_mds, write_megatron

PAGE = Page("docs/formats.md")
END = 50256
DOCS = [[number] * 50 for number in range(1, 31)]


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("openwebtext", "fineweb10B", "megatron", "texts", "web"):
        (tmp_path / name).mkdir()
    for name in ("train", "val"):
        (tmp_path / f"openwebtext/{name}.bin").write_bytes(nanogpt_bytes(DOCS, END))
    tokens = nanogpt_bytes(DOCS, END, end_first=True)
    header = llm_c_header(len(tokens) // 2)
    (tmp_path / "fineweb10B/fineweb_train_000001.bin").write_bytes(header + tokens)
    marked = [[[*doc, END]] for doc in DOCS]
    write_megatron(tmp_path / "megatron/my-gpt2_text_document.bin", marked)
    write_mds(tmp_path / "my-copy-c4/train_small", [DOCS], zstd=True)
    write_mds(tmp_path / "my-copy-c4/old", [DOCS], encoding="bytes", dtype="int64")
    (tmp_path / "texts/a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    parquet.write_table(pa.table({"text": ["three"]}), tmp_path / "web/a.parquet")

    assert len(PAGE.blocks) == 7
    names = PAGE.run(only=slice(1))
    assert names["batch"]["inputs"].shape == (2, 64)
    assert int(names["documents"].shard_tokens.sum()) == 1500
    assert len(PAGE.run(names, only=slice(1, 2))["fineweb"]) == 30
    assert PAGE.run(names, only=slice(2, 3))["tokens"].tolist() == DOCS[7]
    assert len(PAGE.run(names, only=slice(3, 4))["documents"]) == 30
    assert PAGE.run(names, only=slice(4, 5))["documents"][3].dtype == np.int64
    assert len(PAGE.run(names, only=slice(5, 6))["documents"]) == 2
    assert PAGE.run(names, only=slice(6, 7))["documents"][0].tolist() == list(b"three")


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
