"""Discovery of shards: selection, numbering, and errors for invalid folders."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.corpora import write_lists, write_parquet
from windeck import Documents


@cache
def contents(suffix: str) -> bytes:
    """Return a shard of one document; nothing for a suffix that no shard has."""
    writers = {".arrow": write_lists, ".parquet": write_parquet}
    if suffix not in writers:
        return b""
    with tempfile.TemporaryDirectory() as folder:
        writers[suffix](Path(folder, "x"), [[1]])
        return Path(folder, "x").read_bytes()


def touch(root: Path, *names: str) -> Path:
    """Create files, shards of one document by their suffix."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents(path.suffix))
    return root


def parts(documents: Documents) -> list[int]:
    """Return the part numbers of all shards."""
    return [documents.shard_name(shard)[1] for shard in range(len(documents.shard_documents))]


def paths(documents: Documents) -> list[str]:
    """Return the paths of all shards, relative to the root."""
    return [
        os.path.relpath(documents.shard_path(shard), documents.root)
        for shard in range(len(documents.shard_documents))
    ]


class TestNumbering:
    def test_datasets_and_parts_in_natural_order(self, tmp_path: Path) -> None:
        names = [f"dataset={d}/x.part{p}.arrow" for d in ("d10", "d2") for p in (10, 3, 0, 100)]
        found = Documents(touch(tmp_path, *names))
        assert found.dataset_ids == ("d2", "d10")
        expected = [(name, part) for name in ("d2", "d10") for part in (0, 3, 10, 100)]
        assert [found.shard_name(shard) for shard in range(8)] == expected
        assert paths(found) == [f"dataset={name}/x.part{part}.arrow" for name, part in expected]
        assert found.shard_path(0) == f"{tmp_path}/dataset=d2/x.part0.arrow"

    def test_folders_in_a_dataset_share_its_numbers(self, tmp_path: Path) -> None:
        names = ("a/b/x.part2.arrow", "z.part1.parquet", "a/part03.arrow", "q/x.y.part0.z.arrow")
        found = Documents(touch(tmp_path, *(f"dataset=c4/{name}" for name in names)))
        assert parts(found) == [0, 1, 2, 3]
        assert [path.removeprefix("dataset=c4/") for path in paths(found)] == [
            *("q/x.y.part0.z.arrow", "z.part1.parquet", "a/b/x.part2.arrow", "a/part03.arrow")
        ]

    def test_files_without_part_numbers_are_numbered_by_their_paths(self, tmp_path: Path) -> None:
        names = [f"dataset=c4/train-{i}-of-12.parquet" for i in (11, 2, 0)]
        found = Documents(touch(tmp_path, *names, "dataset=w/x.part7.arrow"))
        assert parts(found) == [0, 1, 2, 7]
        assert paths(found)[:3] == list(reversed(names))

    def test_duplicate_part_numbers(self, tmp_path: Path) -> None:
        touch(tmp_path, "dataset=c4/a/x.part3.arrow", "dataset=c4/b/x.part03.parquet")
        expected = (
            f"'{tmp_path}/dataset=c4/a/x.part3.arrow' and "
            f"'{tmp_path}/dataset=c4/b/x.part03.parquet' both have part number 3; "
            "expected each number once in a dataset"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
            Documents(tmp_path)

    def test_the_same_number_in_two_datasets_is_fine(self, tmp_path: Path) -> None:
        touch(tmp_path, "dataset=a/x.part3.arrow", "dataset=b/x.part3.arrow")
        assert parts(Documents(tmp_path)) == [3, 3]

    def test_only_some_have_a_part_number(self, tmp_path: Path) -> None:
        touch(tmp_path, "dataset=c4/x.part3.arrow", "dataset=c4/y.arrow")
        with pytest.raises(
            ValueError, match=r"x.part3.arrow' has a part number and '.*y.arrow' has none"
        ):
            Documents(tmp_path)

    def test_part_number_beyond_64_bits(self, tmp_path: Path) -> None:
        touch(tmp_path, f"dataset=c4/x.part{2**63 - 1}.arrow")
        assert parts(Documents(tmp_path)) == [2**63 - 1]
        touch(tmp_path, f"dataset=c4/x.part{2**63}.arrow")
        with pytest.raises(ValueError, match=rf"has part number {2**63}; expected one below 2\^63"):
            Documents(tmp_path)


class TestPartPattern:
    NAMES = tuple(f"dataset=c4/train-{i:05}-of-00012.parquet" for i in (11, 2, 0))

    def test_gives_the_numbers(self, tmp_path: Path) -> None:
        found = Documents(touch(tmp_path, *self.NAMES), part_pattern="-([0-9]+)-of-")
        assert parts(found) == [0, 2, 11]
        assert paths(found) == list(reversed(self.NAMES))

    def test_numbers_are_stable_under_growth(self, tmp_path: Path) -> None:
        before = Documents(touch(tmp_path, *self.NAMES), part_pattern="-([0-9]+)-of-")
        after = Documents(
            touch(tmp_path, "dataset=c4/train-00001-of-00013.parquet"), part_pattern="-([0-9]+)-of-"
        )
        assert parts(after) == [0, 1, 2, 11]
        before.check_growth(after)

    @pytest.mark.parametrize(
        ("pattern", "error", "message"),
        [
            ("(", ValueError, r"`part_pattern` must be a regular expression, got '\(': missing"),
            ("-[0-9]+-", ValueError, r"must have one group, which is the number, got '.*' with 0"),
            ("(a)(b)", ValueError, r"got '\(a\)\(b\)' with 2"),
            (7, TypeError, "must be a regular expression, got 7"),
            ("x([0-9]+)", ValueError, r"matches no name below '.*', such as 'train-00000-of-00012"),
            ("(train)", ValueError, r"gives 'train' for 'dataset=c4/train-00000.*', expected dig"),
            ("-of-([0-9]+)", ValueError, "both have part number 12"),
            ("-(0000[0-9])-", ValueError, r"has a part number and '.*00011-.*' has none"),
        ],
    )
    def test_that_does_not_serve(
        self, pattern: str, error: type[Exception], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(error, match=message):
            Documents(touch(tmp_path, *self.NAMES), part_pattern=pattern)


class TestGrowth:
    """Names of documents contain part numbers, so these must not change."""

    def grown(self, tmp_path: Path, old: list[str], new: list[str]) -> None:
        before = Documents(touch(tmp_path, *(f"dataset=c4/{name}" for name in old)))
        after = Documents(touch(tmp_path, *(f"dataset=c4/{name}" for name in new)))
        before.check_growth(after)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (["a.arrow", "b.arrow"], ["c.arrow"]),
            (["x2.arrow", "x9.arrow"], ["x10.arrow"]),
            (["x.part2.arrow", "x.part9.arrow"], ["x.part3.arrow", "a.part0.arrow"]),
            (["a.arrow"], []),
        ],
    )
    def test_that_renames_nothing(self, old: list[str], new: list[str], tmp_path: Path) -> None:
        self.grown(tmp_path, old, new)

    def test_that_renames_documents_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError,
            match=r"^the corpus cannot grow: \('c4', 1\) is 'dataset=c4/c.arrow' before and "
            r"'dataset=c4/b.arrow' after, because files without part numbers are numbered in the",
        ):
            self.grown(tmp_path, ["a.arrow", "c.arrow"], ["b.arrow"])

    def test_other_datasets_may_come(self, tmp_path: Path) -> None:
        self.grown(tmp_path, ["b.arrow"], ["../dataset=a/a.arrow"])


