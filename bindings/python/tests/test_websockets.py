"""The API of the package websockets."""

import asyncio
import contextlib
import re

import pytest
from certificates import server_and_client_context

from sinews.websockets import (
    ConcurrencyError,
    ConnectionClosed,
    ConnectionClosedError,
    ConnectionClosedOK,
    Headers,
    InvalidHandshake,
    InvalidMessage,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
    MultipleValuesError,
    PayloadTooBig,
    Response,
    State,
    basic_auth,
    broadcast,
    connect,
    serve,
    unix_connect,
    unix_serve,
)


async def echo(websocket):
    async for message in websocket:
        await websocket.send(message)


def address(server, scheme="ws", path="/"):
    return f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"


@contextlib.asynccontextmanager
async def pair(handler=echo, *, client=None, **options):
    """Starts a server, and connects a client."""
    async with serve(handler, "127.0.0.1", 0, **options) as server:
        async with connect(address(server), **(client or {})) as websocket:
            yield websocket


async def test_messages_are_echoed_in_order():
    for compression in (None, "deflate"):
        async with pair(compression=compression, client={"compression": compression}) as websocket:
            sent = ["text é", b"\0\xff", "", b"", "x" * 300_000]
            for message in sent:
                await websocket.send(message)
            assert [await websocket.recv() for _ in sent] == sent
            for message in (bytearray(b"array"), memoryview(b"view")):
                await websocket.send(message)
                assert await websocket.recv() == bytes(message)


async def test_text_and_decode_convert_messages():
    async with pair() as websocket:
        await websocket.send("é")
        assert await websocket.recv(decode=False) == "é".encode()
        await websocket.send(b"\xc3\xa9")
        assert await websocket.recv(decode=True) == "é"
        await websocket.send(b"\xc3\xa9", text=True)
        assert await websocket.recv() == "é"
        await websocket.send("é", text=False)
        assert await websocket.recv() == b"\xc3\xa9"
        await websocket.send(b"\xff")
        with pytest.raises(ConnectionClosedError) as info:
            await websocket.recv(decode=True)
        assert info.value.sent.code == 1007 and isinstance(info.value.__cause__, UnicodeDecodeError)


async def test_iterables_are_fragmented_messages():
    async def pieces():
        for piece in ("async ", "é", ""):
            yield piece

    async with pair() as websocket:
        await websocket.send(["one ", "two"])
        assert await websocket.recv() == "one two"
        await websocket.send([b"one", b"two"])
        assert await websocket.recv() == b"onetwo"
        await websocket.send(pieces())
        assert await websocket.recv() == "async é"
        await websocket.send([])
        await websocket.send("next")
        assert [piece async for piece in websocket.recv_streaming()] == ["next"]


async def test_other_messages_wait_for_the_last_fragment():
    go = asyncio.Event()

    async def pieces():
        yield "first"
        yield " second"
        await go.wait()
        yield " third"

    async with pair() as websocket:
        fragmented = asyncio.create_task(websocket.send(pieces()))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(websocket.send(text)) for text in ("a", "b")]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(fragmented, *waiting)
        received = [await websocket.recv() for _ in range(3)]
        assert received[0] == "first second third" and sorted(received[1:]) == ["a", "b"]


async def test_fragments_that_fail_close_with_1011():
    async with pair() as websocket:
        with pytest.raises(TypeError, match="uniform types"):
            await websocket.send(["a", b"b", "c"])
        with pytest.raises(ConnectionClosedError) as info:
            await websocket.recv()
        assert info.value.sent.code == 1011


async def test_invalid_messages_are_type_errors():
    async with pair() as websocket:
        for message in (3, None, {"a": 1}, [1]):
            with pytest.raises(TypeError, match="data"):
                await websocket.send(message)
            if message == [1]:
                break
        with pytest.raises(TypeError, match="reason"):
            await websocket.close(1000, 3)
        with pytest.raises(TypeError, match="data"):
            await websocket.ping(3)


