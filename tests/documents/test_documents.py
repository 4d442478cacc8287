"""Documents of files in every format, compared with plain lists."""

from __future__ import annotations

import bisect
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from support.corpora import (
    EVERY,
    ORDER,
    SHARDS,
    WRITERS,
    Docs,
    write_batches,
    write_corpus,
    write_counts,
    write_lists,
)
from windeck import Documents
from windeck.documents import Corpus

NAMES = [
    (name.split("/")[0], int(name.split(".part")[1]), doc)
    for name in ORDER
    for doc in range(len(SHARDS[name]))
]


def as_lists(documents: Documents) -> list[list[int]]:
    """Return all documents as lists."""
    return [tokens.tolist() for tokens in documents]


@pytest.fixture
def corpus(tmp_path: Path) -> Documents:
    """Write the corpus `SHARDS` as list columns."""
    return Documents(write_corpus(tmp_path, SHARDS))


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("form", WRITERS)
def test_every_form_holds_the_same(form: str, counts: bool, tmp_path: Path) -> None:
    documents = Documents(write_corpus(tmp_path, SHARDS, form=form, counts=counts))
    assert documents.dataset_ids == ("c4", "wiki")
    assert len(documents) == len(EVERY) == 8
    assert as_lists(documents) == EVERY
    assert documents[0].dtype == np.uint16
    assert [documents.locate(i) for i in range(8)] == NAMES
    assert documents.shard_documents.tolist() == [4, 0, 2, 2]
    assert documents.shard_kept.tolist() == [4, 0, 2, 2]
    assert documents.shard_tokens.tolist() == [6, 0, 5, 3]
    documents.verify()


def test_forms_may_mix_in_a_dataset(tmp_path: Path) -> None:
    docs = [[[i, i + 1], [], [i]] for i in range(12)]
    for part, (form, three) in enumerate(zip(itertools.cycle(WRITERS), docs, strict=False)):
        write_corpus(tmp_path, {f"c4/{form}.part{part}": three}, form=form)
    assert as_lists(Documents(tmp_path)) == [doc for three in docs for doc in three]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_dtypes_are_kept(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "dataset=c4").mkdir()
    info = np.iinfo(dtype)
    docs = [[info.min, info.max], [1, 2, 3]]
    write_lists(tmp_path / "dataset=c4" / "x.part0.arrow", docs, dtype=dtype)
    write_batches(tmp_path / "dataset=c4" / "x.part1.arrow", docs, dtype=dtype)
    documents = Documents(tmp_path)
    assert as_lists(documents) == docs * 2
    assert {tokens.dtype for tokens in documents} == {np.dtype(dtype)}


def test_a_document_is_ones_own_copy(corpus: Documents) -> None:
    corpus[0][:] = 0
    assert corpus[0].tolist() == [1, 2, 3]


def test_another_column(tmp_path: Path) -> None:
    (tmp_path / "dataset=c4").mkdir()
    table = pa.table({"id": ["a", "b"], "input_ids": [[1, 2], [3]], "note": [None, None]})
    feather.write_feather(table, tmp_path / "dataset=c4" / "x.part0.arrow")
    assert as_lists(Documents(tmp_path, column="input_ids")) == [[1, 2], [3]]


class TestText:
    TEXTS = ("héllo", "", "a b c", "日本")

    def write(self, root: Path, *, arrow: bool = False) -> Path:
        """Write one shard of text with a null at its end."""
        (root / "dataset=c4").mkdir()
        table = pa.table({"text": [*self.TEXTS, None]})
        if arrow:
            feather.write_feather(table, root / "dataset=c4" / "x.part0.arrow")
        else:
            parquet.write_table(table, root / "dataset=c4" / "x.part0.parquet", row_group_size=2)
        return root

    @pytest.mark.parametrize("arrow", [False, True])
    def test_bytes(self, arrow: bool, tmp_path: Path) -> None:
        root = self.write(tmp_path, arrow=arrow)
        documents = Documents(root, column="text", tokenizer=str.encode)
        assert as_lists(documents) == [*(list(text.encode()) for text in self.TEXTS), []]
        assert documents.shard_tokens.tolist() == [sum(len(t.encode()) for t in self.TEXTS)]
        documents.verify()

    def test_any_function_that_gives_integers(self, tmp_path: Path) -> None:
        root = self.write(tmp_path)
        for tokenizer in (
            lambda text: [ord(c) for c in text],
            lambda text: np.array([ord(c) for c in text], dtype=np.int64),
        ):
            documents = Documents(root, column="text", tokenizer=tokenizer)
            assert as_lists(documents) == [*([ord(c) for c in text] for text in self.TEXTS), []]

    def test_filters_see_tokens(self, tmp_path: Path) -> None:
        documents = Documents(
            self.write(tmp_path),
            column="text",
            tokenizer=str.encode,
            min_length=6,
            strip_tokens=[ord("h")],
        )
        assert documents.shard_kept.tolist() == [1]
        assert as_lists(documents) == [[], [], [], list("日本".encode()), []]


