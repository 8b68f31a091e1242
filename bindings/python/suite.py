"""Runs the asyncio tests of the package ``websockets`` against ``sinews.websockets``.

    python suite.py CHECKOUT [PATTERN]

CHECKOUT is one of github.com/python-websockets/websockets; that package must be installed, too: it is the peer of the tests with
raw frames. PATTERN chooses tests by their names. Cases in ``suite_known.py`` are expected to fail; any other result ends with
status 1.
"""

import asyncio
import logging
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

from suite_known import KNOWN

#: Tests of classes inside websockets (`messages`, `protocol`, `streams`, …) do not apply.
FILES = ["asyncio/test_client.py", "asyncio/test_connection.py", "asyncio/test_server.py"]
#: Modules that the tests import from this package.
OURS = r"websockets\.(asyncio(?= import client)|asyncio\.client|asyncio\.server|asyncio\.connection|exceptions|http11)\b"
#: The tests' unit of time in milliseconds. One, their default, is less than a stall of a busy machine.
UNIT_MS = "20"
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def copy_tests(checkout, folder):
    """Copies the tests, with imports from this package."""
    shutil.copytree(checkout / "tests", folder / "tests")
    for name in FILES:
        path = folder / "tests" / name
        text = re.sub(rf"^( *)from {OURS}", r"\1from sinews.websockets.\2", path.read_text(), flags=re.MULTILINE)
        # Loggers are `sinews.client` and `sinews.server`.
        path.write_text(re.sub(r'Logs\("websockets"', 'Logs("sinews"', text))


async def wait_for_remote_side(test):
    """Waits longer than the suite's two iterations of the loop: messages are written at an iteration's end."""
    for _ in range(5):
        await asyncio.sleep(0)


def opened(protocol, *, max_queue=16, write_limit=2**15, ping_interval=20, ping_timeout=20, close_timeout=10):
    """Creates a connection whose handshake is complete. The class inside websockets starts in this state."""
    from sinews import _native
    from sinews.websockets.asyncio import connection as ours

    config = ours.limits(
        ping_interval=ping_interval, ping_timeout=ping_timeout, close_timeout=close_timeout, max_size=protocol.max_message_size,
        max_queue=max_queue, write_limit=write_limit, compression=None,
    )  # fmt: skip
    key, _, negotiation = _native.accept(REQUEST, config)
    if protocol.side.name == "CLIENT":
        handshake = _native.ClientHandshake("localhost", "/", [], [], [0] * 16, config)
        handshake.request()
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        _, _, negotiation = handshake.finish(f"{head}Sec-WebSocket-Accept: {key}\r\n\r\n".encode())

    class Opened(ours.Connection):
        def _made(self):
            self._start(negotiation)

    return Opened(asyncio.get_running_loop(), config, logging.getLogger("sinews.test"))


class Result(unittest.TestResult):
    """Collects results by names such as ``ClientTests.test_connection``."""

    def __init__(self):
        super().__init__()
        self.passed, self.failed, self.ignored = set(), {}, set()

    @staticmethod
    def name(test):
        return ".".join(test.id().split(".")[-2:])

    def startTest(self, test):  # noqa: N802
        super().startTest(test)
        self.passed.add(self.name(test))

    def addSkip(self, test, reason):  # noqa: N802
        self.passed.discard(self.name(test))
        self.ignored.add(self.name(test))

    def _fail(self, test, error):
        # Also of a subtest, or of a class's setup.
        test = getattr(test, "test_case", test)
        self.passed.discard(self.name(test))
        self.failed.setdefault(self.name(test), self._exc_info_to_string(error, test))

    addError = addFailure = _fail  # noqa: N815

    def addSubTest(self, test, subtest, error):  # noqa: N802
        if error is not None:
            self._fail(test, error)


def main():
    checkout, pattern = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else ""
    os.environ["WEBSOCKETS_TESTS_TIMEOUT_FACTOR"] = UNIT_MS
    logging.disable(logging.NOTSET)
    logging.lastResort = None
    result = Result()
    with tempfile.TemporaryDirectory() as folder:
        copy_tests(checkout, pathlib.Path(folder))
        sys.path.insert(0, folder)
        from sinews.websockets.protocol import State
        from tests.asyncio import test_connection

        test_connection.Connection, test_connection.OPEN, test_connection.CLOSED = opened, State.OPEN, State.CLOSED
        test_connection.ClientConnectionTests.wait_for_remote_side = wait_for_remote_side
        loader = unittest.TestLoader()
        loader.testNamePatterns = [f"*{pattern}*"]
        names = ["tests." + name[:-3].replace("/", ".") for name in FILES]
        loader.loadTestsFromNames(names).run(result)
    print(f"passed {len(result.passed)}, failed {len(result.failed)}, skipped {len(result.ignored)}")
    unknown = {name: text for name, text in result.failed.items() if name not in KNOWN}
    fixed = [name for name in KNOWN if name in result.passed or not pattern and name not in result.failed]
    for name, text in unknown.items():
        print(f"unexpected failure: {name}\n{text}")
    for name in fixed:
        print(f"expected to fail, but passed: {name}")
    sys.exit(1 if unknown or fixed else 0)


main()
