"""HTTP cases of `dev/conformance` against the server; the Autobahn suite, by `dev/autobahn/run.py`, against the server, with TLS,
HTTP/2 and HTTP/3, too, and against the library."""

import argparse
import re

import autobahn
import common
import servers
import tools
from autobahn import LOGS, against
from servers import Server, serve

# Ways to reach `sinews serve`: the option of the server, whether it has TLS, and the proxy of the tests. The suite speaks HTTP/1.1
# with a proxy, which passes the bytes on. It does not verify certificates.
TRANSPORTS = {
    "serve": ([], False, None),
    "tls": ([], True, None),
    "http2": (["--http-http2-clear-text"], False, "http2-proxy"),
    "http3": (["--http-http3"], True, "http3-proxy"),
}
# The programs of `examples/programs`: echo servers, and clients that run the suite's cases.
PROGRAMS = {
    "echo-server": ("tokio", "server"),
    "echo-axum": ("axum", "server"),
    "echo-compio": ("compio", "server"),
    "autobahn-client": ("tokio", "client"),
    "autobahn-client-compio": ("compio", "client"),
}
TARGETS = ["http", *TRANSPORTS, "tokio", "axum", "compio"]
# Maximum messages in each case of sections 12 and 13 over TLS, HTTP/2 and HTTP/3: the first cover all of their code.
FEW_COUNT = 5


def settings(options, count_max=None):
    """The suite's settings by the options of the task."""
    count = None if options.full else min(options.count, count_max or options.count)
    return {"cases": options.cases, "jobs": options.jobs, "count": count}


def on_backend(options, program, backend, transport):
    print(f"sinews serve, {transport}, backend {backend}", flush=True)
    option, is_encrypted, proxy = TRANSPORTS[transport]
    name, certificate = f"{backend}-{transport}", None
    chosen = settings(options, None if transport == "serve" else FEW_COUNT)
    if is_encrypted:
        certificate = servers.make_certificate(common.TARGET / "xtask" / LOGS / name)
    arguments = ["--deflate", options.deflate, "--backend", backend, *option]
    with serve(program, f"{LOGS}/{name}/server", *arguments, certificate=certificate) as server:
        if proxy is None:
            scheme = "wss" if is_encrypted else "ws"
            against(name, "--url", f"{scheme}://{server.address}/echo", **chosen)
        else:
            files = [certificate / "certificate.pem"] if certificate else []
            command = [servers.build(proxy) / proxy, server.address, *files]
            with Server(command, f"{LOGS}/{name}/proxy") as between:
                against(name, "--url", f"ws://{between.address}/echo", **chosen)
        print_usage(server.program.pid)


def print_usage(pid):
    """Prints the resource usage of a server so far, where `/proc` exists."""
    try:
        with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/status") as status:
            # Behind the name, which may hold any character: user and system time.
            user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
            peak = re.search(r"^VmHWM:\s*(.*)", status.read(), re.MULTILINE)
    except OSError:
        return
    print(f"server: {(int(user) + int(system)) / 100:.1f} s of CPU, {peak[1]} resident at most", flush=True)


def on_library(options, name):
    runtime, role = PROGRAMS[name]
    print(f"library on {runtime}, {role}", flush=True)
    program = programs(options) / name
    if role == "client":
        against(name, "--program", program, **settings(options))
        return
    with Server([program, "127.0.0.1:0"], f"{LOGS}/{name}/server") as server:
        against(name, "--url", f"ws://{server.address}", **settings(options))
        print_usage(server.program.pid)


def programs(options):
    if not options.full:
        return servers.build(*PROGRAMS)
    # The suite's own 1,000 messages take a debug build very long.
    build = [common.CARGO, "build", "--profile", "checks", "--package", "sinews-programs", "--bins"]
    common.run(build, "build-sinews-programs")
    return common.TARGET / "checks"


def http_cases(program, backend):
    """All cases against the echo server, and the cases that apply to any server against `sinews serve`."""
    folder, log = servers.build("http-cases", "http-subject"), f"http/{backend}"
    served = servers.make_certificate(common.TARGET / "xtask" / log / "served")
    echo = [folder / "http-subject", backend, served, f"127.0.0.1:{common.free_port()}"]
    with Server(echo, f"{log}/subject") as server:
        command = tools.Command([folder / "http-cases", server.address, "all"])
        command.run_checks(f"HTTP cases, server, {backend}", f"{log}/all")
    with serve(program, f"{log}/serve", "--backend", backend, "--threads", 1) as server:
        command = tools.Command([folder / "http-cases", server.address, "heads"])
        command.run_checks(f"HTTP cases, sinews serve, {backend}", f"{log}/heads")


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask conformance", description=__doc__)
    servers.add_options(parser)
    parser.add_argument("--cases", default="*", help="cases, such as `1.1.*,6.3.1`")
    messages = parser.add_mutually_exclusive_group()
    messages.add_argument("--count", type=int, default=20, help="messages in each case of sections 12 and 13 [default: 20]")
    messages.add_argument("--full", action="store_true", help="run the suite's default of 1,000 messages in these cases")
    parser.add_argument("--jobs", type=int, choices=range(1, 17), default=2, metavar="N", help="sections run at the same time")
    parser.add_argument("--target", default="", help=f"subjects to test, with commas between them [default: all]: {', '.join(TARGETS)}")
    parser.add_argument("--role", choices=["server", "client"], help="end of the connection to test [default: both]")
    parser.add_argument("--url", help="address to test, instead of starting a server")
    parser.add_argument("--deflate", choices=["shared", "dedicated"], default="dedicated",
                        help="compression of the started `sinews serve`")
    options = parser.parse_args()
    targets = servers.chosen(parser, options.target, TARGETS)
    if options.role == "client":
        targets = [target for target in targets if target not in ("http", *TRANSPORTS)]
    if options.url is None and options.full and options.binary is None:
        build = [common.CARGO, "build", "--profile", "checks", "--features", "sinews-cli/http3", "--bin", "sinews"]
        common.run(build, "build-sinews")
        options.binary = common.TARGET / "checks/sinews"
    tools.attempt("conformance", run, options, targets)
    common.finish()


def run(options, targets):
    if options.url is None:
        program = servers.binary(options)
        backends = servers.backends(options, program)
        for backend in backends if "http" in targets and options.cases == "*" else []:
            tools.attempt("HTTP cases", http_cases, program, backend)
        if targets == ["http"]:
            return
    output, counts = autobahn.suite(f"{LOGS}/list", **settings(options))
    if not counts[0]:
        common.add(counts)
        print(output, end="")
        return
    if options.url:
        against("url", "--url", options.url, **settings(options))
        return
    for backend in backends:
        for transport in (name for name in TRANSPORTS if name in targets):
            tools.attempt(transport, on_backend, options, program, backend, transport)
    for name, (runtime, role) in PROGRAMS.items():
        # compio has no other backend than io_uring.
        is_permitted = runtime != "compio" or "uring" in backends
        if runtime in targets and options.role in (None, role) and is_permitted:
            tools.attempt(name, on_library, options, name)


main()
