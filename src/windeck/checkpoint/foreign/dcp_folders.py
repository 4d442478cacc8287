"""Folders of torch.distributed.checkpoint (DCP), read shard by shard.

A tensor that several ranks saved, as FSDP, DTensor, ShardedTensor and TorchRec do, is one tensor
whose parts are the shards.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from reprlib import repr as brief  # its work is bounded, also for lists in lists
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.utils import _create_file_view

from windeck.checkpoint.foreign.contents import OnUnreadable, build_state, check_expanded
from windeck.checkpoint.foreign.pickled_metadata import (
    METADATA_FILE,
    PickledObject,
    load_metadata,
)
from windeck.checkpoint.foreign.torch_files import (
    check_torch,
    describe_tensor,
    first_sentence,
    is_of_system,
    refused_names,
)
from windeck.checkpoint.format.boxes import Box, shape_of, whole
from windeck.checkpoint.format.chunks import read_elements
from windeck.checkpoint.format.entries import check_tiling
from windeck.checkpoint.write.imports import ForeignPart, ForeignState, ForeignTensor
from windeck.columns.dtypes import DTYPES, dtype_name, torch_dtype

__all__ = ["read_dcp_folder"]

#: Limits for the keys that lead to a value, and for the positions in lists: values without content,
#: such as empty dicts, are not stored, so there are more positions than values.
_DEEPEST, _FEW_POSITIONS, _MOST_POSITIONS = 100, 100_000, 10


class _StoredItem(NamedTuple):
    """The place of a serialized object in a file of the folder."""

    file: Path
    offset: int
    length: int


#: Places of objects by name and, of a shard, its offset in the tensor.
_Items: TypeAlias = Mapping[tuple[str, tuple[int, ...] | None], _StoredItem]


def read_dcp_folder(
    folder: Path, *, root: str | None, on_unreadable: OnUnreadable | None = None
) -> ForeignState:
    """Return the contents of a DCP folder; a shard is in memory while its elements are read.

    Parameters
    ----------
    on_unreadable
        Returns what to show for a value that torch reads only by running code. None: an error.

    Raises
    ------
    ValueError
        For metadata that are damaged or need code to be run, and for shards that overlap, leave
        gaps, or are outside their files.
    """
    try:
        found = load_metadata((folder / METADATA_FILE).read_bytes())
        contents, items = _dict_of(found, "state_dict_metadata"), _find_items(folder, found)
        paths = _paths(found, contents)
        _check_shards(contents, (folder / METADATA_FILE).stat().st_size)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / METADATA_FILE} cannot be read as metadata of torch.distributed.checkpoint: "
            f"{error}"
        ) from error
    tensors: dict[int, tuple[torch.Tensor, ForeignTensor]] = {}
    state: dict[Any, Any] = {}
    # Rows of a tensor that is cut by columns are read from several shards in turn.
    load = partial(_load_cached, OrderedDict(), _count_columns(contents))
    for name, stored in contents.items():
        if type(stored).__name__ == "TensorStorageMetadata":
            placeholder = torch.empty(0, device="meta")
            tensors[id(placeholder)] = placeholder, _tensor(folder, name, stored, items, load)
            value: Any = placeholder
        else:
            value = _value(folder, name, items, on_unreadable)
        try:
            set_element(state, paths[name], value)
        except Exception as error:  # a list where another path has a dict
            raise ValueError(f"{name} in {folder} has the path {paths[name]!r:.80}") from error

    def describe(name: str, tensor: torch.Tensor) -> tuple[ForeignTensor, Any]:
        if id(tensor) not in tensors:  # inside a value
            return describe_tensor(name, tensor)
        return tensors[id(tensor)][1], None

    built = build_state(state, describe, root=root)
    files = {item.file for item in items.values()}
    check_expanded(built, folder, sum(file.stat().st_size for file in files))
    return built


def _check_shards(contents: Mapping[str, Any], stored_bytes: int) -> None:
    """Raise a ValueError for more shards than metadata of some bytes can list.

    Many tensors may refer to one list of shards, of which each would be compared for each tensor.
    """
    lists = [stored.get("chunks") for stored in contents.values() if _is_record(stored)]
    count = sum(len(chunks) for chunks in lists if type(chunks) is list)
    if count > stored_bytes:
        raise ValueError(f"it lists {count:,} shards in {stored_bytes:,} bytes, expected fewer")


def _is_record(stored: Any) -> TypeGuard[PickledObject]:
    return isinstance(stored, PickledObject)


def _count_columns(contents: Mapping[str, Any]) -> int:
    """Return the largest number of shards of a tensor that hold the same rows."""
    most = 1
    for stored in contents.values():
        chunks = stored.get("chunks") if _is_record(stored) else None
        if type(chunks) is list and all(map(_is_record, chunks)):
            rows = Counter(_first_row(chunk.get("offsets")) for chunk in chunks)
            most = max(most, *rows.values(), 0)
    return most


def _first_row(offsets: Any) -> int | None:
    first = offsets[0] if type(offsets) is tuple and offsets else None
    return first if type(first) is int else None


def _dict_of(record: PickledObject, name: str) -> dict[Any, Any]:
    found = record.get(name)
    if type(found) is not dict:
        raise ValueError(f"{name} is a {type(found).__name__}, expected a dict")
    return found


def _sizes(found: Any) -> tuple[int, ...]:
    if type(found) is not tuple or any(type(n) is not int or not 0 <= n < 1 << 59 for n in found):
        raise ValueError(f"found the sizes {brief(found):.80}, expected whole numbers")
    return found


def _find_items(folder: Path, found: PickledObject) -> _Items:
    """Return the place of each object, by its name, and its offset in the tensor."""
    files: dict[str, tuple[Path, int]] = {}
    items = {}
    for index, info in _dict_of(found, "storage_data").items():
        name, offset = index.get("fqn"), index.get("offset")
        file, first, length = (info.get(key) for key in ("relative_path", "offset", "length"))
        if type(name) is not str or type(file) is not str:
            raise ValueError(
                f"{brief(name):.80} is in the file {brief(file):.80}, expected two names"
            )
        if info.get("transform_descriptors"):
            raise ValueError(
                f"{name} is stored with {brief(info.get('transform_descriptors')):.80}"
            )
        if file not in files:
            files[file] = _find_file(folder, name, file)
        path, size = files[file]
        if type(first) is not int or type(length) is not int or first < 0 or length < 0:
            raise ValueError(
                f"{name} is at {brief(first):.80}, {brief(length):.80}, expected a place in {file}"
            )
        if first + length > size:
            raise ValueError(
                f"{name} ends at {first + length:,} in {file}, which has {size:,} bytes"
            )
        place = None if offset is None else _sizes(offset)
        items[name, place] = _StoredItem(path, first, length)
    return items


def _find_file(folder: Path, name: str, file: str) -> tuple[Path, int]:
    """Return the path of a file of the folder, and its bytes."""
    if Path(file).name != file or file in (".", ".."):
        raise ValueError(f"{name} is in the file {file!r}, expected one in the folder")
    if not (folder / file).is_file():
        raise ValueError(f"{name} is in {file}, which is missing")
    return folder / file, (folder / file).stat().st_size


def _paths(found: PickledObject, contents: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the keys that lead to each object: those of the state before it was flattened."""
    given = found.get("planner_data")
    given = given if type(given) is dict else {}
    paths = {}
    for name in contents:
        if type(name) is not str:
            raise ValueError(f"it has the name {brief(name):.80}, expected text")
        path = given.get(name, (name,))
        # Positions in lists, which are filled up to them: empty dicts in them are not stored.
        if type(path) is not tuple or any(
            type(key) is not str and not (type(key) is int and 0 <= key < max(1000, len(contents)))
            for key in path
        ):
            raise ValueError(f"{name} has the path {brief(path):.80}, expected keys and positions")
        if len(path) > _DEEPEST:
            raise ValueError(f"{name} has a path of {len(path):,} keys, expected {_DEEPEST}")
        paths[name] = path if path and type(path[0]) is str else (name,)
    sizes: dict[tuple[Any, ...], int] = {}  # of the lists, by the path to each
    for path in paths.values():
        for at, key in enumerate(path):
            if type(key) is int:
                sizes[path[:at]] = max(sizes.get(path[:at], 0), key + 1)
    if sum(sizes.values()) > max(_FEW_POSITIONS, _MOST_POSITIONS * len(paths)):
        raise ValueError(
            f"it has lists of {sum(sizes.values()):,} positions for {len(paths):,} values, "
            f"expected up to {_MOST_POSITIONS} for each"
        )
    known = set(paths.values())
    for name, path in paths.items():
        if any(path[:end] in known for end in range(len(path))):
            raise ValueError(f"{name} has the path {path!r:.80}, which is inside another value")
    if len(known) != len(paths):
        raise ValueError("two names have one path, expected one of each")
    return paths


