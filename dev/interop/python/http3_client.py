"""The client of aioquic, with WebSockets of wsproto, against a server of HTTP/3:

    http3_client.py serve HOST PORT    the server is `sinews serve`
    http3_client.py example HOST PORT  the server is the example of `sinews-quic`, which echoes bodies and datagrams

Prints `ok NAME` or `FAIL NAME: why` for each check.
"""

import asyncio
import json
import ssl
import sys
import zlib

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3 import events
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.extensions import PerMessageDeflate

# Seconds: longer than a machine stalls.
LIMIT = 60


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic, enable_webtransport=True)
        self.waiting = {}
        self.seen = {}
        self.datagrams = asyncio.Queue()
        self.sockets = {}
        # Pieces of streams of WebTransport: stream, bytes, and whether they are the last.
        self.pieces = asyncio.Queue()
        self.ended = asyncio.get_running_loop().create_future()

    def quic_event_received(self, event: QuicEvent):
        if isinstance(event, ConnectionTerminated) and not self.ended.done():
            self.ended.set_result(event.error_code)
        if isinstance(event, StreamReset) and event.stream_id in self.sockets:
            self.sockets[event.stream_id].put_nowait(None)
        for seen in self.http.handle_event(event):
            if isinstance(seen, events.DatagramReceived):
                self.datagrams.put_nowait(seen.data)
                continue
            stream = seen.stream_id
            if isinstance(seen, events.WebTransportStreamDataReceived):
                self.pieces.put_nowait((stream, seen.data, seen.stream_ended))
                continue
            if isinstance(seen, events.DataReceived) and stream in self.sockets:
                self.sockets[stream].put_nowait(seen.data)
                if seen.stream_ended:
                    self.sockets[stream].put_nowait(None)
                continue
            self.seen.setdefault(stream, []).append(seen)
            is_head = isinstance(seen, events.HeadersReceived)
            waiting = self.waiting.get(stream)
            if waiting and not waiting[1].done() and (seen.stream_ended or (waiting[0] and is_head)):
                waiting[1].set_result(None)

    async def ask(self, fields, body=b"", ends=True):
        """Returns status and content; at the head, without the end of the request."""
        stream = self._quic.get_next_available_stream_id()
        self.waiting[stream] = (not ends, asyncio.get_running_loop().create_future())
        self.http.send_headers(stream, fields, ends and not body)
        if body:
            self.http.send_data(stream, body, ends)
        self.transmit()
        await asyncio.wait_for(self.waiting[stream][1], LIMIT)
        status = dict(self.seen[stream][0].headers)[b":status"]
        content = b"".join(e.data for e in self.seen[stream] if isinstance(e, events.DataReceived))
        return stream, int(status), content


def fields(method, path, *further):
    return [(b":method", method), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path), *further]


class WebSocket:
    """A WebSocket by extended CONNECT (RFC 9220)."""

    @classmethod
    async def open(cls, client, path, *further, deflate=False):
        self = cls()
        self.client, extension = client, PerMessageDeflate()
        offer = [(b"sec-websocket-version", b"13"), *further]
        if deflate:
            offer.append((b"sec-websocket-extensions", f"permessage-deflate; {extension.offer()}".encode()))
        connect = fields(b"CONNECT", path, *offer)
        connect.insert(1, (b":protocol", b"websocket"))
        self.received = asyncio.Queue()
        client.sockets[client._quic.get_next_available_stream_id()] = self.received
        self.stream, self.status, _ = await client.ask(connect, ends=False)
        agreed = dict(client.seen[self.stream][0].headers).get(b"sec-websocket-extensions")
        if deflate:
            assert agreed is not None, "no agreement"
            extension.finalize(agreed.decode())
        self.protocol = Connection(ConnectionType.CLIENT, [extension] if deflate else [])
        return self

    def send(self, event):
        self.client.http.send_data(self.stream, self.protocol.send(event), False)
        self.client.transmit()

    async def next(self):
        """Returns the next whole message or control frame."""
        pieces = []
        while True:
            for event in self.protocol.events():
                if not isinstance(event, (TextMessage, BytesMessage)):
                    return event
                pieces.append(event.data)
                if event.message_finished:
                    return type(event)(data=type(event.data)().join(pieces))
            data = await asyncio.wait_for(self.received.get(), LIMIT)
            assert data is not None, "the stream has ended"
            self.protocol.receive_data(data)

    async def end(self):
        while await asyncio.wait_for(self.received.get(), LIMIT) is not None:
            pass


