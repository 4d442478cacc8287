"""The destination of a preparation: its lock, what it may hold, and its directory of work.

Files of a local destination are written in it, beside ``_prepare`` with unfinished work. Of a URL,
all work is in a local scratch directory, from which whole files are uploaded. An object of the URL
names the scratch directory that has the right to write there.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from windeck._util.fingerprints import digest
from windeck._util.text import parse_json
from windeck.io import filesystem
from windeck.io.data_files import list_matching
from windeck.io.filesystem import PathLike
from windeck.io.local_files import refuse_link, temporary_target
from windeck.io.remote import RemotePath
from windeck.io.writing import remove_directory
from windeck.preparation.manifest import MANIFEST, SCALER_FILE, Prepared
from windeck.preparation.plan import PreparationPlan

__all__ = ["Destination", "check_claim", "destination_of"]

_WORK, _LOCK, _PLAN = "_prepare", ".prepare.lock", "plan"
#: The object of a URL that names the scratch directory it is written from, and its token there.
_CLAIM, _OWNER = ".prepare.json", "owner"
_OURS = re.compile(rf"part-\d{{5,}}\.parquet|{SCALER_FILE}")


@dataclass(frozen=True)
class Destination:
    """A local directory, or a URL, and a local directory for work on it.

    Attributes
    ----------
    path
        Where files are written.
    home
        Directory that is made for the work on this destination; equal to `path` without scratch.
    """

    path: str
    home: str

    @property
    def is_remote(self) -> bool:
        """True for a URL."""
        return filesystem.is_remote(self.path)

    @property
    def work(self) -> str:
        """The local directory of sorted files and results of tasks."""
        return os.path.join(self.home, _WORK)

    @property
    def _lock_path(self) -> str:
        return os.path.join(self.home if self.is_remote else self.path, _LOCK)

    def check_sendable(self) -> None:
        """Raise ValueError for a URL with credentials that workers of an engine would not have."""
        if isinstance(self.path, RemotePath):
            _, (_, _, missing) = self.path.mount.__reduce__()
            if missing:
                raise ValueError(
                    f"workers of another engine do not get {' and '.join(missing)} of `dest`, "
                    "which may hold credentials; expected them in the environment of the workers"
                )

    def holds(self, path: str) -> bool:
        """Return True for a file below the destination."""
        if isinstance(path, RemotePath) and isinstance(self.path, RemotePath):
            if path.mount.identity != self.path.mount.identity:
                return False
        elif filesystem.is_remote(path) or self.is_remote:
            return False
        return path.startswith(f"{self.path.rstrip('/')}/")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; make directories. After an error nothing is left that was made here."""
        from filelock import FileLock, Timeout

        is_new = not self.is_remote and not filesystem.exists(self.path)
        for chosen in {self.home, self.work, self._lock_path} - {self.path}:
            refuse_link(chosen)
        filesystem.check_writable(self._lock_path)
        try:
            with FileLock(self._lock_path, timeout=0):
                try:
                    yield
                except BaseException:
                    self._tidy(is_new=is_new)
                    raise
                if self.home != self.path:
                    remove_directory(self.home)
        except Timeout as error:
            raise RuntimeError(
                f"another process prepares {self.path!r}; expected it to end"
            ) from error

    def _tidy(self, *, is_new: bool) -> None:
        """Remove lock, claim and directories that were made, if no task is finished."""
        if list_matching(self.work, "sorted-*.json"):
            return
        with contextlib.suppress(OSError):
            place, owner = filesystem.join(self.path, _CLAIM), os.path.join(self.home, _OWNER)
            token = filesystem.read_bytes(owner).decode() if filesystem.exists(owner) else None
            if token is not None and _read_claim(place).get("token") == token:
                filesystem.remove(place)
            remove_directory(self.work)
            if self.home != self.path:
                remove_directory(self.home)
            if not self.is_remote and self._names() == [_LOCK]:
                filesystem.remove(self._lock_path)
                if is_new:
                    remove_directory(self.path)

    def _names(self) -> list[str]:
        try:
            return [name for name, _ in filesystem.list_directory(self.path)]
        except FileNotFoundError:
            return []

    def check_names(self) -> None:
        """Raise FileExistsError for files that are not of `prepare`."""
        known = (MANIFEST, _WORK, _LOCK, _CLAIM, "")
        others = [
            name
            for name in self._names()
            if name not in known and not _OURS.fullmatch(name) and not _is_left_over(name)
        ]
        if others:
            raise FileExistsError(
                f"directory {self.path!r} has {sorted(others)[0]!r}, which `prepare` did not "
                "write; expected an empty directory"
            )

    def finished(self, plan: PreparationPlan) -> Prepared | None:
        """Return the manifest if all of the result of a plan is there already."""
        with contextlib.suppress(ValueError, FileNotFoundError):
            found = Prepared.read(self.path)
            if found.fingerprint == plan.fingerprint:
                return found
        return None

    def claim(self, *, overwrite: bool) -> str:
        """Note in a URL that it is written from here; return the token of the claim, "" if local.

        Raises
        ------
        RuntimeError
            It is written from another scratch directory.
        """
        if not self.is_remote:
            return ""
        owner = os.path.join(self.home, _OWNER)
        if not filesystem.exists(owner):
            filesystem.write_bytes(owner, secrets.token_hex(16).encode())
        token = filesystem.read_bytes(owner).decode("ascii", "replace")
        place = filesystem.join(self.path, _CLAIM)
        found = _read_claim(place)
        if found.get("token") == token:
            return token
        if found and not overwrite:
            raise RuntimeError(
                f"another call prepares {self.path!r}, on host {found.get('host')!r} with "
                f"scratch={found.get('scratch')!r} since {found.get('since')!r}; expected it to "
                "end, to be continued there, or overwrite=True if neither will happen"
            )
        now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
        scratch = os.path.dirname(self.home)
        mine = {"token": token, "host": socket.gethostname(), "scratch": scratch, "since": now}
        filesystem.upload(place, json.dumps(mine).encode("utf-8", "surrogateescape"))
        return token

    def release(self) -> None:
        """Remove the claim, and all work."""
        remove_directory(self.work)
        if self.is_remote:
            filesystem.remove(filesystem.join(self.path, _CLAIM))

    def start(self, plan: PreparationPlan, *, overwrite: bool) -> None:
        """Make the destination ready for a plan: for its first call, or to continue it.

        Raises
        ------
        FileExistsError
            It has the result, or unfinished work, of another plan.
        """
        names = self._names()
        marked, held = os.path.join(self.work, _PLAN), ""
        if MANIFEST in names:
            held = "the result"
        elif filesystem.exists(marked):
            if filesystem.read_bytes(marked).decode("utf-8", "replace") != plan.fingerprint:
                # Without a finished task there is nothing to lose.
                if list_matching(self.work, "sorted-*.json"):
                    held = "unfinished work"
                else:
                    filesystem.remove(marked)
        elif any(map(_OURS.fullmatch, names)):
            held = "files"
        if held:
            if not overwrite:
                raise FileExistsError(
                    f"directory {self.path!r} has {held} of other sources or options; expected an "
                    "empty directory, or overwrite=True"
                )
            self.clear()
        for name in filter(_is_left_over, names):
            filesystem.remove(filesystem.join(self.path, name))
        if not filesystem.exists(marked):
            remove_directory(self.work)
            filesystem.write_bytes(marked, plan.fingerprint.encode())

    def clear(self) -> None:
        """Remove a result and all work."""
        # In this order: what is left after a kill is never taken for a result.
        filesystem.remove(filesystem.join(self.path, MANIFEST))
        filesystem.remove(os.path.join(self.work, _PLAN))
        remove_directory(self.work)
        for name in filter(_OURS.fullmatch, self._names()):
            filesystem.remove(filesystem.join(self.path, name))


