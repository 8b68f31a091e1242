"""Callbacks without coroutines."""

import asyncio
import socket
import ssl

import pytest
from certificates import server_and_client_context
from conftest import reports

from sinews.listener import BINARY, TEXT, HandshakeError, Listener, Response, connect, serve, text_response


class Echo(Listener):
    def on_message(self, conn, kind, payload):
        conn.send(payload, kind)


class Recorder(Listener):
    """Records the events, and completes futures for those that a test awaits."""

    def __init__(self):
        self.events = []
        self.changed = asyncio.Event()

    def record(self, *event):
        self.events.append(event)
        self.changed.set()

    def on_connected(self, conn):
        self.record("connected")

    def on_message(self, conn, kind, payload):
        self.record("message", kind, payload)

    def on_ping(self, conn, payload):
        self.record("ping", payload)

    def on_pong(self, conn, payload, latency):
        self.record("pong", payload)

    def on_drain(self, conn):
        self.record("drain")

    def on_disconnected(self, conn):
        self.record("disconnected", conn.close_code, conn.close_reason)

    async def until(self, count):
        while len(self.events) < count:
            self.changed.clear()
            await self.changed.wait()
        return self.events


def address(server, scheme="ws"):
    return f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/path?query=1"


async def pair(server_listener, client_listener, server_options=(), client_options=()):
    """Starts a server and a client."""
    server = await serve(lambda request: server_listener, "127.0.0.1", 0, **dict(server_options))
    connection = await connect(client_listener, address(server), **dict(client_options))
    return server, connection


async def test_messages_are_echoed_in_order():
    client = Recorder()
    server, conn = await pair(Echo(), client)
    async with server:
        sent = [(TEXT, "text é"), (BINARY, b"\0\xff"), (TEXT, ""), (BINARY, b""), (TEXT, "x" * 300_000)]
        for kind, payload in sent:
            conn.send(payload)
        conn.send(bytearray(b"array"))
        conn.send(memoryview(b"view"))
        conn.send(b"as text", TEXT)
        await client.until(9)
        expected = [("message", kind, payload) for kind, payload in sent]
        expected += [("message", BINARY, b"array"), ("message", BINARY, b"view"), ("message", TEXT, "as text")]
        assert client.events == [("connected",), *expected]
        conn.close(3000, "done")
        await conn.wait_disconnected()
        assert client.events[-1] == ("disconnected", 3000, "done")
        assert conn.local_address[1] and conn.request.path == "/path?query=1"


async def test_compression_is_negotiated_if_both_ends_enable_it():
    client = Recorder()
    deflate = {"compression": "deflate"}
    server, conn = await pair(Echo(), client, deflate, deflate)
    async with server:
        assert "permessage-deflate" in conn.response.headers["Sec-WebSocket-Extensions"]
        text = "compressible " * 10_000
        conn.send(text)
        await client.until(2)
        assert client.events[1] == ("message", TEXT, text)
        plain = await connect(Recorder(), address(server))
        assert "Sec-WebSocket-Extensions" not in plain.response.headers
        plain.abort()


async def test_control_frames_reach_the_listeners():
    client, recorder = Recorder(), Recorder()
    server, conn = await pair(recorder, client)
    async with server:
        conn.ping(b"are you there")
        assert await client.until(2) == [("connected",), ("pong", b"are you there")]
        assert await recorder.until(2) == [("connected",), ("ping", b"are you there")]
        conn.abort()
        await recorder.until(3)
        assert recorder.events[2] == ("disconnected", 1006, "")


@reports
async def test_handler_that_raises_closes_with_1011_and_reports(reported):
    class Raises(Listener):
        count = 0

        def on_message(self, conn, kind, payload):
            self.count += 1
            raise ZeroDivisionError("in the handler")

    client, raises = Recorder(), Raises()
    server, conn = await pair(raises, client)
    async with server:
        conn.send("one")
        conn.send("two")
        await conn.wait_disconnected()
        assert conn.close_code == 1011 and raises.count == 1
        assert [str(context["exception"]) for context in reported] == ["in the handler"]


@reports
async def test_factory_that_raises_is_500(reported):
    def factory(request):
        raise ZeroDivisionError("in the factory")

    async with await serve(factory, "127.0.0.1", 0) as server:
        with pytest.raises(HandshakeError) as info:
            await connect(Recorder(), address(server))
        assert info.value.response.status_code == 500
        assert len(reported) == 1