class Session:
    """A session of WebTransport: messages on a stream that the server opens, each after its kind and its length."""

    @classmethod
    async def open(cls, client, path):
        self = cls()
        self.client, self.received, self.has_ended = client, b"", False
        connect = fields(b"CONNECT", path, (b"origin", b"https://localhost"))
        connect.insert(1, (b":protocol", b"webtransport"))
        self.capsules = asyncio.Queue()
        client.sockets[client._quic.get_next_available_stream_id()] = self.capsules
        self.session, self.status, _ = await client.ask(connect, ends=False)
        # The first bidirectional stream of a server (RFC 9000 section 2.1): aioquic reports it with its first message only.
        self.stream = 1
        return self

    def send(self, kind, payload, ends=False):
        head = bytes([kind]) + len(payload).to_bytes(4, "big")
        self.client._quic.send_stream_data(self.stream, head + payload, ends)
        self.client.transmit()

    async def next(self):
        while True:
            size = int.from_bytes(self.received[1:5], "big") + 5
            if len(self.received) >= max(size, 5):
                kind, payload = self.received[0], self.received[5:size]
                self.received = self.received[size:]
                return kind, payload
            _, data, self.has_ended = await asyncio.wait_for(self.client.pieces.get(), LIMIT)
            self.received += data

    async def end(self):
        """Returns the code and the reason of the capsule that ends the session."""
        while not self.has_ended:
            _, _, self.has_ended = await asyncio.wait_for(self.client.pieces.get(), LIMIT)
        self.client._quic.send_stream_data(self.stream, b"", True)
        self.client.transmit()
        content = b""
        while (piece := await asyncio.wait_for(self.capsules.get(), LIMIT)) is not None:
            content += piece
        # CLOSE_WEBTRANSPORT_SESSION, whose length takes one byte here.
        assert content[:2] == b"\x68\x43", content
        return int.from_bytes(content[3:7], "big"), content[7:].decode()


async def session_messages(client):
    opened = await Session.open(client, b"/echo")
    for kind, payload in ((1, "grüße".encode()), (2, b"\0\xff"), (2, b""), (2, bytes(300_000))):
        opened.send(kind, payload)
        await get(client)
        assert await opened.next() == (kind, payload), len(payload)
    client.http.send_datagram(opened.session, b"\x02datagram")
    client.transmit()
    assert await opened.next() == (2, b"datagram")
    opened.send(8, (1000).to_bytes(2, "big"))
    assert await opened.next() == (8, (1000).to_bytes(2, "big"))
    assert await opened.end() == (1000, "")


async def session_of_a_topic(client):
    opened = await Session.open(client, b"/topics/reliable")
    for number in range(100):
        assert (await client.ask(fields(b"POST", b"/topics/reliable"), b"%d" % number))[1] == 200
    for number in range(100):
        assert (await opened.next())[1] == b"%d" % number
    # The client may publish, too.
    opened.send(1, b"own")
    assert await opened.next() == (1, b"own")


async def datagrams_of_a_topic(client):
    opened = await Session.open(client, b"/topics/lossy?datagrams=true")
    for number in range(20):
        assert (await client.ask(fields(b"POST", b"/topics/lossy"), b"%d" % number))[1] == 200
        assert (await asyncio.wait_for(client.datagrams.get(), LIMIT))[1:] == b"%d" % number
    # Longer than a datagram: by the stream.
    assert (await client.ask(fields(b"POST", b"/topics/lossy"), bytes(5000)))[1] == 200
    assert (await opened.next())[1] == bytes(5000)


async def protocol_in_a_session(client):
    opened = await Session.open(client, b"/ws?datagrams=news&datagrams=prices.*")
    assert json.loads((await opened.next())[1])["op"] == "welcome"
    opened.send(1, b'{"op":"subscribe","topic":"news","id":1}')
    assert json.loads((await opened.next())[1])["id"] == 1
    opened.send(1, b'{"op":"publish","topic":"news","data":{"a":1},"id":2}')
    datagram = await asyncio.wait_for(client.datagrams.get(), LIMIT)
    message = json.loads(datagram[1:])
    assert (datagram[0], message["topic"], message["data"]) == (1, "news", {"a": 1}), message
    assert json.loads((await opened.next())[1])["id"] == 2
    # Of another topic: by the stream.
    opened.send(1, b'{"op":"subscribe","topic":"orders","id":3}')
    assert json.loads((await opened.next())[1])["id"] == 3
    opened.send(1, b'{"op":"publish","topic":"orders","data":7}')
    message = json.loads((await opened.next())[1])
    assert (message["topic"], message["data"]) == ("orders", 7), message


async def rejected_sessions(client):
    for path, status in ((b"/nowhere", 404), (b"/healthz", 405), (b"/topics/a%00b", 400)):
        opened = await Session.open(client, path)
        # A page learns the reason by the code of the session.
        seen = opened.status if opened.status != 200 else int.from_bytes((await opened.next())[1][:2], "big") - 4000
        assert seen == status, (path, seen)
        if opened.status == 200:
            opened.client._quic.reset_stream(opened.session, 0x10C)
            opened.client.transmit()


