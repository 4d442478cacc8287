"""Requests of aiohttp to web servers: bounded answers, and headers of the user for one origin."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any

__all__ = ["WrongAnswer", "options_of_web"]


class WrongAnswer(Exception):
    """An answer of a server that is not what was asked for."""


#: Bytes of an answer that is not a range, such as a listing.
PAGE_BYTES = 1 << 26
#: Headers that do not come from the user.
_OUR_HEADERS = {"range", "accept", "accept-encoding"}

#: Origin of the URL that was asked for, in the task of a request.
_asked_origin: ContextVar[Any] = ContextVar("asked_origin", default=None)


def options_of_web(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of fsspec's HTTP file system with timeouts, bounds and a check of answers.

    Headers, cookies and credentials among the options are sent to the origin of a URL (scheme, host
    and port), and not to another one to which a server redirects.
    """
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(_note_origin)
    trace.on_request_end.append(_check_answer)
    given = options.get("client_kwargs") or {}
    request, response = _classes()
    client = {
        "timeout": aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30),
        "trust_env": True,
        **given,
        # A server may not compress: ranges are those of the object as it is.
        "headers": {**(given.get("headers") or {}), "Accept-Encoding": "identity"},
        "auto_decompress": False,
        "request_class": request,
        "response_class": response,
        "trace_configs": [*given.get("trace_configs", ()), trace],
    }
    return {**options, "client_kwargs": client, "skip_instance_cache": True}


async def _note_origin(session: Any, context: Any, parameters: Any) -> None:
    _asked_origin.set(parameters.url.origin())


async def _check_answer(session: Any, context: Any, parameters: Any) -> None:
    """Raise an error for an answer with another range than the one that was asked for."""
    asked, answer = parameters.headers.get("Range"), parameters.response
    if asked is None or answer.status >= 300:
        return
    found = answer.headers.get("Content-Range", "")
    if answer.status != 206 or found.partition("/")[0] != asked.replace("=", " "):
        answer.close()
        raise WrongAnswer(
            f"the server answered {found or 'the whole object'!r} with status {answer.status}, "
            f"expected {asked!r}"
        )


@cache
def _classes() -> tuple[type, type]:
    """Return the classes of requests and of responses."""
    import aiohttp

    class Request(aiohttp.ClientRequest):
        """A request that has headers of the user only for the origin that was asked for."""

        def __init__(self, method: str, url: Any, **options: Any) -> None:
            if url.origin() != _asked_origin.get():
                headers = options.get("headers") or {}
                kept = [(k, v) for k, v in headers.items() if k.lower() in _OUR_HEADERS]
                options |= {"headers": dict(kept), "cookies": None, "auth": None}
            super().__init__(method, url, **options)

    class Response(aiohttp.ClientResponse):
        """A response of which no more is read than was asked for, or `PAGE_BYTES`."""

        async def read(self) -> bytes:
            if self._body is None:
                try:
                    self._body = await self._bounded()
                except BaseException:
                    self.close()
                    raise
            return self._body

        async def _bounded(self) -> bytes:
            most, body = _most_bytes(self), bytearray()
            async for portion in self.content.iter_chunked(1 << 16):
                body += portion
                if len(body) <= most:
                    continue
                if self.status >= 400:  # The text of an error.
                    break
                raise WrongAnswer(
                    f"the server sent more than the {most:,} bytes that were expected"
                )
            if self.status != 206 and "gzip" in self.headers.get("Content-Encoding", ""):
                return zlib.decompressobj(wbits=31).decompress(bytes(body), PAGE_BYTES)
            return bytes(body)

    return Request, Response


def _most_bytes(answer: Any) -> int:
    """Return the bytes that an answer may have."""
    asked = answer.request_info.headers.get("Range", "")
    if answer.status != 206 or not asked:
        return PAGE_BYTES
    start, _, stop = asked.removeprefix("bytes=").partition("-")
    return int(stop) - int(start) + 1