class TestFilters:
    DOCS: Docs = ([0, 0], [0, 1, 0, 2, 9], [], [5], [9, 0, 9], [1, 2, 3], [9, 4, 4, 4, 4, 0])

    @pytest.mark.parametrize("form", WRITERS)
    @pytest.mark.parametrize("strip", [(), (0,), (9, 0)])
    @pytest.mark.parametrize("min_length", [0, 1, 2, 4])
    def test_against_plain_lists(
        self, form: str, strip: tuple[int, ...], min_length: int, tmp_path: Path
    ) -> None:
        root = write_corpus(
            tmp_path, {"c4/x.part0": self.DOCS, "c4/x.part1": self.DOCS[:2]}, form=form, counts=True
        )
        documents = Documents(root, min_length=min_length, strip_tokens=strip)
        expected = []
        for doc in (*self.DOCS, *self.DOCS[:2]):
            left = list(doc)
            while left and left[0] in strip:
                left.pop(0)
            while left and left[-1] in strip:
                left.pop()
            expected.append(left if len(left) >= min_length else None)
        assert as_lists(documents) == [left or [] for left in expected]
        assert len(documents) == 9
        shards = expected[:7], expected[7:]
        assert documents.shard_kept.tolist() == [
            sum(left is not None for left in shard) for shard in shards
        ]
        assert documents.shard_tokens.tolist() == [
            sum(len(left or []) for left in shard) for shard in shards
        ]

    def test_said_in_words(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, {"c4/x.part0": self.DOCS}, counts=True)
        documents = Documents(root, min_length=3, strip_tokens=[0, 9])
        said = documents.explain()
        kept, tokens = int(documents.shard_kept.sum()), int(documents.shard_tokens.sum())
        counted = f"{kept} documents, {tokens} tokens"
        assert len(documents) == kept + 4
        assert said.startswith(f"1 dataset, 1 shard, {counted}, ")
        assert f"\n  c4: 1 shard, {counted}, " in said
        assert repr(documents) == f"<Documents: 1 dataset, 1 shard, {counted}>"
        assert (
            "4 documents and 10 tokens filtered (2 token ids stripped at both ends, fewer than 3 "
            "tokens)\ncounts of 1 shard from the shards" in said
        )


