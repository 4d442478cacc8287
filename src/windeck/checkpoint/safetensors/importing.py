"""Import of safetensors files into a store; the safetensors library checks them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windeck._util.options import explain_options
from windeck._util.text import parse_json
from windeck._util.validation import check_format
from windeck.checkpoint.format import keys, state_json
from windeck.checkpoint.format.boxes import whole
from windeck.checkpoint.safetensors.files import (
    DTYPES,
    FORMAT,
    PACKED,
    read_header,
    rename_tensors,
)
from windeck.checkpoint.stores import Store
from windeck.checkpoint.write.commits import CHUNK_BYTES, check_numbers
from windeck.checkpoint.write.imports import ForeignPart, ForeignState, ForeignTensor, import_state
from windeck.columns.dtypes import torch_dtype

__all__ = ["find_weights", "import_", "read_index", "read_state"]

#: Metadata that are not other names of tensors.
_OURS = ("format", "step", "windeck", "total_size")


@dataclass(frozen=True)
class _ImportedTensor:
    """A tensor in a file: its dtype and shape, and the place of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    size: int

    def read(self, first: int, stop: int) -> bytes:
        """Return the bytes of some elements."""
        width = torch_dtype(self.dtype).itemsize
        start, size = self.start + first * width, (stop - first) * width
        with open(self.file, "rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, start)
        if len(data) != size:
            raise ValueError(
                f"{self.file} ended in {self.name}, expected {size:,} bytes at {start:,}: it was "
                "changed during the import"
            )
        return data


@explain_options
def import_(
    path: str | os.PathLike[str],
    store: Store | str,
    *,
    step: int | None = None,
    root: str | None = None,
    namespace: str = "windeck",
    chunk_bytes: int = CHUNK_BYTES,
) -> int:
    """Import safetensors files as a checkpoint.

    Parameters
    ----------
    path
        A file, an index (``....safetensors.index.json``) with its parts beside it, or a folder
        with one of these.
    store, namespace, chunk_bytes
        As for `checkpoint.save`.
    step
        None: the step in the files' metadata, or 0.
    root
        The root to import into: ``model`` for `checkpoint.load` with ``model=``. None: the roots
        before `export`; files of other tools become ``model``.

    Returns
    -------
    int
        The generation committed.

    Raises
    ------
    ValueError
        For files that safetensors rejects, or that do not belong together. Nothing was written.
    FileNotFoundError, ImportError
        If there is no such file, or safetensors is not installed.
    RuntimeError, OSError
        As `checkpoint.save`. The former checkpoint stays in force.

    Notes
    -----
    O(bytes) time; memory of a few chunks.
    """
    keys.check_namespace(namespace)
    state = read_state(path, root=root)
    return import_state(store, state, step=step, namespace=namespace, chunk_bytes=chunk_bytes)


def read_state(path: str | os.PathLike[str], *, root: str | None = None) -> ForeignState:
    """Return the contents of safetensors files; `path` and `root` as for `import_`."""
    sources, text = _read_tensors(Path(path))
    described = None if root is not None else _parse_metadata(path, text, sources)
    if described is None:
        digits = text.get("step", "")
        number = int(digits) if re.fullmatch(r"[0-9]{1,18}", digits) else 0
        described = number, {root or "model": _foreign_tree(text, sources)}
    step, trees = described
    names = _stored_names(trees, sources)
    tensors = {
        names[source.name]: ForeignTensor(
            source.dtype, source.shape, (ForeignPart(whole(source.shape), source.read),)
        )
        for source in sources
    }
    return ForeignState(step, trees, tensors)


def _read_tensors(path: Path) -> tuple[list[_ImportedTensor], dict[str, str]]:
    """Return the tensors of all files, in the order of their data, and the metadata."""
    path = _find_file(path) if path.is_dir() else path
    if path.suffix != ".json":
        return _read_file(path)
    index, where = read_index(path)
    sources: list[_ImportedTensor] = []
    for name in sorted(set(where.values())):
        found, _ = _read_file(path.with_name(name))
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
    return sources, _text_metadata(index.get("metadata"))


def find_weights(folder: Path, suffix: str) -> Path | None:
    """Return the only file of this suffix in a folder, or the index of several; None without one.

    A file ``model.safetensors`` beside its index has all weights: transformers takes it as well.
    """
    for pattern in (f"*{suffix}.index.json", f"*{suffix}"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            whole = found[0].with_name(found[0].name.removesuffix(".index.json"))
            return whole if whole.is_file() else found[0]
        if found:
            names = ", ".join(file.name for file in found[:20])
            raise ValueError(f"{folder} has {names}, expected one: give its path")
    return None


def _find_file(folder: Path) -> Path:
    found = find_weights(folder, ".safetensors")
    if found is None:
        raise FileNotFoundError(f"{folder} has no file that ends in .safetensors, expected one")
    return found


def _read_file(file: Path) -> tuple[list[_ImportedTensor], dict[str, str]]:
    start, header = read_header(file)
    text = _text_metadata(header.pop("__metadata__", None))
    found = []
    for name, entry in header.items():
        code, shape, (first, end) = entry["dtype"], list(entry["shape"]), entry["data_offsets"]
        if code not in DTYPES:
            raise ValueError(f"{name} in {file} has dtype {code}, expected one of {list(DTYPES)}")
        dtype = DTYPES[code]
        torch_dtype(dtype)  # raises if this torch is too old for it
        if dtype == PACKED:
            if not shape or shape[-1] % 2:
                raise ValueError(f"{name} in {file} is {code} of shape {shape}, expected pairs")
            shape[-1] //= 2
        found.append(_ImportedTensor(name, dtype, tuple(shape), file, start + first, end - first))
    return sorted(found, key=lambda source: source.start), text


def read_index(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return an index of Hugging Face's libraries, and the file beside it of each tensor."""
    index = parse_json(path.read_bytes(), str(path))
    where = index.get("weight_map") if type(index) is dict else None
    if type(where) is not dict or not all(type(name) is str for name in where.values()):
        raise ValueError(f"{path} has no weight_map of names and files, expected an index of parts")
    if not where:
        raise ValueError(f"{path} has an empty weight_map, expected names and files of tensors")
    for name in where.values():
        if Path(name).name != name or name in (".", ".."):
            raise ValueError(f"{path} refers to the file {name!r}, expected one beside it")
    return index, where


def _text_metadata(metadata: Any) -> dict[str, str]:
    found = metadata if type(metadata) is dict else {}
    return {str(key): value for key, value in found.items() if type(value) is str}


def _parse_metadata(
    path: str | os.PathLike[str],
    text: Mapping[str, str],
    sources: Sequence[_ImportedTensor],
) -> tuple[int, dict[str, Any]] | None:
    """Return the step and the trees in metadata of `export`; None for files of other tools."""
    if "windeck" not in text:
        return None
    names = {source.name for source in sources}
    try:
        found = json.loads(text["windeck"])
        check_format("it", found["format"], FORMAT)
        roots = dict(found["trees"])
        for root, tree in roots.items():
            state_json.decode(tree, str)
            for place, name in state_json.iter_tensors(tree, root):
                if name not in names:
                    raise ValueError(f"{place} is the tensor {name}, which is missing")
        check_numbers({"step": found["step"]})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the metadata under windeck cannot be read: {error}") from error
    return found["step"], roots


def _foreign_tree(text: Mapping[str, str], sources: Sequence[_ImportedTensor]) -> dict[str, Any]:
    """Return the tree of a file as one dict, with tied tensors under all names.

    `safetensors.torch.save_model` writes removed and kept names among the other metadata, as does
    `export`. A pair of a file of other tools is one only if both names end in the same component:
    other metadata may be equal to the name of a tensor, too.
    """
    names = {source.name: source.name for source in sources}
    names |= {
        name: kept
        for name, kept in text.items()
        if kept in names and name not in names and name not in _OURS
        if "windeck" in text or name.rpartition(".")[2] == kept.rpartition(".")[2]
    }
    return {"dict": [[name, {"tensor": kept}] for name, kept in names.items()]}


def _stored_names(roots: dict[str, Any], sources: Sequence[_ImportedTensor]) -> dict[str, str]:
    """Return stored names by names in the files: the first place of each. Renames the trees too."""
    names: dict[str, str] = {}
    for root, tree in roots.items():
        for place, name in state_json.iter_tensors(tree, root):
            names.setdefault(name, place)
    lost = [source.name for source in sources if source.name not in names]
    if lost:
        raise ValueError(f"the metadata under windeck leave out {', '.join(lost[:20])}")
    roots |= {root: rename_tensors(tree, names) for root, tree in roots.items()}
    return names
