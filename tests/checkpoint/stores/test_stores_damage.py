"""Tests of damaged, full and killed stores: they raise errors and never return a wrong value."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.store_servers import EMBEDDED, need
from windeck.checkpoint.stores import CorruptStoreError, open_store

MODEL = {b"k%03d" % i: b"value-%03d" % i * 3 for i in range(12)}
PAIRS = sorted(MODEL.items())


@pytest.fixture(params=EMBEDDED)
def kind(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


def make_image(kind: str, folder: Path, *, last: str) -> Path:
    """Create a database with pairs in all kinds of tables and in the log, as a crash leaves it."""
    with open_store(f"{kind}://{folder}/made") as store:
        store.bulk_load(PAIRS[:4])
        store.put_many([(b"gone", b"1"), (b"k005", b"an older value")])
    with open_store(f"{kind}://{folder}/made") as store:
        store.put_many(PAIRS[4:8])
        store.delete_many([b"gone"])
        if last == "bulk":
            store.bulk_load(PAIRS[8:])
        else:
            store.put_many(PAIRS[8:])
            store.sync()
        copied = None
        while copied != (files := sizes(folder / "made")):  # by a compaction meanwhile
            shutil.rmtree(folder / "image", ignore_errors=True)
            with suppress(shutil.Error):
                shutil.copytree(folder / "made", folder / "image")
            copied = files
    return folder / "image"


def sizes(folder: Path) -> dict[Path, int]:
    """Return the bytes of the files in a folder."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_size
    return found


def all_is_right(url: str) -> None:
    """Read everything in every way; raise AssertionError if a value differs."""
    with open_store(url) as store:
        assert store.get_many([key for key, _ in PAIRS]) == [value for _, value in PAIRS]
        assert [store.get(key) for key in (b"k000", b"k005", b"k011")] == [
            MODEL[key] for key in (b"k000", b"k005", b"k011")
        ]
        assert list(store.scan()) == PAIRS
        assert list(store.keys()) == sorted(MODEL)
        with store.snapshot() as view:
            assert list(view.scan(b"k00")) == PAIRS[:10]
            assert view.get(b"k011") == MODEL[b"k011"]


def spots(path: Path, every: int) -> Iterator[tuple[int, int]]:
    """Return positions in a file and bits to flip: all of a small file, some of a large one."""
    size = path.stat().st_size
    for place in range(0, size, every if size > 100 else 1):
        yield from (
            [(place, 0x80 if place % 2 else 0x01)] if every > 1 else [(place, 1), (place, 128)]
        )


def flip_everywhere(kind: str, last: str, folder: Path, every: int) -> None:
    image = make_image(kind, folder, last=last)
    copy = folder / "copy"
    url = f"{kind}://{copy}"
    shutil.copytree(image, copy)
    all_is_right(url)
    found = []
    for path in sorted(image.iterdir()):
        if re.match("LOG|LOCK|OPTIONS", path.name) or not path.is_file():
            continue  # not read, or read by people only
        if path.name != "windeck.seal" and without(path, copy, url) == "harmless":
            continue  # not read, or replaced by a compaction that has not deleted it yet
        data = path.read_bytes()
        for place, bits in spots(path, every):
            shutil.rmtree(copy)
            shutil.copytree(image, copy)
            flipped = bytearray(data)
            flipped[place] ^= bits
            (copy / path.name).write_bytes(flipped)
            found.append(outcome(url, f"byte {place} of {path.name} ^ {bits:#x}"))
    assert found.count("detected") > 100
    assert found.count("harmless") < found.count("detected") / 2


