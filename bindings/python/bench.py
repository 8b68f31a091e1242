"""Compares servers: CPU time for each message, latency, fan-out, and memory, by the load generator `sinews bench`.

Rounds of the servers alternate. Each server is a process on core 0, and the load generator is on core 1.

    python bench.py MODE --load <program sinews> [--loop uvloop] [--servers sinews.listener,picows] [-- options of the load]

MODE is `echo` (64 connections, 64 bytes, with 1 and with 16 messages in flight), `latency` (20,000 messages a second), `fan-out`
(one publisher and 1,000 subscribers: bursts of 16 publications, and 10 publications a second) or `idle`. `plain` is the floor
for fan-out: a program that writes the bytes to all sockets, and does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import hashlib
import json
import operator
import os
import re
import selectors
import shlex
import socket
import statistics
import subprocess
import sys
import time

FAN_OUT = "-m fan-out -c 1001 --publishers 1 --subscribe subscribe --publish {payload}".split()
#: Runs of each mode: options of the load.
MODES = {
    "echo": [["-i", "1"], ["-i", "16"]],
    "latency": [["-r", "20000"]],
    "fan-out": [[*FAN_OUT, "--burst", "-i", "16"], [*FAN_OUT, "-r", "10"]],
    "idle": [],
}
DEFAULTS = {
    "echo": "websockets,sinews.websockets,picows,sinews.listener,sinews.Server",
    "fan-out": "websockets,sinews.websockets,sinews.Server,plain",
}
IDLE = [1000, 4000]


async def serve_listener(port: int, fan_out: bool) -> object:
    from sinews.listener import Listener, serve

    class Echo(Listener):
        def on_message(self, conn, kind, payload):
            conn.send(payload)

    return await serve(lambda request: Echo(), "127.0.0.1", port)


async def serve_picows(port: int, fan_out: bool) -> object:
    from picows import WSListener, WSMsgType, ws_create_server

    class Echo(WSListener):
        def on_ws_frame(self, transport, frame):
            if frame.msg_type == WSMsgType.CLOSE:
                transport.send_close()
                transport.disconnect()
            else:
                transport.send(frame.msg_type, frame.get_payload_as_bytes())

    return await ws_create_server(lambda request: Echo(), "127.0.0.1", port)


async def serve_websockets(port: int, fan_out: bool, package: str = "websockets") -> object:
    if package == "websockets":
        from websockets.asyncio.server import broadcast, serve
    else:
        from sinews.websockets.asyncio.server import broadcast, serve
    subscribers = set()

    async def echo(websocket) -> None:
        async for message in websocket:
            await websocket.send(message)

    async def publish(websocket) -> None:
        async for message in websocket:
            if message == "subscribe":
                subscribers.add(websocket)
            else:
                broadcast(subscribers, message)
        subscribers.discard(websocket)

    return await serve(publish if fan_out else echo, "127.0.0.1", port, compression=None)


async def serve_topics(port: int, fan_out: bool) -> object:
    from sinews import Server

    def on_message(websocket, message) -> None:
        if not fan_out:
            websocket.send(message)
        elif message == "subscribe":
            websocket.subscribe("topic")
        else:
            server.publish("topic", message)

    server = Server(port=port, on_message=on_message, ping_interval=None, idle_timeout=None)
    return await server.start()


STARTS = {
    "sinews.listener": serve_listener,
    "picows": serve_picows,
    "sinews.websockets": lambda port, fan_out: serve_websockets(port, fan_out, "sinews"),
    "websockets": serve_websockets,
    "sinews.Server": serve_topics,
}


def serve_plain(port: int) -> None:
    """Publishes messages below 126 bytes: one read, and a write for each subscriber."""
    subscribers: list[int] = []
    buffers: dict[int, bytes] = {}

    def receive(connection: socket.socket) -> None:
        number = connection.fileno()
        received = connection.recv(1 << 16)
        if not received:
            poll.unregister(connection)
            connection.close()
            return
        data = buffers[number] + received
        if data.startswith(b"GET"):
            key = re.search(rb"(?i)sec-websocket-key: *(\S+)", data)
            digest = base64.b64encode(hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            lines = b"HTTP/1.1 101 Ok", b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: " + digest
            connection.send(b"\r\n".join(lines) + b"\r\n\r\n")
            data = b""
        while len(data) >= 6 and len(data) >= 6 + data[1] - 128:
            length, mask = data[1] - 128, data[2:6] * 32
            payload = bytes(map(operator.xor, data[6 : 6 + length], mask))
            data = data[6 + length :]
            if payload == b"subscribe":
                subscribers.append(number)
                continue
            message = bytes([0x81, length]) + payload
            for subscriber in subscribers:
                os.write(subscriber, message)
        buffers[number] = data

    with socket.create_server(("127.0.0.1", port), backlog=2048) as listener:
        poll = selectors.DefaultSelector()
        poll.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in poll.select():
                if key.fileobj is not listener:
                    receive(key.fileobj)
                    continue
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                buffers[connection.fileno()] = b""
                poll.register(connection, selectors.EVENT_READ)


def run_server(options: argparse.Namespace) -> None:
    if options.serve == "plain":
        return serve_plain(options.port)

    async def main() -> None:
        server = await STARTS[options.serve](options.port, options.mode == "fan-out")
        while True:
            await asyncio.sleep(1 if options.mode == "idle" else 3600)
            gc.collect()
        return server

    if options.loop == "uvloop":
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


def command(name: str, port: int, options: argparse.Namespace) -> list[str]:
    own = [sys.executable, os.path.abspath(__file__), options.mode, "--serve", name, "--loop", options.loop]
    return [*own, "--port", str(port)]


def compare(options: argparse.Namespace) -> None:
    names = (options.servers or DEFAULTS.get(options.mode, DEFAULTS["echo"])).split(",")
    servers = []
    for number, name in enumerate(names):
        port = options.port + number
        servers.append(f"{name}=ws://127.0.0.1:{port}/=exec {shlex.join(command(name, port, options))}")
    cores = ["--server-core", "0", "--load-core", "1"]
    for run in MODES[options.mode]:
        print(options.loop, options.mode, *run, flush=True)
        subprocess.run([options.load, "bench", "compare", "-q", *cores, *run, *options.rest, *servers], check=True)


def measure_idle(options: argparse.Namespace) -> None:
    """Prints the growth of the resident memory for a connection."""
    names = (options.servers or DEFAULTS["echo"]).split(",")
    results: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds * len(names)):
        name, port = names[number % len(names)], options.port + number
        server = subprocess.Popen(command(name, port, options))
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.1)
            load = [options.load, "bench", "idle", "-q", "--json", "--settle", "3s", "--pid", str(server.pid)]
            counts = ",".join(map(str, IDLE))
            output = subprocess.check_output([*load, "-c", counts, *options.rest, f"ws://127.0.0.1:{port}/"])
            results[name].append(json.loads(output)["fit"]["user"]["slope"])
        finally:
            server.kill()
            server.wait()
    for name, values in results.items():
        print(f"{name:18} {statistics.median(values):8.0f} bytes for an idle connection")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--load", default="sinews")
    parser.add_argument("--loop", default="asyncio", choices=["asyncio", "uvloop"])
    parser.add_argument("--servers")
    parser.add_argument("--rounds", type=int, default=3, help="of the mode idle")
    parser.add_argument("--serve", choices=[*STARTS, "plain"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=18301)
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:at])
    options.rest = sys.argv[at + 1 :]
    if options.serve:
        run_server(options)
    elif options.mode == "idle":
        measure_idle(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
