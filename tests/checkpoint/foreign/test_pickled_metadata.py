"""Tests of the restricted reading of DCP's metadata: nothing is imported or run."""

from __future__ import annotations

import datetime
import os
import pickle
import random
import shutil
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as theirs
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from windeck import checkpoint
from windeck.checkpoint.foreign import open_file
from windeck.checkpoint.stores import Store

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
WEIGHTS = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
LIMIT = 2**31  # of the numbers of four bytes


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two tensors, one of them in a list."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    dcp_save({"w": WEIGHTS, "layers": [{"b": torch.ones(1)}]}, checkpoint_id=folder)
    return folder


@pytest.fixture
def opened(saved: Path, tmp_path: Path) -> Callable[[bytes], Store]:
    """Return a function that opens the folder with other metadata."""
    folder = shutil.copytree(saved, tmp_path / "run")

    def open_with(data: bytes) -> Store:
        (folder / ".metadata").write_bytes(data)
        return open_file(folder)

    return open_with


def metadata(folder: Path) -> Any:
    return pickle.loads((folder / ".metadata").read_bytes())


def check(store: Store) -> None:
    with checkpoint.open(store) as found:
        assert found.names() == ["model/w", "model/layers/0/b"]
        assert torch.equal(found.tensor("model/w"), WEIGHTS)
        assert torch.equal(found.tensor("model/layers/0/b"), torch.ones(1))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_metadata_of_torch(
    protocol: int, saved: Path, opened: Callable[[bytes], Store], tmp_path: Path
) -> None:
    content = metadata(saved)
    content.planner_data = OrderedDict(content.planner_data)
    check(opened(pickle.dumps(content, protocol)))
    (file,) = (tmp_path / "run").glob("*.distcp")
    whole = file.read_bytes()
    with file.open("wb") as target:
        target.seek(LIMIT)
        target.write(whole)
    for info in content.storage_data.values():
        info.offset += LIMIT
    check(opened(pickle.dumps(content, protocol)))


@pytest.mark.parametrize("place", [b"pathlib._local\nPosixPath", b"pathlib\nWindowsPath"])
def test_paths_of_other_pythons(
    place: bytes, saved: Path, opened: Callable[[bytes], Store]
) -> None:
    content = metadata(saved)
    content.storage_meta.checkpoint_id = Path("run")
    whole = pickle.dumps(content, 2)
    former = b"c%s\nPosixPath" % Path.__module__.encode()
    assert whole.count(former) == 1
    check(opened(whole.replace(former, b"c" + place)))


def test_metadata_of_torch_before_2_3(saved: Path, opened: Callable[[bytes], Store]) -> None:
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

    content = metadata(saved)
    for tensor in content.state_dict_metadata.values():
        tensor.properties = TensorProperties(tensor.properties.dtype)
    check(opened(pickle.dumps(content)))


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.packed = function, arguments

    def __reduce__(self) -> Any:
        return self.packed


def test_other_names_are_refused(opened: Callable[[bytes], Store], tmp_path: Path) -> None:
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
                opened(pickle.dumps(content))
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
def test_pickles_that_are_no_metadata(
    data: bytes, words: str, opened: Callable[[bytes], Store]
) -> None:
    with pytest.raises(ValueError, match=words):
        opened(data)


def nested(kind: Any, levels: int) -> Any:
    """Return a list or tuple that holds the next one twice, and so on: 2^levels values."""
    value = kind([0])
    for _ in range(levels):
        value = kind([value, value])
    return value


@pytest.mark.parametrize("protocol", [2, 4])
def test_tuples_that_hold_each_other(
    protocol: int, saved: Path, opened: Callable[[bytes], Store]
) -> None:
    """Their hash takes as many steps as they have values, so they are never made."""
    inside: Any
    size = Call(torch.Size, nested(tuple, 50))
    for inside in (nested(tuple, 50), size, [nested(tuple, 50)], nested(tuple, 10)):
        data = pickle.dumps(theirs.Metadata({"w": inside}), protocol)
        with pytest.raises(ValueError, match="it has a tuple of more than 1,000 values"):
            opened(data)
    # As a key, of which Python would compute the hash here, too: {(t, t): 0}.
    data = b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 50 + b"}h\x00K\x00s."
    with pytest.raises(ValueError, match="it has a tuple of more than 1,000 values"):
        opened(data)
    inside = Call(torch.Size, [1, 2])
    with pytest.raises(ValueError, match=r"it has a torch\.Size of a list"):
        opened(pickle.dumps(theirs.Metadata({"w": inside}), protocol))
    content = metadata(saved)
    content.planner_data["unused"] = nested(tuple, 8)
    check(opened(pickle.dumps(content, protocol)))


