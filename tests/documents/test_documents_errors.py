"""Errors for invalid files: type, file name, and detection at the start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from documents.test_discovery import not_root  # noqa: F401
from support.corpora import SHARDS, WRITERS, lists, write_corpus, write_lists
from windeck import Documents


@pytest.fixture(params=[False, True])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a valid corpus, without or with a count file."""
    return write_corpus(tmp_path, SHARDS, counts=request.param)


class TestFolders:
    def test_no_dataset(self, tmp_path: Path) -> None:
        (tmp_path / "c4").mkdir()
        with pytest.raises(FileNotFoundError, match=r"has no dataset; found 'c4/', expected fold"):
            Documents(tmp_path)

    def test_duplicate_part_numbers(self, root: Path) -> None:
        (root / "dataset=c4" / "more").mkdir()
        write_lists(root / "dataset=c4" / "more" / "z.part03.arrow", [[1]])
        with pytest.raises(
            ValueError,
            match=r"'.*c4/more/z.part03.arrow' and '.*c4/x.part3.arrow' both have part number 3",
        ):
            Documents(root)

    def test_links_are_followed(self, root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        away = tmp_path_factory.mktemp("away")
        for name in ("x.part3.arrow", "x.part10.arrow"):
            (root / "dataset=c4" / name).rename(away / name)
        (root / "dataset=c4" / "x.part3.arrow").symlink_to(away / "x.part3.arrow")
        (root / "dataset=c4" / "x.part10.arrow").symlink_to(away / "x.part10.arrow")
        assert len(Documents(root)) == 8


class TestFiles:
    """One invalid file among valid ones is named when the corpus is created."""

    def bad(self, root: Path) -> Path:
        """Return the path of the invalid file."""
        return root / "dataset=c4" / "deep" / "bad.part7.arrow"

    def make(self, root: Path, write: Callable[[Path], object], **options: object) -> Documents:
        """Create a corpus with an invalid file."""
        self.bad(root).parent.mkdir(exist_ok=True)
        write(self.bad(root))
        return Documents(root, **options)  # type: ignore[arg-type]

    @pytest.mark.parametrize("form", WRITERS)
    def test_cut_short(self, form: str, root: Path) -> None:
        def write(path: Path) -> None:
            WRITERS[form][1](path, SHARDS["c4/x.part3"])
            path.write_bytes(path.read_bytes()[:-20])

        with pytest.raises(ValueError, match=r"deep/bad.part7.arrow' is truncated: it starts as"):
            self.make(root, write)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", r"is empty \(0 bytes\); expected an Arrow IPC or a Parquet file"),
            (b"hello" * 100, r"is neither an Arrow IPC nor a Parquet file: it starts with b'hello"),
        ],
    )
    def test_empty_and_foreign(self, data: bytes, message: str, root: Path) -> None:
        with pytest.raises(ValueError, match=rf"deep/bad.part7.arrow' {message}"):
            self.make(root, lambda path: path.write_bytes(data))

    def test_missing_column(self, root: Path) -> None:
        with pytest.raises(
            KeyError, match=r"bad.part7.arrow' has no column 'tokens'; it has 'words'"
        ):
            self.make(root, lambda path: write_lists(path, [[1]], column="words"))

    def test_duplicate_column(self, root: Path) -> None:
        column = lists([[1]])["tokens"]
        table = pa.Table.from_arrays([column, column], names=["tokens", "tokens"])
        with pytest.raises(ValueError, match=r"bad.part7.arrow' has 2 columns named 'tokens'; exp"):
            self.make(root, lambda path: feather.write_feather(table, path))

    def test_column_of_another_kind(self, root: Path) -> None:
        table = pa.table({"tokens": [1.5]})
        with pytest.raises(
            TypeError, match=r"column 'tokens' of '.*bad.part7.arrow' is double; expected lists"
        ):
            self.make(root, lambda path: feather.write_feather(table, path))

    def test_text_without_a_tokenizer(self, root: Path) -> None:
        table = pa.table({"tokens": ["a"]})
        with pytest.raises(TypeError, match=r"bad.part7.arrow' is string, but no `tokenizer`"):
            self.make(root, lambda path: feather.write_feather(table, path))

    def test_a_tokenizer_without_text(self, root: Path) -> None:
        with pytest.raises(
            TypeError, match=r"is list<.*>, but a `tokenizer` is given; expected text"
        ):
            Documents(root, tokenizer=str.encode)

    def test_null_tokens(self, tmp_path: Path) -> None:
        (tmp_path / "dataset=c4").mkdir()
        path = tmp_path / "dataset=c4" / "x.part0.parquet"
        parquet.write_table(pa.table({"tokens": [[1], [2, None, 3]]}), path)
        documents = Documents(tmp_path)  # Its footer says three tokens.
        with pytest.raises(ValueError, match=r"x.part0.parquet.*null"):
            documents.verify()

    def test_that_may_not_be_read(self, not_root: Path) -> None:  # noqa: F811
        write_corpus(not_root, SHARDS, counts=True)
        (not_root / "dataset=c4" / "x.part10.arrow").chmod(0)
        with pytest.raises(PermissionError, match=r"dataset=c4/x.part10.arrow"):
            Documents(not_root)

    def test_of_two_the_first_is_named(self, root: Path) -> None:
        for part in (3, 10):
            (root / "dataset=c4" / f"x.part{part}.arrow").write_bytes(b"")
        with pytest.raises(ValueError, match=r"c4/x.part3.arrow' is empty"):
            Documents(root)


