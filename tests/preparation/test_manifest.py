"""The manifest is checked as it is read, and describes files that can be verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windeck as wd
from support.object_servers import Website
from support.prepare_cases import SMALL, unsorted_rows, write_files


@pytest.fixture
def prepared(tmp_path: Path) -> wd.Prepared:
    write_files(tmp_path / "in", unsorted_rows(), 3)
    return wd.prepare(
        tmp_path / "in",
        tmp_path / "out",
        id_columns="site",
        timestamp_column="time",
        file_bytes=SMALL,
        scaler=["standard", "robust"],
    )


def test_what_it_says_is_what_was_written(prepared: wd.Prepared, tmp_path: Path) -> None:
    assert wd.Prepared.read(tmp_path / "out") == prepared
    assert (prepared.rows, prepared.series, prepared.duplicates_dropped) == (300, 5, 0)
    assert prepared.columns == {
        "site": "string",
        "time": "timestamp[us]",
        "load": "double",
        "number": "int64",
    }
    assert [source.path for source in prepared.sources] == [
        str(tmp_path / "in" / f"{number}.parquet") for number in range(3)
    ]
    assert sum(source.rows for source in prepared.sources) == 300
    for before, after in zip(prepared.files, prepared.files[1:], strict=False):
        assert before.first < before.last < after.first
    assert set(prepared.scalers) == {"standard", "robust"}
    assert "300 rows of 5 series in" in str(prepared)


def test_names_of_sources_have_no_credentials(web: Website, tmp_path: Path) -> None:
    write_files(tmp_path / "in", unsorted_rows(), 1)
    content = (tmp_path / "in" / "0.parquet").read_bytes()
    (tmp_path / "b@c?.parquet").write_bytes(content)
    web.objects["a.parquet"] = content
    url = f"{web.url}/a.parquet".replace("://", "://key:secret@") + "?token=secret"
    for source, name in (
        (url, f"{web.url}/a.parquet"),
        (tmp_path / "b@c?.parquet", str(tmp_path / "b@c?.parquet")),
    ):
        out = tmp_path / "out"
        wd.prepare(source, out, id_columns="site", timestamp_column="time", overwrite=True)
        assert [one.path for one in wd.Prepared.read(out).sources] == [name]
        assert b"secret" not in (out / "manifest.json").read_bytes()


def test_damage_of_files_is_found(prepared: wd.Prepared, tmp_path: Path) -> None:
    path = tmp_path / "out" / prepared.files[1].name
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    found = wd.Prepared.read(tmp_path / "out")
    with pytest.raises(ValueError, match=f"{path.name}' is damaged: its SHA-256 is"):
        found.verify()
    path.write_bytes(data[:-1])
    with pytest.raises(ValueError, match=rf"{path.name}' has \d+ bytes; expected the {len(data)}"):
        wd.Prepared.read(tmp_path / "out")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path.name}' is missing"):
        wd.Prepared.read(tmp_path / "out")


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("format", "other", "it has format 'other', expected 1$"),
        ("format", 2, "it has format 2, expected 1: a later windeck wrote it$"),
        ("format", None, "it lacks 'format'"),
        ("rows", 1, "its files have other than 1 rows"),
        ("rows", "300", "`rows` is '300', expected int"),
        ("rows", None, "it lacks 'rows'"),
        ("files", [{"name": "../x"}], "missing"),
        ("files", 5, "not iterable"),
        ("columns", [], "`columns` is"),
        ("timestamp_column", "hour", "column 'hour' is not among its columns"),
        ("scalers", {"standard": {}}, "scaler|lacks"),
        ("fingerprint", 7, "`fingerprint` is 7, expected str"),
        ("grid", 5, "`grid` is 5, expected dict"),
        ("grid", {"added": "x"}, "`added` is 'x', expected int"),
        ("grid", {"moved": 1.5}, "`moved` is 1.5, expected int"),
        ("grid", {"merged": -1}, "`merged` of its grid is negative"),
        ("grid", {"duplicates": None}, "`duplicates` is None, expected str"),
        ("grid", {"first_moved": 3}, "`first_moved` is 3, expected str"),
        ("grid", {"more": 3}, "more"),
    ],
)
def test_what_is_not_a_manifest_is_refused(
    tmp_path: Path, name: str, value: Any, words: str
) -> None:
    path = tmp_path / "out" / "manifest.json"
    document = json.loads(path.read_text())
    document[name] = value
    if value is None:
        del document[name]
    path.write_text(json.dumps(document))
    with pytest.raises(
        ValueError, match=f"manifest.json' cannot be read as a manifest: .*({words})"
    ):
        wd.Prepared.read(tmp_path / "out")


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("name", ["/etc/passwd", "../part.parquet", ".hidden", 5])
def test_names_of_files_stay_in_the_directory(tmp_path: Path, name: Any) -> None:
    path = tmp_path / "out" / "manifest.json"
    document = json.loads(path.read_text())
    document["files"][0]["name"] = name
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="cannot be read as a manifest"):
        wd.Prepared.read(tmp_path / "out")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_text_that_is_no_document(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="cannot be read as a manifest"):
        wd.Prepared.read(tmp_path)
