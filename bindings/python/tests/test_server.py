"""`sinews.Server`, with clients of `sinews.websockets` and plain HTTP."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest

import sinews
from sinews import Response, Server
from sinews.websockets import ConnectionClosed, connect


def url(server, path="/"):
    return f"ws://127.0.0.1:{server.address[1]}{path}"


async def fetch(server, path, body=None):
    target = f"http://127.0.0.1:{server.address[1]}{path}"

    def request():
        try:
            with urllib.request.urlopen(target, body, timeout=30) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    return await asyncio.get_running_loop().run_in_executor(None, request)


async def test_messages_are_echoed_in_order():
    async with Server(on_message=lambda socket, data: socket.send(data)) as server, connect(url(server)) as client:
        for at in range(200):
            await client.send(f"message {at} ü")
        await client.send(b"\x00\xff")
        assert [await client.recv() for _ in range(200)] == [f"message {at} ü" for at in range(200)]
        assert await client.recv() == b"\x00\xff"


async def test_sends_outside_of_a_handler_leave_by_themselves():
    opened = asyncio.get_running_loop().create_future()
    async with Server(on_open=opened.set_result) as server, connect(url(server, "/")) as client:
        socket = await opened
        for at in range(3):
            assert not socket.send(f"later {at}")
            assert await client.recv() == f"later {at}"
        assert socket.target == "/" and socket.remote_address[0] == "127.0.0.1" and "host" in socket.headers


async def test_publications_reach_subscribers_of_topics_and_patterns():
    def subscribe(socket, topic):
        socket.subscribe(topic)
        server.publish("news.sport", "from a handler")

    async with Server(on_message=subscribe) as server:
        async with connect(url(server)) as one, connect(url(server)) as two:
            await one.send("news.sport")
            assert await one.recv() == "from a handler"
            await two.send("news.>")
            assert await two.recv() == "from a handler"
            assert await one.recv() == "from a handler"
            assert server.publish("news.music", b"song")
            assert await two.recv() == b"song"
            with pytest.raises(ValueError, match="topic"):
                server.publish("a..b", "")


async def test_close_is_reported_with_code_and_reason():
    closed = asyncio.get_running_loop().create_future()

    def on_close(socket, code, reason):
        closed.set_result((code, reason, socket.is_open, socket.send("late"), socket.data))

    def on_open(socket):
        socket.data = 7

    async with Server(on_open=on_open, on_close=on_close) as server, connect(url(server)) as client:
        await client.close(4000, "bye")
        assert await closed == (4000, "bye", False, True, 7)


async def test_routes_answer_at_once_or_later():
    async def later(request):
        await asyncio.sleep(0)
        text = json.dumps([request.method, request.target, request.body.decode()])
        return Response(text, status=201, headers={"content-type": "application/json"})

    async with Server(path=None, routes={"/text": lambda _: "fixed", "/users/{id}": later}) as server:
        status, headers, body = await fetch(server, "/text")
        assert (status, headers["content-type"], body) == (200, "text/plain; charset=utf-8", b"fixed")
        status, headers, body = await fetch(server, "/users/5?x=1", b"a\n\nb")
        assert (status, headers["content-type"]) == (201, "application/json")
        assert json.loads(body) == ["POST", "/users/5?x=1", "a\n\nb"]
        assert (await fetch(server, "/none"))[0] == 404


async def test_handlers_that_raise_close_their_connection():
    errors = []

    def fail(*_):
        raise RuntimeError("handler")

    async def fail_later(_):
        raise RuntimeError("later")

    routes = {"/now": fail, "/later": fail_later, "/number": lambda _: 5, "/status": lambda _: Response(status=99)}
    server = Server(on_message=fail, routes=routes, on_error=lambda error, socket: errors.append(str(error)))
    async with server, connect(url(server)) as client:
        await client.send("x")
        with pytest.raises(ConnectionClosed) as info:
            await client.recv()
        assert (info.value.rcvd.code, info.value.rcvd.reason) == (1011, "handler failed")
        for route in routes:
            assert (await fetch(server, route))[0] == 500
    assert errors[:3] == ["handler", "handler", "later"]
    assert "data must be str" in errors[3] and "status: 99" in errors[4]


async def test_sends_of_a_callback_precede_its_publications():
    sockets = []

    def on_open(socket):
        socket.subscribe("room")
        sockets.append(socket)

    async with Server(on_open=on_open) as server:
        clients = [await connect(url(server)) for _ in range(40)]
        for socket in sockets:
            socket.send("send")
        assert server.publish("room", "publication")
        for client in clients:
            assert [await client.recv(), await client.recv()] == ["send", "publication"]
            await client.close()


async def test_most_specific_route_answers_and_faults_of_requests_close_no_connection():
    async def cancelled(_):
        raise asyncio.CancelledError

    def fail_again(*_):
        raise RuntimeError("second")

    routes = {"/{*rest}": lambda _: Response("x", headers=5), "/users/{id}": lambda _: "user", "/cancelled": cancelled}
    server = Server(path="/socket", routes=routes, on_error=fail_again, on_message=lambda socket, data: socket.send(data))
    async with server, connect(url(server, "/socket")) as client:
        assert (await fetch(server, "/users/5"))[2] == b"user"
        for _ in range(3):
            assert (await fetch(server, "/other"))[0] == 500
        assert (await fetch(server, "/cancelled"))[0] == 500
        await client.send("still open")
        assert await client.recv() == "still open"
    with pytest.raises(ValueError, match="routes"):
        await Server(routes={"/{a}": lambda _: "", "/{b}": lambda _: ""}).start()


#: `on_error` fails.
test_most_specific_route_answers_and_faults_of_requests_close_no_connection.reports = True


async def test_drain_follows_a_large_message_that_compression_makes_short():
    drained = asyncio.get_running_loop().create_future()
    server = Server(
        compression="deflate",
        on_open=lambda socket: socket.send("x" * 200_000),
        on_drain=lambda socket: drained.set_result(socket.send("y")),
    )
    async with server, connect(url(server), compression="deflate") as client:
        assert not await drained
        assert [len(await client.recv()), len(await client.recv())] == [200_000, 1]


async def test_invalid_options_are_named():
    for options, error, text in [
        ({"port": 70000}, ValueError, "port"),
        ({"on_message": 1}, TypeError, "on_message"),
        ({"routes": {"/": 1}}, TypeError, "routes"),
        ({"max_message": 0}, ValueError, "max_message"),
        ({"compression": "gzip"}, ValueError, "compression"),
        ({"origins": "a"}, TypeError, "origins"),
    ]:
        with pytest.raises(error, match=text):
            Server(**options)
    for options, text in [({"path": "chat"}, "chat"), ({"host": "example"}, "host"), ({"origins": ["x y"]}, "origins")]:
        with pytest.raises(ValueError, match=text):
            await Server(**options).start()
    async with Server() as server:
        with pytest.raises(OSError):
            await Server(port=server.address[1]).start()
        # A second start would close the descriptor that the loop watches.
        with pytest.raises(RuntimeError, match="started"):
            await server.start()
    with pytest.raises(TypeError):
        Server(unknown=1)


async def test_stop_closes_connections_with_1001():
    server = await Server().start()
    client = await connect(url(server))
    stopping = asyncio.ensure_future(server.stop())
    with pytest.raises(ConnectionClosed) as info:
        await client.recv()
    assert info.value.rcvd.code == 1001
    await stopping
    await server.wait_closed()
    assert sinews.__version__
