"""`sinews connect` against the Python `websockets` package, as a client and as a server: connect.py PROGRAM FOLDER

The folder has certificate.pem and key.pem for localhost. Each check prints `ok NAME` or `FAIL NAME: why`.
"""

import asyncio
import contextlib
import json
import os
import ssl
import sys
import tempfile

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve, unix_serve
from websockets.exceptions import ConnectionClosed

from checks import check_all, free_port, repeat

PROGRAM, FOLDER = sys.argv[1:3]
CERTIFICATE, KEY = f"{FOLDER}/certificate.pem", f"{FOLDER}/key.pem"
# The environment must not affect the checks.
ENV = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("SINEWS_") and not name.lower().endswith("_proxy")
}


async def run(*args, data=b""):
    """Runs the program to its end: exit code, output, error output."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        PROGRAM, "connect", *args, stdin=pipe, stdout=pipe, stderr=pipe, env=ENV
    )
    out, err = await child.communicate(data)
    return child.returncode, out, err.decode()


async def fine(*args, data=b""):
    code, out, err = await run(*args, data=data)
    expect(code, 0, f"the exit code ({err.strip()})")
    return out


def expect(actual, wanted, what):
    if actual != wanted:
        raise AssertionError(f"{what} is {actual!r:.200}, not {wanted!r:.60}")


def has(text, part):
    if part not in text:
        raise AssertionError(f"{part!r} is not in {text!r:.400}")


def choose(_, offered):
    return "v1" if "v1" in offered else None


async def handle(connection):
    # Many of the checks end a connection as no well-behaved client would.
    with contextlib.suppress(ConnectionClosed):
        await converse(connection)


async def converse(connection):
    path = connection.request.path
    if path == "/headers":
        await connection.send(json.dumps(dict(connection.request.headers.raw_items())))
    if path == "/extensions":
        await connection.send(str([extension.name for extension in connection.protocol.extensions]))
    if path == "/three":
        for text in "123":
            await connection.send(text)
    if path == "/leave":
        await connection.close(4000, "because")
    async for message in connection:
        await connection.send(message)


async def checks(plain, secure, unix, socks):
    url, wss = f"ws://127.0.0.1:{plain}", f"wss://localhost:{secure}"
    trust = ["--ca", CERTIFICATE]

    async def headers(*args):
        return json.loads(await fine(*args, "--count", "1", f"{url}/headers"))

    async def pipe():
        expect(await fine(url, data="hi\nκόσμε\n".encode()), "hi\nκόσμε\n".encode(), "the echo")
        lines = b"".join(b"message %d\n" % number for number in range(20_000))
        expect(await fine(url, data=lines), lines, "the echo")

    async def binary():
        data = b"a\n\0\xff\0"
        expect(await fine("--binary", "--delimiter", "\\0", url, data=data), data, "the echo")
        data = b"\0\0\0\x03a\nb\0\0\0\0"
        expect(await fine("--binary", "--length-prefixed", url, data=data), data, "the echo")
        expect(await fine("--binary", "--show", "hex", url, data=b"AB\n"), b"41 42\n", "hex")

    async def commands():
        code, out, err = await run("--commands", "-v", url, data=b"/ping x\n//a\n/hex 41\n")
        expect((code, out), (0, b"/a\nA\n"), "the end")
        has(err, 'pong "x" after ')
        has((await run("--commands", "-v", url, data=b"/close 4001 bye\n"))[2], "closed by this end with 4001")

    async def request():
        seen = await headers("-H", "Cookie: a=b", "--origin", "https://a.example", "--bearer", "abc")
        expect(seen["Cookie"], "a=b", "the cookie")
        expect(seen["Origin"], "https://a.example", "the origin")
        expect(seen["Authorization"], "Bearer abc", "the token")
        expect((await headers("--user", "a:b"))["Authorization"], "Basic YTpi", "the user")

    async def subprotocol():
        has((await run("-v", "--subprotocol", "v2,v1", url))[2], "subprotocol v1")

    async def deflate():
        has((await fine("--deflate", "--count", "1", f"{url}/extensions")).decode(), "permessage-deflate")
        data = (b"again and " * 5000 + b"\n") * 3
        expect(await fine("--deflate", url, data=data), data, "the echo")

    async def jsonl():
        lines = [json.loads(line) for line in (await fine("--jsonl", url, data=b"hi\n")).splitlines()]
        expect([line["kind"] for line in lines], ["open", "text", "text", "close", "close", "end"], "the kinds")

    async def replay():
        with tempfile.TemporaryDirectory() as folder:
            recording = f"{folder}/session.jsonl"
            await fine("--record", recording, url, data=b"one\ntwo\n")
            played = await fine("--replay", recording, "--speed", "max", "--check", url)
            expect(played, b"one\ntwo\n", "the echo")

    async def ends():
        expect(await fine("--count", "3", f"{url}/three"), b"1\n2\n3\n", "the messages")
        expect(await fine("--wait", "300ms", f"{url}/three"), b"1\n2\n3\n", "the messages")
        expect((await run("--timeout", "200ms", "--wait", "1h", url))[0], 6, "the code of --timeout")
        code, _, err = await run("--count", "1", f"{url}/leave")
        expect(code, 4, "the code of a Close")
        has(err, "4000: because")

    async def way():
        expect(await fine("--unix", unix, "ws://localhost", data=b"hi\n"), b"hi\n", "the echo")
        place = ["--resolve", f"chat.example:{plain}:127.0.0.1", f"ws://chat.example:{plain}"]
        expect(await fine(*place, data=b"hi\n"), b"hi\n", "the echo")

    async def tls():
        expect((await run(wss, data=b"hi\n"))[0], 1, "the code without trust")
        expect(await fine(*trust, wss, data=b"hi\n"), b"hi\n", "the echo")
        code, out, err = await run("--insecure", wss, data=b"hi\n")
        expect((code, out), (0, b"hi\n"), "the end")
        has(err, "WARNING: --insecure")

    async def proxies():
        for scheme in ["http", "socks5", "socks5h"]:
            through = ["--proxy", f"{scheme}://127.0.0.1:{socks}"]
            expect(await fine(*through, url, data=b"hi\n"), b"hi\n", f"the echo by {scheme}")
            expect(await fine(*through, *trust, wss, data=b"hi\n"), b"hi\n", f"the echo by {scheme}, wss")

    async def inspect():
        out = (await fine("--inspect", "--deflate", url, data=b"hello\n")).decode()
        for part in ["> GET / HTTP/1.1", "< HTTP/1.1 101 ", "rsv1 text", '"hello"']:
            has(out, part)
        if "! RFC" in out:
            raise AssertionError(f"a fault in {out}")

    async def probe():
        code, out, err = await run("--probe", "--probe-wait", "1s", url)
        has(out.decode(), "ok    unmasked-frame")
        has(out.decode(), " faults sent, ")

    async def listen():
        child = await asyncio.create_subprocess_exec(
            *[PROGRAM, "connect", "--listen", "127.0.0.1:0", "--echo", "--deflate", "--cert", CERTIFICATE, "--key", KEY],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=ENV,
        )
        where = (await child.stderr.readline()).decode().split()[-1].replace("127.0.0.1", "localhost")
        async with connect(where, ssl=ssl.create_default_context(cafile=CERTIFICATE)) as client:
            await client.send("hi")
            expect(await client.recv(), "hi", "the echo")
        child.kill()
        await child.wait()

    return [pipe, binary, commands, request, subprotocol, deflate, jsonl, replay, ends, way, tls, proxies, inspect, probe, listen]


async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    with tempfile.TemporaryDirectory() as folder:
        unix = f"{folder}/socket"
        socks = free_port()
        proxy = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "pproxy", "-l", f"http+socks5://127.0.0.1:{socks}"],
            stdout=asyncio.subprocess.DEVNULL,
        )
        options = {"select_subprotocol": choose, "max_size": None}
        try:
            await until_listening(socks)
            async with (
                serve(handle, "127.0.0.1", 0, **options) as plain,
                serve(handle, "127.0.0.1", 0, ssl=context, **options) as secure,
                unix_serve(handle, unix, **options),
            ):
                ports = [server.sockets[0].getsockname()[1] for server in (plain, secure)]
                all_checks = await checks(*ports, unix, socks)
                # The program waits a second for an answer unless an option says otherwise.
                return await check_all((check.__name__, repeat(check)) for check in all_checks)
        finally:
            proxy.kill()
            await proxy.wait()


async def until_listening(port):
    for _ in range(1200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.05)
    raise RuntimeError("the proxy does not listen")


sys.exit(asyncio.run(main()))
