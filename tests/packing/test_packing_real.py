"""Packing of a real corpus: sequences split at document ends equal the files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.real_corpus import write_library
from windeck import Documents, PackedSequences

LENGTH, EOS, PAD, FIRST, LAST = 512, 256, 257, 258, 259


@pytest.mark.parametrize("order", ["shards", "global"])
@pytest.mark.parametrize("form", ["batches", "lists"])
def test_sequences_cut_at_their_ends_are_the_files(form: str, order: Any, tmp_path: Path) -> None:
    files = Counter(path.read_bytes() for path in write_library(tmp_path, form))
    packed = PackedSequences(Documents(tmp_path), sequence_length=LENGTH, eos=EOS, order=order)
    total = sum((len(content) + 1) * times for content, times in files.items())
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        source = packed.at_epoch(epoch, seed=seed)
        rows = source.gather_rows(np.arange(len(source)))["tokens"]
        assert len(rows) == (total - 1) // LENGTH
        assert (rows[:-1, -1] == rows[1:, 0]).all()
        stream = np.concatenate([rows[:, :-1].ravel(), rows[-1:, -1]])
        *whole, begun = np.split(stream, np.flatnonzero(stream == EOS) + 1)
        served = Counter(one[:-1].astype(np.uint8).tobytes() for one in whole)
        assert not served - files
        # The missing documents are those of the tail.
        missing = files - served
        lost = sum((len(content) + 1) * times for content, times in missing.items())
        assert lost == len(begun) + total - len(stream)
        assert total - len(stream) < LENGTH
        head = begun.astype(np.uint8).tobytes()
        assert not head or any(content.startswith(head) for content in missing)


@pytest.mark.parametrize("order", ["shards", "global"])
@pytest.mark.parametrize(
    "frame",
    [
        {"sequence_bos": FIRST},
        {"sequence_eos": LAST},
        {"sequence_bos": FIRST, "sequence_eos": LAST},
    ],
)
def test_sequences_without_their_own_bos_and_eos_are_the_files(
    frame: Any, order: Any, tmp_path: Path
) -> None:
    files = Counter(path.read_bytes() for path in write_library(tmp_path, "lists"))
    options: dict[str, Any] = {"sequence_length": LENGTH, "eos": EOS, "order": order}
    packed = PackedSequences(Documents(tmp_path), **options, **frame)
    rows = packed.at_epoch(2, seed=1).gather_rows(np.arange(len(packed)))["tokens"]
    for token, column in ((FIRST, 0), (LAST, -1)):
        framed = token in frame.values()
        assert np.count_nonzero(rows == token) == (len(rows) if framed else 0)
        assert not framed or (rows[:, column] == token).all()
    inner = rows[:, "sequence_bos" in frame : LENGTH + 1 - ("sequence_eos" in frame)]
    if "sequence_bos" not in frame:  # The next sequence begins with the last token of this one.
        assert (inner[:-1, -1] == inner[1:, 0]).all()
        inner = np.concatenate([inner[:1].ravel(), inner[1:, 1:].ravel()])
    *whole, begun = np.split(inner.ravel(), np.flatnonzero(inner.ravel() == EOS) + 1)
    served = Counter(one[:-1].astype(np.uint8).tobytes() for one in whole)
    assert not served - files
    lost = sum((len(content) + 1) * times for content, times in (files - served).items())
    assert lost - len(begun) == packed.report.tail < LENGTH
    # A mixed order serves these sequences in another sequence.
    mixed = "mixed" if order == "shards" else "mixed-global"
    shuffled = PackedSequences(Documents(tmp_path), **{**options, "order": mixed}, **frame)
    others = shuffled.at_epoch(2, seed=1).gather_rows(np.arange(len(shuffled)))["tokens"]
    assert (others != rows).any()
    assert Counter(row.tobytes() for row in others) == Counter(row.tobytes() for row in rows)


def test_padded_sequences_hold_each_file_whole(tmp_path: Path) -> None:
    files = [path.read_bytes() for path in write_library(tmp_path, "batches")]
    documents = Documents(tmp_path)
    packed = PackedSequences(documents, sequence_length=LENGTH, eos=EOS, padded=True, pad=PAD)
    source = packed.at_epoch(3, seed=5)
    rows = source.gather_rows(np.arange(len(source)))["tokens"]
    pieces: list[list[tuple[int, int]]] = [[] for _ in files]
    for sample, row in enumerate(rows):
        expected: list[int] = []
        for piece in source.documents(sample):
            number = documents.index((piece.dataset_id, piece.shard_id, piece.doc_id))
            assert sample in source.sequences_of(piece[:3])
            expected += [*files[number], EOS][piece.start : piece.stop]
            pieces[number].append((piece.start, piece.stop))
        assert row.tolist() == expected + [PAD] * (LENGTH + 1 - len(expected))
    for found, content in zip(pieces, files, strict=True):
        # A split document continues with the last token of the previous piece.
        ends = [0, *(stop - 1 for _, stop in sorted(found))]
        assert [start for start, _ in sorted(found)] == ends[:-1]
        assert ends[-1] == len(content)
