"""Fingerprints of corpora: equality for equal data, and explanations of changes."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyarrow import parquet

from support.corpora import SHARDS, write_corpus, write_counts, write_lists
from windeck import Documents, Loader, Mixture, PackedSequences, Stream
from windeck._util import check_fingerprint


def changed(before: Documents, after: Documents) -> tuple[str, str | None]:
    """Return the first field that differs, and its explanation."""
    saved = json.loads(json.dumps(before.fingerprint))
    current = after.fingerprint
    with pytest.raises(ValueError, match="the state does not belong to this data"):
        check_fingerprint(saved, current)
    field = next(field for field in current if saved.get(field) != current[field])
    return field, after.explain_change(field, saved.get(field), current[field])


class TestFingerprint:
    def test_fields(self, tmp_path: Path) -> None:
        documents = Documents(write_corpus(tmp_path, SHARDS), min_length=1, strip_tokens=[9, 3])
        found = documents.fingerprint
        assert list(found) == [
            *("column", "min_length", "strip", "tokenizer", "part", "end_token", "dtype"),
            *("datasets", "files", "contents", "documents", "tokens"),
        ]
        assert found.pop("contents")
        assert found == {
            "column": "tokens",
            "min_length": 1,
            "strip": "3,9",
            "tokenizer": "",
            "part": "",
            "end_token": "none",
            "dtype": "none",
            "datasets": "c4, wiki",
            "files": 4,
            "documents": 8,
            "tokens": 12,
        }

    def test_data_may_move_and_counts_may_come_from_anywhere(self, tmp_path: Path) -> None:
        first = Documents(write_corpus(tmp_path / "a", SHARDS)).fingerprint
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        for name in ("x.part3.arrow", "x.part4.arrow", "x.part10.arrow"):
            folder = tmp_path / "b" / "dataset=c4"
            (folder / name).rename(folder / name.replace("x", "moved"))
        assert Documents(tmp_path / "b").fingerprint == first
        assert Documents(tmp_path / "b", cache=True, threads=1, open_files=1).fingerprint == first
        write_counts(
            tmp_path / "b",
            ["dataset/filename,documents,tokens", "dataset=c4/moved.part4.arrow,0,0"],
        )
        assert Documents(tmp_path / "b").fingerprint == first

    def test_reads_files_once(self, tmp_path: Path) -> None:
        documents = Documents(write_corpus(tmp_path, SHARDS))
        found = documents.fingerprint
        shutil.rmtree(tmp_path / "dataset=c4")
        assert documents.fingerprint == found

    def test_many_datasets_are_cut_short(self, tmp_path: Path) -> None:
        names = [f"{'d' * 100}{i}" for i in range(12)]
        documents = Documents(write_corpus(tmp_path, {f"{name}/x": [[1]] for name in names}))
        assert len(str(documents.fingerprint["datasets"])) < 150

    @pytest.mark.parametrize("options", [{"min_length": 2}, {"strip_tokens": [1]}])
    def test_options_are_in_it(self, options: dict[str, Any], tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS)
        field, said = changed(Documents(root), Documents(root, **options))
        assert field == {"min_length": "min_length", "strip_tokens": "strip"}[next(iter(options))]
        saved = Documents(root).fingerprint[field]
        now = next(iter(options.values())) if field == "min_length" else "1"
        assert said == (
            f"documents were read with {field} = {saved!r} when the state was saved, and are read "
            f"with {field} = {now!r} now"
        )


def shifted(text: str, *, by: int) -> list[int]:
    """Tokenize with an option."""
    return [ord(c) + by for c in text]


class TestTokenizers:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Write one shard of text."""
        (tmp_path / "dataset=c4").mkdir()
        table = pa.table({"text": ["1 2", "3"]})
        parquet.write_table(table, tmp_path / "dataset=c4" / "x.part0.parquet")
        return tmp_path

    def name(self, root: Path, tokenizer: Callable[[str], Any]) -> str:
        """Return the tokenizer's field in the fingerprint."""
        documents = Documents(root, column="text", tokenizer=tokenizer)
        assert (
            documents.fingerprint == Documents(root, column="text", tokenizer=tokenizer).fingerprint
        )
        return str(documents.fingerprint["tokenizer"])

    def test_by_name_and_by_what_they_do(self, root: Path) -> None:
        names = [
            self.name(root, tokenizer)
            for tokenizer in (
                str.encode,
                shifted_by_one,
                functools.partial(shifted, by=1),
                functools.partial(shifted, by=2),
                lambda text: [1] * len(text),
                lambda text: [2] * len(text),
            )
        ]
        assert len(set(names)) == 6
        assert names[0].startswith("str.encode #")
        assert "shifted, by=1) #" in names[2] or "shifted(by=1) #" in names[2]

    def test_that_know_few_words(self, root: Path) -> None:
        documents = Documents(
            root, column="text", tokenizer=lambda text: [int(word) for word in text.split()]
        )
        assert [doc.tolist() for doc in documents] == [[1, 2], [3]]
        assert documents.fingerprint["tokenizer"]


def shifted_by_one(text: str) -> list[int]:
    """Tokenize as `partial(shifted, by=1)` does, under another name."""
    return shifted(text, by=1)


