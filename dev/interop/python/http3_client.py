"""The client of aioquic against a server of HTTP/3 that echoes: http3_client.py HOST PORT.

Prints `ok NAME` or `FAIL NAME: why` for each check.
"""

import asyncio
import ssl
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3 import events
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic, enable_webtransport=True)
        self.waiting = {}
        self.seen = {}
        self.datagrams = asyncio.Queue()
        self.ended = asyncio.get_running_loop().create_future()

    def quic_event_received(self, event: QuicEvent):
        if isinstance(event, ConnectionTerminated) and not self.ended.done():
            self.ended.set_result(event.error_code)
        for seen in self.http.handle_event(event):
            if isinstance(seen, events.DatagramReceived):
                self.datagrams.put_nowait(seen.data)
                continue
            stream = seen.stream_id
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
        await asyncio.wait_for(self.waiting[stream][1], 20)
        status = dict(self.seen[stream][0].headers)[b":status"]
        content = b"".join(e.data for e in self.seen[stream] if isinstance(e, events.DataReceived))
        return stream, int(status), content


def fields(method, path, *further):
    return [(b":method", method), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path), *further]


async def get(client):
    assert (await client.ask(fields(b"GET", b"/a")))[1:] == (200, b"")


async def many(client):
    answers = await asyncio.gather(*(client.ask(fields(b"GET", b"/a")) for _ in range(300)))
    assert all(answer[1:] == (200, b"") for answer in answers)


async def content(client):
    for size in (1, 1000, 65536, 400_000):
        body = bytes(number * 7 >> 3 & 255 for number in range(size))
        _, status, echoed = await client.ask(fields(b"POST", b"/"), body)
        assert (status, echoed == body) == (200, True), (size, status, len(echoed))


async def key_update(client):
    client._quic.request_key_update()
    assert (await client.ask(fields(b"GET", b"/after")))[1] == 200


async def migration(client):
    client.change_connection_id()
    assert (await client.ask(fields(b"GET", b"/after")))[1] == 200


async def session(client):
    stream, status, _ = await client.ask(
        fields(b"CONNECT", b"/session", (b":protocol", b"webtransport")), ends=False
    )
    assert status == 200
    client.http.send_datagram(stream, b"hello")
    client.transmit()
    assert await asyncio.wait_for(client.datagrams.get(), 5) == b"hello"


async def violation(client):
    stream = client._quic.get_next_available_stream_id()
    client._quic.send_stream_data(stream, b"\0\1x")
    client.transmit()
    assert await asyncio.wait_for(client.ended, 5) == 0x105


async def main(host, port):
    failed = False
    for check in (get, many, content, key_update, migration, session, violation):
        configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=True, max_datagram_frame_size=65536)
        configuration.verify_mode = ssl.CERT_NONE
        try:
            async with connect(host, port, configuration=configuration, create_protocol=Client) as client:
                await asyncio.wait_for(check(client), 60)
            print(f"ok {check.__name__}")
        except Exception as error:
            failed = True
            print(f"FAIL {check.__name__}: {type(error).__name__} {error}")
    return failed


sys.exit(asyncio.run(main(sys.argv[1], int(sys.argv[2]))))
