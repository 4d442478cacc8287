"""Files, documents, packing, mixing, growth and loading together, and visits of documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.packed_model import assert_same
from support.corpora import write_corpus, write_lists
from windeck import Documents, Loader, Mixture, PackedSequences, Stream


def docs(first: int, count: int) -> list[list[int]]:
    """Return documents of different lengths without common tokens."""
    lengths = [3 + (7 * (first + i)) % 23 for i in range(count)]
    ends = 100 * first + np.cumsum([0, *lengths])
    return [list(range(a, b)) for a, b in pairwise(ends)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shards = {"c4/a.part1": docs(0, 20), "c4/b.part2": docs(20, 20), "wiki/a.part0": docs(40, 25)}
    return write_corpus(tmp_path / "corpus", shards)


def packed(folder: Path, files: str, **options: Any) -> PackedSequences:
    return PackedSequences(Documents(folder, files=files), sequence_length=16, eos=65000, **options)


def mixed(folder: Path, grown: Any = (), **options: Any) -> Mixture:
    c4 = Stream(packed(folder, "dataset=c4/*.part[12].arrow"), seed=3, grown=grown)
    wiki = packed(folder, "dataset=wiki", order="global")
    return Mixture({"c4": (c4, 0.75), "wiki": (wiki, 0.25)}, seed=1, **options)


def run(loader: Loader, steps: int, log: Callable[[int, Any], None]) -> None:
    for _ in range(steps):
        batch = next(iter(loader))
        log(loader.step - 1, {key: tensor.numpy().copy() for key, tensor in batch.items()})


def test_was_a_document_visited_and_when(folder: Path) -> None:
    loader = Loader(mixed(folder), batch_size=4, prefetch=2)
    inside: dict[int, list[int]] = {}

    def log(step: int, batch: Any) -> None:
        for token in {*batch["inputs"].reshape(-1), *batch["targets"].reshape(-1)}:
            inside.setdefault(int(token), []).append(step)

    run(loader, 9, log)
    stored = Documents(folder)
    answers = set()
    for i in range(len(stored)):
        name = stored.locate(i)
        tokens = stored[i].tolist()
        visit = loader.visited(name)
        assert visit.document == name
        done = [s for p, s in zip(visit.positions, visit.steps, strict=True) if p < loader.position]
        # Two sequences that share a token (a target, then an input) both serve it.
        served = {step for token in tokens for step in inside.get(token, [])}
        if visit.epoch == 0:
            assert {*done} >= served
            whole = all(token in inside for token in tokens)
            assert whole or not visit
            answers.add((bool(visit), visit.served > 0))
    # Some are served, some not yet, and some in part.
    assert answers == {(True, True), (False, False), (False, True)}
    for step in range(loader.step):
        for pieces in loader.documents(step):
            for dataset_id, shard_id, doc_id, start, stop in pieces:
                tokens = [*stored[stored.index((dataset_id, shard_id, doc_id))].tolist(), 65000]
                assert all(step in inside[token] for token in tokens[start:stop])


def test_files_are_appended_while_a_run_goes_on(folder: Path) -> None:
    before: dict[int, Any] = {}
    stream = mixed(folder)
    loader = Loader(stream, batch_size=4, prefetch=0)
    run(loader, 3, before.__setitem__)
    state = json.loads(json.dumps(loader.state_dict()))
    run(loader, 30, before.__setitem__)

    write_lists(folder / "dataset=c4" / "c.part3.arrow", docs(70, 30))
    part: Any = stream.parts["c4"]
    position = stream.position_in_part("c4", state["position"])
    more = packed(folder, "dataset=c4")
    data = mixed(folder, grown=[(position, more)])
    after: dict[int, Any] = {}
    resumed = Loader(data, batch_size=4, prefetch=0)
    resumed.load_state_dict(state)
    run(resumed, 30, after.__setitem__)
    # The current epoch is completed with the previous files.
    border = int(data.position_of_part("c4", [len(part.source)])[0])
    same = [step for step in after if 4 * (step + 1) <= border]
    assert len(same) > 3
    for step in same:
        assert_same(after[step], before[step])
    assert any((after[step]["inputs"] != before[step]["inputs"]).any() for step in after)
    # The next epoch of c4 serves the longer list of files: every token but the tail.
    grown: Any = data.parts["c4"]
    assert grown.epoch_at(len(part.source)) == 1
    places = range(len(part.source), len(part.source) + len(more))
    tokens = set(grown.gather(places)["inputs"].reshape(-1).tolist())
    new = {token for doc in docs(70, 30) for token in doc}
    assert len(new - tokens) <= more.report.tail
    visit = resumed.visited(("c4", 3, 5), epoch=1)
    assert visit.positions
    assert min(visit.positions) >= border
    # Once the epoch has begun, the state depends on its files.
    with pytest.raises(ValueError, match="in part 'c4', it was saved with a source in `grown` fr"):
        Loader(mixed(folder), batch_size=4).load_state_dict(resumed.state_dict())


def test_the_file_that_has_changed_is_named(folder: Path) -> None:
    loader = Loader(mixed(folder), batch_size=4, prefetch=0)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    Loader(mixed(folder), batch_size=3).load_state_dict(state)
    changed = [[token + 1 for token in doc] for doc in docs(20, 20)]
    write_lists(folder / "dataset=c4" / "b.part2.arrow", changed)
    with pytest.raises(ValueError, match=r"in part 'c4', .*files below .* have changed"):
        Loader(mixed(folder), batch_size=4).load_state_dict(state)


def test_paths_are_in_no_state(folder: Path, tmp_path: Path) -> None:
    state = Loader(mixed(folder), batch_size=4).state_dict()
    assert str(tmp_path) not in json.dumps(state)
    moved = folder.rename(tmp_path / "elsewhere")
    Loader(mixed(moved), batch_size=5).load_state_dict(state)


@pytest.mark.parametrize("garbage", ["", "x", "1:2:3", "-1:5", 7, None, [1], {"a": 1}, 2**70])
def test_states_from_elsewhere_are_refused_whatever_they_hold(folder: Path, garbage: Any) -> None:
    loader = Loader(mixed(folder, schedule=[(5, {"c4": 1, "wiki": 1})]), batch_size=8, prefetch=0)
    next(iter(loader))
    state = loader.state_dict()
    for field in state["fingerprint"]:
        foreign = {**state, "fingerprint": {**state["fingerprint"], field: garbage}}
        if state["fingerprint"][field] != garbage:
            with pytest.raises(ValueError, match=r"^the state does not belong to this data: "):
                loader.load_state_dict(foreign)
    strange = {**state, "fingerprint": {**state["fingerprint"], str(garbage): garbage, 5: garbage}}
    if garbage is not None:
        with pytest.raises(ValueError, match=r"^the state does not belong to this data: "):
            loader.load_state_dict(strange)
    assert loader.position == 8


def test_a_state_of_one_part_alone_is_not_that_of_a_mixture(folder: Path) -> None:
    stream = mixed(folder)
    part = stream.parts["c4"]
    assert part is not None
    mixture = Loader(stream, batch_size=4, prefetch=0)
    alone = Loader(part, batch_size=4, prefetch=0)
    for one, other in ((mixture, alone), (alone, mixture)):
        with pytest.raises(ValueError, match=r"^the state does not belong to this data: its fing"):
            one.load_state_dict(other.state_dict())
