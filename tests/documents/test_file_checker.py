"""FileChecker: summaries of valid files, and errors for invalid ones."""

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
from support.corpora import WRITERS, lists, write_batches, write_lists, write_parquet
from support.internals import FileChecker
from windeck._util import run_in_threads

DOCS = [[1, 2, 3], [], [4]]


def size_of(path: Path, column: str = "tokens", *, has_tokenizer: bool = False) -> int:
    """Check a file and return its size."""
    return FileChecker(column, has_tokenizer=has_tokenizer).check(str(path)).size


class TestGoodFiles:
    @pytest.mark.parametrize("docs", [DOCS, [], [[]]])
    @pytest.mark.parametrize("form", WRITERS)
    def test_every_form(self, form: str, docs: list[list[int]], tmp_path: Path) -> None:
        path = tmp_path / "x"
        WRITERS[form][1](path, docs)
        status = path.stat()
        found = FileChecker("tokens", has_tokenizer=False).check(str(path))
        told = len(docs) if form in ("batches", "parquet") else -1
        assert found == (status.st_size, status.st_mtime_ns, told, 2, form == "parquet", 0)

    @pytest.mark.parametrize("metadata", [None, {"note": "x" * 10_000}])
    @pytest.mark.parametrize("count", [0, 1, 7, 5000])
    def test_record_batches_are_counted(
        self, count: int, metadata: dict[str, str] | None, tmp_path: Path
    ) -> None:
        schema = pa.schema([("tokens", pa.int32())], metadata=metadata)
        with ipc.new_file(str(tmp_path / "x"), schema) as writer:
            for i in range(count):
                writer.write_batch(pa.record_batch([pa.array([i] * (i % 3), pa.int32())], schema))
        with pa.memory_map(str(tmp_path / "x")) as source:
            assert ipc.open_file(source).num_record_batches == count
        assert (
            FileChecker("tokens", has_tokenizer=False).check(str(tmp_path / "x")).documents == count
        )

    def test_damaged_footers_are_refused(self, tmp_path: Path) -> None:
        path, rng, outcomes = tmp_path / "x", np.random.default_rng(0), set()
        write_batches(path, DOCS)
        data = path.read_bytes()
        length = int.from_bytes(data[-10:-6], "little")
        for _ in range(500):
            changed = bytearray(data)
            for place in rng.integers(len(data) - 10 - length, len(data) - 10, size=3):
                changed[place] = rng.choice([0, 1, 127, 128, 255])
            path.write_bytes(changed)
            try:
                outcomes.add(FileChecker("tokens", has_tokenizer=False).check(str(path)).documents)
            except ValueError as error:
                outcomes.add(-1 if "x' cannot be read as Arrow IPC: " in str(error) else -2)
        assert {3, -1} <= outcomes
        assert all(-1 <= found <= length // 24 for found in outcomes)

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
    def test_integers_of_every_kind(self, dtype: str, tmp_path: Path) -> None:
        write_lists(tmp_path / "x", DOCS, dtype=dtype)
        write_batches(tmp_path / "y", DOCS, dtype=dtype)
        assert size_of(tmp_path / "x")
        assert size_of(tmp_path / "y")

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
    def test_text(self, kind: Any, tmp_path: Path) -> None:
        table = pa.table({"text": pa.array(["a", None], kind)})
        feather.write_feather(table, tmp_path / "x", compression="uncompressed")
        parquet.write_table(table, tmp_path / "y")
        assert size_of(tmp_path / "x", "text", has_tokenizer=True)
        assert size_of(tmp_path / "y", "text", has_tokenizer=True)

    @pytest.mark.parametrize(
        "kind", [pa.large_list(pa.int32()), pa.list_(pa.int32(), 2), pa.list_(pa.uint8())]
    )
    def test_lists_of_every_kind(self, kind: Any, tmp_path: Path) -> None:
        table = pa.table({"tokens": pa.array([[1, 2], None], kind)})
        feather.write_feather(table, tmp_path / "x", compression="uncompressed")
        assert size_of(tmp_path / "x")

    def test_a_schema_larger_than_a_page(self, tmp_path: Path) -> None:
        table = lists(DOCS).replace_schema_metadata({"note": "x" * 100_000})
        feather.write_feather(table, tmp_path / "x", compression="uncompressed")
        assert size_of(tmp_path / "x")

    def test_files_of_before_arrow_15(self, tmp_path: Path) -> None:
        options = ipc.IpcWriteOptions(use_legacy_format=True)
        with ipc.new_file(str(tmp_path / "x"), lists(DOCS).schema, options=options) as writer:
            writer.write_table(lists(DOCS))
        assert size_of(tmp_path / "x")


class TestEnds:
    @pytest.mark.parametrize("form", WRITERS)
    def test_cut_short_anywhere(self, form: str, tmp_path: Path) -> None:
        path = tmp_path / "x"
        WRITERS[form][1](path, DOCS)
        data = path.read_bytes()
        for size in [*range(1, len(data), 7), len(data) - 1]:
            path.write_bytes(data[:size])
            with pytest.raises(ValueError, match=r"/x' is (truncated|neither)"):
                size_of(path)

    def test_the_words_for_it(self, tmp_path: Path) -> None:
        path = tmp_path / "x.part1.arrow"
        write_lists(path, DOCS)
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(
            ValueError,
            match=r"x.part1.arrow' is truncated: it starts as Arrow IPC and ends with b'.*' after "
            r"200 bytes, expected b'ARROW1'$",
        ):
            size_of(path)

    def test_empty(self, tmp_path: Path) -> None:
        (tmp_path / "x").touch()
        with pytest.raises(ValueError, match=r"x' is empty \(0 bytes\); expected an Arrow IPC or"):
            size_of(tmp_path / "x")

    @pytest.mark.parametrize("data", [b"hello, world\n" * 9, b"PK\3\4", b"\0" * 4096, b"ARROW"])
    def test_foreign(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(
            ValueError,
            match=r"x' is neither an Arrow IPC nor a Parquet file: it starts with "
            + re.escape(repr(data[:8])),
        ):
            size_of(tmp_path / "x")

    def test_a_stream(self, tmp_path: Path) -> None:
        with ipc.new_stream(str(tmp_path / "x"), lists(DOCS).schema) as writer:
            writer.write_table(lists(DOCS))
        assert size_of(tmp_path / "x")
        data = (tmp_path / "x").read_bytes()
        for size in [*range(1, len(data), 7), len(data) - 1]:
            (tmp_path / "x").write_bytes(data[:size])
            with pytest.raises(ValueError, match=r"/x' is (truncated: .* stream|neither)"):
                size_of(tmp_path / "x")

    @pytest.mark.parametrize("length", [0, -5, 10**6, 2**31 - 1])
    @pytest.mark.parametrize(("write", "magic"), [(write_lists, 6), (write_parquet, 4)])
    def test_impossible_footers(
        self, write: Callable[..., None], magic: int, length: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "x"
        write(path, DOCS)
        data = bytearray(path.read_bytes())
        data[-magic - 4 : -magic] = length.to_bytes(4, "little", signed=True)
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"x' cannot .* state a footer length of {length:,}$"):
            size_of(path)

    @pytest.mark.parametrize("length", [0, -1, 3, 10**5, 2**31 - 1])
    def test_impossible_schemas(self, length: int, tmp_path: Path) -> None:
        path = tmp_path / "x"
        write_lists(path, DOCS)
        data = bytearray(path.read_bytes())
        data[12:16] = length.to_bytes(4, "little", signed=True)
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"x' cannot be read as Arrow IPC: "):
            size_of(path)


class TestColumns:
    @pytest.mark.parametrize("write", [write_lists, write_batches, write_parquet])
    def test_missing_names_what_there_is(self, write: Callable[..., None], tmp_path: Path) -> None:
        write(tmp_path / "x", DOCS)
        with pytest.raises(
            KeyError, match=r"x' has no column 'ids'; (did you mean|it has) 'tokens'"
        ):
            size_of(tmp_path / "x", "ids")

    def test_twice(self, tmp_path: Path) -> None:
        column = lists(DOCS)["tokens"]
        table = pa.Table.from_arrays([column, column], names=["tokens", "tokens"])
        feather.write_feather(table, tmp_path / "x", compression="uncompressed")
        parquet.write_table(table, tmp_path / "y")
        for name in "xy":
            with pytest.raises(
                ValueError, match=rf"{name}' has 2 columns named 'tokens'; expected"
            ):
                size_of(tmp_path / name)

    @pytest.mark.parametrize(
        "values", [[1.5], [[1.5]], [["a"]], [[[1]]], [True], [{"a": 1}], [b"bytes"]]
    )
    def test_what_is_no_documents(self, values: list[Any], tmp_path: Path) -> None:
        table = pa.table({"tokens": values})
        feather.write_feather(table, tmp_path / "x", compression="uncompressed")
        parquet.write_table(table, tmp_path / "y")
        kind = re.escape(str(table.schema.field(0).type))
        with pytest.raises(
            TypeError,
            match=rf"column 'tokens' of '.*/x' is {kind}; expected lists of integers, integers, or",
        ):
            size_of(tmp_path / "x")
        with pytest.raises(TypeError, match=r"/y' is .*; expected lists of integers or text$"):
            size_of(tmp_path / "y")

    def test_integers_in_parquet_are_no_documents(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"tokens": [1, 2]}), tmp_path / "y")
        with pytest.raises(TypeError, match=r"is int64; expected lists of integers or text$"):
            size_of(tmp_path / "y")

    def test_text_and_tokenizer_go_together(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"text": ["a"]}), tmp_path / "y")
        write_lists(tmp_path / "x", DOCS)
        with pytest.raises(
            TypeError,
            match=r"column 'text' of '.*/y' is string, but no `tokenizer` is given; expected a tok",
        ):
            size_of(tmp_path / "y", "text")
        with pytest.raises(
            TypeError, match=r"is list<.*uint16>, but a `tokenizer` is given; expected text"
        ):
            size_of(tmp_path / "x", has_tokenizer=True)

    def test_one_good_schema_does_not_vouch_for_another(self, tmp_path: Path) -> None:
        write_lists(tmp_path / "x", DOCS)
        write_lists(tmp_path / "y", DOCS, column="other")
        checker = FileChecker("tokens", has_tokenizer=False)
        assert checker.check(str(tmp_path / "x"))
        with pytest.raises(KeyError, match=r"y' has no column 'tokens'; it has 'other'"):
            checker.check(str(tmp_path / "y"))


def test_damaged_files_do_no_harm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path, outcomes = tmp_path / "x", set()
    for form in WRITERS:
        WRITERS[form][1](path, DOCS)
        data = path.read_bytes()
        for _ in range(300):
            changed = bytearray(data)
            for place in rng.integers(len(data), size=rng.integers(1, 6)):
                changed[place] = rng.integers(256)
            path.write_bytes(changed)
            try:
                size_of(path)
                outcomes.add("fine")
            except (ValueError, TypeError, KeyError, MemoryError) as error:
                outcomes.add("refused" if str(path) in str(error) else str(error))
    assert outcomes == {"fine", "refused"}


def test_a_file_that_may_not_be_read(not_root: Path) -> None:  # noqa: F811
    write_lists(not_root / "x.part1.arrow", DOCS)
    (not_root / "x.part1.arrow").chmod(0)
    with pytest.raises(PermissionError, match=r"x.part1.arrow"):
        size_of(not_root / "x.part1.arrow")


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
