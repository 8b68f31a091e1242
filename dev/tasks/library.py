"""The library, on Tokio and on compio, against programs of other projects: TLS with rustls against OpenSSL, Python and Node, as a
server and as a client; and third-party proxies."""

import contextlib

import common
import servers
import tools
from servers import Server

# User name and password for a proxy.
CREDENTIALS = ("anna", "sesame")


class Ground:
    """What all peers share: the program on the library, the folder of its certificate, and its echo servers."""

    def __init__(self, runtime, stack):
        self.program, self.logs = servers.build("sinews-interop") / "sinews-interop", f"interop/{runtime}"
        self.folder = servers.make_certificate(common.TARGET / "xtask" / self.logs)
        self.on = [self.program, "--on", runtime]
        self.plain = stack.enter_context(Server([*self.on, "serve"], f"{self.logs}/server"))
        self.tls = stack.enter_context(Server([*self.on, "serve", self.folder], f"{self.logs}/server-tls"))

    def log(self, name):
        return f"{self.logs}/{name.replace(' ', '-')}"

    def client(self, name, command):
        """Runs a client of another project against our TLS server."""
        command.run_checks(f"{name} as client", self.log(f"{name} client"), self.tls.port, self.folder)

    def check(self, name, url, *further):
        """Runs our client against an echo server."""
        command = tools.Command([*self.on, "check", url, "--trust", self.folder, *further])
        command.run_checks(name, self.log(name))

    def start(self, command, name, *arguments):
        """Starts a server or proxy of another project, which prints its address."""
        return Server([*command.words, *arguments], self.log(name), folder=command.folder, env=command.env)

    def check_servers(self, name, command):
        """Runs our client against a server of another project, without and with TLS."""
        with self.start(command, f"{name} server") as plain, self.start(command, f"{name} server tls", self.folder) as tls:
            self.check(f"{name} as server, ws", f"ws://localhost:{plain.port}/")
            self.check(f"{name} as server, wss", f"wss://localhost:{tls.port}/")

    def check_proxy(self, name, schemes, start):
        """Runs our client through a proxy to our servers; `start` starts the proxy, with credentials or without."""
        for credentials in ((), CREDENTIALS):
            with start(*credentials) as proxy:
                for scheme in schemes:
                    self.check_tunnels(f"{name}, {scheme}", scheme, proxy.address, credentials)

    def check_tunnels(self, name, scheme, address, credentials):
        def check(what, url, credentials, *further):
            through = f"{scheme}://{':'.join(credentials)}{'@' if credentials else ''}{address}"
            self.check(f"{name}, {what}", url, "--proxy", through, "--proxy-address", address, *further)

        name += ", a password" if credentials else ", no password"
        ws, wss = f"ws://localhost:{self.plain.port}/", f"wss://localhost:{self.tls.port}/"
        check("ws", ws, credentials)
        check("wss", wss, credentials)
        if credentials:
            check("a wrong one", ws, (credentials[0], "wrong"), "--refused")
            check("none given", ws, (), "--refused")


def openssl(ground):
    ground.client("openssl s_client", tools.bash("tls/s_client.sh", "openssl"))


def ws(ground):
    ground.client("ws", tools.node("tls-client.mjs"))
    ground.check_servers("ws", tools.node("echo-server.mjs"))


def python(ground):
    ground.client("websockets", tools.python("tls_client.py"))
    ground.check_servers("websockets", tools.python("echo_server.py"))


def proxy_chain(ground):
    """HTTP CONNECT."""
    command = tools.node("proxy.mjs")
    ground.check_proxy("proxy-chain", ["http"], lambda *given: ground.start(command, "proxy-chain proxy", *given))


def go_socks5(ground):
    command = tools.go("socks5")
    start = lambda *given: ground.start(command, "go-socks5 proxy", *given)
    ground.check_proxy("go-socks5", ["socks5", "socks5h"], start)


def pproxy(ground):
    """Both protocols, on one port."""

    def start(*given):
        address = f"127.0.0.1:{common.free_port()}"
        listen = f"http+socks5://{address}{'#' if given else ''}{':'.join(given)}"
        # 0: every connection has to authenticate.
        command = tools.python("-m", "pproxy", "-l", listen, "--auth", "0")
        return Server(command.words, ground.log("pproxy proxy"), address, env=command.env)

    ground.check_proxy("pproxy", ["http", "socks5", "socks5h"], start)


PEERS = {
    "openssl": openssl,
    "ws-tls": ws,
    "python-tls": python,
    "proxy-chain": proxy_chain,
    "go-socks5": go_socks5,
    "pproxy": pproxy,
}


def run(runtime, chosen):
    print(f"library on {runtime}", flush=True)
    with contextlib.ExitStack() as stack:
        ground = Ground(runtime, stack)
        for name in chosen:
            tools.attempt(name, PEERS[name], ground)
