"""The pickled metadata of DCP folders, read without running code.

Only the opcodes and names that torch's metadata needs are admitted. No name is imported: each
stands for a function or class of this module.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from windeck.columns.dtypes import DTYPES

__all__ = ["PickledObject", "load_metadata"]

_OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS",
    "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "MEMOIZE", "BINPUT", "BINGET",
    "LONG_BINGET",
}  # fmt: skip
_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"


class PickledObject:
    """An instance of one of torch's classes: the state that was pickled."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> Any:
        """Return an attribute, or None without it."""
        return self.state.get(name) if type(self.state) is dict else None


def load_metadata(data: bytes) -> PickledObject:
    """Return the metadata of a DCP folder as records.

    Raises
    ------
    ValueError
        For a pickle with another opcode or name than torch's metadata have, or that is damaged.
    """
    try:
        for opcode, _, _ in pickletools.genops(data):
            if opcode.name not in _OPCODES:
                raise ValueError(f"it has the opcode {opcode.name}")
        found = _Unpickler(io.BytesIO(data)).load()
    except ValueError:
        raise
    except Exception as error:  # of any kind, for damaged data
        raise ValueError(str(error) or type(error).__name__) from error
    if not isinstance(found, PickledObject):
        raise ValueError(f"it is a {type(found).__name__}")
    return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._names = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._names:
            return self._names[module, name]
        if module == "torch" and name in DTYPES:
            return name
        raise ValueError(f"it refers to {module[:80]}.{name[:80]}")


def _stand_ins() -> dict[tuple[str, str], Any]:
    """Return what stands for each name, made anew, so that no pickle can change it for others."""

    def parts(*names: Any) -> tuple[Any, ...]:
        return names

    found: dict[tuple[str, str], Any] = {
        (_METADATA, "_MEM_FORMAT_ENCODING"): lambda number: number,
        ("torch.serialization", "_get_layout"): lambda name: name,
        ("torch", "Size"): lambda sizes: tuple(sizes),
        ("collections", "OrderedDict"): dict,
        ("pathlib", "PosixPath"): parts,
        ("pathlib", "WindowsPath"): parts,
        ("pathlib._local", "PosixPath"): parts,
        ("pathlib._local", "WindowsPath"): parts,
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): type(
            "Info", (PickledObject,), {}
        ),
    }
    for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "MetadataIndex", "StorageMeta",
    ):  # fmt: skip
        found[_METADATA, name] = type(name, (PickledObject,), {})
    return found
