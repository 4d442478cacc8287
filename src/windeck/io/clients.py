"""Clients of remote file systems: those of pyarrow for S3, GCS and Azure, fsspec for others.

A client raises the errors of its library; `windeck.io.remote` repeats requests and turns errors
into sentences. So the clients are told to make each request once. Those of Azure and of the Hugging
Face Hub cannot be told: `Client.own_retries` has the number of requests that they make.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote

from windeck._util.schemes import SCHEMES, UNKNOWN, scheme_of
from windeck.io.local_files import write_buffers
from windeck.io.web import WrongAnswer, options_of_web

__all__ = [
    "Client",
    "ListedName",
    "OpenObject",
    "Version",
    "WrongAnswer",
    "client_of",
    "connect",
]


class OwnRetries(NamedTuple):
    """Requests that a library repeats itself, and has no option for.

    Attributes
    ----------
    attempts
        Requests until it raises an error.
    operations
        The operations of `windeck.io.remote.Mount.attempt` that it repeats.
    statuses
        The HTTP statuses that it repeats, besides errors of the network.
    """

    attempts: int = 1
    operations: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()

    def requests(self, operation: str, status: int | None) -> int:
        """Return the number of requests of an operation that failed, with the HTTP status."""
        is_repeated = operation in self.operations and (status is None or status in self.statuses)
        return self.attempts if is_repeated else 1


_BUSY = frozenset((500, 502, 503, 504))
#: By the name of a file system.
_OWN_RETRIES = {
    "abfs": OwnRetries(
        4, frozenset(("stat", "list", "open", "read", "write", "delete")), _BUSY | {408}
    ),
    "hf": OwnRetries(6, frozenset(("list", "read")), _BUSY | {429}),
}


#: The least `Version.modified` that is no time: that of the year 2116.
NO_TIME = 1 << 62


class Version(NamedTuple):
    """State of an object: bytes, time of the last change in nanoseconds, and ETag ("" without).

    Where a server states an ETag or another hash and no time, `modified` is a number made of it, of
    at least `NO_TIME`: some places keep size and time alone.
    """

    size: int
    modified: int
    tag: str = ""

    def __str__(self) -> str:
        tag = f", ETag {self.tag}" if self.tag else ""
        time = f", changed at {self.modified / 1e9:.3f}" if self.modified < NO_TIME else ""
        return f"{self.size:,} bytes{time}{tag}"


class ListedName(NamedTuple):
    """A name below a folder, relative to it, and the bytes of a file (-1 if not known)."""

    name: str
    is_directory: bool
    size: int = -1


class OpenObject(Protocol):
    """An object that is open for reading ranges."""

    @property
    def version(self) -> Version:
        """The version that was opened."""

    def read(self, start: int, count: int) -> bytes:
        """Return `count` bytes at `start`; fewer if the server sends fewer."""


class Client(Protocol):
    """Requests on one file system. Thread-safe.

    Attributes
    ----------
    checks_ranges
        Whether an answer with another range, or with too few bytes, is an error.
    own_retries
        Requests that are repeated already before an error is raised.
    """

    checks_ranges: bool
    own_retries: OwnRetries

    def key(self, url: str) -> str:
        """Return the path of an object in the file system."""

    def kind(self, key: str) -> str:
        """Return "file" or "directory"; "" or a FileNotFoundError if there is none."""

    def version(self, key: str) -> Version:
        """Return the present version of an object."""

    def entries(self, key: str, *, recursive: bool = False) -> list[ListedName]:
        """Return the names in a folder, or the files below it; none if it does not exist."""

    def open(self, key: str) -> OpenObject:
        """Open an object."""

    def write(self, key: str, buffers: Sequence[Any]) -> None:
        """Write buffers as an object: readers see the former object, or all of the new one."""

    def delete(self, key: str) -> None:
        """Delete an object."""


def connect(scheme: str, url: str, options: Mapping[str, Any]) -> Client:
    """Return a client for the scheme of a URL.

    Raises
    ------
    ImportError
        A library is missing.
    TypeError, ValueError
        There is no such scheme or option.
    """
    known = SCHEMES.get(scheme, UNKNOWN)
    if known.client != "arrow":
        return _fsspec_client(scheme, url, options)
    bucket = url.partition("://")[2].partition("/")[0]
    return ArrowClient(_arrow_file_system(known.file_system, bucket, options))


def _arrow_file_system(kind: str, bucket: str, options: Mapping[str, Any]) -> Any:
    from pyarrow import fs

    if kind == "s3":
        return fs.S3FileSystem(**_s3_options(bucket, options))
    if kind == "gs":
        renamed = _renamed(options, {"anon": "anonymous", "project": "project_id"})
        # One request: the limit is over after it, and without a limit it would be 15 minutes.
        return fs.GcsFileSystem(**{"retry_time_limit": timedelta(milliseconds=1), **renamed})
    found = dict(options)
    _, at, host = bucket.rpartition("@")
    if at:
        found.setdefault("account_name", host.partition(".")[0])
    if not found.get("account_name"):
        raise ValueError(
            "the URL does not name a storage account; expected "
            "storage_options={'account_name': ...}, or a URL with the account after the "
            "container, as CONTAINER@ACCOUNT.dfs.core.windows.net"
        )
    return fs.AzureFileSystem(**found)


#: Names of options of s3fs, of object_store and of the AWS tools, and pyarrow's own.
_S3_NAMES = {
    "key": "access_key",
    "secret": "secret_key",
    "token": "session_token",
    "anon": "anonymous",
    "endpoint_url": "endpoint_override",
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "aws_region": "region",
    "region_name": "region",
    "aws_endpoint_url": "endpoint_override",
}


def _renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in options.items() if value is not None}


def _s3_options(bucket: str, options: Mapping[str, Any]) -> dict[str, Any]:
    from pyarrow import fs

    nested = options.get("client_kwargs") or {}
    plain = {name: value for name, value in options.items() if name != "client_kwargs"}
    found = _renamed({**nested, **plain}, _S3_NAMES)
    told = (os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    endpoint = found.get("endpoint_override") or next(filter(None, told), None)
    if endpoint and "://" in endpoint:
        found["scheme"], _, endpoint = endpoint.rstrip("/").partition("://")
    if endpoint:
        found["endpoint_override"] = endpoint
    regions = ("AWS_REGION", "AWS_DEFAULT_REGION")
    if not (endpoint or found.get("region") or any(os.environ.get(name) for name in regions)):
        found["region"] = fs.resolve_s3_region(bucket)
    found.setdefault("retry_strategy", fs.AwsStandardS3RetryStrategy(max_attempts=1))
    return found


class ArrowClient:
    """Requests by a file system of pyarrow."""

    def __init__(self, file_system: Any) -> None:
        self._fs = file_system
        self.checks_ranges = file_system.type_name in ("local", "mock")
        self.own_retries = _OWN_RETRIES.get(file_system.type_name, OwnRetries())

    def key(self, url: str) -> str:
        _, separator, rest = url.partition("://")
        if scheme_of(url).file_system == "abfs" and "@" in rest.partition("/")[0]:
            authority, _, path = rest.partition("/")
            rest = f"{authority.rpartition('@')[0]}/{path}"
        return (rest if separator else url).rstrip("/")

    def kind(self, key: str) -> str:
        from pyarrow.fs import FileType

        kind = self._fs.get_file_info(key).type
        return {FileType.File: "file", FileType.Directory: "directory"}.get(kind, "")

    def version(self, key: str) -> Version:
        with self._open(key) as file:
            return self._version(key, file)

    def _open(self, key: str) -> Any:
        """Open an object for reading."""
        file = self._fs.open_input_file(key)
        if file.closed:  # What Google's client makes of a failed first request for the content.
            raise ConnectionError("the client closed the object, whose first read failed")
        return file

    def _version(self, key: str, file: Any) -> Version:
        told = _metadata(file)
        tag = told.get("etag", "").strip('"')
        if tag and "last-modified" in told:
            return Version(file.size(), _nanoseconds(told["last-modified"]), tag)
        info = self._fs.get_file_info(key)
        return Version(file.size(), max(info.mtime_ns or 0, 0), tag)

    def entries(self, key: str, *, recursive: bool = False) -> list[ListedName]:
        from pyarrow.fs import FileSelector, FileType

        # pyarrow lists folders of Google Cloud Storage only where an object marks them.
        collapse = not recursive and self._fs.type_name == "gcs"
        found = self._fs.get_file_info(FileSelector(key, recursive=recursive or collapse))
        if collapse:
            return _collapsed(
                [
                    (_below(one.path, key), one.type == FileType.Directory, one.size or 0)
                    for one in found
                ]
            )
        return [
            ListedName(_below(one.path, key), one.type == FileType.Directory, one.size or 0)
            for one in found
            if not (recursive and one.type == FileType.Directory)
        ]

    def open(self, key: str) -> ArrowObject:
        file = self._open(key)
        return ArrowObject(file, self._version(key, file), self._fs, key)

    def write(self, key: str, buffers: Sequence[Any]) -> None:
        base, path = self._fs, key
        while base.type_name == "subtree":
            base, path = base.base_fs, base.base_path + path
        if base.type_name == "local":
            _write_local(path, buffers)
            return
        if base.type_name in ("mock", "hdfs"):  # others have no folders
            self._fs.create_dir(key.rpartition("/")[0], recursive=True)
        # Large objects are uploaded in parts, and appear when the stream is closed, which is the
        # only way to end it.
        try:
            with self._fs.open_output_stream(key, compression=None) as file:
                for buffer in buffers:
                    file.write(buffer)
        except BaseException:
            with suppress(OSError):
                self._fs.delete_file(key)
            raise

    def delete(self, key: str) -> None:
        self._fs.delete_file(key)


def _metadata(file: Any) -> dict[str, str]:
    """Return the metadata of an open object as text, with names in small letters."""
    pairs = dict(file.metadata() or {}).items()
    return {_text(name).lower(): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _collapsed(found: Iterable[tuple[str, bool, int]]) -> list[ListedName]:
    """Return the files and folders of a folder from all names below it, each once."""
    names: dict[str, ListedName] = {}
    for name, is_folder, size in found:
        first, _, rest = name.rstrip("/").partition("/")
        inside = bool(rest) or is_folder
        if first:  # Not the mark of the folder itself.
            names.setdefault(first, ListedName(first, inside, 0 if inside else size))
    return list(names.values())


class ArrowObject(NamedTuple):
    """An open file of pyarrow."""

    file: Any
    version: Version
    file_system: Any
    key: str

    def read(self, start: int, count: int) -> bytes:
        try:
            found: bytes = self.file.read_at(count, start)
        except OSError as error:
            # The text of an error that is longer than the range hides the error of the server.
            if "Failed to flush response stream" in str(error):
                self.file_system.open_input_file(self.key).close()
            raise
        return found


def _fsspec_client(scheme: str, url: str, options: Mapping[str, Any]) -> FsspecClient:
    try:
        import fsspec.core
    except ImportError as error:
        raise ImportError(f"{scheme}:// needs fsspec: pip install fsspec") from error
    found, of_scheme = dict(options), SCHEMES.get(scheme, UNKNOWN)
    try:
        fsspec.get_filesystem_class(scheme)
        if of_scheme.client == "web":
            found = options_of_web(found)
    except ValueError:
        of_arrow = [name for name, one in SCHEMES.items() if one.client == "arrow"]
        known = (*of_arrow, *fsspec.available_protocols())
        near = difflib.get_close_matches(scheme, known, cutoff=0.5)
        main = {one.file_system for one in SCHEMES.values() if one.client in ("arrow", "web")}
        expected = ", ".join(f"{name}://" for name in SCHEMES if name in main)
        hint = f"did you mean {near[0]}://?" if near else f"expected {expected}"
        raise ValueError(f"no file system has the scheme {scheme}://; {hint}") from None
    except ImportError as error:
        package = of_scheme.package
        cure = f"pip install {package}" if package else str(error)
        raise ImportError(f"{scheme}:// needs a package that is not installed: {cure}") from None
    file_system, _ = fsspec.core.url_to_fs(url, **found)
    # Of HTTP, `options_of_web` compares each range; the length is compared by the caller.
    return FsspecClient(file_system, checks_ranges=of_scheme.client == "web")


class FsspecClient:
    """Requests by a file system of fsspec."""

    def __init__(self, file_system: Any, *, checks_ranges: bool = False) -> None:
        self._fs = file_system
        protocols = set(_as_tuple(file_system.protocol))
        self._web, self._is_hub = "http" in protocols, "hf" in protocols
        known = protocols & _OWN_RETRIES.keys()
        self.own_retries = _OWN_RETRIES[known.pop()] if known else OwnRetries()
        self.checks_ranges = checks_ranges or not protocols.isdisjoint(("memory", "file"))

    def key(self, url: str) -> str:
        if self._web:
            scheme, _, rest = url.partition("://")
            authority, slash, path = rest.partition("/")
            path, mark, query = path.partition("?")
            return f"{scheme}://{authority}{slash}{quote(path, safe='/=+,:@~!$')}{mark}{query}"
        return str(self._fs._strip_protocol(url))

    def _info(self, key: str) -> dict[str, Any]:
        self._fs.invalidate_cache()
        found: dict[str, Any] = self._fs.info(key)
        if self._is_hub and found.keys() <= {"name", "size", "type"}:
            # It keeps what it was told for a moment, and another thread made it forget that.
            found = self._fs.info(key)
        return found

    def kind(self, key: str) -> str:
        info = self._info(key)
        # A web server lists a folder as a page.
        listed = self._web and (key.endswith("/") or info.get("mimetype") == "text/html")
        return "directory" if listed else str(info["type"])

    def version(self, key: str) -> Version:
        info = self._info(key)
        if info.get("type") == "directory":
            raise IsADirectoryError("it is a directory")
        if info.get("size") is None:
            raise ValueError("the server does not state its size")
        # The last of them are of Hugging Face and of Git.
        tags = ("ETag", "etag", "Content-MD5", "Digest", "blob_id", "xet_hash", "sha", "hex")
        tag = str(next((info[name] for name in tags if info.get(name)), "")).strip('"')
        times = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
        changed = next((info[name] for name in (*times, "uploaded_at") if info.get(name)), 0)
        modified = _nanoseconds(changed)
        if tag and not modified:
            number = hashlib.blake2b(tag.encode(), digest_size=7).digest()
            modified = NO_TIME + int.from_bytes(number, "little")
        return Version(int(info["size"]), modified, tag)

    def entries(self, key: str, *, recursive: bool = False) -> list[ListedName]:
        self._fs.invalidate_cache()
        if recursive:
            found = self._fs.find(key, detail=True).values()
        else:
            found = self._fs.ls(key, detail=True)
        listed = []
        for one in found:
            name = unquote(one["name"]) if self._web else one["name"]
            name = _below(name, unquote(key) if self._web else key)
            if name and not (self._web and ("?" in name or "://" in name)):
                size = one.get("size")
                size = -1 if size is None else int(size)
                listed.append(ListedName(name, one["type"] == "directory", size))
        return listed

    def open(self, key: str) -> FsspecObject:
        return FsspecObject(self._fs, key, self.version(key))

    def write(self, key: str, buffers: Sequence[Any]) -> None:
        if self._web:
            raise NotImplementedError("a web server takes no files")
        if (path := _local_path(self._fs, key)) is not None:
            _write_local(path, buffers)
            return
        content = b"".join(map(memoryview, buffers))
        try:
            self._fs.pipe_file(key, content)
        except FileNotFoundError:  # of a file system that has folders
            self._fs.makedirs(key.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(key, content)

    def delete(self, key: str) -> None:
        self._fs.invalidate_cache()
        self._fs.rm_file(key)


def _write_local(path: str, buffers: Sequence[Any]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_buffers(path, buffers)


def _local_path(fs: Any, key: str) -> str | None:
    """Return the path of a key of a local file system; None for others.

    A local file system of fsspec writes through links, and its files grow while they are read.
    """
    while "dir" in _as_tuple(fs.protocol):
        fs, key = fs.fs, f"{fs.path}/{key}"
    return str(fs._strip_protocol(key)) if "file" in _as_tuple(fs.protocol) else None


def _as_tuple(protocol: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


class FsspecObject(NamedTuple):
    """An object of a file system of fsspec."""

    file_system: Any
    key: str
    version: Version

    def read(self, start: int, count: int) -> bytes:
        found: bytes = self.file_system.cat_file(self.key, start=start, end=start + count)
        return found


def client_of(instance: Any) -> Client:
    """Return a client for a file system of pyarrow or fsspec."""
    from pyarrow.fs import FileSystem

    if isinstance(instance, FileSystem):
        handler = getattr(instance, "handler", None)
        if handler is not None and hasattr(handler, "fs"):
            return _client_of_fsspec(handler.fs)
        return ArrowClient(instance)
    if hasattr(instance, "cat_file") and hasattr(instance, "_strip_protocol"):
        return _client_of_fsspec(instance)
    raise TypeError(
        f"`filesystem` must be a file system of pyarrow.fs or fsspec, got a "
        f"{type(instance).__name__}"
    )


def _client_of_fsspec(instance: Any) -> FsspecClient:
    """Return a client; one of HTTP makes the requests of a copy, as those for URLs are made."""
    kind = type(instance)
    if (kind.__module__, kind.__name__) != ("fsspec.implementations.http", "HTTPFileSystem"):
        return FsspecClient(instance)
    options = options_of_web(instance.storage_options)
    return FsspecClient(kind(*instance.storage_args, **options), checks_ranges=True)


def _below(name: str, folder: str) -> str:
    """Return a name relative to a folder, "" if it is not below it."""
    name, folder = name.strip("/"), folder.strip("/")
    if not folder:
        return name
    return name[len(folder) + 1 :] if name.startswith(f"{folder}/") else ""


def _nanoseconds(moment: Any) -> int:
    """Return a time in nanoseconds since 1970: of a number of seconds, a datetime or a string."""
    if isinstance(moment, str):
        try:
            moment = parsedate_to_datetime(moment)
        except (TypeError, ValueError):
            try:
                moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
            except ValueError:
                return 0
    if isinstance(moment, datetime):
        moment = moment.timestamp()
    return max(int(float(moment) * 1e9), 0)