class TestChanges:
    SHARDS: ClassVar = {
        f"d{d}/x.part{part}": [[d, part, 1], [2]] for d in range(3) for part in range(4)
    }

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Write a corpus of twelve files."""
        return write_corpus(tmp_path, self.SHARDS)

    @pytest.mark.parametrize("name", SHARDS)
    @pytest.mark.parametrize(
        "docs", [[[7, 7, 7], [2]], [[0, 0, 1], [2], []], [[5] * 5000]], ids=["token", "doc", "all"]
    )
    def test_one_file(self, name: str, docs: list[list[int]], root: Path) -> None:
        before = Documents(root)
        assert before.fingerprint
        write_lists(root / f"dataset={name}.arrow", docs)
        assert changed(before, Documents(root)) == (
            "contents",
            f"one or more of the 12 files below '{root}' have changed since the state was saved",
        )

    def test_several_files(self, root: Path) -> None:
        before = Documents(root)
        assert before.fingerprint
        for part in (0, 2):
            write_lists(root / f"dataset=d1/x.part{part}.arrow", [[9]])
        assert changed(before, Documents(root)) == (
            "contents",
            f"one or more of the 12 files below '{root}' have changed since the state was saved",
        )

    def test_files_that_trade_places(self, root: Path) -> None:
        before = Documents(root)
        assert before.fingerprint
        folder = root / "dataset=d1"
        (folder / "x.part0.arrow").rename(folder / "y")
        (folder / "x.part1.arrow").rename(folder / "x.part0.arrow")
        (folder / "y").rename(folder / "x.part1.arrow")
        assert changed(before, Documents(root))[0] == "contents"

    def test_a_file_more(self, root: Path) -> None:
        before = Documents(root)
        assert before.fingerprint
        write_lists(root / "dataset=d1/x.part9.arrow", [[9]])
        assert changed(before, Documents(root)) == (
            "files",
            "the corpus had 12 files when the state was saved and has 13 now; `files` can "
            "select the same ones",
        )
        check_fingerprint(
            before.fingerprint, Documents(root, files="**/*part[0-3].arrow").fingerprint
        )

    def test_what_says_it_all_by_itself(self, root: Path) -> None:
        assert Documents(root).explain_change("documents", 3, 4) is None
        assert Documents(root).explain_change("contents", None, "1:2") is None

    def test_another_dataset(self, root: Path) -> None:
        before, after = Documents(root), Documents(root, files=["dataset=d0", "dataset=d2"])
        assert changed(before, after) == (
            "datasets",
            "the datasets were d0, d1, d2 when the state was saved, and are d0, d2 now",
        )


class TestStates:
    """A loader that resumes with changed files raises an error."""

    @pytest.mark.parametrize("docs", [[[7, 7, 7], [2]], [[5] * 50]], ids=["token", "all"])
    @pytest.mark.parametrize("mixed", [False, True])
    def test_says_so(self, mixed: bool, docs: list[list[int]], tmp_path: Path) -> None:
        root = write_corpus(tmp_path, TestChanges.SHARDS)

        def loader() -> Loader:
            packed = PackedSequences(Documents(root), sequence_length=4, bos=1)
            return Loader(Mixture({"a": (packed, 1.0)}) if mixed else packed, batch_size=2)

        first = loader()
        next(iter(first))
        saved = first.state_dict()
        loader().load_state_dict(saved)
        write_lists(root / "dataset=d1/x.part2.arrow", docs)
        with pytest.raises(
            ValueError,
            match=r"^the state does not belong to this data: (in part 'a', )?"
            r"one or more of the 12 files below .* have changed since the state was saved$",
        ):
            loader().load_state_dict(saved)


class TestGrowth:
    """A stream that grows keeps the names of documents, or says why it cannot."""

    def packed(self, root: Path, files: list[str], **options: str) -> PackedSequences:
        documents = Documents(root, files=[f"dataset=c4/{name}.arrow" for name in files], **options)  # type: ignore[arg-type]
        return PackedSequences(documents, sequence_length=2)

    def test_of_names_without_part_numbers(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, {f"c4/{name}": [[1, 2, 3]] * 4 for name in "abc"})
        Stream(self.packed(root, ["a", "b"]), grown=[(2, self.packed(root, ["a", "b", "c"]))])
        with pytest.raises(ValueError, match=r"^the corpus cannot grow: \('c4', 1\) is"):
            Stream(self.packed(root, ["a", "c"]), grown=[(2, self.packed(root, ["a", "b", "c"]))])

    def test_with_a_pattern(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, {f"c4/x-{i}-of-9": [[1, 2, 3]] * 4 for i in (1, 2, 3)})
        few, all_files = ["x-1-of-9", "x-3-of-9"], ["x-1-of-9", "x-2-of-9", "x-3-of-9"]
        for options in ({}, {"part_pattern": "x-([0-9]+)-of"}):
            small, large = (self.packed(root, files, **options) for files in (few, all_files))
            if options:
                stream = Stream(small, grown=[(2, large)])
                assert stream.fingerprint["source.documents.files"] == 2
                continue
            with pytest.raises(ValueError, match="cannot grow"):
                Stream(small, grown=[(2, large)])
