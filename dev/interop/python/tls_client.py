"""The Python `websockets` package against an echo server with TLS: tls_client.py PORT FOLDER

The folder has the certificate of the server. Each check prints `ok NAME` or `FAIL NAME: why`.
"""

import asyncio
import functools
import ssl
import sys

from websockets.asyncio.client import connect

from checks import check_all

SIZES = [0, 1, 125, 126, 16_384, 65_535, 65_536, 1 << 20]
PORT, FOLDER = sys.argv[1:3]
VERSIONS = {"TLS 1.2": ssl.TLSVersion.TLSv1_2, "TLS 1.3": ssl.TLSVersion.TLSv1_3}


def octets(size):
    return bytes((i * 31 + (i >> 8)) & 255 for i in range(size))


def expect(actual, wanted, what):
    if actual != wanted:
        raise AssertionError(f"{what} is {actual!r:.60}, not {wanted!r:.60}")


def context_of(version):
    context = ssl.create_default_context(cafile=f"{FOLDER}/certificate.pem")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["http/1.1"])
    return context


def open_socket(version, host="localhost", **options):
    url = f"wss://{host}:{PORT}/"
    return connect(url, ssl=context_of(version), max_size=None, ping_interval=None, proxy=None, **options)


async def version_is_used(version):
    async with open_socket(version) as socket:
        tls = socket.transport.get_extra_info("ssl_object")
        expect(tls.version(), version.name.replace("_", "."), "the version")
        expect(tls.selected_alpn_protocol(), "http/1.1", "the protocol")


async def sizes(version):
    async with open_socket(version) as socket:
        for size in SIZES:
            for message in [octets(size), "x" * size]:
                await socket.send(message)
                expect(await socket.recv(), message, f"the echo of {size}")


async def many_in_flight(version):
    async with open_socket(version) as socket:

        async def send():
            for i in range(1000):
                await socket.send(f"message {i}")

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            for i in range(1000):
                expect(await socket.recv(), f"message {i}", "the echo")


async def fragments_with_ping(version):
    async with open_socket(version) as socket:

        async def parts():
            yield "one "
            await (await socket.ping(b"beat"))
            yield "two"

        await socket.send(parts())
        expect(await socket.recv(), "one two", "the echo")


async def no_deflate(version):
    async with open_socket(version, compression=None) as socket:
        await socket.send("plain")
        expect(await socket.recv(), "plain", "the echo")


async def address_as_name(version):
    async with open_socket(version, host="127.0.0.1") as socket:
        await socket.send("hello")
        expect(await socket.recv(), "hello", "the echo")


async def close(version):
    socket = await open_socket(version)
    await socket.close(4001, "because")
    received = socket.protocol.close_rcvd
    expect(received and received.code, 4001, "the code")


CHECKS = [version_is_used, sizes, many_in_flight, fragments_with_ping, no_deflate, address_as_name, close]


ALL_CHECKS = (
    (f"{name}: {check.__name__.replace('_', ' ')}", functools.partial(check, version))
    for name, version in VERSIONS.items()
    for check in CHECKS
)
sys.exit(asyncio.run(check_all(ALL_CHECKS)))
