"""From a checkpoint to safetensors files.

The library checks each file before data are written into it. The data go past it, a chunk at a
time: its own writer wants all tensors in memory at once.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from windeck._util.files import atomic_file
from windeck.checkpoint.inspecting import Checkpoint
from windeck.checkpoint.safetensors.files import (
    CODES,
    Slot,
    check_with_library,
    header_bytes,
    place_name,
    renamed,
    write_json,
)
from windeck.checkpoint.stores import Store
from windeck.columns.dtypes import torch_dtype

__all__ = ["export"]

#: Bytes of a file, unless asked otherwise: what Hugging Face's libraries write.
_SHARD_BYTES = 5_000_000_000
#: Bytes written between two times of letting go of the file's pages.
_HELD_BYTES = 8 << 20


def export(
    store: Store | str,
    path: str | os.PathLike[str],
    *,
    root: str | None = "model",
    generation: int | None = None,
    namespace: str = "windeck",
    shard_bytes: int = _SHARD_BYTES,
) -> list[Path]:
    """Write tensors of a checkpoint into safetensors files.

    Parameters
    ----------
    store, generation, namespace
        As for `checkpoint.open`.
    path
        Of the file, ending in ``.safetensors``; replaced if it is there.
    root
        Whose tensors: ``model`` gives a file with the names of ``model.state_dict()``, as other
        tools expect. None: all of the checkpoint, under names such as ``model/weight``.
    shard_bytes
        Bytes of data in one file. Where there are more, the files are
        ``name-00001-of-00003.safetensors``, ..., with ``name.safetensors.index.json`` beside them.

    Returns
    -------
    list of Path
        The files written: one, or the parts and the index.

    Raises
    ------
    TypeError
        For dtypes that safetensors has none for (complex128, ...), naming the tensors; nothing was
        written.
    FileNotFoundError, KeyError, OSError
        When there is no such folder, checkpoint or root, and for what is damaged. A file appears
        under its name when it is whole.

    Notes
    -----
    O(bytes) time; memory of some MiB. A tensor that is there under several names is written once,
    the other names are in the metadata, as `safetensors.torch.save_model` does it. What is no
    tensor, the step and the time are in the metadata, as JSON under ``windeck``, so `import_`
    brings back exactly what was exported.

    Examples
    --------
    >>> import tempfile, torch
    >>> from safetensors.torch import load_file
    >>> from windeck import checkpoint
    >>> from windeck.checkpoint.safetensors import export, import_
    >>> store, folder = checkpoint.stores.open_store("memory://"), tempfile.mkdtemp()
    >>> generation = checkpoint.save(store, step=100, model={"w": torch.arange(3.0)})
    >>> (file,) = export(store, f"{folder}/model.safetensors")
    >>> load_file(file)
    {'w': tensor([0., 1., 2.])}
    >>> import_(file, store), [commit.step for commit in checkpoint.log(store)]
    (2, [100, 100])
    """
    file = Path(path)
    if file.suffix != ".safetensors":
        raise ValueError(f"the path ends in {file.suffix!r}, expected .safetensors: {file}")
    if not file.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {file.parent}, expected one to write {file.name} into"
        )
    if type(shard_bytes) is not int or shard_bytes < 1:
        raise ValueError(f"shard_bytes is {shard_bytes!r}, expected an integer of at least 1")
    with Checkpoint(store, namespace, generation) as found:
        plan = _plan(found, root)
        shards = _shards(plan.slots, shard_bytes)
        text = {"format": "pt", "step": str(found.step)}
        if len(shards) == 1:
            _write(found, file, shards[0], {**text, **plan.aliases, "windeck": plan.described})
            return [file]
        files = [
            file.with_name(f"{file.stem}-{i:05d}-of-{len(shards):05d}.safetensors")
            for i in range(1, len(shards) + 1)
        ]
        for name, shard in zip(files, shards, strict=True):
            _write(found, name, shard, text)
        index = file.with_name(f"{file.name}.index.json")
        total = sum(slot.size for slot in plan.slots)
        metadata = {"total_size": total, **text, **plan.aliases, "windeck": plan.described}
        where = {s.name: f.name for f, shard in zip(files, shards, strict=True) for s in shard}
        write_json(index, {"metadata": metadata, "weight_map": where})
        return [*files, index]


@dataclass(frozen=True)
class _Plan:
    """What to write: the tensors, their other names, and all the rest as JSON."""

    slots: list[Slot]
    aliases: dict[str, str]
    described: str


def _plan(found: Checkpoint, root: str | None) -> _Plan:
    if root is not None and root not in found.trees:
        raise KeyError(f"{root} was not saved in {found!r}, which has {', '.join(found.trees)}")
    roots = list(found.trees) if root is None else [root]
    names: dict[str, str] = {}  # the name data are under -> the name in the file
    aliases: dict[str, str] = {}
    for each in roots:
        for place, saved in found.places(each):
            name = place if root is None else place_name(place, root)
            if names.setdefault(saved, name) != name:
                aliases[name] = names[saved]
    infos = {name: (saved, found.info(saved)) for saved, name in names.items()}
    unknown = [f"{n} of {i.dtype}" for n, (_, i) in infos.items() if _dtype(i.dtype) not in CODES]
    if unknown:
        raise TypeError(
            f"safetensors has no dtype for {', '.join(unknown[:20])}, expected one of "
            f"{', '.join(CODES)}"
        )
    slots = [Slot(name, saved, _dtype(i.dtype), i.shape) for name, (saved, i) in infos.items()]
    trees = {each: renamed(found.trees[each], names) for each in roots}
    described = {"format": 1, "step": found.step, "time": found.time, "trees": trees}
    # Wide dtypes first, as the library does it: so all data are aligned.
    slots.sort(key=lambda slot: (-slot.width, slot.name))
    return _Plan(slots, aliases, json.dumps(described, separators=(",", ":")))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shards(slots: Sequence[Slot], shard_bytes: int) -> list[list[Slot]]:
    """The tensors of each file, at least one file."""
    shards: list[list[Slot]] = [[]]
    held = 0
    for slot in slots:
        if shards[-1] and held + slot.size > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(slot)
        held += slot.size
    return shards


def _write(found: Checkpoint, file: Path, slots: Sequence[Slot], text: Mapping[str, str]) -> None:
    """Write a file of tensors atomically."""
    head = header_bytes(slots, text)
    size = len(head) + sum(slot.size for slot in slots)
    with atomic_file(file) as temporary, open(temporary, "x+b") as out:
        # All of it now: a full disk is an error here, and would be a crash in mapped memory.
        os.posix_fallocate(out.fileno(), 0, size)
        out.write(head)
        out.flush()
        check_with_library(temporary, file)
        # Not closed by hand: after an error its tensors are still held by the traceback.
        mapped = mmap.mmap(out.fileno(), size)
        _fill(found, mapped, len(head), slots)
        mapped.flush()


def _fill(found: Checkpoint, mapped: mmap.mmap, start: int, slots: Sequence[Slot]) -> None:
    written = 0
    jobs = [(slot.saved, [tensor], None) for slot, tensor in _targets(mapped, start, slots)]
    for _, read in found.read_many(jobs):
        written += read
        if written >= _HELD_BYTES:
            mapped.madvise(mmap.MADV_DONTNEED)  # the pages stay with the file, not with us
            written = 0


def _targets(
    mapped: mmap.mmap, start: int, slots: Sequence[Slot]
) -> Iterator[tuple[Slot, torch.Tensor]]:
    """Tensors whose memory is the file's."""
    for slot in slots:
        if slot.size:
            raw = torch.frombuffer(mapped, dtype=torch.uint8, count=slot.size, offset=start)
            yield slot, raw.view(torch_dtype(slot.dtype)).view(slot.shape)
            start += slot.size
