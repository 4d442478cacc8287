"""`Documents` of token files: every format gives what Arrow files of the same documents give."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from support.corpora import write_counts, write_lists
from support.internals import plant
from support.real_corpus import is_text, sources
from support.token_files import nanogpt_bytes, write_mds, write_megatron
from windeck import Documents, Loader, Mixture, PackedSequences, Stream
from windeck.io import filesystem

END = 999
FORMATS = ("nanogpt", "megatron", "mds", "zstd", "bytes")
#: Options that `Documents` needs for a format.
OPTIONS: dict[str, dict[str, Any]] = {
    "arrow": {},
    "nanogpt": {"format": "nanogpt", "end_token": END, "dtype": "uint16"},
    "megatron": {},
    "mds": {},
    "zstd": {},
    "bytes": {"dtype": "uint16"},
}
Docs = list[list[int]]


def random_docs(count: int, seed: int) -> Docs:
    """Return documents of up to 30 tokens, none of them empty: arrays of MDS cannot be."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 900, rng.integers(1, 31)).tolist() for _ in range(count)]


SHARDS = [random_docs(40, 1), random_docs(25, 2), random_docs(60, 3)]
EVERY = [doc for docs in SHARDS for doc in docs]


def write(root: Path, form: str, shards: list[Docs] = SHARDS) -> Path:
    """Write the shards of one dataset in a format."""
    root.mkdir(parents=True, exist_ok=True)
    if form in ("mds", "zstd", "bytes"):
        encoding = "bytes" if form == "bytes" else "ndarray:uint16"
        write_mds(root, shards, encoding=encoding, zstd=form == "zstd")
        return root
    for number, docs in enumerate(shards):
        path = root / f"x{number}.bin"
        if form == "nanogpt":
            path.write_bytes(nanogpt_bytes(docs, END))
        elif form == "megatron":
            write_megatron(path, [[doc] for doc in docs])
        else:
            write_lists(root / f"x{number}.arrow", docs)
    return root


def opened(root: Path, form: str, **more: Any) -> Documents:
    return Documents(root, **OPTIONS[form], **more)


def batches(documents: Documents, **more: Any) -> list[list[int]]:
    """Return the inputs of an epoch of packed sequences."""
    packed = PackedSequences(documents, sequence_length=32, eos=END, **more)
    loader = Loader(Stream(packed, seed=5), batch_size=4, epochs=1)
    return [row for batch in loader for row in batch["inputs"].tolist()]


