"""The Python `websockets` package against the server: client.py BASE LIMITED

Each check prints `ok NAME` or `FAIL NAME: why`.
"""

import asyncio
import json
import random
import sys
import urllib.request

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from checks import LIMIT_SECONDS, check_all

SIZES = [0, 1, 125, 126, 65535, 65536, 1 << 20]
BASE, LIMITED = sys.argv[1:3]
# A topic for each check: a late leave must not count in the next check.
TOPIC = "/topics/python-"


def letters(size):
    return ("abcdefghijklmnopqrstuvwxyz 0123456789 " * (size // 38 + 1))[:size]


def octets(size):
    return bytes((i * 31 + (i >> 8)) & 255 for i in range(size))


def expect(actual, wanted, what):
    if actual != wanted:
        raise AssertionError(f"{what} is {actual!r:.60}, not {wanted!r:.60}")


def open_socket(path, base=BASE, **options):
    return connect(base + path, max_size=None, ping_interval=None, **options)


async def echo(message, base=BASE):
    async with open_socket("/echo", base) as socket:
        await socket.send(message)
        expect(await socket.recv(), message, "the echo")


async def fragments(parts, whole):
    async with open_socket("/echo") as socket:
        await socket.send(parts)
        expect(await socket.recv(), whole, "the echo")


async def fragments_with_ping():
    """Control frames may sit between the fragments of a message (RFC 6455 section 5.4)."""
    async with open_socket("/echo") as socket:

        async def parts():
            yield "one "
            await (await socket.ping(b"beat"))
            yield "two"

        await socket.send(parts())
        expect(await socket.recv(), "one two", "the echo")


async def ping():
    async with open_socket("/echo") as socket:
        for payload in [b"beat", bytes(125)]:
            await (await socket.ping(payload))


async def close(code, reason):
    socket = await open_socket("/echo")
    await socket.close(code, reason)
    received = socket.protocol.close_rcvd
    expect(received and received.code, code, "the code")


async def deflate(factory):
    async with open_socket("/echo", compression=None, extensions=[factory]) as socket:
        names = [extension.name for extension in socket.protocol.extensions]
        expect(names, ["permessage-deflate"], "the extensions")
        # Twice: the second uses the window of the first.
        for message in [letters(100_000), letters(100_000), "short", octets(70_000)]:
            await socket.send(message)
            expect(await socket.recv(), message, "the echo")


async def no_deflate():
    async with open_socket("/echo", compression=None) as socket:
        expect(socket.protocol.extensions, [], "the extensions")
        await socket.send("plain")
        expect(await socket.recv(), "plain", "the echo")


async def topic_reaches_all():
    async with open_socket(TOPIC + "all") as one, open_socket(TOPIC + "all") as two:
        await one.send("news")
        expect(await one.recv(), "news", "message to the sender")
        expect(await two.recv(), "news", "message to the other client")


async def topic_without_self():
    async with open_socket(TOPIC + "self?self=false") as quiet, open_socket(TOPIC + "self") as other:
        await quiet.send("from quiet")
        expect(await other.recv(), "from quiet", "message to the other client")
        # An echo of the first would arrive before this message.
        await other.send("from other")
        expect(await quiet.recv(), "from other", "message to the quiet client")


async def topic_by_post():
    def post():
        url = BASE.replace("ws:", "http:") + TOPIC + "post"
        with urllib.request.urlopen(urllib.request.Request(url, b"posted"), timeout=LIMIT_SECONDS) as answer:
            return json.load(answer)

    async with open_socket(TOPIC + "post") as one, open_socket(TOPIC + "post") as two:
        answer = await asyncio.to_thread(post)
        expect(answer["subscribers"], 2, "subscribers")
        expect(await one.recv(), "posted", "message to the first client")
        expect(await two.recv(), "posted", "message to the second client")


async def over_limit():
    socket = await open_socket("/echo", LIMITED)
    try:
        await socket.send(random.Random(1).randbytes(2_000_001))
        await socket.recv()
    except ConnectionClosed as closed:
        expect(closed.rcvd and closed.rcvd.code, 1009, "the code")
    else:
        raise AssertionError("the message was taken")


CHECKS = {
    **{f"text of {size}": lambda size=size: echo(letters(size)) for size in SIZES},
    **{f"binary of {size}": lambda size=size: echo(octets(size)) for size in SIZES},
    "fragments of text": lambda: fragments(["κόσ", "", "με ", "世界"], "κόσμε 世界"),
    "fragments of binary": lambda: fragments([octets(70_000), b"", octets(10)], octets(70_000) + octets(10)),
    "fragments with a ping within": fragments_with_ping,
    "ping": ping,
    "close 1000": lambda: close(1000, ""),
    "close 4001 with a reason": lambda: close(4001, "because"),
    "deflate": lambda: deflate(ClientPerMessageDeflateFactory(client_max_window_bits=True)),
    "deflate without memory": lambda: deflate(
        ClientPerMessageDeflateFactory(server_no_context_takeover=True, client_no_context_takeover=True)
    ),
    "deflate with small windows": lambda: deflate(
        ClientPerMessageDeflateFactory(server_max_window_bits=9, client_max_window_bits=10)
    ),
    "without deflate": no_deflate,
    "topic reaches all": topic_reaches_all,
    "topic without self": topic_without_self,
    "topic by POST": topic_by_post,
    "largest message": lambda: echo(octets(2_000_000), LIMITED),
    "message over the limit": over_limit,
}


sys.exit(asyncio.run(check_all(CHECKS.items())))
