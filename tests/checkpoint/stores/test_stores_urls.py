"""Tests of URLs of stores, of errors on opening, of user-defined stores, and of their page."""

from __future__ import annotations

import dbm.dumb
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.internals import plant
from support.programs import printed
from support.store_servers import RedisServer, need
from windeck.checkpoint import stores
from windeck.checkpoint.stores import MappingStore, StoreURL, open_store, register

PAGE = Path(__file__).resolve().parents[3] / "docs" / "stores.md"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rockdb:///x", r"no store has URLs that begin with rockdb://: .*; did you mean rocksdb\?"),
        ("Redis://h", r"no store has URLs that begin with Redis://: .*; did you mean redis\?"),
        (
            "redis:/h",
            r"expected the URL of a store, such as rocksdb:///path, got .* begins with 'redis'",
        ),
        ("/data/x", r"a text that has no :// and begins with '/data/x'"),
        ("", r"a text that has no :// and begins with ''"),
        ("memory://x/y", r"expected memory:// or memory://name, got memory://x/y"),
        ("memory://x?a=1", r"memory:// URLs have no option 'a': there are none"),
        ("memory://x?a", r"the options of a memory:// URL cannot be read at 'a'"),
        ("memory://x?a=1&a=2", r"the options of a memory:// URL cannot be read at 'a'"),
        ("memory://x?=1", r"the options of a memory:// URL cannot be read at ''"),
        ("redis://h:1:2", r"the host and port of a redis:// URL cannot be read"),
        ("redis://h:65536", r"the host and port of a redis:// URL cannot be read"),
    ],
)
def test_urls_with_a_typo(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        open_store(text)


def test_a_url_is_text() -> None:
    with pytest.raises(TypeError, match="expected a URL as str, got PosixPath"):
        open_store(Path("/x"))  # type: ignore[arg-type]


def test_passwords_are_in_no_error() -> None:
    for text in (
        "rediz://me:secret@host/0",
        "redis://me:secret@host:99999/0",
        "redis://me:sec@ret@host:x/0",
        "redis://me:secret/secret@host/0",
        "redis://me:1/secret@host/0?sync=never",
        "redis://me:1?secret@host/0",
        "redis://me:secret@host/0?bad=1",
        "redis://me:secret@host/0?timeout=x",
        "redis:me:secret@host",
        "rocksdb://me:secret@host/x",
        "memory://me:secret@x/y",
    ):
        with pytest.raises(ValueError, match=" ") as caught:
            open_store(text)
        assert "sec" not in str(caught.value), text
        assert caught.value.__cause__ is None
    assert "secret" not in repr(StoreURL.parse("redis://me:secret@host"))


def test_parts_of_a_url() -> None:
    url = StoreURL.parse("rediss+cluster://u%40:p%3A%2F@[::1]:7000/0?timeout=2.5&ca=%2Fx%20y")
    assert (url.scheme, url.user, url.password, url.host) == ("rediss+cluster", "u@", "p:/", "::1")
    assert (url.port, url.path, dict(url.options)) == (7000, "/0", {"timeout": "2.5", "ca": "/x y"})
    assert str(url) == "rediss+cluster://u@:***@[::1]:7000/0?timeout=2.5&ca=/x y"


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [
        ("rocksdb:///nowhere", "rocksdict", "rocksdb"),
        ("leveldb:///nowhere", "plyvel", "leveldb"),
        ("redis://nowhere", "redis", "redis"),
        ("rediss+cluster://nowhere", "redis", "redis"),
    ],
)
def test_a_missing_library(url: str, library: str, extra: str) -> None:
    program = f"""if True:
        import sys
        sys.modules[{library!r}] = None
        from windeck.checkpoint.stores import open_store
        try:
            open_store({url!r})
        except ImportError as error:
            print(error)
    """
    scheme = url.split(":")[0]
    assert printed(program) == (
        f"{scheme}:// needs the package {library}: pip install 'windeck[{extra}]'\n"
    )


def test_importing_stores_imports_no_library() -> None:
    program = (
        "import sys, windeck.checkpoint.stores\n"
        "found = {'rocksdict', 'plyvel', 'redis', 'torch'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_memory_has_names() -> None:
    with open_store("memory://urls-test") as store, open_store("memory://urls-test") as same:
        store.put_many([(b"a", b"1")])
        assert same.get(b"a") == b"1"
        with open_store("memory://") as other, open_store("memory://") as another:
            other.put_many([(b"b", b"1")])
            assert list(another.scan()) == []
    with open_store("memory://urls-test") as store:
        assert store.get(b"a") == b"1"
        store.delete_range(b"")


def test_a_store_over_any_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "urls._registered", {})

    def open_dbm(url: StoreURL) -> MappingStore:
        url.only("mode")
        mode = url.choice("mode", ("c", "r"), "c")
        database: Any = dbm.dumb.open(url.path, mode)  # noqa: SIM115 - the store closes it
        return MappingStore(database, url=str(url), sync=database.sync, close=database.close)

    register("dbm", open_dbm)
    with open_store(f"dbm://{tmp_path}/x") as store:
        store.put_many([(b"b", b"2"), (b"a", b"1")])
        store.bulk_load([(b"c", b"3"), (b"d", b"4")])
        store.sync()
        with store.snapshot() as view:
            store.delete_many([b"a", b"no"])
            store.delete_range(b"d")
            assert view.get_many([b"a", b"d"]) == [b"1", b"4"]
        assert store.compare_and_set(b"b", b"2", b"5")
        assert not store.compare_and_set(b"b", b"2", b"6")
    with open_store(f"dbm://{tmp_path}/x?mode=r") as store:
        assert list(store.scan()) == [(b"b", b"5"), (b"c", b"3")]
    with pytest.raises(
        ValueError, match=r"dbm:// URLs have no option 'mod': .* did you mean mode\?"
    ):
        open_store(f"dbm://{tmp_path}/x?mod=r")


def test_a_mapping_that_changes_while_it_is_scanned() -> None:
    facts = MappingStore({}).facts._replace(backend="mine")
    with MappingStore({b"a": b"1", b"b": b"2", b"c": b"3"}, url="mine://x", facts=facts) as store:
        scan = store.scan()
        assert next(scan) == (b"a", b"1")
        store.delete_many([b"b"])
        assert list(scan) == [(b"c", b"3")]
        with store.snapshot() as view:
            assert (view.url, view.facts) == ("mine://x", facts)  # type: ignore[attr-defined]


@pytest.mark.parametrize("scheme", ["redis", "Upper", "", "a b", "1a"])
def test_schemes_that_cannot_be_taken(scheme: str) -> None:
    with pytest.raises(ValueError, match="`scheme` must be in lower case and not built-in, got"):
        register(scheme, lambda url: MappingStore({}))


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    plant(monkeypatch, "urls._registered", {})
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    names: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)


def test_the_page_names_every_option() -> None:
    page = PAGE.read_text()
    sources = "".join(path.read_text() for path in Path(str(stores.__file__)).parent.glob("*.py"))
    options = {
        name
        for found in re.findall(r"url\.only\((.*?)\)", sources)
        for name in re.findall(r'"(\w+)"', found)
    }
    options |= {"timeout", "allow_eviction", "sync", "ca", "cert", "key"}
    assert options
    for option in options:
        assert f"`{option}" in page, option


def test_what_is_missing_skips_here_and_fails_in_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("redis")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install redis-server"):
        RedisServer(tmp_path / "server")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match=r"apt-get install redis-server .skipped"):
        RedisServer(tmp_path / "server")
