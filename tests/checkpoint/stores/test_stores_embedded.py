"""Tests of RocksDB and LevelDB stores: paths, parts of other processes, the seal and its key."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.programs import printed
from support.store_servers import EMBEDDED, need
from windeck.checkpoint.stores import PartStore, open_store, write_part

#: The key of the entry that seals a database.
SEAL_KEY = b"\0windeck.seal"
NAMES = {"rocksdb": "RocksDB", "leveldb": "LevelDB"}


@pytest.fixture(params=EMBEDDED)
def kind(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


def opened(url: str) -> PartStore:
    store = open_store(url)
    assert isinstance(store, PartStore)
    return store


# --- what is at the path -----------------------------------------------------------------------


def test_folders_are_made_and_may_be_relative(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store(f"{kind}://./runs/a%20b%3F") as store:
        store.put_many([(b"a", b"1")])
    with open_store(f"{kind}://{tmp_path}/runs/a%20b%3F?create=0") as store:
        assert store.get(b"a") == b"1"
    assert (tmp_path / "runs" / "a b?").is_dir()


def test_no_database_where_none_is_to_be_made(kind: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no database at {kind}://{tmp_path}/no"):
        open_store(f"{kind}://{tmp_path}/no?create=0")
    assert not (tmp_path / "no").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="there is no database at"):
        open_store(f"{kind}://{tmp_path}/empty?create=0")


def test_a_database_of_the_other_kind_is_left_alone(kind: str, tmp_path: Path) -> None:
    other = EMBEDDED[1 - EMBEDDED.index(kind)]
    need(other)
    with open_store(f"{other}://{tmp_path}/x") as store:
        store.put_many([(b"a", b"1")])
    before = sorted(path.name for path in (tmp_path / "x").iterdir())
    with pytest.raises(
        FileExistsError,
        match=f"expected a {NAMES[kind]} database at .*, found one of {NAMES[other]}: open it as {other}://",
    ):
        open_store(f"{kind}://{tmp_path}/x")
    with pytest.raises(FileExistsError, match=f"found one of {NAMES[other]}"):
        write_part(f"{kind}://{tmp_path}/x", "a", [(b"a", b"2")])
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == before
    with open_store(f"{other}://{tmp_path}/x") as store:
        assert store.get(b"a") == b"1"


def test_files_and_folders_of_others_are_left_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        NotADirectoryError, match=f"expected a folder for {kind}://.*, found a file"
    ):
        open_store(f"{kind}://{tmp_path}/file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("x")
    with pytest.raises(
        FileExistsError,
        match=f"expected a {NAMES[kind]} database or an empty folder at .*, found other files, "
        "such as 'notes.txt'",
    ):
        open_store(f"{kind}://{tmp_path}/folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("host/path", r"expected {kind}:///absolute/path or {kind}://./relative/path, got"),
        ("me:pw@/path", r"expected {kind}:///absolute/path or"),
        ("", r"expected a path in {kind}://, such as {kind}:///data/run"),
        ("/", r"expected a path in {kind}:///, such as"),
        ("/x?creat=0", r"no option 'creat': expected create, .*; did you mean create\?"),
        ("/x?create=yes", r"expected create=0 or 1 in {kind}:///x\?create=yes, got 'yes'"),
        ("/x?compression=rar", r"expected compression=none or .*, got 'rar'"),
        ("/x%00y", r"expected a path without a NUL character"),
    ],
)
def test_urls_that_mean_no_place(kind: str, rest: str, error: str) -> None:
    with pytest.raises(ValueError, match=error.format(kind=kind)):
        open_store(f"{kind}://{rest}")


def test_one_opener_at_a_time(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    with open_store(url) as store:
        store.put_many([(b"a", b"1")])
        with pytest.raises(
            BlockingIOError, match=f"{kind}://.*/x is open already, in this process"
        ):
            open_store(url)
        program = (
            "import sys\nfrom windeck._util import retry\n"
            "from windeck.checkpoint.stores import open_store\n"
            "retry.OPENING = retry.RetryPolicy(first_pause=0, most_attempts=1)\n"
            "try: open_store(sys.argv[1])\nexcept BlockingIOError as error: print(error)"
        )
        assert f"{url} is open already" in printed(program, url)
        assert store.get(b"a") == b"1"
    assert printed(program, url) == ""


def test_a_folder_that_may_not_be_written(kind: str, tmp_path: Path) -> None:
    program = """if True:
        import os, sys
        from windeck.checkpoint.stores import open_store
        open_store(f"{sys.argv[1]}://{sys.argv[3]}").close()  # imports what is needed
        if os.getuid() == 0:
            os.setuid(65534)  # root may write anywhere
        try:
            open_store(f"{sys.argv[1]}://{sys.argv[2]}")
        except PermissionError as error:
            print("refused:", error)
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        assert printed(program, kind, folder, str(tmp_path / "x")).startswith(
            f"refused: [Errno 13] {kind}://{folder}"
        )


# --- parts -------------------------------------------------------------------------------------

WRITER = """if True:
    import sys
    from windeck.checkpoint.stores import write_part
    url, rank = sys.argv[1], int(sys.argv[2])
    items = ((b"e/%05d" % i, b"%d" % i * 50) for i in range(rank, 3000, 3))
    print(write_part(url, f"7-{rank}", items))
"""


