#!/usr/bin/env python3
"""
Tests a client of the protocol sinews.v1 with the cases of this folder: `run.py COMMAND...`, where the command starts the client's
adapter. README.md describes adapters and cases. Prints `ok NAME` or `FAIL NAME: why` for each case.
"""

from __future__ import annotations

import argparse
import asyncio
import http
import json
import pathlib
import sys

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

FOLDER = pathlib.Path(__file__).parent
#: Bound of each wait for the client, in seconds. A step that is met takes milliseconds.
STALL_SECONDS = 60
WELCOME = {"op": "welcome", "connection": "c-1", "max_message": 1 << 20, "max_subscriptions": 1024, "max_topic": 250}
BEARER = "sinews.bearer."


class CaseFailed(Exception):
    """What differs from the case."""


def differs(expected, found, at):
    """The first difference of a value from its template, whose objects may lack fields."""
    if isinstance(expected, dict) and "between" in expected:
        low, high = expected["between"]
        is_between = isinstance(found, (int, float)) and low <= found <= high
        return None if is_between else f"{at} is {found!r}, and not between {low} and {high}"
    if isinstance(expected, dict) and isinstance(found, dict):
        faults = (differs(value, found.get(name), f"{at}.{name}") for name, value in expected.items())
        return next((fault for fault in faults if fault), None)
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        faults = (differs(one, other, f"{at}[{index}]") for index, (one, other) in enumerate(zip(expected, found)))
        return next((fault for fault in faults if fault), None)
    is_equal = expected == found and isinstance(expected, bool) == isinstance(found, bool)
    return None if is_equal else f"{at} is {json.dumps(found)}, and not {json.dumps(expected)}"


async def within(waiting, what):
    try:
        return await asyncio.wait_for(waiting, STALL_SECONDS)
    except asyncio.TimeoutError:
        raise CaseFailed(f"{what} does not come") from None


