"""System calls of the server for each message, on each backend, where strace can count them."""

import argparse
import collections
import re
import signal
import socket
import struct
import subprocess

import common
import servers
import soak
import tools

# A load of repeated requests: messages on each connection before its answers are read, and the maximum calls of each message on
# io_uring. Submitting and waiting are one call, so one message or one burst costs one call. The server may receive from 64
# connections in several turns, since it wakes for the first before the last has written: 2 to 4 on machines between idle and busy,
# 6 allowed.
Case = collections.namedtuple("Case", "name connections burst rounds bar")
CASES = (
    Case("1 connection, 1 in flight", 1, 1, 2000, 1.05),
    Case("64 connections, 1 in flight", 64, 1, 500, 6 / 64),
    Case("1 connection, bursts of 50", 1, 50, 500, 1.05 / 50),
)
WAITS = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter")
RECEIVES = ("read", "readv", "recvfrom", "recvmsg")
SENDS = ("write", "writev", "sendto", "sendmsg")
# Seconds until an answer is read. Traced servers are slow, and a loaded machine may stall.
ANSWER_LIMIT = 60
STRACE = ("strace", "-f", "-s", "0", "-e", "raw=all", "-e", "signal=none", "-o")
HANDSHAKE = b"GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
PAYLOAD, MASK = bytes(range(64)), bytes([0x37, 0xFA, 0x21, 0x3D])
# RFC 6455, section 5.2: final binary messages of 64 bytes, masked by the client.
REQUEST = bytes([0x82, 0xC0]) + MASK + bytes(byte ^ MASK[at % 4] for at, byte in enumerate(PAYLOAD))
ANSWER = bytes([0x82, 0x40]) + PAYLOAD


def connect(port):
    """A WebSocket to the echo of the server."""
    stream = socket.create_connection(("127.0.0.1", port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A timeout of Python would make the socket non-blocking, and split the read of a burst.
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", ANSWER_LIMIT, 0))
    stream.sendall(HANDSHAKE)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        # An early end ends the head, too.
        head += stream.recv(4096) or b"\r\n\r\n"
    if not head.startswith(b"HTTP/1.1 101 "):
        raise common.Fault(f"no WebSocket: {head}")
    return stream


def exchange(streams, burst):
    """All clients write, then all read."""
    request, answer = REQUEST * burst, ANSWER * burst
    for stream in streams:
        stream.sendall(request)
    for stream in streams:
        if stream.recv(len(answer), socket.MSG_WAITALL) != answer:
            raise common.Fault("an echo differs from the sent bytes")


def trace(process, log, work):
    """Counts the calls of a process during some work, by their names."""
    command = [*STRACE, str(log), "-p", str(process)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as strace:
        try:
            # With several threads, strace prints this line last, for all of them.
            words = strace.stderr.readline()
            if " attached" not in words:
                raise common.Missing(words.strip())
            work()
        finally:
            # On this signal it detaches before it exits.
            strace.send_signal(signal.SIGINT)
    return calls_in(log.read_text())


def calls_in(log):
    """Completed calls in a log of strace, by their names. The first line of a call before a switch to another thread has no result;
    a wait that attaching interrupts is restarted."""
    calls = re.findall(r"^ *\d+ +(?:<\.\.\. )?(\w+)[( ].*= (.*)", log, re.MULTILINE)
    return collections.Counter(name for name, result in calls if not result.startswith("?") and "EINTR" not in result)


def judged(case, backend, calls):
    """The calls of each message as a line, behind the kind of its count: whether they are few."""
    messages = case.connections * case.burst * case.rounds
    wait, receive, send = (sum(calls[name] for name in names) / messages for names in (WAITS, RECEIVES, SENDS))
    total = sum(calls.values()) / messages
    # Messages that arrive together are answered together, with any backend.
    name, found, bar = ("all", total, case.bar) if backend == "uring" else ("send", send, 1.05 / case.burst)
    numbers = " ".join(f"{number:>8.3f}" for number in (wait, receive, send, total - wait - receive - send, total))
    line = f"  {case.name:<30} {numbers}  {f'{name} at most {bar:.3f}':<20}"
    return ("passed", f"{line} ok") if found <= bar else ("failed", f"{line} FAILED")


def measure(binary, backend):
    print(f"system calls of backend {backend} for each message")
    print("  " + " ".join([" " * 30, *(f"{name:>8}" for name in ("wait", "receive", "send", "other", "all"))]), flush=True)
    options = ["--log", "warn", "--backend", backend, "--threads", "1", "--http-http2-clear-text"]
    for case in CASES:
        with servers.serve(binary, f"syscalls-{backend}", *options) as server:
            streams = [connect(int(server.port)) for _ in range(case.connections)]
            # The first message includes one-time calls.
            exchange(streams, case.burst)
            log = common.log(f"syscalls-{backend}").with_suffix(".strace")

            def work():
                for _ in range(case.rounds):
                    exchange(streams, case.burst)

            common.count(*judged(case, backend, trace(server.program.pid, log, work)))


def check_counts():
    """A log with each kind of line, and made-up counts at the bars."""
    log = """4711  epoll_wait(0x3, 0x5581, 0x400, 0xffffffff) = -1 EINTR (Interrupted system call)
4711  epoll_wait(0x3, 0x5581, 0x400, 0xffffffff <unfinished ...>
4712  futex(0x7f20, 0x80, 0, 0, 0, 0) = -1 EAGAIN (Resource temporarily unavailable)
4711  <... epoll_wait resumed>)         = 0x1
4711  recvfrom(0x9, 0x7ffe, 0x40, 0, 0, 0)    = 0x40
4711  recvfrom(0x9, 0x7ffe, 0x40, 0, 0, 0) = -1 EAGAIN (Resource temporarily unavailable)
4711  io_uring_enter(0x5, 0x11, 0x1, 0x9, 0, 0x8) = 0x11
4711  exit_group(0) = ?
4711  epoll_wait(0x3, 0x5581, 0x400, 0xffffffff <detached ...>
4711  +++ exited with 0 +++
"""
    assert calls_in(log) == {"futex": 1, "epoll_wait": 1, "recvfrom": 2, "io_uring_enter": 1}, calls_in(log)
    for backend, name, few, expected in (
        ("uring", "io_uring_enter", 525, "0.021    0.000    0.000    0.000    0.021  all at most 0.021"),
        ("poll", "sendto", 525, "0.000    0.000    0.021    0.000    0.021  send at most 0.021"),
    ):
        kind, line = judged(CASES[2], backend, collections.Counter({name: few}))
        assert kind == "passed" and line.split(maxsplit=5)[5].startswith(expected), line
        assert judged(CASES[2], backend, collections.Counter({name: few + 1}))[0] == "failed"
    assert judged(CASES[2], "uring", collections.Counter(futex=526))[0] == "failed"
    assert judged(CASES[2], "poll", collections.Counter(futex=526))[0] == "passed"


def run(options):
    common.need("strace", "apt-get install strace")
    binary = soak.binary(options)
    for backend in servers.backends(options, binary):
        tools.attempt(backend, measure, binary, backend)


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask syscalls", description=__doc__)
    servers.add_options(parser)
    tools.attempt("syscalls", run, parser.parse_args())
    common.finish()


check_counts()
main()
