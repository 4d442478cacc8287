"""Names of dtypes and headers of safetensors files, checked by the safetensors library."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windeck._util.text import parse_json
from windeck.columns.dtypes import torch_dtype
from windeck.io.local_files import atomic_file

__all__ = [
    "CODES",
    "DTYPES",
    "PACKED",
    "FORMAT",
    "ExportedTensor",
    "check_with_library",
    "header_bytes",
    "name_in_root",
]
__all__ += ["read_header", "rename_tensors", "write_json"]

#: Format of the metadata under ``windeck`` of exported files.
FORMAT = 1
#: The names of dtypes in safetensors, by torch's names.
CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float4_e2m1fn_x2": "F4", "complex64": "C64", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
DTYPES = {code: dtype for dtype, code in CODES.items()}
#: Two elements in a byte: in the last dimension the format counts elements, torch counts pairs.
PACKED = "float4_e2m1fn_x2"
#: The library's limit.
_LARGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class ExportedTensor:
    """A tensor in a file: its name there, its stored name, its dtype and shape."""

    name: str
    saved: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of one element."""
        return torch_dtype(self.dtype).itemsize

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.width


def name_in_root(place: str, root: str) -> str:
    """Return the name of a tensor inside its root; the root itself keeps its name.

    Examples
    --------
    >>> name_in_root("model/layer.weight", "model"), name_in_root("model", "model")
    ('layer.weight', 'model')
    """
    return place.removeprefix(f"{root}/")


def rename_tensors(tree: Any, names: Mapping[str, str]) -> Any:
    """Return a tree with the tensors renamed by `names`."""
    if type(tree) is list:
        return [rename_tensors(item, names) for item in tree]
    if type(tree) is not dict:
        return tree
    ((kind, inside),) = tree.items()
    if kind == "tensor":
        return {"tensor": names[inside]}
    if kind == "dict":
        return {"dict": [[key, rename_tensors(item, names)] for key, item in inside]}
    return {kind: rename_tensors(inside, names)}


def header_bytes(entries: Sequence[ExportedTensor], text: Mapping[str, str]) -> bytes:
    """Return the header of a file, for tensors that follow in this order.

    Raises
    ------
    ValueError
        For names and metadata above the format's limit.
    """
    found: dict[str, Any] = {"__metadata__": dict(text)}
    place = 0
    for entry in entries:
        if entry.name == "__metadata__":
            raise ValueError("a tensor has the name __metadata__, expected one not reserved")
        shape = list(entry.shape)
        if entry.dtype == PACKED:
            if not shape:
                raise ValueError(
                    f"{entry.name} of {PACKED} has no dimensions, expected one or more"
                )
            shape[-1] *= 2
        span = [place, place + entry.size]
        found[entry.name] = {"dtype": CODES[entry.dtype], "shape": shape, "data_offsets": span}
        place += entry.size
    data = json.dumps(found, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    if len(data) > _LARGEST_HEADER:
        raise ValueError(
            f"the header has {len(data):,} bytes, expected at most {_LARGEST_HEADER:,}: use a "
            "smaller shard_bytes"
        )
    return len(data).to_bytes(8, "little") + data


def check_with_library(file: Path, name: Path) -> None:
    """Raise a ValueError if safetensors rejects a file, an ImportError if it is not installed."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise ImportError(
            "safetensors files need the package safetensors: pip install 'windeck[safetensors]'",
            name="safetensors",
        ) from error
    try:
        with safe_open(file, framework="numpy"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{name} is not a file safetensors can read: {error}") from error


def read_header(file: Path) -> tuple[int, dict[str, Any]]:
    """Check a file; return the offset of its data, and its header."""
    check_with_library(file, file)
    with open(file, "rb") as found:
        size = int.from_bytes(found.read(8), "little")
        if size > _LARGEST_HEADER:
            raise ValueError(
                f"{file} has a header of {size:,} bytes, expected at most {_LARGEST_HEADER:,}"
            )
        header: dict[str, Any] = parse_json(found.read(size), str(file))
    return 8 + size, header


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file; it gets its name when it is complete and on disk."""
    with atomic_file(file) as temporary, open(temporary, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=2)
