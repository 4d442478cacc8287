"""No file is written through a symbolic link, whatever its name, and reading writes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from pyarrow import feather
from pyarrow.fs import LocalFileSystem as ArrowFiles
from pyarrow.fs import SubTreeFileSystem

import windeck as wd
from support.corpora import write_corpus
from support.demo_folder import trained_here, write_hours
from support.internals import planted
from support.prepare_cases import unsorted_rows, write_files
from support.programs import command
from support.store_servers import EMBEDDED
from support.written_names import Action, Victim, names_in, predictable_names
from windeck import checkpoint
from windeck.checkpoint import safetensors
from windeck.checkpoint.stores import open_store, write_part
from windeck.embeddings import EmbeddingTable

#: Folders that the user names: where one is a link to a folder, it is meant.
NAMED = {"db", "copies", "out", "cache", "scratch", "sums", "model", "counts.csv"}
STATE = {"w": torch.arange(300_000.0), "b": torch.ones(3)}
PREPARE: dict[str, Any] = {
    "id_columns": "site", "timestamp_column": "time", "file_bytes": 4096, "threads": 1,
    "scaler": "standard",
}  # fmt: skip


def nothing(place: Path) -> None:
    """Prepare nothing."""


def save(url: str, step: int, **options: Any) -> None:
    table = EmbeddingTable(4)
    table(torch.arange(50) + step)
    checkpoint.save(url, step=step, model=STATE, embeddings={"items": table}, **options)


def saving(scheme: str, options: str = "", first: bool = True) -> tuple[Action, Action]:
    def url(place: Path) -> str:
        return f"{scheme}://{place}/db{options}"

    def prepare(place: Path) -> None:
        if not first:
            save(url(place), 1)
            save(url(place), 2)

    def run(place: Path) -> None:
        save(url(place), 3, keep=1)
        checkpoint.tag(url(place), "best")
        checkpoint.gc(url(place), keep=1)

    return prepare, run


def writing_parts(scheme: str) -> tuple[Action, Action]:
    def run(place: Path) -> None:
        url = f"{scheme}://{place}/db"
        for name, items in (("a", [(b"a", bytes(70_000))]), ("b", [(b"b", b"1")]), ("c", [])):
            write_part(url, name, items)
        with open_store(url) as store:
            store.ingest_parts(["a", "b"])  # type: ignore[attr-defined]
            store.drop_parts(["c"])  # type: ignore[attr-defined]
            store.bulk_load([(b"c", bytes(70_000))])

    return nothing, run


def copying(place: Path) -> None:
    source = open_store("memory://")
    for step in (1, 2):
        checkpoint.save(source, step=step, model=STATE)
        checkpoint.copy(source, f"file://{place}/copies", replace=True)
    checkpoint.gc(f"file://{place}/copies", keep=1)


def exporting(place: Path) -> None:
    source = open_store("memory://links-export")
    save("memory://links-export", 1)
    safetensors.export(source, place / "one.safetensors")
    options: dict[str, Any] = {"layout": "huggingface", "shard_bytes": 1000}
    safetensors.export(source, place / "model", **options)
    for file, name in (
        ("w.npy", "model/w"),
        ("items.csv", "embeddings/items"),
        ("items.parquet", "embeddings/items"),
    ):
        code, _, err = command("view", "memory://links-export", "export", str(place / file), name)
        if code:
            raise OSError(err)


def writing_pages(place: Path) -> None:
    save("memory://links-page", 1)
    code, _, err = command("view", "memory://links-page", "html", str(place / "page.html"))
    if code:
        raise OSError(err)


def preparing(destination: Callable[[Path], dict[str, Any]]) -> tuple[Action, Action]:
    def run(place: Path) -> None:
        source = place.with_name("source")
        if not source.exists():
            write_files(source, unsorted_rows(series=3, length=40), 2)
        (place / "scratch").mkdir(exist_ok=True)
        options = {"dest": str(place / "out"), **destination(place)}
        wd.prepare(source, **PREPARE, **options)
        wd.prepare(source, **PREPARE, **options, overwrite=True)

    return nothing, run


def caching(place: Path) -> None:
    source = place.with_name("source")
    source.mkdir(exist_ok=True)
    feather.write_feather(
        pa.table({"site": ["a", "b"], "y": [1.0, 2.0]}), str(source / "a.feather")
    )
    options: dict[str, Any] = {"filesystem": LocalFileSystem(), "cache_dir": place / "cache"}
    wd.Table.read(str(source / "a.feather"), id_columns="site", **options)
    wd.Table.read(str(source / "a.feather"), id_columns="site", in_memory=False, **options)


def counting(place: Path) -> None:
    source = place.with_name("source")
    if not source.exists():
        write_corpus(source, {"c4/a.part0": [[1, 2, 3], [4, 5]], "c4/a.part1": [[6]]})
    (place / "sums").mkdir(exist_ok=True)
    documents = wd.Documents(source, cache=place / "counts.csv")
    options: dict[str, Any] = {"order": "global", "cache": place / "sums"}
    len(wd.PackedSequences(documents, sequence_length=2, **options))


def diagnosing(place: Path) -> None:
    words = ("--seconds", "0.01", "--no-disk", "--html", str(place / "report.html"))
    file = place.with_name("load.parquet")
    write_hours(file, days=60)
    code, _, err = command("doctor", str(file), *words)
    if code:
        raise OSError(err)


def demonstrating(place: Path) -> None:
    path = write_hours(place.with_name("hours.parquet"))
    words = ("--context", "24", "--horizon", "4", "--batch-size", "8", "--steps", "4")
    with planted("demo_job.train_in_process", trained_here()):
        code, _, err = command("demo", str(path), "--out", str(place), *words)
    if code:
        raise OSError(err)


CASES: dict[str, tuple[Action, Action]] = {
    **{
        f"{scheme}{options}{'' if first else ' again'}": saving(scheme, options, first)
        for scheme, options in (
            ("rocksdb", ""),
            ("rocksdb", "?compression=lz4"),
            ("leveldb", ""),
        )
        for first in (True, False)
    },
    "rocksdb parts": writing_parts("rocksdb"),
    "leveldb parts": writing_parts("leveldb"),
    "copies": (nothing, copying),
    "exports": (nothing, exporting),
    "pages": (nothing, writing_pages),
    "prepare": preparing(lambda place: {}),
    "prepare scratch": preparing(lambda place: {"scratch": place / "scratch"}),
    **{
        f"prepare {name}": preparing(
            lambda place, files=files: {  # type: ignore[misc]
                "dest": "out",
                "dest_filesystem": files(str(place)),
                "scratch": place / "scratch",
            }
        )
        for name, files in (
            ("fsspec", lambda root: DirFileSystem(root, LocalFileSystem(use_listings_cache=False))),
            ("arrow", lambda root: SubTreeFileSystem(root, ArrowFiles())),
        )
    },
    "cache": (nothing, caching),
    "counts": (nothing, counting),
    "doctor": (nothing, diagnosing),
    "demo": (nothing, demonstrating),
}


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_written_through_links(case: str, tmp_path: Path) -> None:
    """Links to a file, a folder and nothing, at each name that is written: error or replaced."""
    prepare, run = CASES[case]
    names = predictable_names(tmp_path, prepare, run)
    assert names
    victim = Victim(tmp_path / "victim")
    template = tmp_path / "template"
    template.mkdir()
    prepare(template)
    for name in names:
        for kind in ("file", "folder", "nothing"):
            place = tmp_path / "place"
            if kind == "folder" and name in NAMED:
                continue
            shutil.copytree(template, place)
            victim.plant(place / name, kind)
            with suppress(OSError, ValueError, RuntimeError, UserWarning):
                run(place)
            victim.check(f"{kind} at {name}")
            shutil.rmtree(place)


def looking(url: str) -> None:
    """Read in all ways that there are."""
    for words in ([], ["log"], ["verify"], ["show", "model/b"], ["ls"]):
        assert command("view", url, *words)[0] == 0, words
    with checkpoint.open(url) as found:
        found.names()
    model = {name: torch.zeros_like(tensor) for name, tensor in STATE.items()}
    assert checkpoint.load(url, model=model).step == 2
    assert torch.equal(model["w"], STATE["w"])
    assert checkpoint.log(url)[0].step == 2
    assert checkpoint.gc(url, keep=1, dry_run=True) == [1]
    with open_store(f"{url}?readonly=1") as store:
        assert len(list(store.keys())) > 4


def state_of(folder: Path) -> dict[str, Any]:
    """Return names, times and contents of all below a folder."""
    found: dict[str, Any] = {}
    for name in names_in(folder) | {"."}:
        status = (folder / name).lstat()
        held = (folder / name).read_bytes() if (folder / name).is_file() else b""
        found[name] = (status.st_ino, status.st_mtime_ns, status.st_size, held)
    return found


def test_reading_writes_nothing(tmp_path: Path) -> None:
    """Not beside a RocksDB, and not through links at the names that its engine writes."""
    for step in (1, 2):
        save(f"rocksdb://{tmp_path}/db", step)
    before = state_of(tmp_path / "db")
    looking(f"rocksdb://{tmp_path}/db")
    assert state_of(tmp_path / "db") == before
    victim = Victim(tmp_path / "victim")
    for name in ("rocksdict-config.json", "LOG", "LOCK", "windeck.tmp", "000099.log.tmp"):
        victim.plant(tmp_path / "db" / name, "nothing")
        victim.check(name)
    before = state_of(tmp_path / "db")
    looking(f"rocksdb://{tmp_path}/db")
    assert state_of(tmp_path / "db") == before
    victim.check("dangling links")


@pytest.mark.parametrize("scheme", EMBEDDED)
def test_a_file_of_a_database_that_is_a_link(scheme: str, tmp_path: Path) -> None:
    """Each file of a database, elsewhere and a link in its place: read, and not written to."""
    url, folder = f"{scheme}://{tmp_path}/db", tmp_path / "db"
    for step in (1, 2):
        save(url, step)
    for name in sorted(names_in(folder)):
        kept, away = tmp_path / "kept", tmp_path / "away"
        shutil.copytree(folder, kept)
        away.mkdir()
        (folder / name).rename(away / name)
        (folder / name).symlink_to(away / name)
        before = state_of(away)
        if scheme == "rocksdb":
            looking(url)
        with pytest.raises(FileExistsError, match=f"'{folder}/{name}' is a symbolic link, exp"):
            save(url, 3)
        with pytest.raises(FileExistsError, match="does not write through links; replace it by"):
            write_part(url, "part", [(b"k", b"v")])
        assert state_of(away) == before, name
        shutil.rmtree(folder)
        shutil.rmtree(away)
        kept.rename(folder)


def test_a_final_file_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    """A link at the name that the user gives is replaced; the file that it leads to stays."""
    victim = Victim(tmp_path / "victim")
    save(f"rocksdb://{tmp_path}/db", 1)
    victim.plant(tmp_path / "page.html", "file")
    words = ("html", str(tmp_path / "page.html"), "--force")
    assert command("view", f"rocksdb://{tmp_path}/db", *words)[0] == 0
    victim.check("page.html")
    assert not (tmp_path / "page.html").is_symlink()
    assert "<html" in (tmp_path / "page.html").read_text()
