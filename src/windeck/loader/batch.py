"""Conversion of a source's arrays to batches of tensors: zero-copy, pinned, or on a device.

Several batches may be made of one gather. Each tensor has a storage of its own: the part of the
gathered array that belongs to its batch. So changing or saving a batch does not involve the others.
A tensor keeps the whole array alive: the memory returns to the pool when the last tensor on it is
deleted. Batches of windows that one native call makes have an array each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from windeck._util.warning import warn
from windeck.columns.columns import ALIGNMENT, aligned_empty
from windeck.columns.dtypes import tensor_from_bits
from windeck.loader.mixture import Mixture, position_rows
from windeck.loader.sharding import Sharding
from windeck.loader.stream import EpochRows, Stream, epoch_rows
from windeck.sources import Batch, Indices
from windeck.sources.layouts import is_written
from windeck.sources.members import (
    BatchMethods,
    StreamMembers,
    not_a_batch,
    not_an_array,
    other_rows,
)

__all__ = [
    "BatchBuilder",
    "BatchGroup",
    "Tensors",
    "as_tensors",
    "check_device",
    "check_pin_memory",
    "gather_batches",
    "in_span",
    "split_rows",
]

#: Hot loops ask it whether a profiler runs, without a call of `in_span`.
profiler = torch.autograd.profiler

K = TypeVar("K")
T = TypeVar("T")
Tensors = dict[str, torch.Tensor]
#: The rows of each batch of a batch group, by key.
RowsOfBatches = Mapping[str, Sequence[NDArray[Any]]]

#: Integers that hold the bits of a dtype that NumPy lacks, by bytes.
_SIGNED = {1: torch.int8, 2: torch.int16}


def in_span(name: str, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a span of torch's profiler, if one runs.

    A profiler records the thread in which it was started. With
    ``_ExperimentalConfig(profile_all_threads=True)`` it records the background thread as well.
    """
    if getattr(profiler, "_is_profiler_enabled", True):  # Otherwise it takes 15 microseconds.
        with torch.profiler.record_function(name):
            return function(*arguments)
    return function(*arguments)


def check_device(device: torch.device | str | None) -> torch.device | None:
    """Return the device, checked here so that a wrong one does not fail in a background thread.

    Raises
    ------
    RuntimeError
        For a CUDA device if torch finds none.
    """
    if device is None:
        return None
    target = torch.device(device)
    if target.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device={str(target)!r}, but torch finds no CUDA device")
    return target


def check_pin_memory(wanted: bool) -> bool:
    """Return `wanted`, or False with a warning if there is no GPU: torch cannot pin without one."""
    if wanted and not torch.cuda.is_available():
        warn(
            "pin_memory=True, but torch finds no CUDA device: batches are not pinned",
        )
        return False
    return wanted


def as_tensors(batch: Batch, bits: Mapping[str, str]) -> Tensors:
    """Return tensors that share the memory of a batch's arrays.

    Parameters
    ----------
    batch
        Arrays by key.
    bits
        Keys whose arrays hold the bits of a dtype that NumPy lacks, such as
        ``{"past_target": "bfloat16"}``.

    Raises
    ------
    TypeError
        For a value that is not an array, or an array whose dtype torch does not have.
    ValueError
        For a read-only array: users may write to a batch.
    """
    return cut_rows(batch, None, 1, bits)[0]


def gather_batches(
    methods: BatchMethods, indices: Indices, count: int = 1, **options: Any
) -> list[Tensors]:
    """Gather `count` batches of a source or stream by one call, of equally many rows each.

    Parameters
    ----------
    methods
        Those of a source or stream; for several batches its rows are independent of each other.
    indices
        Those of the first batch, then those of the second, and so on.
    count
        Number of batches.
    **options
        Keywords for `BatchMethods.gather_rows`.
    """
    rows = methods.gather_rows(indices, **options)
    return present_all(methods, tensor_batches(methods, rows, len(indices), count))


def tensor_batches(methods: BatchMethods, rows: Batch, expected: int, count: int) -> list[Tensors]:
    """Return `count` batches, before `present`, from the `expected` rows of all of them."""
    checked = expected if methods.independent_rows else None
    batches = cut_rows(rows, checked, count, methods.torch_dtypes)
    if methods.whole is not None:
        add_wholes(methods, rows, expected, batches)
    return batches


def add_wholes(methods: BatchMethods, rows: Batch, expected: int, batches: list[Tensors]) -> None:
    """Add the arrays of whole batches to the batches that were made of `expected` rows."""
    of_all = wholes(methods, rows, expected, len(batches))
    firsts = {key: arrays[0] for key, arrays in of_all.items()}
    found = cut_rows(firsts, None, len(batches), methods.torch_dtypes, of_all)
    for batch, tensors in zip(batches, found, strict=True):
        batch.update(tensors)


