"""Servers under test: built, started on a free port, and stopped by their process id; and the options that choose them."""

import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.request

import common

# Seconds until a started server is ready. It needs milliseconds; a loaded machine more, and may stall.
START_LIMIT = 60
BACKENDS = {"poll": ["poll"], "uring": ["uring"], "both": ["poll", "uring"]}


class Server:
    """A program that serves within a `with` block, and must outlive the block. Its output goes to a log. With an address, it is
    ready when it listens there; otherwise it prints `listening on ADDRESS`."""

    def __init__(self, command, log, address=None, is_ready=None, folder=common.ROOT, env=None):
        self.address, self.log = address, common.log(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as output:
            self.program = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
                env={**os.environ, **(env or {})},
            )
        deadline, is_ready = time.monotonic() + START_LIMIT, is_ready or (self.listens if address else self.is_announced)
        while not is_ready() or self.program.poll() is not None:
            if self.program.poll() is not None or time.monotonic() > deadline:
                self.stop()
                tail = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-10:])
                raise common.Fault(f"the server is not ready, exit status {self.program.returncode}\n{tail}")
            time.sleep(0.02)

    def listens(self):
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), START_LIMIT).close()
        except OSError:
            return False
        return True

    def is_announced(self):
        for line in self.log.read_text("utf-8", "replace").splitlines(keepends=True):
            if line.startswith("listening on ") and line.endswith("\n"):
                self.address = line.removeprefix("listening on ").strip()
        return self.address is not None

    @property
    def port(self):
        return self.address.rsplit(":", 1)[1]

    def stop(self):
        self.program.kill()
        self.program.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        status = self.program.poll()
        self.stop()
        if status is not None:
            common.count("failed", f"FAIL the server ended: exit status {status}, see {self.log}")


def serve(binary, log, *options, certificate=None):
    """Starts `sinews serve`; with the folder of a certificate, with TLS."""
    address = f"127.0.0.1:{common.free_port()}"
    command = [binary, "serve", "--listen", address, *options]
    if certificate:
        files = ["--tls-certificate", certificate / "certificate.pem", "--tls-key", certificate / "key.pem"]
        return Server(command + files, log, address)

    def is_healthy():
        try:
            return urllib.request.urlopen(f"http://{address}/healthz", timeout=2).close() is None
        except OSError:
            return False

    return Server(command, log, address, is_healthy)


def build(*programs, kind="--bin"):
    """The folder with the debug builds of programs, or of examples: those of the Rust tests."""
    folder = common.TARGET / ("debug" if kind == "--bin" else "debug/examples")
    common.run([os.environ["XTASK"], "build", kind, ",".join(programs)], f"build-{'-'.join(programs)}")
    return folder


def make_certificate(folder):
    """A certificate for `localhost` and `127.0.0.1`, and its key, as `certificate.pem` and `key.pem` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    common.run([build("sinews-interop") / "sinews-interop", "certificate", folder], "certificate")
    return folder


def add_options(parser):
    parser.add_argument("--binary", type=pathlib.Path, help="path of the `sinews` program to test, instead of building it")
    parser.add_argument("--backend", choices=BACKENDS, default="both", help="backend of the servers: checks run once for "
                        "each, tutorials on io_uring where it is permitted [default: both]")


def binary(options):
    return options.binary.resolve(strict=True) if options.binary else build("sinews") / "sinews"


def backends(options, program):
    """The chosen backends that work here. Prints why others do not; a failure to start for another reason is an error."""
    permitted = []
    for name in BACKENDS[options.backend]:
        try:
            with serve(program, f"backend-{name}", "--backend", name):
                permitted.append(name)
        except common.Fault as fault:
            reasons = [line for line in str(fault).splitlines() if line.startswith(f"sinews: --backend {name}: ")]
            if not reasons:
                raise
            common.count("skipped", f"skipped: backend {name}: {reasons[0].split(': ', 2)[2]}")
    return permitted


def chosen(parser, only, names):
    """The names of the list that an option chooses, all without it."""
    for unknown in (name for name in only.split(",") if only and name not in names):
        parser.error(f"no such program: {unknown}")
    return [name for name in names if not only or name in only.split(",")]


# A task that is ended ends its servers.
signal.signal(signal.SIGTERM, lambda *_: exit(1))
