"""URL schemes: what reads the files and stores of each, and what has to be installed for it.

The file systems are opened in `windeck.io.clients`, the stores in `windeck.checkpoint.stores.urls`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SCHEMES", "UNKNOWN", "Scheme", "scheme_of"]


class Scheme(NamedTuple):
    """Facts about the URLs of a scheme.

    Attributes
    ----------
    client
        What reads its files: "arrow" (a file system of pyarrow), "web" (fsspec's of HTTP, with
        checks), "fsspec", "disk"; "" if a URL has no files.
    file_system
        The scheme under which its file system is known, if there are several.
    store
        The module of `windeck.checkpoint.stores` that opens its stores; "" if there is none.
    library
        The library that this module imports.
    package
        What ``pip install`` needs for the scheme.
    reading, existing
        The option of a database that is only read, and of one that is not created.
    is_cluster, is_socket, has_tls
        What the scheme says about the connection to a server.
    """

    client: str = ""
    file_system: str = ""
    store: str = ""
    library: str = ""
    package: str = ""
    reading: str = ""
    existing: str = ""
    is_cluster: bool = False
    is_socket: bool = False
    has_tls: bool = False


_REDIS = Scheme(store="redis", library="redis", package="windeck[redis]")

#: Schemes that windeck knows. Files of other schemes are read by fsspec, if it knows them, and
#: stores of others are those of `windeck.checkpoint.stores.register`.
SCHEMES = {
    "memory": Scheme("fsspec", "memory", "memory"),
    "rocksdb": Scheme(
        store="rocksdb", library="rocksdict", package="windeck[rocksdb]",
        reading="readonly=1", existing="create=0",
    ),
    "leveldb": Scheme(
        store="leveldb", library="plyvel", package="windeck[leveldb]",
        reading="create=0", existing="create=0",
    ),
    "redis": _REDIS,
    "rediss": _REDIS._replace(has_tls=True),
    "redis+unix": _REDIS._replace(is_socket=True),
    "redis+cluster": _REDIS._replace(is_cluster=True),
    "rediss+cluster": _REDIS._replace(is_cluster=True, has_tls=True),
    "s3": Scheme("arrow", "s3", "objects"),
    "gs": Scheme("arrow", "gs", "objects"),
    "gcs": Scheme("arrow", "gs", "objects"),
    "abfs": Scheme("arrow", "abfs", "objects"),
    "abfss": Scheme("arrow", "abfs", "objects"),
    "hf": Scheme("fsspec", "hf", "objects", package="huggingface_hub"),
    "http": Scheme("web", "https", "objects", package="aiohttp"),
    "https": Scheme("web", "https", "objects", package="aiohttp"),
    "file": Scheme("disk", "file", "objects"),
}  # fmt: skip
#: Facts about any other scheme, and about text that is not a URL.
UNKNOWN = Scheme()


def scheme_of(url: str) -> Scheme:
    """Return the facts about the scheme of a URL.

    Examples
    --------
    >>> scheme_of("gcs://bucket/a.parquet").file_system, scheme_of("s3").file_system
    ('gs', '')
    """
    name, separator, _ = url.partition("://")
    return SCHEMES.get(name, UNKNOWN) if separator else UNKNOWN
