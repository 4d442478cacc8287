"""A fake Redis server on a real socket, which answers some commands wrongly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

#: What a server says when it is opened, enough for a client to go on.
INFO = b"redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:0\r\n"


def accepting(serve: Callable[[socket.socket], None]) -> socket.socket:
    """Return a listener on loopback that serves each client in a thread, until it is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


class Played:
    """A fake Redis server on loopback, with chosen answers to some commands.

    Parameters
    ----------
    answers
        By name of a command, a function of its arguments that returns the bytes to send, or None to
        close the connection.
    """

    def __init__(self, **answers: Callable[[list[bytes]], bytes | None]) -> None:
        self.listener = accepting(self._serve)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.data: dict[bytes, bytes] = {}
        self.seen: list[bytes] = []
        self.answers = answers

    def close(self) -> None:
        self.listener.close()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            try:
                while first := lines.readline():
                    words = []
                    for _ in range(int(first[1:])):
                        size = int(lines.readline()[1:])
                        words.append(lines.read(size + 2)[:-2])
                    answer = self._answer(words)
                    if answer is None:
                        return
                    client.sendall(answer)
                    if isinstance(answer, Last):
                        return
            except OSError:
                return

    def _answer(self, words: list[bytes]) -> bytes | None:
        name = words[0].decode().upper()
        self.seen.append(words[0].upper())
        if name in self.answers:
            return self.answers[name](words)
        if name == "HELLO":
            return b"%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n:3\r\n"
        if name == "INFO":
            return bulk(INFO)
        if name == "GET":
            return bulk(self.data.get(words[1]))
        if name == "MGET":
            return b"*%d\r\n" % len(words[1:]) + b"".join(bulk(self.data.get(k)) for k in words[1:])
        if name == "SET":
            self.data[words[1]] = words[2]
        if name == "MSET":
            self.data.update(zip(words[1::2], words[2::2], strict=True))
        return b"+PONG\r\n" if name == "PING" else b"+OK\r\n"


def bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


@contextmanager
def played(**answers: Callable[[list[bytes]], bytes | None]) -> Iterator[Played]:
    with closing(Played(**answers)) as server:
        yield server


class Last(bytes):
    """An answer after which the server closes the connection."""


class Turns:
    """Answers to send one after the other; after the last of them the usual one."""

    def __init__(self, server: Played, *answers: bytes | None) -> None:
        self._server, self._answers = server, list(answers)

    def __call__(self, words: list[bytes]) -> bytes | None:
        if self._answers:
            found = self._answers.pop(0)
            if found != b"usual":
                return found
        return bulk(self._server.data.get(words[1]))


class Cut:
    """Answers that stop in the middle of one value, where the server closes the connection."""

    def __init__(self, server: Played, turn: int) -> None:
        self._server, self._left = server, turn + 1

    def __call__(self, words: list[bytes]) -> bytes | None:
        self._left -= 1
        if self._left == 0:
            return Last(bulk(self._server.data[words[1]])[:50])
        return bulk(self._server.data.get(words[1]))


@contextmanager
def trickling(port: int) -> Iterator[int]:
    """Yield the port of a proxy that delivers answers a few bytes at a time, first one by one."""

    def back(server: socket.socket, client: socket.socket) -> None:
        sizes = [1, 2, 3, 7, 1, 1, 1, 50, 2000]
        at = 0
        try:
            while data := server.recv(sizes[at % len(sizes)]):
                client.sendall(data)
                at += 1
        except OSError:
            return

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=back, args=(server, client), daemon=True).start()
            try:
                while data := client.recv(1 << 16):
                    server.sendall(data)
            except OSError:
                return

    with closing(accepting(serve)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def losing_answers(port: int, word: bytes) -> Iterator[int]:
    """Yield the port of a proxy that hangs up instead of answering requests with `word`."""

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            while data := client.recv(1 << 20):
                server.sendall(data)
                answer = server.recv(1 << 20)
                if word in data:
                    return
                client.sendall(answer)

    with closing(accepting(serve)) as listener:
        yield listener.getsockname()[1]