async def get(client):
    assert (await client.ask(fields(b"GET", b"/healthz")))[1] == 200


async def many(client):
    answers = await asyncio.gather(*(client.ask(fields(b"GET", b"/healthz")) for _ in range(300)))
    assert {answer[1] for answer in answers} == {200}


async def page(client):
    stream, status, plain = await client.ask(fields(b"GET", b"/"))
    head = dict(client.seen[stream][0].headers)
    assert (status, head[b"content-length"]) == (200, str(len(plain)).encode()), head
    stream, status, packed = await client.ask(fields(b"GET", b"/", (b"accept-encoding", b"gzip")))
    head = dict(client.seen[stream][0].headers)
    assert (status, head[b"content-encoding"]) == (200, b"gzip"), head
    assert zlib.decompress(packed, 31) == plain and len(packed) < len(plain)


async def sockets_beside_requests(client):
    sockets = [await WebSocket.open(client, b"/echo") for _ in range(8)]
    for size in (0, 1, 125, 126, 65_535, 65_536, 1 << 20):
        for number, opened in enumerate(sockets):
            opened.send(BytesMessage(data=bytes([number]) * size))
            opened.send(TextMessage(data="é" * (size // 8)))
        await get(client)
        for number, opened in enumerate(sockets):
            assert (await opened.next()).data == bytes([number]) * size, size
            assert (await opened.next()).data == "é" * (size // 8), size
    for opened in sockets:
        opened.send(Ping(payload=b"beat"))
        assert bytes((await opened.next()).payload) == b"beat"


async def compression(client):
    opened = await WebSocket.open(client, b"/echo", deflate=True)
    for number in range(20):
        text = f"the same again {number} " * 2000
        opened.send(TextMessage(data=text))
        assert (await opened.next()).data == text


async def closing(client):
    first, second = [await WebSocket.open(client, b"/echo") for _ in range(2)]
    first.send(CloseConnection(code=1000, reason="done"))
    assert (await first.next()).code == 1000
    await first.end()
    # A frame without a mask.
    client.http.send_data(second.stream, b"\x81\x01x", False)
    client.transmit()
    assert (await second.next()).code == 1002
    await second.end()


async def rejections(client):
    for path, status in ((b"/nowhere", 404), (b"/healthz", 405)):
        opened = await WebSocket.open(client, path)
        assert opened.status == status, (path, opened.status)
    # A browser is told by the close code.
    opened = await WebSocket.open(client, b"/echo", (b"origin", b"https://elsewhere.example"))
    assert (await opened.next()).code == 4403
    connect = fields(b"CONNECT", b"/echo")
    connect.insert(1, (b":protocol", b"connect-udp"))
    assert (await client.ask(connect, ends=False))[1] == 501


async def content(client):
    for size in (1, 1000, 65536, 400_000):
        body = bytes(number * 7 >> 3 & 255 for number in range(size))
        _, status, echoed = await client.ask(fields(b"POST", b"/"), body)
        assert (status, echoed == body) == (200, True), (size, status, len(echoed))


async def key_update(client):
    client._quic.request_key_update()
    await get(client)


async def migration(client):
    client.change_connection_id()
    await get(client)


async def session(client):
    stream, status, _ = await client.ask(
        fields(b"CONNECT", b"/session", (b":protocol", b"webtransport")), ends=False
    )
    assert status == 200
    client.http.send_datagram(stream, b"hello")
    client.transmit()
    assert await asyncio.wait_for(client.datagrams.get(), LIMIT) == b"hello"


async def violation(client):
    stream = client._quic.get_next_available_stream_id()
    client._quic.send_stream_data(stream, b"\0\1x")
    client.transmit()
    assert await asyncio.wait_for(client.ended, LIMIT) == 0x105


SERVE = (
    get,
    many,
    page,
    sockets_beside_requests,
    compression,
    closing,
    rejections,
    key_update,
    migration,
    session_messages,
    session_of_a_topic,
    datagrams_of_a_topic,
    protocol_in_a_session,
    rejected_sessions,
    violation,
)
EXAMPLE = (content, session)


async def main(checks, host, port):
    failed = False
    for check in checks:
        configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=True, max_datagram_frame_size=65536)
        configuration.verify_mode = ssl.CERT_NONE
        try:
            async with connect(host, port, configuration=configuration, create_protocol=Client) as client:
                await asyncio.wait_for(check(client), 60)
            print(f"ok {check.__name__.replace('_', ' ')}")
        except Exception as error:
            failed = True
            print(f"FAIL {check.__name__.replace('_', ' ')}: {type(error).__name__} {error}")
    return failed


checks = {"serve": SERVE, "example": EXAMPLE}[sys.argv[1]]
sys.exit(asyncio.run(main(checks, sys.argv[2], int(sys.argv[3]))))
