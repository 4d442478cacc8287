"""Tokenizers that take batches of texts: the same tokens as one text at a time, in few calls."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from support.corpora import open_file
from support.internals import plant
from windeck import Documents

TEXTS: list[str | None] = ["the cat", "", None, "cat the unknown the", "the"] * 300 + [None]
WORDS = {"[UNK]": 0, "the": 1, "cat": 2, "<s>": 3, "</s>": 4}


class Batches:
    """An object with encode_batch, which records its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        self.calls.append(len(texts))
        return [[WORDS.get(word, 0) for word in text.split()] for text in texts]


def fast() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return made


def framing() -> Any:
    """A tokenizer that adds special tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    made = fast()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 3), ("</s>", 4)]
    )
    return made


def of_transformers(tokenizer: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def write_texts(root: Path, shards: int = 3) -> Path:
    (root / "dataset=c4").mkdir()
    for part in range(shards):
        table = pa.table({"text": pa.array(TEXTS[part:], pa.string())})
        parquet.write_table(table, root / f"dataset=c4/x.part{part}.parquet")
    return root


MODEL = Batches()
EXPECTED = [MODEL.encode_batch([text or ""])[0] for text in TEXTS]


def check(tokenizer: Any, root: Path, expected: list[list[int]] = EXPECTED) -> None:
    documents = Documents(root, column="text", tokenizer=tokenizer)
    found = [tokens.tolist() for tokens in documents]
    assert found == [one for part in range(3) for one in expected[part:]]
    documents.verify()
    copied = pickle.loads(pickle.dumps(documents))
    assert copied[3].tolist() == expected[3]


def test_an_object_with_encode_batch(tmp_path: Path) -> None:
    tokenizer = Batches()
    check(tokenizer, write_texts(tmp_path))
    assert max(tokenizer.calls) > 700


def test_tokenizers(tmp_path: Path) -> None:
    check(fast(), write_texts(tmp_path))


def test_special_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    root = write_texts(tmp_path)
    expected = [[] if text is None else framing().encode(text).ids for text in TEXTS[:5]] * 300 + [
        []
    ]
    assert expected[:2] == [[3, 1, 2, 4], [3, 4]]
    check(framing(), root, expected)
    check(of_transformers(framing()), root, expected)


def test_transformers(tmp_path: Path) -> None:
    root = write_texts(tmp_path)
    tokenizer = of_transformers(fast())
    check(tokenizer, root)
    # Set to cut and pad by an earlier call; the documents are whole.
    tokenizer.pad_token = "[UNK]"
    tokenizer(["the cat", "the"], truncation=True, max_length=1, padding="max_length")
    check(tokenizer, root)


def test_one_vocabulary_has_one_name(tmp_path: Path) -> None:
    """States move between a tokenizer and its wrapper, and hold no path."""
    root = write_texts(tmp_path, shards=1)

    def tokenizer_name(tokenizer: Any) -> str:
        documents = Documents(root, column="text", tokenizer=tokenizer)
        return str(documents.fingerprint["tokenizer"])

    wrapped = of_transformers(fast())
    wrapped.name_or_path = "/home/me/model"
    assert tokenizer_name(wrapped) == tokenizer_name(fast())
    assert tokenizer_name(fast()).startswith("tokenizer of 5 #")
    assert tokenizer_name(framing()) != tokenizer_name(fast())
    assert tokenizer_name(Batches()).startswith("tokenizer of 0 #")
    assert "Batches" not in tokenizer_name(Batches())


@pytest.mark.parametrize("setting", ["truncation", "padding"])
def test_a_tokenizer_that_would_cut_or_pad_is_refused(setting: str, tmp_path: Path) -> None:
    tokenizer = fast()
    if setting == "truncation":
        tokenizer.enable_truncation(3)
    else:
        tokenizer.enable_padding()
    with pytest.raises(ValueError, match=rf"is set to {setting}, .* after no_{setting}\(\)$"):
        Documents(write_texts(tmp_path), column="text", tokenizer=tokenizer)


def test_each_text_is_tokenized_once_if_tokens_fit(tmp_path: Path) -> None:
    calls: list[str] = []

    def encode(text: str) -> list[int]:
        calls.append(text)
        return MODEL.encode_batch([text])[0]

    root = write_texts(tmp_path)
    texts = [text for part in range(3) for text in TEXTS[part:] if text is not None]
    documents = Documents(root, column="text", tokenizer=encode)
    assert len(list(documents)) == len(documents)
    assert sorted(calls[: len(texts)]) == sorted(texts)
    assert len(calls) == len(texts)
    calls.clear()
    few = Documents(root, column="text", tokenizer=encode, open_bytes=1, threads=1)
    before = len(calls)
    assert [tokens.tolist() for tokens in few] == [tokens.tolist() for tokens in documents]
    assert len(calls) - before == len(texts)


def test_cached_counts_are_not_tokenized_again(tmp_path: Path) -> None:
    root, tokenizer = write_texts(tmp_path), Batches()
    Documents(root, column="text", tokenizer=tokenizer, cache=True)
    tokenizer.calls.clear()
    Documents(root, column="text", tokenizer=tokenizer, cache=True)
    assert tokenizer.calls == [1]  # the text of the fingerprint


def write_column(path: Path, texts: list[str | None], chunk: int) -> Path:
    """Write texts to an Arrow file of record batches, and another text beside it."""
    for file, column in ((path, texts), (path.with_name("z.arrow"), ["the"])):
        table = pa.table({"text": pa.array(column, pa.string())})
        feather.write_feather(table, file, "uncompressed", chunksize=chunk)
    return path


@pytest.mark.parametrize("chunk", [1, 7, 5000])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 1501])
def test_batches_of_any_size(
    count: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_column(tmp_path / "a.arrow", TEXTS[:count], chunk)
    for characters in (1, 20, 10**6):
        plant(monkeypatch, "tokenization._BATCH_CHARACTERS", characters)
        shard = open_file(path, "z.arrow", column="text", tokenizer=Batches())
        assert [shard.document(number).tolist() for number in range(count)] == EXPECTED[:count]
        assert shard.dtype == "int32"
        assert len(shard) == count


def test_batches_are_bounded_in_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "tokenization._BATCH_CHARACTERS", 100)
    tokenizer = Batches()
    path = write_column(tmp_path / "a.arrow", ["x" * 30] * 40, 40)
    open_file(path, column="text", tokenizer=tokenizer)
    assert tokenizer.calls == [4] * 10


class TestErrors:
    def opened(self, folder: Path, found: Any, texts: list[str | None]) -> None:
        """Open texts with a tokenizer that returns `found`, or raises it."""

        class Failing:
            def encode_batch(self, texts: list[str]) -> Any:
                if isinstance(found, Exception):
                    raise found
                return found

        path = write_column(folder / "a.arrow", texts, 3)
        open_file(path, column="text", tokenizer=Failing())

    def test_a_batch_of_another_length(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError,
            match=r"returned 1 documents for 2 texts of documents 0 to 2 in column 'text' of '.*",
        ):
            self.opened(tmp_path, [[1]], ["a", None, "b"])

    def test_tokens_of_another_kind_name_the_document(self, tmp_path: Path) -> None:
        message = r"returned a list for document 2 in column 'text' of '.*a.arrow', \['"
        with pytest.raises(TypeError, match=message):
            self.opened(tmp_path, [[1], ["b"]], ["a", None, "b"])

    def test_errors_name_the_batch(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="no more") as caught:
            self.opened(tmp_path, RuntimeError("no more"), ["a", "b"])
        notes = getattr(caught.value, "__notes__", ["raised by the tokenizer for documents 0 to 1"])
        assert notes[0].startswith("raised by the tokenizer for documents 0 to 1")
