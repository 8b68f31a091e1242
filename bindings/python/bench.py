"""Measures a server's CPU time for each message: sinews against picows and websockets.

Each server runs in a process of its own. A load generator on plain sockets sends bursts of masked frames on all
connections, and waits for all echoes. Rounds of the servers alternate; the table has the medians.

    python bench.py --rounds 5 --seconds 2
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import time

SERVERS = ["sinews.listener", "picows", "sinews.websockets", "websockets"]
LOOPS = ["asyncio", "uvloop"]


async def serve_listener(port: int) -> object:
    from sinews.listener import Listener, serve

    class Echo(Listener):
        def on_message(self, conn, kind, payload):
            conn.send(payload)

    return await serve(lambda request: Echo(), "127.0.0.1", port)


async def serve_picows(port: int) -> object:
    from picows import WSListener, WSMsgType, ws_create_server

    class Echo(WSListener):
        def on_ws_frame(self, transport, frame):
            if frame.msg_type == WSMsgType.CLOSE:
                transport.send_close()
                transport.disconnect()
            else:
                transport.send(frame.msg_type, frame.get_payload_as_bytes())

    return await ws_create_server(lambda request: Echo(), "127.0.0.1", port)


async def serve_sinews_websockets(port: int) -> object:
    from sinews.websockets import serve

    return await serve(echo, "127.0.0.1", port, compression=None)


async def serve_websockets(port: int) -> object:
    from websockets.asyncio.server import serve

    return await serve(echo, "127.0.0.1", port, compression=None)


async def echo(websocket) -> None:
    async for message in websocket:
        await websocket.send(message)


STARTS = {
    "sinews.listener": serve_listener,
    "picows": serve_picows,
    "sinews.websockets": serve_sinews_websockets,
    "websockets": serve_websockets,
}


def run_server(name: str, loop: str, port: int) -> None:
    async def main() -> None:
        await STARTS[name](port)
        print("ready", flush=True)
        event_loop = asyncio.get_running_loop()
        stdin = asyncio.Queue()
        event_loop.add_reader(0, lambda: stdin.put_nowait(os.read(0, 64)))
        # Each line from the parent is answered with the CPU time.
        while await stdin.get():
            usage = resource.getrusage(resource.RUSAGE_SELF)
            print(usage.ru_utime + usage.ru_stime, flush=True)

    if loop == "uvloop":
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


class Server:
    """A server's process."""

    def __init__(self, name: str, loop: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, __file__, "--serve", name, "--loop", loop, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", f"{name} does not start"

    def cpu_seconds(self) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def frame(size: int) -> bytes:
    """Returns a masked text frame, whose mask key is zero."""
    assert size < 1 << 16
    length = struct.pack("!B", 0x80 | size) if size < 126 else struct.pack("!BH", 0xFE, size)
    return b"\x81" + length + bytes(4) + b"x" * size


def open_connection(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        received = sock.recv(4096)
        assert received, "connection closed during the handshake"
        head += received
    assert head.startswith(b"HTTP/1.1 101"), head
    return sock


def load(port: int, connections: int, in_flight: int, size: int, seconds: float, counter) -> float:
    """Sends bursts for some time. Returns the server's microseconds of CPU for each message."""
    burst = frame(size) * in_flight
    expected = (size + (2 if size < 126 else 4)) * in_flight
    sockets = [open_connection(port) for _ in range(connections)]
    selector = selectors.EpollSelector() if hasattr(selectors, "EpollSelector") else selectors.DefaultSelector()
    missing = {}
    for sock in sockets:
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
        missing[sock] = expected
        sock.send(burst)
    bursts = 0
    start = counting = None
    deadline = time.monotonic() + 0.3
    while True:
        for key, _ in selector.select():
            sock = key.fileobj
            left = missing[sock] - len(sock.recv(1 << 16))
            if left == 0:
                bursts += 1
                left = expected
                sock.send(burst)
            missing[sock] = left
        if time.monotonic() >= deadline:
            if counting is None:
                # The warm-up is over.
                counting, start = counter(), bursts
                deadline = time.monotonic() + seconds
            else:
                cpu = counter() - counting
                break
    for sock in sockets:
        sock.send(b"\x88\x80" + bytes(4))
    for sock in sockets:
        sock.setblocking(True)
        while sock.recv(1 << 16):
            pass
        sock.close()
    return cpu / ((bursts - start) * in_flight) * 1e6


def measure(options: argparse.Namespace) -> None:
    for loop in options.loops.split(","):
        servers = {name: Server(name, loop) for name in options.servers.split(",")}
        try:
            for in_flight in map(int, options.in_flight.split(",")):
                results: dict[str, list[float]] = {name: [] for name in servers}
                for _ in range(options.rounds):
                    for name, server in servers.items():
                        microseconds = load(
                            server.port, options.connections, in_flight, options.size, options.seconds,
                            server.cpu_seconds,
                        )  # fmt: skip
                        results[name].append(microseconds)
                report(loop, in_flight, results)
        finally:
            for server in servers.values():
                server.stop()


#: The server that each of ours is compared with.
PEERS = {"sinews.listener": "picows", "sinews.websockets": "websockets"}


def report(loop: str, in_flight: int, results: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in results.items()}
    for name, median in medians.items():
        peer = PEERS.get(name)
        ratio = f"  {median / medians[peer]:5.2f} x {peer}" if peer in medians else ""
        spread = f"{min(results[name]):.2f}-{max(results[name]):.2f}"
        print(f"{loop:8} {in_flight:3} in flight  {name:18} {median:7.2f} us/message ({spread}){ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--in-flight", default="1,16")
    parser.add_argument("--loops", default=",".join(LOOPS))
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--loop", choices=LOOPS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run_server(options.serve, options.loop, options.port)
    else:
        measure(options)


if __name__ == "__main__":
    main()
