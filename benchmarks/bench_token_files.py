"""Time of reading token files of other tools, against Arrow files of the same tokens.

Processor time of all threads: it is what differs, and other processes disturb it less.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpora
import numpy as np
from measure import Row, compare_costs

import windeck as wd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.token_files import nanogpt_bytes, write_mds, write_megatron

END = 50_256
#: Some 11 million tokens of two bytes.
SHARDS, DOCUMENTS, SEED = 4, 4000, 3
OPTIONS: dict[str, dict[str, Any]] = {
    "nanoGPT": {"format": "nanogpt", "end_token": END, "dtype": "uint16"},
    "Megatron-LM": {},
    "MDS": {},
    "MDS, zstd": {},
}


def write(root: Path, form: str, shards: list[list[Any]]) -> None:
    """Write all shards as one dataset."""
    root.mkdir()
    if form.startswith("MDS"):
        write_mds(root, shards, zstd=form.endswith("zstd"))
    for number, documents in enumerate(shards):
        path = root / f"x{number}.bin"
        if form == "nanoGPT":
            path.write_bytes(nanogpt_bytes(documents, END))
        elif form == "Megatron-LM":
            write_megatron(path, [[document] for document in documents])
        elif form == "Arrow":
            corpora.write(path.with_suffix(".arrow"), documents, "lists")


def packed(root: Path, form: str) -> wd.PackedSequences:
    documents = wd.Documents(root, **OPTIONS.get(form, {}))
    return wd.PackedSequences(documents, sequence_length=1024, eos=END)


def epoch(source: wd.PackedSequences) -> Iterator[Any]:
    """Yield the inputs of all whole batches of 64 sequences of epoch 0."""
    stream = wd.Stream(source, seed=7)
    for start in range(0, len(source) // 64 * 64, 64):
        yield stream.gather(np.arange(start, start + 64))["inputs"]


def drain(source: wd.PackedSequences) -> None:
    for _ in epoch(source):
        pass


def rows() -> Iterator[Row]:
    shards = [corpora.web_like(DOCUMENTS, seed=SEED + part) for part in range(SHARDS)]
    with tempfile.TemporaryDirectory() as folder:
        roots = {form: Path(folder) / form for form in ("Arrow", *OPTIONS)}
        for form, root in roots.items():
            write(root, form, shards)
        arrow = packed(roots["Arrow"], "Arrow")
        for form in OPTIONS:
            source = packed(roots[form], form)
            assert len(source) == len(arrow) >= 64 * 8
            for ours, theirs in zip(epoch(source), epoch(arrow), strict=True):
                assert np.array_equal(ours, theirs)
            yield Row(
                f"packing an epoch of {form} files, 64 x 1,024, shards open",
                "from where they are",
                "Arrow lists",
                compare_costs(lambda: drain(source), lambda: drain(arrow), rounds=15).cpu,  # noqa: B023
                0.9,
            )
            yield Row(
                f"Documents of {form} files, counted, and an epoch",
                "from where they are",
                "Arrow lists",
                compare_costs(
                    lambda: drain(packed(roots[form], form)),  # noqa: B023
                    lambda: drain(packed(roots["Arrow"], "Arrow")),
                    rounds=15,
                ).cpu,
                None,
            )
