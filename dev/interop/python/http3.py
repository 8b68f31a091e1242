"""HTTP/3 of aioquic and QPACK of pylsqpack against the machine of sinews-http.

    http3.py write FILE   writes streams of aioquic: `case role stream fin bytes` a line, in hexadecimal
    http3.py read FILE    reads the same lines with bytes of sinews-http, and checks the events of aioquic

`cargo xtask interop --only http3` checks both. `cargo test -p sinews-http --test protocols h3::peers` reads the first file, and writes the second one where SINEWS_H3_WRITE says so.
"""

import sys

import pylsqpack
from aioquic.h3 import events
from aioquic.h3.connection import H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived

REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"example.com"),
    (b":path", b"/chat?room=7"),
    (b"user-agent", b"aioquic"),
    (b"cookie", b"a=b"),
    (b"x-long", b"~" * 300),
]
CONNECT = [
    (b":method", b"CONNECT"),
    (b":protocol", b"webtransport"),
    (b":scheme", b"https"),
    (b":authority", b"example.com"),
    (b":path", b"/session"),
]
BODY = bytes(range(256)) * 3


class Quic:
    """The parts of a QUIC connection that H3Connection uses; sent bytes are kept."""

    def __init__(self, is_client):
        self.configuration = QuicConfiguration(is_client=is_client)
        self._quic_logger = None
        self._remote_max_datagram_frame_size = 65536
        self.sent = []
        self.next = {False: 0 if is_client else 1, True: 2 if is_client else 3}
        self.closed = None

    def get_next_available_stream_id(self, is_unidirectional=False):
        stream = self.next[is_unidirectional]
        self.next[is_unidirectional] += 4
        return stream

    def send_stream_data(self, stream, data, end_stream=False):
        self.next[bool(stream & 2)] = max(self.next[bool(stream & 2)], stream + 4)
        self.sent.append((stream, bytes(data), end_stream))

    def close(self, error_code, reason_phrase=""):
        self.closed = (error_code, reason_phrase)


def conversation(case):
    """Returns the bytes of a client, or of a server for `response`."""
    is_client = case != "response"
    quic = Quic(is_client)
    h3 = H3Connection(quic, enable_webtransport=True)
    if case == "request":
        stream = quic.get_next_available_stream_id()
        h3.send_headers(stream, REQUEST)
        h3.send_data(stream, BODY, False)
        h3.send_headers(stream, [(b"x-trailer", b"end")], True)
    elif case == "session":
        session = quic.get_next_available_stream_id()
        h3.send_headers(session, CONNECT)
        for is_unidirectional in (True, False):
            stream = h3.create_webtransport_stream(session, is_unidirectional)
            quic.send_stream_data(stream, b"bytes of a session", True)
    elif case == "response":
        h3.send_headers(0, [(b":status", b"103"), (b"link", b"</a.css>; rel=preload")])
        h3.send_headers(0, [(b":status", b"200"), (b"content-type", b"text/plain"), (b"x-long", b"~" * 300)])
        h3.send_data(0, BODY, True)
    return quic.sent


def write(path):
    with open(path, "w") as file:
        for case in ("request", "session", "response"):
            for stream, data, fin in conversation(case):
                print(case, stream, int(fin), data.hex() or "-", file=file)
        # Field sections of an encoder whose peer has no dynamic table.
        for number, fields in enumerate((REQUEST, CONNECT, [(b"a", b""), (b"authorization", b"secret")])):
            encoder = pylsqpack.Encoder()
            encoder.apply_settings(max_table_capacity=0, blocked_streams=0)
            instructions, section = encoder.encode(0, fields)
            assert instructions == b""
            print(f"section{number} 0 0", section.hex(), file=file)


def read(path):
    quics = {}
    seen = []
    for line in open(path):
        case, stream, fin, data = line.split()
        if case == "section":
            _, fields = pylsqpack.Decoder(0, 0).feed_header(0, bytes.fromhex(data))
            seen.append(("section", fields))
            continue
        if case not in quics:
            quic = Quic(is_client=case == "response")
            quics[case] = (quic, H3Connection(quic, enable_webtransport=True))
            if case == "response":
                quics[case][1].send_headers(0, REQUEST, True)
        quic, h3 = quics[case]
        data = b"" if data == "-" else bytes.fromhex(data)
        # In pieces of three bytes, and at once.
        pieces = [data[at : at + 3] for at in range(0, len(data), 3)] or [b""]
        for number, piece in enumerate(pieces):
            ends = fin == "1" and number == len(pieces) - 1
            event = StreamDataReceived(data=piece, end_stream=ends, stream_id=int(stream))
            seen.extend((case, event) for event in h3.handle_event(event))
        assert quic.closed is None, (case, quic.closed)
    return seen


def check(path):
    seen = read(path)
    sections = [event for case, event in seen if case == "section"]
    # All static entries, then fields of all kinds.
    assert len(sections) == 100, len(sections)
    names = dict(sections[99])
    assert names[b"authorization"] == b"secret" and names[b"x-value"] == b"~" * 300, sections[99]
    for case, first in (("request", b":method"), ("response", b":status")):
        heads = [event.headers for known, event in seen if known == case and isinstance(event, events.HeadersReceived)]
        data = b"".join(event.data for known, event in seen if known == case and isinstance(event, events.DataReceived))
        assert heads[0][0][0] == first, heads
        assert data == BODY, (case, len(data))
        assert heads[-1] == [(b"x-trailer", b"end")], heads
    session = [event for case, event in seen if case == "session"]
    assert dict(session[0].headers)[b":protocol"] == b"webtransport", session
    data = [event for event in session if isinstance(event, events.WebTransportStreamDataReceived)]
    assert {event.stream_id for event in data} == {4, 6} and {event.session_id for event in data} == {0}, data
    print(f"ok {len(seen)} events of sinews-http are read by aioquic, {len(sections)} field sections by pylsqpack")


if __name__ == "__main__":
    {"write": write, "read": check}[sys.argv[1]](sys.argv[2])
