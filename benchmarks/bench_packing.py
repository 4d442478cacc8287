"""Time of packed batches, against slices of a flat file and lists of documents."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import corpora
import numpy as np
import pyarrow as pa
import torch
from measure import Row, compare
from torch.utils.data import default_collate

import windeck as wd

EOS = 2
DATASETS, FILES, DOCUMENTS = 3, 3, 1000

Pair = tuple[torch.Tensor, torch.Tensor]


def write(folder: Path, kind: str) -> None:
    """Nine files in three datasets, some 6.5 million tokens of two bytes."""
    for dataset in range(DATASETS):
        for part in range(FILES):
            documents = corpora.web_like(DOCUMENTS, seed=10 * dataset + part)
            corpora.write(folder / f"dataset=d{dataset}" / f"t.part{part}.arrow", documents, kind)


class Shape(NamedTuple):
    """Sequences in a batch, and tokens in each."""

    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.length:,}"


def packed(folder: Path, length: int, dtype: str) -> wd.PackedSequences:
    return wd.PackedSequences(wd.Documents(folder), sequence_length=length, eos=EOS, dtype=dtype)


def ours(loader: wd.Loader) -> Iterator[dict[str, Any]]:
    """An epoch, again and again the first."""
    loader.load_state_dict({**loader.state_dict(), "position": 0, "step": 0, "legs": []})
    yield from loader


def sliced(flat: Path, shape: Shape) -> Iterator[Pair]:
    """nanoGPT's way: a slice of a mapped file for each sequence, widened, and a stack of them."""
    tokens, length = np.memmap(flat, np.uint16, "r"), shape.length
    for step in range((len(tokens) - 1) // length // shape.batch):
        samples = range(step * shape.batch, (step + 1) * shape.batch)
        starts = [sample * length for sample in samples]
        inputs = [torch.from_numpy(tokens[i : i + length].astype(np.int64)) for i in starts]
        targets = [
            torch.from_numpy(tokens[i + 1 : i + 1 + length].astype(np.int64)) for i in starts
        ]
        yield torch.stack(inputs), torch.stack(targets)


def order_of(folder: Path) -> list[tuple[str, int, int]]:
    """The documents of epoch 0, as (dataset, shard, document), for rivals to follow."""
    source = packed(folder, 1024, "int64")
    found: dict[tuple[str, int, int], None] = {}
    for sample in range(len(source)):
        found.update(dict.fromkeys(piece[:3] for piece in source.documents(sample)))
    return list(found)


def chunks(folder: Path, order: list[tuple[str, int, int]]) -> Iterator[list[int]]:
    """Documents one by one as lists of at most 1,024 ints, the last with EOS after it."""
    opened: tuple[Path, Any] | None = None
    for dataset, part, document in order:
        path = folder / f"dataset={dataset}" / f"t.part{part}.arrow"
        if opened is None or opened[0] != path:
            opened = path, pa.ipc.open_file(pa.memory_map(str(path)))
        tokens = opened[1].get_batch(document)["tokens"]
        pieces = -(-(len(tokens) + 1) // 1024)
        for piece in range(pieces):
            chunk = tokens.slice(piece * 1024, 1024).to_pylist()
            yield [*chunk, EOS] if piece == pieces - 1 else chunk


def lines(folder: Path, order: list[tuple[str, int, int]], length: int) -> Iterator[list[int]]:
    """Lists joined into a buffer, lines cut off it."""
    buffer: list[int] = []
    for chunk in chunks(folder, order):
        buffer += chunk
        while len(buffer) > length:
            line, buffer = buffer[: length + 1], buffer[length:]
            yield line  # One token is the last target and the next input.


def reordered(lines: Iterator[list[int]], size: int) -> Iterator[list[int]]:
    """Lines in the order of a buffer of so many, one drawn whenever one comes in."""
    generator, held = torch.Generator().manual_seed(0), []
    for line in lines:
        held.append(line)
        if len(held) > size:
            yield held.pop(torch.randint(len(held), (1,), generator=generator).item())
    yield from held


def listed(
    folder: Path, order: list[tuple[str, int, int]], shape: Shape, buffered: int
) -> Iterator[Pair]:
    """The way of fms-fsdp, less its counters and its worker processes."""
    made: list[Pair] = []
    for line in reordered(lines(folder, order, shape.length), buffered):
        tokens = torch.IntTensor(line)
        made.append((tokens[:-1], tokens.clone()[1:]))
        if len(made) == shape.batch:
            yield default_collate(made)
            made = []


def flat_file(folder: Path) -> Path:
    """Epoch 0 as one file of uint16: what the sliced way reads."""
    source = packed(folder, 1024, "int64")
    tokens = source.gather_rows(np.arange(len(source)))["tokens"].astype(np.uint16)
    path = folder / "flat.bin"
    np.concatenate([tokens[:, :-1].ravel(), tokens[-1, -1:]]).tofile(path)
    return path


def through(batches: Iterator[Any]) -> None:
    for _ in batches:
        pass


def rows_of(batches: Iterator[Pair]) -> list[bytes]:
    return [
        inputs.numpy().tobytes() + targets.numpy().tobytes()
        for batch in batches
        for inputs, targets in zip(*batch, strict=True)
    ]


def same(loader: wd.Loader, rival: Iterator[Pair], *, reordered: bool = False) -> int:
    """Asserts that both give the same epoch, up to the order of rows or not; the tokens in it."""
    mine = rows_of((batch["inputs"], batch["targets"]) for batch in ours(loader))
    theirs = rows_of(rival)
    assert len(theirs) > len(mine) / 2
    # A last batch that is not full is dropped, whichever rows a shuffle buffer put there.
    assert set(theirs) <= set(whole_epoch(loader)) if reordered else mine[: len(theirs)] == theirs
    assert len(set(theirs)) == len(theirs)
    return sum(batch["inputs"].numel() for batch in ours(loader))


def whole_epoch(loader: wd.Loader) -> list[bytes]:
    """Every row of the loader's epoch, also of a batch that is dropped."""
    rows = loader.stream.gather(np.arange(loader.stream.epoch_length))
    return rows_of(iter([(torch.from_numpy(rows["inputs"]), torch.from_numpy(rows["targets"]))]))


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("lists", "batches"):
            write(folder / kind, kind)
        yield from against_slices(folder / "lists")
        yield from against_lists(folder / "batches")


def row(loader: wd.Loader, shape: Shape, make: Callable[[], Iterator[Pair]], **told: Any) -> Row:
    """One figure: an epoch of the loader against one of the rival, with tokens a second."""
    tokens = same(loader, make(), reordered=told.pop("reordered", False))
    rounds = told.pop("rounds")
    ratio = compare(
        lambda: through(ours(loader)), lambda: through(make()), rounds=rounds, warm_up=1
    )
    speeds = [tokens / seconds / 1e6 for seconds in (ratio.ours_seconds, ratio.rival_seconds)]
    told["ours"] += f": {speeds[0]:.0f} M tokens/s"
    told["rival"] += f": {speeds[1]:.3g} M"
    question = f"packed batches of {shape}, {told.pop('form')}"
    return Row(question=question, ratio=ratio, **told)


#: One thread on either side.
ALONE = {"threads": 1, "prefetch": 0}


def against_slices(folder: Path) -> Iterator[Row]:
    """Files just written, hence in the page cache; a flat file of the same tokens for the rival."""
    flat = flat_file(folder)
    for shape, options, title, needed in (
        (Shape(64, 1024), ALONE, "Loader, one thread", 3),
        (Shape(64, 1024), {}, "Loader, as it comes", None),
        (Shape(16, 4096), ALONE, "Loader, one thread", None),
    ):
        source = packed(folder, shape.length, "int64")
        yield row(
            wd.Loader(source, batch_size=shape.batch, drop_last=True, **options),
            shape,
            partial(sliced, flat, shape),
            rounds=15,
            form="int64, Arrow with a list column of uint16",
            ours=f"{title}, with position_ids and cu_seqlens",
            rival="torch.stack of memmap slices",
            needed=needed,
            bound="16 bytes written for a token" if needed else "",
        )


def against_lists(folder: Path) -> Iterator[Row]:
    """fms-fsdp keeps 10,000 lines in its shuffle buffer; this corpus has 1,600, so 1,000 do."""
    shape, order = Shape(64, 4096), order_of(folder)
    source = packed(folder, shape.length, "int32")
    for buffered, options, title, needed in (
        (1000, {"threads": 2, "prefetch": 0}, "Loader, two threads", 100),
        (1000, ALONE, "Loader, one thread", None),
        (0, ALONE, "Loader, one thread", None),
    ):
        yield row(
            wd.Loader(source, batch_size=shape.batch, drop_last=True, **options),
            shape,
            partial(listed, folder, order, shape, buffered),
            rounds=5,
            reordered=buffered > 0,
            form="int32, Arrow with a record batch a document",
            ours=f"{title}, with position_ids and cu_seqlens",
            rival=f"lists, document by document, shuffle buffer of {buffered:,}",
            needed=needed,
            bound="8 bytes written for a token; the rival by an object for every token",
        )
