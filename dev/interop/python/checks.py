"""Runs asynchronous checks, and prints `ok NAME` or `FAIL NAME: why` for each."""

import asyncio
import contextlib
import socket

LIMIT_SECONDS = 120
# Attempts of a check with a bound on a time.
ATTEMPTS = 5
# Ports of programs that a check starts later, below those that the system gives to connections.
PORTS = range(4_800, 4_900)


def repeat(check):
    """Makes a check with a bound on a time again if it fails: a machine that stalls exceeds the bound once, a fault each time."""

    async def attempts():
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(AssertionError):
                return await check()
        return await check()

    attempts.__name__ = check.__name__
    return attempts


def free_port():
    """A port that nothing listens on, and that no connection takes before a program listens there."""
    for port in PORTS:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port from {PORTS.start} to {PORTS.stop} is free")


async def check_all(checks):
    """Runs functions by their names, one after the other. Returns the exit status of the program."""
    failed = 0
    for name, check in checks:
        try:
            await asyncio.wait_for(check(), LIMIT_SECONDS)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {error!r}".replace("\n", " "), flush=True)
    return 1 if failed else 0
