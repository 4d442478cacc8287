"""Reading of files in every format, compared with the documents written to them."""

from __future__ import annotations

import itertools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from models import token_model as model
from models.token_model import INTEGERS
from support.corpora import open_file, write_lists

DOCUMENTS = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9], [], [1] * 50]


def write_ipc(path: pathlib.Path, batches: Sequence[Any], compression: str | None = None) -> str:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, batches[0].schema, options=options) as file:
        for batch in batches:
            file.write_batch(batch)
    return str(path)


def batch_of(column: Any) -> Any:
    """Return a record batch with documents in one of several columns."""
    rows = len(column)
    names = ["first", "tokens", "text"]
    return pa.record_batch(
        [pa.nulls(rows, pa.int8()), column, pa.array(["x"] * rows, pa.string())], names
    )


def batches_of(documents: Sequence[Any], kind: Any, cuts: Sequence[int]) -> list[Any]:
    """Return record batches that start at `cuts`, sliced from one array."""
    whole = pa.array([None, *documents], kind)[1:]
    edges = [0, *cuts, len(documents)]
    return [batch_of(whole[a:b]) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_lists_in_arrow_files(tmp_path: pathlib.Path, dtype: str, compression: str | None) -> None:
    for form in (pa.list_, pa.large_list):
        kind = form(pa.type_for_alias(dtype))
        batches = batches_of(DOCUMENTS, kind, [2, 2, 5])
        path = write_ipc(tmp_path / "a.part0.arrow", batches, compression)
        shard = open_file(path)
        model.assert_equals(shard, DOCUMENTS, dtype)
        assert shard.mapped or compression
        assert shard.name == path
    kind = pa.list_(pa.type_for_alias(dtype), 2)
    documents = [[1, 2], [3, 4], None, [5, 6]]
    path = write_ipc(tmp_path / "b.arrow", batches_of(documents, kind, [1]), compression)
    model.assert_equals(open_file(path), [d or [] for d in documents], dtype)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_one_batch_a_document(tmp_path: pathlib.Path, dtype: str, compression: str | None) -> None:
    kind = pa.type_for_alias(dtype)
    empty: list[list[int]] = [[]]
    write_lists(tmp_path / "z.part1.arrow", [[1]])
    for documents in (DOCUMENTS, empty, empty * 2, [[], [1], []]):
        batches = [batch_of(pa.array(document, kind)) for document in documents]
        path = write_ipc(tmp_path / "a.part0.arrow", batches, compression)
        model.assert_equals(open_file(path, "z.part1.arrow"), documents, dtype)


@given(
    documents=st.lists(st.one_of(st.none(), st.lists(st.integers(0, 4), max_size=5)), max_size=9),
    cuts=st.lists(st.integers(0, 9), max_size=3),
    strip=st.lists(st.integers(0, 4), max_size=2),
    min_length=st.integers(0, 3),
    packed=st.booleans(),
)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_documents(
    tmp_path: pathlib.Path,
    documents: list[Any],
    cuts: list[int],
    strip: list[int],
    min_length: int,
    packed: bool,
) -> None:
    cuts = sorted(min(cut, len(documents)) for cut in cuts)
    batches = batches_of(documents, pa.list_(pa.int32()), cuts)
    path = write_ipc(tmp_path / "a.arrow", batches, "zstd" if packed else None)
    write_lists(tmp_path / "z.arrow", [[5] * 3])
    shard = open_file(path, "z.arrow", strip_tokens=strip, min_length=min_length)
    plain = [document or [] for document in documents]
    model.assert_equals(shard, plain, "int32", strip, min_length)


def test_files_without_documents(tmp_path: pathlib.Path) -> None:
    write_lists(tmp_path / "z.arrow", [[1]])
    for kind in (pa.int32(), pa.list_(pa.int32())):
        schema = pa.schema({"tokens": kind})
        path = tmp_path / "a.arrow"
        with pa.ipc.new_file(path, schema):
            pass
        model.assert_equals(open_file(path, "z.arrow"), [], "int32")
    empty = pa.table({"tokens": pa.array([], pa.list_(pa.int32()))})
    parquet.write_table(empty, tmp_path / "a.parquet")
    model.assert_equals(open_file(tmp_path / "a.parquet", "z.arrow"), [], "int32")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_parquet(tmp_path: pathlib.Path, dtype: str) -> None:
    path = tmp_path / "a.parquet"
    for form in (pa.list_, pa.large_list):
        column = pa.array([*DOCUMENTS, None], form(pa.type_for_alias(dtype)))
        table = pa.table({"tokens": column, "tokens.x": pa.array(range(7))})
        parquet.write_table(table, path, row_group_size=2)
        shard = open_file(path, strip_tokens=[1], min_length=2)
        model.assert_equals(shard, [*DOCUMENTS, []], dtype, [1], 2)
        assert not shard.mapped


def test_a_document_of_ten_million_tokens(tmp_path: pathlib.Path) -> None:
    tokens = np.zeros(10**7, np.uint16)
    tokens[3:-2] = np.arange(10**7 - 5) % 50_000 + 1
    for lists in (False, True):
        column = pa.array(tokens)
        if lists:
            column = pa.ListArray.from_arrays(pa.array([0, 10**7], pa.int32()), column)
        path = write_ipc(tmp_path / "a.arrow", [pa.record_batch([column], ["tokens"])])
        shard = open_file(path, strip_tokens=[0])
        assert shard.totals() == (1, 10**7, 1, 10**7 - 5)
        assert np.array_equal(shard.document(0), tokens[3:-2])


def shift(text: str) -> list[int]:
    return [ord(letter) - 97 for letter in text]


@pytest.mark.parametrize("form", ["arrow", "packed", "parquet"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text(tmp_path: pathlib.Path, form: str, kind: Any) -> None:
    texts = ["abc", "", None, "zzyx"] * 700
    table = pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, kind)})
    path = tmp_path / f"a.part0.{'parquet' if form == 'parquet' else 'arrow'}"
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=1000)
    else:
        write_ipc(path, table.to_batches(1001), "lz4" if form == "packed" else None)
    documents = [shift(text or "") for text in texts]
    shard = open_file(path, column="text", tokenizer=shift, strip_tokens=[0], min_length=2)
    model.assert_equals(shard, documents, "int32", [0], 2)
    shard = open_file(path, column="text", tokenizer=str.encode)
    model.assert_equals(shard, [[*(text or "").encode()] for text in texts], "uint8")
    shard = open_file(path, column="text", tokenizer=lambda text: np.array(shift(text), ">u2"))
    model.assert_equals(shard, documents, "uint16")
    shard = open_file(path, column="text", tokenizer=lambda text: [2**31] * len(text))
    assert shard.dtype == "int64"
    assert shard.document(0).tolist() == [2**31] * 3


