"""Was a document visited, and when? Answered from the state, and once more from the logs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windeck.loader import Loader
from windeck.tools.states import read
from windeck.tools.text import job, rows
from windeck.tools.text.oracle import Name, Oracle
from windeck.tools.text.relay import AFTER, Relay
from windeck.visits import Visit

#: The document of a dataset's first part that is asked for, if it has so many.
ASKED = 17

#: Epochs that are told of, the last ones.
MANY = 3


@dataclass(frozen=True)
class Answer:
    """When a document was or will be trained on, and whether the logs say so too."""

    words: str
    as_logged: bool


def some_documents(oracle: Oracle) -> list[Name]:
    """One of the smallest dataset, likely to have been visited, and one of the largest."""
    ordered = sorted(oracle.shelves, key=lambda shelf: shelf.tokens)
    chosen = list(dict.fromkeys((ordered[0].dataset, ordered[-1].dataset)))
    by_name = {shelf.dataset: shelf for shelf in ordered}
    return [
        (name, by_name[name].parts[0], max(0, min(ASKED, by_name[name].counts[0] - 1)))
        for name in chosen
    ]


def ask(task: job.Job, relay: Relay, oracle: Oracle, document: Name) -> list[Answer]:
    """Asks a loader that was given the last state, for every epoch of the document's dataset so
    far, and looks the answers up in the logs."""
    loader = Loader(job.mix(task), batch_size=task.batch_size, rank=0, world_size=AFTER)
    loader.load_state_dict(json.loads(read(relay.state)["loader"]))
    last = loader.visited(document).epoch or 0
    visits = [loader.visited(document, epoch=epoch) for epoch in range(last + 1)][-MANY:]
    return [Answer(words(visit), as_logged(visit, relay, oracle, document)) for visit in visits]


def words(visit: Visit) -> str:
    """What a visit says, for people; the loader counts from 0, they from 1."""
    which = f"its epoch {(visit.epoch or 0) + 1}"
    if not visit.positions:
        return f"{which}: no, it has no place there"
    steps = sorted({step + 1 for step in visit.steps if step is not None})
    told = (("step", steps), ("position", visit.positions))
    when = ", ".join(_from_to(word, numbers) for word, numbers in told if numbers)
    if visit:
        return f"{which}: yes, in {when}"
    if not visit.served:
        return f"{which}: not yet, it comes in {when}"
    return f"{which}: {visit.served} of its {visit.sequences} sequences, in {when}"


def as_logged(visit: Visit, relay: Relay, oracle: Oracle, document: Name) -> bool:
    """Whether the rows that hold the document, by the oracle's account, were logged just so."""
    kept = [own[own[:, rows.STEP] <= relay.saved_step] for own in relay.killed.records]
    logged = np.concatenate((*kept, *relay.resumed.records))[:, [rows.STEP, rows.POSITION]].tolist()
    holding = {
        (step, position)
        for step, position in logged
        if document in oracle.row(position).names and oracle.epoch(position) == visit.epoch
    }
    pairs = zip(visit.steps, visit.positions, strict=True)
    told = {(step + 1, position) for step, position in pairs if step is not None}
    end = max(position for _, position in logged) + 1
    return holding == {pair for pair in told if pair[1] < end} and visit.served == len(holding)


def _from_to(word: str, numbers: Sequence[int]) -> str:
    """For example "step 5", "steps 5 and 6", "9 steps from 5 to 17"."""
    if len(numbers) > 2:
        return f"{len(numbers):,} {word}s from {numbers[0]:,} to {numbers[-1]:,}"
    many = "s" if len(numbers) == 2 else ""
    return f"{word}{many} {' and '.join(f'{number:,}' for number in numbers)}"
