"""Tests of files on an S3 server, a web server and fsspec's file systems, with planned faults."""

from __future__ import annotations

import io
import os
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, fs, parquet

import windeck as wd
from support.internals import original, plant
from support.object_servers import SECRET, Bucket, Fault, FaultyServer, Website
from windeck.io import RangeReader, filesystem, list_matching, resolve

#: Faults that pass: the request is repeated and gives the right bytes.
PASSING = [
    ("status", 503),
    ("status", 500),
    ("status", 429),
    ("cut", 0),
    ("reset", 0),
    ("short", 0),
    ("whole", 0),
    ("shift", 7),
    ("shift", 100_000),
]


class Store:
    """A server with one way to put, replace and delete objects, whatever its protocol."""

    def __init__(self, server: FaultyServer, url: str, options: dict[str, Any] | None) -> None:
        self.server, self.url, self.options = server, url, options

    def path(self, name: str, **more: Any) -> str:
        return filesystem.absolute(f"{self.url}/{name}", storage_options=self.options, **more)

    def put(self, name: str, content: bytes) -> None:
        raise NotImplementedError

    def delete(self, name: str) -> None:
        raise NotImplementedError


class S3Store(Store):
    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket.proxy, bucket.url, bucket.options)
        self.put, self.delete = bucket.put, bucket.delete  # type: ignore[method-assign]


class WebStore(Store):
    def __init__(self, site: Website) -> None:
        super().__init__(site.server, site.url, None)
        self._objects = site.objects

    def put(self, name: str, content: bytes) -> None:
        self._objects[name] = content

    def delete(self, name: str) -> None:
        del self._objects[name]


@pytest.fixture(params=["s3", "web"])
def store(request: pytest.FixtureRequest) -> Store:
    found = request.getfixturevalue(request.param)
    return S3Store(found) if request.param == "s3" else WebStore(found)


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, **options)
    return sink.getvalue()


def feather_bytes(table: pa.Table, compression: str = "uncompressed") -> bytes:
    sink = io.BytesIO()
    feather.write_feather(table, sink, compression=compression)
    return sink.getvalue()


def names(paths: Iterator[str] | tuple[str, ...], url: str) -> list[str]:
    return [path.removeprefix(f"{url}/") for path in paths]


class TestListing:
    """Files of URLs are found as on disk."""

    FILES = (
        "d/part10.parquet",
        "d/part2.parquet",
        "d/deep/er/part1.parquet",
        "d/_hidden/part0.parquet",
        "d/.part0.parquet",
        "d/notes.txt",
        "d/a b.parquet",
    )

    @pytest.fixture(autouse=True)
    def _files(self, store: Store, tmp_path: Path) -> None:
        for name in self.FILES:
            store.put(name, b"contents")
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"contents")

    @pytest.mark.parametrize(
        "pattern",
        ["d", "d/", "d/part2.parquet", "d/*.parquet", "d/part[0-5].parquet", "d/**/*.parquet"],
    )
    def test_resolve_as_on_disk(self, store: Store, tmp_path: Path, pattern: str) -> None:
        expected = names(resolve(f"{tmp_path}/{pattern}"), str(tmp_path))
        found = resolve(f"{store.url}/{pattern}", storage_options=store.options)
        assert names(found, store.url) == [name.replace("//", "/") for name in expected]
        assert expected

    def test_walk_and_list_as_on_disk(self, store: Store, tmp_path: Path) -> None:
        folder, local = store.path("d"), str(tmp_path / "d")
        assert [*map(sorted, filesystem.list_below(folder))] == [
            *map(sorted, filesystem.list_below(local))
        ]
        assert sorted(filesystem.list_directory(folder)) == sorted(filesystem.list_directory(local))
        matching = list_matching(folder, "part*.parquet")
        assert sorted(names(tuple(matching), folder)) == ["part10.parquet", "part2.parquet"]
        assert list_matching(store.path("none"), "*") == []

    def test_kinds(self, store: Store) -> None:
        kinds = (filesystem.exists, filesystem.is_file, filesystem.is_directory)
        found = {name: [kind(store.path(name)) for kind in kinds] for name in ("d", "d/notes.txt")}
        assert found == {"d": [True, False, True], "d/notes.txt": [True, True, False]}
        assert [kind(store.path("none")) for kind in kinds] == [False] * 3
        assert filesystem.size(store.path("d/a b.parquet")) == 8

    def test_nothing_is_found(self, store: Store) -> None:
        for name, message in (
            ("d/none.parquet", "does not exist"),
            ("d/*.csv", "no file matches"),
            ("d/deep/er/", None),
        ):
            if message is None:
                assert resolve(f"{store.url}/{name}", storage_options=store.options)
                continue
            with pytest.raises(FileNotFoundError, match=message):
                resolve(f"{store.url}/{name}", storage_options=store.options)


