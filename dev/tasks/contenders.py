"""The servers that `cargo xtask compare` and `cargo xtask figures` measure, by load; their programs, and the commands that start
them."""

import collections
import pathlib
import shlex

import common

FOLDER = common.TARGET / "xtask/compare"
CERTIFICATE, KEY = FOLDER / "certificate.pem", FOLDER / "key.pem"

# The options of `sinews bench`, the address, and the messages per second at which latencies are measured: less than any server of
# the load reaches. Without a rate, the load has a rate of its own, or is always a closed loop.
Load = collections.namedtuple("Load", "options url rate about", defaults=[None, ""])
ECHO_URL, HELLO_URL = "ws://127.0.0.1:{}/echo", "http://127.0.0.1:{}/hello"
SECURE_ECHO_URL, SECURE_HELLO_URL = "wss://127.0.0.1:{}/echo", "https://127.0.0.1:{}/hello"
HELLO = "--expect 'Hello, world!'"
LOADS = {
    "echo": Load("-c 64 -s 64 --binary", ECHO_URL, 20_000, "64 connections, 64 bytes, one message in flight"),
    "pipelined": Load("-c 64 -s 64 --binary -i 16", ECHO_URL, 50_000, "64 connections, 64 bytes, 16 messages in flight"),
    "text": Load("-c 500 -s 1k --text", ECHO_URL, 10_000, "500 connections, text of 1 KiB"),
    "large": Load("-c 32 -s 16k --binary", ECHO_URL, 10_000, "32 connections, 16 KiB"),
    "huge": Load("-c 4 -s 1m --binary", ECHO_URL, 200, "4 connections, 1 MiB"),
    # All servers have topics at /topics/{name}.
    "fan-out": Load("-m fan-out -c 201 -s 64 --rate 200", "ws://127.0.0.1:{}/", None,
                    "200 subscribers of one topic, 200 publications a second"),
    "http": Load(f"-c 64 {HELLO}", HELLO_URL, 20_000, "`GET /hello` on 64 connections"),
    "http-pipelined": Load(f"-c 64 {HELLO} -i 16", HELLO_URL, 50_000,
                           "`GET /hello` on 64 connections with 16 requests in flight"),
    "http2": Load("--insecure -s 64 --binary --burst", SECURE_ECHO_URL, None,
                  "64 WebSockets with TLS, 64 bytes: over HTTP/1.1, on 64 connections of HTTP/2, and on one"),
    "http2-requests": Load(f"--insecure --http2 -c 8 -i 100 {HELLO}", SECURE_HELLO_URL, None,
                           "`GET /hello` on 8 connections of HTTP/2, 100 at a time"),
    "http3": Load("--insecure -s 64 --binary --burst", SECURE_ECHO_URL, None,
                  "64 WebSockets with TLS, 64 bytes: over HTTP/1.1, on 64 connections of HTTP/3, and on one"),
    "http3-requests": Load(f"--insecure --http3 -c 64 {HELLO}", SECURE_HELLO_URL, None,
                           "`GET /hello` on 64 connections of HTTP/3"),
    "sessions": Load("--insecure -c 64 -s 64 --binary --burst", SECURE_ECHO_URL, None,
                     "64 WebSockets over HTTP/3, and 64 sessions of WebTransport, 64 bytes"),
    "deliveries": Load("--insecure -m fan-out -c 65 -s 64 --burst", "wss://127.0.0.1:{}/topics/{{topic}}?self=false", None,
                       "publications for 64 subscribers over HTTP/3: WebSockets, streams and datagrams of sessions"),
}
ECHOES, REQUESTS = ["echo", "pipelined", "text", "large", "huge"], ["http", "http-pipelined"]
# The loads without TLS: those of the figures.
PLAIN = [*ECHOES, "fan-out", *REQUESTS]
HTTP3_LOADS = ["http3", "http3-requests", "sessions", "deliveries"]
# Groups of loads. "bytes" are echoes over plain TCP.
SERVES = {"echo": ECHOES, "bytes": ECHOES, "messages": [*ECHOES, "fan-out"], "requests": REQUESTS, "all": PLAIN}

# The path of each program below the profile's folder, and the arguments of cargo that build it; none for programs of the system.
# A later one may be the same program with more features.
PROGRAMS = {
    "serve": ("sinews", "--package sinews-cli --bin sinews"),
    "serve-http3": ("sinews", "--package sinews-cli --bin sinews --features http3"),
    # The example of the server as a library.
    "hello": ("examples/hello_http", "--package sinews-server --example hello_http"),
    "library": ("sinews-library", "--package sinews-library"),
    "plain": ("sinews-loopback", "--package sinews-loopback"),
    "tcp-echo": ("examples/tcp_echo", "--package sinews-engine --example tcp_echo"),
    "peer": ("sinews-peers", "--package sinews-peers --features peers --bin sinews-peers"),
    "peer-http3": ("sinews-peers-http3", "--package sinews-peers --features http3 --bin sinews-peers-http3"),
    "nginx": ("nginx", ""),
    # By `dev/bench/peers/http3_aioquic.py`.
    "aioquic": ("python3", ""),
}

