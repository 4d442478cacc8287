"""Files of ``hf://`` by huggingface_hub's own file system, against a stand-in for the Hub."""

from __future__ import annotations

import itertools
import json
import pickle
import urllib.parse
from collections.abc import Iterator, Mapping
from hashlib import sha1
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd
from support.corpora import write_corpus
from support.object_servers import FaultyServer, Web
from windeck.io import RangeReader, filesystem

pytest.importorskip("huggingface_hub")

REPO, COMMIT, TOKEN = "teams/loads", "0123456789abcdef0123456789abcdef01234567", "hf_SecretOfTests"
KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}


class Hub(Web):
    """Answers of the Hub for one dataset: its commit, trees of files, and ranges of files."""

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        plain, _, query = path.partition("?")
        name = urllib.parse.unquote(plain).strip("/")
        told = {key.lower(): value for key, value in headers.items()}
        if told.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"X-Error-Message": "Invalid credentials"}, b"{}"
        api = f"api/datasets/{REPO}"
        if name in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            return self._json({"id": REPO, "sha": COMMIT, "siblings": []})
        for kind in ("tree", "paths-info"):
            head = f"{api}/{kind}/"
            if name.startswith(head):
                _, _, below = name.removeprefix(head).partition("/")
                if kind == "tree":
                    return self._tree(below, "recursive=true" in query.lower())
                given = urllib.parse.parse_qs(body.decode())
                paths = given.get("paths") or json.loads(body or b"{}").get("paths", [])
                return self._json([one for path in paths for one in self._entry(path)])
        head = f"datasets/{REPO}/resolve/"
        if name.startswith(head):
            file = name.removeprefix(head).partition("/")[2]
            status, found, content = super().__call__(method, file, headers, body)
            return status, {**found, "X-Repo-Commit": COMMIT}, content
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"

    def _json(self, value: Any) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()

    def _entry(self, path: str) -> list[dict[str, Any]]:
        if path in self.objects:
            content = self.objects[path]
            return [
                {
                    "type": "file",
                    "path": path,
                    "size": len(content),
                    "oid": sha1(content).hexdigest(),
                    "lastCommit": {"id": COMMIT, "title": "", "date": "2024-01-01T00:00:00.000Z"},
                }
            ]
        if any(name.startswith(f"{path}/") for name in self.objects):
            return [{"type": "directory", "path": path, "oid": COMMIT}]
        return []

    def _tree(self, folder: str, recursive: bool) -> tuple[int, dict[str, str], bytes]:
        prefix = f"{folder}/" if folder else ""
        below = [name for name in self.objects if name.startswith(prefix)]
        if not below:
            return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
        paths = {prefix + name[len(prefix) :].partition("/")[0] for name in below}
        return self._json(
            [one for path in sorted(below if recursive else paths) for one in self._entry(path)]
        )


@pytest.fixture
def hub(quick_retries: None) -> Iterator[tuple[FaultyServer, Hub, dict[str, Any]]]:
    """Yield a server, its files, and options of its client."""
    answers = Hub()
    with FaultyServer(answers) as server:
        options = {"endpoint": f"http://127.0.0.1:{server.port}", "token": TOKEN}
        yield server, answers, {**options, "skip_instance_cache": True}


def test_tables_and_documents(
    hub: tuple[FaultyServer, Hub, dict[str, Any]], tmp_path: Path
) -> None:
    server, files, options = hub
    days = np.datetime64("2024-01-01") + np.arange(40).astype("m8[D]")
    (tmp_path / "data").mkdir()
    for number in range(2):
        load = np.arange(40.0) + 100 * number
        rows = pa.table({"site": [f"s{number}"] * 40, "time": days, "load": load, "more": load})
        path = tmp_path / "data" / f"{number}.parquet"
        parquet.write_table(rows, path, row_group_size=10)
        files.objects[f"data/{number}.parquet"] = path.read_bytes()
    for where in ("data", "data/*.parquet", "data/1.parquet"):
        found = wd.Table.read(
            f"hf://datasets/{REPO}/{where}", columns="load", **KEYS, storage_options=options
        )
        expected = wd.Table.read(f"{tmp_path}/{where}", columns="load", **KEYS)
        assert found.series_names == expected.series_names
        assert found["load"].tolist() == expected["load"].tolist()
    assert server.count(r"^GET /datasets/teams/loads/resolve/.* bytes=") > 3

    shards = {f"c4/x.part{part}": [[part] * (3 + doc) for doc in range(6)] for part in range(3)}
    home = write_corpus(tmp_path / "corpus", shards)
    for path in sorted(home.rglob("*.arrow")):
        files.objects[f"corpus/{path.relative_to(home)}"] = path.read_bytes()
    remote = wd.Documents(f"hf://datasets/{REPO}/corpus", storage_options=options)
    packed = [wd.PackedSequences(one, sequence_length=7) for one in (remote, wd.Documents(home))]
    batches = [
        [batch["inputs"].tolist() for batch in wd.Loader(one, batch_size=4, seed=2)]
        for one in packed
    ]
    assert batches[0] == batches[1]


