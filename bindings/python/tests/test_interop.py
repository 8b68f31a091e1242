"""Other packages on the other end."""

import asyncio

import pytest

import sinews.listener
import sinews.websockets


def port(server):
    return server.sockets[0].getsockname()[1]


MESSAGES = ["text é", b"\0\xff", "", b"", "x" * 70_000, bytes(300_000)]


async def echo(websocket):
    async for message in websocket:
        await websocket.send(message)


async def check_echo(websocket):
    for message in MESSAGES:
        await websocket.send(message)
        assert await websocket.recv() == message
    await websocket.send(["frag", "ments"])
    assert await websocket.recv() == "fragments"
    assert await (await websocket.ping()) >= 0
    await websocket.close(3000, "done")
    assert websocket.close_code == 3000


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_websockets_client(compression):
    client = pytest.importorskip("websockets.asyncio.client", reason="websockets is not installed")
    async with sinews.websockets.serve(echo, "127.0.0.1", 0, compression=compression) as server:
        async with client.connect(f"ws://127.0.0.1:{port(server)}/", compression=compression) as websocket:
            assert bool(websocket.protocol.extensions) == (compression is not None)
            await check_echo(websocket)


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_websockets_server(compression):
    module = pytest.importorskip("websockets.asyncio.server", reason="websockets is not installed")
    async with module.serve(echo, "127.0.0.1", 0, compression=compression) as server:
        uri = f"ws://127.0.0.1:{port(server)}/"
        async with sinews.websockets.connect(uri, compression=compression) as websocket:
            await check_echo(websocket)
        async with sinews.websockets.connect(uri) as websocket:
            server.close()
            with pytest.raises(sinews.websockets.ConnectionClosedOK) as info:
                await websocket.recv()
            assert info.value.rcvd.code == 1001


async def test_picows_client():
    picows = pytest.importorskip("picows", reason="picows is not installed")
    received, done = [], asyncio.get_running_loop().create_future()

    class Client(picows.WSListener):
        def on_ws_connected(self, transport):
            for message in MESSAGES:
                kind = picows.WSMsgType.TEXT if isinstance(message, str) else picows.WSMsgType.BINARY
                transport.send(kind, message.encode() if isinstance(message, str) else message)

        def on_ws_frame(self, transport, frame):
            if frame.msg_type == picows.WSMsgType.CLOSE:
                transport.disconnect()
                return
            is_text = frame.msg_type == picows.WSMsgType.TEXT
            received.append(frame.get_payload_as_utf8_text() if is_text else frame.get_payload_as_bytes())
            if len(received) == len(MESSAGES):
                transport.send_close(picows.WSCloseCode.OK)
                done.set_result(None)

    class Echo(sinews.listener.Listener):
        ended = asyncio.Event()

        def on_message(self, conn, kind, payload):
            conn.send(payload)

        def on_disconnected(self, conn):
            self.code = conn.close_code
            self.ended.set()

    listener = Echo()
    async with await sinews.listener.serve(lambda request: listener, "127.0.0.1", 0) as server:
        transport, _ = await picows.ws_connect(Client, f"ws://127.0.0.1:{port(server)}/")
        await done
        await listener.ended.wait()
        assert received == MESSAGES and listener.code == 1000
        await transport.wait_disconnected()


async def test_picows_server():
    picows = pytest.importorskip("picows", reason="picows is not installed")

    class Echo(picows.WSListener):
        def on_ws_frame(self, transport, frame):
            if frame.msg_type == picows.WSMsgType.CLOSE:
                transport.send_close(frame.get_close_code(), frame.get_close_message())
                transport.disconnect()
            else:
                transport.send(frame.msg_type, frame.get_payload_as_bytes())

    server = await picows.ws_create_server(lambda request: Echo(), "127.0.0.1", 0)
    async with sinews.websockets.connect(f"ws://127.0.0.1:{port(server)}/") as websocket:
        for message in MESSAGES:
            await websocket.send(message)
            assert await websocket.recv() == message
        await websocket.close()
        assert websocket.close_code == 1000
    server.close()
