"""The packages h2 and wsproto against the server: python3 http2.py HOST:PORT HOST:PORT CERTIFICATE

The first address is in clear text, the second one with TLS. Prints `ok NAME` or `FAIL NAME: why` for each check.
"""

import socket
import ssl
import sys

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RemoteSettingsChanged, ResponseReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.extensions import PerMessageDeflate

SOCKETS = 8
LIMIT = 60


class Client:
    """One connection, and the WebSockets on its streams."""

    def __init__(self, address, certificate=None):
        host, _, port = address.rpartition(":")
        transport = socket.create_connection((host, int(port)), timeout=LIMIT)
        self.scheme = "http"
        if certificate is not None:
            context = ssl.create_default_context(cafile=certificate)
            context.set_alpn_protocols(["h2"])
            transport = context.wrap_socket(transport, server_hostname=host)
            self.scheme = "https"
        self.transport, self.authority = transport, address
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.heads, self.data, self.ends = {}, {}, {}
        self.has_settings = False
        self.flush()
        while not self.has_settings:
            self.read()

    def flush(self):
        self.transport.sendall(self.h2.data_to_send())

    def read(self):
        received = self.transport.recv(65_536)
        if not received:
            raise EOFError("the connection has ended")
        for event in self.h2.receive_data(received):
            match event:
                case RemoteSettingsChanged():
                    self.has_settings = True
                case ResponseReceived():
                    self.heads[event.stream_id] = dict(event.headers)
                case DataReceived():
                    self.data.setdefault(event.stream_id, bytearray()).extend(event.data)
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case StreamEnded():
                    self.ends[event.stream_id] = "end"
                case StreamReset():
                    self.ends[event.stream_id] = f"reset {event.error_code}"
        self.flush()

    def request(self, headers, end=True):
        stream = self.h2.get_next_available_stream_id()
        own = [(":scheme", self.scheme), (":authority", self.authority)]
        self.h2.send_headers(stream, [headers[0], *own, *headers[1:]], end_stream=end)
        self.flush()
        return stream

    def head(self, stream):
        while stream not in self.heads:
            self.read()
        return self.heads[stream]

    def end(self, stream):
        while stream not in self.ends:
            self.read()
        return self.ends[stream]

    def send(self, stream, data):
        while data:
            piece = min(len(data), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if piece == 0:
                self.read()
                continue
            self.h2.send_data(stream, data[:piece])
            self.flush()
            data = data[piece:]


class WebSocket:
    """A WebSocket by extended CONNECT."""

    def __init__(self, client, path, deflate=False):
        self.client = client
        extension = PerMessageDeflate()
        headers = [(":method", "CONNECT"), (":protocol", "websocket"), (":path", path), ("sec-websocket-version", "13")]
        if deflate:
            headers.append(("sec-websocket-extensions", f"permessage-deflate; {extension.offer()}"))
        self.stream = client.request(headers, end=False)
        head = client.head(self.stream)
        expect(head[":status"], "200", "the status")
        agreed = head.get("sec-websocket-extensions")
        if deflate:
            extension.finalize(agreed)
        self.protocol = Connection(ConnectionType.CLIENT, [extension] if deflate and agreed else [])
        self.agreed = agreed

    def send(self, event):
        self.client.send(self.stream, self.protocol.send(event))

    def next(self):
        """Returns the next whole message or control frame."""
        pieces = []
        while True:
            for event in self.protocol.events():
                if not isinstance(event, (TextMessage, BytesMessage)):
                    return event
                pieces.append(event.data)
                if event.message_finished:
                    return type(event)(data=type(event.data)().join(pieces))
            buffered = self.client.data.pop(self.stream, None)
            if buffered:
                self.protocol.receive_data(bytes(buffered))
            else:
                self.client.read()


def expect(actual, wanted, what):
    if actual != wanted:
        raise AssertionError(f"{what} is {str(actual)[:80]}, not {str(wanted)[:80]}")


def settings(client):
    expect(client.h2.remote_settings.get(SettingCodes.ENABLE_CONNECT_PROTOCOL), 1, "the setting")


def sockets_beside_requests(client):
    sockets = [WebSocket(client, "/echo") for _ in range(SOCKETS)]
    for size in (0, 1, 125, 126, 65_535, 65_536, 1 << 20):
        for number, opened in enumerate(sockets):
            opened.send(BytesMessage(data=bytes([number]) * size))
            opened.send(TextMessage(data="é" * (size // 8)))
        health = client.request([(":method", "GET"), (":path", "/healthz")])
        for number, opened in enumerate(sockets):
            expect(opened.next().data, bytes([number]) * size, f"the echo of {size} bytes")
            expect(opened.next().data, "é" * (size // 8), "the echo of text")
        expect(client.head(health)[":status"], "200", "the status of a request")
    for opened in sockets:
        opened.send(Ping(payload=b"beat"))
        expect(bytes(opened.next().payload), b"beat", "the pong")


def compression(client):
    opened = WebSocket(client, "/echo", deflate=True)
    expect("permessage-deflate" in (opened.agreed or ""), True, "the agreement")
    for number in range(20):
        text = f"the same again {number} " * 2000
        opened.send(TextMessage(data=text))
        expect(opened.next().data, text, "the echo")


def closing(client):
    first, second, third = (WebSocket(client, "/echo") for _ in range(3))
    first.send(CloseConnection(code=1000, reason="done"))
    expect(first.next().code, 1000, "the code")
    client.h2.end_stream(first.stream)
    client.flush()
    expect(client.end(first.stream), "end", "the end")
    client.h2.reset_stream(second.stream, 8)
    client.flush()
    # A frame without a mask.
    client.send(third.stream, b"\x81\x01x")
    expect(third.next().code, 1002, "the code")
    expect(client.end(third.stream), "end", "the end")


def rejections(client):
    for path, changes, status in (
        ("/nowhere", {}, "404"),
        ("/healthz", {}, "405"),
        ("/echo", {"sec-websocket-version": "12"}, "400"),
        ("/echo", {":protocol": "connect-udp"}, "501"),
    ):
        headers = {":method": "CONNECT", ":protocol": "websocket", ":path": path, "sec-websocket-version": "13"}
        stream = client.request(list((headers | changes).items()), end=False)
        expect(client.head(stream)[":status"], status, f"the status of {path} {changes}")


def main():
    plain, tls, certificate = sys.argv[1:]
    for transport, make in (("clear text", lambda: Client(plain)), ("TLS", lambda: Client(tls, certificate))):
        for check in (settings, sockets_beside_requests, compression, closing, rejections):
            name = f"h2 and wsproto, {transport}: {check.__name__.replace('_', ' ')}"
            try:
                check(make())
                print(f"ok {name}")
            except Exception as error:  # noqa: BLE001: any failure is reported
                print(f"FAIL {name}: {type(error).__name__} {error}")


main()
