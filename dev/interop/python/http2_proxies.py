"""Request smuggling through reverse proxies: python3 http2_proxies.py SERVER DIRECTORY

Starts each installed proxy in front of the server at HOST:PORT, which lists at `/answered` the requests that it has answered. The
proxies speak HTTP/2 and HTTP/1.1 with clients and HTTP/1.1 with the server, on few kept connections. Each case sends a request that a
proxy must reject, or pass on as one request. After each case, requests of other clients get their own answers, and the server
has answered at most one request of the case. Prints `ok NAME`, `FAIL NAME: why` or `skipped NAME: why`.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from hpack import Decoder

# Longer than a machine stalls.
LIMIT = 60
# Time for the answer to a case. Some cases are incomplete messages, which have none.
SILENCE = 1.5
MARKERS = 3
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: hidden\r\n\r\n"
numbers = itertools.count()
ports = itertools.count(4_700)


def free_port():
    """A port that nothing listens on, below those that the system gives to connections."""
    for port in ports:
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def length_prefixed(octets, prefix_max):
    """A string of HPACK without Huffman coding (RFC 7541 section 5.2)."""
    length, out = len(octets), bytearray()
    if length < prefix_max:
        return bytes([length]) + octets
    out.append(prefix_max)
    length -= prefix_max
    while length >= 128:
        out.append(length % 128 + 128)
        length //= 128
    out.append(length)
    return bytes(out) + octets


class Http2:
    """A connection that sends any octets in names and values."""

    def __init__(self, port):
        self.transport = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self.decoder, self.buffer, self.stream = Decoder(), b"", -1
        self.transport.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(4, 0, 0, b""))

    @staticmethod
    def frame(kind, flags, stream, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def send(self, headers, body=None):
        """Sends a request. Its body is a list of DATA, or None without any."""
        self.stream += 2
        block = b"".join(b"\0" + length_prefixed(name, 127) + length_prefixed(value, 127) for name, value in headers)
        frames = self.frame(1, 4 | (body is None), self.stream, block)
        for number, piece in enumerate(body or []):
            frames += self.frame(0, number + 1 == len(body), self.stream, piece)
        self.transport.sendall(frames)

    def read_frame(self):
        while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], "big"):
            received = self.transport.recv(65_536)
            if not received:
                raise EOFError
            self.buffer += received
        length = int.from_bytes(self.buffer[:3], "big")
        kind, flags, stream = self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], "big")
        payload, self.buffer = self.buffer[9 : 9 + length], self.buffer[9 + length :]
        return kind, flags, stream, payload

    def answer(self):
        """Returns the status, the header fields and the body; the status may be `reset`, `GOAWAY` or `closed`."""
        headers, body = [], b""
        while True:
            try:
                kind, flags, stream, payload = self.read_frame()
            except EOFError:
                return "closed", headers, body
            if kind == 4 and not flags & 1:
                self.transport.sendall(self.frame(4, 1, 0, b""))
            elif kind == 6 and not flags & 1:
                self.transport.sendall(self.frame(6, 1, 0, payload))
            elif kind == 7 and payload[4:8] != bytes(4):
                return f"GOAWAY {int.from_bytes(payload[4:8], 'big')}", headers, body
            if stream != self.stream:
                continue
            if kind == 3:
                return f"reset {int.from_bytes(payload[:4], 'big')}", headers, body
            if kind == 1:
                padding = payload[0] if flags & 8 else 0
                start = (1 if flags & 8 else 0) + (5 if flags & 32 else 0)
                fields = self.decoder.decode(payload[start : len(payload) - padding], raw=True)
                # Not the trailers, and not 100 (Continue).
                if (b":status", b"100") not in fields and (not headers or dict(fields).get(b":status")):
                    headers = fields
            if kind == 0:
                padding = payload[0] + 1 if flags & 8 else 0
                body += payload[1 if flags & 8 else 0 : len(payload) - max(padding - 1, 0)]
            if kind in (0, 1) and flags & 1:
                return dict(headers).get(b":status", b"none").decode(), headers, body

    def close(self):
        self.transport.close()


class Http1:
    """A connection that sends any octets."""

    def __init__(self, port):
        self.transport = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)

    def send(self, octets):
        self.transport.sendall(octets)

    def answer(self):
        """Returns all octets until the connection ends, or is silent."""
        received = b""
        try:
            while more := self.transport.recv(65_536):
                received += more
        except (TimeoutError, ConnectionError):
            pass
        return received

    def close(self):
        self.transport.close()


def request(path=b"/case", method=b"POST", scheme=b"http", authority=b"case", fields=()):
    pseudo = [(b":method", method), (b":scheme", scheme), (b":path", path), (b":authority", authority)]
    return pseudo + list(fields)


def cases_of_http2():
    """Yields the name, the header fields and the body of each case."""
    length = str(len(HIDDEN)).encode()
    chunked = b"0\r\n\r\n" + HIDDEN
    hidden_line = b"x\r\n\r\n" + HIDDEN
    # Lengths that differ from the body.
    for name, value in (("zero", b"0"), ("short", b"5"), ("long", b"5000"), ("signed", b"+" + length), ("octal", b"0" + length),
                        ("list", b"0, " + length), ("negative", b"-1"), ("hexadecimal", b"0x1"), ("empty", b""),
                        ("with a blank", b"0 "), ("too large", b"18446744073709551616")):
        yield f"content-length {name}", request(fields=[(b"content-length", value)]), [HIDDEN]
    yield "content-length on GET", request(method=b"GET", fields=[(b"content-length", length)]), None
    yield "body on GET", request(method=b"GET"), [HIDDEN]
    yield "body on HEAD", request(method=b"HEAD", fields=[(b"content-length", length)]), [HIDDEN]
    yield "content-length twice", request(fields=[(b"content-length", b"0"), (b"content-length", length)]), [HIDDEN]
    yield "content-length twice, reversed", request(fields=[(b"content-length", length), (b"content-length", b"0")]), [HIDDEN]
    # Chunks that HTTP/2 does not have.
    for value in (b"chunked", b"Chunked", b"chunked ", b" chunked", b"\tchunked", b"\x0bchunked", b"chunked, identity", b"identity",
                  b"identity, chunked", b"chunked, chunked", b"xchunked", b"\"chunked\"", b"chunked\r\nx: y", b"chunked;q=1", b""):
        yield f"transfer-encoding {value!r}", request(fields=[(b"transfer-encoding", value)]), [chunked]
        yield (f"transfer-encoding {value!r} beside a length",
               request(fields=[(b"content-length", str(len(chunked)).encode()), (b"transfer-encoding", value)]), [chunked])
    for name in (b"Transfer-Encoding", b"transfer-encoding ", b" transfer-encoding", b"transfer-encoding\t", b"transfer-encoding:",
                 b"transfer_encoding", b"transfer-encoding\0", b"\x0btransfer-encoding"):
        yield f"name {name!r}", request(fields=[(name, b"chunked")]), [chunked]
    for name in (b"content-length ", b" content-length", b"content-length:", b"content_length", b"content-length\t"):
        yield f"name {name!r}", request(fields=[(name, b"0")]), [HIDDEN]
    # Line ends in names and values.
    for end in (b"\r\n", b"\n", b"\r", b"\0", b"\r\n ", b"\n\t", b"\r\n\r\n"):
        yield f"value with {end!r}", request(fields=[(b"x", b"a" + end + b"transfer-encoding: chunked")]), [chunked]
        yield f"name with {end!r}", request(fields=[(b"x: a" + end + b"transfer-encoding", b"chunked")]), [chunked]
    yield "request in a value", request(fields=[(b"x", hidden_line)]), None
    yield "request in a name", request(fields=[(hidden_line, b"x")]), None
    yield "request in a cookie", request(fields=[(b"cookie", b"a=b"), (b"cookie", hidden_line)]), None
    yield "request in the host", request(fields=[(b"host", hidden_line)]), None
    yield "other host", request(fields=[(b"host", b"hidden")]), None
    # The parts of the request line.
    line = b" HTTP/1.1\r\nhost: case\r\n\r\n" + HIDDEN.replace(b" HTTP/1.1\r\nHost: hidden\r\n\r\n", b"")
    for name, part in (("method", {"method": b"GET /case" + line}), ("path", {"path": b"/case" + line}),
                       ("scheme", {"scheme": b"http://case/case" + line}), ("authority", {"authority": b"case" + line})):
        yield f"request in the {name}", request(**{"method": b"GET"} | part), None
    for path in (b"", b"*", b"case", b"//hidden/case", b"http://hidden/case", b"/case HTTP/1.1", b"/case x", b"/case\t", b"/case\0",
                 b"/case#hidden", b"/case%0d%0ahost:%20hidden", b"/case%00", b"/\xff", b"/../case", b"/case?a b", b"\\case", b"/case\x7f"):
        yield f"path {path!r}", request(path=path, method=b"GET"), None
    for authority in (b"", b"a b", b"a@hidden", b"a/hidden", b"a:99999", b"a, hidden", b"a#hidden", b"a?hidden", b"a\\hidden"):
        yield f"authority {authority!r}", request(authority=authority, method=b"GET"), None
    for scheme in (b"", b"https", b"file", b"http ", b"http://hidden/?", b"http\n"):
        yield f"scheme {scheme!r}", request(scheme=scheme, method=b"GET"), None
    for method in (b"", b"GET ", b"get", b"GET /hidden", b"CONNECT", b"TRACE", b"PRI", b"G\0T", b"(GET)"):
        yield f"method {method!r}", request(method=method), None
    yield "path twice", request() + [(b":path", b"/hidden")], None
    yield "path behind other fields", [(b":method", b"GET"), (b":scheme", b"http"), (b"x", b"y"), (b":path", b"/case"),
                                       (b":authority", b"case")], None
    # Other protocols on the connection to the server.
    switch = [(b"connection", b"upgrade, http2-settings"), (b"upgrade", b"h2c"), (b"http2-settings", b"AAMAAABkAAQAAP__")]
    yield "upgrade to h2c", request(method=b"GET", fields=switch), [HIDDEN]
    yield "upgrade to h2c without connection", request(method=b"GET", fields=switch[1:]), [HIDDEN]
    socket_fields = [(b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="), (b"sec-websocket-version", b"12")]
    upgrade = [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    yield "WebSocket upgrade", request(b"/websocket", b"GET", fields=upgrade + socket_fields), [HIDDEN]
    yield "WebSocket by extended CONNECT", (
        request(b"/websocket", b"CONNECT", fields=[(b":protocol", b"websocket")] + socket_fields)), [HIDDEN]
    yield "connection names content-length", request(fields=[(b"connection", b"content-length")]), [HIDDEN]
    yield "te", request(fields=[(b"te", b"trailers, chunked")]), [HIDDEN]
    # Answers before the body, and in several parts.
    for expect in (b"100-continue", b"y 100-continue", b"100-continue, 100-continue", b"x"):
        yield f"expect {expect!r}", request(fields=[(b"expect", expect), (b"content-length", length)]), [HIDDEN]
        yield f"expect {expect!r} on GET", request(method=b"GET", fields=[(b"expect", expect)]), None
    yield "answer before the body", request(b"/only-get", fields=[(b"content-length", str(200 * len(HIDDEN)).encode())]), [HIDDEN * 200]
    yield "body over the limit", request(fields=[(b"content-length", b"3000000")]), [HIDDEN * 200]
    yield "line ends in a redirection", request(b"/files%0d%0ax-split:%20hidden", b"GET"), None
    yield "line ends in a redirection's query", request(b"/files?%0d%0ax-split:%20hidden", b"GET"), None


def cases_of_http1():
    """Yields the name and the octets of each case."""
    length = str(len(HIDDEN)).encode()
    chunked = b"0\r\n\r\n" + HIDDEN

    # Without `Connection: close`, what follows would be a further request of the same client, which a proxy may pass on.
    def post(fields, body):
        return b"POST /case HTTP/1.1\r\nHost: case\r\nConnection: close\r\n" + fields + b"\r\n\r\n" + body

    both = b"Content-Length: " + str(len(chunked)).encode() + b"\r\n"
    for field in (b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding:chunked ", b"Transfer-Encoding:\tchunked",
                  b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked, identity",
                  b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
                  b"Transfer-Encoding:\r\n chunked", b"X: y\nTransfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked",
                  b" Transfer-Encoding: chunked", b"Transfer-Encoding: \"chunked\"", b"Transfer-Encoding: chunked\0",
                  b"Transfer_Encoding: chunked", b"\0Transfer-Encoding: chunked", b"X: y\r\n Transfer-Encoding: chunked"):
        yield f"a length beside {field!r}", post(both + field, chunked)
    for fields in (b"Content-Length: 0\r\nContent-Length: " + length, b"Content-Length: " + length + b"\r\nContent-Length: 0",
                   b"Content-Length: 0, " + length, b"Content-Length: +" + length, b"Content-Length : " + length,
                   b"Content-Length: " + length + b" ", b"Content-Length:\r\n " + length, b"Content-Length: 0x" + length,
                   b"X: y\r\n\tContent-Length: 0\r\nContent-Length: " + length, b"X: y\nContent-Length: " + length):
        yield f"lengths {fields!r}", post(fields, HIDDEN)
    # Each has one request to a strict reader. A hidden one follows for a reader of extensions, line ends or sizes of its own.
    for body in (b"0;a=b\r\n\r\n", b"0;a=\"\r\n\r\n" + HIDDEN + b"\"\r\n\r\n", b"0;a\n\r\n\r\n", b"1;a\nb\r\nx\r\n0\r\n\r\n", b"1\nx\n0\n\n",
                 b"1\r\nxy0\r\n\r\n", b"0x1\r\nx\r\n0\r\n\r\n", b"+1\r\nx\r\n0\r\n\r\n", b" 1\r\nx\r\n0\r\n\r\n", b"1 \r\nx\r\n0\r\n\r\n",
                 b"100000000000000001\r\nx\r\n0\r\n\r\n", b"1\r\rx\r\n0\r\n\r\n", b"0\r\nContent-Length: " + length + b"\r\n\r\n",
                 b"0\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\rX" + HIDDEN):
        yield f"chunks {body!r}", post(b"Transfer-Encoding: chunked", body)
    yield "HTTP/1.0 with chunks", b"POST /case HTTP/1.0\r\nHost: case\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked
    yield "absolute form of another host", b"GET http://hidden/case HTTP/1.1\r\nHost: case\r\nConnection: close\r\n\r\n"
    yield "no version", b"GET /case\r\nHost: case\r\n\r\n"
    yield "version with blanks", b"GET /case HTTP/1.1 HTTP/1.1\r\nHost: case\r\nConnection: close\r\n\r\n"
    # Octets of another protocol behind an upgrade that the server rejects. They are the body of the case, if a proxy reads one.
    for name, fields in (("WebSocket version 12", b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "
                          b"dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 12"),
                         ("WebSocket without key", b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"),
                         ("h2c", b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__")):
        head = b"GET /websocket HTTP/1.1\r\nHost: case\r\n" + fields
        yield f"rejected upgrade: {name}", head + b"\r\nContent-Length: " + length + b"\r\n\r\n" + HIDDEN


# Starts a proxy: `command(program, directory, http2, http1, server)` writes the configuration.


def nginx(program, directory, http2, http1, server):
    settings = """
      client_max_body_size 0; proxy_http_version 1.1; proxy_request_buffering off;
      proxy_set_header Host $host; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_of;
      proxy_read_timeout 5s; send_timeout 5s; client_body_timeout 3s; ignore_invalid_headers off; underscores_in_headers on;"""
    paths = " ".join(f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (directory / "nginx.conf").write_text(f"""
      daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log info;
      events {{ worker_connections 256; }}
      http {{ access_log off; {paths} keepalive_timeout 5s;
        map $http_upgrade $connection_of {{ default upgrade; '' ''; }}
        upstream server {{ server {server}; keepalive 1; }}
        server {{ listen 127.0.0.1:{http2} http2; {settings} location / {{ proxy_pass http://server; }} }}
        server {{ listen 127.0.0.1:{http1}; {settings} location / {{ proxy_pass http://server; }} }} }}
    """)
    return [program, "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", str(directory / "error.log")]


def haproxy(program, directory, http2, http1, server):
    (directory / "haproxy.cfg").write_text(f"""
global
  nbthread 1
  maxconn 200
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
  timeout http-keep-alive 5s
  timeout tunnel 5s
  option accept-invalid-http-request
  http-reuse always
frontend http2
  bind 127.0.0.1:{http2} proto h2
  default_backend server
frontend http1
  bind 127.0.0.1:{http1}
  default_backend server
backend server
  server server {server} pool-max-conn 1
""")
    return [program, "-db", "-f", str(directory / "haproxy.cfg")]


def apache(program, directory, http2, http1, server):
    modules = os.environ.get("APACHE_MODULES", "/usr/lib/apache2/modules")
    names = "mpm_event authz_core http2 proxy proxy_http"
    loads = "\n".join(f"LoadModule {name}_module {modules}/mod_{name}.so" for name in names.split())
    (directory / "apache.conf").write_text(f"""
ServerRoot {directory}
ServerName case
PidFile {directory}/pid
ErrorLog {directory}/error.log
DefaultRuntimeDir {directory}
{loads}
StartServers 1
ServerLimit 1
ThreadsPerChild 16
MaxRequestWorkers 16
Timeout 5
Listen 127.0.0.1:{http2}
Listen 127.0.0.1:{http1}
HttpProtocolOptions Unsafe
ProxyTimeout 5
ProxyPass / http://{server}/ keepalive=On max=1 upgrade=websocket
<VirtualHost 127.0.0.1:{http2}>
  Protocols h2c http/1.1
  H2Direct on
  H2MinWorkers 2
  H2MaxWorkers 4
</VirtualHost>
""")
    return [program, "-X", "-f", str(directory / "apache.conf")]


def caddy(program, directory, http2, http1, server):
    site = f"""{{
  reverse_proxy {server} {{
    transport http {{
      max_conns_per_host 2
      response_header_timeout 5s
    }}
  }}
}}
"""
    (directory / "Caddyfile").write_text(f"""{{
  admin off
  auto_https off
  servers {{
    protocols h1 h2 h2c
    timeouts {{
      read_body 3s
      idle 5s
    }}
  }}
}}
http://:{http2} {site}
http://:{http1} {site}""")
    return [program, "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")]


def nghttpx(program, directory, http2, http1, server):
    host, _, port = server.rpartition(":")
    return [program, f"--backend={host},{port}", f"--frontend=127.0.0.1,{http2};no-tls", f"--frontend=127.0.0.1,{http1};no-tls",
            "--workers=1", "--backend-connections-per-host=1", "--backend-read-timeout=5s", "--frontend-http2-read-timeout=5s",
            "--backend-keep-alive-timeout=5s", "--conf=/dev/null", f"--errorlog-file={directory}/error.log"]


def envoy(program, directory, http2, http1, server):
    host, _, port = server.rpartition(":")

    def listener(number, codec):
        return f"""
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {number} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: case
          codec_type: {codec}
          http2_protocol_options: {{ allow_connect: true }}
          upgrade_configs: [ {{ upgrade_type: websocket }} ]
          stream_idle_timeout: 5s
          route_config:
            virtual_hosts: [ {{ name: all, domains: ["*"], routes: [ {{ match: {{ prefix: "/" }}, route: {{ cluster: server }} }} ] }} ]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}"""

    (directory / "envoy.yaml").write_text(f"""static_resources:
  listeners:{listener(http2, "HTTP2")}{listener(http1, "HTTP1")}
  clusters:
  - name: server
    connect_timeout: 5s
    load_assignment:
      cluster_name: server
      endpoints: [ {{ lb_endpoints: [ {{ endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {port} }} }} }} }} ] }} ]
""")
    return [program, "-c", str(directory / "envoy.yaml"), "--concurrency", "1", "--base-id", str(http2), "--log-level", "error"]


PROXIES = {
    "nginx": (nginx, "nginx", "apt-get install nginx"),
    "HAProxy": (haproxy, "haproxy", "apt-get install haproxy"),
    "Apache": (apache, "apache2", "apt-get install apache2"),
    "Caddy": (caddy, "caddy", "apt-get install caddy"),
    "nghttpx": (nghttpx, "nghttpx", "apt-get install nghttp2-proxy"),
    "Envoy": (envoy, "envoy", "https://www.envoyproxy.io/docs/envoy/latest/start/install"),
}


def answered(server):
    """Takes the list of requests that the server has answered."""
    direct = Http1(int(server.rpartition(":")[2]))
    direct.send(b"GET /answered HTTP/1.1\r\nHost: list\r\nConnection: close\r\n\r\n")
    head, _, body = direct.answer().partition(b"\r\n\r\n")
    direct.close()
    if not head.startswith(b"HTTP/1.1 200 "):
        raise AssertionError(f"the server answers {head[:60]!r}")
    return body.decode("latin-1").splitlines()


def mark(port):
    """Sends requests of another client, which must get their own answers."""
    attempts = 0
    for _ in range(MARKERS):
        path = f"/marker/{next(numbers)}".encode()
        while True:
            client = Http2(port)
            client.transport.settimeout(LIMIT)
            body = b"own answer of " + path
            client.send(request(path, b"PUT", authority=b"marker", fields=[(b"content-length", str(len(body)).encode())]), [body])
            status, _, received = client.answer()
            client.close()
            attempts += 1
            # A proxy that finds its kept connection closed may say so.
            if status in ("502", "503", "504", "reset 7") and attempts < 3 * MARKERS:
                continue
            if (status, received) != ("200", body):
                raise AssertionError(f"another client gets {status} with {received[:60]!r}")
            break


def check(server, port, send):
    """Runs a case. Returns what the proxy has answered."""
    late = executed(server)
    if late:
        # On a machine that stalls, the server executes a request after the wait for its answer: it is that of the case before.
        judge(last + late, "an earlier case")
    last.clear()
    outcome = send()
    mark(port)
    last.extend(executed(server))
    judge(last, "the case")
    return outcome


# The requests of the last case that the server has executed.
last = []


def executed(server):
    return [line for line in answered(server) if " /marker/" not in line]


def judge(lines, which):
    if len(lines) > 1:
        raise AssertionError(f"the server has executed {lines} of {which}")
    if lines and lines[0].split(" ", 2)[2] == "/hidden":
        raise AssertionError(f"the server has executed the hidden request of {which}: {lines}")


def send_http2(port, headers, body):
    client = Http2(port)
    client.transport.settimeout(SILENCE)
    try:
        client.send(headers, body)
        status, fields, _ = client.answer()
    except TimeoutError:
        return "silence"
    except ConnectionError:
        return "closed"
    finally:
        client.close()
    if any(name == b"x-split" for name, _ in fields):
        raise AssertionError(f"the answer is split: {fields}")
    return status


def send_http1(port, octets):
    client = Http1(port)
    client.transport.settimeout(SILENCE)
    try:
        client.send(octets)
        received = client.answer()
    except ConnectionError:
        return "closed"
    finally:
        client.close()
    return received.split(b"\r\n", 1)[0].decode("latin-1") or "no answer"


def tunnels(server):
    """A proxy that takes a rejected upgrade for an accepted one passes on all that follows. The server must not read it."""
    for name, octets in cases_of_http1():
        if not name.startswith("rejected upgrade"):
            continue
        head = octets[: -len(HIDDEN)].replace(f"Content-Length: {len(HIDDEN)}\r\n".encode(), b"")
        for way, pieces in (("at once", [head + HIDDEN]), ("later", [head, HIDDEN])):
            label = f"proxy that tunnels: {name}, {way}"
            answered(server)
            direct = Http1(int(server.rpartition(":")[2]))
            direct.transport.settimeout(LIMIT)
            received = b""
            for piece in pieces:
                try:
                    direct.send(piece)
                    if piece is not pieces[-1]:
                        received += direct.transport.recv(65_536)
                except ConnectionError:
                    pass
            received += direct.answer()
            direct.close()
            own = answered(server)
            answers = received.count(b"HTTP/1.1 ")
            if answers != 1 or any("/hidden" in line for line in own):
                print(f"FAIL {label}: {answers} answers, {own}")
            else:
                print(f"ok {label}: {received.split(chr(13).encode(), 1)[0].decode()}")


class FaultyProxy:
    """Writes what it gets from HTTP/2 into HTTP/1.1, on one kept connection: the checks must notice that."""

    def __init__(self, server):
        self.server, self.listener = server, socket.create_server(("127.0.0.1", 0))
        self.port, self.kept, self.buffer = self.listener.getsockname()[1], None, b""
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client = Http2.__new__(Http2)
            client.transport, _ = self.listener.accept()
            client.transport.settimeout(LIMIT)
            client.decoder, client.buffer, fields, body = Decoder(), b"", [], b""
            try:
                preface = client.transport.recv(24, socket.MSG_WAITALL)
                client.transport.sendall(Http2.frame(4, 0, 0, b""))
                while preface:
                    kind, flags, stream, payload = client.read_frame()
                    if kind == 1:
                        fields = client.decoder.decode(payload, raw=True)
                    body += payload if kind == 0 else b""
                    if kind in (0, 1) and flags & 1:
                        answer = self.pass_on(fields, body)
                        client.transport.sendall(Http2.frame(1, 4, stream, b"\x88") + Http2.frame(0, 1, stream, answer))
                        break
            except (EOFError, OSError):
                self.kept = None
            client.close()

    def pass_on(self, fields, body):
        pseudo = dict(fields)
        head = b"%s %s HTTP/1.1\r\nHost: %s\r\n" % (pseudo[b":method"], pseudo[b":path"], pseudo[b":authority"])
        head += b"".join(b"%s: %s\r\n" % field for field in fields if not field[0].startswith(b":"))
        self.kept = self.kept or socket.create_connection(self.server.rsplit(":", 1), timeout=LIMIT)
        self.kept.sendall(head + b"\r\n" + body)
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.kept.recv(65_536) or self.end()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
        while len(self.buffer) < length:
            self.buffer += self.kept.recv(65_536) or self.end()
        answer, self.buffer = self.buffer[:length], self.buffer[length:]
        return answer

    def end(self):
        self.buffer = b""
        raise EOFError


def faulty_proxy(server):
    """The checks notice hidden requests of a proxy that has faults."""
    for wanted in ("content-length zero", "request in a value", "request in the path"):
        proxy = FaultyProxy(server)
        headers, body = next((headers, body) for case, headers, body in cases_of_http2() if case == wanted)
        try:
            check(server, proxy.port, lambda: send_http2(proxy.port, headers, body))
            print(f"FAIL faulty proxy: {wanted}: the checks have noticed nothing")
        except AssertionError as error:
            print(f"ok faulty proxy: {wanted}: noticed, {error}")
        answered(server)


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_it_answers(process, port):
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return mark(port)
        except (OSError, AssertionError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"it does not answer: {error}") from error
            time.sleep(0.05)


def run(name, server, directory):
    make, program, remedy = PROXIES[name]
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        return print(f"skipped {name}: no {program} ({remedy})")
    directory = Path(tempfile.mkdtemp(prefix=program, dir=directory))
    http2, http1 = free_port(), free_port()
    command = make(found, directory, http2, http1, server)
    with open(directory / "output.log", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=directory,
                                   env=os.environ | {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "XDG_DATA_HOME": str(directory)})
    try:
        wait_until_it_answers(process, http2)
        answered(server)
        sends = [(f"HTTP/2, {case}", lambda headers=headers, body=body: send_http2(http2, headers, body))
                 for case, headers, body in cases_of_http2()]
        sends += [(f"HTTP/1.1, {case}", lambda octets=octets: send_http1(http1, octets)) for case, octets in cases_of_http1()]
        for case, send in sends:
            try:
                outcome = check(server, http2, send)
                print(f"ok {name}: {case}: {outcome}", flush=True)
            except (AssertionError, OSError) as error:
                print(f"FAIL {name}: {case}: {error}", flush=True)
    except AssertionError as error:
        print(f"FAIL {name}: {error}; see {directory}", flush=True)
    finally:
        stop(process)


def main():
    server, directory, *only = sys.argv[1:]
    os.makedirs(directory, exist_ok=True)
    tunnels(server)
    faulty_proxy(server)
    for name in only or PROXIES:
        run(name, server, directory)


main()