class Attempt:
    """A handshake of the client, which a step answers."""

    def __init__(self, request):
        offers = [offer.strip() for offer in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        tokens = [offer[len(BEARER):] for offer in offers if offer.startswith(BEARER)]
        header = request.headers.get("Authorization", "").partition("Bearer ")[2]
        self.token = next(iter(tokens), None) or header or None
        # As the server does it: scripts of browsers cannot read a status.
        self.reads_codes = bool(tokens) or "Origin" in request.headers
        self.path, self.offers = request.path, offers
        self.answer = asyncio.get_running_loop().create_future()
        self.websocket = asyncio.get_running_loop().create_future()


class ScriptedServer:
    """A server that does what the steps say."""

    def __init__(self):
        self.attempts = asyncio.Queue()
        self.websocket = None
        self.ids = {}

    async def start(self):
        options = {"subprotocols": ["sinews.v1"], "process_request": self.handshake, "ping_interval": None}
        self.server = await serve(self.hold, "127.0.0.1", 0, close_timeout=1, **options)
        return self.server.sockets[0].getsockname()[1]

    async def stop(self):
        while not self.attempts.empty():
            answer = self.attempts.get_nowait().answer
            if not answer.done():
                answer.set_result("vanish")
        self.server.close()
        await self.server.wait_closed()

    async def handshake(self, connection, request):
        attempt = connection.attempt = Attempt(request)
        self.attempts.put_nowait(attempt)
        answer = await attempt.answer
        if answer == "vanish":
            connection.transport.abort()
        elif isinstance(answer, int) and not (attempt.reads_codes and answer in (400, 401, 403, 404)):
            return connection.respond(http.HTTPStatus(answer), json.dumps({"error": f"status {answer}"}))
        return None

    async def hold(self, websocket):
        attempt = websocket.attempt
        answer = attempt.answer.result()
        if isinstance(answer, int):
            return await websocket.close(4000 + answer, f"status {answer}")
        websocket.received = asyncio.Queue()
        attempt.websocket.set_result(websocket)
        try:
            async for message in websocket:
                websocket.received.put_nowait(message)
        except ConnectionClosed:
            pass
        websocket.received.put_nowait(None)

    async def next_attempt(self, token):
        attempt = await within(self.attempts.get(), "an attempt to connect")
        if attempt.path != "/ws" or "sinews.v1" not in attempt.offers:
            raise CaseFailed(f"the client connects to {attempt.path} with the subprotocols {attempt.offers}")
        if token is not False and attempt.token != token:
            raise CaseFailed(f"the token is {attempt.token!r}, and not {token!r}")
        return attempt

    async def accept(self, options):
        attempt = await self.next_attempt(options.get("token", False))
        attempt.answer.set_result("accept")
        self.websocket = await within(attempt.websocket, "the handshake")
        welcome = options.get("welcome", {})
        if welcome is not None:
            await self.send({**WELCOME, **welcome})

    async def send(self, message):
        await self.websocket.send(message if isinstance(message, str) else json.dumps(message))

    async def receive(self):
        message = await within(self.websocket.received.get(), "a message of the client")
        if message is None:
            raise CaseFailed(f"the connection is closed: {self.websocket.close_code} {self.websocket.close_reason}")
        return json.loads(message)

    async def barrier(self):
        """Waits until the client has all messages."""
        try:
            await within(await self.websocket.ping(), "a pong")
        except ConnectionClosed:
            pass


class Adapter:
    """A client behind JSON lines."""

    def __init__(self, process):
        self.process = process
        self.events = {}
        self.syncs = 0
        self.reader = asyncio.ensure_future(self.read())

    async def read(self):
        while line := await self.process.stdout.readline():
            event = json.loads(line)
            self.queue(event["event"]).put_nowait(event)

    def queue(self, kind):
        return self.events.setdefault(kind, asyncio.Queue())

    async def do(self, command):
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        await self.process.stdin.drain()

    async def event(self, expected):
        kind = expected["event"]
        while True:
            found = await within(self.queue(kind).get(), f"the event {json.dumps(expected)}")
            # Of the states, a case names those that matter.
            if kind != "status" or found["status"] == expected["status"]:
                return found

    async def sync(self):
        """Waits until the client has done what the commands and the messages so far cause."""
        self.syncs += 1
        await self.do({"do": "sync", "number": self.syncs})
        while (await within(self.queue("sync").get(), "an answer of the adapter"))["number"] != self.syncs:
            pass

    def unexpected(self):
        for kind, queue in self.events.items():
            if kind not in ("status", "sync", "token") and not queue.empty():
                return queue.get_nowait()
        return None


class Case:
    """One case with its server and its client."""

    def __init__(self, case, server, adapter, port):
        self.case, self.server, self.adapter, self.port = case, server, adapter, port

    async def run(self):
        options = {"do": "connect", "url": f"ws://127.0.0.1:{self.port}/ws", **self.case.get("client", {})}
        await self.adapter.do(options)
        for number, step in enumerate(self.case["steps"], 1):
            try:
                await self.step(step)
            except CaseFailed as failed:
                raise CaseFailed(f"step {number}, {json.dumps(step)}: {failed}") from None
            except ConnectionClosed:
                raise CaseFailed(f"step {number}, {json.dumps(step)}: the connection is closed") from None
        await self.quiet()

    def fill(self, value):
        """Replaces `$NAME` by the id of a received message."""
        if isinstance(value, dict):
            return {name: self.fill(entry) for name, entry in value.items()}
        return self.server.ids[value[1:]] if isinstance(value, str) and value[:1] == "$" else value

    async def step(self, step):
        server, adapter = self.server, self.adapter
        kind = next(iter(step))
        argument = step[kind]
        if kind == "do":
            await adapter.do(argument)
        elif kind == "accept":
            await server.accept(argument)
        elif kind in ("reject", "vanish"):
            attempt = await server.next_attempt(step.get("token", False))
            attempt.answer.set_result(argument if kind == "reject" else "vanish")
        elif kind == "receive":
            await self.receive(step)
        elif kind == "send":
            await server.send(self.fill(argument))
        elif kind == "text":
            await server.send(argument)
        elif kind == "close":
            await server.websocket.close(*argument)
        elif kind == "drop":
            # Data that the client has not read would be lost, too.
            await server.barrier()
            server.websocket.transport.abort()
        elif kind == "closed":
            await within(server.websocket.wait_closed(), "the end of the connection")
        elif kind == "event":
            found = await adapter.event(argument)
            if fault := differs(argument, found, "event"):
                raise CaseFailed(fault)
        elif kind == "advance":
            await self.settle()
            await adapter.do({"do": "advance", "ms": argument})
            await adapter.sync()
        elif kind == "quiet":
            await self.quiet()
        else:
            raise CaseFailed(f"unknown step {kind}")

    async def receive(self, step):
        found = await self.server.receive()
        if fault := differs(step["receive"], found, "message"):
            raise CaseFailed(fault)
        if excess := [name for name in step.get("lacks", []) if name in found]:
            raise CaseFailed(f"the message has {excess[0]}: {json.dumps(found)}")
        self.server.ids[step.get("as", "last")] = found.get("id")
        if "answer" in step:
            await self.server.send({"id": found["id"], **step["answer"]})

    async def settle(self):
        if self.server.websocket is not None:
            await self.server.barrier()
        await self.adapter.sync()

    async def quiet(self):
        """Checks that neither the client nor the adapter has said more."""
        await self.settle()
        if self.server.websocket is not None:
            await self.server.barrier()
        if (event := self.adapter.unexpected()) is not None:
            raise CaseFailed(f"an event that is not expected: {json.dumps(event)}")
        if not self.server.attempts.empty():
            raise CaseFailed("an attempt to connect that is not expected")
        received = self.server.websocket.received if self.server.websocket is not None else asyncio.Queue()
        if not received.empty() and (message := received.get_nowait()) is not None:
            raise CaseFailed(f"a message that is not expected: {message}")


async def run_case(case, command):
    server = ScriptedServer()
    port = await server.start()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 20)
    adapter = Adapter(process)
    try:
        await Case(case, server, adapter, port).run()
        if process.returncode is not None:
            raise CaseFailed(f"the adapter has exited with {process.returncode}")
    finally:
        adapter.reader.cancel()
        if process.returncode is None:
            process.kill()
        await process.wait()
        await server.stop()


def cases(names):
    for path in sorted(FOLDER.glob("*.json")):
        for case in json.loads(path.read_text())["cases"]:
            if not names or any(name in case["name"] for name in names):
                yield case


async def run_all(chosen, command, lacks):
    failed = []
    limit = asyncio.Semaphore(4)

    async def run_one(case):
        name = case["name"]
        if missing := [need for need in case.get("needs", []) if need in lacks]:
            return print(f"skipped {name}: the client has no {missing[0]}", flush=True)
        async with limit:
            try:
                await run_case(case, command)
            except CaseFailed as why:
                failed.append(name)
                return print(f"FAIL {name}: {why}", flush=True)
            return print(f"ok {name}", flush=True)

    await asyncio.gather(*map(run_one, chosen))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", default=[], metavar="TEXT", help="only cases with this text in their name")
    parser.add_argument("--without", action="append", default=[], metavar="NEED", help="what the client cannot do: cases that need it are skipped")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the adapter and its arguments")
    options = parser.parse_args()
    chosen = list(cases(options.case))
    failed = asyncio.run(run_all(chosen, options.command, options.without))
    sys.exit(1 if failed or not chosen else 0)


main()
