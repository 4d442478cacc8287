"""Reading a generation: all of it, one tensor, one slice, one row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import index
from typing import Any

import torch

from windeck.checkpoint.format import keys, trees
from windeck.checkpoint.format.boxes import Box, shape_of
from windeck.checkpoint.format.entries import Entry
from windeck.checkpoint.format.manifests import find_commit, read_manifest
from windeck.checkpoint.format.table_entries import TableEntry, TableInfo, info_of
from windeck.checkpoint.read.fetching import Job, read_many
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.opening import opened
from windeck.checkpoint.tables.reading import SavedTable
from windeck.columns.dtypes import torch_dtype

__all__ = ["Checkpoint", "TensorInfo", "open"]


@dataclass(frozen=True)
class TensorInfo:
    """What a saved tensor is: `name`, `dtype`, `shape`, `bytes`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bytes: int


class Checkpoint:
    """One generation in a store, made by `open`; only what is asked for is read.

    Attributes
    ----------
    generation, step, time
        Its number, the step it was saved as, and when, in seconds since 1970.
    """

    def __init__(self, store: Store | str, namespace: str, generation: int | None) -> None:
        keys.check_namespace(namespace)
        self._stack, self._namespace = ExitStack(), namespace
        self._store = self._stack.enter_context(opened(store, reading=True))
        try:
            self._commit = find_commit(self._store, namespace, generation)
            manifest = read_manifest(self._store, namespace, self._commit)
        except BaseException:
            self.close()
            raise
        self.entries: dict[str, Entry] = manifest["tensors"]
        self.trees: dict[str, Any] = manifest["trees"]
        self.table_entries: dict[str, TableEntry] = manifest["tables"]
        self.generation, self.step = self._commit.generation, self._commit.step
        self.time, self.save = self._commit.time, self._commit.save

    def __repr__(self) -> str:
        return f"<checkpoint {self._namespace}, generation {self.generation}, step {self.step}>"

    def names(self) -> list[str]:
        """The names of all tensors, such as ``model/layer.weight``, as they were saved."""
        return [name for root in self.trees for name, _ in self.places(root)]

    def places(self, root: str) -> Iterator[tuple[str, str]]:
        """Of each tensor of ``model``, ..., its name, and the name that its data are under."""
        return trees.tensors_in(self.trees.get(root), root)

    def info(self, name: str) -> TensorInfo:
        """What the tensor of a name is; KeyError for a name there is none of."""
        entry = self.entries[self._saved(name)]
        dtype = torch_dtype(entry.dtype)
        return TensorInfo(name, dtype, entry.shape, math.prod(entry.shape) * dtype.itemsize)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor, in memory of its own."""
        return self.slice(name, ())

    def row(self, name: str, row: int) -> torch.Tensor:
        """One row of a tensor, shape (...) for (rows, ...); its chunks alone are read."""
        return self.slice(name, row)

    def slice(self, name: str, where: Any) -> torch.Tensor:
        """``tensor[where]`` for integers, slices of step 1 and ``...``; its chunks alone are read.

        Raises
        ------
        KeyError
            For a name there is no tensor of.
        IndexError, TypeError, ValueError
            For what lies outside, another kind of index, or a slice with a step.
        """
        saved = self._saved(name)
        entry = self.entries[saved]
        box, dropped = _box_of(where, entry.shape, name)
        found = torch.empty(shape_of(box), dtype=torch_dtype(entry.dtype))
        self.read_into(saved, [found], box)
        kept = [size for i, size in enumerate(found.shape) if i not in dropped]
        return found.view(kept)

    @property
    def tables(self) -> dict[str, TableInfo]:
        """What the embedding tables are, by name."""
        return {name: info_of(entry) for name, entry in self.table_entries.items()}

    def table(self, name: str) -> SavedTable:
        """An embedding table: some rows of it, or all in order, without loading it.

        Raises
        ------
        KeyError
            For a name there is none of.
        """
        if name not in self.table_entries:
            raise KeyError(
                f"there is no table {name!r} in {self!r}, expected one of {list(self.tables)}"
            )
        return SavedTable(self._store, self._namespace, self.table_entries[name], self)

    def tree(self, root: str) -> Any:
        """``model``, ``optimizer``, ``loader`` or ``extra`` as saved, tensors in fresh memory.

        None for one that was not saved.
        """
        made: dict[str, torch.Tensor] = {}

        def get(name: str) -> torch.Tensor:
            if name not in made:
                made[name] = self.tensor(name)
            return made[name]

        return trees.decode(self.trees.get(root), get)

    def read_into(self, saved: str, targets: Sequence[torch.Tensor], box: Box | None = None) -> int:
        """Read a tensor, or a box of it, into tensors of that shape, in place; see `read_many`."""
        return sum(read for _, read in self.read_many([(saved, targets, box)]))

    def read_many(self, jobs: Iterable[Job]) -> Iterator[tuple[str, int]]:
        """Read tensors in place, small ones many at a time.

        Parameters
        ----------
        jobs
            The name the data are under, what to write them to (other dtypes are cast), and the
            box they stand for; None: all of the tensor.

        Yields
        ------
        name, bytes
            After each chunk, what was read.
        """
        return read_many(self._store, self._namespace, self.entries, jobs)

    def close(self) -> None:
        """Close the store if it was opened from a URL."""
        self._stack.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _saved(self, name: str) -> str:
        if name in self.entries:
            return name
        for root in self.trees:
            if name == root or name.startswith(f"{root}/"):
                for found, saved in self.places(root):
                    if found == name:
                        return saved
        raise KeyError(f"there is no tensor {name!r} in {self!r}: {self._hint(name)}")

    def _hint(self, name: str) -> str:
        """What to say of a name that no tensor has."""
        table = name.removeprefix("embeddings/")
        if table in self.table_entries:
            return f"it is an embedding table, expected table({table!r})"
        for root, tree in self.trees.items():
            if name in {root, *trees.dict_places(tree, root)}:
                return f"it is something else, which tree({root!r}) has"
        import difflib

        near = difflib.get_close_matches(name, self.names(), 3, 0.5)
        return f"did you mean {' or '.join(near)}?" if near else "expected one of names()"


def open(
    store: Store | str, *, generation: int | None = None, namespace: str = "windeck"
) -> Checkpoint:
    """Look into a checkpoint without reading its tensors.

    Parameters
    ----------
    store
        An open store, or the URL of one, which stays open until the checkpoint is closed.
    generation
        One of `log`; None: the one in force.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation.
    OSError
        `CorruptStoreError` for what is damaged, and what stores raise.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> generation = checkpoint.save(store, step=7, model={"w": torch.arange(6).view(3, 2)})
    >>> with checkpoint.open(store) as found:
    ...     found.names(), found.info("model/w").shape, found.row("model/w", 1)
    (['model/w'], (3, 2), tensor([2, 3]))
    """
    return Checkpoint(store, namespace, generation)


def _box_of(where: Any, shape: tuple[int, ...], name: str) -> tuple[Box, set[int]]:
    """The box an index means, and the dimensions that integers take away."""
    given = where if isinstance(where, tuple) else (where,)
    dots = [i for i, item in enumerate(given) if item is Ellipsis]
    if len(given) - len(dots[:1]) > len(shape):
        raise IndexError(f"{name} has shape {shape}, got an index of {len(given)} dimensions")
    if len(dots) == 1:  # stands for as many whole dimensions as there are left
        all_of = (slice(None),) * (len(shape) + 1 - len(given))
        given = (*given[: dots[0]], *all_of, *given[dots[0] + 1 :])
    box, dropped = [], set()
    for axis, size in enumerate(shape):
        item = given[axis] if axis < len(given) else slice(None)
        if isinstance(item, slice):
            first, end, step = item.indices(size)
            if step != 1:
                raise ValueError(f"a slice of {name} has step {step}, expected 1")
            box.append((first, max(first, end)))
            continue
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise TypeError(
                f"an index of {name} is of type {type(item).__name__}, expected integers, slices "
                "and one ..."
            )
        place = index(item)
        if not -size <= place < size:
            known = f"{-size} to {size - 1}" if size else "none"
            raise IndexError(f"{name} has no index {place} in dimension {axis}, expected {known}")
        box.append((place % size, place % size + 1))
        dropped.add(axis)
    return tuple(box), dropped