class TestWhatIsTaken:
    def test_other_hidden_and_unfinished_files_are_left(self, tmp_path: Path) -> None:
        found = Documents(
            touch(
                tmp_path,
                "dataset=c4/x.part0.arrow",
                "dataset=c4/README.md",
                "dataset=c4/.x.part1.arrow",
                "dataset=c4/_x.part2.arrow",
                "dataset=c4/_temporary/x.part3.arrow",
                "dataset=c4/x.part4.arrow.tmp",
                "meta/notes.csv",
                "other/x.part5.arrow",
            )
        )
        assert paths(found) == ["dataset=c4/x.part0.arrow"]
        assert "2 other files ignored" in found.explain()

    def test_patterns_restrict(self, tmp_path: Path) -> None:
        touch(tmp_path, *(f"dataset={d}/{i % 2}/x.part{i}.arrow" for d in "ab" for i in range(12)))
        assert Documents(tmp_path, files=("dataset=b",)).dataset_ids == ("b",)
        few = Documents(
            tmp_path, files=("dataset=*/**/*.part[0-3].arrow", "dataset=a/0/x.part10.arrow")
        )
        assert parts(few) == [0, 1, 2, 3, 10, 0, 1, 2, 3]

    def test_pattern_that_means_nothing(self, tmp_path: Path) -> None:
        touch(tmp_path, "dataset=c4/x.part0.arrow", "dataset=c4/y.csv")
        for pattern in ("dataset=c5", "dataset=c4/*.csv"):
            with pytest.raises(
                FileNotFoundError,
                match=rf"no shard below '{tmp_path}' matches {re.escape(repr(pattern))} of `files`",
            ):
                Documents(tmp_path, files=("dataset=c4/*.arrow", pattern))

    def test_links_are_followed_and_loops_end(self, tmp_path: Path) -> None:
        store = touch(tmp_path / "store", "b.part1.arrow", "deep/c.part2.arrow")
        root = touch(tmp_path / "root", "dataset=c4/a.part0.arrow")
        (root / "dataset=c4" / "more").symlink_to(store)
        (root / "dataset=c4" / "x.part3.arrow").symlink_to(store / "b.part1.arrow")
        (store / "deep" / "up").symlink_to(store)
        (root / "dataset=linked").symlink_to(store)
        found = Documents(root)
        assert parts(found) == [0, 1, 2, 3, 1, 2]
        assert paths(found)[1] == "dataset=c4/more/b.part1.arrow"

    def test_names_that_are_no_utf8(self, tmp_path: Path) -> None:
        touch(tmp_path, os.fsdecode(b"dataset=c4/\xff\xfe.part1.arrow"))
        assert parts(Documents(tmp_path)) == [1]


