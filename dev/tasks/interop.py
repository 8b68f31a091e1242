"""Clients and tools of other projects against the server, and programs of other projects against the library.

The scripts in `dev/interop` drive them; each prints a line for each check, `ok NAME` or `FAIL NAME: why`.
"""

import argparse
import shutil

import clients
import common
import library
import servers
import tools
from servers import Server, serve

# The message limit of the second server, in octets: the clients send messages of this length and longer messages.
MESSAGE_OCTETS_MAX = 2_000_000
# The secret of tokens and the keys of the HTTP API at the server of `openapi`: all rights, and few.
SECRET = "0123456789abcdef0123456789abcdef"
API_KEY, RESTRICTED_KEY = SECRET + "-all", SECRET + "-few"
LOGS = common.TARGET / "xtask"


def pusher_js_tests():
    common.need("openssl", "apt-get install openssl")
    return tools.node("pusher-js-tests.mjs")


# Clients of two servers, which are their arguments. They run with each kind of compression.
CLIENTS = {
    "curl": lambda: tools.bash("http/client.sh", "curl"),
    "ws": lambda: tools.node("ws.mjs"),
    "sinews-js": lambda: tools.node("sinews-js.mjs"),
    "undici-events": lambda: tools.node("undici-events.mjs"),
    "undici": lambda: tools.node("undici.mjs"),
    "python": lambda: tools.python("client.py"),
    # pusher-js, the package pusher and Laravel Echo.
    "pusher": lambda: tools.node("pusher.mjs"),
    # pusher-js with the package `clients/pusher-recovery`.
    "pusher-recovery": lambda: tools.node("pusher-recovery.mjs"),
    # The tests of the package pusher, and the integration cases of the package pusher-js.
    "pusher-remote": lambda: tools.node("pusher-remote.mjs"),
    "pusher-js-tests": pusher_js_tests,
    "pusher-python": lambda: tools.python("pusher_libraries.py"),
    "pusher-go": lambda: tools.go("pusher"),
    "pusher-java": lambda: tools.java("PusherLibraries"),
    "pusher-php": lambda: tools.php("pusher_library.php", "PUSHER_HTTP_PHP"),
    "gorilla": lambda: tools.go("gorilla"),
    "coder": lambda: tools.go("coder"),
}


def run_clients(program, backend, deflate, chosen):
    print(f"backend {backend}, deflate {deflate}", flush=True)
    logs, options = f"interop/{backend}-{deflate}", ["--backend", backend, "--deflate", deflate]
    # The app of the clients of the Pusher protocol.
    config = common.ROOT / "dev/interop/pusher/sinews.toml"
    limited = [*options, "--max-message", MESSAGE_OCTETS_MAX]
    with serve(program, f"{logs}/server", *options, "--config", config) as first, \
            serve(program, f"{logs}/server-limited", *limited) as second:
        urls = [f"ws://{server.address}" for server in (first, second)]
        # The variables are for clients that start a server of their own.
        env = {"SINEWS": str(program), "SINEWS_BACKEND": backend}
        for name in chosen:
            tools.attempt(name, lambda: CLIENTS[name]().run_checks(name, f"{logs}/{name}", *urls, **env))


def echo_server(backend, log, *options):
    """A server that echoes the body of any request, with the port of TLS, and the folder of its files, its certificate and its
    Unix socket."""
    programs, folder, tls = servers.build("http-cases", "http-subject"), LOGS / f"{log}-served", common.free_port()
    shutil.rmtree(folder, ignore_errors=True)
    servers.make_certificate(folder)
    command = [programs / "http-subject", backend, folder, f"127.0.0.1:{tls}", *options]
    return Server(command, f"{log}-subject"), tls, folder


def curl_suite(_, backend, log):
    """curl against the echo server: over TCP, a Unix socket and TLS; and curl, nghttp and h2load over HTTP/2."""
    for name, script, options in (("curl-suite", "suite", []), ("curl-suite, HTTP/2", "http2", ["http2"])):
        command = tools.bash(f"http/{script}.sh", "curl")
        server, tls, folder = echo_server(backend, f"{log}/{script}", *options)
        with server:
            arguments = [f"http://{server.address}", f"https://localhost:{tls}", folder]
            command.run_checks(name, f"{log}/{script}", *arguments)


def h2spec(_, backend, log):
    """The conformance suite of HTTP/2 against the echo server: in clear text and over TLS."""
    command = tools.go("h2spec")
    server, tls, _ = echo_server(backend, log, "http2")
    with server:
        # The cases on flow control need an answer with content.
        urls = [f"http://{server.address}/content", f"https://127.0.0.1:{tls}/content"]
        command.run_checks("h2spec", f"{log}/client", *urls)