def test_no_pickle_changes_the_module(saved: Path, opened: Callable[[bytes], Store]) -> None:
    """BUILD sets attributes of what is on the stack: of a class, and of a function here."""
    name = b"ctorch.distributed.checkpoint.metadata\n%s\n"
    for target in (b"Metadata", b"_MEM_FORMAT_ENCODING"):
        for state in (b"}X\x03\x00\x00\x00getNs", b"(N}X\x03\x00\x00\x00getNst"):
            data = b"\x80\x02" + name % target + state + b"b."
            with pytest.raises(ValueError, match=r"\w"):
                opened(data)
    check(opened(pickle.dumps(metadata(saved))))
    assert theirs.Metadata({}).planner_data is None


def test_damaged_metadata(saved: Path, opened: Callable[[bytes], Store]) -> None:
    """Whatever is damaged, the file opens or is refused."""
    whole = (saved / ".metadata").read_bytes()
    chance = random.Random(1)
    for length in (0, 1, *chance.sample(range(len(whole)), 40), len(whole) - 1):
        with pytest.raises(ValueError, match="cannot be read as metadata"):
            opened(whole[:length])
    refused = 0
    for bit in chance.sample(range(8 * len(whole)), 200):
        wrong = bytearray(whole)
        wrong[bit // 8] ^= 1 << bit % 8
        try:
            opened(bytes(wrong))
        except ValueError:
            refused += 1
    assert 200 / 3 < refused < 200


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
    b"}(" + b"".join(b"M%sN" % i.to_bytes(2, "little") for i in range(200)) + b"u",
    b"](" + b"K\x01" * 700 + b"e",
    b"(" + b"K\x01" * 700 + b"t",
    b"(" + b"]" * 700 + b"t",
    b"X" + (9000).to_bytes(4, "little") + b"a" * 9000,
    b"\x8a\xff" + b"\x7f" * 255,
]
#: Uses of a large object, 0, and of a name, 3, for it or for tuples of it, 1 and 2.
_USES = [b"h\x00\x85", b"h\x00h\x00\x86", b"]h\x00a", b"}K\x01h\x00s"]
_CALLS = [
    b"h\x03h\x00R", b"h\x03h\x01R", b"h\x03h\x02R", b"h\x03)R", b"h\x03h\x00\x81",
    b"h\x03h\x01\x81", b"h\x03)\x81h\x00b", b"h\x03)\x81h\x02b",
]  # fmt: skip


def _amplifiers() -> list[bytes]:
    """Return pickles that repeat what may make a large object of a few bytes."""

    def repeated(piece: bytes) -> bytes:
        return piece * (1000 // len(piece))

    found = [b"\x80\x02](" + repeated(piece) + b"e." for piece in _SMALL]
    found += [b"\x80\x04" + repeated(b"N\x94") + b".", b"\x80\x02" + repeated(b"(") + b"."]
    found += [b"\x80\x02N" + repeated(b"q\x00") + b"."]
    for large in _LARGE:
        first = b"\x80\x02](" + large + b"q\x00" + b"h\x00\x85q\x01" + b"h\x00h\x00\x86q\x02"
        found += [first + repeated(piece) + b"e." for piece in _USES]
        for module, name in _NAMES:
            own = first + b"c%s\n%s\nq\x03" % (module.encode(), name.encode())
            found += [own + repeated(piece) + b"e." for piece in _CALLS]
    return found


def test_memory_is_in_proportion_to_the_file(saved: Path, opened: Callable[[bytes], Store]) -> None:
    """No function or opcode that is admitted copies what it is given."""
    check(opened(pickle.dumps(metadata(saved))))  # imports modules
    for data in _amplifiers():
        tracemalloc.start()
        try:
            with suppress(ValueError):
                opened(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 200 * max(len(data), 2000), (peak / len(data), data[:80], data[-20:])