class TestErrors:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(
            FileNotFoundError, match=rf"the folder '{tmp_path}/gone' does not exist"
        ):
            Documents(tmp_path / "gone")

    def test_a_file(self, tmp_path: Path) -> None:
        touch(tmp_path, "x.part0.arrow")
        with pytest.raises(
            NotADirectoryError, match=rf"Documents\('{tmp_path}', files='x.part0.arrow'\)"
        ):
            Documents(tmp_path / "x.part0.arrow")

    def test_no_dataset_says_what_was_found(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"has no dataset; found nothing, expected"):
            Documents(tmp_path)
        touch(tmp_path, "c4/x.part0.csv", "dataset=file", *(f"n{i}.txt" for i in range(10)))
        expected = (
            f"{str(tmp_path)!r} has no dataset; found 'c4/', 'dataset=file', 'n0.txt', 'n1.txt' "
            "and 8 more, expected folders dataset=NAME with shards *.partN.arrow or "
            "*.partN.parquet"
        )
        with pytest.raises(FileNotFoundError, match=f"^{re.escape(expected)}$"):
            Documents(tmp_path)

    def test_the_dataset_in_place_of_the_root(self, tmp_path: Path) -> None:
        touch(tmp_path, "dataset=c4/x.part0.arrow")
        with pytest.raises(FileNotFoundError, match=rf"or the root '{tmp_path}'$"):
            Documents(tmp_path / "dataset=c4")

    def test_a_dataset_without_shards_says_what_was_found(self, tmp_path: Path) -> None:
        touch(tmp_path, "dataset=c4/x.part0.arrow", "dataset=w/x.csv")
        with pytest.raises(
            FileNotFoundError, match=r"dataset=w' has no shard; found 'dataset=w/x.csv', expected"
        ):
            Documents(tmp_path)
        assert Documents(tmp_path, files=("dataset=c4",)).dataset_ids == ("c4",)

    def test_a_dataset_without_a_name(self, tmp_path: Path) -> None:
        touch(tmp_path, "dataset=/x.part0.arrow")
        with pytest.raises(ValueError, match=r"dataset=' has no name; expected dataset=NAME"):
            Documents(tmp_path)

    def test_a_link_to_nothing(self, tmp_path: Path) -> None:
        touch(tmp_path, "dataset=c4/x.part0.arrow")
        (tmp_path / "dataset=c4" / "x.part1.arrow").symlink_to("gone.arrow")
        with pytest.raises(
            FileNotFoundError, match=r"x.part1.arrow' is a broken link to 'gone.arrow'"
        ):
            Documents(tmp_path)

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        (tmp_path / "dataset=c4").mkdir()
        (tmp_path / "dataset=c4" / "x.part1.arrow").symlink_to("x.part1.arrow")
        with pytest.raises(OSError, match=r"x.part1.arrow"):
            Documents(tmp_path)

    def test_a_pipe_is_refused_and_not_waited_for(self, tmp_path: Path) -> None:
        (tmp_path / "dataset=c4").mkdir()
        os.mkfifo(tmp_path / "dataset=c4" / "x.part1.arrow")
        with pytest.raises(ValueError, match=r"x.part1.arrow' is not a regular file"):
            Documents(tmp_path)

    def test_a_folder_that_may_not_be_read(self, not_root: Path) -> None:
        touch(not_root, "dataset=c4/x.part0.arrow", "dataset=c4/secret/x.part1.arrow")
        (not_root / "dataset=c4" / "secret").chmod(0)
        with pytest.raises(PermissionError, match=r"dataset=c4/secret"):
            Documents(not_root)
        (not_root / "dataset=c4" / "secret").chmod(0o755)


@pytest.fixture
def not_root() -> Iterator[Path]:
    """Create a folder, and drop the privileges of root."""
    with tempfile.TemporaryDirectory() as name:
        user = os.geteuid()
        os.chmod(name, 0o777)
        if user == 0:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)
