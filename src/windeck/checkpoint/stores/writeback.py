"""Having the disk begin with a file before all of it is there.

What is written lies in the kernel's memory until somebody asks for the disk, here by an `fsync` at
the end; until then the disk has nothing to do, and then nobody else has. Where the system can be
told to begin (`sync_file_range` of Linux), the disk works while the rest is summed and copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["Writeback"]

#: Begun with so many bytes at a time: requests large enough for any disk, and few calls.
STEP_BYTES = 8 << 20
_PAGE_BYTES = 4096
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: begin, and do not wait


def _find() -> Callable[[int, int, int, int], int] | None:
    """The system's call, which Python has no name for; None where there is none."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call.restype = ctypes.c_int
    found: Callable[[int, int, int, int], int] = call
    return found


_begin = _find()


class Writeback:
    """What of a growing file the disk has been told to begin with. Makes nothing durable.

    Parameters
    ----------
    file
        The number of an open file.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._begun = 0

    def reached(self, size: int) -> None:
        """Said as the file grows: its first bytes, which do not change any more."""
        if size - self._begun < STEP_BYTES or _begin is None:
            return
        end = size - size % _PAGE_BYTES  # a page that is not full would be written twice
        # Where the file system cannot, or the disk fails, fsync does it and tells.
        _begin(self._file, self._begun, end - self._begun, _WRITE)
        self._begun = end
