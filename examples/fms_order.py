"""Documents in the order of fms-fsdp, so that a run can move over to windeck in its middle.

    python examples/fms_order.py [CORPUS --dataset NAME] [--rank 0 --world-size 2] [--state FILE]

fms-fsdp's `StreamingDocDataset` remembers three integers: which document of the epoch it is at
(`docset_index`), which chunk of that document it gave last (`chunk_index`), and the document drawn
before it (`lcg_state`). `FmsOrder` takes such a state and goes on, chunk for chunk, on top of
`windeck.Documents` and `windeck.LCG`. To move over, let every worker finish its epoch with
`FmsOrder.rest_of_epoch`, then begin the next one with `windeck.PackedSequences`::

    order = FmsOrder("corpus", "c4", rank=rank, world_size=world_size, delimiter=0, seed=42)
    order.load_state_dict(torch.load(f"loader_state_{rank}.pth"))
    for chunk in order.rest_of_epoch():
        ...

A checkpoint of the layers that fms-fsdp ships has this state inside: under
``SamplingDataset.sample_iterator_states[i]``, one for each dataset, and there under
``ScalableShardDataset.logical_shard_states[k]``, one for each logical shard of the worker. Give the
whole checkpoint; `FmsOrder` finds its own. The rank is then the number of the logical shard, and
the world size the number of all of them.

The order
---------
1. The files of a dataset are sorted by path, as strings (part10 before part3).
2. A rank owns a range of documents of each of several neighbouring files. With
   ``ownership="pieces"`` these are S of the W * S pieces into which S files are cut, W each: the
   released loader, whose `StreamingDocDataset` (`Streaming_Doc_Dataset` in its first releases) has
   a list `shardfrags`. With ``ownership="bytes"`` they are those between the fractions rank / W and
   (rank + 1) / W of all *bytes*: development versions whose `setup` calls `os.path.getsize`. Files
   that only touch a rank's share are in the list with no documents.
3. The list of files is shuffled by ``random.seed(seed + rank)``, once.
4. Within a file's owned range of n documents: state = (5 * state + 2 * (rank + seed) + 1) mod m,
   with m the least power of two >= n; states >= n are skipped; the value is the next state. The
   first file begins with the state seed + rank, each other where the one before it ended.
5. ``[bos] + document + [delimiter]`` is given in chunks of `max_chunksize`, after at most one token
   of `strip_tokens` has been taken off either end. What is shorter than `min_length`, framed, is
   left out.

Known weaknesses that are **the same here**, for without them it would be another order: every epoch
has the same order; a rank never sees another's documents; ranges by bytes can be uneven in
documents, ranges by pieces in everything (four files of 10^6, 10, 10 and 10 documents go to one of
four ranks each); even and odd documents alternate where n is a power of two, and the walks of two
ranks through ranges of so many are translations or mirror images of one another.

Defects that are **not** repeated:

* An empty document is passed over. There, the walk does not move on after it, so that it draws the
  same empty document until the file's turn is over, and the rest of the file is lost.
* A document that is nothing but one strip token counts as empty; there, it ends the run.
* Every epoch begins with the state seed + rank, resumed or not. There, a resumed process carries
  its state over the end of the epoch and serves the next one in an order that depends on where
  it was resumed; with several files it may also repeat some documents and leave out others.
* `epochs_seen` counts an epoch once, also when its first document is resumed.
* A rank that owns no documents is told so; there, it fails while unpacking None.
* The modulus is exact for every n; there, it goes through a floating logarithm.

windeck itself needs none of this, and no logical shards either. Those exist because a rank's
progress is bound to the files it owns: to resume on other ranks, many small workers with a state
each have to be dealt out anew, their number fixed for ever and a multiple of every world size; with
more logical shards than documents in a file, most own nothing of it. In windeck a position
means the same sample whoever asks, so ranks own nothing, and the state of the whole job is one
integer that any number of ranks, also a prime one, can go on from.
"""

import argparse
import glob
import json
import os
import random
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import windeck as wd

#: What fms-fsdp puts before the names in a state.
PREFIX = "StreamingDocDataset."

#: Drawn at a time, so that a walk needs no list of a file's documents.
DRAWN = 1024


