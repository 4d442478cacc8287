"""Files of `torch.save`, which torch maps into memory and reads without running code."""

from __future__ import annotations

import errno
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from windeck.checkpoint.foreign.contents import build_state, check_expanded
from windeck.checkpoint.format.boxes import whole
from windeck.checkpoint.format.chunks import read_elements
from windeck.checkpoint.safetensors.importing import read_index
from windeck.checkpoint.write.imports import ForeignPart, ForeignState, ForeignTensor
from windeck.checkpoint.write.local_tensors import to_local_tensor
from windeck.columns.dtypes import dtype_name

__all__ = [
    "check_torch",
    "describe_tensor",
    "first_sentence",
    "is_of_system",
    "load_weights",
    "read_torch_file",
    "read_torch_index",
    "refused_names",
]


#: The first version of torch whose restricted reader has no known fault.
_SAFE_TORCH = (2, 10)


def read_torch_file(path: Path, *, root: str | None) -> ForeignState:
    """Return the contents of a file of `torch.save`; tensors of a mapped file are read on demand.

    Raises
    ------
    ValueError
        For a file that torch cannot read, or only by running code in it, and for tensors that are
        expanded to far more bytes than the file has.
    TypeError
        For a value that cannot be saved, naming its place.
    """
    state = build_state(load_weights(path), describe_tensor, root=root)
    check_expanded(state, path, path.stat().st_size)
    return state


def describe_tensor(name: str, tensor: torch.Tensor) -> tuple[ForeignTensor, Any]:
    """Return a tensor in memory or in a mapped file, and a key of its memory."""
    local = to_local_tensor(name, tensor)  # raises for sparse and other tensors

    def read(first: int, stop: int) -> Any:
        return read_elements(tensor, first, stop)

    part = ForeignPart(whole(local.shape), read)
    return ForeignTensor(dtype_name(local.dtype), local.shape, (part,)), local.memory


def check_torch(path: Path) -> None:
    """Raise a RuntimeError for a version of torch whose restricted reader may run code.

    That of torch before 2.6, and again before 2.10, did with certain files.
    """
    found = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if found is None or (int(found[1]), int(found[2])) < _SAFE_TORCH:
        raise RuntimeError(
            f"{path} cannot be read with torch {torch.__version__}, in which weights_only=True may "
            "run code of a file: expected torch 2.10 or later"
        )


def load_weights(path: Path) -> Any:
    """Return what a file holds, by torch's restricted reader; tensors are mapped if they can be."""
    check_torch(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=_can_be_mapped(path))
    except Exception as error:  # of any kind, for files that are damaged
        if is_of_system(error):
            raise
        raise ValueError(f"{path} {_reason(path, error)}") from error


def _can_be_mapped(path: Path) -> bool:
    """Return True for a zip archive without compression, as torch has written since 1.6."""
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            return False
        try:
            members = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, ValueError):
            return False
    return all(member.compress_type == zipfile.ZIP_STORED for member in members)


def _reason(path: Path, error: Exception) -> str:
    unsafe = _unsafe_names(path) or refused_names(error)
    if unsafe:
        return (
            f"holds {', '.join(unsafe[:5])}, which torch makes by running code, expected tensors "
            "and plain values, such as of torch.save(model.state_dict(), ...)"
        )
    if isinstance(error, AttributeError) and "UntypedStorage" in str(error):
        return (
            "has a dtype, such as float8, that torch does not read from its format before 1.6, "
            "expected one of torch.save with its defaults"
        )
    return f"cannot be read as a file of torch.save: {first_sentence(error)}"


def is_of_system(error: Exception) -> bool:
    """Return True for errors of reading, except for torch's jumps to invalid places."""
    return isinstance(error, OSError) and error.errno != errno.EINVAL


def first_sentence(error: Exception) -> str:
    """Return the first sentence of the message of an error of torch."""
    text = str(error).split("\n")[0].split(". ")[0][:200]
    if not isinstance(error, (RuntimeError, pickle.UnpicklingError)) or not text[:1].isalpha():
        return "it is damaged, or of another kind"  # torch did not expect it either
    return text


def refused_names(error: Exception) -> list[str]:
    """Return the name that torch did not allow, by its error; files before 1.6 have no other."""
    return [name[:80] for name in re.findall(r"GLOBAL (\S+) (?:whose|was)", str(error))[:1]]


def _unsafe_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names that a file needs and that torch does not allow, without loading it."""
    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
    except Exception:  # for damaged files, those of torch before 1.6, and torch before 2.6
        return []


def read_torch_index(index: Path, *, root: str | None) -> ForeignState:
    """Return the tensors of the files that an index (``.bin.index.json``) names, beside it."""
    state: dict[str, Any] = {}
    _, where = read_index(index)
    files = sorted(set(where.values()))
    for file in files:
        part = load_weights(index.with_name(file))
        names = {name for name, held in where.items() if held == file}
        if not isinstance(part, dict) or part.keys() != names:
            raise ValueError(f"{file} has other names than {index} says, expected the same")
        state |= part
    found = build_state(state, describe_tensor, root=root or "model")
    check_expanded(found, index, sum(index.with_name(file).stat().st_size for file in files))
    return found
