"""Memory stays level."""

import asyncio
import gc
import logging
import sys
import weakref

import pytest
from conftest import reports

from sinews import Server
from sinews.listener import Listener, connect, serve
from sinews.websockets import connect as connect_websocket
from sinews.websockets import serve as serve_websocket

PAGE = 4096
#: Messages of one connection, the last of which its handler fails at.
BURST = 1000
#: Bytes by which resident memory may grow with a million messages in a thousand connections, and memory blocks of Python: those of
#: a connection are more than ten.
RESIDENT_MAX, BLOCKS_MAX = 4 << 20, 3000
#: Seconds for a million messages, on a busy machine.
TIMEOUT = 300


def usage():
    """Returns resident bytes and the number of Python's memory blocks."""
    for _ in range(3):
        gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE, sys.getallocatedblocks()


def check_level(before):
    resident, blocks = (now - then for now, then in zip(usage(), before))
    assert resident < RESIDENT_MAX
    assert blocks < BLOCKS_MAX


class Burst(Listener):
    """A client's burst; once all messages are echoed, one that the server's handler fails at."""

    def __init__(self):
        self.missing = BURST - 1

    def on_connected(self, conn):
        for number in range(self.missing):
            conn.send(f"message {number} of a burst")

    def on_message(self, conn, kind, payload):
        self.missing -= 1
        if self.missing == 0:
            conn.send("fail")


def answer(send, message):
    if message == "fail":
        raise ZeroDivisionError
    send(message)


class Echo(Listener):
    def on_message(self, conn, kind, payload):
        answer(conn.send, payload)


async def echo(websocket):
    async for message in websocket:
        if message == "fail":
            raise ZeroDivisionError
        await websocket.send(message)


class Faces:
    """Servers of each kind, and the errors of their handlers."""

    def __init__(self, reported):
        self.reported = reported
        self.raised = []

    async def listener(self):
        return await serve(lambda request: Echo(), "127.0.0.1", 0)

    async def websockets(self):
        handler = logging.Handler()
        handler.emit = lambda record: self.raised.append(record.exc_info[0])
        # Without a parent, whose handlers would store the records.
        logger = logging.Logger("errors", logging.ERROR)
        logger.addHandler(handler)
        return await serve_websocket(echo, "127.0.0.1", 0, logger=logger)

    async def server(self):
        on_error = lambda error, socket: self.raised.append(type(error))  # noqa: E731
        return Server(on_message=lambda socket, message: answer(socket.send, message), on_error=on_error)

    def take_errors(self):
        """Counts and forgets errors: those of the loop's exception handler, of the log, and of ``on_error``."""
        raised = self.raised + [type(context["exception"]) for context in self.reported]
        assert set(raised) <= {ZeroDivisionError}
        self.raised.clear()
        self.reported.clear()
        return len(raised)


@pytest.mark.parametrize("face", ["listener", "websockets", "server"])
@reports
async def test_a_million_messages_and_handlers_that_raise_leave_no_memory(face, reported):
    faces = Faces(reported)
    async with await getattr(faces, face)() as server:
        port = server.address[1] if face == "server" else server.sockets[0].getsockname()[1]

        async def run(count):
            expected = count // BURST
            for _ in range(count // BURST):
                conn = await connect(Burst(), f"ws://127.0.0.1:{port}/")
                await conn.wait_disconnected()
                assert conn.close_code == 1011
                expected -= faces.take_errors()
            # The log's last record may follow the Close.
            while expected > 0:
                await asyncio.sleep(0)
                expected -= faces.take_errors()
            assert expected == 0

        await run(50_000)
        before = usage()
        await run(1_000_000)
        check_level(before)


test_a_million_messages_and_handlers_that_raise_leave_no_memory.timeout = TIMEOUT


async def test_a_million_messages_of_one_connection_leave_no_memory():
    async with serve_websocket(echo, "127.0.0.1", 0, compression=None) as server:
        uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with connect_websocket(uri, compression=None) as websocket:

            async def run(count):
                for _ in range(count // 100):
                    for number in range(100):
                        await websocket.send(f"message {number}")
                    for _ in range(100):
                        await websocket.recv()

            await run(50_000)
            before = usage()
            await run(1_000_000)
            check_level(before)


test_a_million_messages_of_one_connection_leave_no_memory.timeout = TIMEOUT


@reports
async def test_connections_of_handlers_that_raise_are_freed(reported):
    class Raises(Listener):
        def on_message(self, conn, kind, payload):
            raise ZeroDivisionError

    references = []

    def factory(request):
        listener = Raises()
        references.append(weakref.ref(listener))
        return listener

    async with await serve(factory, "127.0.0.1", 0) as server:
        uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for _ in range(10):
            listener = Listener()
            conn = await connect(listener, uri)
            references += [weakref.ref(listener), weakref.ref(conn)]
            conn.send("one")
            await conn.wait_disconnected()
            assert conn.close_code == 1011
            del conn, listener
            reported.clear()
        while server.connections:
            await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    assert [reference for reference in references if reference() is not None] == []
