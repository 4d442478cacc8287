"""Tests of the restricted reading of DCP's metadata: nothing is imported or run."""

from __future__ import annotations

import collections
import datetime
import os
import pickle
import pickletools
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as theirs
from torch.distributed.checkpoint.filesystem import _StorageInfo

from support.internals import OPCODES, PickledObject, load_metadata


def metadata(dtype: torch.dtype = torch.float32) -> theirs.Metadata:
    size = torch.Size([3, 2])
    chunks = [theirs.ChunkStorageMetadata(torch.Size([0, 0]), size)]
    tensor = theirs.TensorStorageMetadata(theirs.TensorProperties(dtype), size, chunks)
    return theirs.Metadata(
        {"w": tensor, "n": theirs.BytesStorageMetadata()},
        planner_data=collections.OrderedDict(w=("w",), n=("n", 0)),
        storage_data={
            theirs.MetadataIndex("w", [0, 0], 0): _StorageInfo("__0_0.distcp", 5, 70_000),
            theirs.MetadataIndex("n"): _StorageInfo("__0_0.distcp", 2**40, 1),
        },
        storage_meta=theirs.StorageMeta(Path("/data/run"), "a"),
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_metadata_of_torch(protocol: int) -> None:
    found = load_metadata(pickle.dumps(metadata(torch.bfloat16), protocol))
    tensor = found.get("state_dict_metadata")["w"]
    assert type(tensor).__name__ == "TensorStorageMetadata"
    assert tensor.get("properties").state[0] == "bfloat16"
    assert tensor.get("size") == (3, 2)
    assert [(c.get("offsets"), c.get("sizes")) for c in tensor.get("chunks")] == [((0, 0), (3, 2))]
    places = {
        (index.get("fqn"), index.get("offset")): (info.get("offset"), info.get("length"))
        for index, info in found.get("storage_data").items()
    }
    assert places == {("w", (0, 0)): (5, 70_000), ("n", None): (2**40, 1)}
    assert found.get("planner_data") == {"w": ("w",), "n": ("n", 0)}
    # No class of torch is among the objects.
    assert {type(value).__module__ for value in (found, tensor, *tensor.get("chunks"))} == {
        PickledObject.__module__
    }


def test_metadata_of_torch_before_2_3() -> None:
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

    properties: Any = TensorProperties(torch.float16)
    size = torch.Size([2])
    tensor = theirs.TensorStorageMetadata(properties, size, [])
    found = load_metadata(pickle.dumps(theirs.Metadata({"w": tensor})))
    assert found.get("state_dict_metadata")["w"].get("properties").state[0] == "float16"


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.packed = function, arguments

    def __reduce__(self) -> Any:
        return self.packed


def test_other_names_are_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for evil, name in (
        (Call(os.system, f"touch {mark}"), "posix.system"),
        (Call(eval, f"open({str(mark)!r}, 'w')"), "builtins.eval"),
        (Call(getattr, "torch", "save"), "builtins.getattr"),
        (Call(torch.load, str(mark)), "torch.serialization.load"),
        (datetime.timedelta(1), "datetime.timedelta"),
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
    ):
        inside: Any = {"w": evil}
        for content in (evil, theirs.Metadata(inside)):
            with pytest.raises(ValueError, match=f"it refers to {name}"):
                load_metadata(pickle.dumps(content))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "pickle exhausted|expected|opcode"),
        (b"hello", "opcode|POP_MARK|int"),
        (b"\x80\x04N.", "it is a NoneType"),
        (b"\x80\x02r\xff\xff\xff\x7fN.", "it has the opcode LONG_BINPUT"),  # memory of 16 GiB
        (b"\x80\x02Nr\x00\x00\x00\x01.", "it has the opcode LONG_BINPUT"),
        (b"\x80\x02\x82\x01.", "it has the opcode EXT1"),
        (b"\x80\x02U\x01aQ.", "it has the opcode SHORT_BINSTRING"),
        (b"(ios\nsystem\n.", "it has the opcode INST"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", r"\w"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.", r"\w"),
    ],
)
def test_pickles_that_are_no_metadata(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_metadata(data)


def nested(kind: Any, levels: int) -> Any:
    """Return a list or tuple that holds the next one twice, and so on: 2^levels values."""
    value = kind([0])
    for _ in range(levels):
        value = kind([value, value])
    return value


@pytest.mark.parametrize("protocol", [2, 4])
def test_tuples_that_hold_each_other(protocol: int) -> None:
    """Their hash takes as many steps as they have values, so they are never made."""
    inside: Any
    size = Call(torch.Size, nested(tuple, 50))
    for inside in (nested(tuple, 50), size, [nested(tuple, 50)], nested(tuple, 10)):
        data = pickle.dumps(theirs.Metadata({"w": inside}), protocol)
        with pytest.raises(ValueError, match="it has a tuple of more than 1,000 values"):
            load_metadata(data)
    # As a key, of which Python would compute the hash here, too: {(t, t): 0}.
    data = b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 50 + b"}h\x00K\x00s."
    with pytest.raises(ValueError, match="it has a tuple of more than 1,000 values"):
        load_metadata(data)
    inside = Call(torch.Size, [1, 2])
    with pytest.raises(ValueError, match=r"it has a torch\.Size of a list"):
        load_metadata(pickle.dumps(theirs.Metadata({"w": inside}), protocol))
    inside = nested(tuple, 8)
    found = load_metadata(pickle.dumps(theirs.Metadata({"w": inside}), protocol))
    assert found.get("state_dict_metadata")["w"] == nested(tuple, 8)


def test_no_pickle_changes_the_module() -> None:
    """BUILD sets attributes of what is on the stack: of a class, and of a function here."""
    name = b"ctorch.distributed.checkpoint.metadata\n%s\n"
    for target in (b"Metadata", b"_MEM_FORMAT_ENCODING"):
        for state in (b"}X\x03\x00\x00\x00getNs", b"(N}X\x03\x00\x00\x00getNst"):
            data = b"\x80\x02" + name % target + state + b"b."
            with pytest.raises(ValueError, match=r"\w"):
                load_metadata(data)
    assert load_metadata(pickle.dumps(metadata())).get("state_dict_metadata").keys() == {"w", "n"}
    assert theirs.Metadata({}).planner_data is None


def test_damaged_metadata() -> None:
    whole = pickle.dumps(metadata())
    outcomes: list[Any] = []
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"\w"):
            load_metadata(whole[:length])
    for place in range(len(whole)):
        for bit in (0, 2, 5, 7):
            wrong = bytearray(whole)
            wrong[place] ^= 1 << bit
            try:
                outcomes.append(type(load_metadata(bytes(wrong))))
            except ValueError:
                outcomes.append(ValueError)
    assert outcomes.count(ValueError) > len(outcomes) / 3