def http_proxies(_, backend, log):
    """Reverse proxies that speak HTTP/2 in front of the echo server, which speaks HTTP/1.1 with them: request smuggling through
    nginx, HAProxy, Apache, Caddy, nghttpx and Envoy, as far as they are installed."""
    command = tools.python("http2_proxies.py")
    server, _, _ = echo_server(backend, log)
    with server:
        command.run_checks("http-proxies", f"{log}/client", server.address, LOGS / log / "proxies")


def http2(program, backend, log):
    """node:http2, undici, h2 with wsproto of Python, and golang.org/x/net/http2: in clear text and over TLS."""
    certificate, options = servers.make_certificate(LOGS / log), ["--backend", backend, "--http-http2-clear-text"]
    clients = [
        ("http2", "http://", "https://", lambda: tools.node("http2.mjs")),
        ("http2-python", "", "", lambda: tools.python("http2.py")),
        ("http2-go", "http://", "https://", lambda: tools.go("http2")),
    ]
    with serve(program, f"{log}/plain", *options) as plain, \
            serve(program, f"{log}/tls", *options, certificate=certificate) as tls:
        for name, clear, encrypted, prepare in clients:
            arguments = [f"{clear}{plain.address}", f"{encrypted}{tls.address}", certificate / "certificate.pem"]
            # Go sends an extended CONNECT with this variable only.
            env = {"GODEBUG": "http2xconnect=1"}
            tools.attempt(name, lambda: prepare().run_checks(name, f"{log}/{name}", *arguments, **env))


def http3(program, backend, log):
    """aioquic with wsproto, quic-go, and a page in Chromium."""
    client, page = tools.python("http3_client.py", "serve"), tools.python("http3_browser.py")
    certificate = servers.make_certificate(LOGS / log)
    options, file = ["--backend", backend, "--http-http3", "--threads", 2], certificate / "certificate.pem"
    with serve(program, f"{log}/serve", *options, certificate=certificate) as server:
        client.run_checks("http3, aioquic", f"{log}/client", *server.address.split(":"))
        run = lambda: tools.go("http3").run_checks("http3, quic-go", f"{log}/go", server.address, file)
        tools.attempt("http3, quic-go", run)
        page.run_checks("http3, a page in Chromium", f"{log}/browser", server.address, file)


def http3_library():
    """aioquic reads the streams that the machine of `sinews-http` sends, and the test the recorded streams of aioquic; aioquic and
    WebTransport of Chromium against the example of `sinews-quic`, which echoes."""
    log, folder = "http/aioquic", LOGS / "http/aioquic"
    read, client = tools.python("http3.py", "read"), tools.python("http3_client.py", "example")
    page = tools.python("webtransport.py", "check")
    folder.mkdir(parents=True, exist_ok=True)
    test = [common.CARGO, "test", "--quiet", "-p", "sinews-http", "--test", "protocols", "h3::peers"]
    common.run(test, f"{log}/test", env={"SINEWS_H3_WRITE": str(folder / "sent.txt")})
    read.run_checks("http3, streams", f"{log}/read", folder / "sent.txt")
    build = [common.CARGO, "build", "--quiet", "-p", "sinews-quic", "--example", "serve"]
    common.run(build, f"{log}/build")
    make_hashed_certificate(folder)
    files = [folder / "certificate.pem", folder / "key.pem"]
    with Server([common.TARGET / "debug/examples/serve", *files, "127.0.0.1:0"], f"{log}/serve") as server:
        client.run_checks("http3, aioquic with the example", f"{log}/client", *server.address.split(":"))
        page.run_checks("http3, Chromium", f"{log}/browser", server.address, folder)


def make_hashed_certificate(folder):
    """A certificate that browsers accept by its hash."""
    make = tools.python("webtransport.py", "certificate", folder)
    common.run(make.words, "certificate-hashed", env=make.env, cwd=make.folder)
    return folder


def h3spec(program, backend, log):
    """The conformance suite of QUIC, HTTP/3 and QPACK."""
    command, certificate = tools.h3spec(), servers.make_certificate(LOGS / log)
    options = ["--backend", backend, "--http-http3", "--threads", 1]
    with serve(program, f"{log}/serve", *options, certificate=certificate) as server:
        command.run_checks("h3spec", f"{log}/client", server.address)


def serve_browsers(program, backend, log):
    options = ["--backend", backend, "--http-http3", "--threads", 2, "--origin", "any"]
    return serve(program, f"{log}/serve", *options, certificate=make_hashed_certificate(LOGS / log))


