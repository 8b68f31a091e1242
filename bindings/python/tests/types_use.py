"""The API as programs use it: ``test_types.py`` checks this file with mypy, and nothing runs it. A line with ``type: ignore``
must be an error.
"""

import asyncio
from typing import Optional, Union

from sinews import Request, Response, Server, WebSocket
from sinews.listener import BINARY, Connection, Listener, connect, serve
from sinews.websockets import ConnectionClosed, ServerConnection, broadcast
from sinews.websockets import connect as connect_websocket
from sinews.websockets import serve as serve_websocket


class Echo(Listener):
    def on_message(self, conn: Connection, kind: int, payload: Union[str, bytes]) -> None:
        is_slow: bool = conn.send(payload, BINARY)
        if is_slow:
            conn.close(1008, "slow")


async def listener() -> None:
    server = await serve(lambda request: Echo(), "localhost", 0, compression="deflate")
    conn = await connect(Echo, "ws://localhost")
    code: Optional[int] = conn.close_code
    conn.close("1000")  # type: ignore[arg-type]
    await serve(lambda request: 5, "localhost", 0)  # type: ignore[arg-type, return-value]
    async with server:
        print(code)


async def echo(websocket: ServerConnection) -> None:
    try:
        async for message in websocket:
            text: str = message if isinstance(message, str) else message.decode()
            await websocket.send(text)
    except ConnectionClosed as error:
        print(error.code, error.reason, websocket.remote_address)


async def websockets() -> None:
    async with serve_websocket(echo, "localhost", 0) as server, connect_websocket("ws://localhost") as client:
        broadcast(server.connections, "text")
        pong = await client.ping()
        latency: float = await pong
        print(latency, await client.recv(decode=False))
    async for client in connect_websocket("ws://localhost"):
        await client.close(1000, "done")
    connect_websocket(5)  # type: ignore[arg-type]
    serve_websocket(lambda websocket: None, "localhost", "port")  # type: ignore[arg-type, return-value]


def on_message(socket: WebSocket, data: Union[str, bytes]) -> None:
    socket.subscribe("room")
    socket.send(5)  # type: ignore[arg-type]


async def later(request: Request) -> Response:
    return Response(request.body, status=201, headers={"x-target": request.target})


async def batches() -> None:
    server = Server(port=0, routes={"/": lambda request: "fixed", "/later": later}, on_message=on_message)
    Server(prot=0)  # type: ignore[call-arg]
    async with server:
        is_queued: bool = server.publish("room", b"bytes")
        print(is_queued, server.address[1])


asyncio.run(listener())
