"""A model of incremental saves in plain Python: states, and the save that wrote each chunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

CHUNK = 16

State = dict[str, torch.Tensor]
#: Of a chunk: its tensor's name, its number.
Name = tuple[str, int]


def copied(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def chunks(state: State) -> dict[Name, bytes]:
    """Return the bytes of all tensors, split into chunks."""
    found = {}
    for name, tensor in state.items():
        raw = tensor.numpy().tobytes()
        step = max(1, CHUNK // tensor.dtype.itemsize) * tensor.dtype.itemsize
        for number, at in enumerate(range(0, len(raw), step)):
            found[name, number] = raw[at : at + step]
    return found


def kinds(state: State) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in state.items()}


@dataclass
class Saved:
    """A generation: its state, and for each chunk the generation that wrote it."""

    state: State
    written_by: dict[Name, int]
    has_digests: bool

    def bases(self, own: int) -> tuple[int, ...]:
        return tuple(sorted(set(self.written_by.values()) - {own}))


@dataclass
class Model:
    """The generations that are kept, by number, newest last."""

    kept: dict[int, Saved] = field(default_factory=dict)

    def save(self, generation: int, state: State, *, incremental: bool, longest: int) -> None:
        now = chunks(state)
        written_by = dict.fromkeys(now, generation)
        last = list(self.kept)[-1:]
        if incremental and last:
            was = self.kept[last[0]]
            if was.has_digests and len(was.bases(last[0])) + 1 <= longest:
                old, alike = chunks(was.state), kinds(was.state).items() & kinds(state).items()
                same = {name for name, _ in alike}
                for name in now:
                    if name[0] in same and old[name] == now[name]:
                        written_by[name] = was.written_by[name]
        self.kept[generation] = Saved(copied(state), written_by, incremental)

    def gc(self, keep: int) -> None:
        for generation in list(self.kept)[:-keep]:
            del self.kept[generation]

    def chunks_there(self) -> set[tuple[int, str, int]]:
        """Return generation, tensor and index of every chunk that a store should hold."""
        return {
            (writer, *name)
            for saved in self.kept.values()
            for name, writer in saved.written_by.items()
        }


def log_of(model: Model) -> list[tuple[int, tuple[int, ...]]]:
    """Return the generations and their bases, newest first."""
    return [(number, saved.bases(number)) for number, saved in reversed(model.kept.items())]


def named(keys: Iterable[bytes], items: dict[int, list[str]]) -> set[tuple[int, str, int]]:
    """Translate keys of chunks in a store to (generation, tensor name when saved, chunk index)."""
    found = set()
    for key in keys:
        head, letter, writer, item, number = key.split(b"/")
        generation = int(head.removeprefix(b"~windeck~"), 16)
        assert (letter, int(writer, 16)) == (b"t", 0)
        name = items[generation][int(item, 16)]
        found.add((generation, name, int(number, 16)))
    return found
