"""`sinews bench` against servers on the Python `websockets` package, http.server and asyncio: bench.py PROGRAM FOLDER

The folder has certificate.pem and key.pem for localhost. The servers count what they see, and the figures of the
program are compared with these counts. Each check prints `ok NAME` or `FAIL NAME: why`.
"""

import asyncio
import collections
import contextlib
import json
import os
import resource
import ssl
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from websockets.asyncio.server import serve, unix_serve
from websockets.exceptions import ConnectionClosed

from checks import check_all, repeat

PROGRAM, FOLDER = sys.argv[1:3]
CERTIFICATE, KEY = f"{FOLDER}/certificate.pem", f"{FOLDER}/key.pem"
ENV = {name: value for name, value in os.environ.items() if not name.startswith("SINEWS_")}


class Seen:
    """Counts of the servers since its creation."""

    def __init__(self):
        self.opened, self.open, self.open_most = 0, 0, 0
        self.messages, self.text, self.bytes, self.requests = 0, 0, 0, 0
        self.sources, self.codes = collections.Counter(), collections.Counter()
        self.extensions, self.protocols, self.headers = set(), set(), set()


seen = Seen()
rooms = collections.defaultdict(set)


def reset():
    global seen
    seen = Seen()


async def run(*args):
    """Runs the program to its end: exit code, output, error output."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(PROGRAM, "bench", *args, stdout=pipe, stderr=pipe, env=ENV)
    out, err = await child.communicate()
    return child.returncode, out.decode(), err.decode()


async def bench(*args):
    """A run in JSON. Loads are short and begin at once unless the arguments say otherwise."""
    further = [] if "--warm-up" in args or "-n" in args else ["--warm-up", "0s"]
    code, out, err = await run(*args, *further, "--json", "--quiet")
    try:
        return code, json.loads(out), err
    except json.JSONDecodeError:
        raise AssertionError(f"exit code {code}, no JSON: {out}{err}") from None


async def sound(*args):
    """A run in which nothing fails."""
    code, result, err = await bench(*args)
    expect(code, 0, f"the exit code ({err.strip()})")
    expect(result["errors"], {}, "the errors")
    return result


async def errors(*args):
    """A run in which something fails: how often, by kind."""
    code, result, _ = await bench(*args)
    expect(code, 1, "the exit code")
    return result["errors"]


async def counted(number, *args):
    """A run of echoes, after which the counts of the server and the program agree."""
    reset()
    result = await sound("-n", str(number), *args)
    while seen.open:
        await asyncio.sleep(0.005)
    expect(result["messages"], number, "messages")
    expect(seen.messages, number, "messages that the server has seen")
    expect(result["bytes_sent"], seen.bytes, "bytes sent, as the server has seen them")
    expect(result["bytes_received"], seen.bytes, "bytes received")
    return result


def expect(actual, wanted, what):
    if actual != wanted:
        raise AssertionError(f"{what} is {actual!r:.300}, not {wanted!r:.60}")


def within(value, least, most, what):
    if not least <= value <= most:
        raise AssertionError(f"{what} is {value!r}, and not from {least} to {most}")


def has(text, part):
    if part not in text:
        raise AssertionError(f"{part!r} is not in {text!r:.400}")


async def handle(connection):
    seen.opened += 1
    seen.open += 1
    seen.open_most = max(seen.open_most, seen.open)
    mine = seen
    if connection.remote_address:
        seen.sources[connection.remote_address[0]] += 1
    seen.extensions.update(extension.name for extension in connection.protocol.extensions)
    seen.protocols.add(connection.subprotocol)
    seen.headers.add(connection.request.headers.get("X-Test"))
    # Many of the checks end a connection as no well-behaved client would.
    with contextlib.suppress(ConnectionClosed):
        await converse(connection, connection.request.path)
    mine.open -= 1
    mine.codes[connection.close_code] += 1
    for room in rooms.values():
        room.discard(connection)


async def converse(connection, path):
    count = 0
    if path.startswith("/topics/"):
        rooms[path].add(connection)
    async for message in connection:
        count += 1
        seen.messages += 1
        seen.text += isinstance(message, str)
        seen.bytes += len(message.encode() if isinstance(message, str) else message)
        if path == "/silent":
            continue
        if path == "/leave" and count > 3:
            return await connection.close(1012)
        if path == "/drop" and count > 3:
            return connection.transport.abort()
        if path == "/wrong" and count == 5:
            message = message[::-1]
        if path == "/stall" and count == 10:
            # The server blocks meanwhile, like a busy server.
            threading.Event().wait(1)
        if path == "/late":
            await asyncio.sleep(0.02)
        if path == "/room":
            order = json.loads(message)
            if order["op"] == "join":
                rooms[order["room"]].add(connection)
            else:
                await tell(order["room"], json.dumps({"text": order["text"]}))
        elif path.startswith("/topics/"):
            await tell(path, message)
        else:
            await connection.send(message)


async def tell(room, text):
    for connection in list(rooms[room]):
        await connection.send(text)


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is one write, or it would wait for the other end's acknowledgement.
    wbufsize = 1 << 16

    def do_GET(self):
        seen.requests += 1
        self.answer(404 if self.path == "/missing" else 200, b"hello")

    def do_POST(self):
        seen.requests += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        seen.bytes += len(body)
        self.answer(200, body)

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_):
        pass


async def tcp_echo(reader, writer):
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(1 << 16):
            seen.bytes += len(chunk)
            writer.write(chunk)
            await writer.drain()
    writer.close()


def checks(plain, secure, unix, web, tcp):
    url, pid = f"ws://127.0.0.1:{plain}", ["--pid", str(os.getpid())]

    async def echoes():
        for connections, further in [(1, []), (9, []), (9, ["-i", "8"]), (9, ["-t", "3"])]:
            result = await counted(300, "-c", str(connections), *further, f"{url}/echo")
            expect(seen.open_most, connections, "connections at a time")
            expect(seen.codes, {1000: connections}, "how they were closed")
            expect(result["connections_open"], connections, "connections open")

    async def contents():
        for size in ["0", "125", "126", "65536", "300k", "10-2000", "64:9,4k:1"]:
            await counted(12, "-c", "2", "-s", size, f"{url}/echo")
        for kind, text in [([], 30), (["--text"], 30), (["--binary"], 0)]:
            await counted(30, "-c", "2", *kind, f"{url}/echo")
            expect(seen.text, text, "text messages")
        with tempfile.NamedTemporaryFile() as lines:
            lines.write("a\nκόσμε\n".encode())
            lines.flush()
            await counted(10, "-c", "1", "--file", lines.name, f"{url}/echo")
            expect(seen.bytes, 5 * (1 + 10), "bytes of the file")

    async def deflate():
        for further in [[], ["-i", "4", "-s", "0-5k"], ["--binary"]]:
            await counted(40, "-c", "2", "--deflate", *further, f"{url}/echo")
            expect(seen.extensions, {"permessage-deflate"}, "extensions")
        await counted(4, "-c", "2", f"{url}/echo")
        expect(seen.extensions, set(), "extensions without it")

    async def request():
        await counted(4, "-c", "2", "-H", "X-Test: 7", "--subprotocol", "v2", "--subprotocol", "v1", f"{url}/echo")
        expect((seen.headers, seen.protocols), ({"7"}, {"v1"}), "the header and the subprotocol")

    @repeat
    async def times():
        reset()
        result = await sound("-c", "4", "-d", "300ms", "--warm-up", "300ms", f"{url}/echo")
        expect(result["seconds"], 0.3, "seconds")
        within(seen.messages, result["messages"] + 4, 1e9, "messages that the server has seen")
        late = await sound("-c", "4", "-i", "1", "-d", "500ms", f"{url}/late")
        within(late["latency_us"]["min"], 19_000, 400_000, "the least latency in µs")
        # Little's law: the messages in flight are the rate times the latency.
        within(late["rate"] * late["latency_us"]["mean"] / 1e6, 3.4, 4.4, "messages on their way")

    @repeat
    async def open_loop():
        reset()
        result = await sound("-c", "5", "-r", "200", "-d", "500ms", f"{url}/echo")
        expect(result["latency_us"]["count"], 100, "latencies")
        expect(seen.messages, 100, "messages that the server has seen")

    @repeat
    async def stall():
        result = await sound("-c", "1", "-r", "100", "-d", "1500ms", f"{url}/stall")
        expect(result["latency_us"]["count"], 150, "every message that was due counts")
        within(result["latency_us"]["max"], 0.99e6, 5e6, "the longest in µs")
        within(result["latency_us"]["p75"], 0.4e6, 5e6, "75 % in µs")

    @repeat
    async def tls():
        wss = f"wss://localhost:{secure}/echo"
        for trust in [["--insecure"], ["--ca", CERTIFICATE]]:
            await counted(60, "-c", "3", "-i", "4", *trust, wss)
        code, result, err = await bench("-c", "2", "-n", "2", wss)
        expect((code, result["errors"]), (1, {"tls": 2}), "the end without trust")
        has(err, "--ca FILE")

    async def ways():
        await counted(20, "-c", "2", "--unix", unix, "ws://localhost/echo")
        reset()
        await sound("-c", "8", "-n", "16", "--source", "127.0.0.1-4", "--ramp-up", "50ms", f"{url}/echo")
        expect(seen.sources, {f"127.0.0.{last}": 2 for last in range(1, 5)}, "where they came from")

    async def http():
        for further in [[], ["-i", "5"]]:
            reset()
            await sound("-c", "3", "-n", "60", *further, "--expect", "hello", f"http://127.0.0.1:{web}/")
            expect(seen.requests, 60, "requests")
        reset()
        await sound("-c", "2", "-n", "20", "-s", "1-9k", "--method", "POST", "--expect", "echo", f"http://127.0.0.1:{web}/")
        expect(seen.requests, 20, "requests with a body")
        expect(await errors("-c", "2", "-n", "6", f"http://127.0.0.1:{web}/missing"), {"http_status": 6}, "the errors")

    async def plain_tcp():
        reset()
        result = await sound("-c", "3", "-n", "90", "-i", "3", "-s", "1-9k", f"tcp://127.0.0.1:{tcp}")
        expect(result["bytes_sent"], seen.bytes, "bytes, as the server has seen them")

    async def fan_out():
        reset()
        load = ["-m", "fan-out", "-r", "50", "-d", "400ms"]
        result = await sound(*load, "-c", "7", "--publishers", "1", "--topics", "1", url)
        expect((result["published"], result["latency_us"]["count"]), (20, 120), "published and delivered")
        expect(seen.messages, 20, "publications that the server has seen")
        protocol = [
            *["--subscribe", '{"op":"join","room":"{topic}"}'],
            *["--publish", '{"op":"say","room":"{topic}","text":"{payload}"}'],
        ]
        result = await sound(*load, "-c", "8", "--publishers", "2", "--topics", "2", *protocol, f"{url}/room")
        expect((result["published"], result["latency_us"]["count"]), (20, 60), "published and delivered to rooms")

    @repeat
    async def storm():
        reset()
        result = await sound("-m", "storm", "-c", "4", "-n", "40", f"{url}/echo")
        expect(result["messages"], 40, "connections")
        within(seen.opened, 40, 80, "connections that the server has seen")

    async def idle():
        reset()
        result = await sound("-m", "idle", "-c", "30", "-d", "300ms", *pid, f"{url}/echo")
        expect((result["connections_open"], seen.open_most, seen.messages), (30, 30, 0), "open connections")
        within(result["server"]["memory_bytes"], 1e6, 1e10, "the server's memory")

    @repeat
    async def server_usage():
        before = resource.getrusage(resource.RUSAGE_SELF)
        # A number of messages, which takes its time on any machine.
        result = await sound("-c", "4", "-n", "3000", *pid, f"{url}/echo")
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        within(result["server"]["cpu_seconds"], 0.02, spent * 1.02 + 0.01, "processor time, compared with the server's own count")

    @repeat
    async def faults():
        short = ["-c", "2", "-n", "20", "--timeout", "500ms"]
        expect(await errors(*short, f"{url}/wrong"), {"wrong_bytes": 2}, "the errors of wrong bytes")
        expect((await errors(*short, f"{url}/leave"))["closed_by_server"], 2, "connections closed")
        dropped = await errors(*short, f"{url}/drop")
        expect(sum(dropped.get(kind, 0) for kind in ["reset_by_server", "closed_by_server"]), 2, "connections dropped")
        expect(await errors("-c", "3", "-d", "100ms", "--timeout", "300ms", f"{url}/silent"), {"no_answer": 3}, "the errors of silence")

    @repeat
    async def compare():
        both = [f"{url}/echo", f"{url}/late"]
        code, out, err = await run("compare", "--rounds", "8", "-c", "2", "-n", "10", "--json", "--quiet", *both)
        expect((code, err), (0, ""), "the end")
        early, late = json.loads(out)["servers"]
        expect((early["rate"]["differs"], late["rate"]["differs"]), (False, True), "the differences")
        within(late["rate"]["ratio"], 0.001, 0.6, "the ratio of the rates")

    return [echoes, contents, deflate, request, times, open_loop, stall, tls, ways, http, plain_tcp, fan_out, storm, idle, server_usage, faults, compare]


async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    choose = lambda _, offered: "v1" if "v1" in offered else None  # noqa: E731
    options = {"select_subprotocol": choose, "max_size": None}
    web = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        unix = f"{folder}/socket"
        async with (
            serve(handle, "127.0.0.1", 0, **options) as plain,
            serve(handle, "127.0.0.1", 0, ssl=context, **options) as secure,
            unix_serve(handle, unix, **options),
            await asyncio.start_server(tcp_echo, "127.0.0.1", 0) as tcp,
        ):
            ports = [server.sockets[0].getsockname()[1] for server in (plain, secure, tcp)]
            all_checks = checks(ports[0], ports[1], unix, web.server_port, ports[2])
            return await check_all((check.__name__, check) for check in all_checks)


sys.exit(asyncio.run(main()))
