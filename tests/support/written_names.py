"""Names that a call creates in a folder, and links planted at them before it runs again."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: What a user has elsewhere, which nothing may change.
CONTENT = b"a file of the user\n"
_CHANGES = {"os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove"}
_watched: list[tuple[Path, set[str]]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """Note all names in the watched folder whenever Python is about to change something."""
    if not _watched or (event not in _CHANGES and event != "open"):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 0o3103):
        return  # opened for reading
    (folder, names), *others = _watched
    del _watched[:]  # what follows is no change
    try:
        for argument in arguments[:2]:
            if isinstance(argument, (str, os.PathLike)):
                path = os.path.abspath(argument)
                if Path(folder) in Path(path).parents:
                    names.add(os.path.relpath(path, folder))
        names.update(names_in(folder))
    finally:
        _watched[:] = [(folder, names), *others]


sys.addaudithook(_note)


def names_in(folder: Path) -> set[str]:
    """Return the paths of all files and folders below a folder, relative to it."""
    found = set()
    for place, folders, files in os.walk(folder):
        found |= {os.path.relpath(os.path.join(place, name), folder) for name in folders + files}
    return found


@contextmanager
def created(folder: Path) -> Iterator[set[str]]:
    """Collect the names that are created in a folder, also those that are gone at the end.

    Seen are names of calls of Python, and those of native code that are there at such a call or at
    the end.
    """
    before, names = names_in(folder), set[str]()
    _watched.append((folder, names))
    try:
        yield names
    finally:
        _watched.clear()
    names |= names_in(folder)
    names -= before


def predictable_names(tmp_path: Path, prepare: Action, run: Action) -> dict[str, bool]:
    """Return the names that two runs create in the same folder, and whether each is a folder."""
    found: list[set[str]] = []
    folders: set[str] = set()
    place = tmp_path / "place"
    for _ in range(2):
        place.mkdir()
        prepare(place)
        with created(place) as names:
            run(place)
        folders |= {name for name in names if (place / name).is_dir()}
        found.append(names)
        shutil.rmtree(place)
    return {name: name in folders for name in sorted(found[0] & found[1])}


Action = Callable[[Path], object]


class Victim:
    """A file, a folder and nothing, elsewhere, to which links lead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "file").write_bytes(CONTENT)
        (folder / "folder").mkdir()
        (folder / "folder" / "file").write_bytes(CONTENT)

    def plant(self, path: Path, kind: str) -> None:
        """Put a link at a path; `kind` is where it leads to: file, folder or nothing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(self.folder / kind)

    def check(self, planted: str) -> None:
        """Assert that what was elsewhere is as it was."""
        assert names_in(self.folder) == {"file", "folder", "folder/file"}, planted
        assert (self.folder / "file").read_bytes() == CONTENT, planted
        assert (self.folder / "folder/file").read_bytes() == CONTENT, planted
