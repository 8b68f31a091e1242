"""A server of HTTP/3 on aioquic, with WebSockets of wsproto: echoes messages, and answers `GET /hello`.

    http3_aioquic.py CERTIFICATE KEY [PORT]

Prints its address, and serves until its standard input is closed. Its structure is that of aioquic's own example.
"""

import asyncio
import sys

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage


class Server(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.http_settings()
        self.sockets = {}

    def http_settings(self):
        # aioquic announces extended CONNECT by itself (RFC 9220 section 3).
        assert 8 in self.http.sent_settings, "aioquic does not announce extended CONNECT"

    def quic_event_received(self, event):
        for seen in self.http.handle_event(event):
            if isinstance(seen, HeadersReceived):
                self.answer(seen.stream_id, dict(seen.headers))
            elif isinstance(seen, DataReceived) and seen.stream_id in self.sockets:
                self.echo(seen.stream_id, seen.data)
        self.transmit()

    def answer(self, stream, fields):
        if fields.get(b":protocol") == b"websocket":
            self.sockets[stream] = Connection(ConnectionType.SERVER)
            self.http.send_headers(stream, [(b":status", b"200")])
        elif fields[b":path"] == b"/hello":
            kind = (b"content-type", b"text/plain; charset=utf-8")
            self.http.send_headers(stream, [(b":status", b"200"), kind])
            self.http.send_data(stream, b"Hello, world!", True)
        else:
            self.http.send_headers(stream, [(b":status", b"404")], True)

    def echo(self, stream, data):
        socket = self.sockets[stream]
        socket.receive_data(data)
        out = b""
        for event in socket.events():
            if isinstance(event, (TextMessage, BytesMessage)):
                out += socket.send(event)
            elif isinstance(event, (Ping, CloseConnection)):
                out += socket.send(event.response())
        self.http.send_data(stream, out, isinstance(event, CloseConnection) if out else False)


async def main(certificate, key, port=0):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(certificate, key)
    server = await serve("127.0.0.1", int(port), configuration=configuration, create_protocol=Server)
    host, port = server._transport.get_extra_info("sockname")
    print(f"{host}:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


asyncio.run(main(*sys.argv[1:]))