def _tensor(
    folder: Path,
    name: str,
    stored: PickledObject,
    items: _Items,
    load: Callable[[_StoredItem, str], torch.Tensor],
) -> ForeignTensor:
    try:
        dtype, shape = stored.get("properties").state[0], _sizes(stored.get("size"))
        if type(dtype) is not str or dtype not in DTYPES:
            raise ValueError(f"it has dtype {brief(dtype):.80}, expected one that windeck knows")
        boxes: dict[Box, _StoredItem] = {}
        for chunk in stored.get("chunks"):
            offsets, sizes = _sizes(chunk.get("offsets")), _sizes(chunk.get("sizes"))
            if len(offsets) != len(shape) or len(sizes) != len(shape):
                raise ValueError(f"it has shape {shape}, and a shard of {sizes} at {offsets}")
            if math.prod(sizes):
                ends = zip(offsets, sizes, strict=True)
                boxes[tuple((a, a + n) for a, n in ends)] = items[name, offsets]
        check_tiling(name, shape, [*boxes])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name} in {folder} cannot be read: {error}") from error
    parts = [
        ForeignPart(box, partial(_read_shard, load, item, name, dtype, shape_of(box)))
        for box, item in boxes.items()
    ]
    if not parts:
        parts = [ForeignPart(whole(shape), lambda first, stop: b"")]
    return ForeignTensor(dtype, shape, tuple(parts))