def cut_rows(
    rows: Batch,
    expected: int | None,
    count: int,
    bits: Mapping[str, str],
    of_batches: RowsOfBatches | None = None,
) -> list[Tensors]:
    """Return `count` batches of tensors on the memory of arrays; see `split_rows`, `as_tensors`.

    Every group of batches passes here. After a large gather the code and objects of Python are no
    longer in the caches, so this is one function without calls for each key and batch. `rows`
    has the arrays, or with `of_batches` the first array of each key. `expected` is the number of
    rows of every array; None if they may differ.
    """
    batches: list[Tensors] = [{}] if count == 1 else [{} for _ in range(count)]
    if expected is not None and count > 1:
        of_batches, expected = split_rows(rows, expected, count), None  # They are checked.
    try:
        items = rows.items()
    except AttributeError:
        raise not_a_batch(rows) from None
    for key, array in items:
        if not isinstance(array, np.ndarray):
            raise not_an_array(key, array)
        if expected is not None and (not array.ndim or len(array) != expected):
            raise other_rows(key, array.shape, expected)
        if not array.flags.writeable:
            raise ValueError(
                f"the source returned a read-only array for {key!r}; the arrays of a batch must "
                "be new and writable"
            )
        convert = partial(tensor_from_bits, dtype=bits[key]) if key in bits else torch.from_numpy
        try:
            if of_batches is None or count == 1:
                batches[0][key] = convert(array)
            else:
                for batch, tensor in zip(batches, map(convert, of_batches[key]), strict=True):
                    batch[key] = tensor
        except TypeError:
            raise TypeError(f"{key!r} has dtype {array.dtype}, which torch does not have") from None
    return batches


def wholes(methods: BatchMethods, rows: Batch, expected: int, count: int) -> RowsOfBatches:
    """Return the arrays of each batch as a whole, if there are any, by key."""
    if methods.wholes is not None:
        return methods.wholes(rows, count)
    if methods.whole is None:
        return {}
    of_batches = split_rows(rows, expected, count)
    of_each = [
        methods.whole_arrays({key: of_batches[key][number] for key in of_batches})
        for number in range(count)
    ]
    return {key: [one[key] for one in of_each] for key in of_each[0]}


def present_all(methods: BatchMethods, batches: list[Tensors]) -> list[Tensors]:
    """Return batches as users see them."""
    present = methods.present
    return batches if present is None else [present(batch) for batch in batches]