async def test_factory_rejects_with_a_response():
    async with await serve(lambda request: text_response(404, request.path), "127.0.0.1", 0) as server:
        with pytest.raises(HandshakeError) as info:
            await connect(Recorder(), address(server))
        response = info.value.response
        assert isinstance(response, Response)
        assert (response.status_code, response.body) == (404, b"/path?query=1")


async def test_requests_that_are_no_handshake_are_rejected():
    async with await serve(lambda request: Echo(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for request, status in [
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"426"),
            (b"nonsense\r\n\r\n", b"400"),
        ]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            response = await reader.read()
            assert response.split(b" ")[1] == status, response
            writer.close()


async def test_send_says_when_to_slow_down_and_on_drain_when_to_continue():
    class Counter(Listener):
        received = 0

        def on_message(self, conn, kind, payload):
            self.received += len(payload)

    counter, client = Counter(), Recorder()
    server, conn = await pair(counter, client)
    async with server:
        sent = 0
        while not conn.send(bytes(100_000)):
            sent += 1
            assert sent < 1_000
        assert conn.buffered > 64 << 10
        await client.until(2)
        assert client.events[1] == ("drain",) and conn.buffered <= 64 << 10
        conn.close()
        await conn.wait_disconnected()
        assert counter.received == (sent + 1) * 100_000


async def test_slow_client_is_disconnected_at_max_outbound():
    class Floods(Listener):
        def on_connected(self, conn):
            while conn.is_open:
                conn.send(bytes(100_000))

    floods, client = Floods(), Recorder()
    options = {"max_outbound": 500_000}
    server = await serve(lambda request: floods, "127.0.0.1", 0, **options)
    async with server:
        conn = await connect(client, address(server))
        await conn.wait_disconnected()
        assert (conn.close_code, conn.close_reason) == (1008, "too slow")


async def test_paused_reads_deliver_nothing_until_resumed():
    recorder, client = Recorder(), Recorder()
    server, conn = await pair(recorder, client)
    async with server:
        await recorder.until(1)
        (peer,) = server.connections
        peer.pause_reads()
        conn.send("later")
        # The peer's pong is behind its paused reads.
        conn.ping(b"1")
        await asyncio.sleep(0)
        conn.close()
        assert recorder.events == [("connected",)]
        peer.resume_reads()
        await conn.wait_disconnected()
        assert recorder.events[1:3] == [("message", TEXT, "later"), ("ping", b"1")]


async def test_message_above_the_limit_closes_with_1009():
    client = Recorder()
    server, conn = await pair(Echo(), client, {"max_message": 10})
    async with server:
        conn.send("x" * 11)
        await conn.wait_disconnected()
        assert conn.close_code == 1009


async def test_keepalive_disconnects_a_silent_peer():
    keepalive = {"ping_interval": 0.05, "pong_timeout": 0.05, "close_timeout": 0.05}
    recorder = Recorder()
    async with await serve(lambda request: recorder, "127.0.0.1", 0, **keepalive) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(
            b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        frames = (await reader.read()).split(b"\r\n\r\n", 1)[1]
        assert frames[:2] == b"\x89\x04" and frames[6:] == b"\x88\x0e\x03\xf3ping timeout"
        writer.close()
        await recorder.until(2)
        assert recorder.events[1][1] == 1006


async def test_handshake_that_takes_too_long_is_closed():
    async with await serve(lambda request: Echo(), "127.0.0.1", 0, open_timeout=0.05) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()


async def test_client_that_gets_no_response_times_out():
    kept = []
    silent = await asyncio.start_server(lambda *streams: kept.append(streams), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(TimeoutError, match="opening handshake"):
        await connect(Recorder(), f"ws://127.0.0.1:{port}/", open_timeout=0.05)
    for _, writer in kept:
        writer.close()
    silent.close()


async def test_subprotocol_is_the_servers_first_that_the_client_offers():
    names = {"subprotocols": ["b", "a"]}
    server, conn = await pair(Echo(), Recorder(), names, {"subprotocols": ["a", "b"]})
    async with server:
        assert conn.subprotocol == "b"
        (peer,) = server.connections
        assert peer.subprotocol == "b"


async def test_tls_uses_the_loops_transport(tmp_path):
    server_context, client_context = server_and_client_context(tmp_path)
    client = Recorder()
    server = await serve(lambda request: Echo(), "127.0.0.1", 0, ssl=server_context)
    async with server:
        options = {"ssl": client_context, "server_hostname": "localhost"}
        conn = await connect(client, address(server, "wss"), **options)
        assert isinstance(conn.get_extra_info("ssl_object"), (ssl.SSLObject, object))
        for size in (5, 1_000_000, 7):
            conn.send(b"x" * size)
        while len(messages := [event for event in client.events if event[0] == "message"]) < 3:
            await client.until(len(client.events) + 1)
        assert [len(payload) for _, _, payload in messages] == [5, 1_000_000, 7]
        conn.close()
        await conn.wait_disconnected()
        assert conn.close_code == 1000


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"max_message": "1"}, TypeError, "max_message"),
        ({"max_message": 0}, ValueError, "max_message"),
        ({"high_water": -1}, ValueError, "high_water"),
        ({"max_outbound": 1.5}, TypeError, "max_outbound"),
        ({"ping_interval": "soon"}, TypeError, "ping_interval"),
        ({"ping_interval": 0}, ValueError, "ping_interval"),
        ({"pong_timeout": -1}, ValueError, "pong_timeout"),
        ({"close_timeout": float("nan")}, ValueError, "close_timeout"),
        ({"compression": "gzip"}, ValueError, "compression"),
        ({"compression": "deflate", "compression_level": 10}, ValueError, "compression_level"),
        ({"subprotocols": "chat"}, TypeError, "subprotocols"),
        ({"subprotocols": ["a b"]}, ValueError, "subprotocols"),
        ({"additional_headers": {"Name": "a\r\nb"}}, ValueError, "additional_headers"),
        ({"additional_headers": {"Connection": "close"}}, ValueError, "additional_headers: Connection"),
        ({"open_timeout": []}, TypeError, "open_timeout"),
    ],
)
async def test_invalid_options_are_named(options, error, name):
    with pytest.raises(error, match=name):
        await connect(Recorder(), "ws://127.0.0.1:1/", **options)