def test_the_opcodes_are_those_of_every_protocol() -> None:
    known = {opcode.name for opcode in pickletools.opcodes}
    assert known >= OPCODES


#: Pieces of pickles that put one object on the stack, of which the next ones make more.
_NAMES = [
    *(("torch.distributed.checkpoint.metadata", one)
      for one in ("Metadata", "MetadataIndex", "TensorProperties", "_MEM_FORMAT_ENCODING")),
    ("torch", "Size"), ("torch", "float32"), ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"), ("pathlib._local", "WindowsPath"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
]  # fmt: skip
_SMALL = [
    b"N",
    b"K\x01",
    b"}",
    b"]",
    b")",
    b"]K\x01a",
    b"}K\x01K\x01s",
    b"N\x85",
    b"NN\x86",
    b"]]\x86",
]
_LARGE = [
    b"}(" + b"".join(b"M%sN" % i.to_bytes(2, "little") for i in range(600)) + b"u",
    b"](" + b"K\x01" * 1500 + b"e",
    b"(" + b"K\x01" * 990 + b"t",
    b"(" + b"]" * 990 + b"t",
    b"X" + (3000).to_bytes(4, "little") + b"a" * 3000,
    b"\x8a\xff" + b"\x7f" * 255,
]


#: Calls and other uses of a name, 3, for a large object, 0, or tuples of it, 1 and 2.
_CALLS = [
    b"h\x03h\x00R", b"h\x03h\x01R", b"h\x03h\x02R", b"h\x03)R", b"h\x03h\x00\x81",
    b"h\x03h\x01\x81", b"h\x03)\x81h\x00b", b"h\x03)\x81h\x02b", b"h\x00\x85", b"h\x00h\x00\x86",
    b"]h\x00a", b"}K\x01h\x00s",
]  # fmt: skip


def _amplifiers() -> list[bytes]:
    """Return pickles that repeat what may make a large object of a few bytes."""
    found = [b"\x80\x02](" + piece * (8000 // len(piece)) + b"e." for piece in _SMALL]
    found += [b"\x80\x04" + b"N\x94" * 8000 + b".", b"\x80\x02" + b"(" * 8000 + b"."]
    found += [b"\x80\x02N" + b"q\x00" * 8000 + b"."]
    for large in _LARGE:
        first = b"\x80\x02](" + large + b"q\x00" + b"h\x00\x85q\x01" + b"h\x00h\x00\x86q\x02"
        for module, name in _NAMES:
            own = first + b"c%s\n%s\nq\x03" % (module.encode(), name.encode())
            for piece in _CALLS:
                found.append(own + piece * (8000 // len(piece)) + b"e.")
    return found


def test_memory_is_in_proportion_to_the_file() -> None:
    """No function or opcode that is admitted copies what it is given."""
    for data in _amplifiers():
        tracemalloc.start()
        try:
            with suppress(ValueError):
                load_metadata(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 200 * len(data), (peak / len(data), data[:80], data[-20:])