class TestReading:
    """Bytes are those of the object, by any function."""

    @pytest.mark.parametrize("size", [0, 1, 4096, 100_000])
    def test_every_function(self, store: Store, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        plant(monkeypatch, "ranges.REQUEST_BYTES", 10_000)
        content = os.urandom(size)
        store.put("a.bin", content)
        path = store.path("a.bin")
        assert filesystem.read_bytes(path) == content
        with filesystem.open_input(path) as file:
            assert (file.size(), file.read(7), file.tell()) == (size, content[:7], min(7, size))
            file.seek(size // 2)
            assert file.read() == content[size // 2 :]
        with RangeReader(path) as reader:
            assert reader.size == size
            places = [(0, 10), (size // 3, 5000), (max(size - 3, 0), 10), (0, size), (size, 1)]
            expected = [content[start : start + count] for start, count in places]
            assert [reader.read(start, count) for start, count in places] == expected
            assert reader.read_many(places) == expected
        with filesystem.map_file(path) as mapped:
            assert mapped.buffer.to_pybytes() == content

    def test_requests_run_in_parallel(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        plant(monkeypatch, "ranges.REQUEST_BYTES", 1000)
        content = os.urandom(30_000)
        store.put("a.bin", content)
        store.server.delay = 0.03
        assert filesystem.read_bytes(store.path("a.bin")) == content
        assert 3 <= store.server.most <= 8
        assert store.server.count(r"^GET .*bytes=") >= 30

    def test_a_stream_is_decompressed(self, store: Store) -> None:
        import gzip

        store.put("a.csv.gz", gzip.compress(b"x\n1.5\n"))
        with filesystem.open_stream(store.path("a.csv.gz")) as stream:
            assert stream.read() == b"x\n1.5\n"
        assert wd.Table.read(store.path("a.csv.gz"))["x"].tolist() == [1.5]

    @pytest.mark.parametrize("first", [0, 5])
    def test_ranges_that_are_near_are_read_by_one_request(
        self, web: Website, monkeypatch: pytest.MonkeyPatch, first: int
    ) -> None:
        plant(monkeypatch, "ranges.GAP_BYTES", 4)
        content = web.objects["a.bin"] = os.urandom(100)
        unit = [(40, 50), (first, 10), (14, 20), (3, 3), (25, 30)]
        path = filesystem.absolute(f"{web.url}/a.bin")
        with filesystem.open_input(path, [unit]) as file:
            for start, stop in ((0, 0), (first, 20), (25, 30), (40, 50)):
                assert file.read_at(stop - start, start) == content[start:stop]
        found = re.findall(r"^GET .*bytes=(\S+)", "\n".join(web.server.requests), re.MULTILINE)
        assert sorted(found) == sorted([f"{first}-19", "25-29", "40-49"])


class TestFaults:
    """A request that fails is repeated; what it gives is right or an error."""

    @pytest.mark.parametrize(("kind", "amount"), PASSING)
    def test_passing_faults(self, store: Store, kind: str, amount: float) -> None:
        content = os.urandom(300_000)
        store.put("a.bin", content)
        fault = store.server.plan(kind, r"^GET .*a\.bin bytes=1000-", amount=amount)
        with RangeReader(store.path("a.bin")) as reader:
            assert reader.read(1000, 100_000) == content[1000:101_000]
        assert fault.fired == 1

    def test_two_answers_that_are_short(self, s3: Bucket) -> None:
        """The request for a few bytes and the one that confirms them; pyarrow's client fills up."""
        s3.put("a.arrow", b"ARROW1\0\0 and more")
        fault = s3.proxy.plan("short", times=2)
        with RangeReader(
            filesystem.absolute(f"{s3.url}/a.arrow", storage_options=s3.options)
        ) as reader:
            assert reader.read(0, 8) == b"ARROW1\0\0"
        assert fault.fired == 2

    @pytest.mark.parametrize("request_", ["^HEAD", "^GET .*list-type"])
    def test_faults_of_other_requests(self, s3: Bucket, request_: str) -> None:
        s3.put("d/a.parquet", b"x")
        faults = [s3.proxy.plan("status", request_, amount=503), s3.proxy.plan("reset", request_)]
        found = resolve(f"{s3.url}/d", storage_options=s3.options)
        assert names(found, s3.url) == ["d/a.parquet"]
        assert filesystem.size(found[0]) == 1
        assert [fault.fired for fault in faults] == [1, 1]

    @pytest.mark.parametrize(("kind", "amount"), PASSING[:-1])
    def test_faults_that_last(self, store: Store, kind: str, amount: float) -> None:
        if kind == "shift" and isinstance(store, S3Store):
            pytest.skip("pyarrow's client of S3 does not state ranges: the answers are consistent")
        store.put("a.bin", os.urandom(300_000))
        fault = store.server.plan(kind, amount=amount, times=1000)
        with RangeReader(store.path("a.bin")) as reader:
            url = re.escape(f"{store.url}/a.bin")
            with pytest.raises(ConnectionError, match=f"^cannot read '{url}': 4 attempts failed"):
                reader.read(1000, 100_000)
        assert fault.fired >= 4

    def test_a_server_that_is_gone(self, s3: Bucket) -> None:
        path = filesystem.absolute(f"{s3.url}/a.bin", storage_options=s3.options)
        s3.proxy.__exit__()
        with pytest.raises(ConnectionError, match="4 attempts failed"):
            filesystem.read_bytes(path)
        s3.proxy.__enter__()  # for the end of the fixture

    def test_a_server_that_stalls(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """pyarrow's client of S3 waits 3 seconds; that of HTTP as long as its options say."""
        content = os.urandom(1000)
        store.put("a.bin", content)
        if isinstance(store, WebStore):
            import aiohttp

            store.options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=0.2)}}
        fault = store.server.plan("delay", "^GET .*bytes=", amount=60)
        assert filesystem.read_bytes(store.path("a.bin")) == content
        assert fault.fired == 1

    @pytest.mark.parametrize("status", [401, 403])
    def test_forbidden(self, store: Store, status: int) -> None:
        store.put("a.bin", b"contents")
        fault = store.server.plan("status", "^(GET|HEAD)", amount=status, times=100)
        with pytest.raises(PermissionError, match=r"a\.bin': access is denied") as raised:
            filesystem.read_bytes(store.path("a.bin"))
        assert SECRET not in "".join(traceback.format_exception(raised.value))
        assert 1 <= fault.fired <= 2

    @pytest.mark.parametrize(
        ("status", "code"),
        [(403, "ExpiredToken"), (401, "AccessDenied"), (403, "RequestTimeTooSkewed")],
    )
    def test_credentials_that_expire(self, s3: Bucket, status: int, code: str) -> None:
        content = os.urandom(100_000)
        s3.put("a.bin", content)
        with RangeReader(
            filesystem.absolute(f"{s3.url}/a.bin", storage_options=s3.options)
        ) as reader:
            assert reader.read(0, 10) == content[:10]
            fault = s3.proxy.plan("status", "^(GET|HEAD)", amount=status, code=code, times=100)
            with pytest.raises(PermissionError, match="access is denied"):
                reader.read(0, 10_000)
            assert fault.fired
            s3.proxy.faults.clear()

    def test_missing_bucket_and_empty_bucket(self, s3: Bucket) -> None:
        for url in ("s3://no-such-bucket/a.parquet", "s3://no-such-bucket", f"{s3.url}/a.parquet"):
            with pytest.raises(FileNotFoundError, match="does not exist"):
                resolve(url, storage_options=s3.options)
        with pytest.raises(FileNotFoundError, match="has no data file"):
            resolve(s3.url, storage_options=s3.options)
        with pytest.raises(FileNotFoundError, match=r"no-such-bucket.* does not exist"):
            wd.Documents("s3://no-such-bucket/corpus", storage_options=s3.options)
        with pytest.raises(FileNotFoundError, match="has no dataset"):
            wd.Documents(s3.url, storage_options=s3.options)


class TestChanges:
    """An object that changes while it is open is an error."""

    @pytest.mark.parametrize("change", ["replaced", "truncated", "deleted"])
    @pytest.mark.parametrize("large", [True, False])
    def test_between_two_reads(self, store: Store, change: str, large: bool) -> None:
        content = os.urandom(1_000_000)
        store.put("a.bin", content)
        count = 500_000 if large else 50

        def read() -> None:
            with RangeReader(store.path("a.bin")) as reader:
                assert reader.read(0, count) == content[:count]
                if change == "deleted":
                    store.delete("a.bin")
                else:
                    store.put("a.bin", os.urandom(1_000_000 if change == "replaced" else 700_000))
                reader.read(100_000, count)

        # A deleted object is missing when it is read, or found to be gone when it is closed.
        with pytest.raises(
            (ValueError, FileNotFoundError), match=r"a\.bin' (has changed since|does not exist)"
        ):
            read()

    @pytest.mark.parametrize("change", ["replaced", "deleted"])
    def test_in_the_middle_of_a_table(
        self, store: Store, change: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = pa.table({"x": np.random.default_rng(0).random(300_000)})
        store.put("a.parquet", parquet_bytes(table, row_group_size=100_000))
        other = parquet_bytes(pa.table({"x": np.arange(300_000.0)}), row_group_size=100_000)
        changed: list[Any] = []
        fetch = original("ranges.RemoteFile._fetch")

        def change_before(self: Any, wanted: Any) -> Any:
            if wanted[0][0] > 1_000_000 and not changed:
                changed.append(wanted)
                store.delete("a.parquet") if change == "deleted" else store.put("a.parquet", other)
            return fetch(self, wanted)

        plant(monkeypatch, "ranges.RemoteFile._fetch", change_before)
        with pytest.raises((ValueError, FileNotFoundError), match=r"has changed|does not exist"):
            wd.Table.read(f"{store.url}/a.parquet", storage_options=store.options)
        assert changed


class TestTables:
    """Tables of URLs are those of the same files on disk."""

    @pytest.fixture
    def table(self) -> pa.Table:
        random = np.random.default_rng(7)
        rows = 140_000
        columns = {f"c{number}": random.random(rows) for number in range(6)}
        return pa.table({"site": np.repeat(["a", "b"], rows // 2), **columns})

    @pytest.mark.parametrize("form", ["parquet", "arrow", "compressed", "csv"])
    def test_forms(self, store: Store, table: pa.Table, form: str, tmp_path: Path) -> None:
        table = table.slice(0, 3000) if form == "csv" else table
        if form == "csv":
            content = table.to_pandas().to_csv(index=False).encode()
        elif form == "parquet":
            content = parquet_bytes(table, row_group_size=30_000)
        else:
            content = feather_bytes(table, "lz4" if form == "compressed" else "uncompressed")
        suffix = {"parquet": "parquet", "csv": "csv"}.get(form, "feather")
        for place in (1, 2):
            store.put(f"d/part{place}.{suffix}", content)
            (tmp_path / f"part{place}.{suffix}").write_bytes(content)
        options: dict[str, Any] = {"columns": ["c4", "c1"], "id_columns": "site", "sort": True}
        expected = wd.Table.read(tmp_path, **options)
        found = wd.Table.read(f"{store.url}/d", storage_options=store.options, **options)
        cached = wd.Table.read(
            f"{store.url}/d",
            storage_options=store.options,
            cache_dir=tmp_path / "cache",
            **options,
        )
        for one in (found, cached):
            assert one.column_names == ("c4", "c1")
            assert one.series_names == expected.series_names
            for name in one.column_names:
                assert np.array_equal(one[name], expected[name])
        sizes = [wd.Table.estimate(f"{store.url}/d", storage_options=store.options)]
        assert sizes == [wd.Table.estimate(tmp_path)] or form == "csv"

    def test_only_the_columns_are_read(self, store: Store, table: pa.Table) -> None:
        content = parquet_bytes(table, row_group_size=70_000, compression="none")
        store.put("a.parquet", content)
        wd.Table.read(f"{store.url}/a.parquet", columns="c3", storage_options=store.options)
        asked = [re.search(r"bytes=(\d+)-(\d+)", request) for request in store.server.requests]
        read = sum(int(one[2]) - int(one[1]) + 1 for one in asked if one is not None)
        column = table.num_rows * 8
        assert column < read < 1.3 * column + (1 << 17)
        assert read < len(content) / 3

    def test_small_row_groups_and_gaps(
        self, store: Store, table: pa.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plant(monkeypatch, "ranges.GAP_BYTES", 0)
        table = table.slice(0, 70_000)
        store.put("a.parquet", parquet_bytes(table, row_group_size=2000))
        found = wd.Table.read(
            f"{store.url}/a.parquet", columns=["c0", "c5"], storage_options=store.options
        )
        for name in found.column_names:
            assert np.array_equal(found[name], table[name].to_numpy())

    def test_jagged_tables(self, store: Store, tmp_path: Path) -> None:
        content = parquet_bytes(pa.table({"seen": [[1, 2], [], [3]], "x": [1.0, 2.0, 3.0]}))
        store.put("a.parquet", content)
        (tmp_path / "a.parquet").write_bytes(content)
        found = wd.JaggedTable.read(f"{store.url}/a.parquet", storage_options=store.options)
        assert repr(found) == repr(wd.JaggedTable.read(tmp_path / "a.parquet"))

    def test_a_damaged_file_is_named(self, store: Store) -> None:
        content = bytearray(parquet_bytes(pa.table({"x": np.arange(1000.0)}), compression="none"))
        content[10:40] = os.urandom(30)
        store.put("a.parquet", bytes(content))
        with pytest.raises(
            ValueError, match=rf"'{store.url}/a\.parquet' cannot be read as Parquet"
        ):
            wd.Table.read(f"{store.url}/a.parquet", storage_options=store.options)

    @pytest.mark.parametrize("kind", ["status", "cut", "short", "shift"])
    def test_faults_of_every_fifth_request(
        self, store: Store, table: pa.Table, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plant(monkeypatch, "ranges.REQUEST_BYTES", 50_000)
        store.put("a.parquet", parquet_bytes(table, row_group_size=70_000))
        request = "^(GET|HEAD)" if kind == "status" else "^GET .*bytes="
        faults: list[Fault] = [
            store.server.plan(kind, request, skip=skip, amount=503 if kind == "status" else 64)
            for skip in range(0, 40, 5)
        ]
        found = wd.Table.read(
            f"{store.url}/a.parquet", columns=["c0", "c5"], storage_options=store.options
        )
        for name in found.column_names:
            assert np.array_equal(found[name], table[name].to_numpy())
        assert all(fault.fired == 1 for fault in faults)


class TestOtherFileSystems:
    """Instances of pyarrow and fsspec, other schemes, and options."""

    def test_memory(self) -> None:
        content = parquet_bytes(pa.table({"x": [1.0, 2.0]}))
        memory = fsspec.filesystem("memory")
        memory.pipe("/remote/d/part1.parquet", content)
        try:
            for read in (
                wd.Table.read("memory://remote/d"),
                wd.Table.read("memory://remote/d/*.parquet"),
                wd.Table.read("/remote/d", filesystem=memory),
                wd.Table.read("/remote/d", filesystem=fs.PyFileSystem(fs.FSSpecHandler(memory))),
            ):
                assert read["x"].tolist() == [1.0, 2.0]
        finally:
            memory.rm("/remote", recursive=True)

    def test_instances_of_pyarrow(self, s3: Bucket, tmp_path: Path) -> None:
        content = parquet_bytes(pa.table({"x": [1.0, 2.0]}))
        s3.put("d/a.parquet", content)
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "a.parquet").write_bytes(content)
        local = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        assert wd.Table.read("d", filesystem=local)["x"].tolist() == [1.0, 2.0]
        for path in (f"{s3.name}/d", f"{s3.url}/d/*.parquet"):
            assert wd.Table.read(path, filesystem=s3.direct)["x"].tolist() == [1.0, 2.0]

    def test_options_of_pandas(self, s3: Bucket) -> None:
        s3.put("a.parquet", parquet_bytes(pa.table({"x": [1.0]})))
        options = {
            "key": s3.options["access_key"],
            "secret": SECRET,
            "client_kwargs": {
                "endpoint_url": f"http://{s3.options['endpoint_override']}",
                "region_name": "us-east-1",
            },
        }
        found = wd.Table.read(f"{s3.url}/a.parquet", storage_options=options)
        assert found["x"].tolist() == [1.0]

    def test_options_in_the_environment(self, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        s3.put("a.parquet", parquet_bytes(pa.table({"x": [1.0]})))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["access_key"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3.options['endpoint_override']}")
        assert wd.Table.read(f"{s3.url}/a.parquet")["x"].tolist() == [1.0]

    def test_wrong_arguments(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="either `filesystem` or `storage_options`, got both"):
            resolve("s3://b/a", filesystem=fs.LocalFileSystem(), storage_options={"anon": True})
        with pytest.raises(
            TypeError, match=r"`filesystem` must be a file system of pyarrow\.fs or"
        ):
            resolve("s3://b/a", filesystem=object())
        with pytest.raises(ValueError, match="`storage_options` are for URLs, got the local path"):
            resolve(tmp_path, storage_options={"anon": True})
        with pytest.raises(ValueError, match="`cache_bytes` needs `cache_dir`"):
            resolve("s3://b/a", cache_bytes=100)
        with pytest.raises(ValueError, match="`cache_dir` must be the path of a local folder"):
            resolve("s3://b/a", cache_dir="s3://b/cache")
        with pytest.raises(ValueError, match="no file system has the scheme nosuchscheme"):
            resolve("nosuchscheme://a/b")
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            resolve("s3://b/a", storage_options={"nonsense": 1, "region": "us-east-1"})

    def test_text_of_a_url_is_no_path(self, s3: Bucket) -> None:
        s3.put("a.parquet", b"x")
        path = filesystem.absolute(f"{s3.url}/a.parquet", storage_options=s3.options)
        for call in (filesystem.exists, filesystem.size, RangeReader, filesystem.open_input):
            with pytest.raises(ValueError, match="is the text of a URL, which has no file system"):
                call(f"{path}")  # a formatted string has lost its file system
        with pytest.raises(ValueError, match="expected a local path, where files are written"):
            filesystem.write_bytes(filesystem.join(path, "x"), b"")


class TestCredentials:
    """Neither text, nor pickles, nor errors have credentials."""

    def test_pickles(self, s3: Bucket) -> None:
        s3.put("a.bin", b"contents")
        path = filesystem.absolute(f"{s3.url}/a.bin", storage_options=s3.options)
        dumped = pickle.dumps(path)
        assert SECRET.encode() not in dumped
        assert s3.options["access_key"].encode() not in dumped
        again = pickle.loads(dumped)
        assert filesystem.read_bytes(again) == b"contents"
        assert SECRET not in repr(again) + repr(again.mount) + repr(vars(again.mount).keys())
        code = "import pickle, sys; from windeck.io import filesystem as f; " + (
            "f.read_bytes(pickle.load(sys.stdin.buffer))"
        )
        run = subprocess.run([sys.executable, "-c", code], input=dumped, capture_output=True)
        text = run.stderr.decode()
        assert run.returncode == 1
        assert "PermissionError" in text
        assert "was pickled without storage_options['access_key']" in text

    def test_user_and_signature_of_a_url(self, web: Website) -> None:
        web.objects["d/a.parquet"] = parquet_bytes(pa.table({"x": [1.0]}))
        host = web.url.removeprefix("http://")
        url = f"http://someone:hunter22@{host}/d/a.parquet?X-Amz-Signature=abcdef99&part=1"
        (path,) = resolve(url)
        assert path == f"{web.url}/d/a.parquet"
        assert wd.Table.read(url)["x"].tolist() == [1.0]
        assert web.server.count(r"\?X-Amz-Signature=abcdef99&part=1") > 0
        for hidden in (b"hunter22", b"abcdef99"):
            assert hidden not in pickle.dumps(path)
        for kind, amount in (("status", 403), ("status", 500), ("reset", 0)):
            fault = web.server.plan(kind, "^(GET|HEAD)", amount=amount, times=1000)
            with pytest.raises(OSError, match=r"d/a\.parquet") as raised:
                filesystem.read_bytes(path)
            assert fault.fired
            web.server.faults.clear()
            assert raised.value.__cause__ is None
            assert raised.value.__context__ is None
            text = "".join(traceback.format_exception(raised.value))
            assert "hunter22" not in text
            assert "abcdef99" not in text

    def test_secrets_are_removed_from_the_text_of_errors(self) -> None:
        options = {"secret_key": "s3cr+t/", "nested": {"token": "tok-123"}, "region": "us-east-1"}
        path: Any = filesystem.absolute("s3://bucket/a", storage_options=options)
        text = "s3cr+t/ s3cr%2Bt%2F tok-123 us-east-1 http://u:p@host/a?sig=xyz&Expires=1"
        assert (
            path.mount.redact(text) == "*** *** *** us-east-1 http://***@host/a?sig=***&Expires=1"
        )


class TestProcesses:
    """Paths work in forks and in processes that are started anew."""

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_another_process(self, store: Store, method: str) -> None:
        import multiprocessing

        content = os.urandom(50_000)
        store.put("a.bin", content)
        path = store.path("a.bin")
        assert filesystem.read_bytes(path) == content  # The client of this process is in use.
        context: Any = multiprocessing.get_context(method)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_contents, args=(path, sender))
        process.start()
        try:
            assert receiver.poll(60), "the process does not answer"
            assert receiver.recv() == content
        finally:
            process.join(10)
            if process.is_alive():
                process.kill()
        assert filesystem.read_bytes(path) == content


def _send_contents(path: str, sender: Any) -> None:
    sender.send(filesystem.read_bytes(path))
    sender.close()
