"""What a service does over a server whose answers have no end.

`python -m tests.real.endless_answers` prints for each shape: what a client got, the bytes that the
server got rid of, by how much the service's memory grew, and the slowest health check meanwhile.
The server is another process.
"""

from __future__ import annotations

import asyncio
import gzip
import multiprocessing
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import httpx

from tests.orchestrator.serving import HTTP, post, service, serving
from workers.embedded.checkpoints import resolve
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.vllm import VLLM
from workers.remote.server import Server
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

STREAM, JSON = "content-type: text/event-stream", "content-type: application/json"
ZEROS = 300 << 20
PIECE = 1 << 16
SHAPES = {
    "a whole answer": (JSON, b'{"choices": [{"text": "', b"a"),
    "deep JSON": (JSON, b"", b"["),
    "a line": (STREAM, b"data: ", b"a"),
    "comments": (STREAM, b"", b": ping\n\n"),
    "empty lines": (STREAM, b"", b"\r"),
    "lines of one event": (STREAM, b"", b"data: a\n"),
    "empty chunks": (STREAM, b"", b'data: {"choices": []}\n\n'),
    "a gzip bomb": (f"{JSON}\r\ncontent-encoding: gzip", b"", b""),
    "a gzip bomb as a stream": (f"{STREAM}\r\ncontent-encoding: gzip", b"", b""),
    "a header": ("x: ", b"", b"a"),
}


def endless(told: Connection) -> None:
    """A server whose path names the shape of its answers; tells its port, and bytes by request."""
    bomb = gzip.compress(bytes(ZEROS), 9)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = 0
        with suppress(OSError, EOFError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            place = re.match(r"\w+ /(\d+)/", head)
            assert place is not None
            header, begin, again = list(SHAPES.values())[int(place[1])]
            writer.write(f"HTTP/1.1 200 OK\r\n{header}".encode())
            if header != "x: ":
                writer.write(b"\r\n\r\n" + begin)
            if "gzip" in header:
                writer.write(bomb)
            piece = again * (PIECE // max(1, len(again)))
            while piece:
                await writer.drain()
                writer.write(piece)
                sent += len(piece)
            await writer.drain()
        told.send(sent)
        writer.close()

    async def run() -> None:
        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        told.send(listening.sockets[0].getsockname()[1])
        await listening.serve_forever()

    asyncio.run(run())


def memory() -> int:
    """Bytes of this process that lie in memory."""
    found = re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@contextmanager
def watched(url: str) -> Iterator[list[tuple[int, float]]]:
    """(memory, seconds of a health check), again and again."""
    seen: list[tuple[int, float]] = []
    done = threading.Event()

    def watch() -> None:
        with httpx.Client(verify=False, trust_env=False) as client:
            while not done.wait(0.02):
                began = time.perf_counter()
                client.get(f"{url}/health", timeout=30).raise_for_status()
                seen.append((memory(), time.perf_counter() - began))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def main() -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=endless, args=(there,))
    process.start()
    try:
        port, tokenizer = here.recv(), load_tokenizer(resolve("embedded:small"))
        print(f"{'shape':<26}{'status':>7}{'sent':>12}{'memory':>12}{'/health':>12}")
        for place, name in enumerate(SHAPES):
            server = Server(f"http://127.0.0.1:{port}/{place}/v1", retries=0)
            worker = ModelWorker(RemoteBackend(server, "m", tokenizer, context=1024))
            worker.backend._capabilities = ServerCapabilities("ids", VLLM, top=20)
            with serving(service(worker, worker, default="large-only")) as url:
                HTTP.get(f"{url}/health")
                before = memory()
                with watched(url) as seen:
                    reply = post(url, {"max_tokens": 400})
                    time.sleep(0.5)
                sent = 0
                while here.poll(0.5):
                    sent += here.recv()
                grown = max(size for size, _ in seen) - before
                slowest = max(seconds for _, seconds in seen)
                print(
                    f"{name:<26}{reply.status_code:>7}{sent / 1e6:>9.1f} MB{grown / 1e6:>9.1f} MB"
                    f"{slowest * 1e3:>9.0f} ms"
                )
    finally:
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