TOKENIZERS: list[tuple[Any, str]] = [
    (
        lambda text: [0.5],
        r"the tokenizer returned a list for document 1 in column 'text' of '.*', \[0.5",
    ),
    (
        lambda text: None,
        "the tokenizer returned a NoneType for document 1 .*, None; expected a flat",
    ),
    (
        lambda text: "abc",
        "the tokenizer returned a str for document 1 .*, 'abc'; expected a flat seq",
    ),
    (lambda text: [[1]], r"the tokenizer returned a list for document 1 .*, \[\[1\]\]; expected"),
    (lambda text: [[1], [2, 3]], "the tokenizer returned a list for document 1"),
    (lambda text: [True], "the tokenizer returned a list for document 1"),
    (lambda text: [2**70], "the tokenizer returned a list for document 1"),
    (
        lambda text: [2**63] if text == "b" else [-1],
        "the tokenizer returned tokens of several dtypes for column 'text' of '.*', which only fl",
    ),
]


@pytest.mark.parametrize(("tokenizer", "message"), TOKENIZERS)
def test_tokenizers_that_give_no_tokens(
    tmp_path: pathlib.Path, tokenizer: Any, message: str
) -> None:
    path = write_ipc(tmp_path / "a.arrow", [pa.record_batch({"text": [None, "a", "b"]})])
    with pytest.raises(TypeError, match=message):
        open_file(path, column="text", tokenizer=tokenizer)