# `what` is a backend, or the name of the server on the program's command line. `serves` is a group of loads, or a load with TLS.
# `listed` says when the server is measured: always, with `--fastest`, or with `--only` alone. `options` are those of `sinews
# bench` for this server, beside those of the load.
Contender = collections.namedtuple("Contender", "name program what serves options listed", defaults=["", "always"])


def peer(name, serves, listed="always"):
    return Contender(name, "peer", name, serves, "", listed)


def fast(name):
    """The fast form in the documentation of a library."""
    return peer(name, "echo", "fastest")


def named(name, program, what, serves):
    return Contender(name, program, what, serves, "", "named")


# The least work of a server: the figures of echoes are relative to it.
PLAIN_NAME = "plain-echo"
# Its subscribers take datagrams.
DATAGRAMS = "deliveries-datagrams"
HTTP1, HTTP2, HTTP2_ONE = "-c 64", "-c 64 --http2", "-c 1 --http2 --sockets-per-connection 64"
HTTP3, HTTP3_ONE = "-c 64 --http3", "-c 1 --http3 --sockets-per-connection 64"
# sockudo-ws follows the crate h3, which rejects `websocket`.
SOCKUDO = f"{HTTP3} --http3-protocol webtransport"
SOCKUDO_ONE = "-c 1 --http3 --http3-protocol webtransport --sockets-per-connection 64"
WEBTRANSPORT = "--webtransport"
# Without `--base`, the other servers are compared with the first that supports the load.
CONTENDERS = [
    Contender("sinews", "serve", "uring", "messages"),
    Contender("sinews-poll", "serve", "poll", "messages"),
    Contender("sinews-http", "hello", "uring", "requests"),
    Contender("sinews-http-poll", "hello", "poll", "requests"),
    Contender("sinews-tokio", "library", "sinews-tokio", "echo"),
    named("sinews-tokio-multi", "library", "sinews-tokio-multi", "echo"),
    Contender("sinews-axum", "library", "sinews-axum", "echo"),
    Contender("sinews-compio", "library", "sinews-compio", "echo"),
    named(PLAIN_NAME, "plain", "plain-ring", "bytes"),
    named("plain-mio", "plain", "plain-mio", "bytes"),
    named("plain-compio", "library", "plain-compio", "bytes"),
    named("tcp-echo", "tcp-echo", "uring", "bytes"),
    named("tcp-echo-poll", "tcp-echo", "poll", "bytes"),
    peer("tokio-tungstenite", "echo"),
    fast("tokio-tungstenite-feed"),
    fast("tokio-tungstenite-feed-4k"),
    peer("fastwebsockets", "echo"),
    fast("fastwebsockets-buffered"),
    peer("tokio-websockets", "echo"),
    fast("tokio-websockets-feed"),
    peer("sockudo", "echo"),
    fast("sockudo-feed"),
    peer("sockudo-compio", "echo"),
    fast("sockudo-compio-tuned"),
    peer("compio-ws", "echo"),
    fast("compio-ws-feed"),
    fast("compio-ws-feed-4k"),
    named("tungstenite-bridge", "peer", "tungstenite-bridge", "echo"),
    peer("axum", "all"),
    fast("axum-feed"),
    fast("axum-feed-4k"),
    peer("hyper", "requests"),
    peer("actix-web", "requests"),
    named("nginx", "nginx", "", "requests"),
    Contender("sinews-tls", "serve", "uring", "http2", HTTP1),
    Contender("sinews-http2", "serve", "uring", "http2", HTTP2),
    Contender("sinews-http2-one", "serve", "uring", "http2", HTTP2_ONE),
    Contender("sinews-tls-poll", "serve", "poll", "http2", HTTP1),
    Contender("sinews-http2-poll", "serve", "poll", "http2", HTTP2),
    Contender("sinews-http2-one-poll", "serve", "poll", "http2", HTTP2_ONE),
    Contender("axum-http2", "peer", "axum-http2", "http2", HTTP2),
    Contender("axum-http2-one", "peer", "axum-http2", "http2", HTTP2_ONE),
    Contender("sinews-http2-requests", "hello", "uring", "http2-requests"),
    Contender("sinews-http2-requests-poll", "hello", "poll", "http2-requests"),
    Contender("hyper-http2", "peer", "hyper-http2", "http2-requests"),
    Contender("nginx-http2", "nginx", "", "http2-requests"),
    Contender("sinews-http1", "hello", "uring", "http3", HTTP1),
    Contender("sinews-http3", "hello", "uring", "http3", HTTP3),
    Contender("sinews-http3-one", "hello", "uring", "http3", HTTP3_ONE),
    Contender("sinews-http1-poll", "hello", "poll", "http3", HTTP1),
    Contender("sinews-http3-poll", "hello", "poll", "http3", HTTP3),
    Contender("sinews-http3-one-poll", "hello", "poll", "http3", HTTP3_ONE),
    Contender("sockudo-http3", "peer-http3", "sockudo", "http3", SOCKUDO),
    Contender("sockudo-http3-one", "peer-http3", "sockudo", "http3", SOCKUDO_ONE),
    Contender("aioquic", "aioquic", "", "http3", HTTP3),
    Contender("aioquic-one", "aioquic", "", "http3", HTTP3_ONE),
    Contender("sinews-http3-requests", "hello", "uring", "http3-requests"),
    Contender("sinews-http3-requests-poll", "hello", "poll", "http3-requests"),
    Contender("h3-quinn", "peer-http3", "h3-quinn", "http3-requests"),
    Contender("aioquic-requests", "aioquic", "", "http3-requests"),
    Contender("sinews-websockets", "hello", "uring", "sessions", "--http3"),
    Contender("sinews-sessions", "hello", "uring", "sessions", WEBTRANSPORT),
    Contender("sinews-sessions-poll", "hello", "poll", "sessions", WEBTRANSPORT),
    Contender("web-transport-quinn", "peer-http3", "web-transport-quinn", "sessions", WEBTRANSPORT),
    Contender("deliveries", "serve-http3", "uring", "deliveries", "--http3"),
    Contender("deliveries-sessions", "serve-http3", "uring", "deliveries", WEBTRANSPORT),
    Contender(DATAGRAMS, "serve-http3", "uring", "deliveries", WEBTRANSPORT),
    Contender("deliveries-poll", "serve-http3", "poll", "deliveries", "--http3"),
    Contender("deliveries-sessions-poll", "serve-http3", "poll", "deliveries", WEBTRANSPORT),
]
NAMES = [one.name for one in CONTENDERS]

