"""Errors of stores: built-in types, and `CorruptStoreError`.

=====================  ============================================================================
CorruptStoreError      what is stored is not what was written, or part of it is missing
ConnectionError        the server is gone, restarting or loading; nothing listens there
TimeoutError           the server did not answer in time
PermissionError        wrong password, or not allowed; a store opened for reading only
BlockingIOError        another process, or this one, has the database open
FileNotFoundError      there is no database, and none was to be made; there is no such part
FileExistsError        something else is at the path: another kind of database, other files
OSError, errno ENOSPC  the disk is full (EFBIG, EDQUOT: a limit on files is reached)
OSError, errno ENOMEM  the Redis server is out of memory
OSError, errno EROFS   the Redis server is a replica that only reads
ValueError, TypeError  a URL, key, value or order of keys that is not as documented; a closed store
=====================  ============================================================================

All but the last row are OSErrors.
"""

from __future__ import annotations

import errno
import os

__all__ = ["CorruptStoreError", "already_open", "from_engine"]

_ERRNOS = [errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS]
_ERRNOS += [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO]


class CorruptStoreError(OSError):
    """What is stored is not what was written, or part of it is missing. Its errno is EBADMSG.

    Examples
    --------
    >>> issubclass(CorruptStoreError, OSError)
    True
    """

    def __init__(self, message: str) -> None:
        super().__init__(errno.EBADMSG, message)


def from_engine(error: Exception, doing: str, where: str) -> OSError:
    """Translate an error of an embedded engine, which has one type and says the cause in words.

    Examples
    --------
    >>> from_engine(Exception("IO error: No space left on device"), "writing", "rocksdb:///x")
    OSError(28, 'rocksdb:///x: writing failed: IO error: No space left on device')
    """
    said = error.args[0] if error.args else str(error)
    if isinstance(error, OSError) and error.strerror:  # from a system call of our own
        said = error.strerror
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    text = " ".join(text.split())
    sentence = f"{where}: {doing} failed: {text}"
    if "lock hold by current process" in text or ("/LOCK: " in text and _held(text)):
        return already_open(where)
    for code in _ERRNOS:
        if os.strerror(code) in text:
            return OSError(code, sentence)
    if "does not match existing comparator" in text:
        return FileExistsError(
            f"expected a database with keys in order of their bytes at {where}, found "
            f"another order: {doing} failed: {text}"
        )
    missing = os.strerror(errno.ENOENT) in text or "NotFound" in text
    if "Corruption" in text or missing or "Invalid argument" in text:
        return CorruptStoreError(f"{where} is damaged: {doing} failed: {text}")
    return OSError(errno.EIO, sentence)


def already_open(where: str) -> BlockingIOError:
    """Return the error for a database that is open already."""
    return BlockingIOError(
        errno.EAGAIN,
        f"{where} is open already, in this process or another; expected one opener at a time",
    )


def _held(text: str) -> bool:
    """Return whether an error about a lock file says that the lock is held."""
    held = (os.strerror(errno.EAGAIN), os.strerror(errno.ENOLCK), "already held")
    return any(words in text for words in held)