async def test_invalid_arguments_are_named():
    for uri, reason in [("http://a/", "scheme"), ("ws:///", "hostname"), ("ws://a/#b", "fragment")]:
        with pytest.raises(ValueError, match=reason):
            await connect(Recorder(), uri)
    with pytest.raises(TypeError, match="listener"):
        await connect(3, "ws://127.0.0.1:1/")
    with pytest.raises(TypeError, match="factory"):
        await serve(None, "127.0.0.1", 0)
    server, conn = await pair(Echo(), Recorder())
    async with server:
        for call, error, name in [
            (lambda: conn.send(3), TypeError, "payload"),
            (lambda: conn.send({}), TypeError, "payload"),
            (lambda: conn.send("a", 7), ValueError, "kind"),
            (lambda: conn.send(b"\xff", TEXT), ValueError, "UTF-8"),
            (lambda: conn.close(999), ValueError, "code"),
            (lambda: conn.close("a"), TypeError, "code"),
            (lambda: conn.close(1000, "x" * 124), ValueError, "reason"),
            (lambda: conn.ping(b"x" * 126), ValueError, "125 bytes"),
        ]:
            with pytest.raises(error, match=name):
                call()
        assert conn.is_open


async def test_closed_connection_discards_messages():
    server, conn = await pair(Echo(), Recorder())
    async with server:
        conn.close()
        assert conn.send("late") is True
        await conn.wait_disconnected()
        assert conn.send("later") is True
        conn.close()
        conn.abort()


async def test_connection_that_another_one_closes_in_the_same_turn_is_not_read():
    connections, messages, others = [], [], []

    class Aborting(Listener):
        def on_connected(self, conn):
            connections.append(conn)

        def on_message(self, conn, kind, payload):
            messages.append(payload)
            for connection in connections:
                connection.abort()
            # They get the descriptors of the closed sockets, with input.
            for _ in range(2):
                pair = socket.socketpair()
                others.extend(pair)
                for sock in pair:
                    sock.send(b"other")

    server = await serve(lambda request: Aborting(), "127.0.0.1", 0)
    recorders = [Recorder(), Recorder()]
    clients = [await connect(recorder, address(server)) for recorder in recorders]
    while len(connections) < 2:
        await asyncio.sleep(0)
    for client in clients:
        client.send("hello")
    for recorder in recorders:
        await recorder.until(2)
    assert messages == ["hello"]
    for sock in others:
        sock.setblocking(False)
        assert sock.recv(16) == b"other"
        sock.close()
    server.close()
    await server.wait_closed()


async def test_answers_to_messages_before_a_close_precede_its_answer():
    client = Recorder()
    server, conn = await pair(Echo(), client)
    async with server:
        # One chunk.
        conn.send("last")
        conn.close(1000, "done")
        assert await client.until(3) == [("connected",), ("message", TEXT, "last"), ("disconnected", 1000, "done")]
