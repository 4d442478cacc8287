"""Atomic writing of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windeck.io import atomic_file, temporary_path


def test_the_previous_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("old")
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["text"]


@pytest.mark.parametrize("written", [False, True])
def test_after_an_error_nothing_has_changed(tmp_path: Path, written: bool) -> None:
    path = tmp_path / "text"
    path.write_text("old")

    def interrupted() -> None:
        with atomic_file(str(path)) as temporary:
            if written:
                temporary.write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["text"]


def test_names_and_permissions(tmp_path: Path) -> None:
    assert temporary_path(tmp_path / "text") != temporary_path(tmp_path / "text")
    (tmp_path / "plain").touch()
    with atomic_file(tmp_path / "text") as temporary:
        temporary.touch()
    assert (tmp_path / "text").stat().st_mode == (tmp_path / "plain").stat().st_mode