@pytest.mark.parametrize("form", FORMATS)
class TestEveryFormat:
    def test_documents_and_their_names(self, form: str, tmp_path: Path) -> None:
        documents = opened(write(tmp_path, form), form)
        assert [one.tolist() for one in documents] == EVERY
        assert documents[0].dtype == np.uint16
        assert documents.locate(41) == ("default", 1, 1)
        assert documents.index(("default", 2, 59)) == len(EVERY) - 1
        assert documents.shard_documents.tolist() == [40, 25, 60]
        assert documents.shard_tokens.tolist() == [sum(map(len, docs)) for docs in SHARDS]
        assert "other file" not in documents.explain()
        documents.verify()
        again = pickle.loads(pickle.dumps(documents))
        assert [one.tolist() for one in again] == EVERY
        assert again.fingerprint == documents.fingerprint

    @pytest.mark.parametrize("order", ["shards", "global"])
    def test_packing_equals_that_of_arrow_files(
        self, form: str, order: str, tmp_path: Path
    ) -> None:
        arrow = opened(write(tmp_path / "arrow", "arrow"), "arrow")
        documents = opened(write(tmp_path / form, form), form)
        expected = batches(arrow, order=order)
        assert len(expected) > 50
        assert batches(documents, order=order) == expected

    def test_filters_and_splits(self, form: str, tmp_path: Path) -> None:
        """Parts of a split depend on names, not on formats: files have no part numbers here."""
        docs = [[[7, 1, 2], [7], [3, 7], [4, 5, 6, 7, 7]] * 20]
        root = write(tmp_path, form, docs)
        documents = opened(root, form, strip_tokens=[7], min_length=1)
        assert [one.tolist() for one in documents] == [[1, 2], [], [3], [4, 5, 6]] * 20
        assert documents.shard_kept.tolist() == [60]
        assert documents.shard_tokens.tolist() == [120]
        train, validation, _ = documents.split(0.3, seed=4)
        assert train.shard_kept[0] + validation.shard_kept[0] == 60
        for number in range(80):
            alone = [len(part[number]) for part in (train, validation)]
            assert sorted(alone) == [0, len(documents[number])]

    def test_resume_and_visited(self, form: str, tmp_path: Path) -> None:
        def loader(kind: str = form) -> Loader:
            documents = opened(write(tmp_path / kind, kind), kind)
            packed = PackedSequences(documents, sequence_length=32, eos=END)
            return Loader(Mixture({"a": (packed, 1.0)}, seed=3), batch_size=4)

        first = loader()
        steps = [batch["inputs"].tolist() for _, batch in zip(range(9), first, strict=False)]
        second = loader()
        for _ in zip(range(4), second, strict=False):
            pass
        state = json.loads(json.dumps(second.state_dict()))
        third = loader()
        third.load_state_dict(state)
        rest = [batch["inputs"].tolist() for _, batch in zip(range(5), third, strict=False)]
        assert rest == steps[4:]
        arrow = loader("arrow")
        assert [
            batch["inputs"].tolist() for _, batch in zip(range(9), arrow, strict=False)
        ] == steps
        names = [("default", shard, number) for shard in range(3) for number in range(25)]
        seen = [bool(third.visited(name)) for name in names]
        assert seen == [bool(arrow.visited(name)) for name in names]
        assert set(seen) == {True, False}

    def test_counts_are_cached(
        self, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = write(tmp_path, form)
        before = opened(root, form, cache=True, min_length=5)
        plant(monkeypatch, "token_files.map_documents", None)  # Opening a file would fail.
        again = opened(root, form, cache=True, min_length=5)
        assert again.shard_kept.tolist() == before.shard_kept.tolist()
        (path,) = (root / "meta").iterdir()
        assert path.name.startswith("windeck-counts-")

    def test_count_files_are_compared(self, form: str, tmp_path: Path) -> None:
        root = write(tmp_path, form)
        name = Path(opened(root, form).shard_path(0)).relative_to(root)
        tokens = sum(map(len, SHARDS[0]))
        for documents in (40, 41):
            write_counts(
                root, ["dataset/filename,documents,tokens", f"{name},{documents},{tokens}"]
            )
            if documents == 40:
                assert [one.tolist() for one in opened(root, form)] == EVERY
            else:
                with pytest.raises(ValueError, match=r"has 40 documents, expected 41 from"):
                    opened(root, form).open(0)

    def test_files_that_change_after_the_start(self, form: str, tmp_path: Path) -> None:
        root = write(tmp_path, form)
        documents = opened(root, form, open_files=1)
        documents.open(2)
        path = Path(documents.shard_path(0))
        path.write_bytes(path.read_bytes() + b"\0\0")
        with pytest.raises(ValueError, match=r"has .* bytes, but had .* when the corpus was open"):
            documents.open(0)

    def test_memory_of_open_shards(self, form: str, tmp_path: Path) -> None:
        """Mapped files take the places of their documents, decoded ones their tokens too."""
        documents = opened(write(tmp_path, form), form, open_bytes=1)
        tokens, count = documents.shard_tokens, documents.shard_documents
        expected = 2 * tokens + 8 * count if form == "zstd" else 16 * count
        assert f"open_bytes={expected.sum()}" in str(documents.explain_reopening())

    def test_on_another_file_system(self, form: str, tmp_path: Path, bucket: str) -> None:
        root = write(tmp_path / "corpus", form)
        fsspec.filesystem("memory").put(str(root), bucket, recursive=True)
        remote = Documents(f"memory://{bucket}", **OPTIONS[form])
        assert [one.tolist() for one in remote] == EVERY
        assert not remote.open(0).mapped
        assert remote.fingerprint == opened(root, form).fingerprint
        assert batches(remote) == batches(opened(root, form))
        remote.verify()
        url = f"memory://{bucket}"
        cached = Documents(url, cache_dir=tmp_path / "cache", **OPTIONS[form])
        assert [one.tolist() for one in cached] == EVERY
        assert batches(cached) == batches(opened(root, form))


@pytest.mark.parametrize("form", ["megatron", "mds", "bytes"])
def test_counts_of_remote_files_are_read_from_metadata(
    form: str, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.filesystem("memory").put(str(write(tmp_path, form)), bucket, recursive=True)
    loaded: list[str] = []
    load = filesystem.load

    def noted(path: str, *more: Any) -> Any:
        if getattr(path, "contents", None) is None:
            loaded.append(path)
        return load(path, *more)

    plant(monkeypatch, "filesystem.load", noted)
    documents = Documents(f"memory://{bucket}", **OPTIONS[form])
    assert documents.shard_tokens.tolist() == [sum(map(len, docs)) for docs in SHARDS]
    assert {Path(path).name for path in loaded} <= {"index.json"}
    assert documents[0].tolist() == EVERY[0]
    assert len([path for path in loaded if path.endswith((".bin", ".mds"))]) == 1


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the name of a new folder of the file system in memory."""
    name = f"/token-files-{abs(hash(request.node.name))}"
    yield name
    store = fsspec.filesystem("memory")
    if store.exists(name):
        store.rm(name, recursive=True)


class TestFingerprint:
    def test_an_index_belongs_to_the_contents(self, tmp_path: Path) -> None:
        """Documents with other borders are other documents, also if no token changes."""
        flat = [[[1, 2], [3], [4, 5]], [[1], [2, 3], [4, 5]]]
        found = []
        for number, docs in enumerate(flat):
            root = write(tmp_path / str(number), "megatron", [docs])
            found.append(opened(root, "megatron").fingerprint)
        assert found[0]["tokens"] == found[1]["tokens"]
        assert found[0]["contents"] != found[1]["contents"]

    def test_options(self, tmp_path: Path) -> None:
        root = write(tmp_path, "nanogpt")
        first = opened(root, "nanogpt")
        assert {"end_token": END, "dtype": "uint16"}.items() <= first.fingerprint.items()
        second = Documents(root, format="nanogpt", end_token=5, dtype="uint16")
        told = second.explain_change("end_token", END, 5)
        assert told == (
            "documents were read with end_token = 999 when the state was saved, and are read with "
            "end_token = 5 now"
        )

    def test_a_format_that_is_found_is_one_that_is_given(self, tmp_path: Path) -> None:
        for form, name in (("megatron", "megatron"), ("mds", "mds"), ("zstd", "mds")):
            root = write(tmp_path / form, form)
            assert Documents(root).fingerprint == Documents(root, format=name).fingerprint  # type: ignore[arg-type]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"format": "raw"}, ValueError, "`format` must be one of 'nanogpt', 'megatron', 'mds'"),
            ({"format": "nanogpt"}, ValueError, "`end_token`, the token between documents, is nee"),
            ({"end_token": 5}, ValueError, "got format=None and end_token=5"),
            ({"format": "nanogpt", "end_token": 1.5}, TypeError, "end_token"),
            (
                {"format": "nanogpt", "end_token": 5},
                ValueError,
                'expected `dtype`, such as "uint16',
            ),
            ({"dtype": "float32"}, TypeError, "`dtype` must be a dtype of native integers"),
            ({"dtype": ">u2"}, TypeError, "`dtype` must be a dtype of native integers"),
            ({"dtype": "tokens"}, TypeError, "`dtype` must be a dtype of integers, got 'tokens'"),
            (
                {"format": "nanogpt", "end_token": 5, "column": "text"},
                ValueError,
                "files of nanoGPT have no columns, got column='text'",
            ),
        ],
    )
    def test_bad_options(
        self, options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(error, match=message):
            Documents(write(tmp_path, "nanogpt"), **options)

    def test_options_that_do_not_apply(self, tmp_path: Path) -> None:
        for form, options, message in (
            ("arrow", {"dtype": "uint16"}, "states the dtype of its tokens, got dtype='uint16'"),
            ("megatron", {"dtype": "uint16"}, "states its dtype, got column='tokens' and dtype='u"),
            ("megatron", {"column": "text"}, "has no columns .*, got column='text'"),
            ("mds", {"dtype": "int32"}, "is 'ndarray:uint16', but `dtype` is 'int32'"),
        ):
            with pytest.raises(ValueError, match=message):
                Documents(write(tmp_path / form, form), **options)  # type: ignore[arg-type]
        for form in ("megatron", "mds"):
            with pytest.raises(TypeError, match="has tokens, but a `tokenizer` is given"):
                Documents(tmp_path / form, tokenizer=str.encode)

    def test_numpy_dtypes(self, tmp_path: Path) -> None:
        root = write(tmp_path, "nanogpt")
        for dtype in (np.uint16, np.dtype("uint16"), "uint16", "u2"):
            documents = Documents(root, format="nanogpt", end_token=END, dtype=dtype)
            assert documents.fingerprint["dtype"] == "uint16"


class TestDiscovery:
    def test_files_of_several_formats(self, tmp_path: Path) -> None:
        """Every dataset has one format; the source of tokens may lie beside them."""
        write(tmp_path / "dataset=a", "megatron", SHARDS[:1])
        write(tmp_path / "dataset=b", "mds", SHARDS[1:2])
        write(tmp_path / "dataset=c", "arrow", SHARDS[2:])
        (tmp_path / "dataset=a/corpus.json").write_text('{"text": "source"}\n')
        documents = Documents(tmp_path)
        assert documents.dataset_ids == ("a", "b", "c")
        assert [one.tolist() for one in documents] == EVERY

    def test_tokens_beside_their_json_lines(self, tmp_path: Path) -> None:
        write(tmp_path, "megatron")
        (tmp_path / "corpus.jsonl").write_text('{"tokens": [1, 2]}\n')
        assert len(Documents(tmp_path)) == 1
        assert len(Documents(tmp_path, format="megatron")) == len(EVERY)

    def test_selected_files(self, tmp_path: Path) -> None:
        write(tmp_path, "nanogpt")
        assert [one.tolist() for one in opened(tmp_path, "nanogpt", files="x1.bin")] == SHARDS[1]
        found = opened(tmp_path, "nanogpt", part_pattern="x([0-9]+)")
        assert [one.tolist() for one in found] == EVERY

    def test_splits_of_mds(self, tmp_path: Path) -> None:
        for name, docs in (("train", SHARDS[0]), ("val", SHARDS[1])):
            write(tmp_path / name, "mds", [docs])
        assert [one.tolist() for one in Documents(tmp_path, files="val")] == SHARDS[1]
        assert len(Documents(tmp_path)) == 65

    @pytest.mark.parametrize("name", ["nanogpt", "megatron", "mds"])
    def test_folders_without_such_files(self, name: Any, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").touch()
        end: dict[str, Any] = {"end_token": END} if name == "nanogpt" else {}
        expected = {"nanogpt": r"\*\.bin", "megatron": r"\*\.bin with", "mds": r"index\.json and"}
        with pytest.raises(FileNotFoundError, match=rf"has no dataset.*{expected[name]}"):
            Documents(tmp_path, format=name, **end)
        (tmp_path / "dataset=a").mkdir()
        with pytest.raises(FileNotFoundError, match=rf"has no shard.*{expected[name]}"):
            Documents(tmp_path, format=name, **end)

    def test_flat_files_without_a_format(self, tmp_path: Path) -> None:
        write(tmp_path, "nanogpt")
        with pytest.raises(FileNotFoundError, match=r"; format='nanogpt' reads \*\.bin"):
            Documents(tmp_path)

    def test_an_index_file_of_another_tool(self, tmp_path: Path) -> None:
        write(tmp_path, "arrow")
        (tmp_path / "index.json").write_text("{")
        assert len(Documents(tmp_path)) == len(EVERY)


@pytest.mark.parametrize("form", FORMATS)
def test_documents_of_a_real_corpus(form: str, tmp_path: Path) -> None:
    """The sources of Python's standard library, as UTF-8 bytes."""
    files = [path for paths in sources().values() for path in paths if is_text(path)]
    contents = [path.read_bytes() for path in files if path.stat().st_size]
    documents = opened(write(tmp_path, form, [[list(one) for one in contents]]), form)
    assert len(documents) == len(contents) > 150
    for number, content in enumerate(contents):
        assert documents[number].astype(np.uint8).tobytes() == content


@pytest.mark.parametrize("form", FORMATS)
def test_reads_that_return_less(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call may return fewer bytes than were asked for."""
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, start: read(file, min(count, 64), start))
    documents = opened(write(tmp_path, form), form)
    assert [one.tolist() for one in documents] == EVERY
