"""A model of a source of packed documents, in plain lists.

It shuffles by itself, so a stream asks it for each epoch. It can also report in which sequences a
document was served. It is slow and simple.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = dict[str, NDArray[Any]]
Document = tuple[str, int, int]


class Packed:
    """Documents of given lengths, concatenated and cut into sequences of `length` tokens.

    Token t of document d is ``salt + 1000 * d + t``. In epoch e of seed s the documents begin
    with number (7 * s + 3 * e) mod their count, and go round.
    """

    supports_threads = True

    def __init__(
        self,
        lengths: list[int],
        length: int = 4,
        *,
        name: str = "c4",
        salt: int = 0,
        dtype: str = "int64",
    ) -> None:
        self.lengths, self.length, self.name, self.salt = lengths, length, name, salt
        self.dtype = dtype
        self.threads: list[int | None] = []
        self.outs = 0

    def __len__(self) -> int:
        return (sum(self.lengths) - 1) // self.length

    @property
    def fingerprint(self) -> dict[str, str | int]:
        lengths = " ".join(map(str, self.lengths))
        return {"name": self.name, "lengths": lengths, "length": self.length, "salt": self.salt}

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        return f"the documents were {was} long" if field == "lengths" else None

    def at_epoch(self, epoch: int, /, *, seed: int) -> PackedEpoch:
        return PackedEpoch(self, (7 * seed + 3 * epoch) % len(self.lengths))

    def gather(self, indices: NDArray[np.int64], out: Batch | None = None) -> Batch:
        return self.at_epoch(0, seed=0).gather(indices, out)

    def gather_rows(
        self, indices: NDArray[np.int64], out: Batch | None = None, threads: int | None = None
    ) -> Batch:
        return self.at_epoch(0, seed=0).gather_rows(indices, out, threads)

    def whole(self, rows: Batch) -> Batch:
        """Return the bounds of documents and rows in the flattened batch."""
        flat = rows["position_ids"].reshape(-1).tolist()
        starts = [place for place, position in enumerate(flat) if position == 0 and place]
        ends = [0, *starts, len(flat)] if flat else [0]
        return {"cu_seqlens": np.array(ends, np.int32)}

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        tokens = batch.pop("tokens")
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], **batch}


class PackedEpoch:
    """The sequences of one epoch."""

    supports_threads = True

    def __init__(self, packed: Packed, first: int) -> None:
        self.packed = packed
        documents = [(first + i) % len(packed.lengths) for i in range(len(packed.lengths))]
        #: All tokens of the epoch: (document, index of the token within it).
        self.stream = [(d, t) for d in documents for t in range(packed.lengths[d])]

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def fingerprint(self) -> dict[str, str | int]:
        return self.packed.fingerprint

    def sequence(self, index: int) -> list[tuple[int, int]]:
        length = self.packed.length
        assert 0 <= index < len(self)
        return self.stream[index * length : index * length + length + 1]

    def gather_rows(
        self, indices: NDArray[np.int64], out: Batch | None = None, threads: int | None = None
    ) -> Batch:
        packed = self.packed
        packed.threads.append(threads)
        rows: Batch = {
            "tokens": np.empty((len(indices), packed.length + 1), packed.dtype),
            "position_ids": np.empty((len(indices), packed.length), packed.dtype),
        }
        if out is not None:
            assert {key: array.shape for key, array in out.items()} == {
                key: array.shape for key, array in rows.items()
            }
            packed.outs += 1
            rows = out
        for row, index in enumerate(indices.tolist()):
            pieces = self.sequence(index)
            position = 0
            for place, (document, token) in enumerate(pieces):
                rows["tokens"][row, place] = packed.salt + 1000 * document + token
                position = 0 if token == 0 or place == 0 else position + 1
                if place < packed.length:
                    rows["position_ids"][row, place] = position
        return rows

    def gather(self, indices: NDArray[np.int64], out: Batch | None = None) -> Batch:
        rows = self.gather_rows(indices, out)
        return self.packed.present({**rows, **self.packed.whole(rows)})

    def documents(self, index: int) -> list[tuple[str, int, int, int, int]]:
        """Return the pieces of a sequence: (name, 0, document, first token, end token)."""
        pieces: list[tuple[str, int, int, int, int]] = []
        for document, token in self.sequence(index):
            if pieces and pieces[-1][2] == document:
                pieces[-1] = (*pieces[-1][:4], token + 1)
            else:
                pieces.append((self.packed.name, 0, document, token, token + 1))
        return pieces

    def sequences_of(self, document: Document) -> NDArray[np.int64]:
        name, shard, number = document
        if name != self.packed.name or shard != 0:
            raise KeyError(f"there is no shard {shard} of {name!r}")
        if not 0 <= number < len(self.packed.lengths):
            raise IndexError(f"document {number} is out of range")
        found = [s for s in range(len(self)) if any(d == number for d, _ in self.sequence(s))]
        return np.array(found, np.int64)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that two batches of arrays or tensors have equal keys, dtypes and contents."""
    assert sorted(one) == sorted(other)
    for key in one:
        found, expected = np.asarray(one[key]), np.asarray(other[key])
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
