"""Export of a checkpoint to safetensors files.

The safetensors library checks the header of each file before data are written into it. The data are
written chunk by chunk without the library, whose writer needs all tensors in memory at once.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from windeck._util.options import explain_options
from windeck._util.validation import check_bytes
from windeck.checkpoint.inspecting import Checkpoint
from windeck.checkpoint.safetensors.files import (
    CODES,
    FORMAT,
    ExportedTensor,
    check_with_library,
    header_bytes,
    name_in_root,
    rename_tensors,
    write_json,
)
from windeck.checkpoint.stores import Store
from windeck.columns.dtypes import dtype_name, torch_dtype
from windeck.io.local_files import atomic_file

__all__ = ["export"]

#: Default bytes of a file, as Hugging Face's libraries have it.
_SHARD_BYTES = 5_000_000_000
#: Bytes written before the mapped pages of the file are released.
_HELD_BYTES = 8 << 20


@explain_options
def export(
    store: Store | str,
    path: str | os.PathLike[str],
    *,
    root: str | None = "model",
    generation: int | None = None,
    namespace: str = "windeck",
    shard_bytes: float | str = _SHARD_BYTES,
    layout: str = "file",
) -> list[Path]:
    """Write tensors of a checkpoint into safetensors files.

    Parameters
    ----------
    store, generation, namespace
        As for `checkpoint.open`.
    path
        Of the file, ending in ``.safetensors``; an existing file is replaced. With
        ``layout="huggingface"``, of a folder, which is made if it does not exist.
    root
        The root to export: ``model`` gives a file with the names of ``model.state_dict()``, as
        other tools expect. None: all roots, with names such as ``model/weight``.
    shard_bytes
        Maximum bytes of data in one file. If there are more, the files are
        ``name-00001-of-00003.safetensors``, ..., with ``name.safetensors.index.json`` beside them.
    layout
        ``"file"``; or ``"huggingface"``: ``model.safetensors`` or its parts in a folder, in the
        order of the state, as `save_pretrained` of transformers writes them. The index, or the only
        file, is written last. The configuration is not part of it:
        ``model.config.save_pretrained(path)`` adds it.

    Returns
    -------
    list of Path
        The files written: one, or the parts and the index.

    Raises
    ------
    TypeError
        For dtypes that safetensors does not have (complex128, ...), naming the tensors; nothing was
        written.
    FileNotFoundError, KeyError, OSError
        If there is no such folder, checkpoint or root, and for damaged values. A file appears under
        its name when it is complete.
    FileExistsError
        With ``layout="huggingface"``, if the folder has a model.

    Notes
    -----
    O(bytes) time; memory of some MiB. A tensor with several names is written once; the other names
    are in the metadata, as with `safetensors.torch.save_model`. Other values than tensors, the step
    and the time are in the metadata as JSON under ``windeck``, so that `import_` restores exactly
    the exported state.

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
    if layout not in ("file", "huggingface"):
        raise ValueError(f"`layout` must be 'file' or 'huggingface', got {layout!r}")
    file = Path(path) if layout == "file" else Path(path) / "model.safetensors"
    if file.suffix != ".safetensors":
        raise ValueError(f"the path ends in {file.suffix!r}, expected .safetensors: {file}")
    if layout == "file" and not file.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {file.parent}, expected one to write {file.name} into"
        )
    shard_bytes = check_bytes("shard_bytes", shard_bytes)
    with Checkpoint(store, namespace, generation) as found:
        contents = _export_contents(found, root)
        if layout == "huggingface":
            _make_folder(file)
            shards = [_aligned(shard) for shard in _split_shards(contents.entries, shard_bytes)]
        else:
            shards = _split_shards(_aligned(contents.entries), shard_bytes)
        text = {"format": "pt", "step": str(found.step)}
        if len(shards) == 1:
            text |= {**contents.aliases, "windeck": contents.described}
            _write_file(found, file, shards[0], text)
            return [file]
        files = [
            file.with_name(f"{file.stem}-{i:05d}-of-{len(shards):05d}.safetensors")
            for i in range(1, len(shards) + 1)
        ]
        for name, shard in zip(files, shards, strict=True):
            _write_file(found, name, shard, text)
        index = file.with_name(f"{file.name}.index.json")
        total = sum(entry.size for entry in contents.entries)
        metadata = {"total_size": total, **text, **contents.aliases, "windeck": contents.described}
        where = {s.name: f.name for f, shard in zip(files, shards, strict=True) for s in shard}
        write_json(index, {"metadata": metadata, "weight_map": where})
        return [*files, index]