def test_what_a_tokenizer_raises_is_raised(tmp_path: pathlib.Path) -> None:
    path = write_ipc(tmp_path / "a.arrow", [pa.record_batch({"text": ["a"]})])

    def fails(text: str) -> list[int]:
        raise LookupError(f"no token for {text}")

    with pytest.raises(LookupError, match="no token for a") as caught:
        open_file(path, column="text", tokenizer=fails)
    if sys.version_info >= (3, 11):
        where = f"document 0 in column 'text' of {str(path)!r}"
        assert caught.value.__notes__ == [f"raised by the tokenizer for {where}"]


def test_text_that_is_no_utf_8(tmp_path: pathlib.Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe"], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    path = write_ipc(tmp_path / "a.arrow", [pa.record_batch([column], ["text"])])
    with pytest.raises(ValueError, match=r"a.arrow' cannot be read as Arrow IPC: .*UTF8"):
        open_file(path, column="text", tokenizer=shift)


COLUMNS: list[tuple[str, Any, type[Exception], str]] = [
    ("nokens", None, KeyError, "a.arrow.* has no column .*nokens.*did you mean .*tokens"),
    ("twice", None, ValueError, "a.arrow' has 2 columns named 'twice'; expected one"),
    ("half", None, TypeError, "column 'half' of '.*a.arrow' is double; expected lists of integers"),
    ("codes", None, TypeError, "column 'codes' of '.*a.arrow' is dictionary<.*; expected lists of"),
    (
        "text",
        None,
        TypeError,
        "column 'text' of '.*a.arrow' is string, but no `tokenizer` is given",
    ),
    (
        "tokens",
        shift,
        TypeError,
        "column 'tokens' of '.*a.arrow' is list.*, but a `tokenizer` is given",
    ),
]


@pytest.mark.parametrize(("column", "tokenizer", "error", "message"), COLUMNS)
def test_columns_that_are_not_there_or_of_another_type(
    tmp_path: pathlib.Path, column: str, tokenizer: Any, error: type[Exception], message: str
) -> None:
    columns: dict[str, Any] = {
        "tokens": pa.array([[1]]),
        "half": pa.array([0.5]),
        "codes": pa.array([1]).dictionary_encode(),
        "text": pa.array(["a"]),
    }
    names = [*columns, "twice", "twice"]
    batch = pa.record_batch([*columns.values(), pa.array([1]), pa.array([1])], names)
    path = write_ipc(tmp_path / "a.arrow", [batch])
    with pytest.raises(error, match=message):
        open_file(path, column=column, tokenizer=tokenizer)


def test_null_tokens_name_document_and_file(tmp_path: pathlib.Path) -> None:
    batches = batches_of([[1], [2, None]], pa.list_(pa.int32()), [1])
    for compression in (None, "zstd"):
        path = write_ipc(tmp_path / "a.arrow", batches, compression)
        message = "document 1 in the column of '.*a.arrow' has 1 null tokens, expected none"
        with pytest.raises(ValueError, match=message):
            open_file(path)


def test_files_that_are_no_shards(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.arrow"
    good = pathlib.Path(write_ipc(path, batches_of(DOCUMENTS, pa.list_(pa.int32()), [3])))
    whole = good.read_bytes()
    for content, message in (
        (b"", "a.arrow' is empty"),
        (
            b"hello, world",
            "a.arrow' is neither an Arrow IPC nor a Parquet file: it starts with b'h",
        ),
        (whole[:-1], "a.arrow' is truncated"),
        (whole[: len(whole) // 2], "a.arrow' is truncated"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            open_file(path)
