"""Paths on remote file systems: `RemotePath`, a string that knows its file system, and requests.

`windeck.io.filesystem` is the interface of the package to local and remote files. The schemes of
URLs are in `windeck._util.schemes`, the clients that read them in `windeck.io.clients`. How often,
and after which pauses, a request is repeated is in `windeck._util.retry`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from weakref import WeakValueDictionary

from windeck._util import retry
from windeck._util.schemes import SCHEMES, UNKNOWN
from windeck.io.clients import Client, WrongAnswer, client_of, connect

__all__ = ["Mount", "RemotePath", "is_url", "mount_url", "without_credentials"]

T = TypeVar("T")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(path: object) -> bool:
    """Return True for text that begins with a scheme, such as ``s3://bucket/key``."""
    return isinstance(path, str) and _URL.match(path) is not None


#: 416 is for a range that is not in the object, but only ranges inside of it are asked for.
_TRANSIENT_STATUS = {408, 416, 425, 429}
_DENIED = re.compile(
    r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|EXPIRED_?TOKEN"
    r"|ExpiredToken|INVALID_?TOKEN|REQUEST_EXPIRED|REQUEST_?TIME_?TOO_?SKEWED|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION"
    r"|InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed|HTTP status (401|403)"
    r"|HTTP (response code|error) (401|403)",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"NO_SUCH_BUCKET|NO_SUCH_KEY|RESOURCE_NOT_FOUND|NoSuchBucket|NoSuchKey|ContainerNotFound|BlobNotFound"
    r"|bucket '[^']*' not found|HTTP status 404|^No such file or directory '",
    re.IGNORECASE,
)
_STATUS = re.compile(
    r"(?:HTTP (?:status(?: code:)?|response code|error)|\[HTTP/[\d.]+|Azure Error: \[\w*\])"
    r" (\d{3})",
    re.IGNORECASE,
)

#: XML or JSON of a server in an error of Google's client, which does not name its status.
_QUOTED_ANSWER = re.compile(r"google::cloud::Status\(.* message of \s*[<{]")


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of any client, None if it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # of botocore
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif isinstance(getattr(response, "status_code", None), int):  # of requests and httpx
        found = response.status_code  # type: ignore[union-attr]
    elif type(error).__module__.startswith("aiohttp"):
        found = getattr(error, "status", None)  # The code of others is no answer of a server.
    else:
        found = getattr(error, "status", None) or getattr(error, "code", None)
    if isinstance(found, (int, str)) and str(found).isdigit():
        return int(found)
    text = _STATUS.search(str(error)) if isinstance(error, OSError) else None
    return int(text[1]) if text else None


def _is_answer(error: Exception) -> bool:
    """Return True if a server has answered: by a status, or in Google's words."""
    error = _of_request(error)
    quoted = isinstance(error, OSError) and _QUOTED_ANSWER.search(str(error)) is not None
    return quoted or _status(error) is not None


def _classify(error: Exception) -> str:
    """Return "missing", "forbidden", "transient", or "" for another error."""
    error = _of_request(error)
    status, text = _status(error), str(error)
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and _DENIED.search(text)):
        return "forbidden"
    if status is not None:
        if status in (404, 410):
            return "missing"
        if status in (401, 403, 407):
            return "forbidden"
        return "transient" if status in _TRANSIENT_STATUS or status >= 500 else ""
    if isinstance(error, FileNotFoundError) or (
        isinstance(error, OSError) and _MISSING.search(text)
    ):
        return "missing"
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return ""
    known = isinstance(error, (OSError, TimeoutError, EOFError, WrongAnswer))
    return "transient" if known or _is_of_network(error) else ""