@dataclass(frozen=True)
class Range:
    """The documents [start, stop) of one file that a rank owns."""

    file: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Visit:
    """One document of an epoch: its number there, where it lies, and the state before it."""

    index: int
    shard_id: int
    doc_id: int
    lcg_state: int


def owned_by_bytes(
    sizes: Sequence[int], documents: Sequence[int], rank: int, world_size: int
) -> list[Range]:
    """The files between two fractions of all bytes. In floats, step by step, as it is done there:
    how a border is rounded decides to which rank a document belongs."""
    total = sum(sizes)
    borders = (rank / world_size, (rank + 1) / world_size)
    owned, before = [], 0.0
    for file, size in enumerate(sizes):
        share = size / total
        if before <= borders[1] and before + share >= borders[0]:
            inside = [min(max((border - before) / share, 0), 1) for border in borders]
            owned.append(Range(file, *(round(documents[file] * part) for part in inside)))
        before += share
    return owned


def owned_by_pieces(
    sizes: Sequence[int], documents: Sequence[int], rank: int, world_size: int
) -> list[Range]:
    """S neighbouring pieces of the W * S into which S files are cut."""
    first, last = rank * len(sizes), (rank + 1) * len(sizes) - 1
    owned = []
    for file in range(first // world_size, last // world_size + 1 if sizes else 0):
        low = max(first - file * world_size, 0)
        high = min(last - file * world_size, world_size - 1)
        cuts = (documents[file] * piece // world_size for piece in (low, high + 1))
        owned.append(Range(file, *cuts))
    return owned


Ownership = Callable[[Sequence[int], Sequence[int], int, int], list[Range]]
OWNERSHIP: dict[str, Ownership] = {"bytes": owned_by_bytes, "pieces": owned_by_pieces}


class FmsOrder:
    """One worker's documents in fms-fsdp's order, as lists of tokens; iterates for ever.

    Parameters
    ----------
    root
        A corpus as `windeck.Documents` reads it.
    dataset
        The name in ``dataset=NAME``.
    rank, world_size
        The worker's. A `DataLoader` with several workers counts as so many ranks; a logical shard
        counts as a rank, with their number as the world size.
    delimiter, bos, strip_tokens, seed, min_length, max_chunksize
        As given to fms-fsdp, and with its defaults.
    ownership
        ``"pieces"``, as the released loader, or ``"bytes"``; see the module.

    Raises
    ------
    ValueError
        When the rank owns no documents, with what there is.
    """

    def __init__(
        self,
        root: str | Path,
        dataset: str,
        *,
        rank: int,
        world_size: int,
        delimiter: int,
        bos: int | None = None,
        strip_tokens: Collection[int] = (),
        seed: int = 42,
        min_length: int = 1,
        max_chunksize: int = 1024,
        ownership: str = "pieces",
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank has to be in [0, {world_size}), got {rank}")
        if max_chunksize < 1:
            raise ValueError(f"max_chunksize has to be at least 1, got {max_chunksize}")
        if ownership not in OWNERSHIP:
            raise ValueError(f"ownership has to be 'bytes' or 'pieces', got {ownership!r}")
        self.documents = wd.Documents(root, files=f"dataset={glob.escape(dataset)}")
        self.dataset = dataset
        self.rank, self.world_size, self.seed = rank, world_size, seed
        self.delimiter, self.bos, self.strip_tokens = delimiter, bos, frozenset(strip_tokens)
        self.min_length, self.max_chunksize = min_length, max_chunksize
        folder = Path(root) / f"dataset={dataset}"
        files = arrow_files(folder)
        self.shard_ids = shard_numbers(files)
        if len(files) != len(self.documents.shard_documents):
            raise ValueError(
                f"{folder} has {len(files)} Arrow files, windeck reads "
                f"{len(self.documents.shard_documents)} shards: expected names that end in .arrow"
            )
        numbers = [self.documents.shard_index(dataset, part) for part in self.shard_ids]
        counts = [int(self.documents.shard_documents[number]) for number in numbers]
        sizes = [os.path.getsize(folder / file) for file in files]
        self.ranges = OWNERSHIP[ownership](sizes, counts, rank, world_size)
        random.Random(seed + rank).shuffle(self.ranges)
        self.length = sum(map(len, self.ranges))
        if not self.length:
            raise ValueError(
                f"rank {rank} of {world_size} owns none of the {sum(counts)} documents in "
                f"{len(files)} files of {folder}: expected fewer ranks"
            )
        self.docset_index, self.chunk_index, self.lcg_state = 0, -1, seed + rank
        self.epochs_seen, self.tokens_seen, self.docs_seen = -1, 0, 0

    def __len__(self) -> int:
        """Documents in an epoch of this rank, empty and short ones counted."""
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from self.rest_of_epoch()

    def rest_of_epoch(self) -> Iterator[list[int]]:
        """The chunks from here to the end of the epoch; afterwards, all is set for the next one."""
        if self.docset_index == 0 and self.chunk_index < 0:
            self.epochs_seen += 1
        for visit in self.walk():
            given = self.chunk_index if visit.index == self.docset_index else -1
            chunks = self.chunks(visit)
            self.docset_index, self.lcg_state = visit.index, visit.lcg_state
            for number in range(given + 1, len(chunks)):
                self.chunk_index = number
                framing = (number == len(chunks) - 1) + (number == 0 and self.bos is not None)
                self.tokens_seen += len(chunks[number]) - framing
                self.docs_seen += number == len(chunks) - 1
                yield chunks[number]
        self.docset_index, self.chunk_index, self.lcg_state = 0, -1, self.seed + self.rank

    def walk(self) -> Iterator[Visit]:
        """The documents from the current one to the end of the epoch, read or not."""
        state, begin, before = self.lcg_state, self.docset_index, 0
        for own in self.ranges:
            index = max(before, begin)
            before += len(own)
            if index >= before:
                continue  # Done, or empty.
            increment = 2 * (self.rank + self.seed) + 1
            lcg = wd.LCG(len(own), multiplier=5, increment=increment, state=state)
            while index < before:
                for drawn in lcg.draw(min(DRAWN, before - index)).tolist():
                    yield Visit(index, self.shard_ids[own.file], own.start + drawn, state)
                    index, state = index + 1, drawn

    def chunks(self, visit: Visit) -> list[list[int]]:
        """A document, framed and cut; none where it is empty or too short."""
        number = self.documents.index((self.dataset, visit.shard_id, visit.doc_id))
        tokens = self.documents[number].tolist()
        if tokens and tokens[0] in self.strip_tokens:
            tokens = tokens[1:]
        if tokens and tokens[-1] in self.strip_tokens:
            tokens = tokens[:-1]
        framed = [*([] if self.bos is None else [self.bos]), *tokens, self.delimiter]
        if not tokens or len(framed) < self.min_length:
            return []
        return [
            framed[start : start + self.max_chunksize]
            for start in range(0, len(framed), self.max_chunksize)
        ]

    def state_dict(self) -> dict[str, Any]:
        """The state in fms-fsdp's own terms."""
        state = {
            "docset_index": self.docset_index,
            "chunk_index": self.chunk_index,
            "lcg_state": self.lcg_state,
            "epochs_seen": self.epochs_seen,
            "tokens_seen": self.tokens_seen,
            "docs_seen": self.docs_seen,
            "percent_seen": self.docs_seen * 100 / (self.length + 1e-9),
        }
        return {PREFIX + name: value for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a worker of fms-fsdp, of the same rank and world size, stopped.

        Parameters
        ----------
        state
            Its entries ``StreamingDocDataset.docset_index`` and so on, with or without what stands
            before the dot; others are ignored, and the three counts of what was seen may be absent.
            Or a whole checkpoint of that worker, in which these entries are nested.

        Raises
        ------
        KeyError
            When one of the three integers that matter is missing.
        ValueError
            For a document that this rank does not have, and for a state of another dataset.
        """
        own = self.own_state(state)
        if missing := {"docset_index", "chunk_index", "lcg_state"} - set(own):
            raise KeyError(f"the state has no {' and no '.join(sorted(missing))}")
        index = int(own["docset_index"])
        if not 0 <= index < self.length:
            raise ValueError(
                f"the state is at document {index}, rank {self.rank} of {self.world_size} has "
                f"{self.length}: expected the state of the same rank, files and world size"
            )
        self.docset_index = index
        self.chunk_index, self.lcg_state = int(own["chunk_index"]), int(own["lcg_state"])
        # What was never begun is counted when it begins.
        never = index == 0 and self.chunk_index < 0
        self.epochs_seen = int(own.get("epochs_seen", -1 if never else 0))
        self.tokens_seen = int(own.get("tokens_seen", 0))
        self.docs_seen = int(own.get("docs_seen", 0))

    def own_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of this dataset and rank in a checkpoint, without what stands before dots."""
        own = {str(name).rpartition(".")[2]: value for name, value in state.items()}
        if (datasets := own.get("sample_iterator_states")) is not None:
            found = [self.own_state(one) for one in datasets if self.dataset in dataset_names(one)]
            if len(found) != 1:
                raise ValueError(
                    f"the state has {len(found)} of its {len(datasets)} datasets named "
                    f"{self.dataset!r}: expected one"
                )
            return found[0]
        if (shards := own.get("logical_shard_states")) is not None:
            if self.world_size % len(shards):
                raise ValueError(
                    f"the state has {len(shards)} logical shards: expected a number that divides "
                    f"the world size {self.world_size}, which is that of all logical shards"
                )
            return self.own_state(shards[self.rank % len(shards)])
        if (names := dataset_names(state)) and self.dataset not in names:
            raise ValueError(
                f"the state belongs to the dataset {min(names)!r}: expected {self.dataset!r}"
            )
        return own


def dataset_names(state: Mapping[str, Any]) -> set[str]:
    """The datasets that a state names, at any depth."""
    names = set()
    for name, value in state.items():
        own = str(name).rpartition(".")[2]
        if own == "dataset":
            names.add(str(value).removeprefix("dataset="))
        elif own in ("sample_iterator_states", "logical_shard_states"):
            names.update(*map(dataset_names, value))
    return names


def arrow_files(folder: Path) -> list[str]:
    """The Arrow files at any depth below a folder, as sorted relative paths."""
    found = (path for path in folder.rglob("*") if "arrow" in path.suffix and path.is_file())
    return sorted(str(path.relative_to(folder)) for path in found)


def shard_numbers(files: Sequence[str]) -> list[int]:
    """The numbers that `windeck.Documents` gives to files: N of ``NAME.partN.arrow``, or else their
    places in the natural order of all paths."""
    found = [re.search(r"(?:^|\.)part([0-9]+)\.[^/]*$", file.split("/")[-1]) for file in files]
    if all(found):
        return [int(match[1]) for match in found if match]
    digits = re.compile("([0-9]+)")

    def natural(file: str) -> tuple[list[str | int], str]:
        parts: list[str | int] = list(digits.split(file))
        parts[1::2] = map(int, digits.findall(file))
        return parts, file

    places = {file: place for place, file in enumerate(sorted(files, key=natural))}
    return [places[file] for file in files]


def main() -> None:
    """Shows a worker's first chunks, and that one that is stopped and one that goes on give them
    too."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("corpus", nargs="?", type=Path, help="left out: Python's own sources")
    parser.add_argument("--dataset", default="stdlib-packages")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--state", type=Path, help="a worker's state, as JSON")
    parser.add_argument("--chunks", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = options.corpus or _own_corpus(Path(folder))
        settings = {"rank": options.rank, "world_size": options.world_size, "delimiter": 257}
        order, heir = (FmsOrder(root, options.dataset, **settings) for _ in range(2))
        if options.state is not None:
            order.load_state_dict(json.loads(options.state.read_text()))
        print(f"rank {order.rank} of {order.world_size}: {len(order):,} documents an epoch")
        for number, chunk in enumerate(islice(order, options.chunks)):
            _show(order, chunk)
            if number == options.chunks // 2:
                heir.load_state_dict(order.state_dict())
        print("going on from the state in the middle:")
        for chunk in islice(heir, options.chunks - options.chunks // 2 - 1):
            _show(heir, chunk)


def _show(order: FmsOrder, chunk: list[int]) -> None:
    """The chunk given last: which document of the epoch, where it lies, and how it begins."""
    visit = next(order.walk())
    name = (order.dataset, visit.shard_id, visit.doc_id)
    begin = " ".join(map(str, chunk[:8]))
    print(f"  document {visit.index:,} is {name}, chunk {order.chunk_index}: {begin} ...")


def _own_corpus(root: Path) -> Path:
    from windeck.cli.demo_files import write_corpus

    write_corpus(root)
    return root


if __name__ == "__main__":
    main()
