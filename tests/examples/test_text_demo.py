"""The example on documents: its corpus, its model, and five processes against the tests' oracle."""

from __future__ import annotations

import json
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from models.text_oracle import Corpus, Packed, Packing, Streamed
from support.loaded_examples import example
from support.text_mixtures import Mixed
from support.token_files import write_arrow_tokens


@pytest.fixture(scope="module")
def text_demo() -> ModuleType:
    return example("text_demo")


@pytest.fixture(scope="module")
def trainee() -> ModuleType:
    return example("text_trainee")


def random_corpora() -> dict[str, Corpus]:
    rng = np.random.default_rng(0)

    def shard(most: int) -> list[list[int]]:
        return [rng.integers(0, 60000, size).tolist() for size in rng.integers(0, most, 30)]

    text = [list(("Zoë said: " + "no " * number).encode()) for number in range(60)]
    return {"a long name": [shard(50)], "big": [shard(90), shard(90)], "words": [[*text]]}


def write(corpora: dict[str, Corpus], root: Path) -> None:
    """Lists, batches and text, Parquet and Arrow, and parts in their natural order."""
    for name in corpora:
        (root / f"dataset={name}/deep").mkdir(parents=True)
    for part, shard in zip((2, 10), corpora["big"], strict=True):
        path = root / f"dataset=big/deep/x.part{part}.arrow"
        write_arrow_tokens(path, shard, row_per_token=part == 2)
    lists = pa.array(corpora["a long name"][0], pa.list_(pa.int64()))
    pq.write_table(pa.table({"tokens": lists}), root / "dataset=a long name/x.part0.parquet")
    texts = [bytes(document).decode() for document in corpora["words"][0]]
    pq.write_table(pa.table({"tokens": texts}), root / "dataset=words/x.part0.parquet")


def seed_of(seed: int, part: str) -> int:
    """The published seed of a mixture's part."""
    words = ("str", "part of a mixture", "int", str(seed), "str", part)
    content = b"".join(b"%d:%s" % (len(word), word) for word in map(str.encode, words))
    return int.from_bytes(blake2b(content, digest_size=16).digest()[:8], "big")


