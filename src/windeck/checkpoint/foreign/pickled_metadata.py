"""The pickled metadata of DCP folders, read without running code.

Only the opcodes and names that torch's metadata needs are admitted. No name is imported: each
stands for a function or class of this module, none of which copies what it is given. So a pickle
takes at most 200 bytes of memory for each of its own.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from itertools import takewhile
from typing import Any

from windeck.columns.dtypes import DTYPES

__all__ = ["METADATA_FILE", "PickledObject", "load_metadata"]

#: The file of a DCP folder that describes the others.
METADATA_FILE = ".metadata"

_OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS",
    "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "MEMOIZE", "BINPUT", "BINGET",
    "LONG_BINGET",
}  # fmt: skip
#: By opcode: True if it takes objects up to a mark, and the numbers of objects that it takes below
#: the mark and that it puts.
_EFFECTS = {
    opcode.name: (
        pickletools.markobject in opcode.stack_before,
        len([*takewhile(lambda one: one is not pickletools.markobject, opcode.stack_before)]),
        len(opcode.stack_after),
    )
    for opcode in pickletools.opcodes
    if opcode.name in _OPCODES
}
_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
#: The module of metadata in torch before 2.3.
_BEFORE = "torch.distributed._shard.sharded_tensor.metadata"


#: Limit for the values in a tuple and the tuples in it: Python hashes all of them each time.
_LARGEST_TUPLE = 1000


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
        _check_opcodes(data)
        found = _Unpickler(io.BytesIO(data)).load()
    except ValueError:
        raise
    except Exception as error:  # of any kind, for damaged data
        raise ValueError(str(error) or type(error).__name__) from error
    if not isinstance(found, PickledObject):
        raise ValueError(f"it is a {type(found).__name__}")
    return found


def _check_opcodes(data: bytes) -> None:
    """Raise a ValueError for an opcode that is not admitted, and for a tuple of too many values.

    A pickle of 1 kB can have forty tuples, each of which holds the next one twice. Its hash takes
    2^40 steps, which is why this is checked before the pickle is loaded. The stack and the memo of
    the unpickler are followed with a number for each object: the values in it if it is a tuple. The
    unpickler raises for those that do not exist.
    """
    stack: list[int | None] = []  # None: a mark
    memo: dict[Any, int | None] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name not in _EFFECTS:
            raise ValueError(f"it has the opcode {name}")
        has_mark, taken, pushes = _EFFECTS[name]
        if name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name == "BINPUT":
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo.get(argument, 1))
        elif name == "MARK":
            stack.append(None)
        elif not has_mark and not taken:
            stack += [1] * pushes
        else:
            used = [0]
            while has_mark and (size := stack.pop()) is not None:
                used.append(size)
            used += [stack.pop() or 0 for _ in range(taken)]
            if name[:5] == "TUPLE":
                stack.append(1 + sum(used))
                if sum(used) > _LARGEST_TUPLE:
                    raise ValueError(f"it has a tuple of more than {_LARGEST_TUPLE:,} values")
            elif pushes:
                stack.append(max(used))


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

    def ordered() -> dict[Any, Any]:  # an OrderedDict is filled after it is made
        return {}

    def path(*names: Any) -> None:  # of the folder when it was saved, which is not used
        return None

    def size(numbers: Any) -> tuple[Any, ...]:  # no tuple of a list, see `_check_opcodes`
        if type(numbers) is not tuple:
            raise ValueError(f"it has a torch.Size of a {type(numbers).__name__}")
        return numbers

    found: dict[tuple[str, str], Any] = {
        (_METADATA, "_MEM_FORMAT_ENCODING"): lambda number: number,
        (_BEFORE, "MEM_FORMAT_ENCODING"): lambda number: number,
        (_BEFORE, "TensorProperties"): type("TensorProperties", (PickledObject,), {}),
        ("torch.serialization", "_get_layout"): lambda name: name,
        ("torch", "Size"): size,
        ("collections", "OrderedDict"): ordered,
        ("pathlib", "PosixPath"): path,
        ("pathlib", "WindowsPath"): path,
        ("pathlib._local", "PosixPath"): path,
        ("pathlib._local", "WindowsPath"): path,
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
