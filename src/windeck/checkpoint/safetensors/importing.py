"""safetensors files into a store: the library checks them, their bytes go in as they are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windeck.checkpoint.format import keys, trees
from windeck.checkpoint.format.chunks import chunk_items
from windeck.checkpoint.format.manifests import check_manifest
from windeck.checkpoint.format.values import Kind, Label, encode
from windeck.checkpoint.safetensors.files import DTYPES, PACKED, read_header, renamed
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.opening import opened
from windeck.checkpoint.stores.protocol import Items
from windeck.checkpoint.write.plans import CHUNK_BYTES, Plan, begin, check_numbers, finish
from windeck.columns.dtypes import torch_dtype

__all__ = ["import_"]

#: Metadata that are no other names of tensors.
_OURS = ("format", "step", "windeck", "total_size")


@dataclass(frozen=True)
class _Source:
    """A tensor in a file: its dtype and shape, and where its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    size: int


def import_(
    path: str | os.PathLike[str],
    store: Store | str,
    *,
    step: int | None = None,
    root: str | None = None,
    namespace: str = "windeck",
    chunk_bytes: int = CHUNK_BYTES,
) -> int:
    """Make a checkpoint of safetensors files.

    Parameters
    ----------
    path
        A file, an index (``....safetensors.index.json``) with its parts beside it, or a folder
        with one of these.
    store, namespace, chunk_bytes
        As for `checkpoint.save`.
    step
        None: that of the files' metadata, else 0.
    root
        Under which name: ``model`` for `checkpoint.load` with ``model=``. None: as it was before
        `export`; files of others become ``model``.

    Returns
    -------
    int
        The generation committed.

    Raises
    ------
    ValueError
        For files that safetensors does not take, or that do not fit together. Nothing was written.
    FileNotFoundError, ImportError
        Where there is no such file, or safetensors is not installed.
    RuntimeError, OSError
        As `checkpoint.save`. The checkpoint that was in force still is.

    Notes
    -----
    O(bytes) time; memory of a few chunks.
    """
    keys.check_namespace(namespace)
    sources, text = _sources(Path(path))
    described = None if root is not None else _described(text, sources)
    if described is None:
        said = text.get("step", "")
        number = int(said) if re.fullmatch(r"[0-9]{1,18}", said) else 0
        described = number, {root or "model": _plain(text, sources)}
    found = described[0] if step is None else step
    check_numbers({"step": found, "chunk_bytes": chunk_bytes})
    names = _names(described[1], sources)
    manifest = {
        "chunk_bytes": chunk_bytes,
        "tensors": [_entry(number, source, names) for number, source in enumerate(sources)],
        "trees": described[1],
    }
    with opened(store) as place:
        plan = begin(place, step=found, writers=1, namespace=namespace, chunk_bytes=chunk_bytes)
        check_manifest(manifest, plan.generation, plan.save)
        place.bulk_load(_pairs(sources, plan))
        place.sync()
        return finish(place, plan, manifest)


def _sources(path: Path) -> tuple[list[_Source], dict[str, str]]:
    """The tensors of all files, in the order of their data, and the metadata."""
    path = _file_in(path) if path.is_dir() else path
    if path.suffix != ".json":
        return _in_file(path)
    index = _json(path)
    where = index.get("weight_map") if type(index) is dict else None
    if type(where) is not dict or not all(type(name) is str for name in where.values()):
        raise ValueError(f"{path} has no weight_map of names and files, expected an index of parts")
    sources: list[_Source] = []
    for name in sorted(set(where.values())):
        if Path(name).name != name or name in (".", ".."):
            raise ValueError(f"{path} refers to the file {name!r}, expected one beside it")
        found, _ = _in_file(path.with_name(name))
        for source in found:
            if where.get(source.name) != name:
                raise ValueError(
                    f"{name} has a tensor {source.name}, which {path.name} says is in "
                    f"{where.get(source.name)}"
                )
        sources += found
    lost = sorted(where.keys() - {source.name for source in sources})
    if lost:
        raise ValueError(f"{path} names tensors no file has: {', '.join(lost[:20])}")
    return sources, _text(index.get("metadata"))


