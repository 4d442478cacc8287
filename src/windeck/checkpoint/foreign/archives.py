"""NumPy archives (``.npz``), read array by array and without pickle."""

from __future__ import annotations

import math
import zipfile
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from windeck.checkpoint.foreign.contents import build_state
from windeck.checkpoint.foreign.torch_files import is_of_system
from windeck.checkpoint.format.boxes import whole
from windeck.checkpoint.write.imports import ForeignPart, ForeignState, ForeignTensor
from windeck.columns.dtypes import DTYPES

__all__ = ["read_npz"]

#: Limit for the bytes that deflate makes of one byte.
_MOST_INFLATED = 1032


def read_npz(path: Path, *, root: str | None) -> ForeignState:
    """Return the arrays of an archive; one of them at a time is in memory.

    Raises
    ------
    ValueError
        For a file that is not an archive, and for an array of objects, text or times.
    """
    tensors = {}
    state = {}
    headers = _read_headers(path)
    load = lru_cache(maxsize=2)(partial(_load_array, zipfile.ZipFile(path)))
    for name, (dtype, shape) in headers.items():
        width = DTYPES[dtype].itemsize
        part = ForeignPart(whole(shape), partial(_read_array, load, name, width))
        placeholder = torch.empty(0, device="meta")
        tensors[id(placeholder)] = placeholder, ForeignTensor(dtype, shape, (part,))
        state[name] = placeholder

    def describe(name: str, tensor: torch.Tensor) -> tuple[ForeignTensor, Any]:
        return tensors[id(tensor)][1], None

    return build_state(state, describe, root=root or "model")


def _read_headers(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of each array."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if not member.endswith(".npy"):
                    raise ValueError(f"it holds {member[:80]}, expected names that end in .npy")
                if member.removesuffix(".npy") in found:
                    raise ValueError(f"it holds {member[:80]} twice, expected different names")
                info = archive.getinfo(member)
                _check_compression(info, path.stat().st_size)
                with archive.open(info) as file:
                    version = np.lib.format.read_magic(file)
                    read = np.lib.format.read_array_header_1_0
                    if version != (1, 0):
                        read = np.lib.format.read_array_header_2_0
                    shape, _, dtype = read(file)
                    held = info.file_size - file.tell()
                name = dtype.newbyteorder("=").name
                if name not in DTYPES or dtype.hasobject:
                    raise ValueError(f"{member} has dtype {dtype}, expected numbers or bool")
                size = math.prod(shape) * dtype.itemsize
                if min(shape, default=0) < 0 or size != held:
                    raise ValueError(
                        f"{member} has shape {shape}, {size:,} bytes, expected the {held:,} bytes "
                        "in the archive"
                    )
                found[member.removesuffix(".npy")] = name, tuple(map(int, shape))
    except Exception as error:  # of any kind, for damaged data
        if is_of_system(error):
            raise
        raise ValueError(f"{path} cannot be read as an .npz file: {error}") from error
    return found


def _check_compression(info: zipfile.ZipInfo, archive_bytes: int) -> None:
    """Raise a ValueError for more bytes than can be in the archive: memory is reserved for them."""
    packed = info.compress_size
    most = {zipfile.ZIP_STORED: packed, zipfile.ZIP_DEFLATED: packed * _MOST_INFLATED}
    if info.compress_type not in most:
        raise ValueError(
            f"{info.filename[:80]} has compression {info.compress_type}, expected none or deflate"
        )
    if packed > archive_bytes or info.file_size > most[info.compress_type]:
        raise ValueError(
            f"{info.filename[:80]} has {info.file_size:,} bytes, packed as {packed:,} of "
            f"{archive_bytes:,}, expected fewer"
        )


def _load_array(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        with archive.open(f"{name}.npy") as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:  # of any kind, for damaged data
        if is_of_system(error):
            raise
        raise ValueError(f"{name} in {archive.filename} cannot be read: {error}") from error
    return np.ascontiguousarray(found, found.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)


def _read_array(load: Any, name: str, width: int, first: int, stop: int) -> Any:
    return load(name)[first * width : stop * width]
