"""Settings of connections to Redis: the options of a URL as arguments of redis-py."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from windeck._util.schemes import SCHEMES
from windeck.checkpoint.stores.store_url import StoreURL

__all__ = ["connection_settings", "database_number"]

_OPTIONS = ("timeout", "allow_eviction", "sync")
_TLS = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}


def connection_settings(url: StoreURL) -> dict[str, Any]:
    """Return the arguments of a redis-py client; raise ValueError for a URL without server."""
    url.only(*_OPTIONS, *(("db",) if SCHEMES[url.scheme].is_socket else _TLS))
    timeout = url.number("timeout", 30.0)
    settings: dict[str, Any] = {
        **(_socket_of(url) if SCHEMES[url.scheme].is_socket else _host_of(url, timeout)),
        "username": url.user or None,
        "password": url.password or None,
        "socket_timeout": timeout,
        # redis-py must not send a command again: compare_and_set could be done twice. Others are
        # repeated by `windeck._util.retry.COMMANDS`.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # version 3 needs more round trips to connect
    }
    if hasattr(redis, "DriverInfo"):  # otherwise redis-py reads it from files for each client
        settings["driver_info"] = redis.DriverInfo(lib_version=redis.__version__)
    return settings


def database_number(url: StoreURL) -> int:
    """Return the number of the database; raise ValueError if it is not one."""
    local = SCHEMES[url.scheme].is_socket
    number = url.options.get("db", "0") if local else url.path.strip("/") or "0"
    if not (number.isascii() and number.isdigit() and len(number) < 6):
        where = "as ?db= in" if local else "after the host of"
        raise ValueError(
            f"expected the number of a database {where} a {url.scheme}:// URL, such as "
            f"{'?db=0' if local else '/0'}"
        )
    return int(number)


def _host_of(url: StoreURL, timeout: float) -> dict[str, Any]:
    if not url.host:
        raise ValueError(f"expected a host in {url}, such as {url.scheme}://localhost:6379/0")
    settings: dict[str, Any] = {
        "host": url.host,
        "port": url.port or 6379,
        "socket_connect_timeout": min(timeout, 10.0),
    }
    if SCHEMES[url.scheme].has_tls:
        settings["ssl"] = True
        settings.update((_TLS[name], url.options[name]) for name in _TLS if name in url.options)
    elif given := sorted(_TLS.keys() & url.options.keys()):
        raise ValueError(f"the option {given[0]!r} is one of TLS: expected rediss:// in {url}")
    return settings


def _socket_of(url: StoreURL) -> dict[str, Any]:
    if "\0" in url.path:  # the kernel would cut the path there
        raise ValueError(f"expected a path without a NUL character in a {url.scheme}:// URL")
    if url.host or url.port is not None or not url.path.strip("/"):
        raise ValueError(
            f"expected the absolute path of a socket in {url}, such as "
            f"{url.scheme}:///run/redis/redis.sock"
        )
    return {"unix_socket_path": url.path}
