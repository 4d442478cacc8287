"""Count files: parsing of rows, and errors for damaged files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from support.corpora import write_batches, write_counts, write_lists
from windeck import Documents

HEAD = "dataset/filename,documents,tokens"
CHOSEN = ("dataset=c4/x.part3.arrow", "dataset=c4/en/x.part10.arrow", "dataset=w/y.arrow")
#: Documents of each shard: a count file that names it, and is right or wrong, gives its counts.
DOCS = [[1, 2, 3]]


def write_shards(root: Path) -> Path:
    """Write a file of each of the paths that is not there."""
    for path in CHOSEN:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if not (root / path).exists():
            write_lists(root / path, DOCS)
    return root


def counts(root: Path, files: list[str] | None = None) -> dict[str, tuple[int, int]]:
    """Return the counts that do not come from the shards, by path."""
    documents = Documents(write_shards(root), files=files)
    return {
        os.path.relpath(documents.shard_path(shard), root): (int(count), int(tokens))
        for shard, (count, tokens) in enumerate(
            zip(documents.shard_documents, documents.shard_tokens, strict=True)
        )
        if (count, tokens) != (1, 3)
    }


def read(root: Path, *rows: str, head: str = HEAD) -> dict[str, tuple[int, int]]:
    """Write a count file and return its counts by path."""
    write_counts(root, [head, *rows])
    return counts(root)


class TestRows:
    def test_paths_in_all_their_forms(self, tmp_path: Path) -> None:
        found = read(
            tmp_path,
            "/dataset=c4/x.part3.arrow,5,10",
            "/home/me/old=1/dataset=c4//en/./x.part10.arrow, 7 ,8",
            "",
            " , ,",
            '"dataset=w\\y.arrow",1,9223372036854775789',
        )
        assert found == dict(zip(CHOSEN, [(5, 10), (7, 8), (1, 2**63 - 19)], strict=True))

    def test_columns_in_any_order_and_more_of_them(self, tmp_path: Path) -> None:
        found = read(
            tmp_path, "1,5,dataset=w/y.arrow,a b", head="tokens , documents,dataset/filename,note"
        )
        assert found == {"dataset=w/y.arrow": (5, 1)}

    def test_marks_of_other_systems(self, tmp_path: Path) -> None:
        path = write_counts(tmp_path, [])
        path.write_bytes(b"\xef\xbb\xbf" + HEAD.encode() + b"\r\ndataset=w/y.arrow,5,2\r\n")
        assert counts(tmp_path) == {"dataset=w/y.arrow": (5, 2)}
        # Files that state their documents are compared, with the place of the row.
        write_batches(tmp_path / "dataset=w/y.arrow", DOCS)
        where = re.escape(f"{str(path)!r}, line 2")
        with pytest.raises(ValueError, match=rf"has 1 documents, expected 5 from {where}$"):
            Documents(tmp_path)

    def test_several_files_and_none(self, tmp_path: Path) -> None:
        assert counts(tmp_path) == {}
        for number, path in enumerate(CHOSEN):
            write_counts(tmp_path, [HEAD, f"{path},{number + 1},7"], f"{number}-counts-a.csv")
        write_counts(tmp_path, ["anything"], "counts.txt")
        write_counts(tmp_path, ["anything"], "windeck-counts-0123.csv")
        assert counts(tmp_path) == {path: (i + 1, 7) for i, path in enumerate(CHOSEN)}

    def test_a_root_with_magic_in_its_name(self, tmp_path: Path) -> None:
        (tmp_path / "a[1]*").mkdir()
        assert read(tmp_path / "a[1]*", "dataset=w/y.arrow,5,1") == {"dataset=w/y.arrow": (5, 1)}

    def test_rows_of_other_datasets_and_files_not_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "dataset=c4").mkdir()
        (tmp_path / "dataset=c4" / "_z.arrow").touch()
        assert read(tmp_path, "/dataset=gone/x.part0.arrow,5,1") == {}
        assert read(tmp_path, "/dataset=c4/_z.arrow,5,1") == {}
        write_counts(tmp_path, [HEAD, "/dataset=c4/gone.arrow,5,1", "/dataset=w/y.arrow,5,1"])
        assert counts(tmp_path, ["dataset=c4/x.part3.arrow"]) == {}

    def test_rows_without_a_dataset_are_reported_once(self, tmp_path: Path) -> None:
        rows = ["c4/x.part0.arrow,5,1", "/dataset=gone/y.arrow,1,1", "notes.txt,1,1"]
        with pytest.warns(UserWarning, match="count file") as caught:
            assert read(tmp_path, *rows) == {}
        (warning,) = caught
        assert re.search(
            r"^2 of 3 rows in count files name no file of the corpus '.*' and are ignored, such as "
            r"'c4/x.part0.arrow' in '.*x_counts.csv', line 2; expected paths relative to the root$",
            str(warning.message),
        )

    @pytest.mark.parametrize(
        "path", ["dataset=a/dataset=b/x", "/dataset=a/dataset=b/x", "q/dataset=a/./dataset=b//x"]
    )
    def test_the_first_dataset_in_a_path_counts(self, path: str, tmp_path: Path) -> None:
        shard = "dataset=a/dataset=b/x.arrow"
        (tmp_path / shard).parent.mkdir(parents=True)
        write_lists(tmp_path / shard, DOCS)
        assert read(tmp_path, f"{path}.arrow,5,1") == {shard: (5, 1)}


class TestErrors:
    def test_a_file_that_has_gone(self, tmp_path: Path) -> None:
        with pytest.raises(
            FileNotFoundError,
            match=r"x_counts.csv', line 3: row for 'dataset=c4/gone.arrow', which does not exist "
            rf"below '{tmp_path}'; expected the file or no row for it$",
        ):
            read(tmp_path, "dataset=w/y.arrow,5,1", "/dataset=c4/gone.arrow,5,1")

    def test_two_rows(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError,
            match=r"x_counts.csv', line 3: duplicate row for 'dataset=w/y.arrow', the first is "
            r"'.*x_counts.csv', line 2$",
        ):
            read(tmp_path, "dataset=w/y.arrow,5,1", "/dataset=w/y.arrow,5,1")

    @pytest.mark.parametrize(
        ("head", "message"),
        [
            ("dataset/filename,documents", r"has no column 'tokens'; the header is 'dataset/"),
            ("filename,documents,tokens", r"has no column 'dataset/filename'; the header is "),
            (f"{HEAD},tokens", r"has 2 columns 'tokens'; the header is"),
            ("", r"has no column 'dataset/filename'; the header is empty, expected"),
            # Before Python 3.11 the csv module itself refuses a NUL.
            ("\x00\x01\xff", r"(has no column 'dataset/filename'|.* line contains NUL)"),
        ],
    )
    def test_columns(self, head: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=rf"x_counts.csv' {message}"):
            read(tmp_path, head=head)

    def test_an_empty_file(self, tmp_path: Path) -> None:
        write_counts(tmp_path, []).write_bytes(b"")
        with pytest.raises(ValueError, match=r"the header is empty, expected 'dataset/file"):
            counts(tmp_path)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ("-1,5", "`documents` must be in [0, 2^63), got -1"),
            ("1,-5", "`tokens` must be in [0, 2^63), got -5"),
            (f"1,{2**63}", f"`tokens` must be in [0, 2^63), got {2**63}"),
            (f"{'9' * 5000},1", "`documents` must be in [0, 2^63), got 999"),
            ("1,", "`tokens` must be an integer, got ''"),
            ("1.0,2", "`documents` must be an integer, got '1.0'"),
            ("1,many", "`tokens` must be an integer, got 'many'"),
            ("1,1_000", "`tokens` must be an integer, got '1_000'"),
            ("٣,1", "`documents` must be an integer, got '٣'"),
            ("+1,2", "`documents` must be an integer, got '+1'"),
            ("1", "2 fields, expected 3"),
            ("1,2,3", "4 fields, expected 3"),
        ],
    )
    def test_numbers(self, fields: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=rf"x_counts.csv', line \d: {re.escape(message)}"):
            read(tmp_path, "dataset=c4/x.part3.arrow,5,1", f"dataset=w/y.arrow,{fields}")

    def test_what_csv_cannot_hold(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"x_counts.csv' cannot be read as CSV: unexpected"):
            read(tmp_path, 'dataset=w/y.arrow,1,"2')
        with pytest.raises(ValueError, match=r"x_counts.csv' cannot be read as CSV: field larger"):
            read(tmp_path, f"dataset=w/y.arrow,{'x' * 200_000},1")