def _is_left_over(name: str) -> bool:
    """Return True for a temporary file that a process that was killed has left."""
    target = temporary_target(name)
    if target is None:
        return False
    return target in (MANIFEST, _LOCK, _CLAIM) or _OURS.fullmatch(target) is not None


def destination_of(path: str, scratch: PathLike | None, shown: PathLike) -> Destination:
    """Return the destination of a path of `absolute`, which is `shown` in messages.

    Raises
    ------
    FileExistsError
        It is a file.
    ValueError
        It is a URL, and there is no local directory `scratch`.
    """
    if scratch is not None and filesystem.is_remote(local := filesystem.absolute(scratch)):
        raise ValueError(f"`scratch` must be a local directory, got the URL {local!r}")
    if filesystem.is_remote(path):
        if scratch is None:
            raise ValueError(
                f"`dest` is the URL {path!r}, expected scratch=, a local directory for sorted rows"
            )
    elif filesystem.exists(path) and not filesystem.is_directory(path):
        raise FileExistsError(f"{os.fspath(shown)!r} is a file; expected a directory")
    if scratch is None:
        return Destination(path, path)
    mount = path.mount.identity if isinstance(path, RemotePath) else ""
    # The underscore: it is no source if `scratch` is below the sources.
    name = f"_prepare-{digest(os.fsencode(path), mount)[:16]}"
    return Destination(path, os.path.join(local, name))


def _read_claim(place: str) -> dict[str, Any]:
    """Return the claim of a URL, empty if there is none."""
    try:
        found = parse_json(filesystem.read_bytes(place), repr(place))
    except FileNotFoundError:
        return {}
    except ValueError:
        return {"token": None}
    return found if isinstance(found, dict) and found else {"token": None}


def check_claim(path: str, token: str) -> None:
    """Raise RuntimeError if a URL is written by another call since."""
    if token and _read_claim(filesystem.join(path, _CLAIM)).get("token") != token:
        raise RuntimeError(
            f"another call has taken over {path!r} meanwhile; expected this one alone to write "
            "there"
        )