async def test_cancelled_recv_loses_no_message():
    async with pair() as websocket:
        for round_ in range(20):
            receiving = asyncio.create_task(websocket.recv())
            await asyncio.sleep(0)
            if round_ % 2:
                await websocket.send(str(round_))
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            if not round_ % 2:
                await websocket.send(str(round_))
            assert await websocket.recv() == str(round_)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(websocket.recv(), 0.01)
        await websocket.send("last")
        assert await asyncio.wait_for(websocket.recv(), 5) == "last"


async def test_second_recv_is_a_concurrency_error():
    async with pair() as websocket:
        receiving = asyncio.create_task(websocket.recv())
        await asyncio.sleep(0)
        with pytest.raises(ConcurrencyError):
            await websocket.recv()
        await websocket.send("one")
        assert await receiving == "one"


async def test_queue_bounds_what_is_read_and_send_waits():
    handler_goes = asyncio.Event()
    received = []

    async def slow(websocket):
        await handler_goes.wait()
        async for message in websocket:
            received.append(len(message))

    async with pair(slow, max_queue=(4, 1), compression=None) as websocket:
        sent = 0
        with contextlib.suppress(asyncio.TimeoutError):
            while sent < 1_000:
                await asyncio.wait_for(websocket.send(bytes(100_000)), 0.2)
                sent += 1
        handler_goes.set()
        assert 4 < sent < 500
        # The cancelled call has queued its message, too.
        await websocket.send(b"end")
        await websocket.close()
    assert received == [100_000] * (sent + 1) + [3]


async def test_close_frees_a_full_queue():
    async def flood(websocket):
        for _ in range(100):
            await websocket.send(bytes(100_000))
        await websocket.wait_closed()

    async with pair(flood, client={"max_queue": 1}) as websocket:
        assert len(await websocket.recv()) == 100_000
        await websocket.close()
        assert websocket.close_code == 1000


async def test_close_codes_and_exceptions():
    async def closes(websocket):
        await websocket.close(3001, "done")

    async with pair(closes) as websocket:
        with pytest.raises(ConnectionClosedError) as info:
            await websocket.recv()
        error = info.value
        assert (error.rcvd.code, error.rcvd.reason, error.sent.code) == (3001, "done", 3001)
        assert error.rcvd_then_sent is True
        assert str(error) == "received 3001 (registered) done; then sent 3001 (registered) done"
        assert (websocket.close_code, websocket.close_reason) == (3001, "done")
        assert websocket.state is State.CLOSED
        with pytest.raises(ConnectionClosedError):
            await websocket.send("late")
        with pytest.raises(ConnectionClosedError):
            await websocket.ping()
        with pytest.raises(ConnectionClosedError):
            await websocket.pong()

    async with pair() as websocket:
        assert websocket.state is State.OPEN and websocket.close_code is None
        await websocket.close()
        with pytest.raises(ConnectionClosedOK, match=r"sent 1000 \(OK\); then received 1000 \(OK\)"):
            await websocket.recv()
        await websocket.close()
        await websocket.wait_closed()
        assert [message async for message in websocket] == []


async def test_lost_transport_is_1006():
    async def aborts(websocket):
        websocket.transport.abort()

    async with pair(aborts) as websocket:
        with pytest.raises(ConnectionClosedError, match="no close frame received or sent"):
            await websocket.recv()
        assert websocket.close_code == 1006


async def test_message_above_max_size_closes_with_1009():
    errors = []

    async def handler(websocket):
        try:
            await websocket.recv()
        except ConnectionClosed as error:
            errors.append(error)

    async with pair(handler, max_size=100) as websocket:
        await websocket.send("x" * 101)
        with pytest.raises(ConnectionClosedError) as info:
            await websocket.recv()
        assert info.value.rcvd.code == 1009
    assert isinstance(errors[0].__cause__, PayloadTooBig)


