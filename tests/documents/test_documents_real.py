"""Documents of a real corpus, compared with its files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.real_corpus import write_library
from windeck import Documents


@pytest.mark.parametrize("form", ["batches", "lists", "text"])
@pytest.mark.parametrize("counts", [False, True])
def test_every_document_is_its_file(form: str, counts: bool, tmp_path: Path) -> None:
    files = write_library(tmp_path, form, counts=counts)
    text = form == "text"
    documents = Documents(
        tmp_path,
        column="text" if text else "tokens",
        tokenizer=str.encode if text else None,
        open_files=2,
    )
    assert len(documents) == len(files) > 150
    assert int(documents.shard_tokens.sum()) == sum(path.stat().st_size for path in files)
    for number, path in enumerate(files):
        assert documents[number].astype(np.uint8).tobytes() == path.read_bytes()
    places = documents.locate(np.arange(len(files)))
    assert documents.index(places).tolist() == list(range(len(files)))
    documents.verify()
