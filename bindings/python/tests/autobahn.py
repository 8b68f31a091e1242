"""Echo servers and clients for the Autobahn suite.

    python autobahn.py websockets|listener|server    a server, which prints ``listening on ADDRESS``
    python autobahn.py websockets|listener URL       a client, which runs the cases of the suite at URL
"""

import asyncio
import sys

from sinews import Server, listener, websockets

AGENT = "sinews"
HOST = "127.0.0.1"
#: The longest message of the suite.
MAX_MESSAGE = 16 << 20


class Echo(listener.Listener):
    def on_message(self, conn, kind, payload):
        conn.send(payload)


class Last(listener.Listener):
    """Stores the last message."""

    message = None

    def on_message(self, conn, kind, payload):
        self.message = payload


async def echo(websocket):
    try:
        async for message in websocket:
            await websocket.send(message)
    except websockets.ConnectionClosed:
        # The suite violates the protocol on purpose, and closes behind a message.
        pass


async def last(websocket):
    message = None
    try:
        async for message in websocket:
            pass
    except websockets.ConnectionClosedError:
        pass
    return message


async def run_websockets(uri, is_echo):
    async with websockets.connect(uri, max_size=MAX_MESSAGE) as websocket:
        return await (echo if is_echo else last)(websocket)


async def run_listener(uri, is_echo):
    handler = Echo() if is_echo else Last()
    conn = await listener.connect(handler, uri, compression="deflate")
    await conn.wait_disconnected()
    return None if is_echo else handler.message


async def run_client(run, url):
    count = int(await run(f"{url}/getCaseCount", False))
    for number in range(1, count + 1):
        await run(f"{url}/runCase?case={number}&agent={AGENT}", True)
    await run(f"{url}/updateReports?agent={AGENT}", False)


async def run_server(face):
    if face == "server":
        server = Server(compression="deflate", on_message=lambda socket, data: socket.send(data))
        _, port = (await server.start()).address
    elif face == "listener":
        server = await listener.serve(lambda _: Echo(), HOST, 0, compression="deflate")
        _, port = server.sockets[0].getsockname()
    else:
        server = await websockets.serve(echo, HOST, 0, max_size=MAX_MESSAGE)
        _, port = server.sockets[0].getsockname()
    print(f"listening on {HOST}:{port}", flush=True)
    await server.wait_closed()


def main():
    face, *url = sys.argv[1:]
    clients = {"websockets": run_websockets, "listener": run_listener}
    asyncio.run(run_client(clients[face], url[0]) if url else run_server(face))


main()