async def test_handler_that_raises_closes_with_1011_and_logs(caplog):
    async def raises(websocket):
        raise ZeroDivisionError("in the handler")

    async with pair(raises) as websocket:
        with pytest.raises(ConnectionClosedError) as info:
            await websocket.recv()
        assert info.value.rcvd.code == 1011
    assert "connection handler failed" in caplog.text and "in the handler" in caplog.text


async def test_pings_measure_the_latency():
    async with pair() as websocket:
        pong = await websocket.ping()
        first, second = await websocket.ping(b"1"), await websocket.ping("2")
        with pytest.raises(ConcurrencyError):
            await websocket.ping(b"1")
        assert await second > 0 and websocket.latency > 0
        assert pong.done() and first.done()
        await websocket.pong(b"unsolicited")
        pong = await websocket.ping()
        websocket.abort()
        with pytest.raises(ConnectionClosedError):
            await pong


async def test_keepalive_closes_with_1011():
    options = {"ping_interval": 0.05, "ping_timeout": 0.05, "close_timeout": 0.05}
    async with serve(echo, "127.0.0.1", 0, **options) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(
            b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        frames = (await reader.read()).split(b"\r\n\r\n", 1)[1]
        assert frames[6:] == b"\x88\x0e\x03\xf3ping timeout"
        writer.close()


async def test_keepalive_measures_the_latency():
    async with pair(client={"ping_interval": 0.02}) as websocket:
        while not websocket.latency:
            await asyncio.sleep(0.01)


async def test_close_resumes_paused_reads():
    async with pair() as websocket:
        websocket.pause_reads()
        await websocket.close()
        assert websocket.close_code == 1000


async def test_request_response_and_addresses():
    seen = []

    async def handler(websocket):
        seen.append((websocket.request.path, websocket.request.headers["X-Test"], websocket.remote_address))
        assert websocket.id and websocket.subprotocol == "chat"

    options = {"additional_headers": {"X-Test": "1"}, "subprotocols": ["other", "chat"], "origin": "http://a"}
    async with serve(handler, "127.0.0.1", 0, subprotocols=["chat"], origins=["http://a"]) as server:
        async with connect(address(server, path="/p?q=1"), **options) as websocket:
            assert websocket.response.status_code == 101
            assert websocket.response.reason_phrase == "Switching Protocols"
            assert websocket.subprotocol == "chat"
            local = websocket.local_address
            await websocket.wait_closed()
    assert seen == [("/p?q=1", "1", local)]


async def test_process_request_and_response():
    async def process_request(connection, request):
        await asyncio.sleep(0)
        if request.path == "/health":
            return connection.respond(200, "OK\n")
        if request.path == "/raises":
            raise ZeroDivisionError
        return None

    def process_response(connection, request, response):
        response.headers["X-Extra"] = "1"

    async with serve(
        echo, "127.0.0.1", 0, process_request=process_request, process_response=process_response
    ) as server:
        for path, status, body in [("/health", 200, b"OK\n"), ("/raises", 500, b"Failed to open")]:
            with pytest.raises(InvalidStatus) as info:
                await connect(address(server, path=path))
            assert info.value.response.status_code == status
            assert info.value.response.body.startswith(body)
        async with connect(address(server)) as websocket:
            assert websocket.response.headers["x-extra"] == "1"


async def test_select_subprotocol_and_origins():
    def select(connection, subprotocols):
        return subprotocols[-1] if subprotocols else None

    origins = [None, re.compile(r"https://.*\.example")]
    async with serve(echo, "127.0.0.1", 0, select_subprotocol=select, origins=origins) as server:
        async with connect(address(server), subprotocols=["a", "b"], origin="https://x.example") as websocket:
            assert websocket.subprotocol == "b"
        with pytest.raises(InvalidStatus) as info:
            await connect(address(server), origin="https://example.evil")
        assert info.value.response.status_code == 403
    async with serve(echo, "127.0.0.1", 0, subprotocols=["a"]) as server:
        with pytest.raises(InvalidStatus, match="400"):
            await connect(address(server))


async def test_basic_authentication():
    auth = basic_auth("realm", credentials=("user", "secret"))

    async def handler(websocket):
        await websocket.send(websocket.username)

    async with serve(handler, "127.0.0.1", 0, process_request=auth) as server:
        uri = address(server)
        async with connect(uri.replace("//", "//user:secret@")) as websocket:
            assert await websocket.recv() == "user"
        for bad in (uri, uri.replace("//", "//user:wrong@")):
            with pytest.raises(InvalidStatus) as info:
                await connect(bad)
            assert info.value.response.status_code == 401


async def test_redirects_are_followed():
    async with serve(echo, "127.0.0.1", 0) as target:

        def redirect(connection, request):
            response = connection.respond(302, "")
            response.headers["Location"] = address(target)
            return response

        async with serve(echo, "127.0.0.1", 0, process_request=redirect) as server:
            async with connect(address(server)) as websocket:
                assert websocket.remote_address[1] == target.sockets[0].getsockname()[1]


async def test_async_for_reconnects():
    async def once(websocket):
        await websocket.send("hello")
        await websocket.close(1012)

    attempts = 0

    def refuse_first(connection, request):
        nonlocal attempts
        attempts += 1
        return connection.respond(503, "retry later") if attempts == 1 else None

    async with serve(once, "127.0.0.1", 0, process_request=refuse_first) as server:
        received = []
        async for websocket in connect(address(server), reconnect_delays=lambda: iter([0.0] * 9)):
            try:
                async for message in websocket:
                    received.append(message)
            except ConnectionClosed:
                if len(received) == 3:
                    break
        assert received == ["hello"] * 3 and attempts == 4
        with pytest.raises(InvalidStatus):
            async for _ in connect(address(server), process_exception=lambda error: error):
                attempts = 0
                break
            attempts = 0
            async for _ in connect(address(server), process_exception=lambda error: error):
                pass


async def test_broadcast_reaches_open_connections():
    async def wait(websocket):
        await websocket.wait_closed()

    async with serve(wait, "127.0.0.1", 0) as server:
        clients = [await connect(address(server)) for _ in range(3)]
        while len(server.connections) < 3:
            await asyncio.sleep(0)
        broadcast(server.connections, "to all")
        assert [await client.recv() for client in clients] == ["to all"] * 3
        with pytest.raises(TypeError, match="message"):
            broadcast(server.connections, 3)


async def test_server_close_closes_connections_with_1001():
    server = await serve(echo, "127.0.0.1", 0)
    assert server.is_serving() and server.get_loop() is asyncio.get_running_loop()
    websocket = await connect(address(server))
    serving = asyncio.create_task(server.serve_forever())
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(ConnectionClosedOK) as info:
        await websocket.recv()
    assert info.value.rcvd.code == 1001 and not server.is_serving()
    with pytest.raises(OSError):
        await connect(f"ws://127.0.0.1:{websocket.remote_address[1]}/")


async def test_unix_sockets(tmp_path):
    path = str(tmp_path / "socket")
    async with unix_serve(echo, path):
        async with unix_connect(path) as websocket:
            await websocket.send("local")
            assert await websocket.recv() == "local"


async def test_tls(tmp_path):
    server_context, client_context = server_and_client_context(tmp_path)
    async with serve(echo, "127.0.0.1", 0, ssl=server_context) as server:
        options = {"ssl": client_context, "server_hostname": "localhost"}
        async with connect(address(server, "wss"), **options) as websocket:
            for message in ("small", b"x" * 500_000):
                await websocket.send(message)
                assert await websocket.recv() == message
            assert websocket.transport.get_extra_info("ssl_object") is not None
        assert websocket.close_code == 1000


async def test_handshakes_that_fail():
    async def answers(data):
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            writer.close()

        return await asyncio.start_server(answer, "127.0.0.1", 0)

    for data, error in [
        (b"", InvalidMessage),
        (b"SSH-2.0\r\n\r\n", InvalidMessage),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", InvalidHandshake),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 100\r\n\r\ncut", InvalidStatus),
    ]:
        server = await answers(data)
        with pytest.raises(error) as info:
            await connect(address(server), open_timeout=5)
        if error is InvalidStatus:
            assert info.value.response.body == b"cut"
        server.close()


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"max_size": "1"}, TypeError, "max_size"),
        ({"max_queue": -1}, ValueError, "max_queue"),
        ({"max_queue": (1, 2)}, ValueError, "max_queue"),
        ({"write_limit": []}, TypeError, "write_limit"),
        ({"ping_interval": "soon"}, TypeError, "ping_interval"),
        ({"ping_timeout": -1}, ValueError, "ping_timeout"),
        ({"close_timeout": "x"}, TypeError, "close_timeout"),
        ({"open_timeout": 0}, ValueError, "open_timeout"),
        ({"compression": "gzip"}, ValueError, "compression"),
        ({"subprotocols": "chat"}, TypeError, "subprotocols"),
        ({"extensions": [1]}, ValueError, "extensions"),
        ({"additional_headers": {"a": 1}}, TypeError, "additional_headers"),
        ({"extra_headers": {"a": "\n"}}, ValueError, "extra_headers"),
        ({"logger": None, "create_connection": 3}, TypeError, "create_connection"),
    ],
)
def test_invalid_options_are_named(options, error, name):
    with pytest.raises(error, match=name):
        connect("ws://127.0.0.1:1/", **options)
    with pytest.raises(error, match=name):
        serve(echo, "127.0.0.1", 0, **options)