@pytest.mark.usefixtures("forked")
def test_killed_and_resumed_with_more_processes_it_is_one_run(
    text_demo: ModuleType,
    trainee: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every logged row, of lost steps too, equals the oracle's row at that position."""
    corpora, out, steps = random_corpora(), tmp_path / "out", 8
    write(corpora, tmp_path / "mine")
    words = ["--data", str(tmp_path / "mine"), "--out", str(out), "--steps", str(steps)]
    words += ["--batch-size", "2", "--sequence-length", "32", "--seed", "5"]
    assert text_demo.main(words) == 0
    text = capsys.readouterr().out
    assert text.count("✔") >= 7
    assert "✘" not in text
    assert f"of {steps}; last saved after step" in text
    assert "a long name: 30 documents" in text

    job = trainee.Job(**json.loads((out / "job.json").read_text()))
    parts = {
        name: (Streamed(Packed(corpora[name], Packing(32)), seed_of(5, name)), weight)
        for name, weight in job.weights.items()
    }
    mixed = Mixed(parts)
    logs = {
        name: [trainee.read_log(out / f"{name}-{rank}.log", job) for rank in range(world)]
        for name, world in (("killed", 2), ("resumed", 3))
    }
    saved = int(logs["resumed"][0]["step"].min()) - 1
    assert 0 < saved <= max(log["step"].max() for log in logs["killed"]) < steps
    kept: list[int] = []
    for name, first, begin in (("killed", 0, 0), ("resumed", saved, saved * 2 * 2)):
        for rank, log in enumerate(logs[name]):
            for number, line in enumerate(log):
                batch, row = divmod(number, 2)
                assert line["step"] == first + batch + 1
                position = begin + (batch * len(logs[name]) + rank) * 2 + row
                assert line["position"] == position
                expected = mixed.at(position).row()
                assert line["tokens"].tolist() == expected.tokens
                assert line["position_ids"].tolist() == expected.position_ids
                if name == "resumed" or line["step"] <= saved:
                    kept.append(position)
    assert sorted(kept) == list(range(saved * 2 * 2 + (steps - saved) * 3 * 2))

    # The demo itself finds what is planted in a log.
    path = out / "resumed-1.log"
    log = trainee.read_log(path, job)
    for field in ("tokens", "position"):
        wrong = log.copy()
        wrong[field][-1] += 1
        path.write_bytes(wrong.tobytes())
        assert not text_demo.check(job, out)


def test_what_cannot_be_trained_on_gets_one_line(
    text_demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    few = tmp_path / "few/dataset=a"
    few.mkdir(parents=True)
    write_arrow_tokens(few / "x.part0.arrow", [range(9)], row_per_token=False)
    for data, words in {
        "nowhere": "there is no folder",
        "empty": "there is no folder dataset=NAME in",
        "few": "dataset 'a': the documents have 9 tokens",
        "few --column text": "'text'",
    }.items():
        arguments = ["--data", *f"{tmp_path}/{data}".split(), "--out", str(tmp_path / "out")]
        assert text_demo.main(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith("text_demo.py: ")
        assert words in error
        assert error.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.log"))


@pytest.mark.usefixtures("forked")
def test_a_process_that_fails_is_quoted(text_demo: ModuleType, tmp_path: Path) -> None:
    job = text_demo.Job(str(tmp_path / "nowhere"), {"a": 1.0}, steps=4)
    with pytest.raises(RuntimeError, match=r"process failed: .*Error: .*nowhere"):
        text_demo.kill_and_resume(job, tmp_path)


def test_every_source_file_is_one_document(text_demo: ModuleType, tmp_path: Path) -> None:
    folder, root = tmp_path / "lib", tmp_path / "corpus"
    content = "Zoë\n".encode() * 400
    files = {f"m{number}.py": content + bytes([number]) * 700 for number in range(5)}
    files |= {f"pack/sub/p{number:02}.py": content * (1 + number) for number in range(13)}
    files |= {"pack/__init__.py": b"", "tiny.py": b"x = 1\n", "pack/sub/__init__.py": b"\xff\x00"}
    others = ("site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3")
    left = {f"{name}/left.py": content for name in others} | {"notes.txt": content}
    for name, text in {**files, **left}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    stale = root / "dataset=stdlib-short/short.part7.arrow"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another Python")
    sizes = text_demo.write_corpus(root, folder)
    assert list(map(len, sizes.values())) == [5, 13, 3]
    assert not stale.exists()
    found = []
    for name in sizes:
        documents = text_demo.documents(root, name, "tokens")
        found += [bytes(documents[number].tolist()) for number in range(len(documents))]
    assert sorted(found) == sorted(files.values())
    (folder / "m0.py").unlink()
    (folder / "m1.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"at least 4 sources for stdlib-modules .* got 3"):
        text_demo.write_corpus(root, folder)


#: Where pieces of documents begin in a flattened batch of 3 rows of 12; every row begins one.
CUTS = (0, 5, 12, 24, 25, 34, 36)


def test_nothing_of_one_document_reaches_another_nor_the_past(trainee: ModuleType) -> None:
    places = np.concatenate([np.arange(b - a) for a, b in pairwise(CUTS)])
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 20, (3, 12)))
    batch = {
        "inputs": tokens,
        "position_ids": torch.from_numpy(places.reshape(3, 12)),
        "cu_seqlens": torch.tensor(CUTS, dtype=torch.int32),
    }
    model = trainee.build_model(trainee.Job("", {}, sequence_length=12, vocabulary=20))
    before = model(batch)
    piece = np.searchsorted(CUTS, np.arange(36), side="right")
    for place in (0, 4, 5, 11, 12, 24, 30):
        changed = tokens.clone()
        changed.view(-1)[place] = (changed.view(-1)[place] + 1) % 20
        differs = (model({**batch, "inputs": changed}) - before).abs().amax(dim=-1).flatten() > 0
        seen = [at for at in range(place, 36) if piece[at] == piece[place]]
        assert differs.nonzero().flatten().tolist() == seen
    assert torch.equal(model({**batch, "inputs": tokens + 140}), before)  # ids are folded