def _read_shard(
    load: Callable[[_StoredItem, str], torch.Tensor],
    item: _StoredItem,
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    first: int,
    stop: int,
) -> Any:
    tensor = load(item, name)
    if type(tensor) is not torch.Tensor or (tensor.dtype, tensor.shape) != (
        torch_dtype(dtype), shape,
    ):  # fmt: skip
        kind = type(tensor).__name__
        if isinstance(tensor, torch.Tensor):
            kind = f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"
        raise ValueError(
            f"a shard of {name} in {item.file} is {kind}, expected {dtype} of shape {shape}"
        )
    return read_elements(tensor, first, stop)


def _load_cached(
    cache: OrderedDict[_StoredItem, Any], most: int, item: _StoredItem, name: str
) -> Any:
    """Return an object by way of a cache, which releases older ones before a new one is loaded."""
    found = cache.pop(item, None)
    if found is None:
        while len(cache) >= most:
            cache.popitem(last=False)
        found = _load_item(item, name)
    cache[item] = found
    return found


def _load_item(item: _StoredItem, name: str) -> Any:
    """Return an object by torch's restricted reader."""
    check_torch(item.file)
    with open(item.file, "rb") as file:
        view: Any = _create_file_view(file, item.offset, item.length)
        try:
            return torch.load(view, map_location="cpu", weights_only=True)
        except Exception as error:  # of any kind, for damaged data
            if is_of_system(error):
                raise
            names = refused_names(error)
            reason = f"it holds {names[0]}" if names else first_sentence(error)
            raise ValueError(
                f"{name} in {item.file} cannot be read with weights_only=True: {reason}"
            ) from error


def _value(
    folder: Path,
    name: str,
    items: _Items,
    on_unreadable: OnUnreadable | None,
) -> Any:
    if (name, None) not in items:
        raise ValueError(f"{folder / METADATA_FILE} does not say where {name} is")
    try:
        return _load_item(items[name, None], name)
    except ValueError as error:
        if on_unreadable is None:
            raise
        return on_unreadable(name, error)
