"""What incremental saves have to do, in plain Python: states, and who wrote each chunk of them."""

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
    """The bytes of all tensors, cut."""
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
    """A generation: its state, and of each chunk, the generation that wrote it."""

    state: State
    written_by: dict[Name, int]
    has_digests: bool

    def bases(self, own: int) -> tuple[int, ...]:
        return tuple(sorted(set(self.written_by.values()) - {own}))


@dataclass
class Model:
    """All that is kept, newest last, by generation."""

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
        """Generation, tensor and number of each chunk that a store may and must have."""
        return {
            (writer, *name)
            for saved in self.kept.values()
            for name, writer in saved.written_by.items()
        }


def log_of(model: Model) -> list[tuple[int, tuple[int, ...]]]:
    """Generations and their bases, the newest first."""
    return [(number, saved.bases(number)) for number, saved in reversed(model.kept.items())]


def named(keys: Iterable[bytes], items: dict[int, list[str]]) -> set[tuple[int, str, int]]:
    """Keys of chunks in a store, with the names their tensors had when they were saved."""
    found = set()
    for key in keys:
        _, letter, generation, writer, item, number = key.split(b"/")
        assert (letter, int(writer, 16)) == (b"t", 0)
        name = items[int(generation, 16)][int(item, 16)]
        found.add((int(generation, 16), name, int(number, 16)))
    return found