# The fast configuration of nginx's documentation: no logs, one listener for each worker, and persistent connections.
NGINX = """daemon off;
pid nginx-PORT.pid;
error_log stderr crit;
worker_processes WORKERS;
events { worker_connections 4096; }
http {
  access_log off;
  server_tokens off;
  keepalive_requests 1000000000;
  tcp_nodelay on;
  default_type "text/plain; charset=utf-8";
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  server {
    listen 127.0.0.1:PORT reuseport backlog=4096 TLS;
    location = /hello { return 200 "Hello, world!"; }
  }
}
"""


def takes(load, one):
    """Whether a server takes the load."""
    return load in SERVES.get(one.serves, [one.serves])


def url(load, one, port):
    if one.serves == "bytes":
        return f"tcp://127.0.0.1:{port}"
    return LOADS[load].url.format(port) + ("&datagrams=true" if one.name == DATAGRAMS else "")


def path(program, profile):
    place, arguments = PROGRAMS[program]
    return common.TARGET / ("debug" if profile == "dev" else profile) / place if arguments else pathlib.Path(place)


def build(programs, profile):
    """Builds these programs, each once, and makes a certificate for `localhost` with its key."""
    wanted = set(programs) - ({"serve"} if "serve-http3" in programs else set())
    for program in PROGRAMS:
        arguments = PROGRAMS[program][1].split()
        if program in wanted and arguments:
            common.run([common.CARGO, "build", "--profile", profile, *arguments], f"compare-{program}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    make = [common.CARGO, "run", "--profile", profile, "--package", "sinews-interop", "--", "certificate", FOLDER]
    common.run(make, "compare-certificate")


def command(one, port, options):
    """The command of the shell that starts the server on a port."""
    program, what, threads = shlex.quote(str(path(one.program, options.profile))), one.what, options.threads
    is_secure = one.serves not in SERVES
    certificate, key = (shlex.quote(str(file)) for file in (CERTIFICATE, KEY))
    files = f" {certificate} {key}" if is_secure else ""
    if one.program in ("serve", "serve-http3"):
        http3 = " --http-http3" if one.program == "serve-http3" else ""
        tls = f" --tls-certificate {certificate} --tls-key {key}" if is_secure else ""
        return f"{program} serve --listen 127.0.0.1:{port} --threads {threads} --deflate off --log error --backend {what}" \
            f"{http3}{tls}"
    if one.program == "hello":
        return f"{program} {port} {what} {threads}{files}{' http3' if one.serves in HTTP3_LOADS else ''}"
    if one.program == "tcp-echo":
        return f"{program} {port} {what}"
    if one.program == "nginx":
        tls = f"http2 ssl; ssl_certificate {CERTIFICATE}; ssl_certificate_key {KEY}" if is_secure else ""
        config = FOLDER / f"nginx-{port}.conf"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(NGINX.replace("PORT", str(port)).replace("WORKERS", str(threads)).replace("TLS", tls))
        return f"{program} -p {shlex.quote(str(FOLDER))} -c {shlex.quote(str(config))}"
    if one.program == "aioquic":
        if options.python_packages is None:
            raise common.Fault("aioquic needs --python-packages")
        packages, script = map(shlex.quote, (options.python_packages, str(common.ROOT / "dev/bench/peers/http3_aioquic.py")))
        return f"PYTHONPATH={packages} {program} -B {script}{files} {port}"
    runtime = " --threads multi" if threads > 1 and one.program in ("library", "peer") else ""
    tls = f" --certificate {certificate} --key {key}" if is_secure else ""
    return f"{program} {what} {port}{runtime}{tls}"