def split_rows(rows: Batch, expected: int, count: int) -> RowsOfBatches:
    """Return the rows of each of `count` batches of equally many rows, by key.

    They are views that begin on 64 bytes, or parts of one copy if views would not.

    Raises
    ------
    TypeError
        If there are several batches and an array has another number of rows than `expected`.
    """
    of_batches: dict[str, Sequence[NDArray[Any]]] = {}
    for key, array in rows.items():
        if not isinstance(array, np.ndarray):
            raise not_an_array(key, array)
        if count == 1:
            of_batches[key] = [array]
            continue
        if array.shape[:1] != (expected,):
            raise other_rows(key, array.shape, expected)
        split = array.reshape(count, expected // count, *array.shape[1:])
        nbytes = split.nbytes // count
        if nbytes % ALIGNMENT:
            width = -(-nbytes // ALIGNMENT) * ALIGNMENT // array.itemsize
            padded = aligned_empty((count, width), array.dtype)[:, : split.size // count]
            split, unaligned = padded.reshape(split.shape), split
            split[:] = unaligned
        of_batches[key] = list(split)
    return of_batches


@dataclass(eq=False, slots=True)
class BatchGroup:
    """Consecutive batches of one rank, made by one gather; copies to a device may be unfinished.

    Attributes
    ----------
    batches
        The tensors of each batch.
    nbytes
        Bytes of the rows of all batches.
    event
        The end of the copies; None for batches that are ready.
    moved
        Tensors that own the memory on the device.
    positions
        The loader's position before the first batch, and after each of them.
    apart
        True if each batch has a slab of the pool of its own.
    """

    batches: list[Tensors]
    nbytes: int
    event: torch.cuda.Event | None = None
    moved: tuple[torch.Tensor, ...] = ()
    positions: Sequence[int] = ()
    apart: bool = False
    _streams: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.batches)

    def wait(self) -> None:
        """Let work that is queued on the current CUDA stream from now on see the copies."""
        if self.event is None:
            return
        stream = torch.cuda.current_stream(self.moved[0].device)
        if stream.cuda_stream in self._streams:
            return
        self._streams = (*self._streams, stream.cuda_stream)
        stream.wait_event(self.event)
        for tensor in self.moved:
            # The memory belongs to the copy stream, which must not reuse it while kernels of this
            # stream may still read it.
            tensor.record_stream(stream)


class BatchBuilder:
    """Builds the batches of given positions of a stream.

    Parameters
    ----------
    stream
        The members of the stream.
    threads
        Threads for streams that gather in several; None is the stream's default.
    pin_memory
        Whether batches are in page-locked memory of torch's allocator.
    device
        Device to copy batches to; None leaves them in host memory.
    """

    def __init__(
        self,
        stream: StreamMembers,
        *,
        threads: int | None = None,
        pin_memory: bool = False,
        device: torch.device | None = None,
    ) -> None:
        methods = stream.methods
        self._methods = methods
        self._options = methods.threads_option(threads)
        self._from_bits = {
            key: partial(tensor_from_bits, dtype=dtype)
            for key, dtype in methods.torch_dtypes.items()
        }
        #: Device that batches are copied to; None if they stay in host memory.
        self.target_device = device if device is not None and device.type != "cpu" else None
        on_cuda = self.target_device is not None and self.target_device.type == "cuda"
        self._copy_stream: torch.cuda.Stream | None = None
        if on_cuda:
            self._copy_stream = torch.cuda.Stream(self.target_device)  # type: ignore[no-untyped-call]
        self._pinned = PinnedGather(methods) if pin_memory or on_cuda else None
        #: True if several batches may be made of one gather.
        self.makes_groups = methods.independent_rows
        self._stream = stream.stream
        #: True if a native call may make batches as they are handed out.
        self._makes_native = (
            self._options.get("threads", 1) == 1
            and self.target_device is None
            and methods.present is None
        )

    def in_epoch(
        self, sharding: Sharding, rank: int, position: int
    ) -> Callable[[int, int], BatchGroup]:
        """Return a function that builds the batches of full steps of an epoch.

        What is the same for all of them is looked up here, once.

        Parameters
        ----------
        sharding, rank
            The assignment of positions to steps, and the rank whose batches are built.
        position
            Any of the epoch.

        Returns
        -------
        function
            ``f(start, count)`` builds `count` batches from the step at the position `start` on.
        """
        epoch = self._epoch_rows(position)
        if epoch is None:
            return lambda start, count: self(
                sharding.positions_of_steps(start, rank, range(count)), count
            )
        size, step = sharding.batch_size, sharding.step_size
        begin = rank * size - epoch.start  # The place of a step's first sample, less its start.
        if epoch.batches is not None and self._makes_native:
            batches, row_bytes = epoch.batches, epoch.row_bytes
            wrap, wrap_keys = torch.from_numpy, self._from_bits

            def build_natively(start: int, count: int) -> BatchGroup:
                first = start + begin
                if getattr(profiler, "_is_profiler_enabled", True):
                    span = "windeck.gather", batches
                    made = in_span(*span, first, first + size, count, step, wrap, wrap_keys)
                else:
                    made = batches(first, first + size, count, step, wrap, wrap_keys)
                return BatchGroup(made, count * size * row_bytes, apart=True)

            return build_natively
        methods, gather = self._methods, partial(epoch.gather, **self._options)
        bits, is_checked = methods.torch_dtypes, self.makes_groups

        def build(start: int, count: int) -> BatchGroup:  # With few calls: see `cut_rows`.
            if count > 1 and step > size:
                positions = sharding.positions_of_steps(start, rank, range(count))
                samples = epoch.take(positions - epoch.start)
            else:
                first = start + begin
                samples = epoch.slice(first, first + count * size)
            if getattr(profiler, "_is_profiler_enabled", True):
                rows = in_span("windeck.gather", gather, samples)
            else:
                rows = gather(samples)
            made = cut_rows(rows, len(samples) if is_checked else None, count, bits)
            nbytes = 0
            for array in rows.values():
                nbytes += array.nbytes
            if methods.whole is not None:
                add_wholes(methods, rows, len(samples), made)
            return self._present(made, nbytes)

        return build

    def _epoch_rows(self, position: int) -> EpochRows | None:
        """Return what gathers positions of an epoch without checks, if anything does."""
        stream = self._stream
        # Not for a stream of another type: it may gather in a way of its own.
        if self._pinned is not None:
            return None
        if type(stream) is Mixture:
            return position_rows(stream)
        return epoch_rows(stream, position) if type(stream) is Stream else None

    def __call__(self, positions: Indices, count: int = 1) -> BatchGroup:
        """Build `count` batches of equally many positions."""
        if self._copy_stream is None:
            return self._present(*in_span("windeck.gather", self._gather, positions, count))
        rows, slab = in_span("windeck.gather", self._gather_pinned, positions)
        arguments = rows, len(positions), count, slab, self._copy_stream
        return in_span("windeck.to_device", self._copy, *arguments)

    def _present(self, batches: list[Tensors], nbytes: int) -> BatchGroup:
        """Return batches of some bytes in host memory as users get them."""
        if self.target_device is not None:
            batches = in_span("windeck.to_device", _to_device, batches, self.target_device)
        if self._methods.present is not None:
            batches = present_all(self._methods, batches)
        return BatchGroup(batches, nbytes)

    def _gather(self, positions: Indices, count: int) -> tuple[list[Tensors], int]:
        """Return batches in host memory, before `present`, and their bytes."""
        if self._pinned is not None and count == 1:
            batches = [self._pinned.gather(positions, self._options)]
        else:
            rows = self._methods.gather(positions, **self._options)
            batches = tensor_batches(self._methods, rows, len(positions), count)
            if self._pinned is not None:
                # Of torch's allocator, which only so knows of copies that users make from them.
                batches = [{key: t.pin_memory() for key, t in batch.items()} for batch in batches]
        return batches, count * sum(tensor.nbytes for tensor in batches[0].values())

    def _gather_pinned(self, positions: Indices) -> tuple[Batch, Slab[str]]:
        assert self._pinned is not None
        return self._pinned.gather_slab(positions, self._options)

    def _copy(
        self,
        rows: Batch,
        expected: int,
        count: int,
        slab: Slab[str],
        copy_stream: torch.cuda.Stream,
    ) -> BatchGroup:
        """Copy rows of all batches to the CUDA device at once, and the arrays that they consist of.

        Parameters
        ----------
        rows
            The rows of all batches, by key, in the memory of `slab`.
        expected, count
            The numbers of rows and batches.
        """
        assert self._pinned is not None
        split_rows(rows, expected, count)  # Raises for another number of rows.
        of_batches = {
            (number, key): tensor
            for key, arrays in wholes(self._methods, rows, expected, count).items()
            for number, array in enumerate(arrays)
            for tensor in as_tensors({key: array}, self._methods.torch_dtypes).values()
        }
        other = self._pinned.slab_of(of_batches) if of_batches else None
        with torch.cuda.stream(copy_stream):
            moved = [slab.memory.to(self.target_device, non_blocking=True)]
            split = {key: split_tensor(t, count) for key, t in slab.tensors(moved[0]).items()}
            batches = [{key: tensors[n] for key, tensors in split.items()} for n in range(count)]
            if other is not None:
                moved.append(other.memory.to(self.target_device, non_blocking=True))
                for (number, key), tensor in other.tensors(moved[1]).items():
                    batches[number][key] = torch.utils.dlpack.from_dlpack(tensor)
            owners = (*moved, *(tensor for batch in batches for tensor in batch.values()))
            batches = present_all(self._methods, batches)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(copy_stream)
        # The pinned memory may be deleted now: its allocator waits for the copies.
        return BatchGroup(batches, moved[0].nbytes, event, owners)


def _to_device(batches: list[Tensors], device: torch.device) -> list[Tensors]:
    return [{key: tensor.to(device) for key, tensor in batch.items()} for batch in batches]


def split_tensor(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return `count` parts of equally many rows, each with a storage and version of its own.

    They share the tensor's memory, or are copies if parts of it would not be aligned to 64 bytes.
    """
    parts = tensor.chunk(count) if len(tensor) else (tensor,) * count
    if parts[0].nbytes % ALIGNMENT:
        return [part.clone() for part in parts]
    return [torch.utils.dlpack.from_dlpack(part) for part in parts]


@dataclass(frozen=True)
class Slab(Generic[K]):
    """Arrays in one buffer of pinned memory, so that one copy moves them all.

    Attributes
    ----------
    memory
        Of dtype uint8.
    places
        First byte, a multiple of 64, shape and dtype of each array.
    """

    memory: torch.Tensor
    places: dict[K, tuple[int, tuple[int, ...], torch.dtype]]

    @classmethod
    def empty(cls, like: Mapping[K, tuple[tuple[int, ...], torch.dtype]], pin: bool) -> Slab[K]:
        """Return uninitialised memory for arrays of these shapes and dtypes."""
        places, total = {}, 0
        for key, (shape, dtype) in like.items():
            places[key] = (total, shape, dtype)
            total += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        # On the host, also if torch's default device is another.
        memory = torch.empty(total, dtype=torch.uint8, device="cpu", pin_memory=pin)
        return cls(memory, places)

    @classmethod
    def holding(cls, tensors: Mapping[K, torch.Tensor], pin: bool) -> Slab[K]:
        """Return a copy of some tensors."""
        like = {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in tensors.items()}
        slab = cls.empty(like, pin)
        for key, copy in slab.tensors(slab.memory).items():
            copy.copy_(tensors[key])
        return slab

    def tensors(self, memory: torch.Tensor) -> dict[K, torch.Tensor]:
        """Return the arrays as views of `memory`, which is this one or a copy on a device."""
        found = {}
        for key, (first, shape, dtype) in self.places.items():
            stop = first + math.prod(shape) * dtype.itemsize
            found[key] = memory[first:stop].view(dtype).view(shape)
        return found


class PinnedGather:
    """Gathers directly into page-locked memory, which torch's allocator caches and reuses."""

    def __init__(self, methods: BatchMethods, *, pin: bool = True) -> None:
        self._methods = methods
        self._bits = methods.torch_dtypes
        self._pin = pin
        self._probed = False
        self._layout: dict[str, tuple[tuple[int, ...], torch.dtype]] | None = None
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def gather(self, positions: Indices, options: Mapping[str, Any]) -> Tensors:
        """Gather one batch into pinned tensors."""
        rows, tensors = self.gather_rows(positions, options)
        return {**tensors, **self.pin_copies(self._methods.whole_arrays(rows))}

    def gather_rows(self, positions: Indices, options: Mapping[str, Any]) -> tuple[Batch, Tensors]:
        """Gather rows into pinned tensors; return arrays on their memory too.

        Rows without a fixed size are copied.
        """
        layout = self._layout_of(len(positions))
        if layout is None:
            rows = self._methods.gather_rows(positions, **options)
            return rows, self.pin_copies(rows)
        tensors = {
            # On the host, also if torch's default device is another.
            key: torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self._pin)
            for key, (shape, dtype) in layout.items()
        }
        return self._gather_into(tensors, positions, options), tensors

    def gather_slab(
        self, positions: Indices, options: Mapping[str, Any]
    ) -> tuple[Batch, Slab[str]]:
        """Gather rows into one buffer of pinned memory; return arrays on it too.

        Rows without a fixed size are copied.
        """
        layout = self._layout_of(len(positions))
        if layout is None:
            rows = self._methods.gather_rows(positions, **options)
            return rows, Slab.holding(as_tensors(rows, self._bits), self._pin)
        slab = Slab.empty(layout, self._pin)
        return self._gather_into(slab.tensors(slab.memory), positions, options), slab

    def slab_of(self, tensors: Mapping[K, torch.Tensor]) -> Slab[K]:
        """Return a copy of some tensors in one buffer of pinned memory."""
        return Slab.holding(tensors, self._pin)

    def pin_copies(self, batch: Batch) -> Tensors:
        """Return pinned copies of arrays."""
        tensors = as_tensors(batch, self._bits)
        return {key: t.pin_memory() if self._pin else t for key, t in tensors.items()}

    def _gather_into(
        self, tensors: Tensors, positions: Indices, options: Mapping[str, Any]
    ) -> Batch:
        """Gather rows into tensors in host memory; return arrays on their memory."""
        out = {}
        for key, tensor in tensors.items():
            plain = tensor.view(_SIGNED[tensor.itemsize]) if key in self._bits else tensor
            out[key] = plain.numpy().view(self._dtypes[key])
        written = self._methods.gather_rows(positions, out, **options)
        for key, array in out.items():
            if not is_written(array, written.get(key)):
                raise TypeError(
                    f"the source returned a new array for {key!r} instead of writing to `out`, "
                    "which pinned batches require"
                )
        return out

    def _layout_of(self, count: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]] | None:
        """Return shapes and dtypes of `count` rows; None if rows have no fixed size."""
        if not self._probed:
            self._layout = self._probe()
            self._probed = True
        if self._layout is None:
            return None
        return {key: ((count, *shape), dtype) for key, (shape, dtype) in self._layout.items()}

    def _probe(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]] | None:
        """Return shapes and dtypes of a row from an empty batch; None without a fixed size."""
        empty = self._methods.gather_rows(np.empty(0, np.int64))
        tensors = as_tensors(empty, self._bits)
        if any(array.shape[:1] != (0,) for array in empty.values()):
            return None
        self._dtypes = {key: array.dtype for key, array in empty.items()}
        return {key: (array.shape[1:], tensors[key].dtype) for key, array in empty.items()}
