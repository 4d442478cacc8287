"""Counts from count files, shards and the cache, and errors if they differ."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from documents.test_discovery import not_root  # noqa: F401
from support.corpora import (
    SHARDS,
    WRITERS,
    lists,
    write_batches,
    write_corpus,
    write_counts,
    write_lists,
)
from support.internals import original, plant
from windeck import Documents
from windeck._util import report_progress

HEAD = "dataset/filename,documents,tokens"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the shards that are counted."""
    names: list[str] = []
    looked = original("counts.count_shard")

    def noted(path: str, options: Any, keep: Any = None) -> Any:
        names.append(os.path.basename(path))
        return looked(path, options, keep)

    plant(monkeypatch, "counts.count_shard", noted)
    return names


class TestCountFile:
    def test_spares_looking_into_shards(self, tmp_path: Path, counted: list[str]) -> None:
        root = write_corpus(tmp_path, SHARDS, counts=True)
        assert Documents(root).shard_tokens.tolist() == [6, 0, 5, 3]
        assert counted == ["x.part4.arrow"]  # It has no document, which is confirmed.

    @pytest.mark.parametrize("form", WRITERS)
    @pytest.mark.parametrize("row", ["0,0", "4,0", "0,6"])
    def test_of_no_documents_or_tokens_does_not_lose_a_shard(
        self, row: str, form: str, tmp_path: Path
    ) -> None:
        root = write_corpus(tmp_path, {"c4/x.part3": SHARDS["c4/x.part3"]}, form=form)
        name = f"dataset=c4/x.part3.{WRITERS[form][0]}"
        write_counts(root, [HEAD, f"/{name},{row}"])
        noun = "6 tokens, expected 0" if row == "4,0" else "4 documents, expected 0"
        with pytest.raises(ValueError, match=rf"^'{root}/{name}' has {noun} from '.*', line 2$"):
            Documents(root)

    @pytest.mark.parametrize("form", ["batches", "parquet"])
    def test_metadata_confirm_that_there_are_no_documents(
        self, form: str, tmp_path: Path, counted: list[str]
    ) -> None:
        documents = Documents(write_corpus(tmp_path, SHARDS, form=form, counts=True))
        assert documents.shard_tokens.tolist() == [6, 0, 5, 3]
        assert counted == []

    def test_shards_it_does_not_name_are_looked_into(
        self, tmp_path: Path, counted: list[str]
    ) -> None:
        root = write_corpus(tmp_path, SHARDS)
        write_counts(root, [HEAD, "/dataset=c4/x.part3.arrow,4,6"])
        documents = Documents(root)
        assert sorted(counted) == ["x.part10.arrow", "x.part4.arrow", "y.part0.arrow"]
        assert documents.shard_tokens.tolist() == [6, 0, 5, 3]
        assert "counts of 3 shards from the shards" in documents.explain()

    def test_counts_of_the_cache_are_said_to_come_from_it(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS)
        write_counts(root, [HEAD, "/dataset=c4/x.part3.arrow,4,6"])
        assert "counts of 3 shards from the shards" in Documents(root, cache=True).explain()
        again = Documents(root, cache=True).explain()
        assert "counts of 1 shard from " in again
        assert again.endswith("counts of 3 shards from the cache")

    @pytest.mark.parametrize("options", [{"min_length": 1}, {"strip_tokens": [1]}])
    def test_filters_need_a_look(
        self, options: dict[str, Any], tmp_path: Path, counted: list[str]
    ) -> None:
        Documents(write_corpus(tmp_path, SHARDS, counts=True), **options)
        assert len(counted) == 4

    @pytest.mark.parametrize("form", WRITERS)
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("4,7", "has 6 tokens, expected 7 from {source}"),
            ("5,6", "has 4 documents, expected 5 from {source}"),
            ("1004,1000006", "has 4 documents, expected 1,004 from {source}"),
        ],
    )
    def test_that_disagrees(self, row: str, message: str, form: str, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, {"c4/x.part3": SHARDS["c4/x.part3"]}, form=form)
        name = f"dataset=c4/x.part3.{WRITERS[form][0]}"
        file = write_counts(root, [HEAD, f"/{name},{row}"])
        said = re.escape(message.format(source=f"{str(file)!r}, line 2"))
        with pytest.raises(ValueError, match=f"^'{root}/{name}' {said}$"):
            Documents(root, min_length=2)
        if "documents" in message and form in ("batches", "parquet"):  # Footers tell at the start.
            with pytest.raises(ValueError, match=f"^'{root}/{name}' {said}$"):
                Documents(root)
            return
        said = re.escape(message.format(source=f"{str(file)!r}"))
        documents = Documents(root)  # The shard has not been opened yet.
        for look in (lambda: documents[0], lambda: documents.open(0), documents.verify):
            with pytest.raises(ValueError, match=f"^'{root}/{name}' {said}$"):
                look()

    def test_of_text_counts_another_tokenizers_tokens(self, tmp_path: Path) -> None:
        (tmp_path / "dataset=c4").mkdir()
        path = tmp_path / "dataset=c4" / "x.part0.parquet"
        parquet.write_table(pa.table({"text": ["a b", "c"]}), path)
        write_counts(tmp_path, [HEAD, "dataset=c4/x.part0.parquet,2,1234"])
        documents = Documents(tmp_path, column="text", tokenizer=str.encode)
        assert documents.shard_tokens.tolist() == [4]
        write_counts(tmp_path, [HEAD, "dataset=c4/x.part0.parquet,3,1234"])
        with pytest.raises(ValueError, match=r"has 2 documents, expected 3 from '.*csv', line 2$"):
            Documents(tmp_path, column="text", tokenizer=str.encode)

    @pytest.mark.parametrize(
        ("rows", "error", "message"),
        [
            (["a,b"], ValueError, r"has no column 'dataset/filename'; the header is 'a', 'b'"),
            (
                [HEAD, "dataset=c4/x.part3.arrow,-1,0"],
                ValueError,
                r"line 2: `documents` must be in .0, 2.63., got -1",
            ),
            (
                [HEAD, "dataset=c4/x.part3.arrow,x,0"],
                ValueError,
                r"line 2: `documents` must be an integer, got 'x'",
            ),
            (
                [HEAD, *["dataset=c4/x.part3.arrow,4,6"] * 2],
                ValueError,
                r"line 3: duplicate row for",
            ),
            ([HEAD, "dataset=c4/x.part9.arrow,4,6"], FileNotFoundError, r"line 2: row for"),
        ],
    )
    def test_damaged(
        self, rows: list[str], error: type[Exception], message: str, tmp_path: Path
    ) -> None:
        root = write_corpus(tmp_path, SHARDS)
        write_counts(root, rows)
        with pytest.raises(error, match=rf"x_counts.csv'.* {message}"):
            Documents(root)

    def test_rows_of_files_that_are_not_selected(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS)
        write_counts(root, [HEAD, "dataset=c4/x.part9.arrow,4,6"])
        assert len(Documents(root, files="dataset=c4/*part[34].arrow")) == 4

    def test_more_than_64_bits(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS)
        large = 2**62
        rows = [f"dataset=c4/x.part{part}.arrow,1,{large}" for part in (3, 4, 10)]
        write_counts(root, [HEAD, *rows])
        with pytest.raises(
            ValueError, match=rf"the corpus has {3 * large + 3} tokens, expected fewer than 2\^63"
        ):
            Documents(root)


