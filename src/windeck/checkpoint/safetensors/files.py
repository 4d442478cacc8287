"""safetensors files from outside: names of dtypes, headers, and what the library says of a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windeck._util.files import atomic_file
from windeck.columns.dtypes import torch_dtype

__all__ = ["CODES", "DTYPES", "PACKED", "Slot", "check_with_library", "header_bytes", "place_name"]
__all__ += ["read_header", "renamed", "write_json"]

#: torch's names of dtypes, and the format's.
CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float4_e2m1fn_x2": "F4", "complex64": "C64", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
DTYPES = {code: dtype for dtype, code in CODES.items()}
#: Two elements in a byte: the format counts them one by one in the last dimension, torch in pairs.
PACKED = "float4_e2m1fn_x2"
#: The library takes none larger.
_LARGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Slot:
    """A tensor in a file: its name there, the one its data are under, its dtype and shape."""

    name: str
    saved: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return torch_dtype(self.dtype).itemsize

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.width


def place_name(place: str, root: str) -> str:
    """The name of a tensor inside its root; one that is the root itself keeps the root's name.

    Examples
    --------
    >>> place_name("model/layer.weight", "model"), place_name("model", "model")
    ('layer.weight', 'model')
    """
    return place.removeprefix(f"{root}/")


def renamed(tree: Any, names: Mapping[str, str]) -> Any:
    """A tree with the names that tensors have in the file."""
    if type(tree) is list:
        return [renamed(item, names) for item in tree]
    if type(tree) is not dict:
        return tree
    ((kind, inside),) = tree.items()
    if kind == "tensor":
        return {"tensor": names[inside]}
    if kind == "dict":
        return {"dict": [[key, renamed(item, names)] for key, item in inside]}
    return {kind: renamed(inside, names)}


def header_bytes(slots: Sequence[Slot], text: Mapping[str, str]) -> bytes:
    """What a file begins with, for tensors that follow in this order.

    Raises
    ------
    ValueError
        For more names and metadata than the format has room for.
    """
    found: dict[str, Any] = {"__metadata__": dict(text)}
    place = 0
    for slot in slots:
        if slot.name == "__metadata__":
            raise ValueError("a tensor has the name __metadata__, expected one not reserved")
        shape = list(slot.shape)
        if slot.dtype == PACKED:
            if not shape:
                raise ValueError(f"{slot.name} of {PACKED} has no dimensions, expected one or more")
            shape[-1] *= 2
        span = [place, place + slot.size]
        found[slot.name] = {"dtype": CODES[slot.dtype], "shape": shape, "data_offsets": span}
        place += slot.size
    data = json.dumps(found, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    if len(data) > _LARGEST_HEADER:
        raise ValueError(
            f"the header has {len(data):,} bytes, expected at most {_LARGEST_HEADER:,}: use a "
            "smaller shard_bytes"
        )
    return len(data).to_bytes(8, "little") + data


def check_with_library(file: Path, name: Path) -> None:
    """ValueError for what safetensors does not take as a file, ImportError where it is missing."""
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
    """Where the data begin, and the header, of a file that the library has checked."""
    check_with_library(file, file)
    with open(file, "rb") as found:
        size = int.from_bytes(found.read(8), "little")
        if size > _LARGEST_HEADER:
            raise ValueError(f"{file} has a header of {size:,} bytes, expected fewer")
        header: dict[str, Any] = json.loads(found.read(size))
    return 8 + size, header


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    with atomic_file(file) as temporary, open(temporary, "x", encoding="utf-8") as out:
        json.dump(value, out, indent=2)
