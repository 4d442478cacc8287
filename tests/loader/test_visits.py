"""Visits of documents, compared with a log that is kept while batches are handed out."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from models.oracle import Numbers
from models.packed_model import Document, Packed
from windeck import Loader, Mixture, Stream
from windeck.loader import Visit

C4, WIKI = [3, 9, 1, 6, 2, 7], [5, 5, 4, 11]


def documents_in(inputs: list[int], targets: list[int]) -> set[Document]:
    """Return the documents whose tokens a row of a batch contains."""
    tokens = {*inputs, *targets}
    return {("wiki" if t >= 10**5 else "c4", 0, t % 10**5 // 1000) for t in tokens}


def mixture(schedule: Any = ()) -> Mixture:
    parts = {"web": (Packed(C4), 2), "more": (Packed(WIKI, name="wiki", salt=10**5), 1)}
    return Mixture(parts, seed=3, schedule=schedule)


class Log:
    """A log of what was handed out: the steps of each document, and its rows by position."""

    def __init__(self) -> None:
        self.steps: defaultdict[Document, list[int]] = defaultdict(list)
        self.rows: dict[tuple[int, int], list[set[Document]]] = {}

    def run(self, data: Any, legs: list[tuple[int, int, int]]) -> list[Loader]:
        """Run legs (batch size, ranks, steps), each resumed from the state of the previous one."""
        state = None
        loaders: list[Loader] = []
        for batch_size, ranks, steps in legs:
            loaders = [
                Loader(data, batch_size=batch_size, rank=rank, world_size=ranks, prefetch=0)
                for rank in range(ranks)
            ]
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
                for _ in range(steps):
                    self.note(loader, next(iter(loader)))
            state = json.loads(json.dumps(loaders[0].state_dict()))
        return loaders

    def note(self, loader: Loader, batch: Any) -> None:
        step = loader.step - 1
        rows = [
            documents_in(a, b)
            for a, b in zip(batch["inputs"].tolist(), batch["targets"].tolist(), strict=True)
        ]
        self.rows[step, loader.rank] = rows
        for row in rows:
            for document in row:
                self.steps[document].append(step)


def test_every_document_of_a_stream_is_found_in_the_log() -> None:
    # 6 sequences per epoch: everything served so far belongs to the first epoch.
    packed = Packed([9, 4, 1, 30, 2, 17, 8, 8, 21])
    stream = Stream(packed, seed=2)
    log = Log()
    legs = [(2, 2, 2), (3, 1, 2), (1, 3, 2)]
    (loader, *_) = log.run(stream, legs)
    served = loader.position
    assert served == 20 < len(packed)
    epoch = packed.at_epoch(0, seed=2)
    for number in range(9):
        document = ("c4", 0, number)
        visit = loader.visited(document)
        expected = [s for s in range(len(packed)) if any(d == number for d, _ in epoch.sequence(s))]
        assert visit.positions == tuple(expected)
        assert visit.served == sum(position < served for position in expected)
        assert bool(visit) == (visit.served == len(expected) > 0)
        assert (visit.document, visit.epoch, visit.sequences) == (document, 0, len(expected))
        done = [s for p, s in zip(visit.positions, visit.steps, strict=True) if p < served]
        assert sorted(log.steps[document]) == done
        # The future steps are those that follow.
        assert all(step is not None and step >= loader.step for step in visit.steps[len(done) :])


def test_every_document_of_a_mixture_is_found_in_the_log() -> None:
    data = mixture()
    log = Log()
    loaders = log.run(data, [(3, 2, 2), (1, 3, 4), (5, 1, 3)])
    loader = loaders[0]
    found: defaultdict[Document, list[int]] = defaultdict(list)
    for name, lengths in (("c4", C4), ("wiki", WIKI)):
        part = "web" if name == "c4" else "more"
        stream: Any = data.parts[part]
        now = stream.epoch_at(data.position_in_part(part, loader.position))
        for number in range(len(lengths)):
            for epoch in range(now + 1):
                visit = loader.visited((name, 0, number), epoch=epoch)
                assert visit.epoch == epoch
                assert visit.sequences == len(visit.positions)
                for position, step in zip(visit.positions, visit.steps, strict=True):
                    if position < loader.position:
                        assert step is not None
                        found[name, 0, number].append(step)
            document = (name, 0, number)
            visit = loader.visited(document)
            assert visit == loader.visited(document, epoch=now) == loader.visited(list(document))
            alone = loader.visited((part, document))
            assert dataclasses.replace(alone, document=document) == visit
    assert {document: sorted(steps) for document, steps in found.items() if steps} == {
        document: sorted(steps) for document, steps in log.steps.items()
    }


def test_pieces_of_a_step_are_those_of_its_rows() -> None:
    log = Log()
    loaders = log.run(mixture(), [(3, 2, 2), (1, 3, 4), (5, 1, 3)])
    for (step, rank), rows in log.rows.items():
        pieces = loaders[0].documents(step, rank=rank)
        assert [{piece[:3] for piece in row} for row in pieces] == rows
        # A sequence of 4 contains 5 tokens, including the target of the last one.
        assert all(sum(piece[4] - piece[3] for piece in row) == 5 for row in pieces)
    assert loaders[0].documents(8) == loaders[0].documents(8, rank=0)
    assert loaders[0].samples(8).shape == (5, 2)


def test_a_sample_of_a_mixture_is_asked_for_by_its_part() -> None:
    stream = mixture()
    loader = Loader(stream, batch_size=4, prefetch=0)
    loop = iter(loader)
    for _ in range(2):
        next(loop)
    for step in range(4):
        for row, sample in enumerate(loader.samples(step).tolist()):
            epoch = stream.epoch_of(sample, at=4 * step + row)
            assert loader.step_of(sample, epoch=epoch) == step
            assert loader.visited(sample, epoch=epoch) == (step < 2)
            if epoch == stream.epoch_of(sample, at=8):
                assert loader.step_of(tuple(sample)) == step
                assert loader.visited(tuple(sample)) == (step < 2)


def test_excluded_and_dropped_sequences_were_not_visited() -> None:
    packed = Packed([4] * 12)  # 11 sequences, of which steps of 3 drop 2.
    loader = Loader(Stream(packed), batch_size=3, drop_last=True, prefetch=0)
    loader.exclude(1, 2)
    for _ in range(2):
        for _ in loader:
            pass
    epoch = packed.at_epoch(0, seed=0)
    skipped = {1, 10}  # The excluded one, and the last of the other 10.
    for number in range(12):
        visit = loader.visited(("c4", 0, number), epoch=0)
        expected = [s for s in range(11) if any(d == number for d, _ in epoch.sequence(s))]
        assert visit.positions == tuple(expected)
        assert [step is None for step in visit.steps] == [p in skipped for p in expected]
        assert visit.served == len(set(expected) - skipped)
        assert bool(visit) == (not set(expected) & skipped)
    assert not loader.visited(10, epoch=0)
    assert loader.visited(9, epoch=0)


def test_documents_without_sequences_were_not_visited() -> None:
    packed = Packed([9, 0, 2])  # An empty document, and one in the dropped tail.
    loader = Loader(Stream(packed), batch_size=1, prefetch=0)
    for _ in loader:
        pass
    lost = loader.visited(("c4", 0, 1), epoch=0)
    assert lost == Visit(("c4", 0, 1), 0, (), (), 0, 0)
    assert not lost


def test_before_the_record_begins_a_visit_has_no_step() -> None:
    stream = Stream(Packed([9, 4, 1, 30]))
    loader = Loader(stream, batch_size=2)
    loader.load_state_dict(
        {**{k: v for k, v in loader.state_dict().items() if k in STATE}, "position": 4}
    )
    visit = loader.visited(("c4", 0, 0))
    assert (visit.positions, visit.steps, visit.served) == ((0, 1, 2), (None, None, None), 3)
    assert visit
    assert loader.visited(0)


STATE = ("position", "fingerprint", "order_version")


def test_sequences_that_are_never_served_again_count_as_missing() -> None:
    stream = mixture([(9, {"web": 1, "more": 0})])
    loader = Loader(stream, batch_size=9, prefetch=0)
    next(iter(loader))
    assert stream.position_in_part("more", 9) == 3
    visits = [loader.visited(("wiki", 0, number)) for number in range(4)]
    for visit in visits:
        assert len(visit.positions) == visit.served < visit.sequences or visit
        assert bool(visit) == (visit.served == visit.sequences)
    assert any(visits)
    assert not all(visits)
    assert loader.step_of((1, 5)) is None
    assert not loader.visited((1, 5))


def test_a_document_of_several_parts_is_in_all_of_them() -> None:
    packed = Packed(C4)
    both = Mixture({"a": (packed, 1), "b": (Stream(packed, seed=5), 1)})
    parts: dict[str, Any] = both.parts
    one, two = (
        {int(both.position_of_part(n, [p])[0]) for p in parts[n].document_positions(D, at=0)}
        for n in "ab"
    )
    assert set(both.document_positions(D, at=0).tolist()) == one | two
    assert set(both.document_positions(("a", D), at=0).tolist()) == one
    assert set(both.document_positions(("b", D), at=0).tolist()) == two
    loader = Loader(both, batch_size=4, prefetch=0)
    assert loader.visited(D).positions == tuple(sorted(one | two))
    uneven = Mixture({"a": (packed, 3), "b": (Stream(packed, seed=5), 1)})
    later = Loader(uneven, batch_size=12, prefetch=0)
    next(iter(later))
    assert later.visited(D).epoch is None


D = ("c4", 0, 3)


def test_what_is_not_there_and_who_knows_nothing() -> None:
    loader = Loader(mixture(), batch_size=2)
    with pytest.raises(KeyError, match=r"there is no shard 0 of 'x'"):
        loader.visited(("x", 0, 1))
    with pytest.raises(IndexError, match=r"^document 9 is out of range$"):
        loader.visited(("c4", 0, 9))
    with pytest.raises(TypeError, match=r"^Numbers has no sequences_of\(\)$"):
        Loader(Numbers(5), batch_size=2).visited(("c4", 0, 1))
    with pytest.raises(TypeError, match=r"^Numbers has no documents\(\)$"):
        Loader(Numbers(5), batch_size=2).documents(0)
    plain = Mixture({"a": (Numbers(5), 1)})
    with pytest.raises(TypeError, match=r"^Numbers has no sequences_of\(\)$"):
        Loader(plain, batch_size=2).visited(("c4", 0, 1))
    # Parts without documents are skipped.
    rows = {"a": (Packed(C4), 1), "b": (Bare(), 1)}
    found = Mixture(rows)
    part: Any = found.parts["a"]
    own = part.document_positions(D, at=0)
    inside = found.position_of_part("a", own).tolist()
    assert found.document_positions(D, at=0).tolist() == inside != []

    class Endless:
        epoch_length = None
        fingerprint = {"endless": 1}  # noqa: RUF012

        def gather(self, positions: Any, out: Any = None) -> Any:
            return {"p": np.asarray(positions)}

    with pytest.raises(TypeError, match=r"^Endless has no document_runs\(\)$"):
        Loader(Endless(), batch_size=2).visited(("c4", 0, 1))
    with pytest.raises(TypeError, match=r"^Endless has no position_of\(\)$"):
        Loader(Endless(), batch_size=2).visited(1)
    bare = Mixture({"a": (Endless(), 1)})
    with pytest.raises(TypeError, match=r"^no part of the mixture has documents$"):
        bare.document_positions(D, at=0)
    with pytest.raises(TypeError, match=r"^Endless has no samples\(\)$"):
        bare.samples([0])


class Bare(Packed):
    """A source with rows like those of documents and without methods for documents."""

    at_epoch = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__([9, 9])

    def gather_rows(self, indices: Any, out: Any = None, threads: int | None = None) -> Any:
        return Packed.at_epoch(self, 0, seed=0).gather_rows(indices, out, threads)


@pytest.mark.parametrize(
    ("visit", "line"),
    [
        (
            Visit(("a", 1, 2), 3, (5,), (7,), 1, 1),
            "('a', 1, 2) in epoch 3: 1 of 1 sequence served, dealt at step 7",
        ),
        (
            Visit(("a", 1, 2), None, (), (), 0, 0),
            "('a', 1, 2) in several epochs: 0 of 0 sequences served, dealt at no step",
        ),
        (
            Visit(("a", 1, 2), 0, (1, 2, 3), (4, None, 4), 5, 1),
            "('a', 1, 2) in epoch 0: 1 of 5 sequences served, dealt at step 4",
        ),
        (
            Visit(("a", 1, 2), 0, tuple(range(10**4)), tuple(range(6, 10**4 + 6)), 10**4, 9),
            "('a', 1, 2) in epoch 0: 9 of 10000 sequences served, dealt at steps 6 to 10005",
        ),
    ],
)
def test_a_visit_is_told_in_one_line(visit: Visit, line: str) -> None:
    assert str(visit) == line


def test_a_document_of_several_parts_is_asked_for_by_part() -> None:
    """Whatever is nested; the parts have other documents of the same names."""
    for other in (Packed(WIKI, name="c4", salt=10**5), Packed(C4, salt=10**5)):
        data = Mixture({"web": (Packed(C4), 2), "more": (other, 1)}, seed=3)
        nested = Mixture({"all": (data, 3), "rest": (Packed(WIKI, name="wiki"), 1)}, seed=1)
        for stream, way in ((data, ()), (nested, ("all",))):
            loader = Loader(stream, batch_size=2, prefetch=0)
            for _ in range(6):
                next(iter(loader))
            for document in (("c4", 0, 1), ("c4", 0, 3)):
                words = r"the parts web, more of the mixture each have a document \('c4', 0, \d\)"
                with pytest.raises(KeyError, match=words):
                    loader.visited(document)
                with pytest.raises(KeyError, match="or \\('more', "):
                    stream.document_positions(document, at=0)
                found = []
                for part in ("web", "more"):
                    asked: Any = (part, document)
                    for name in reversed(way):
                        asked = (name, asked)
                    found.append(loader.visited(asked))
                assert [visit.epoch is None for visit in found] == [False, False]
                assert not {*found[0].positions} & {*found[1].positions}
            if stream is nested:  # of a name that one part has
                assert loader.visited(("wiki", 0, 1)).sequences > 0
