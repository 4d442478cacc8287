"""Checks of files when a corpus is opened: valid ones, and errors for invalid ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc, parquet

from documents.test_discovery import not_root  # noqa: F401
from support.corpora import (
    WRITERS,
    lists,
    write_batches,
    write_counts,
    write_lists,
    write_parquet,
)
from windeck import Documents
from windeck._util import run_in_threads

DOCS = [[1, 2, 3], [], [4]]


def check(path: Path, column: str = "tokens", **options: Any) -> Documents:
    """Open a corpus of one file."""
    return Documents(path.parent, files=path.name, column=column, **options)


class TestGoodFiles:
    @pytest.mark.parametrize("docs", [DOCS, [], [[]]])
    @pytest.mark.parametrize("form", WRITERS)
    def test_every_form(self, form: str, docs: list[list[int]], tmp_path: Path) -> None:
        suffix, write = WRITERS[form]
        write(tmp_path / f"x.{suffix}", docs)
        write(tmp_path / f"y.{suffix}", [[1, 2]])  # A corpus has a token.
        documents = Documents(tmp_path, open_bytes=1)
        assert documents.shard_bytes[0] == (tmp_path / f"x.{suffix}").stat().st_size
        assert documents.shard_documents.tolist() == [len(docs), 1]
        # Files that are decoded take two bytes a token and eight a document.
        decoded = 2 * (sum(map(len, docs)) + 2) + 8 * (len(docs) + 1)
        reopening = documents.explain_reopening()
        if form == "parquet":
            assert f"open_bytes={decoded}" in str(reopening)
        else:
            assert reopening is None

    @pytest.mark.parametrize("metadata", [None, {"note": "x" * 10_000}])
    @pytest.mark.parametrize("count", [0, 1, 7, 5000])
    def test_record_batches_are_counted(
        self, count: int, metadata: dict[str, str] | None, tmp_path: Path
    ) -> None:
        schema = pa.schema([("tokens", pa.int32())], metadata=metadata)
        with ipc.new_file(str(tmp_path / "x.arrow"), schema) as writer:
            for i in range(count):
                writer.write_batch(pa.record_batch([pa.array([i] * (i % 3), pa.int32())], schema))
        with pa.memory_map(str(tmp_path / "x.arrow")) as source:
            assert ipc.open_file(source).num_record_batches == count
        # Other counts of a count file are refused when the corpus is opened.
        write_counts(tmp_path, ["dataset/filename,documents,tokens", f"x.arrow,{count + 1},9"])
        found = rf"x.arrow' has {count:,} documents, expected {count + 1:,} from .*, line 2$"
        with pytest.raises(ValueError, match=found):
            Documents(tmp_path)

    def test_damaged_footers_are_refused(self, tmp_path: Path) -> None:
        path, rng = tmp_path / "x.arrow", np.random.default_rng(0)
        outcomes, unreadable = set(), 0
        write_batches(path, DOCS)
        data = path.read_bytes()
        length = int.from_bytes(data[-10:-6], "little")
        for _ in range(300):
            changed = bytearray(data)
            for place in rng.integers(len(data) - 10 - length, len(data) - 10, size=3):
                changed[place] = rng.choice([0, 1, 127, 128, 255])
            path.write_bytes(changed)
            try:
                outcomes.add(len(check(path, threads=1)))
            except (ValueError, KeyError, TypeError) as error:
                outcomes.add(-1 if str(tmp_path) in str(error) else -2)
                unreadable += "x.arrow' cannot be read as Arrow IPC: " in str(error)
        assert {3, -1} <= outcomes
        assert unreadable > 30
        assert all(-1 <= found <= length // 24 for found in outcomes)

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
    def test_integers_of_every_kind(self, dtype: str, tmp_path: Path) -> None:
        write_lists(tmp_path / "x.arrow", DOCS, dtype=dtype)
        write_batches(tmp_path / "y.parquet", DOCS, dtype=dtype)
        assert check(tmp_path / "x.arrow")
        assert check(tmp_path / "y.parquet")

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
    def test_text(self, kind: Any, tmp_path: Path) -> None:
        table = pa.table({"text": pa.array(["a", None], kind)})
        feather.write_feather(table, tmp_path / "x.arrow", compression="uncompressed")
        parquet.write_table(table, tmp_path / "y.parquet")
        assert check(tmp_path / "x.arrow", "text", tokenizer=str.encode)
        assert check(tmp_path / "y.parquet", "text", tokenizer=str.encode)

    @pytest.mark.parametrize(
        "kind", [pa.large_list(pa.int32()), pa.list_(pa.int32(), 2), pa.list_(pa.uint8())]
    )
    def test_lists_of_every_kind(self, kind: Any, tmp_path: Path) -> None:
        table = pa.table({"tokens": pa.array([[1, 2], None], kind)})
        feather.write_feather(table, tmp_path / "x.arrow", compression="uncompressed")
        assert check(tmp_path / "x.arrow")

    def test_a_schema_larger_than_a_page(self, tmp_path: Path) -> None:
        table = lists(DOCS).replace_schema_metadata({"note": "x" * 100_000})
        feather.write_feather(table, tmp_path / "x.arrow", compression="uncompressed")
        assert check(tmp_path / "x.arrow")

    def test_files_of_before_arrow_15(self, tmp_path: Path) -> None:
        options = ipc.IpcWriteOptions(use_legacy_format=True)
        with ipc.new_file(str(tmp_path / "x.arrow"), lists(DOCS).schema, options=options) as writer:
            writer.write_table(lists(DOCS))
        assert check(tmp_path / "x.arrow")


class TestEnds:
    @pytest.mark.parametrize("form", WRITERS)
    def test_cut_short_anywhere(self, form: str, tmp_path: Path) -> None:
        path = tmp_path / "x.arrow"
        WRITERS[form][1](path, DOCS)
        data = path.read_bytes()
        for size in [*range(1, len(data), 7), len(data) - 1]:
            path.write_bytes(data[:size])
            with pytest.raises(ValueError, match=r"/x.arrow' is (truncated|neither)"):
                check(path)

    def test_the_words_for_it(self, tmp_path: Path) -> None:
        path = tmp_path / "x.part1.arrow"
        write_lists(path, DOCS)
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(
            ValueError,
            match=r"x.part1.arrow' is truncated: it starts as Arrow IPC and ends with b'.*' after "
            r"200 bytes, expected b'ARROW1'$",
        ):
            check(path)

    def test_empty(self, tmp_path: Path) -> None:
        (tmp_path / "x.arrow").touch()
        with pytest.raises(
            ValueError, match=r"x.arrow' is empty \(0 bytes\); expected an Arrow IP"
        ):
            check(tmp_path / "x.arrow")

    @pytest.mark.parametrize("data", [b"hello, world\n" * 9, b"PK\3\4", b"\0" * 4096, b"ARROW"])
    def test_foreign(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "x.arrow").write_bytes(data)
        with pytest.raises(
            ValueError,
            match=r"x.arrow' is neither an Arrow IPC nor a Parquet file: it starts with "
            + re.escape(repr(data[:8])),
        ):
            check(tmp_path / "x.arrow")

    def test_a_stream(self, tmp_path: Path) -> None:
        with ipc.new_stream(str(tmp_path / "x.arrow"), lists(DOCS).schema) as writer:
            writer.write_table(lists(DOCS))
        assert check(tmp_path / "x.arrow")
        data = (tmp_path / "x.arrow").read_bytes()
        for size in [*range(1, len(data), 7), len(data) - 1]:
            (tmp_path / "x.arrow").write_bytes(data[:size])
            with pytest.raises(ValueError, match=r"/x.arrow' is (truncated: .* stream|neither)"):
                check(tmp_path / "x.arrow")

    @pytest.mark.parametrize("length", [0, -5, 10**6, 2**31 - 1])
    @pytest.mark.parametrize(("write", "magic"), [(write_lists, 6), (write_parquet, 4)])
    def test_impossible_footers(
        self, write: Callable[..., None], magic: int, length: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "x.arrow"
        write(path, DOCS)
        data = bytearray(path.read_bytes())
        data[-magic - 4 : -magic] = length.to_bytes(4, "little", signed=True)
        path.write_bytes(data)
        message = rf"x.arrow' cannot .* state a footer length of {length:,}$"
        with pytest.raises(ValueError, match=message):
            check(path)

    @pytest.mark.parametrize("length", [0, -1, 3, 10**5, 2**31 - 1])
    def test_impossible_schemas(self, length: int, tmp_path: Path) -> None:
        path = tmp_path / "x.arrow"
        write_lists(path, DOCS)
        data = bytearray(path.read_bytes())
        data[12:16] = length.to_bytes(4, "little", signed=True)
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"x.arrow' cannot be read as Arrow IPC: "):
            check(path)


class TestColumns:
    @pytest.mark.parametrize("write", [write_lists, write_batches, write_parquet])
    def test_missing_names_what_there_is(self, write: Callable[..., None], tmp_path: Path) -> None:
        write(tmp_path / "x.arrow", DOCS)
        with pytest.raises(
            KeyError, match=r"x.arrow' has no column 'ids'; (did you mean|it has) 'tokens'"
        ):
            check(tmp_path / "x.arrow", "ids")

    def test_twice(self, tmp_path: Path) -> None:
        column = lists(DOCS)["tokens"]
        table = pa.Table.from_arrays([column, column], names=["tokens", "tokens"])
        feather.write_feather(table, tmp_path / "x.arrow", compression="uncompressed")
        parquet.write_table(table, tmp_path / "y.parquet")
        for name in ("x.arrow", "y.parquet"):
            with pytest.raises(
                ValueError, match=rf"{name}' has 2 columns named 'tokens'; expected"
            ):
                check(tmp_path / name)

    @pytest.mark.parametrize(
        "values", [[1.5], [[1.5]], [["a"]], [[[1]]], [True], [{"a": 1}], [b"bytes"]]
    )
    def test_what_is_no_documents(self, values: list[Any], tmp_path: Path) -> None:
        table = pa.table({"tokens": values})
        feather.write_feather(table, tmp_path / "x.arrow", compression="uncompressed")
        parquet.write_table(table, tmp_path / "y.parquet")
        kind = re.escape(str(table.schema.field(0).type))
        with pytest.raises(
            TypeError,
            match=rf"column 'tokens' of '.*/x.arrow' is {kind}; expected lists of integers, integ",
        ):
            check(tmp_path / "x.arrow")
        with pytest.raises(TypeError, match=r"/y.parquet' is .*; expected lists of integers or te"):
            check(tmp_path / "y.parquet")

    def test_integers_in_parquet_are_no_documents(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"tokens": [1, 2]}), tmp_path / "y.parquet")
        with pytest.raises(TypeError, match=r"is int64; expected lists of integers or text$"):
            check(tmp_path / "y.parquet")

    def test_text_and_tokenizer_go_together(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"text": ["a"]}), tmp_path / "y.parquet")
        write_lists(tmp_path / "x.arrow", DOCS)
        with pytest.raises(
            TypeError,
            match=r"column 'text' of '.*/y.parquet' is string, but no `tokenizer` is given; ex",
        ):
            check(tmp_path / "y.parquet", "text")
        with pytest.raises(
            TypeError, match=r"is list<.*uint16>, but a `tokenizer` is given; expected text"
        ):
            check(tmp_path / "x.arrow", tokenizer=str.encode)

    def test_one_good_schema_does_not_vouch_for_another(self, tmp_path: Path) -> None:
        write_lists(tmp_path / "x.arrow", DOCS)
        assert check(tmp_path / "x.arrow")
        write_lists(tmp_path / "y.arrow", DOCS, column="other")
        with pytest.raises(KeyError, match=r"y.arrow' has no column 'tokens'; it has 'other'"):
            Documents(tmp_path, threads=1)


def test_a_file_that_may_not_be_read(not_root: Path) -> None:  # noqa: F811
    write_lists(not_root / "x.part1.arrow", DOCS)
    (not_root / "x.part1.arrow").chmod(0)
    with pytest.raises(PermissionError, match=r"x.part1.arrow"):
        check(not_root / "x.part1.arrow")


class TestThreads:
    @pytest.mark.parametrize("threads", [None, 1, 2, 7])
    @pytest.mark.parametrize("portion", [1, 3, 64])
    def test_results_come_in_order_and_progress_adds_up(
        self, threads: int | None, portion: int
    ) -> None:
        for count in (0, 1, 5, 200):
            told: list[int] = []
            found = run_in_threads(lambda i: i * i, count, threads, told.append, portion=portion)
            assert found == [i * i for i in range(count)]
            assert sum(told) == count

    def test_the_first_error_is_raised_and_the_rest_left(self) -> None:
        done = []

        def work(item: int) -> int:
            if item in (5, 900):
                raise ValueError(f"number {item}")
            done.append(item)
            return item

        with pytest.raises(ValueError, match=r"^number 5$"):
            run_in_threads(work, 100_000, 3, portion=1)
        assert len(done) < 10