def test_ranks_write_parts_and_one_takes_them_in(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    assert printed(WRITER, url, "0") == "1000\n"  # before there is a database
    with opened(url) as store:
        store.put_many([(b"HEAD", b"6"), (b"e/00001", b"old")])
        assert printed(WRITER, url, "1") == "1000\n"  # while it is open
        assert printed(WRITER, url, "2") == "1000\n"
        assert store.parts() == ["7-0", "7-1", "7-2"]
        assert store.get(b"e/00002") is None
        store.ingest_parts(["7-0", "7-1", "7-2"])
        model = {b"e/%05d" % i: b"%d" % i * 50 for i in range(3000)} | {b"HEAD": b"6"}
        assert dict(store.scan()) == model
        assert store.parts() == []
        with pytest.raises(FileNotFoundError, match=r"there is no part '7-1' of .*: it was not"):
            store.ingest_parts(["7-1"])
    with opened(url) as store:
        assert dict(store.scan()) == model


def test_later_parts_win_and_may_be_empty(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    with opened(url) as store:
        assert write_part(url, "a", [(b"1", b"a"), (b"2", b"a"), (b"3", b"a")]) == 3
        assert write_part(url, "b", [(b"2", b"old")]) == 1
        assert write_part(url, "b", [(b"2", b"b"), (b"4", b"b")]) == 2  # in place of the former
        assert write_part(url, "c", []) == 0
        store.put_many([(b"1", b"before"), (b"5", b"before")])
        store.ingest_parts(["c", "a", "b"])
        assert dict(store.scan()) == {
            b"1": b"a", b"2": b"b", b"3": b"a", b"4": b"b", b"5": b"before"
        }  # fmt: skip
        store.ingest_parts([])


def test_a_missing_part_changes_nothing(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    with opened(url) as store:
        write_part(url, "a", [(b"1", b"a")])
        with pytest.raises(FileNotFoundError, match="there is no part 'b' of"):
            store.ingest_parts(["a", "b"])
        assert list(store.scan()) == []
        assert store.parts() == ["a"]
        store.drop_parts(["a", "b"])
        assert store.parts() == []


def test_a_part_that_was_not_finished_is_not_there(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"

    def items() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise OSError("the rank is out of data")

    with opened(url) as store:
        with pytest.raises(OSError, match="the rank is out of data"):
            write_part(url, "a", items())
        with pytest.raises(ValueError, match="expected keys in ascending order"):
            write_part(url, "a", [(b"b", b"1"), (b"a", b"1")])
        assert store.parts() == []
    folder = tmp_path / "x" / "windeck.parts"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "a.tmp", "a" * 101, "a b", "\0"])
def test_names_of_parts(kind: str, name: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    with pytest.raises(ValueError, match="expected the name of a part of 1 to 100 letters"):
        write_part(url, name, [])
    with opened(url) as store:
        for call in (store.ingest_parts, store.drop_parts):
            with pytest.raises(ValueError, match="expected the name of a part of 1 to 100"):
                call([name])


def test_many_parts_that_overlap(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    for rank in range(50):
        rows = [(b"e/%03d" % i, b"%d" % rank) for i in range(rank, 500, 50)]
        write_part(url, f"{rank}", [*rows, (b"s/%03d" % rank, b"done")])
    with opened(url) as store:
        store.ingest_parts([str(rank) for rank in range(50)])
        store.put_many([(b"HEAD", b"1")])
        store.sync()
        assert list(store.scan(b"e/")) == [(b"e/%03d" % i, b"%d" % (i % 50)) for i in range(500)]
        assert len(list(store.keys(b"s/"))) == 50


# --- the seal ----------------------------------------------------------------------------------


def test_the_key_of_the_seal_is_neither_seen_nor_taken(kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    calls: list[Callable[[PartStore], object]] = [
        lambda store: store.put_many([(SEAL_KEY, b"1")]),
        lambda store: store.bulk_load([(SEAL_KEY, b"1")]),
        lambda store: store.delete_many([SEAL_KEY]),
        lambda store: store.compare_and_set(SEAL_KEY, store.get(SEAL_KEY), b"1"),
        lambda store: write_part(url, "a", [(SEAL_KEY, b"1")]),
    ]
    around = [b"\0", SEAL_KEY[:-1], SEAL_KEY + b"\0", b"\1"]
    with opened(url) as store:
        store.put_many([(key, b"x") for key in around])
        store.sync()
        for call in calls:
            with pytest.raises(ValueError, match=r"the key b'\\x00windeck.seal' is reserved"):
                call(store)
        assert list(store.keys()) == around
        assert [key for key, _ in store.scan(b"\0")] == around[:3]
        with store.snapshot() as view:
            assert list(view.keys()) == around
        store.delete_range(b"")
        assert list(store.keys()) == []
    opened(url).close()  # the seal outlived the deletion, or this would complain
    for prefix, ends in (
        (SEAL_KEY, {}), (SEAL_KEY[:-1], {}), (b"", {"start": SEAL_KEY}), (b"", {"stop": b"\1"}),
        (b"", {"start": SEAL_KEY, "stop": SEAL_KEY + b"\0"}),
    ):  # fmt: skip
        with opened(url) as store:
            store.put_many([(key, b"x") for key in around])
            store.sync()
            store.delete_range(prefix, **ends)
        opened(url).close()


def test_parts_of_stores_that_have_none() -> None:
    import io

    with pytest.raises(
        io.UnsupportedOperation, match="memory://x has no parts: expected rocksdb://"
    ):
        write_part("memory://x", "a", [])
    need("redis")
    with pytest.raises(io.UnsupportedOperation, match="each process that writes opens"):
        write_part("redis://localhost", "a", [])