class TestLocate:
    def test_many_at_once_against_bisect(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        shards = {
            f"d{d}/x.part{part}": [[1]] * int(rng.integers(0, 9))
            for d in range(3)
            for part in (5, 7, 100)
        }
        documents = Documents(write_corpus(tmp_path, shards, counts=True))
        sizes = list(map(len, shards.values()))
        starts = [0, *itertools.accumulate(sizes)]
        asked = rng.integers(len(documents), size=500)
        dataset, part, within = documents.locate(asked)
        for i, d, p, j in zip(asked.tolist(), dataset, part, within, strict=True):
            shard = bisect.bisect_right(starts, i) - 1
            assert (d, p, j) == (shard // 3, (5, 7, 100)[shard % 3], i - starts[shard])
            name = (f"d{d}", int(p), int(j))
            assert documents.locate(i) == name
            assert documents.index(name) == i
        assert documents.index((dataset, part, within)).tolist() == asked.tolist()

    def test_trillions_of_documents(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS)
        each, tokens = 2**40 + 7, 2**60
        names = [f"dataset={name}.arrow,{each},{tokens}" for name in SHARDS]
        write_counts(root, ["dataset/filename,documents,tokens", *names])
        documents = Documents(root)  # No shard has been opened yet.
        assert len(documents) == 4 * each
        assert sum(documents.shard_tokens.tolist()) == 4 * tokens
        for i in (0, each - 1, each, 3 * each + 5, 4 * each - 1):
            dataset, part, within = documents.locate(i)
            shard = documents.shard_index(dataset, part)
            assert shard * each + within == i
            assert documents.index((dataset, part, within)) == i
        asked = np.random.default_rng(0).integers(len(documents), size=300_000)
        found = documents.locate(asked)
        np.testing.assert_array_equal(found[0], np.array([0, 0, 0, 1])[asked // each])
        np.testing.assert_array_equal(found[1], np.array([3, 4, 10, 0])[asked // each])
        np.testing.assert_array_equal(found[2], asked % each)
        np.testing.assert_array_equal(documents.index(found), asked)
        c4 = Documents(root, files="dataset=c4")
        asked %= len(c4)
        found = c4.locate(asked)
        assert not found[0].any()
        np.testing.assert_array_equal(c4.index(found), asked)

    def test_forms_of_the_arguments(self, corpus: Documents) -> None:
        assert corpus.locate(np.int64(5)) == ("c4", 10, 1)
        assert [array.tolist() for array in corpus.locate([5, 0])] == [[0, 0], [10, 3], [1, 0]]
        assert [array.dtype for array in corpus.locate(np.array([], dtype=np.int64))] == ["i8"] * 3
        assert corpus.index((0, 10, np.int8(1))) == 5
        assert corpus.index((["wiki", "c4"], [0, 10], [1, 1])).tolist() == [7, 5]
        assert corpus.index((np.array(["c4"]), 3, np.arange(4))).tolist() == [0, 1, 2, 3]
        assert corpus.index(([], [], [])).tolist() == []
        assert corpus[-1].tolist() == [9]

    @pytest.mark.parametrize("number", [8, -1, 2**62])
    def test_numbers_out_of_range(self, number: int, corpus: Documents) -> None:
        with pytest.raises(IndexError, match=rf"document {number}"):
            corpus.locate(number)
        with pytest.raises(IndexError, match=rf"document {number}"):
            corpus.locate(np.array([0, number]))
        with pytest.raises(IndexError, match=r"document"):
            corpus[8 if number == -1 else number]

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            (("c5", 3, 0), KeyError, "there is no dataset 'c5'; expected 'c4', 'wiki'"),
            (("c4", 5, 0), KeyError, "dataset 'c4' has no shard 5; it has 3, from 3 to 10"),
            (("wiki", 3, 0), KeyError, "dataset 'wiki' has no shard 3; it has 1, from 0 to 0"),
            (("c4", -1, 0), KeyError, "dataset 'c4' has no shard -1"),
            (("c4", 2**62, 0), KeyError, "dataset 'c4' has no shard"),
            ((2, 3, 0), IndexError, "dataset 2 is out of range for 2 datasets"),
            (
                ("c4", 3, 4),
                IndexError,
                "document 4 is out of range for the 4 documents of 'dataset=c4/x.part3.arrow'",
            ),
            (
                ("c4", 4, 0),
                IndexError,
                "document 0 is out of range for the 0 documents of 'dataset=c4/x.part4",
            ),
            (("c4", 3, -1), IndexError, "document -1 is out of range for the 4"),
            (
                ("c4", 3),
                TypeError,
                "`document` must be .dataset_id, shard_id, doc_id., got .'c4', 3",
            ),
            (7, TypeError, "`document` must be .*, got 7"),
            (("c4", 3.0, 0), TypeError, "`shard_id` must be integers, got dtype float64"),
            (("c4", 3, "0"), TypeError, "`doc_id` must be integers, got dtype <U1"),
            ((1.5, 3, 0), TypeError, "`dataset_id` must be names or integers, got dtype float64"),
        ],
    )
    def test_names_of_nothing(
        self, name: Any, error: type[Exception], message: str, corpus: Documents
    ) -> None:
        with pytest.raises(error, match=message):
            corpus.index(name)
        if len(name if isinstance(name, tuple) else ()) == 3:
            with pytest.raises(error, match=message):
                corpus.index(tuple([part] for part in name))  # type: ignore[arg-type]

    def test_names_of_shards(self, corpus: Documents) -> None:
        names = [("c4", 3), ("c4", 4), ("c4", 10), ("wiki", 0)]
        assert [corpus.shard_name(shard) for shard in range(4)] == names
        assert [corpus.shard_index(*name) for name in names] == [0, 1, 2, 3]
        with pytest.raises(KeyError, match=r"dataset 'c4' has no shard 7; it has 3, from 3 to 10"):
            corpus.shard_index("c4", 7)
        with pytest.raises(KeyError, match=r"there is no dataset 'x'; expected 'c4', 'wiki'"):
            corpus.shard_index("x", 7)
        for call in (corpus.shard_name, corpus.open):
            with pytest.raises(IndexError, match=r"shard 4"):
                call(4)


def test_a_document_of_ten_million_tokens(tmp_path: Path) -> None:
    tokens = np.arange(10_000_000, dtype=np.uint32)
    for form, column in (
        ("lists", pa.LargeListArray.from_arrays(np.array([0, 1, 10_000_000, 10_000_000]), tokens)),
        ("values", pa.array(tokens)),
    ):
        root = tmp_path / form
        (root / "dataset=c4").mkdir(parents=True)
        path = root / "dataset=c4" / "x.part0.arrow"
        table = pa.table({"tokens": column})
        feather.write_feather(table, path, compression="uncompressed", chunksize=max(len(table), 1))
        documents = Documents(root)
        assert documents.shard_tokens.tolist() == [10_000_000]
        longest = 1 if form == "lists" else 0
        np.testing.assert_array_equal(documents[longest], tokens[longest:])


class TestProcesses:
    def test_pickles_and_opens_anew(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_corpus(tmp_path, SHARDS)
        monkeypatch.chdir(tmp_path)
        documents = Documents(".", open_files=2)
        assert as_lists(documents) == EVERY
        data = pickle.dumps(documents)
        monkeypatch.chdir("/")
        again = pickle.loads(data)
        assert as_lists(again) == EVERY
        assert again.locate(5) == ("c4", 10, 1)
        assert again.fingerprint == documents.fingerprint
        assert repr(again) == repr(documents)

    def test_a_pickle_does_not_grow_with_documents(self, tmp_path: Path) -> None:
        few = Documents(write_corpus(tmp_path / "a", {"c4/x.part0": [[1] * 10]}))
        many = Documents(write_corpus(tmp_path / "b", {"c4/x.part0": [[1] * 10] * 20_000}))
        assert as_lists(many)[19_999] == [1] * 10
        assert abs(len(pickle.dumps(many)) - len(pickle.dumps(few))) < 20


class TestWords:
    def test_explain(self, tmp_path: Path) -> None:
        root = write_corpus(tmp_path, SHARDS, counts=True)
        (root / "dataset=c4" / "README.md").touch()
        said = Documents(root).explain().split("\n")
        assert said[0].startswith("2 datasets, 4 shards, 8 documents, 14 tokens, ")
        assert said[0].endswith(f", from '{tmp_path}'")
        assert said[1].startswith("  c4: 3 shards, 6 documents, 11 tokens, ")
        assert said[2].startswith("  wiki: 1 shard, 2 documents, 3 tokens, ")
        assert said[3:] == [
            f"counts of 4 shards from '{tmp_path}/meta/x_counts.csv'",
            "1 other file ignored",
        ]

    def test_many_datasets(self, tmp_path: Path) -> None:
        documents = Documents(write_corpus(tmp_path, {f"d{i}/x": [[1]] for i in range(20)}))
        said = documents.explain().split("\n")
        assert len(said) == 15
        assert said[13] == "  and 8 more"

    def test_repr(self, corpus: Documents) -> None:
        assert repr(corpus) == "<Documents: 2 datasets, 4 shards, 8 documents, 14 tokens>"

    def test_it_is_a_corpus(self, corpus: Documents) -> None:
        assert isinstance(corpus, Corpus)
        for name in ("shard_documents", "shard_kept", "shard_tokens"):
            array = getattr(corpus, name)
            assert array.dtype == np.int64
            assert not array.flags.writeable


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"column": 3}, TypeError, "`column` must be a string, got 3"),
        (
            {"tokenizer": "gpt2"},
            TypeError,
            "`tokenizer` must be a function from a text to its tokens, a tokenizer of .* got str",
        ),
        ({"min_length": -1}, ValueError, "`min_length` must be at least 0, got -1"),
        ({"min_length": 1.5}, TypeError, "`min_length` must be an integer, got float 1.5"),
        (
            {"strip_tokens": 256},
            TypeError,
            r"^`strip_tokens` must be a sequence of integers, such as \(256,\), got 256$",
        ),
        (
            {"strip_tokens": "ab"},
            TypeError,
            "`strip_tokens` must be a sequence of integers, got 'ab'",
        ),
        ({"strip_tokens": [1.5]}, TypeError, "a token of strip_tokens must be an integer"),
        ({"strip_tokens": [2**63]}, ValueError, "a token of strip_tokens must be at most"),
        ({"open_files": 0}, ValueError, "`open_files` must be at least 1, got 0"),
        ({"threads": 0}, ValueError, "`threads` must be at least 1, got 0"),
        ({"cache": 3}, TypeError, "`cache` must be True, False or a path, got 3"),
        ({"progress": 3}, TypeError, "`progress` must be True, False or a function"),
        ({"files": 3}, TypeError, "`files` must be a glob or several globs, got 3"),
    ],
)
def test_options(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    root = write_corpus(tmp_path, SHARDS)
    with pytest.raises(error, match=message):
        Documents(root, **options)
