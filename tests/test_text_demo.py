"""The demo on documents from the outside: run as a user runs it, on real and on other corpora."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from demos import Told, demo
from programs import command
from windeck.tools.stage import Page
from windeck.tools.text import corpus
from windeck.tools.text.job import Job
from windeck.tools.text.relay import kill_and_resume

CLAIMS = (
    r"the killed run, and the \d+ rows that were lost with it",
    "the resumed run, with one process more",
    r"together [\d,]+ sequences, [\d,]+ tokens: none lost, none twice",
    "one model: the same weights in every process, bit for bit",
)


def short(out: Path, *arguments: str) -> Told:
    """A run as short as it can be."""
    small = ("--race-seconds", "0.1", "--batch-size", "2", "--sequence-length", "32")
    return demo(out, "text", *arguments, *small)


def log(out: Path, name: str) -> np.ndarray:
    """Step and position of each row that any rank of a run trained on."""
    files = sorted(out.glob(f"{name}.rank*.rows"))
    numbers = [np.fromfile(file, "<i8") for file in files]
    cut = [own[: len(own) // 8 * 8].reshape(-1, 8)[:, :2] for own in numbers]
    return np.concatenate(cut)


def assert_proved(told: Told, steps: int) -> None:
    """All claims hold, and hold for what really lies in the files, too."""
    assert told.code == 0, told.errors
    for claim in CLAIMS:
        assert re.search(f"✔ {claim}", told.words), claim
    assert "✘" not in told.words
    killed, resumed = log(told.out, "killed"), log(told.out, "resumed")
    saved = int(resumed[:, 0].min()) - 1
    assert 0 < saved < killed[:, 0].max() < steps == resumed[:, 0].max()
    kept = killed[killed[:, 0] <= saved]
    assert len(kept) == saved * 2 * 2
    assert len(resumed) == (steps - saved) * 3 * 2
    positions = np.sort(np.concatenate((kept, resumed))[:, 1])
    assert positions.tolist() == list(range(len(positions)))
    assert re.search(rf"SIGKILL to all of them in step \d+ of {steps}", told.words)
    assert len(re.findall(r"[\d,]+ tokens/s · [\d,]+ documents/s", told.words)) == 2
    assert len(re.findall(r"was \('.*', \d+, \d+\) visited, and when\?", told.words)) in (1, 2)


def test_real_documents(tmp_path: Path) -> None:
    told = short(tmp_path, "--steps", "16")
    assert_proved(told, 16)
    assert "real documents: the sources of Python's own standard library" in told.words
    assert len(told.words.splitlines()) < 50
    assert (tmp_path / "stdlib-corpus/meta/counts.csv").exists()


def test_a_corpus_of_ones_own(tmp_path: Path) -> None:
    """Lists, batches and text, Parquet and Arrow, ids beyond any byte, and natural order."""
    root = tmp_path / "mine"
    rng = np.random.default_rng(0)
    for name, parts in {"big": (2, 10), "a name that is long": (0,)}.items():
        (root / f"dataset={name}/deep").mkdir(parents=True)
        for part in parts:
            lists = [rng.integers(0, 60000, size) for size in rng.integers(0, 90, 30)]
            if name == "big":
                path = root / f"dataset={name}/deep/x.part{part}.arrow"
                corpus.write_shard(path, lists, pa.uint16(), batch_per_document=part == 2)
            else:
                table = pa.table({"tokens": pa.array(lists, pa.list_(pa.int64()))})
                pq.write_table(table, root / f"dataset={name}/x.part{part}.parquet")
    (root / "dataset=words").mkdir()
    table = pa.table({"tokens": ["Zoë said: " + "no " * number for number in range(60)]})
    pq.write_table(table, root / "dataset=words/x.part0.parquet")
    told = short(tmp_path / "out", "--data", str(root), "--steps", "8")
    assert_proved(told, 8)
    assert "the model takes token ids modulo 4,096" in told.words
    assert "a name that is long: 30 documents" in told.words


def test_what_cannot_be_trained_on_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    few = tmp_path / "few/dataset=a"
    few.mkdir(parents=True)
    corpus.write_shard(few / "x.part0.arrow", [np.arange(9)], pa.uint16(), False)
    for data, words in {
        "nowhere": r".*nowhere",
        "empty": r".*dataset=",
        "few": "in dataset 'a' the documents hold 9 tokens",
        "few --column text": r".*'text'.*tokens",
    }.items():
        arguments = ["demo", "text", "--data", *f"{tmp_path}/{data}".split()]
        arguments += ["--out", str(tmp_path / "out"), "--no-progress"]
        code, _, errors = command(*arguments)
        assert code == 1, errors
        assert re.match(f"windeck demo text: {words}", errors), errors
        assert errors.count("\n") == 1, errors
    assert not list((tmp_path / "out").glob("*.rows"))


def test_a_process_that_fails_is_quoted(tmp_path: Path) -> None:
    """In the words of the one that failed, not of torchrun or of those that lost a peer."""
    task = Job(str(tmp_path / "nowhere"), (("a", 1),), steps=4)
    page = Page(Console(file=io.StringIO()), progress=False)
    expected = r"^a training process failed, and said: \w+Error: .*nowhere.*$"
    with pytest.raises(RuntimeError, match=expected):
        kill_and_resume(task, tmp_path, page)