class TestFooters:
    DOCS: tuple[list[int] | None, ...] = ([1, 2, 3], [], None, [4], [])

    @pytest.mark.parametrize("options", [{}, {"row_group_size": 2}, {"data_page_version": "2.0"}])
    @pytest.mark.parametrize(
        "kind", [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 3)]
    )
    def test_of_parquet_tell_documents_and_tokens(
        self, kind: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fixed = pa.types.is_fixed_size_list(kind)
        # pyarrow before 26 cannot read a null list of one width out of Parquet.
        null = None if int(pa.__version__.split(".")[0]) >= 26 else [7, 8, 9]
        docs = [[1, 2, 3], null, [4, 5, 6]] if fixed else list(self.DOCS)
        (tmp_path / "dataset=c4").mkdir()
        path = tmp_path / "dataset=c4" / "x.part0.parquet"
        table = pa.table({"other": range(len(docs)), "tokens": pa.array(docs, kind)})
        parquet.write_table(table, path, **options)
        with monkeypatch.context() as context:
            plant(context, "readers.DocumentOptions.open", None)  # Opening a file would fail.
            documents = Documents(tmp_path)
        tokens = [len(doc or []) for doc in docs]
        assert (len(documents), documents.shard_tokens.tolist()) == (len(docs), [sum(tokens)])
        assert [len(doc) for doc in documents] == tokens

    @pytest.mark.parametrize(
        "created", [b"parquet-cpp-arrow version 9.0.1", b"parquet-mr version 1"]
    )
    def test_of_other_writers_and_without_statistics(
        self, created: bytes, tmp_path: Path, counted: list[str]
    ) -> None:
        (tmp_path / "dataset=c4").mkdir()
        path = tmp_path / "dataset=c4" / "x.part0.parquet"
        parquet.write_table(lists([[1, 2], []]), path, write_statistics=False)
        assert Documents(tmp_path).shard_tokens.tolist() == [2]
        parquet.write_table(lists([[1, 2], []]), path)
        data = path.read_bytes()
        written = re.search(rb"parquet-cpp-arrow version [0-9.]+", data)
        assert written is not None
        path.write_bytes(
            data.replace(written[0], created.ljust(len(written[0]))[: len(written[0])])
        )
        assert Documents(tmp_path).shard_tokens.tolist() == [2]
        assert len(counted) == 2


class TestCache:
    def test_spares_the_next_start_counting(self, tmp_path: Path, counted: list[str]) -> None:
        root = write_corpus(tmp_path, SHARDS)
        first = Documents(root, cache=True)
        assert len(counted) == 4
        kept = list((root / "meta").iterdir())
        assert [re.sub("[0-9a-f]{16}", "#", path.name) for path in kept] == ["windeck-counts-#.csv"]
        again = Documents(root, cache=True)
        assert len(counted) == 4
        assert again.shard_tokens.tolist() == first.shard_tokens.tolist()
        assert again.fingerprint == first.fingerprint
        Documents(root)
        assert len(counted) == 8

    @pytest.mark.parametrize("cache", [True, "kept.csv"])
    def test_each_reading_has_its_own(
        self, cache: bool | str, tmp_path: Path, counted: list[str]
    ) -> None:
        """Also in one file: shards without tokens by the counts of a filter would be lost."""
        root = write_corpus(tmp_path, SHARDS)
        kept = tmp_path / cache if isinstance(cache, str) else cache
        options: list[dict[str, Any]] = [
            {"min_length": 4}, {}, {"min_length": 2}, {"strip_tokens": [1]},
        ]  # fmt: skip
        for turn in range(2):
            found = [Documents(root, cache=kept, **each).shard_tokens.tolist() for each in options]
            assert found == [[0, 0, 5, 0], [6, 0, 5, 3], [5, 0, 5, 2], [5, 0, 5, 3]]
            assert len(counted) == (0 if turn else 16)
            counted.clear()
        assert cache is not True or len(list((root / "meta").iterdir())) == 4

    def test_tokenizers_of_one_name_have_each_their_own(self, tmp_path: Path) -> None:
        (tmp_path / "dataset=c4").mkdir()
        table = pa.table({"text": ["a b", "c"]})
        parquet.write_table(table, tmp_path / "dataset=c4" / "x.part0.parquet")

        def tokenizer(step: int) -> Callable[[str], list[int]]:
            return lambda text: [1] * (step * len(text))

        for step in (1, 2, 1, 2):
            documents = Documents(tmp_path, column="text", tokenizer=tokenizer(step), cache=True)
            assert documents.shard_tokens.tolist() == [4 * step]
        assert len(list((tmp_path / "meta").iterdir())) == 2

    def test_only_what_is_stale_is_counted_again(self, tmp_path: Path, counted: list[str]) -> None:
        root = write_corpus(tmp_path, SHARDS)
        Documents(root, cache=True)
        counted.clear()
        write_lists(root / "dataset=c4" / "x.part3.arrow", [[1] * 500])
        # The size is unchanged, the modification time is not.
        os.utime(root / "dataset=c4" / "x.part4.arrow", ns=(1, 1))
        write_lists(root / "dataset=c4" / "x.part5.arrow", [[1]])
        documents = Documents(root, cache=True)
        assert sorted(counted) == ["x.part3.arrow", "x.part4.arrow", "x.part5.arrow"]
        assert documents.shard_tokens.tolist() == [500, 0, 1, 5, 3]
        counted.clear()
        Documents(root, cache=True)
        assert not counted

    def test_keeps_rows_of_files_not_asked_for_now(
        self, tmp_path: Path, counted: list[str]
    ) -> None:
        root = write_corpus(tmp_path, SHARDS)
        Documents(root, cache=True, files="dataset=c4")
        Documents(root, cache=True, files="dataset=wiki")
        counted.clear()
        assert Documents(root, cache=True).shard_tokens.tolist() == [6, 0, 5, 3]
        assert not counted

    def test_in_a_file_or_folder_of_ones_own(self, tmp_path: Path, counted: list[str]) -> None:
        root = write_corpus(tmp_path / "root", SHARDS)
        (tmp_path / "folder").mkdir()
        for cache in (tmp_path / "new" / "kept.csv", str(tmp_path / "folder")):
            counted.clear()
            Documents(root, cache=cache)
            assert len(counted) == 4
            Documents(root, cache=cache)
            assert len(counted) == 4
        assert (tmp_path / "new" / "kept.csv").is_file()
        assert len(list((tmp_path / "folder").iterdir())) == 1
        assert not (root / "meta").exists()

    @pytest.mark.parametrize("damage", [b"", b"\0\1\2", b"a,b,c\n1,2,3\n", None])
    def test_damaged_is_written_anew(
        self, damage: bytes | None, tmp_path: Path, counted: list[str]
    ) -> None:
        root = write_corpus(tmp_path, SHARDS)
        Documents(root, cache=True)
        kept = next((root / "meta").iterdir())
        good = kept.read_bytes()
        kept.write_bytes(good[:-9] if damage is None else damage)
        assert Documents(root, cache=True).shard_tokens.tolist() == [6, 0, 5, 3]
        assert sorted(kept.read_bytes().split(b"\n")) == sorted(good.split(b"\n"))

    @pytest.mark.parametrize("form", WRITERS)
    def test_names_with_commas_quotes_and_no_utf8(
        self, form: str, tmp_path: Path, counted: list[str]
    ) -> None:
        suffix, write = WRITERS[form]
        odd = os.fsdecode(b'dataset=a,"b/\xff\n.part0.') + suffix
        (tmp_path / 'dataset=a,"b').mkdir()
        write(tmp_path / "x", [[1, 2]])
        (tmp_path / "x").rename(tmp_path / odd)
        for _ in range(2):
            documents = Documents(tmp_path, cache=True)
            assert documents[0].tolist() == [1, 2]
            documents.verify()
        assert len(counted) == 1

    def test_that_cannot_be_written_is_told_before_counting(
        self,
        not_root: Path,  # noqa: F811
        counted: list[str],
    ) -> None:
        write_corpus(not_root, SHARDS)
        not_root.chmod(0o555)
        with pytest.raises(PermissionError, match=r"/meta'"):
            Documents(not_root, cache=True)
        assert not counted
        not_root.chmod(0o777)

    def test_that_lies_is_found_out(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS)
        Documents(root, cache=True)
        kept = next((root / "meta").iterdir())
        kept.write_text(kept.read_text().replace(",4,6,", ",4,7,"))
        with pytest.raises(
            ValueError, match=r"x.part3.arrow' has 6 tokens, expected 7 from an earlier count$"
        ):
            Documents(root, cache=True).verify()


class TestProgress:
    def test_of_counting_and_verifying(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS)
        told: list[tuple[int, int]] = []
        documents = Documents(root, progress=lambda done, total: told.append((done, total)))
        assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
        documents.verify(progress=lambda done, total: told.append((done, total)))
        assert told[4:] == told[:4]

    def test_says_nothing_where_nothing_is_counted(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS, form="batches", counts=True)
        told: list[int] = []
        Documents(root, progress=lambda done, total: told.append(done))
        assert not told

    def test_a_bar(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("rich")
        Documents(write_corpus(tmp_path, SHARDS), progress=True)
        seen = capfd.readouterr()
        assert "counting documents" in seen.err
        assert "4/4" in seen.err
        assert not seen.out

    def test_no_bar_without_rich(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
        with report_progress(True, "counting", 3) as advance:
            advance(3)
        assert capfd.readouterr() == ("", "")

    def test_what_goes_wrong_in_it_comes_out(self, tmp_path: Path) -> None:
        def broken(done: int, total: int) -> None:
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            Documents(write_corpus(tmp_path, SHARDS), progress=broken)


def test_many_batches_are_counted_in_full(tmp_path: Path) -> None:
    (tmp_path / "dataset=c4").mkdir()
    docs = [[1] * (i % 7) for i in range(3000)]
    write_batches(tmp_path / "dataset=c4" / "x.part0.arrow", docs)
    documents = Documents(tmp_path, threads=1)
    assert (len(documents), documents.shard_tokens.tolist()) == (3000, [sum(map(len, docs))])