def _file_in(folder: Path) -> Path:
    """What of a folder is meant: its one index, else its one file."""
    for pattern in ("*.safetensors.index.json", "*.safetensors"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(file.name for file in found[:20])
            raise ValueError(f"{folder} has {names}, expected one: say which")
    raise FileNotFoundError(f"{folder} has no file that ends in .safetensors, expected one")


def _in_file(file: Path) -> tuple[list[_Source], dict[str, str]]:
    start, header = read_header(file)
    text = _text(header.pop("__metadata__", None))
    found = []
    for name, entry in header.items():
        code, shape, (first, end) = entry["dtype"], list(entry["shape"]), entry["data_offsets"]
        if code not in DTYPES:
            raise ValueError(f"{name} in {file} has dtype {code}, expected one of {list(DTYPES)}")
        dtype = DTYPES[code]
        torch_dtype(dtype)  # this torch may be too old for it
        if dtype == PACKED:
            if not shape or shape[-1] % 2:
                raise ValueError(f"{name} in {file} is {code} of shape {shape}, expected pairs")
            shape[-1] //= 2
        found.append(_Source(name, dtype, tuple(shape), file, start + first, end - first))
    return sorted(found, key=lambda source: source.start), text


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error


def _text(metadata: Any) -> dict[str, str]:
    found = metadata if type(metadata) is dict else {}
    return {str(key): value for key, value in found.items() if type(value) is str}


def _described(
    text: Mapping[str, str], sources: Sequence[_Source]
) -> tuple[int, dict[str, Any]] | None:
    """The step and the trees that `export` put into the metadata; None where it did not."""
    if "windeck" not in text:
        return None
    names = {source.name for source in sources}
    try:
        found = json.loads(text["windeck"])
        if found["format"] != 1:
            raise ValueError(f"it has format {found['format']!r}, expected 1")
        roots = dict(found["trees"])
        for root, tree in roots.items():
            trees.decode(tree, str)
            for place, name in trees.tensors_in(tree, root):
                if name not in names:
                    raise ValueError(f"{place} is the tensor {name}, which is not there")
        check_numbers({"step": found["step"]})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the metadata under windeck cannot be read: {error}") from error
    return found["step"], roots


def _plain(text: Mapping[str, str], sources: Sequence[_Source]) -> dict[str, Any]:
    """A tree of a file by others: one dict, tied tensors under all their names."""
    names = {source.name: source.name for source in sources}
    names |= {
        name: kept
        for name, kept in text.items()
        if kept in names and name not in names and name not in _OURS
    }
    return {"dict": [[name, {"tensor": kept}] for name, kept in names.items()]}


def _names(roots: dict[str, Any], sources: Sequence[_Source]) -> dict[str, str]:
    """The name in the store of each in the files: where it stands first. The trees get them too."""
    names: dict[str, str] = {}
    for root, tree in roots.items():
        for place, name in trees.tensors_in(tree, root):
            names.setdefault(name, place)
    lost = [source.name for source in sources if source.name not in names]
    if lost:
        raise ValueError(f"the metadata under windeck leave out {', '.join(lost[:20])}")
    roots |= {root: renamed(tree, names) for root, tree in roots.items()}
    return names


def _entry(number: int, source: _Source, names: Mapping[str, str]) -> dict[str, Any]:
    box = [[0, size] for size in source.shape]
    return {
        "name": names[source.name],
        "dtype": source.dtype,
        "shape": list(source.shape),
        "parts": [{"box": box, "writer": 0, "item": number}],
    }


def _pairs(sources: Sequence[_Source], plan: Plan) -> Items:
    """Chunks straight from the files, each to be used before the next is asked for."""
    for item, source in enumerate(sources):
        dtype = torch_dtype(source.dtype)
        step = chunk_items(dtype, plan.chunk_bytes) * dtype.itemsize
        with open(source.file, "rb", buffering=0) as file:
            for number, start in enumerate(range(0, source.size, step)):
                size = min(step, source.size - start)
                data = os.pread(file.fileno(), size, source.start + start)
                if len(data) != size:
                    raise ValueError(
                        f"{source.file} ended in {source.name}, expected {size:,} bytes at "
                        f"{source.start + start:,}: it was changed meanwhile"
                    )
                key = keys.chunk(plan.namespace, plan.generation, 0, item, number)
                label = Label(Kind.CHUNK, plan.generation, plan.save, item, 0, number)
                yield key, encode(label, data)