@dataclass(frozen=True)
class _ExportContents:
    """The tensors to write, their other names, and the metadata as JSON."""

    entries: list[ExportedTensor]
    aliases: dict[str, str]
    described: str


def _export_contents(found: Checkpoint, root: str | None) -> _ExportContents:
    if root is not None and root not in found.trees:
        raise KeyError(f"{root} was not saved in {found!r}, which has {', '.join(found.trees)}")
    roots = list(found.trees) if root is None else [root]
    names: dict[str, str] = {}  # stored name -> name in the file
    aliases: dict[str, str] = {}
    for each in roots:
        for place, saved in found.places(each):
            name = place if root is None else name_in_root(place, root)
            if names.setdefault(saved, name) != name:
                aliases[name] = names[saved]
    infos = {name: (saved, found.info(saved)) for saved, name in names.items()}
    unknown = [
        f"{n} of {i.dtype}" for n, (_, i) in infos.items() if dtype_name(i.dtype) not in CODES
    ]
    if unknown:
        raise TypeError(
            f"safetensors has no dtype for {', '.join(unknown[:20])}, expected one of "
            f"{', '.join(CODES)}"
        )
    entries = [
        ExportedTensor(name, saved, dtype_name(i.dtype), i.shape)
        for name, (saved, i) in infos.items()
    ]
    trees = {each: rename_tensors(found.trees[each], names) for each in roots}
    described = {"format": FORMAT, "step": found.step, "time": found.time, "trees": trees}
    return _ExportContents(entries, aliases, json.dumps(described, separators=(",", ":")))


def _aligned(entries: Sequence[ExportedTensor]) -> list[ExportedTensor]:
    """Sort wide dtypes first, as the library sorts them, so that all data are aligned."""
    return sorted(entries, key=lambda entry: (-entry.width, entry.name))


def _make_folder(file: Path) -> None:
    """Make the folder of a model, or remove the parts that a killed export left in it."""
    file.parent.mkdir(exist_ok=True)
    for known in (file, file.with_name(f"{file.name}.index.json")):
        if known.exists():
            raise FileExistsError(f"{file.parent} has {known.name} already, expected no model")
    for part in file.parent.glob(f"{file.stem}-?????-of-?????.safetensors"):
        part.unlink()


def _split_shards(
    entries: Sequence[ExportedTensor], shard_bytes: int
) -> list[list[ExportedTensor]]:
    """Split the tensors into files; return at least one file."""
    shards: list[list[ExportedTensor]] = [[]]
    held = 0
    for entry in entries:
        if shards[-1] and held + entry.size > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(entry)
        held += entry.size
    return shards


def _write_file(
    found: Checkpoint, file: Path, entries: Sequence[ExportedTensor], text: Mapping[str, str]
) -> None:
    """Write a file; it gets its name when it is complete and on disk."""
    head = header_bytes(entries, text)
    size = len(head) + sum(entry.size for entry in entries)
    with atomic_file(file) as temporary, open(temporary, "r+b") as out:
        # Reserve the space: a full disk is an error here, and a crash in mapped memory.
        os.posix_fallocate(out.fileno(), 0, size)
        out.write(head)
        out.flush()
        check_with_library(temporary, file)
        # Not closed explicitly: after an error the traceback still holds its tensors.
        mapped = mmap.mmap(out.fileno(), size)
        _fill(found, mapped, len(head), entries)
        mapped.flush()


def _fill(
    found: Checkpoint, mapped: mmap.mmap, start: int, entries: Sequence[ExportedTensor]
) -> None:
    written = 0
    jobs = [(entry.saved, [tensor], None) for entry, tensor in _targets(mapped, start, entries)]
    for _, read in found.read_many(jobs):
        written += read
        if written >= _HELD_BYTES:
            mapped.madvise(mmap.MADV_DONTNEED)  # releases the pages of this process
            written = 0


def _targets(
    mapped: mmap.mmap, start: int, entries: Sequence[ExportedTensor]
) -> Iterator[tuple[ExportedTensor, torch.Tensor]]:
    """Yield tensors whose memory is that of the mapped file."""
    for entry in entries:
        if entry.size:
            raw = torch.frombuffer(mapped, dtype=torch.uint8, count=entry.size, offset=start)
            yield entry, raw.view(torch_dtype(entry.dtype)).view(entry.shape)
            start += entry.size
