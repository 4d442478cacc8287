"""Time of an epoch over files in an object store, 50 ms away and at 20 MB/s."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from measure import Row, ratio_of, seconds
from pyarrow import feather, fs, parquet

import windeck as wd

LATENCY, RATE = 0.05, 20e6
FILES, ROWS, COLUMNS = 4, 200_000, 10
#: Rows of a record batch or row group. A block has 250 kB, and blocks cut larger batches.
PART_ROWS = {"Arrow": 3_000, "Parquet": 12_500}
BATCH, ROUNDS, IN_FLIGHT, RANGE = 256, 3, 8, 1 << 20


class Line:
    """A line to a server that delays each way by half of the latency and limits all answers."""

    def __init__(self, port: int) -> None:
        self._target, self._free, self.bytes = port, 0.0, 0
        self.loop = asyncio.new_event_loop()
        self.port = 0
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()

    def calm(self) -> None:
        """Wait until nothing is sent."""
        before = -1
        while before != self.bytes:
            before = self.bytes
            time.sleep(0.5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(
            self._pump(reader, back, limited=False), self._pump(there, writer, limited=True)
        )

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, limited: bool
    ) -> None:
        """Copy bytes, each after the latency; answers share one rate."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def send() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(max(due - time.monotonic(), 0))
                if not data:
                    target.close()
                    return
                target.write(data)
                await target.drain()

        sender = asyncio.create_task(send())
        try:
            while data := await source.read(1 << 15):
                if limited:
                    self.bytes += len(data)
                    self._free = max(self._free, time.monotonic()) + len(data) / RATE
                    await asyncio.sleep(max(self._free - time.monotonic(), 0))
                await waiting.put((time.monotonic() + LATENCY / 2, data))
        except ConnectionError:
            pass
        await waiting.put((time.monotonic(), b""))
        await sender


@contextmanager
def store() -> Iterator[int]:
    """Give the port of an S3 server of moto, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(900):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        server.kill()
        server.wait()


def client(port: int) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        access_key="a", secret_key="b", endpoint_override=f"127.0.0.1:{port}", scheme="http",
        region="us-east-1", allow_bucket_creation=True,
    )  # fmt: skip


def rows() -> Iterator[Row]:
    with store() as port, tempfile.TemporaryDirectory() as folder:
        direct, line = client(port), Line(port)
        direct.create_dir("bench")
        draw = np.random.default_rng(0)
        for kind in ("Arrow", "Parquet"):
            for number in range(FILES):
                data = pa.table({f"c{c}": draw.normal(size=ROWS) for c in range(COLUMNS)})
                path = Path(folder) / f"part{number}"
                if kind == "Arrow":
                    path = path.with_suffix(".arrow")
                    feather.write_feather(
                        data, path, compression="uncompressed", chunksize=PART_ROWS[kind]
                    )
                else:
                    path = path.with_suffix(".parquet")
                    parquet.write_table(
                        data, path, row_group_size=PART_ROWS[kind], use_dictionary=False
                    )
                with direct.open_output_stream(f"bench/{kind}/{path.name}") as out:
                    out.write(path.read_bytes())
            yield from of_kind(kind, direct, client(line.port), line)


def of_kind(
    kind: str, direct: fs.S3FileSystem, remote: fs.S3FileSystem, line: Line
) -> Iterator[Row]:
    nbytes = FILES * ROWS * COLUMNS * 8
    table = wd.Table.read(
        f"s3://bench/{kind}", in_memory=False, memory_budget=nbytes // 2, group_bytes=nbytes // 8,
        storage_options={"key": "a", "secret": "b", "endpoint_url": f"http://127.0.0.1:{line.port}",
                         "region": "us-east-1"},
    )  # fmt: skip
    options = {"context_length": 48, "prediction_length": 16, "stride": 16}
    windows = wd.Windows(table, **options)
    near = wd.Table.read(f"bench/{kind}", filesystem=direct)
    expected = wd.Windows(near, **options)
    loader = wd.Loader(windows, batch_size=BATCH, shuffle=True)
    twin = wd.Loader(expected, batch_size=BATCH, order=windows.default_order)
    for one, other in zip(loader, twin, strict=True):  # also reads what is kept of row groups
        assert (one["start"] == other["start"]).all()
        assert (one["past_target"] == other["past_target"]).all()

    def epoch() -> None:
        for _ in loader:
            pass

    def calm() -> None:
        """Drop groups, and wait until nothing is read."""
        windows.expect([], None)
        line.calm()

    def download() -> None:
        for info in remote.get_file_info(fs.FileSelector(f"bench/{kind}")):
            with remote.open_input_file(info.path) as file, ThreadPoolExecutor(IN_FLIGHT) as pool:
                list(pool.map(lambda at, f=file: f.read_at(RANGE, at), range(0, info.size, RANGE)))

    pairs = []
    for _ in range(ROUNDS):
        calm()
        ours = seconds(epoch)
        calm()
        pairs.append((ours, seconds(download)))
    yield Row(
        question=f"{kind}: epoch over {nbytes / 1e6:.0f} MB in S3, 50 ms away, 20 MB/s",
        ours="Loader(shuffle=True)",
        rival=f"download of the same objects, {IN_FLIGHT} requests in flight",
        ratio=ratio_of(pairs),
        needed=0.85,
        bound="bandwidth",
    )