def test_invalid_uris_and_server_options():
    for uri in ("http://a/", "ws:///", "ws://a/#b", "ws://a:b/"):
        with pytest.raises(InvalidURI):
            connect(uri)
    with pytest.raises(TypeError, match="uri"):
        connect(3)
    with pytest.raises(InvalidProxy):
        connect("ws://a/", proxy="http://proxy/")
    with pytest.raises(ValueError, match="ssl"):
        connect("ws://a/", ssl=True)
    for options, name in [({"origins": "a"}, "origins"), ({"origins": [1]}, "origins"), ({"process_request": 1}, "process_request")]:
        with pytest.raises(TypeError, match=name):
            serve(echo, **options)
    with pytest.raises(TypeError, match="handler"):
        serve(None)


def test_headers_are_case_insensitive():
    headers = Headers([("Set-Cookie", "a"), ("set-cookie", "b")], Name="value")
    assert headers.get_all("SET-COOKIE") == ["a", "b"] and headers["name"] == "value"
    with pytest.raises(MultipleValuesError):
        headers["Set-Cookie"]
    del headers["set-Cookie"]
    assert list(headers) == ["name"] and "NAME" in headers and headers == Headers(name="value")
    assert headers.serialize() == b"Name: value\r\n\r\n"
    assert repr(Response(200, "OK", headers)).startswith("Response(status_code=200")


async def test_pieces_of_a_message_are_checked_first_and_last():
    for pieces in ([None], ["a", None]):
        async with pair() as websocket:
            with pytest.raises(TypeError, match="str or bytes"):
                await websocket.send(pieces)


async def test_process_request_may_change_the_request():
    def remove_key(connection, request):
        del request.headers["Sec-WebSocket-Key"]

    with pytest.raises(InvalidStatus, match="400"):
        async with pair(process_request=remove_key):
            pass


async def test_connect_is_not_reentrant():
    async with serve(echo, "127.0.0.1", 0) as server:
        connecting = connect(address(server))
        for _ in range(2):
            async with connecting as websocket:
                assert websocket.uri.path == "/" and websocket.logger.extra == {"websocket": websocket}
                with pytest.raises(RuntimeError, match="reentrant"):
                    await connecting.__aenter__()
    with pytest.raises(ValueError, match="no path and sock"):
        await unix_connect()


async def test_answers_to_messages_before_a_close_precede_its_answer():
    async with pair() as websocket:
        # Both leave together, and the handler that waits receives both.
        await websocket.send("last")
        await websocket.close()
        assert await websocket.recv() == "last"
