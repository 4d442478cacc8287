"""Memory that a process shares with those that it starts, whole at any instruction."""

from __future__ import annotations

import mmap
import os
import struct
import weakref
import zlib
from tempfile import TemporaryFile

__all__ = ["SharedMemory"]

#: Bytes of each of two places, and what they begin with: number of the change, bytes of the data,
#: and checksum of both and of the data.
PLACE_BYTES, HEADER = 1 << 18, struct.Struct("<QII")


class SharedMemory:
    """Bytes of the last change, in a file in memory without a name.

    It has two places. A change is written into the older one, so a process that dies or is
    interrupted leaves either the old bytes or the new ones. Reading takes no lock; processes that
    write take turns.

    Parameters
    ----------
    file
        Descriptor of the file of another one; by default a new file.
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = _unnamed_file() if file is None else file
        weakref.finalize(self, os.close, self.file).atexit = False
        self.pages = mmap.mmap(self.file, 2 * PLACE_BYTES)

    def read(self) -> tuple[int, bytes]:
        """Return the number of the last change, and its bytes."""
        while True:  # Neither place can be read if there were two changes meanwhile.
            for place in sorted((0, PLACE_BYTES), key=self._number_at, reverse=True):
                number, size, crc = HEADER.unpack_from(self.pages, place)
                begin = place + HEADER.size
                data = self.pages[begin : begin + min(size, PLACE_BYTES)]
                if crc == _checksum(number, data) and len(data) == size:
                    return number, data

    def _number_at(self, place: int) -> int:
        number: int = HEADER.unpack_from(self.pages, place)[0]
        return number

    def write(self, number: int, data: bytes) -> None:
        """Write the change with a number: 0, and then the next one each time."""
        place = number % 2 * PLACE_BYTES
        header = HEADER.pack(number, len(data), _checksum(number, data))
        self.pages[place : place + HEADER.size + len(data)] = header + data


def _unnamed_file() -> int:
    """Return a new file of the size of both places."""
    try:
        file = os.memfd_create("windeck-shared")
    except AttributeError:  # macOS
        with TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, 2 * PLACE_BYTES)
    return file


def _checksum(number: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(struct.pack("<QI", number, len(data))))
