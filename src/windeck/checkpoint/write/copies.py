"""Saves in the background: copies of tensors, so that training may change them, and the start."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import torch

from windeck._util.parallel import run_in_threads
from windeck._util.threads import Task
from windeck._util.validation import check_bytes
from windeck.checkpoint.background import BackgroundSave, spare_memory, start
from windeck.checkpoint.format.boxes import Box
from windeck.checkpoint.format.chunks import is_plain, iter_chunks
from windeck.checkpoint.tables.writing import TablesWriter
from windeck.checkpoint.write.local_tensors import LocalTensor, TensorPiece

__all__ = ["LentTensors", "check_background", "copy_tensors", "start_writing"]

#: Bytes copied at a time.
_PORTION_BYTES = 16 << 20
#: Threads that copy, of at least this many bytes in all.
_MAX_THREADS, _MIN_THREADED_BYTES = 4, 64 << 20
#: Copies begin at multiples of this.
_ALIGNMENT = 64


class LentTensors:
    """Tensors that are read from their own memory, which must not change until they were written.

    Parameters
    ----------
    names
        Their names.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self._released, self._abandoned = Task(lambda: None), False
        if not names:
            self._released.run()

    def release(self) -> None:
        """Release the tensors, after they were written or the save failed.

        Raises
        ------
        RuntimeError
            After `abandon`, if there are such tensors: what was written may have changed.
        """
        self._released.run()
        if self._abandoned and self.names:
            raise RuntimeError(
                "the call of save was interrupted while it wrote tensors, expected it to return"
            )

    def wait(self) -> None:
        """Wait until the tensors were released."""
        self._released.wait()

    def abandon(self) -> None:
        """Note that the caller does not wait for the release, and may change the tensors."""
        self._abandoned = True


def check_background(background: bool, background_bytes: float | str | None) -> int | None:
    """Return `background_bytes` as an int; raise a TypeError or ValueError for invalid options."""
    if type(background) is not bool:
        raise TypeError(f"`background` must be a bool, got {type(background).__name__}")
    if background_bytes is None:
        return None
    if not background:
        raise ValueError(f"`background_bytes` needs background=True, got {background_bytes} alone")
    return check_bytes("background_bytes", background_bytes, least=0)


def copy_tensors(
    tensors: dict[str, LocalTensor],
    *,
    is_chosen: Callable[[str, Box], bool] | None = None,
    most: int | None = None,
) -> tuple[LentTensors, Any]:
    """Replace tensors by copies, in place, as many of the first ones as fit.

    Parameters
    ----------
    tensors
        By name.
    is_chosen
        Returns whether this writer writes a box of a tensor; None: it writes all.
    most
        Maximum bytes of the copies; None: no limit.

    Returns
    -------
    lent, memory
        The tensors that were not copied; and the memory of the copies, to be appended to
        `spare_memory` when it is not needed any more.
    """
    chosen = {name: _chosen_pieces(name, local, is_chosen) for name, local in tensors.items()}
    starts, total = dict[str, int](), 0
    for name, pieces in chosen.items():
        size = sum(_aligned(_bytes_of(piece.tensor)) for piece in pieces)
        if most is None or total + size <= most:
            starts[name] = total
            total += size
    memory = _take_memory(total, most)
    tasks = list[tuple[Any, Any]]()
    for name, at in starts.items():
        copies = []
        for piece in chosen[name]:
            size = _bytes_of(piece.tensor)
            held = memory[at : at + size]
            tasks += _copies_of(piece.tensor, held)
            made = torch.from_numpy(held).view(piece.tensor.dtype).view(piece.tensor.shape)
            copies.append(TensorPiece(piece.box, made))
            at += _aligned(size)
        empty = torch.empty(0, dtype=tensors[name].dtype)
        tensors[name] = tensors[name]._replace(pieces=tuple(copies), data=empty)
    _copy_all(tasks, total)
    return LentTensors(set(chosen) - set(starts)), memory


def start_writing(
    step: int,
    write: Callable[[LentTensors, Callable[[int], None]], int],
    lent: LentTensors,
    memory: Any,
    tables: TablesWriter,
    stack: ExitStack,
) -> BackgroundSave:
    """Start a save in a background thread; return when its lent tensors were written.

    Parameters
    ----------
    write
        Writes the state and commits it, and returns the generation. Calls its second argument with
        the save's number, which the tables remember when the save has ended.
    lent, memory
        From `copy_tensors`.
    stack
        What to close after the save. It has nothing left to close when this returns.
    """
    held, saves = stack.pop_all(), list[int]()

    def run() -> int:
        try:
            with held:
                return write(lent, saves.append)
        finally:
            spare_memory.append(memory)
            with suppress(RuntimeError):
                lent.release()

    def remember() -> None:
        for save in saves:
            tables.remember(save)

    try:
        saving = start(step, run, remember, held.close)
        lent.wait()
    except BaseException:  # such as KeyboardInterrupt
        lent.abandon()
        raise
    return saving


def _chosen_pieces(
    name: str, local: LocalTensor, is_chosen: Callable[[str, Box], bool] | None
) -> list[TensorPiece]:
    return [piece for piece in local.pieces if is_chosen is None or is_chosen(name, piece.box)]


def _take_memory(size: int, most: int | None) -> Any:
    """Return memory of `size` to `most` bytes: the memory of the last save, or new memory."""
    found = spare_memory.pop() if spare_memory else None
    largest = 2 * size if most is None else min(2 * size, most)
    if found is None or not size <= len(found) <= largest:
        del found  # before there is new memory
        found = np.empty(size, np.uint8)
    return found


def _copies_of(tensor: torch.Tensor, into: Any) -> list[tuple[Any, Any]]:
    """Return targets and sources of plain copies, or copy a tensor that has no plain bytes."""
    if is_plain(tensor):
        (data,) = iter_chunks(tensor, len(into))
        starts = range(0, len(into), _PORTION_BYTES)
        return [(into[i : i + _PORTION_BYTES], data[i : i + _PORTION_BYTES]) for i in starts]
    at = 0
    for data in iter_chunks(tensor, _PORTION_BYTES):
        into[at : at + data.size] = data
        at += data.size
    return []


def _copy_all(tasks: Sequence[tuple[Any, Any]], total: int) -> None:
    def copy(number: int) -> None:
        target, source = tasks[number]
        target[:] = source

    threads = 1 if total < _MIN_THREADED_BYTES else min(_MAX_THREADS, os.cpu_count() or 1)
    run_in_threads(copy, len(tasks), threads, portion=1)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
