"""Files and folders of other formats: which one it is, and its contents as a store for reading."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from windeck._core import crc32c
from windeck._util.schemes import SCHEMES
from windeck.checkpoint.foreign.archives import read_npz
from windeck.checkpoint.foreign.contents import OnUnreadable
from windeck.checkpoint.foreign.pickled_metadata import METADATA_FILE
from windeck.checkpoint.foreign.torch_files import read_torch_file, read_torch_index
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import Commit, encode_head, encode_manifest, encode_next
from windeck.checkpoint.format.values import Kind, Label, encode
from windeck.checkpoint.safetensors.importing import find_weights, read_state
from windeck.checkpoint.stores.memory import FACTS, MappingStore
from windeck.checkpoint.write.commits import CHUNK_BYTES
from windeck.checkpoint.write.imports import ForeignState

__all__ = ["TABLE_SUFFIXES", "open_file", "read_file"]

_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
#: Suffixes of files that hold one embedding table.
TABLE_SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")
_TENSORFLOW = re.compile(r".*(\.index|\.data-\d{5}-of-\d{5})")


def read_file(
    path: str | os.PathLike[str],
    *,
    root: str | None = None,
    on_unreadable: OnUnreadable | None = None,
) -> ForeignState:
    """Return the contents of a file or folder of another format; elements are read on demand.

    Parameters
    ----------
    path
        A file of torch.save, a DCP folder, safetensors or an ``.npz`` archive.
    root
        See `windeck.checkpoint.import_`.
    on_unreadable
        See `read_dcp_folder`.
    """
    found = Path(path)
    _refuse_tensorflow(found)
    if found.is_dir():
        found = _file_in(found)
    if not found.exists():
        raise FileNotFoundError(f"there is no file or folder {found}, expected a checkpoint")
    if found.name == METADATA_FILE:
        # Its import takes as long as that of torch.
        from windeck.checkpoint.foreign.dcp_folders import read_dcp_folder

        return read_dcp_folder(found.parent, root=root, on_unreadable=on_unreadable)
    if found.name.endswith(".bin.index.json"):
        return read_torch_index(found, root=root)
    if found.suffix in (".safetensors", ".json"):
        return read_state(found, root=root)
    if found.suffix in _TORCH_SUFFIXES:
        return read_torch_file(found, root=root)
    if found.suffix == ".npz":
        return read_npz(found, root=root)
    if found.suffix in TABLE_SUFFIXES:
        raise ValueError(f"{found} holds an embedding table, expected import_table for it")
    raise ValueError(
        f"{found} ends in {found.suffix!r}, expected a DCP folder, or a file that ends in "
        f".safetensors, .npz, {', '.join(_TORCH_SUFFIXES)}"
    )


def _file_in(folder: Path) -> Path:
    """Return the file that describes a folder: metadata of DCP, an index, or the only file."""
    if (folder / METADATA_FILE).is_file():
        return folder / METADATA_FILE
    if (folder / "CURRENT").is_file():
        names = (name for name, known in SCHEMES.items() if known.existing)
        urls = " or ".join(f"{name}://{folder.absolute()}" for name in names)
        raise ValueError(f"{folder} is a database, expected its URL: {urls}")
    for suffix in (".safetensors", ".bin", ".pt", ".pth"):
        found = find_weights(folder, suffix)
        if found is not None:
            return found
    raise FileNotFoundError(
        f"{folder} has no {METADATA_FILE} of torch.distributed.checkpoint and no file that ends in "
        ".safetensors, .bin, .pt or .pth, expected one of them"
    )


def _refuse_tensorflow(path: Path) -> None:
    prefix = path.with_name(f"{path.name}.index").is_file()
    folder = path.is_dir() and ((path / "saved_model.pb").is_file() or any(path.glob("*.index")))
    if prefix or folder or (_TENSORFLOW.fullmatch(path.name) and path.is_file()):
        raise ValueError(
            f"{path} is a checkpoint of TensorFlow, expected an .npz file of its variables, "
            "which numpy.savez writes of tf.train.load_checkpoint(prefix).get_tensor(name) for the "
            "name of each"
        )


def open_file(path: str | os.PathLike[str]) -> MappingStore:
    """Return a store for reading whose only checkpoint is the contents of a file or folder.

    Values are made when they are read, so that the whole is never in memory.

    Raises
    ------
    FileNotFoundError, OSError
        If there is no such file, or it cannot be read.
    ValueError, TypeError
        For a file of an unknown format, or with values that cannot be saved.

    Examples
    --------
    >>> import tempfile, torch
    >>> from windeck import checkpoint
    >>> folder = tempfile.mkdtemp()
    >>> torch.save({"w": torch.arange(3.0)}, f"{folder}/weights.pt")
    >>> with checkpoint.open(open_file(f"{folder}/weights.pt")) as found:
    ...     found.names(), found.tensor("model/w")
    (['model/w'], tensor([0., 1., 2.]))
    """
    state = read_file(path, on_unreadable=lambda name, error: f"(not read: {error})")
    values = _FileValues(path, state)
    return MappingStore(
        values, url=os.fspath(path), facts=FACTS._replace(backend="file", snapshots=False)
    )


class _FileValues(MutableMapping[bytes, bytes]):
    """The values of a checkpoint with the contents of a file; chunks are made on each read."""

    def __init__(self, path: str | os.PathLike[str], state: ForeignState) -> None:
        self._path = os.fspath(path)
        self._items = state.items(CHUNK_BYTES)
        payload = encode_manifest(state.manifest(CHUNK_BYTES))
        manifest = encode(Label(Kind.MANIFEST, 1, 0), payload)
        time = os.stat(path).st_mtime
        commit = Commit(1, 0, state.step, time, len(manifest), crc32c(manifest))
        self._head = {
            keys.head("windeck"): encode_head([commit]),
            keys.next_generation("windeck"): encode_next(2),
            keys.manifest("windeck", 1): manifest,
        }

    def __getitem__(self, key: bytes) -> bytes:
        if key in self._head:
            return self._head[key]
        letter, numbers = keys.parse("windeck", key) or ("", ())
        if letter != "t" or len(numbers) != 4:
            raise KeyError(key)
        generation, writer, item, chunk = numbers
        if (generation, writer) != (1, 0) or item >= len(self._items):
            raise KeyError(key)
        if chunk >= self._items[item].chunks:
            raise KeyError(key)
        try:
            return bytes(self._items[item].value(1, 0, chunk))
        except ValueError as error:  # the file is damaged, or was changed
            raise OSError(str(error)) from error

    def __iter__(self) -> Iterator[bytes]:
        yield from self._head
        for item in self._items:
            for chunk in range(item.chunks):
                yield keys.chunk("windeck", 1, 0, item.number, chunk)

    def __len__(self) -> int:
        return len(self._head) + sum(item.chunks for item in self._items)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        raise PermissionError(f"{self._path} is a file of another format, which is only read")

    def __delitem__(self, key: bytes) -> None:
        raise PermissionError(f"{self._path} is a file of another format, which is only read")
