"""Folders without ``dataset=NAME``, JSON lines, and folders of Hugging Face datasets."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from support.corpora import lists, write_counts, write_lists, write_parquet
from support.token_files import write_mds, write_megatron
from windeck import Documents, PackedSequences
from windeck.io import check_column

DOCS: list[list[int]] = [[1, 2, 3], [], [4], [5] * 50]


def tokens_of(documents: Documents) -> list[list[int]]:
    return [tokens.tolist() for tokens in documents]


@pytest.mark.parametrize("blank", [0, 1, (1 << 16) - 1, 1 << 16, 200_000])
@pytest.mark.parametrize("extra", [-1, 0, 1, 70_000])
@pytest.mark.parametrize("end", ["", "\n", '\n{"tokens": [7]}\n'])
def test_first_lines_of_several_chunks(blank: int, extra: int, end: str, tmp_path: Path) -> None:
    """The column is checked in the whole first line, also where it ends with a chunk of 64 KiB."""
    for key, value in (("tokens", [1, 2]), ("other", [1]), ("tokens", 3)):
        line = json.dumps({"pad": "", key: value})
        line = line.replace(
            '""', '"' + "x" * ((1 << 17) - blank % (1 << 16) - len(line) + extra) + '"'
        )
        path = tmp_path / "x.jsonl"
        path.write_text("\n" * blank + line + end)
        if (key, value) == ("tokens", [1, 2]):
            check_column(str(path), "tokens", is_text=False)
            continue
        with pytest.raises(KeyError if key == "other" else TypeError, match=r"x\.jsonl"):
            check_column(str(path), "tokens", is_text=False)


def write_jsonl(path: Path, rows: Sequence[Any], key: str = "tokens") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"id": i, key: row}) + "\n" for i, row in enumerate(rows)).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text)
    elif path.suffix == ".bz2":
        text = bz2.compress(text)
    elif path.suffix in (".zst", ".lz4"):
        codec = {".zst": "zstd", ".lz4": "lz4"}[path.suffix]
        with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), codec) as sink:
            sink.write(text)
        return
    path.write_bytes(text)


class TestPlainFolders:
    def test_files_at_any_depth_are_one_dataset(self, tmp_path: Path) -> None:
        (tmp_path / "en").mkdir()
        write_lists(tmp_path / "a2.arrow", DOCS)
        write_parquet(tmp_path / "a10.parquet", DOCS[:2])
        write_lists(tmp_path / "en/x.arrow", DOCS[2:])
        (tmp_path / "README.md").write_text("hello")
        write_counts(tmp_path, ["dataset/filename,documents,tokens", "a2.arrow,4,54"])
        documents = Documents(tmp_path)
        assert tokens_of(documents) == [*DOCS, *DOCS[:2], *DOCS[2:]]
        assert documents.dataset_ids == ("default",)
        assert documents.locate(5) == ("default", 1, 1)
        assert documents.index(("default", 2, 0)) == 6
        assert "counts of 1 shard from" in documents.explain()
        assert len(Documents(tmp_path, files="en")) == 2
        sequences = PackedSequences(documents, sequence_length=7)
        assert len(sequences.gather(range(len(sequences)))["inputs"]) == len(sequences)

    def test_paths_of_shards(self, tmp_path: Path) -> None:
        for part in (10, 3):
            write_lists(tmp_path / f"x.part{part}.arrow", [[part]])
        documents = Documents(tmp_path)
        paths = [documents.shard_path(shard) for shard in range(2)]
        assert paths == [f"{tmp_path}/x.part3.arrow", f"{tmp_path}/x.part10.arrow"]
        for wrong in (-1, 2):
            with pytest.raises(IndexError, match=f"shard {wrong} is out of range"):
                documents.shard_path(wrong)

    def test_part_numbers(self, tmp_path: Path) -> None:
        for part in (10, 3):
            write_lists(tmp_path / f"x.part{part}.arrow", [[part]])
        assert Documents(tmp_path).locate(1) == ("default", 10, 0)

    def test_a_cache_in_meta_is_no_shard(self, tmp_path: Path) -> None:
        write_lists(tmp_path / "x.arrow", DOCS)
        for _ in range(2):
            documents = Documents(tmp_path, cache=True)
            packed = PackedSequences(documents, sequence_length=7, order="global", cache=True)
            packed.build_index()
            assert tokens_of(documents) == DOCS
        (tmp_path / "meta/y.arrow").write_bytes(b"")
        assert tokens_of(Documents(tmp_path)) == DOCS

    def test_datasets_come_first(self, tmp_path: Path) -> None:
        (tmp_path / "dataset=c4").mkdir()
        write_lists(tmp_path / "dataset=c4/x.arrow", DOCS)
        write_lists(tmp_path / "y.arrow", [[1]])
        assert Documents(tmp_path).dataset_ids == ("c4",)

    def test_corpora_one_folder_below_are_not_mixed(self, tmp_path: Path) -> None:
        (tmp_path / "corpus/dataset=c4").mkdir(parents=True)
        write_lists(tmp_path / "corpus/dataset=c4/x.arrow", DOCS)
        for root in (tmp_path, tmp_path / "corpus/dataset=c4"):
            with pytest.raises(FileNotFoundError, match=r"has no dataset; .*the root .*corpus"):
                Documents(root)

    def test_files_chosen_next_to_datasets(self, tmp_path: Path) -> None:
        """Also where a folder of datasets is next to them, or is several folders below."""
        (tmp_path / "more").mkdir()
        write_lists(tmp_path / "x.arrow", DOCS)
        write_lists(tmp_path / "more/y.arrow", [[7]])
        for corpus in ("corpus/dataset=c4", "dataset=c4"):
            (tmp_path / corpus).mkdir(parents=True)
            write_lists(tmp_path / corpus / "z.arrow", [[9]])
            documents = Documents(tmp_path, files=["x.arrow", "more"])
            assert tokens_of(documents) == [[7], *DOCS]
            assert documents.dataset_ids == ("default",)
        assert tokens_of(Documents(tmp_path, files="**/z.arrow")) == [[9]]
        with pytest.raises(FileNotFoundError, match=r"no shard below .* matches 'corpus'"):
            Documents(tmp_path, files="corpus")

    def test_splits_are_stable_under_growth(self, tmp_path: Path) -> None:
        def validation() -> set[int]:
            found = Documents(tmp_path).split(0.3).validation
            return {int(tokens[0]) for tokens in found if len(tokens)}

        write_lists(tmp_path / "b.arrow", [[i] for i in range(100)])
        before = validation()
        write_lists(tmp_path / "a.arrow", [[i] for i in range(100, 200)])
        assert {one for one in validation() if one < 100} == before

    def test_formats_may_be_chosen_from_a_folder_that_has_all(self, tmp_path: Path) -> None:
        docs = [doc for doc in DOCS if doc]
        for folder in ("megatron", "nanogpt", "arrow"):
            (tmp_path / folder).mkdir()
        write_lists(tmp_path / "arrow/x.arrow", docs)
        write_jsonl(tmp_path / "json/x.jsonl", docs)
        write_mds(tmp_path / "mds", [docs])
        write_mds(tmp_path / "damaged", [docs])
        (tmp_path / "damaged/index.json").write_text("{")
        write_megatron(tmp_path / "megatron/x.bin", [[doc] for doc in docs])
        flat = np.concatenate([[*doc, 0] for doc in docs]).astype("<u2")
        (tmp_path / "nanogpt/x.bin").write_bytes(flat.tobytes())
        for folder in ("arrow", "json", "mds", "megatron"):
            documents = Documents(tmp_path, files=folder)
            assert tokens_of(documents) == docs
            assert documents.shard_documents.tolist() == [len(docs)]
        documents = Documents(
            tmp_path, files="nanogpt", format="nanogpt", end_token=0, dtype="uint16"
        )
        assert tokens_of(documents) == docs


SUFFIXES = ["jsonl", "ndjson", "json", "jsonl.gz", "json.gz", "jsonl.bz2", "jsonl.zst", "json.lz4"]


class TestJsonLines:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_tokens(self, suffix: str, tmp_path: Path) -> None:
        write_jsonl(tmp_path / f"dataset=c4/x.part3.{suffix}", [*DOCS, None])
        write_jsonl(tmp_path / f"dataset=c4/x.part10.{suffix}", [[2**31 + 5]])
        documents = Documents(tmp_path)
        assert tokens_of(documents) == [*DOCS, [], [2**31 + 5]]
        assert [documents[i].dtype for i in (0, 5)] == ["int32", "int64"]
        assert documents.locate(5) == ("c4", 10, 0)
        documents.verify()

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_text(self, suffix: str, tmp_path: Path) -> None:
        texts = ["one", "", None, "2020-01-01", 'quotes " and \n lines', "🙂 ü"]
        write_jsonl(tmp_path / f"train.{suffix}", texts, "text")
        documents = Documents(tmp_path, column="text", tokenizer=str.encode)
        assert [tokens.tobytes().decode() for tokens in documents] == [one or "" for one in texts]

    def test_only_where_there_is_no_other_shard(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "dataset=c4/x.jsonl", DOCS)
        write_jsonl(tmp_path / "dataset=c4/settings.json", [[1]])
        assert tokens_of(Documents(tmp_path)) == DOCS
        write_lists(tmp_path / "dataset=c4/y.arrow", [[7]])
        documents = Documents(tmp_path)
        assert tokens_of(documents) == [[7]]
        assert "2 other files ignored" in documents.explain()

    def test_they_may_be_chosen_next_to_other_shards(self, tmp_path: Path) -> None:
        write_lists(tmp_path / "y.arrow", [[7]])
        write_jsonl(tmp_path / "x.jsonl", DOCS)
        write_jsonl(tmp_path / "deep/x.json", [[1]])
        assert tokens_of(Documents(tmp_path)) == [[7]]
        documents = Documents(tmp_path, files="x.jsonl")
        assert tokens_of(documents) == DOCS
        assert "2 other files ignored" in documents.explain()
        assert tokens_of(Documents(tmp_path, files="deep")) == [[1]]
        assert tokens_of(Documents(tmp_path, files="y*")) == [[7]]
        with pytest.raises(FileNotFoundError, match=r"no shard below .* matches 'x.jsonl'"):
            Documents(tmp_path, files=["x.jsonl", "y.arrow"])

    def test_a_line_without_a_text_is_an_empty_document_and_a_blank_one_is_none(
        self, tmp_path: Path
    ) -> None:
        lines = ['{"text": "ab"}', "", '{"text": null}', "  ", '{"id": 3}', '{"text": ""}', "\t"]
        (tmp_path / "x.jsonl").write_text("\n".join(["", *lines, '{"text": "c"}']))
        documents = Documents(tmp_path, column="text", tokenizer=str.encode)
        assert [tokens.tobytes() for tokens in documents] == [b"ab", b"", b"", b"", b"c"]
        assert documents.locate(4) == ("default", 0, 4)
        filtered = Documents(tmp_path, column="text", tokenizer=str.encode, min_length=1)
        assert filtered.shard_kept.tolist() == [2]

    @pytest.mark.parametrize("first", ['{"id": 0}', '{"text": null}'])
    def test_the_first_line_may_lack_the_text(self, first: str, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text(f'{first}\n{{"text": "ab"}}\n')
        if "null" not in first:
            with pytest.raises(KeyError, match="has no column 'text'; it has 'id'"):
                Documents(tmp_path, column="text", tokenizer=str.encode)
            return
        documents = Documents(tmp_path, column="text", tokenizer=str.encode)
        assert [tokens.tobytes() for tokens in documents] == [b"", b"ab"]

    def test_long_lines_and_blank_ones(self, tmp_path: Path) -> None:
        long = list(range(100_000, 3_600_000))
        path = tmp_path / "x.jsonl"
        path.write_text("\n" + json.dumps({"tokens": long}) + '\n\n{"tokens": [1]}\n{"tokens": []}')
        documents = Documents(tmp_path)
        assert [len(tokens) for tokens in documents] == [len(long), 1, 0]
        assert documents[0].tolist() == long

    def test_no_lines(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").touch()
        (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b""))
        write_jsonl(tmp_path / "c.jsonl", DOCS)
        assert Documents(tmp_path).shard_documents.tolist() == [0, 0, 4]

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            (
                '{"text": 1}',
                KeyError,
                "x.jsonl' has no column 'tokens'; it has 'text'; `column=` names",
            ),
            ('{"tokens": "a b"}', TypeError, "is str; expected a list of integers, or text with"),
            ('{"tokens": 7}', TypeError, "column 'tokens' of '.*x.jsonl' is int; expected a list"),
            ("[1, 2]", ValueError, "its first line is a list, expected an object"),
            ("hello", ValueError, "x.jsonl' cannot be read as JSON lines: Expecting value"),
            ('{"tokens": [1]}\n{"tokens": [1, 2', ValueError, "x.jsonl' cannot be read as JSON"),
            ('{"tokens": [1]}\n{"tokens": "a"}', ValueError, "x.jsonl' cannot be read as JSON"),
            ('{"tokens": [1]}\n{"tokens": [1.5]}', ValueError, "x.jsonl' cannot be read as JSON"),
            ('{"tokens": [1, null]}', ValueError, "document 0 .* has 1 null tokens, expected none"),
        ],
    )
    def test_errors(self, text: str, error: type[Exception], message: str, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text(text)
        with pytest.raises(error, match=message):
            Documents(tmp_path)

    def test_text_that_is_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_bytes(b'{"text": "a"}\n{"text": "caf\xe9"}\n')
        with pytest.raises(ValueError, match=r"x.jsonl' cannot be read as JSON lines: .*UTF8"):
            Documents(tmp_path, column="text", tokenizer=str.encode)

    def test_a_truncated_archive(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "x.jsonl.gz", DOCS * 100)
        data = (tmp_path / "x.jsonl.gz").read_bytes()
        for size in (len(data) // 2, len(data) - 1):
            (tmp_path / "x.jsonl.gz").write_bytes(data[:size])
            with pytest.raises(ValueError, match=r"x.jsonl.gz' cannot be read as JSON"):
                Documents(tmp_path)


class TestStreams:
    """Arrow IPC streams, as Hugging Face datasets writes them."""

    @pytest.mark.parametrize("compression", [None, "zstd"])
    def test_lists(self, compression: Any, tmp_path: Path) -> None:
        options = ipc.IpcWriteOptions(compression=compression)
        with ipc.new_stream(tmp_path / "x.arrow", lists(DOCS).schema, options=options) as writer:
            writer.write_table(lists(DOCS), max_chunksize=3)
        documents = Documents(tmp_path)
        assert tokens_of(documents) == DOCS
        assert documents.open(0).mapped == (compression is None)

    def test_a_batch_each_and_none(self, tmp_path: Path) -> None:
        schema = pa.schema([("tokens", pa.int32())])
        for name, docs in (("a", DOCS), ("b", [])):
            with ipc.new_stream(tmp_path / f"{name}.arrow", schema) as writer:
                for doc in docs:
                    writer.write_batch(pa.record_batch([pa.array(doc, pa.int32())], schema))
        documents = Documents(tmp_path)
        assert tokens_of(documents) == DOCS
        assert documents.shard_documents.tolist() == [4, 0]


class TestHuggingFace:
    """Folders that `save_to_disk` of Hugging Face datasets writes."""

    @pytest.fixture(autouse=True)
    def quiet(self) -> Any:
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        self.datasets: Any = datasets

    def made(self, docs: Sequence[Any], key: str = "tokens") -> Any:
        return self.datasets.Dataset.from_dict({"id": list(range(len(docs))), key: docs})

    @pytest.mark.parametrize("shards", [1, 3])
    def test_a_dataset(self, shards: int, tmp_path: Path) -> None:
        docs = DOCS * 500
        self.made(docs).save_to_disk(tmp_path, num_shards=shards)
        documents = Documents(tmp_path)
        assert tokens_of(documents) == docs
        assert len(documents.shard_documents) == shards
        assert documents.open(0).mapped
        documents.verify()

    def test_leftovers_and_caches_are_no_shards(self, tmp_path: Path) -> None:
        self.made(DOCS).save_to_disk(tmp_path, num_shards=1)
        feather.write_feather(lists([[9]]), tmp_path / "data-00000-of-00002.arrow", "uncompressed")
        feather.write_feather(lists([[9]]), tmp_path / "cache-1234.arrow", "uncompressed")
        assert tokens_of(Documents(tmp_path)) == DOCS

    def test_splits(self, tmp_path: Path) -> None:
        parts = {"train": self.made(DOCS), "test": self.made([[9]])}
        self.datasets.DatasetDict(parts).save_to_disk(tmp_path)
        documents = Documents(tmp_path)
        assert documents.dataset_ids == ("train", "test")
        assert tokens_of(documents) == [*DOCS, [9]]
        assert tokens_of(Documents(tmp_path, files="test")) == [[9]]
        assert documents.locate(4) == ("test", 0, 0)

    def test_text_in_a_dataset_folder(self, tmp_path: Path) -> None:
        self.made(["a", None, "bc"], "text").save_to_disk(tmp_path / "dataset=c4")
        documents = Documents(tmp_path, column="text", tokenizer=str.encode)
        assert documents.dataset_ids == ("c4",)
        assert [tokens.tobytes() for tokens in documents] == [b"a", b"", b"bc"]

    def test_a_selection_is_saved_as_selected(self, tmp_path: Path) -> None:
        self.made(DOCS).select([3, 0]).save_to_disk(tmp_path)
        assert tokens_of(Documents(tmp_path)) == [DOCS[3], DOCS[0]]

    def test_a_missing_file(self, tmp_path: Path) -> None:
        self.made(DOCS).save_to_disk(tmp_path, num_shards=2)
        (tmp_path / "data-00001-of-00002.arrow").unlink()
        with pytest.raises(FileNotFoundError, match=r"state.json' lists 'data-00001-of-00002.arr"):
            Documents(tmp_path)

    @pytest.mark.parametrize("name", ["../x.arrow", "/etc/x.arrow", "", "..", 7])
    def test_names_that_lead_elsewhere(self, name: object, tmp_path: Path) -> None:
        self.made(DOCS).save_to_disk(tmp_path)
        (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(ValueError, match=r"state.json' has the name .*, expected that of a"):
            Documents(tmp_path)
