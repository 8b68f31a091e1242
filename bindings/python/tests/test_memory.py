"""Memory stays level."""

import asyncio
import gc
import weakref

from conftest import reports

from sinews.listener import Listener, connect, serve
from sinews.websockets import connect as connect_websocket
from sinews.websockets import serve as serve_websocket

PAGE = 4096


def resident():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE


class Echo(Listener):
    def on_message(self, conn, kind, payload):
        conn.send(payload)


class Rounds(Listener):
    """Sends bursts until all messages are echoed."""

    BURST = 500

    def __init__(self, count):
        self.left = count
        self.missing = 0
        self.done = asyncio.get_running_loop().create_future()

    def on_connected(self, conn):
        self.burst(conn)

    def burst(self, conn):
        for number in range(self.BURST):
            conn.send(f"message {number} of a burst")
        self.missing = self.BURST

    def on_message(self, conn, kind, payload):
        self.missing -= 1
        self.left -= 1
        if self.left <= 0:
            if not self.done.done():
                self.done.set_result(None)
        elif self.missing == 0:
            self.burst(conn)


async def test_messages_leave_no_memory():
    async with await serve(lambda request: Echo(), "127.0.0.1", 0) as server:
        uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

        async def run(count):
            rounds = Rounds(count)
            conn = await connect(rounds, uri)
            await rounds.done
            conn.close()
            await conn.wait_disconnected()

        await run(20_000)
        before = resident()
        await run(1_000_000)
        assert resident() - before < 4 << 20


async def test_tasks_leave_no_memory():
    async def echo(websocket):
        async for message in websocket:
            await websocket.send(message)

    async with serve_websocket(echo, "127.0.0.1", 0, compression=None) as server:
        uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with connect_websocket(uri, compression=None) as websocket:

            async def run(count):
                for _ in range(count // 100):
                    for number in range(100):
                        await websocket.send(f"message {number}")
                    for _ in range(100):
                        await websocket.recv()

            await run(10_000)
            before = resident()
            await run(200_000)
            assert resident() - before < 4 << 20


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
        before = None
        for number in range(600):
            listener = Listener()
            conn = await connect(listener, uri)
            references += [weakref.ref(listener), weakref.ref(conn)]
            conn.send("one")
            await conn.wait_disconnected()
            assert conn.close_code == 1011
            del conn, listener
            reported.clear()
            if number == 200:
                before = resident()
        while server.connections:
            await asyncio.sleep(0)
        assert resident() - before < 4 << 20
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    assert [reference for reference in references if reference() is not None] == []
