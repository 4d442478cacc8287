"""Objects in folders of any file system: listed, written whole, removed, and read in ranges."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from itertools import accumulate

from windeck.io.filesystem import parent, remote_reader, upload
from windeck.io.local_files import fsync_folder, make_folder, write_buffers
from windeck.io.remote import RemotePath

__all__ = ["ObjectReader", "list_objects", "write_object"]


def list_objects(folder: str) -> dict[str, int]:
    """Return the files in a folder with their bytes; none if there is no folder.

    Names that begin with a dot are left out: local files that are being written.
    """
    try:
        if isinstance(folder, RemotePath):
            entries = folder.attempt("list", lambda client, key: client.entries(key))
            found = {one.name: one.size for one in entries if not one.is_directory}
        else:
            with os.scandir(folder) as listed:
                found = {one.name: one.stat().st_size for one in listed if one.is_file()}
    except FileNotFoundError:
        return {}
    return {name: size for name, size in found.items() if name and not name.startswith(".")}


def write_object(path: str, buffers: Sequence[bytes]) -> None:
    """Write a file that appears as a whole, or replaces another one; make its folder.

    A local folder may not be a symbolic link.

    It is durable when this returns. A write that was killed may leave a local file whose name
    begins with a dot, or parts of an upload that the store keeps for itself.
    """
    if isinstance(path, RemotePath):
        upload(path, *buffers)
        return
    folder = parent(path)
    make_folder(folder)
    write_buffers(path, buffers)
    fsync_folder(folder)


class ObjectReader:
    """A file that does not change, for reading ranges of bytes. Thread-safe; it holds no handle.

    Attributes
    ----------
    size
        Bytes of the file when it was opened.
    """

    def __init__(self, path: str) -> None:
        self._path, self._remote = path, remote_reader(path)
        self.size = os.stat(path).st_size if self._remote is None else self._remote.version.size

    def read(self, spans: Sequence[tuple[int, Sequence[memoryview]]], *, careful: bool) -> None:
        """Fill buffers, each span of them with contiguous bytes, remote ones in parallel.

        Parameters
        ----------
        spans
            The place of the first byte in the file, and buffers.
        careful
            Compare answers of a server that may have sent other bytes than those asked for. If
            False, the caller compares checksums, and reads again with `careful`.

        Raises
        ------
        OSError
            See `windeck.io.remote.RemotePath.attempt`.
        ValueError
            The file ends before, or is another one than when it was opened.
        """
        if self._remote is None:
            with open(self._path, "rb", buffering=0) as file:
                for start, buffers in spans:
                    file.seek(start)
                    for buffer in buffers:
                        self._fill(file, buffer)
        elif careful:
            for start, buffers in spans:
                places = accumulate(map(len, buffers), initial=start)
                self._remote.read_ranges([*zip(places, buffers, strict=False)])
        else:
            self._remote.read_spans(spans)

    def _fill(self, file: io.FileIO, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            count = file.readinto(buffer[done:])
            if not count:
                end = file.tell()
                raise ValueError(
                    f"{self._path!r} ends at {end:,}, expected {end + len(buffer) - done:,} bytes"
                )
            done += count