def _of_request(error: Exception) -> Exception:
    """Return the error of the request where fsspec reports it as a missing file, as all of HTTP."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or _status(error) is not None:
        return error
    return cause if isinstance(cause, Exception) and _is_of_network(cause) else error


def _is_of_network(error: Exception) -> bool:
    # Before Python 3.11, the TimeoutError of asyncio is another class; fsspec's is one of those.
    late = any(kind.__name__ == "TimeoutError" for kind in type(error).__mro__)
    known = late or isinstance(error, (ConnectionError, WrongAnswer))
    return known or type(error).__module__.startswith(("aiohttp", "httpx"))


_SIGNED = re.compile(
    r"(?i)((?:[\w-]*(?:signature|credential|token|secret|password|accesskeyid|api[_-]?key)[\w-]*"
    r"|sig)=)[^&\s'\"]+"
)
_USERINFO = re.compile(r"(\w://)[^/@\s'\"]+@")


def without_credentials(text: str) -> str:
    """Return text whose URLs have no user, password or signature."""
    return _SIGNED.sub(r"\1***", _USERINFO.sub(r"\1***@", text))


class Mount:
    """A file system with its options, as the paths on it hold it. Thread-safe.

    A pickle has no credentials, unless it is made to start a process of multiprocessing. In the
    process that made it and in its forks, a pickle gives the same object again; elsewhere a file
    system that needs credentials cannot be used and says so.

    Parameters
    ----------
    scheme
        Scheme of the URL, "" for a path on an instance.
    prefix, hidden_prefix
        What URLs begin with, without and with user and password.
    suffix
        Query of a URL of a web server, with its question mark.
    options
        Options for the client.
    instance
        A file system of pyarrow or fsspec, instead.
    """

    def __init__(
        self,
        scheme: str,
        prefix: str,
        *,
        hidden_prefix: str | None = None,
        suffix: str = "",
        options: Mapping[str, Any] | None = None,
        instance: Any = None,
        cache: Any = None,
        token: str = "",
    ) -> None:
        self.scheme, self.prefix, self.cache = scheme, prefix, cache
        self._hidden = (hidden_prefix if hidden_prefix is not None else prefix, suffix)
        self._options, self._instance = dict(options or {}), instance
        self._missing: tuple[str, ...] = ()
        # Clients do not survive a fork. Those of the parent are kept: closing one may block.
        self._clients: dict[int, Client] = {}
        self._has_answered = False
        self.token = token or secrets.token_hex(16)
        _MOUNTS[self.token] = self

    def __repr__(self) -> str:
        return f"<Mount: {self.prefix or type(self._instance).__name__}>"

    @property
    def client(self) -> Client:
        """The client of this process."""
        found = self._clients.get(os.getpid())
        if found is None:
            if self._missing:
                raise PermissionError(
                    f"{self.prefix!r} was pickled without {' and '.join(self._missing)}, which may "
                    "hold credentials; expected it to be opened again in this process"
                )
            found = self._clients.setdefault(os.getpid(), self._connect())
        return found

    def _connect(self) -> Client:
        if self._instance is not None:
            instance = self._instance
            if any(pid != os.getpid() for pid in self._clients):  # after a fork
                instance = pickle.loads(pickle.dumps(instance))
            return client_of(instance)
        return connect(self.scheme, self._hidden[0], self._options)

    def key(self, url: str) -> str:
        """Return the path of a URL in the file system, with credentials."""
        return self.client.key(self._hidden[0] + url[len(self.prefix) :] + self._hidden[1])

    @cached_property
    def identity(self) -> str:
        """Digest of the properties that tell this file system from others, no credentials."""
        public = sorted((k, str(v)) for k, v in self._options.items() if _is_public(k, v))
        told = (self.scheme, public, self._hidden[1], _instance_identity(self._instance))
        return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()

    def redact(self, text: str) -> str:
        """Return text without the credentials of this file system."""
        options = {**self._options, "filesystem": getattr(self._instance, "storage_options", {})}
        hidden = [value for name, value in _flat(options) if not _is_public(name, value)]
        parts = urlsplit(self._hidden[0]) if _URL.match(self._hidden[0]) else None
        if parts is not None:
            hidden += [parts.password or "", parts.username or ""]
        hidden += [self._hidden[1], self._hidden[1].lstrip("?")]
        for secret in sorted((one for one in hidden if len(one) > 3), key=len, reverse=True):
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
        return without_credentials(text)

    def attempt(
        self,
        path: str,
        operation: str,
        call: Callable[[], T],
        catch: type[Exception] = Exception,
    ) -> T:
        """Return the result of a request, repeated while it fails for a passing reason.

        Errors that are not of type `catch` are raised as they are.

        Raises
        ------
        FileNotFoundError, PermissionError
            The object does not exist or is forbidden. Not repeated.
        ConnectionError
            All attempts failed.
        OSError
            The request failed for another reason. Not repeated.
        """
        policy, began, requests = retry.REQUESTS, time.monotonic(), 0
        for _ in policy.attempts():
            try:
                found = call()
            except catch as error:
                kind, reason = _classify(error), self.redact(_reason(error))
                other = next((one for one in _KEPT_ERRORS if isinstance(error, one)), OSError)
                self._has_answered |= kind in ("missing", "forbidden") or _is_answer(error)
                requests += self._requests(operation, error)
            else:
                self._has_answered = True
                return found
            if not self._has_answered and _NO_CREDENTIALS.search(reason):
                kind, reason = "forbidden", "no credentials were found"
            late = not self._has_answered and time.monotonic() - began > retry.FIRST_ANSWER_SECONDS
            if kind != "transient" or requests >= policy.most_attempts or late:
                break
        if not self._has_answered and kind == "transient":
            reason += f"; {_UNREACHED}"
        # Outside of the block above: errors of a client may hold credentials, and none of them is
        # the context of this one.
        raise _failure(path, operation, kind, reason, requests, other)

    def _requests(self, operation: str, error: Exception) -> int:
        """Return the number of requests of an attempt that failed."""
        client = self._clients.get(os.getpid())
        if client is None or isinstance(error, WrongAnswer):
            return 1
        return client.own_retries.requests(operation, _status(_of_request(error)))

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.context import get_spawning_popen

        public = {name: value for name, value in self._options.items() if _is_public(name, value)}
        everything = get_spawning_popen() is not None
        missing = []
        if not everything:
            missing += [
                f"storage_options[{name!r}]" for name in self._options if name not in public
            ]
            missing += ["filesystem="] if self._instance is not None else []
            missing += ["the user of the URL"] if self._hidden[0] != self.prefix else []
            missing += ["the query of the URL"] if self._hidden[1] else []
        state = {
            "scheme": self.scheme,
            "prefix": self.prefix,
            "cache": self.cache,
            "options": self._options if everything else public,
            "instance": self._instance if everything else None,
            "hidden_prefix": self._hidden[0] if everything else None,
            "suffix": self._hidden[1] if everything else "",
        }
        return _unpickled, (self.token, state, tuple(missing) or self._missing)


#: What Google's client says where it finds no credentials.
_NO_CREDENTIALS = re.compile("Could not create a OAuth2 access token")
_UNREACHED = (
    "no server has answered yet: expected a network, and the right host, endpoint and region"
)
_KEPT_ERRORS = (ImportError, MemoryError, NotImplementedError, TypeError, ValueError)


def _failure(
    path: str, operation: str, kind: str, reason: str, attempts: int, other: type[Exception]
) -> Exception:
    """Return the error for a request that failed."""
    if kind == "missing":
        return FileNotFoundError(f"{path!r} does not exist: cannot {operation} it ({reason})")
    if kind == "forbidden":
        return PermissionError(
            f"cannot {operation} {path!r}: access is denied ({reason}); expected credentials in "
            "`storage_options` or the environment, or {'anonymous': True} for public data"
        )
    if kind == "transient":
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return ConnectionError(f"cannot {operation} {path!r}: {tries} failed, the last: {reason}")
    return other(f"cannot {operation} {path!r}: {reason}")


_MOUNTS: WeakValueDictionary[str, Mount] = WeakValueDictionary()


def _unpickled(token: str, state: dict[str, Any], missing: tuple[str, ...]) -> Mount:
    found = _MOUNTS.get(token)
    if found is None:
        found = Mount(token=token, **state)
        found._missing = missing
    return found


def _reason(error: Exception) -> str:
    """Return the first line of an error, or its type if it has no text."""
    cause = error
    while isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    if isinstance(cause, WrongAnswer):
        return str(cause)
    status, text = _status(cause), str(cause).strip().split("\n")[0][:300]
    told = text or type(cause).__name__
    return told if status is None or str(status) in told else f"HTTP status {status}, {told}"


def _flat(options: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the strings among options and options of options, each with its name."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat({str(key): one for key, one in value.items()})
        elif isinstance(value, str):
            yield name, value


class RemotePath(str):
    """A URL without credentials, as text, and its file system."""

    __slots__ = ("contents", "mount")
    mount: Mount
    #: Contents of the object as a pyarrow buffer once it has been loaded, else None.
    contents: Any

    def __new__(cls, text: str, mount: Mount, contents: Any = None) -> RemotePath:
        self = super().__new__(cls, text)
        self.mount, self.contents = mount, contents
        return self

    @property
    def key(self) -> str:
        """The path in the file system, with credentials of a URL."""
        return self.mount.key(str(self))

    def join_name(self, name: str) -> RemotePath:
        """Return the path of a name below this one."""
        return RemotePath(f"{self.rstrip('/')}/{name}" if name else str(self), self.mount)

    def attempt(
        self,
        operation: str,
        call: Callable[[Client, str], T],
        catch: type[Exception] = Exception,
    ) -> T:
        """Return the result of a request on this path; see `Mount.attempt`."""
        mount = self.mount
        return mount.attempt(self, operation, lambda: call(mount.client, self.key), catch)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath, (str(self), self.mount)


#: Options that are no credentials: shown in messages, and what tells caches of servers apart.
_PUBLIC = frozenset(
    (
        *("region", "scheme", "anonymous", "anon", "endpoint_override", "endpoint_url", "endpoint"),
        *("connect_timeout", "request_timeout", "force_virtual_addressing"),
        *("account_name", "account_host", "blob_storage_authority", "blob_storage_scheme"),
        *("dfs_storage_authority", "dfs_storage_scheme"),
        *("project_id", "default_bucket_location", "retry_time_limit"),
    )
)


def _is_public(name: str, value: Any) -> bool:
    """Return whether an option is no credential, and has none before the host of a URL."""
    return name in _PUBLIC and "@" not in str(value)


def mount_url(
    url: str,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: Any = None,
) -> RemotePath:
    """Return a path with the file system of a URL, or of an instance."""
    options = dict(storage_options or {})
    if filesystem is not None:
        if options:
            raise ValueError("pass either `filesystem` or `storage_options`, got both")
        return RemotePath(url, Mount("", "", instance=filesystem, cache=cache))
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    authority, slash, path = rest.partition("/")
    userinfo, at, host = authority.rpartition("@")
    # The container of abfs://container@account.dfs.core.windows.net is not a credential.
    known = SCHEMES.get(scheme, UNKNOWN)
    private = bool(at) and (":" in userinfo or known.file_system != "abfs")
    suffix = ""
    query = re.search(r"\?[\w.-]+=", path)
    if known.client == "web":
        path, mark, query_text = path.partition("?")
        suffix = mark + query_text
        path = unquote(path)
    elif query is not None:
        options = {**dict(parse_qsl(path[query.start() + 1 :])), **options}
        path = path[: query.start()]
    if known.file_system == "s3" and private:
        user, _, password = userinfo.partition(":")
        options = {"access_key": unquote(user), "secret_key": unquote(password), **options}
        authority, private = host, False
    shown = host if private else authority
    prefix, hidden = f"{scheme}://{shown}", f"{scheme}://{authority}"
    mount = Mount(scheme, prefix, hidden_prefix=hidden, suffix=suffix, options=options, cache=cache)
    return RemotePath(f"{prefix}{slash}{path}", mount)


def _instance_identity(instance: Any) -> str:
    """Return the properties that tell an instance from others of its type, no credentials."""
    if instance is None:
        return ""
    told: Any = getattr(instance, "storage_options", None)
    if told is None and hasattr(instance, "__reduce__"):
        arguments = instance.__reduce__()
        told = next((one for one in arguments[1] if isinstance(one, dict)), {})
    public = sorted((k, str(v)) for k, v in dict(told or {}).items() if _is_public(k, v))
    return f"{type(instance).__name__}{public}"
