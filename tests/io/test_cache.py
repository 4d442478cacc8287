"""Tests of the cache of remote objects: concurrency, eviction, damage, crashes and full disks."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from support.doomed import Points, child
from support.internals import original, plant
from support.object_servers import Bucket
from windeck.io import ObjectCache, checked_cache, filesystem

#: Bytes after an object: a mark, its length and a digest.
_TRAILER = 8 + 8 + 16


@pytest.fixture(autouse=True)
def _no_memory_of_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "cache._warned", set())
    plant(monkeypatch, "cache._verified", set())


def key_of(name: str) -> str:
    """Return the key of an object: any number in hexadecimal."""
    return md5(name.encode()).hexdigest()


class Remote:
    """Objects in memory, which count how often they are downloaded."""

    def __init__(self, **objects: bytes) -> None:
        self.objects, self.downloads = objects, dict.fromkeys(objects, 0)

    def get(self, cache: ObjectCache, name: str, **options: Any) -> bytes | None:
        content = self.objects[name]

        def download() -> Iterator[bytes]:
            self.downloads[name] += 1
            for start in range(0, len(content), 100):
                yield content[start : start + 100]

        version = f"{len(content)} {content[:8]!r}"
        found = cache.get(key_of(name), version, len(content), download, **options)
        return None if found is None else bytes(found.to_pybytes())


def objects_in(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith((".object", ".tmp")))


def used(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in objects_in(folder))


class TestContents:
    def test_one_download(self, tmp_path: Path) -> None:
        remote, cache = Remote(a=os.urandom(1000), empty=b""), ObjectCache(str(tmp_path / "c"))
        for _ in range(3):
            assert remote.get(cache, "a") == remote.objects["a"]
            assert remote.get(cache, "empty") == b""
        assert remote.downloads == {"a": 1, "empty": 1}

    def test_a_new_version_replaces_the_old_one(self, tmp_path: Path) -> None:
        remote, cache = Remote(a=b"old" * 100), ObjectCache(str(tmp_path))
        assert remote.get(cache, "a") == b"old" * 100
        remote.objects["a"] = b"newer" * 100
        assert remote.get(cache, "a") == b"newer" * 100
        assert remote.downloads == {"a": 2}
        assert len(objects_in(tmp_path)) == 1

    @pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "zero", "trailer"])
    def test_damage_is_found(
        self, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remote, cache = Remote(a=os.urandom(5000)), ObjectCache(str(tmp_path))
        remote.get(cache, "a")
        path = tmp_path / objects_in(tmp_path)[0]
        content = bytearray(path.read_bytes())
        if damage == "flip":
            content[2500] ^= 1
        elif damage == "trailer":
            content[-1] ^= 1
        elif damage == "zero":
            content[:] = bytes(len(content))
        else:
            content = content[:3000] if damage == "truncate" else content + b"x"
        path.write_bytes(content)
        plant(monkeypatch, "cache._verified", set())  # as in another process
        assert remote.get(cache, "a") == remote.objects["a"]
        assert remote.downloads == {"a": 2}

    def test_an_evicted_object_stays_mapped(self, tmp_path: Path) -> None:
        remote = Remote(a=os.urandom(1000), b=os.urandom(1000))
        cache = ObjectCache(str(tmp_path), 1500)
        content = remote.objects["a"]
        mapped = cache.get(key_of("a"), "1", 1000, lambda: iter([content]))
        assert remote.get(cache, "b") == remote.objects["b"]
        assert len(objects_in(tmp_path)) == 1
        assert mapped is not None
        assert mapped.to_pybytes() == content

    def test_a_download_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        cache = ObjectCache(str(tmp_path))

        def download() -> Iterator[bytes]:
            yield b"x" * 500
            raise ConnectionError("gone")

        with pytest.raises(ConnectionError, match="gone"):
            cache.get(key_of("a"), "1", 1000, download)
        assert objects_in(tmp_path) == []
        assert cache.get(key_of("a"), "1", 3, lambda: iter([b"abc"])) is not None


class Sums:
    """A result that is computed with an object of the cache, and how often it was."""

    def __init__(self, remote: Remote, cache: ObjectCache) -> None:
        self.remote, self.cache, self.computed = remote, cache, 0

    def get(self, key: str = "5" * 32, *, version: int = 1) -> int:
        def compute() -> int:
            self.computed += 1
            return sum(self.remote.get(self.cache, "a") or self.remote.objects["a"])

        def decode(contents: bytes) -> int | None:
            stored, _, number = contents.decode().partition(" ")
            return int(number) if int(stored) == version else None

        return self.cache.get_result(key, compute, lambda n: f"{version} {n}".encode(), decode)


class TestResults:
    def test_a_result_is_computed_once_and_with_objects(self, tmp_path: Path) -> None:
        remote = Remote(a=os.urandom(100))
        for _ in range(3):
            sums = Sums(remote, ObjectCache(str(tmp_path / "c")))
            assert sums.get() == sum(remote.objects["a"])
            # In any pair of the 256 locks, also one lock for both: 595 has that of "a".
            for number in (*range(50), 595) if sums.computed else ():
                assert sums.get(key_of(str(number))) == sum(remote.objects["a"])
        assert remote.downloads == {"a": 1}
        assert sums.computed == 0

    def test_results_of_another_format_or_damaged_are_computed_again(self, tmp_path: Path) -> None:
        sums = Sums(Remote(a=b"123"), ObjectCache(str(tmp_path)))
        expected = [sums.get(), sums.get(version=2), sums.get(version=2), sums.get(version=1)]
        assert expected == [150] * 4
        assert sums.computed == 3
        (path,) = (tmp_path / name for name in objects_in(tmp_path) if name.startswith("5"))
        path.write_bytes(path.read_bytes().replace(b"150", b"151"))
        assert sums.get() == 150
        assert sums.computed == 4

    def test_results_are_counted_and_dropped(self, tmp_path: Path) -> None:
        remote = Remote(a=b"", b=os.urandom(100))
        cache = ObjectCache(str(tmp_path), 100 + _TRAILER)
        sums = Sums(remote, cache)
        sums.get()
        assert sums.computed == 1
        sums.get()
        assert sums.computed == 1
        assert remote.get(cache, "b") == remote.objects["b"]
        assert len(objects_in(tmp_path)) == 1
        sums.get()
        assert sums.computed == 2
        assert used(tmp_path) <= 100 + _TRAILER

    def test_a_result_larger_than_the_cache_is_not_kept(self, tmp_path: Path) -> None:
        sums = Sums(Remote(a=b"123"), ObjectCache(str(tmp_path), 4 + _TRAILER))
        with pytest.warns(UserWarning, match=r"a result has 5 bytes, more than cache_bytes"):
            assert sums.get() == 150
        assert sums.get() == 150
        assert sums.computed == 2
        assert not any(name.startswith("5") for name in objects_in(tmp_path))

    @pytest.mark.parametrize("call", ["makedirs", "replace"])
    def test_a_folder_that_cannot_be_written(
        self, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        sums = Sums(Remote(a=b"123"), ObjectCache(str(tmp_path / "c")))
        monkeypatch.setattr(os, call, full)
        with pytest.warns(UserWarning, match="No space left"):
            assert sums.get() == 150
        assert sums.computed == 1

    def test_errors_of_the_computation_are_raised(self, tmp_path: Path) -> None:
        cache = ObjectCache(str(tmp_path))

        def compute() -> bytes:
            raise PermissionError(errno.EACCES, "the data are private")

        with pytest.raises(PermissionError, match="the data are private"):
            cache.get_result("5" * 32, compute, bytes, bytes)
        assert objects_in(tmp_path) == []

    def test_one_process_computes_and_the_others_wait(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=_compute, args=(tmp_path,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert [worker.exitcode for worker in workers] == [0] * 4
        assert len(list(tmp_path.glob("computed-*"))) == 1


def _compute(folder: Path) -> None:
    def compute() -> bytes:
        (folder / f"computed-{os.getpid()}").touch()
        time.sleep(0.2)
        return b"result"

    cache = ObjectCache(str(folder / "cache"))
    assert cache.get_result("5" * 32, compute, bytes, bytes) == b"result"


class TestEviction:
    def test_least_recently_used(self, tmp_path: Path) -> None:
        remote = Remote(**{name: os.urandom(1000) for name in "abcd"})
        cache = ObjectCache(str(tmp_path), 3 * (1000 + _TRAILER))
        for name in ("a", "b", "c", "a", "d"):  # "b" was used least recently
            time.sleep(0.002)  # modification times of files are not finer everywhere
            assert remote.get(cache, name) == remote.objects[name]
            assert used(tmp_path) <= 3 * (1000 + _TRAILER)
        for name in ("a", "c", "d"):
            remote.get(cache, name)
        assert remote.downloads == {"a": 1, "b": 1, "c": 1, "d": 1}
        remote.get(cache, "b")
        assert remote.downloads["b"] == 2

    def test_room_is_made_before_a_download(self, tmp_path: Path) -> None:
        """Also for the trailer of the object: at no time has the folder more than the limit."""
        remote = Remote(a=os.urandom(1000), b=os.urandom(1000))
        cache = ObjectCache(str(tmp_path), 2 * (1000 + _TRAILER) - 1)
        assert remote.get(cache, "a") == remote.objects["a"]
        kept: list[str] = []

        def download() -> Iterator[bytes]:
            kept.extend(name for name in objects_in(tmp_path) if name.endswith(".object"))
            yield remote.objects["b"]

        assert cache.get(key_of("b"), "1", 1000, download) == remote.objects["b"]
        assert not kept

    def test_what_is_needed_last_goes_first(self, tmp_path: Path) -> None:
        """A cyclic order, where the least recently used object is the next one that is needed."""
        names = "abcdef"
        remote = Remote(**{name: os.urandom(1000) for name in names})
        numbers = {key_of(name): place for place, name in enumerate(names)}
        known, lru = (
            ObjectCache(str(tmp_path / "known"), 4400),
            ObjectCache(str(tmp_path / "l"), 4400),
        )
        for cache in (known, lru):
            for step in range(4 * len(names)):
                place = step % len(names)
                options: dict[str, Any] = {}
                if cache is known:
                    options["needed_at"] = lambda key, now=place: (numbers[key] - now) % 6
                assert remote.get(cache, names[place], **options) == remote.objects[names[place]]
            if cache is known:
                with_order = dict(remote.downloads)
                remote.downloads = dict.fromkeys(names, 0)
        assert sum(remote.downloads.values()) == 24  # every one is a miss
        assert sum(with_order.values()) <= 14

    def test_objects_of_unknown_need_go_first(self, tmp_path: Path) -> None:
        remote = Remote(**{name: os.urandom(1000) for name in "abc"})
        cache = ObjectCache(str(tmp_path), 2200)
        numbers = {key_of("a"): 900, key_of("c"): 0}
        for name in "ab":
            remote.get(cache, name)
        remote.get(cache, "c", needed_at=numbers.get)
        remote.get(cache, "a")
        assert remote.downloads == {"a": 1, "b": 1, "c": 1}

    def test_an_object_larger_than_the_cache(self, tmp_path: Path) -> None:
        remote, cache = Remote(a=os.urandom(1000)), ObjectCache(str(tmp_path), 500)
        with pytest.warns(UserWarning, match="is not used for all objects: an object has"):
            assert remote.get(cache, "a") is None
        assert remote.get(cache, "a") is None  # Another warning would be an error.


class TestDisks:
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
    def test_a_disk_that_takes_nothing(
        self, s3: Bucket, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        contents = {name: os.urandom(1000) for name in "ab"}
        fired = []

        def write(*_: object) -> None:
            fired.append(number)
            raise OSError(number, os.strerror(number))

        plant(monkeypatch, "cache._write", write)
        paths = []
        for name, content in contents.items():
            s3.put(name, content)
            paths.append(
                filesystem.absolute(
                    f"{s3.url}/{name}", storage_options=s3.options, cache_dir=tmp_path
                )
            )
        with pytest.warns(UserWarning, match=os.strerror(number)):
            assert filesystem.read_bytes(paths[0]) == contents["a"]
        assert filesystem.read_bytes(paths[1]) == contents["b"]  # without another warning
        assert len(fired) == 2

    def test_a_full_disk(self, s3: Bucket, small_disk: Path) -> None:
        content = os.urandom(40 << 20)
        s3.put("a", content)
        path = filesystem.absolute(f"{s3.url}/a", storage_options=s3.options, cache_dir=small_disk)
        with pytest.warns(UserWarning, match="No space left on device"):
            assert filesystem.read_bytes(path) == content
        assert objects_in(small_disk) == []

    def test_arguments(self, tmp_path: Path) -> None:
        assert checked_cache(None, None) is None
        assert checked_cache(tmp_path, 1e6) == ObjectCache(str(tmp_path), 1_000_000)
        with pytest.raises(ValueError, match="`cache_bytes` must be at least 1, got 0"):
            checked_cache(tmp_path, 0)
        with pytest.raises(TypeError, match="`cache_dir` must be the path of a local folder"):
            checked_cache(7, None)


class TestClocks:
    """Times of use are compared with each other alone, whatever clock wrote them."""

    @pytest.mark.parametrize("year", [1902, 1969, 2100, 2400])
    def test_times_of_another_clock(self, tmp_path: Path, year: int) -> None:
        moment = (year - 1970) * 365 * 86_400
        remote = Remote(**{name: os.urandom(1000) for name in "abcde"})
        limit = 3 * (1000 + _TRAILER)
        cache = ObjectCache(str(tmp_path), limit)
        for name in "abcdeabcde":
            assert remote.get(cache, name) == remote.objects[name]
            assert used(tmp_path) <= limit
            for path in tmp_path.iterdir():
                os.utime(path, (moment, moment))
        # Files with a time in the future or the past are used, and counted, and dropped.
        original("cache._verified").clear()
        kept = [name for name in "abcde" if _kept(tmp_path, name)]
        before = dict(remote.downloads)
        for name in kept:
            assert remote.get(cache, name) == remote.objects[name]
        assert len(kept) == 3
        assert remote.downloads == before

    def test_left_overs_of_another_clock_are_removed(self, tmp_path: Path) -> None:
        remote = Remote(a=os.urandom(1000), b=os.urandom(1000))
        cache = ObjectCache(str(tmp_path))
        remote.get(cache, "a")
        for number, moment in enumerate((-(10**9), 10**11)):
            left = tmp_path / f".{key_of('a')}-0-{number}.tmp"
            left.write_bytes(b"half")
            os.utime(left, (moment, moment))
        remote.get(cache, "b")
        assert [name[-7:] for name in objects_in(tmp_path)] == 2 * [".object"]


def _kept(folder: Path, name: str) -> bool:
    return any(key_of(name) in one for one in objects_in(folder))


def _read_all(paths: list[str], sender: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sender.send([filesystem.read_bytes(path) for path in paths])
    sender.close()


def in_processes(count: int, paths: list[list[str]]) -> list[list[bytes]]:
    """Read lists of paths in as many processes at the same time."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [
        context.Process(target=_read_all, args=(listed, sender))
        for listed, (_, sender) in zip(paths, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        found = []
        for receiver, _ in pipes:
            assert receiver.poll(60), "a process does not answer"
            found.append(receiver.recv())
        return found
    finally:
        for process in processes:
            process.join(10)
            process.kill()


class TestProcesses:
    def test_one_process_downloads(self, s3: Bucket, tmp_path: Path) -> None:
        contents = {f"o{number}": os.urandom(20_000) for number in range(4)}
        for name, content in contents.items():
            s3.put(name, content)
        paths = [
            filesystem.absolute(f"{s3.url}/{name}", storage_options=s3.options, cache_dir=tmp_path)
            for name in contents
        ]
        s3.proxy.delay = 0.02
        for found in in_processes(4, [paths] * 4):
            assert found == list(contents.values())
        for name in contents:
            # Each object by one request, and another one that confirms its end.
            assert s3.proxy.count(f"^GET .*/{name} bytes=0-19999") == 1
        assert len(objects_in(tmp_path)) == 4

    def test_eviction_at_the_same_time(self, s3: Bucket, tmp_path: Path) -> None:
        contents = [os.urandom(10_000 + number) for number in range(8)]
        for number, content in enumerate(contents):
            s3.put(f"o{number}", content)
        paths = [
            filesystem.absolute(
                f"{s3.url}/o{number}",
                storage_options=s3.options,
                cache_dir=tmp_path,
                cache_bytes=35_000,
            )
            for number in range(8)
        ]
        orders = [[(start + step * 3) % 8 for step in range(16)] for start in range(4)]
        found = in_processes(4, [[paths[number] for number in order] for order in orders])
        for order, read in zip(orders, found, strict=True):
            assert read == [contents[number] for number in order]
        assert used(tmp_path) <= 35_000
        assert not [name for name in objects_in(tmp_path) if name.endswith(".tmp")]

    def test_kill_during_a_download(self, s3: Bucket, tmp_path: Path) -> None:
        content = os.urandom(400_000)
        s3.put("a", content)
        code = (
            "import sys; from support.internals import replace; "
            "from windeck.io import filesystem as f; "
            "replace('filesystem._DOWNLOAD_BYTES', 20_000); "
            "replace('ranges.REQUEST_BYTES', 20_000); "
            "f.read_bytes(f.absolute(sys.argv[1], storage_options=eval(sys.argv[2]), "
            "cache_dir=sys.argv[3]))"
        )
        s3.proxy.bandwidth = 200_000
        arguments = [f"{s3.url}/a", repr(s3.options), str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)
        deadline = time.monotonic() + 60
        while not (tmp_path.exists() and used(tmp_path) > 50_000):
            assert process.poll() is None, "the download has ended"
            assert time.monotonic() < deadline, "the download does not start"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert [name[-4:] for name in objects_in(tmp_path)] == [".tmp"]
        s3.proxy.bandwidth = 0
        path = filesystem.absolute(f"{s3.url}/a", storage_options=s3.options, cache_dir=tmp_path)
        assert filesystem.read_bytes(path) == content
        assert [name[-7:] for name in objects_in(tmp_path)] == [".object"]
        # No request now. One of the killed process may still arrive, so none is counted.
        s3.proxy.plan("status", "^GET ", times=1 << 30, amount=404, code="NoSuchKey")
        assert filesystem.read_bytes(path) == content


class TestKilled:
    """A process that is killed anywhere leaves nothing that another one takes for complete."""

    contents = {name: os.urandom(1000 + place) for place, name in enumerate("abcde")}  # noqa: RUF012
    limit = 3 * (1010 + _TRAILER)

    def run(self, folder: Path, tick: Any = lambda: None) -> None:
        """Download, evict, and keep results, more than fit together."""
        cache = ObjectCache(str(folder), self.limit)
        for name in "abcadbe":
            content = self.contents[name]

            def download(content: bytes = content) -> Iterator[bytes]:
                for start in range(0, len(content), 400):
                    tick()
                    yield content[start : start + 400]

            version = f"{len(content)} {content[:8]!r}"
            found = cache.get(key_of(name), version, len(content), download)
            assert found is not None
            assert found.to_pybytes() == content
        for number in range(3):
            result = b"%d" % number * 300
            key = key_of(f"result {number}")
            assert cache.get_result(key, partial(bytes, result), bytes, bytes) == result
        assert used(folder) <= self.limit
        assert not [name for name in objects_in(folder) if name.endswith(".tmp")]

    @pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
    def test_at_changes_of_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        at, status = 0, -9
        while status == -9:
            folder = tmp_path / str(at)

            def doomed(at: int = at, folder: Path = folder) -> None:
                points = Points(at)
                points.watch(monkeypatch)
                self.run(folder, points.tick)

            status = child(doomed)
            # The next process uses what is complete, and removes the rest.
            original("cache._verified").clear()
            self.run(folder)
            at += step
        assert status == 0
        assert at > 50
