"""Reading of a generation: all of it, one tensor, one slice, one row, one table."""

from __future__ import annotations

import difflib
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import index
from typing import Any

import torch

from windeck._util.options import explain_options
from windeck.checkpoint.format import keys, state_json
from windeck.checkpoint.format.boxes import Box, shape_of
from windeck.checkpoint.format.entries import TensorEntry
from windeck.checkpoint.format.manifests import find_commit, read_manifest
from windeck.checkpoint.format.table_entries import TableEntry, TableInfo, table_info
from windeck.checkpoint.read.fetching import Job, read_many
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.reading import SavedTable
from windeck.columns.dtypes import torch_dtype

__all__ = ["Checkpoint", "TensorInfo", "open"]


@dataclass(frozen=True)
class TensorInfo:
    """Description of a saved tensor: `name`, `dtype`, `shape`, `bytes`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bytes: int


class Checkpoint:
    """A generation in a store, opened by `open`. Data are read on request.

    Attributes
    ----------
    generation, step, time
        Number of the generation, step given to `save`, and time of the save in seconds since 1970.
    """

    def __init__(self, store: Store | str, namespace: str, generation: int | str | None) -> None:
        keys.check_namespace(namespace)
        self._namespace, stack = namespace, ExitStack()
        self._store = stack.enter_context(opened(store, reading=True))
        # Also at the exit of the interpreter, while modules that closing needs are there.
        self._close = weakref.finalize(self, stack.close)
        try:
            self._commit = find_commit(self._store, namespace, generation)
            manifest = read_manifest(self._store, namespace, self._commit)
        except BaseException:
            self.close()
            raise
        self.entries: dict[str, TensorEntry] = manifest["tensors"]
        self.trees: dict[str, Any] = manifest["trees"]
        self._places: dict[str, list[tuple[str, str]]] = manifest["places"]
        self.table_entries: dict[str, TableEntry] = manifest["tables"]
        self.generation, self.step = self._commit.generation, self._commit.step
        self.time, self.save = self._commit.time, self._commit.save

    def __repr__(self) -> str:
        return f"<checkpoint {self._namespace}, generation {self.generation}, step {self.step}>"

    def names(self) -> list[str]:
        """Return the names of all tensors, such as ``model/layer.weight``, in stored order."""
        return [name for root in self.trees for name, _ in self.places(root)]

    def places(self, root: str) -> Iterator[tuple[str, str]]:
        """Iterate over the tensors of a root, such as ``model``: their names, and names of data."""
        return iter(self._places.get(root, ()))

    def info(self, name: str) -> TensorInfo:
        """Return the description of a tensor; raise KeyError if there is no such tensor."""
        entry = self.entries[self._saved(name)]
        dtype = torch_dtype(entry.dtype)
        return TensorInfo(name, dtype, entry.shape, math.prod(entry.shape) * dtype.itemsize)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor, in new memory."""
        return self.slice(name, ())

    def row(self, name: str, row: int) -> torch.Tensor:
        """Return a row of a tensor, of shape (...) for (rows, ...); only its chunks are read."""
        return self.slice(name, row)

    def slice(self, name: str, where: Any) -> torch.Tensor:
        """Return ``tensor[where]`` for integers, slices of step 1 and ``...``.

        Only chunks that intersect the slice are read.

        Raises
        ------
        KeyError
            When there is no such tensor.
        IndexError, TypeError, ValueError
            For an index out of range, another type of index, or a slice with a step.
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
        """Descriptions of the embedding tables, by name."""
        return {name: table_info(entry) for name, entry in self.table_entries.items()}

    def table(self, name: str) -> SavedTable:
        """Return an embedding table, from which rows can be read without loading all of it.

        Raises
        ------
        KeyError
            When there is no such table.
        """
        if name not in self.table_entries:
            raise KeyError(
                f"there is no table {name!r} in {self!r}, expected one of {list(self.tables)}"
            )
        return SavedTable(self._store, self._namespace, self.table_entries[name], self)

    def tree(self, root: str) -> Any:
        """Return ``model``, ``optimizer``, ``loader`` or ``extra`` as saved, with new tensors.

        None if it was not saved.
        """
        made: dict[str, torch.Tensor] = {}

        def get(name: str) -> torch.Tensor:
            if name not in made:
                made[name] = self.tensor(name)
            return made[name]

        return state_json.decode(self.trees.get(root), get)

    def read_into(self, saved: str, targets: Sequence[torch.Tensor], box: Box | None = None) -> int:
        """Read a tensor, or a box of it, into tensors of that shape; return the bytes read."""
        return sum(read for _, read in self.read_many([(saved, targets, box)]))

    def read_many(self, jobs: Iterable[Job]) -> Iterator[tuple[str, int]]:
        """Read tensors into existing ones, many small tensors at a time.

        Parameters
        ----------
        jobs
            The name of the data, the tensors to write to (values are cast to their dtype), and the
            box of the saved tensor that they hold; None: all of it.

        Yields
        ------
        name, bytes
            After each chunk, the name of its data and the bytes read.
        """
        return read_many(self._store, self._namespace, self.entries, jobs)

    def close(self) -> None:
        """Close the store if it was opened from a URL."""
        self._close()

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
        """Return a hint for the message about an unknown name."""
        table = name.removeprefix("embeddings/")
        if table in self.table_entries:
            return f"it is an embedding table, expected table({table!r})"
        for root, tree in self.trees.items():
            if name in {root, *state_json.dict_places(tree, root)}:
                return f"it is not a tensor, expected tree({root!r})"
        near = difflib.get_close_matches(name, self.names(), 3, 0.5)
        return f"did you mean {' or '.join(near)}?" if near else "expected one of names()"


@explain_options
def open(
    store: Store | str, *, generation: int | str | None = None, namespace: str = "windeck"
) -> Checkpoint:
    """Open a checkpoint without reading its tensors.

    Parameters
    ----------
    store
        An open store, or the URL of one, which stays open until the checkpoint is closed.
    generation
        A generation of `log`, or a tag; None: the current one.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation or tag.
    OSError
        `CorruptStoreError` for damaged data, and other errors of stores.

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
    """Return the box of an index, and the dimensions that integers remove."""
    given = where if isinstance(where, tuple) else (where,)
    dots = [i for i, item in enumerate(given) if item is Ellipsis]
    if len(given) - len(dots[:1]) > len(shape):
        raise IndexError(f"{name} has shape {shape}, got an index of {len(given)} dimensions")
    if len(dots) == 1:  # stands for all remaining dimensions
        full = (slice(None),) * (len(shape) + 1 - len(given))
        given = (*given[: dots[0]], *full, *given[dots[0] + 1 :])
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