def webtransport(program, backend, log):
    """Chromium and webtransport-go. The client of aioquic is among those of HTTP/3."""
    page = tools.python("webtransport.py", "serve")
    with serve_browsers(program, backend, log) as server:
        page.run_checks("webtransport, Chromium", f"{log}/browser", server.address, LOGS / log)
        name, client = "webtransport, webtransport-go", lambda: tools.go("client", "webtransport", ".")
        tools.attempt(name, lambda: client().run_checks(name, f"{log}/go", server.address))


def firefox(program, backend, log):
    """WebSockets over HTTP/2, `sinews.js`, WebTransport, and a page over HTTP/3."""
    page = tools.python("firefox.py")
    with serve_browsers(program, backend, log) as server:
        page.run_checks("firefox", f"{log}/browser", server.address, LOGS / log)


def client_js(program, backend, log):
    """The tests of the package `clients/js`, which start their own servers, and of `clients/react`."""
    tools.client_js().run_checks("client-js", f"{log}/client", SINEWS=str(program), SINEWS_BACKEND=backend)
    tools.attempt("client-react", lambda: tools.client_react().run_checks("client-react", f"{log}/react"))


def openapi(program, backend, log):
    """A client that is generated from the document of the HTTP API. The server has tokens, histories and a new folder of durable
    topics."""
    command, folder = tools.node("openapi.mjs"), LOGS / log
    shutil.rmtree(folder / "streams", ignore_errors=True)
    (folder / "streams").mkdir()
    (folder / "secret").write_text(SECRET)
    (folder / "keys").write_text(f"all {API_KEY} admin\nfew {RESTRICTED_KEY} publish:chat.>\n")
    options = ["--backend", backend, "--api-keys-file", folder / "keys", "--auth-secret-file", folder / "secret"]
    topics = ["--streams", folder / "streams", "--streams-durable-topics", "stored.>", "--history", "chat.>=10"]
    with serve(program, f"{log}/server", *options, *topics) as server:
        arguments = [f"ws://{server.address}", SECRET, API_KEY, RESTRICTED_KEY]
        command.run_checks("openapi", f"{log}/client", *arguments)


# Checks with servers of their own, once for each backend.
ON_EACH_BACKEND = {
    "curl-suite": curl_suite, "h2spec": h2spec, "h3spec": h3spec, "http-proxies": http_proxies, "http2": http2, "http3": http3,
    "webtransport": webtransport, "firefox": firefox, "client-js": client_js, "client-python": clients.check_python,
    "openapi": openapi,
}
# Servers and clients for `sinews connect` and `sinews bench`. The scripts start the program themselves.
TOOLS = {
    "connect-ws": lambda: tools.node("connect.mjs"),
    "connect-python": lambda: tools.python("connect.py"),
    "bench-ws": lambda: tools.node("bench.mjs"),
    "bench-python": lambda: tools.python("bench.py"),
}


def run_tools(program, chosen):
    print("sinews connect, sinews bench", flush=True)
    folder = servers.make_certificate(LOGS / "interop/connect")
    for name in chosen:
        tools.attempt(name, lambda: TOOLS[name]().run_checks(name, f"interop/connect/{name}", program, folder))


def main():
    names = [*CLIENTS, *ON_EACH_BACKEND, "client-cases", *TOOLS, *library.PEERS]
    parser = argparse.ArgumentParser(prog="cargo xtask interop", description=__doc__)
    servers.add_options(parser)
    parser.add_argument("--only", default="", help=f"peers to test, with commas between them [default: all]: {', '.join(names)}")
    options = parser.parse_args()
    chosen = servers.chosen(parser, options.only, names)
    of = lambda table: [name for name in table if name in chosen]
    program = servers.binary(options)
    backends = servers.backends(options, program)
    for number, backend in enumerate(backends if of(CLIENTS) else []):
        # Every backend is paired with stateful compression, where more can go wrong. Stateless compression is the default of the
        # program and independent of backends.
        for deflate in ("dedicated", "shared")[: 1 if number else 2]:
            tools.attempt(f"clients on {backend}", run_clients, program, backend, deflate, of(CLIENTS))
    for backend in backends:
        for name in of(ON_EACH_BACKEND):
            log = f"interop/{name}-{backend}"
            (LOGS / log).mkdir(parents=True, exist_ok=True)
            tools.attempt(name, ON_EACH_BACKEND[name], program, backend, log)
    if "http3" in chosen:
        tools.attempt("http3", http3_library)
    if "client-cases" in chosen:
        tools.attempt("client-cases", clients.check_cases)
    if of(TOOLS):
        tools.attempt("sinews connect, sinews bench", run_tools, program, of(TOOLS))
    # compio has no other backend.
    for runtime in ["tokio", "compio"][: 2 if "uring" in backends else 1] if of(library.PEERS) else []:
        tools.attempt(f"library on {runtime}", library.run, runtime, of(library.PEERS))
    common.finish()


main()