def test_faults_and_errors(hub: tuple[FaultyServer, Hub, dict[str, Any]]) -> None:
    server, files, options = hub
    files.objects["a.parquet"] = bytes(range(256)) * 1000
    url = f"hf://datasets/{REPO}/a.parquet"
    fault = server.plan("reset", "^GET .*resolve.*a.parquet")
    with RangeReader(filesystem.absolute(url, storage_options=options)) as reader:
        assert reader.size == 256_000
        assert bytes(reader.read(1000, 5000)) == files.objects["a.parquet"][1000:6000]
    assert fault.fired == 1
    read: dict[str, Any] = {"columns": "load", "storage_options": options}
    with pytest.raises(FileNotFoundError, match=r"missing.parquet'"):
        wd.Table.read(f"hf://datasets/{REPO}/missing.parquet", **read)
    refused = {**options, "token": "hf_AnotherSecret"}
    with pytest.raises(PermissionError, match="access is denied") as caught:
        wd.Table.read(url, columns="load", storage_options=refused)
    assert "hf_AnotherSecret" not in str(caught.value)


@pytest.mark.parametrize("when", ["between two reads", "in the cache"])
def test_a_file_replaced_by_one_of_the_same_size_is_another(
    hub: tuple[FaultyServer, Hub, dict[str, Any]], when: str, tmp_path: Path
) -> None:
    """The Hub states neither an ETag nor a time where it lists files, only a hash."""
    _, files, options = hub
    old, new = bytes(300_000), bytes([7]) * 300_000
    files.objects["a.bin"] = old
    path = filesystem.absolute(
        f"hf://datasets/{REPO}/a.bin", storage_options=options, cache_dir=tmp_path
    )

    with RangeReader(path) as reader:
        before = reader.modified
        assert before > 2**62, "no time, but a number made of the hash"
    files.objects["a.bin"] = new
    with RangeReader(path) as reader:
        assert reader.modified != before, "places that keep size and time see the change"
    files.objects["a.bin"] = old

    def read_twice() -> None:
        with RangeReader(path) as reader:
            assert reader.read(0, 100) == old[:100]
            files.objects["a.bin"] = new
            reader.read(200_000, 100)

    if when == "between two reads":
        with pytest.raises(
            ValueError,
            match=r"a\.bin' has changed since",
        ):
            read_twice()
    else:
        for content in (old, new):
            files.objects["a.bin"] = content
            with filesystem.map_file(path) as mapped:
                assert bytes(mapped.buffer[:100]) == content[:100]


def test_servers_do_not_share_what_is_cached(
    hub: tuple[FaultyServer, Hub, dict[str, Any]],
) -> None:
    _, _, options = hub
    url = f"hf://datasets/{REPO}/a.bin"
    others = {**options, "endpoint": "http://127.0.0.1:1"}
    keys = {
        filesystem.cache_key(filesystem.absolute(url, storage_options=one))
        for one in (options, others, {**options, "token": "hf_AnotherSecret"})
    }
    assert len(keys) == 2


def test_an_endpoint_with_credentials_is_in_no_pickle() -> None:
    for scheme, name in (("hf", "endpoint"), ("s3", "endpoint_override")):
        for endpoint, is_there in (
            ("https://one.test", True),
            ("https://u:s3cr3t@one.test", False),
        ):
            path = filesystem.absolute(f"{scheme}://datasets/a/b", storage_options={name: endpoint})
            assert (b"one.test" in pickle.dumps(path)) is is_there


def test_a_listing_that_another_thread_cleared_is_asked_for_again(
    hub: tuple[FaultyServer, Hub, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client then states a size and no hash, as if the file had changed."""
    import huggingface_hub

    _, files, options = hub
    files.objects["a.bin"] = bytes(1000)
    system: Any = huggingface_hub.HfFileSystem
    complete, cleared = system.info, itertools.cycle((True, False))

    def info(self: Any, path: str, **told: Any) -> dict[str, Any]:
        found: dict[str, Any] = complete(self, path, **told)
        if not next(cleared):
            return found
        return {name: found[name] for name in ("name", "size", "type")}

    monkeypatch.setattr(system, "info", info)
    path = filesystem.absolute(f"hf://datasets/{REPO}/a.bin", storage_options=options)
    with RangeReader(path) as reader:
        assert bytes(reader.read(0, 1000)) == bytes(1000)
        assert reader.tag == sha1(bytes(1000)).hexdigest()