class TestChangedUnderway:
    """Changes of files after the corpus was created are detected."""

    def test_another_size(self, root: Path) -> None:
        documents = Documents(root)
        path = root / "dataset=c4" / "x.part10.arrow"
        was = path.stat().st_size
        write_lists(path, [[1] * 1000])
        now = path.stat().st_size
        message = (
            f"{str(path)!r} has {now:,} bytes, but had {was:,} when the corpus was opened; "
            "the file has changed"
        )
        for look in (lambda: documents[5], lambda: documents.open(2), documents.verify):
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                look()

    def test_other_counts_in_as_many_bytes(self, root: Path) -> None:
        documents = Documents(root)
        path = root / "dataset=c4" / "x.part10.arrow"
        was = path.stat().st_size
        write_lists(path, [[1], [50, 51, 52, 53, 54]])
        assert path.stat().st_size == was
        with pytest.raises(ValueError, match=r"x.part10.arrow' has 6 tokens, expected 5 from "):
            documents.open(2)

    def test_cut_short_while_it_is_mapped(self, root: Path) -> None:
        documents = Documents(root)
        assert documents[5].tolist() == [50, 51, 52, 53, 54]
        path = root / "dataset=c4" / "x.part10.arrow"
        was = path.stat().st_size
        os.truncate(path, 0)
        message = (
            f"{str(path)!r} became shorter while it was mapped: it has 0 bytes and had {was}, "
            "expected files that stay as they are"
        )
        with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
            documents[5]

    def test_gone(self, root: Path) -> None:
        documents = Documents(root)
        os.unlink(root / "dataset=c4" / "x.part10.arrow")
        for look in (lambda: documents[5], documents.verify):
            with pytest.raises(FileNotFoundError, match=r"x.part10.arrow"):
                look()

    def test_the_middle_damaged(self, root: Path) -> None:
        path = root / "dataset=c4" / "x.part10.arrow"
        data = path.read_bytes()
        path.write_bytes(data[:400] + bytes(200) + data[600:])
        with pytest.raises(ValueError, match=r"x.part10.arrow"):
            Documents(root).verify()


class TestNoTokens:
    def test_all_empty(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, {"c4/x.part0": [[], []], "c4/x.part1": []})
        message = (
            f"none of the 2 documents in 2 shards below {str(tmp_path)!r} has a token: 2 are "
            "empty; expected at least one token"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            Documents(root)

    def test_all_filtered(self, root: Path) -> None:
        with pytest.raises(
            ValueError,
            match=r"none of the 8 documents in 4 shards below '.*' has a token: 8 are filtered "
            r"\(1 token id stripped at both ends, fewer than 1,000 tokens\), 0 are empty; expected",
        ):
            Documents(root, min_length=1000, strip_tokens=[3])

    def test_no_document_at_all(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, {"c4/x.part0": []}, counts=True)
        with pytest.raises(ValueError, match=r"none of the 0 documents in 1 shard below"):
            Documents(root)
