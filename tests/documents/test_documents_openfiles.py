"""The number of files that a corpus maps at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from support.corpora import SHARDS, write_corpus
from support.internals import plant
from support.threads import at_once
from windeck import Documents, PackedSequences


def mapped(root: Path) -> set[str]:
    """Return the files below a folder that this process has mapped."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("the system does not tell what is mapped")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[-1] for line in lines if f" {root}/" in line}


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_at_most_so_many_are_mapped(limit: int, tmp_path: Path) -> None:
    shards = {f"c4/x.part{part}": [[part] * 50, [1]] for part in range(20)}
    documents = Documents(write_corpus(tmp_path, shards), open_files=limit)
    seen = set()
    for i in np.random.default_rng(0).integers(len(documents), size=200).tolist():
        assert documents[i].tolist() == ([i // 2] * 50 if i % 2 == 0 else [1])
        seen.add(len(mapped(tmp_path)))
    assert seen <= set(range(limit + 1))
    assert max(seen) == limit
    del documents
    assert not mapped(tmp_path)


def test_counting_and_verifying_map_no_more(tmp_path: Path) -> None:
    root = write_corpus(tmp_path, {f"c4/x.part{part}": [[1, 2]] * 50 for part in range(40)})
    seen: list[int] = []
    documents = Documents(
        root,
        open_files=3,
        threads=8,
        progress=lambda done, total: seen.append(len(mapped(root))),
    )
    documents.verify(progress=lambda done, total: seen.append(len(mapped(root))))
    assert len(seen) == 80
    assert max(seen) <= 3
    assert not mapped(root)


def test_none_is_mapped_before_it_is_asked_for(tmp_path: Path) -> None:
    root = write_corpus(tmp_path, SHARDS, counts=True)
    for options in ({}, {"min_length": 1}):
        documents = Documents(root, **options)  # type: ignore[arg-type]
        documents.locate(np.arange(8))
        assert documents.fingerprint
        assert not mapped(tmp_path)


def test_shards_in_use_stay(tmp_path: Path) -> None:
    documents = Documents(write_corpus(tmp_path, SHARDS), open_files=1)
    held = [documents.open(shard) for shard in range(4)]
    assert [len(shard) for shard in held] == [4, 0, 2, 2]
    assert held[0].document(3).tolist() == [5, 6]


def test_many_threads_at_once(tmp_path: Path) -> None:
    shards = {f"c4/x.part{part}": [[part, j] for j in range(5)] for part in range(9)}
    documents = Documents(write_corpus(tmp_path, shards), open_files=2)

    def read(seed: int) -> None:
        asked = np.random.default_rng(seed).integers(len(documents), size=300).tolist()
        assert [documents[i].tolist() for i in asked] == [[i // 5, i % 5] for i in asked]

    at_once(8, read)


@pytest.mark.parametrize("form", ["parquet", "compressed"])
def test_decoded_files_are_bounded_by_bytes(form: str, tmp_path: Path) -> None:
    """A shard has 2,000 bytes of tokens and 80 of documents; five of them fit."""
    shards = {f"c4/x.part{part}": [[part] * 100] * 10 for part in range(20)}
    root = write_corpus(tmp_path, shards, form=form)
    for limit, expected in ((5 * 2080, 5), (2080, 1), (1, 1), (2**40, 20)):
        documents = Documents(root, open_bytes=limit)
        before, held = pa.total_allocated_bytes(), set()
        for i in np.random.default_rng(0).integers(len(documents), size=200).tolist():
            assert documents[i].tolist() == [i // 10] * 100
            held.add(pa.total_allocated_bytes() - before)
        # Parquet's reader holds some KiB for a while; all 20 shards would be 40,000 bytes.
        assert expected * 2000 <= max(held) <= expected * 4096 + 16384


def test_mapped_files_are_not_bounded_by_bytes(tmp_path: Path) -> None:
    shards = {f"c4/x.part{part}": [[part] * 100] * 10 for part in range(6)}
    documents = Documents(write_corpus(tmp_path, shards), open_bytes=1)
    held = [documents.open(shard) for shard in range(6)]
    assert all(documents.open(shard) is held[shard] for shard in range(6))


@pytest.mark.parametrize("wrong", [0, -1, "1 apple", 1.5, True])
def test_open_bytes_are_positive_bytes(wrong: object, tmp_path: Path) -> None:
    root = write_corpus(tmp_path, SHARDS)
    with pytest.raises((TypeError, ValueError), match="open_bytes"):
        Documents(root, open_bytes=wrong)  # type: ignore[arg-type]


def test_the_limit_of_the_process_is_raised_for_several_corpora(tmp_path: Path) -> None:
    """Each keeps `open_files` shards open, and a mapped one takes two descriptors."""
    root = write_corpus(tmp_path, {f"c4/x.part{part}": [[part] * 30] for part in range(60)})
    program = """
import resource, sys, windeck as wd
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
corpora = [wd.Documents(sys.argv[1]) for _ in range(6)]
print(sum(int(corpus[number][0]) for corpus in corpora for number in range(60)))
"""
    command = [sys.executable, "-c", program, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{6 * sum(range(60))}\n", "")


class TestReopening:
    """The warning of order="global", whose blocks read from all shards."""

    OPTIONS: ClassVar[dict[str, Any]] = {"sequence_length": 8, "order": "global"}

    def test_more_files_than_stay_open(self, tmp_path: Path) -> None:
        shards = {f"c4/x.part{part}": [[part] * 30] for part in range(9)} | {"c4/x.part9": []}
        root = write_corpus(tmp_path, shards)
        with pytest.warns(UserWarning, match="order='global'") as caught:
            PackedSequences(Documents(root, open_files=8), **self.OPTIONS)
        (warning,) = caught
        assert warning.filename == __file__
        assert "9 shards (0 bytes decoded) do not" in str(warning.message)
        assert "they need open_files=9; or use order='shards'" in str(warning.message)
        PackedSequences(Documents(root, open_files=9), **self.OPTIONS)
        PackedSequences(Documents(root, open_files=1), sequence_length=8)
        with pytest.warns(UserWarning, match="order='mixed-global'"):
            PackedSequences(Documents(root, open_files=8), sequence_length=8, order="mixed-global")

    def test_more_bytes_than_stay_decoded(self, tmp_path: Path) -> None:
        shards = {f"c4/x.part{part}": [[part] * 100] for part in range(4)}
        root = write_corpus(tmp_path, shards, form="parquet")
        documents = Documents(root, open_files=2, open_bytes=831)
        said = r"they need open_files=4 and open_bytes=832; or"
        with pytest.warns(UserWarning, match=said):
            PackedSequences(documents, **self.OPTIONS)
        enough = Documents(root, open_files=4, open_bytes=832)
        assert enough.explain_reopening() is None
        packed = PackedSequences(enough, **self.OPTIONS)
        packed.gather(range(len(packed)))

    def test_descriptors_are_named_if_they_do_not_suffice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shards = {f"c4/x.part{part}": [[part] * 30] for part in range(9)}
        documents = Documents(write_corpus(tmp_path, shards), open_files=8)
        plant(monkeypatch, "documents.file_limit", lambda: 17)
        found = documents.explain_reopening()
        assert found is not None
        assert "and 18 file descriptors, of which this process may have 17" in found
