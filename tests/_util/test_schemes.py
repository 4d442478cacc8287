"""The table of URL schemes, and that the pages and messages name the same ones."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import windeck as wd
from support.internals import plant
from windeck import checkpoint
from windeck._util import SCHEMES, UNKNOWN, scheme_of
from windeck.checkpoint import stores
from windeck.checkpoint.stores import MappingStore, StoreURL, open_store, register
from windeck.cli.main import VIEW_NOTES

HOME = Path(__file__).resolve().parents[2]
#: Schemes of pages that are no URLs of windeck: of other tools, and of an example of a backend.
OTHERS = {"dbm"}


def schemes_in(text: str) -> set[str]:
    return set(re.findall(r"([a-z][a-z0-9+]*)://", text)) - OTHERS


def first_column(page: str, header: str) -> str:
    """Return the first column of the table of a page with a header."""
    text = (HOME / "docs" / page).read_text()
    table = text[text.index(header) :].partition("\n\n")[0]
    return "\n".join(row.split("|")[1] for row in table.splitlines())


@pytest.mark.parametrize(
    ("page", "header", "expected"),
    [
        ("remote.md", "| URL | read by |", {name for name, one in SCHEMES.items() if one.client}),
        ("stores.md", "| URL | options", {name for name, one in SCHEMES.items() if one.store}),
        (
            "object_stores.md",
            "| URL | |",
            {name for name, one in SCHEMES.items() if one.store == "objects"},
        ),
    ],
)
def test_the_pages_name_every_scheme(page: str, header: str, expected: set[str]) -> None:
    assert schemes_in(first_column(page, header)) == expected


def test_texts_name_no_other_scheme() -> None:
    docs = [HOME / "docs" / name for name in ("remote.md", "stores.md", "object_stores.md")]
    for text in (VIEW_NOTES, open_store.__doc__ or "", *(page.read_text() for page in docs)):
        assert schemes_in(text) <= SCHEMES.keys()


def test_entries() -> None:
    project = (HOME / "pyproject.toml").read_text()
    for name, one in SCHEMES.items():
        assert one.client in ("arrow", "web", "fsspec", "disk", ""), name
        assert one.client or one.store, name
        assert bool(one.client) == bool(one.file_system), name
        # A file system has the name of a scheme, which has the same client.
        assert not one.client or SCHEMES[one.file_system].client == one.client, name
        assert find_spec(f"windeck.checkpoint.stores.{one.store}") is not None, name
        extra = re.fullmatch(r"windeck\[(\w+)\]", one.package)
        if extra is not None:
            packages = re.search(rf"^{extra[1]} = \[(.*?)\]$", project, re.MULTILINE | re.DOTALL)
            assert packages is not None, name
            assert one.library in packages[1], name
        assert bool(one.reading) == bool(one.existing), name


@pytest.mark.parametrize("text", ["s3", "s3:/x", "", "S3://x", "dbm://x", "://x"])
def test_what_is_no_known_scheme(text: str) -> None:
    assert scheme_of(text) == UNKNOWN


def test_every_scheme_of_stores_is_known_to_the_message() -> None:
    with pytest.raises(ValueError, match="no store has URLs that begin with qq://") as caught:
        open_store("qq://x")
    listed = str(caught.value).rpartition("expected one of ")[2]
    assert listed == (
        "memory, rocksdb, leveldb, redis, rediss, redis+unix, redis+cluster, rediss+cluster, "
        "s3, gs, gcs, abfs, abfss, hf, http, https, file"
    )


def test_a_registered_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a store's, and is read by no file system; the table does not have it."""
    plant(monkeypatch, "urls._registered", {})
    register("mine", lambda url: MappingStore({b"a": url.path.encode()}))
    with open_store("mine://x/y") as store:
        assert store.get(b"a") == b"/y"
    with pytest.raises(ValueError, match=r"expected one of memory, .*, file, mine$"):
        open_store("qq://x")
    with pytest.raises(ValueError, match="no file system has the scheme mine://"):
        wd.Table.read("mine://x/y.parquet")
    assert not checkpoint.log("mine://x")
    assert not checkpoint.gc("mine://x", keep=1)
    for name in SCHEMES:
        with pytest.raises(ValueError, match="not built-in"):
            register(name, lambda url: MappingStore({}))
    assert StoreURL.parse("mine://x/y").scheme == "mine"
    assert stores.register is register