def without(path: Path, copy: Path, url: str) -> str:
    """Return what comes of opening a copy of an image that lacks one file."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path.parent, copy)
    (copy / path.name).unlink()
    return outcome(url, f"without {path.name}")


def outcome(url: str, what: str) -> str:
    try:
        all_is_right(url)
    except CorruptStoreError as error:
        return "detected" if url in str(error) else f"{what}: {error}"
    except AssertionError as error:
        raise AssertionError(f"{what} went unnoticed") from error
    return "harmless"


@pytest.mark.parametrize("last", ["bulk", "sync"])
def test_flipped_bits_in_all_files(kind: str, last: str, tmp_path: Path) -> None:
    flip_everywhere(kind, last, tmp_path, every=13)


@pytest.mark.slow
@pytest.mark.parametrize("last", ["bulk", "sync"])
def test_a_flipped_bit_anywhere(kind: str, last: str, tmp_path: Path) -> None:
    flip_everywhere(kind, last, tmp_path, every=1)


def test_a_value_in_the_middle_of_a_table(kind: str, tmp_path: Path) -> None:
    """A scan returns the pairs before the damage and then raises; it does not end early."""
    url = f"{kind}://{tmp_path}/x"
    rows = [(b"k%05d" % i, b"%05d" % i * 100) for i in range(1000)]
    with open_store(url) as store:
        store.bulk_load(rows)
        store.sync()
    wanted = b"00495" * 20
    hit = [path for path in (tmp_path / "x").glob("*.??[tb]") if wanted in path.read_bytes()]
    assert len(hit) == 1
    data = bytearray(hit[0].read_bytes())
    data[data.index(wanted)] ^= 1
    hit[0].write_bytes(data)
    with open_store(url) as store:
        seen: list[tuple[bytes, bytes]] = []
        with pytest.raises(CorruptStoreError, match=f"{kind}://.*/x is damaged: reading failed"):
            seen.extend(store.scan())
        assert 400 < len(seen) < 500
        assert seen == rows[: len(seen)]
        with pytest.raises(CorruptStoreError, match="checksum"):
            store.get(b"k00495")
        with pytest.raises(CorruptStoreError, match="checksum"):
            store.get_many([b"k00001", b"k00495"])
        with store.snapshot() as view, pytest.raises(CorruptStoreError, match="checksum"):
            view.get(b"k00495")
        assert store.get(b"k00900") == b"00900" * 100


def test_a_lost_end_of_the_log_is_noticed(kind: str, tmp_path: Path) -> None:
    """The engines take a truncated log for the result of a crash; the seal detects it."""
    errors: list[str] = []
    for number in range(8):
        if len(errors) > 25:  # the others cut off a note that an old log is not needed any more
            break
        # What a compaction wrote after the sync may be longer than what is cut off: made again.
        (tmp_path / str(number)).mkdir()
        image = make_image(kind, tmp_path / str(number), last="sync")
        for old in image.glob("*.log") if kind == "rocksdb" else ():
            old.write_bytes(b"")  # what the manifest loses is not in there any more, either
        (log,) = [
            path
            for path in image.glob("MANIFEST-*" if kind == "rocksdb" else "*.log")
            if path.stat().st_size
        ]
        size = log.stat().st_size
        copy, errors = tmp_path / "copy", []
        for cut in range(1, 60):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(image, copy)
            os.truncate(copy / log.name, size - cut)
            try:
                all_is_right(f"{kind}://{copy}")
            except CorruptStoreError as error:
                errors.append(str(error))
    assert len(errors) > 25
    # RocksDB may also miss a table that a compaction has replaced, whose note is cut off.
    words = r"the end of its log is lost, it was opened as of sync \d, expected sync"
    if kind == "rocksdb":
        words += r"|is damaged: opening failed: .*No such file"
    assert all(re.search(words, error) for error in errors)
    if "opening failed" in errors[-1]:
        return
    (copy / "windeck.seal").unlink()
    with open_store(f"{kind}://{copy}") as store:  # what is left, as the error says
        left = MODEL.items() | {(b"gone", b"1"), (b"k005", b"an older value")}
        assert dict(store.scan()).items() <= left


def test_an_unsynced_log_loses_its_end_at_most(kind: str, tmp_path: Path) -> None:
    """Any damage raises an error, or loses only the last pairs."""
    pairs = [(b"k%03d" % i, b"%d" % i * 9000) for i in range(12)]  # over several blocks of the log
    with open_store(f"{kind}://{tmp_path}/made") as store:
        for pair in pairs:
            store.put_many([pair])
        shutil.copytree(tmp_path / "made", tmp_path / "image")
    (log,) = [path for path in (tmp_path / "image").glob("*.log") if path.stat().st_size]
    data = log.read_bytes()
    for place in range(0, len(data), 997):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "image", tmp_path / "copy")
        flipped = bytearray(data)
        flipped[place] ^= 1
        (tmp_path / "copy" / log.name).write_bytes(flipped)
        try:
            with open_store(f"{kind}://{tmp_path}/copy") as store:
                found = list(store.scan())
        except CorruptStoreError:
            continue
        assert found == pairs[: len(found)], place
        assert len(found) < len(pairs)


def test_a_file_that_is_gone(kind: str, tmp_path: Path) -> None:
    """It is noticed, unless a compaction has replaced it: then all values are there without it."""
    image = make_image(kind, tmp_path, last="bulk")
    copy = tmp_path / "copy"
    noticed = set()
    for path in sorted(image.iterdir()):
        if re.fullmatch(r"CURRENT|MANIFEST-\d+|\d+\.(sst|ldb)", path.name):
            found = without(path, copy, f"{kind}://{copy}")
            assert found == "detected" or (found == "harmless" and path.suffix in {".sst", ".ldb"})
            noticed |= {re.sub(r"\d+", "N", path.name)} if found == "detected" else set()
    table = "N.sst" if kind == "rocksdb" else "N.ldb"
    assert noticed == {"CURRENT", "MANIFEST-N", table}


def test_an_error_says_which_number_it_has(kind: str, tmp_path: Path) -> None:
    image = make_image(kind, tmp_path, last="bulk")
    (image / "windeck.seal").write_bytes(b"windeck-seal 1 1 00000000\n")
    with pytest.raises(OSError, match=r"its file windeck\.seal cannot be read") as caught:
        open_store(f"{kind}://{image}")
    assert type(caught.value) is CorruptStoreError
    assert caught.value.errno == errno.EBADMSG


def test_a_seal_of_a_later_format_is_no_damage(kind: str, tmp_path: Path) -> None:
    image = make_image(kind, tmp_path, last="bulk")
    line = b"windeck-seal 2 1 "
    (image / "windeck.seal").write_bytes(b"%s%08x\n" % (line, zlib.crc32(line)))
    with pytest.raises(ValueError, match=r"^windeck\.seal of .* has format 2, expected 1: a later"):
        open_store(f"{kind}://{image}")


# --- the end of the process ----------------------------------------------------------------------

KILLED = """if True:
    import itertools, os, signal, sys
    from windeck.checkpoint.stores import open_store, write_part
    store = open_store(sys.argv[1])
    store.put_many([(b"a%03d" % i, b"%d" % i * 1000) for i in range(500)])
    store.bulk_load((b"b%03d" % i, b"%d" % i * 1000) for i in range(500))
    store.compare_and_set(b"HEAD", None, b"1")
    store.sync()
    for i in range(20):
        store.put_many([(b"c%03d" % i, b"x"), (b"d%03d" % i, b"x")])
    def rows():
        for i in range(3000):
            yield b"e%05d" % i, b"e" * 3000
        print("now", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "part":
        write_part(sys.argv[1], "mine", rows())
    store.bulk_load(rows())
"""


@pytest.mark.parametrize("during", ["bulk", "part"])
def test_kill_9(kind: str, during: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    command = [sys.executable, "-c", KILLED, url, during]
    killed = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"now\n")
    with open_store(url) as store:
        assert store.get(b"HEAD") == b"1"
        for letter in (b"a", b"b"):
            wanted = [(b"%c%03d" % (letter[0], i), b"%d" % i * 1000) for i in range(500)]
            assert list(store.scan(letter)) == wanted
        assert [key[1:] for key in store.keys(b"c")] == [key[1:] for key in store.keys(b"d")]
        assert store.parts() == []  # type: ignore[attr-defined]
        loaded = len(list(store.keys(b"e")))
        assert loaded == 0 if kind == "rocksdb" or during == "part" else loaded <= 3000
        store.put_many([(b"f", b"1")])
        store.drop_parts(["mine"])  # type: ignore[attr-defined]
    assert not list((tmp_path / "x").glob("windeck.parts/*"))


# --- a full disk ---------------------------------------------------------------------------------

FILLED = """if True:
    import errno, os, resource, sys
    from windeck.checkpoint.stores import open_store, write_part
    url, how, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = open_store(url)
    store.put_many([(b"a", b"safe")])
    store.sync()
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    rows = [(b"b%05d" % i, os.urandom(100_000)) for i in range(400)]
    try:
        if how == "put":
            for row in rows:
                store.put_many([row])
            store.sync()
        elif how == "bulk":
            store.bulk_load(rows)
        else:
            write_part(url, "mine", rows)
        print("no error", flush=True)  # os._exit flushes nothing.
    except OSError as error:
        print(errno.errorcode[error.errno], url in str(error), store.get(b"a"), flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("how", ["put", "bulk", "part"])
def test_a_limit_on_files(kind: str, how: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path}/x"
    command = [sys.executable, "-c", FILLED, url, how, str(2_000_000)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"EFBIG True b'safe'\n"
    check_after_filling(url)


@pytest.mark.parametrize("how", ["put", "bulk", "part"])
def test_a_full_disk(kind: str, how: str, tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(tmp_path)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here; limits on files are tested above")
    try:
        url = f"{kind}://{tmp_path}/x"
        command = [sys.executable, "-c", FILLED, url, how, "0"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        assert done.stdout == b"ENOSPC True b'safe'\n"
        subprocess.run(["mount", "-o", "remount,size=200m", str(tmp_path)], check=True)
        check_after_filling(url)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def check_after_filling(url: str) -> None:
    """Assert that the synced pairs are in the store, and that it accepts further ones."""
    with open_store(url) as store:
        assert store.get(b"a") == b"safe"
        keys = list(store.keys(b"b"))
        assert keys == [b"b%05d" % i for i in range(len(keys))]
        assert store.parts() == []  # type: ignore[attr-defined]
        store.put_many([(b"c", b"2")])
        store.sync()
