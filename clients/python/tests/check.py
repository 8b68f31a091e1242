"""Checks of the client against the program at $SINEWS. Prints `ok NAME` or `FAIL NAME: why` for each."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback
from typing import Any, Awaitable, Callable, Dict, List

from sinews_client import Gap, Position, SinewsError, Status, connect

PROGRAM = os.environ.get("SINEWS", "sinews")
#: Bound of one check, in seconds.
STALL_SECONDS = 60
SECRET = "a secret of the tests, 32 bytes long"
README = pathlib.Path(__file__).parent.parent / "README.md"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("SINEWS") or name == "SINEWS_BACKEND"}


class Server:
    """A server on a free port, or on that of an earlier one."""

    def __init__(self, *options: str, listen: str = "127.0.0.1:0") -> None:
        command = [PROGRAM, "serve", "--listen", listen, "--threads", "1", *options]
        self.process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        banner = ""
        for line in self.process.stdout:
            banner += line
            if "Ctrl-C stops." in line:
                break
        found = re.search(r"http://(127\.0\.0\.1:\d+)/", banner)
        assert found, banner
        self.address = found.group(1)
        self.url = f"ws://{self.address}/ws"

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class Network:
    """Connections to a server, which can be lost."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.writers: List[asyncio.StreamWriter] = []
        #: Whether what the server sends is lost.
        self.loses_answers = False

    async def __aenter__(self) -> "Network":
        self.listener = await asyncio.start_server(self.forward, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self.listener.sockets[0].getsockname()[1]}/ws"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self.listener.close()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.server.address.split(":")
        answers, requests = await asyncio.open_connection(host, int(port))
        self.writers += [writer, requests]
        await asyncio.gather(self.copy(reader, requests), self.copy(answers, writer))

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not self.loses_answers or writer is self.writers[-1]:
                    writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    def cut(self) -> None:
        """Loses all connections."""
        self.loses_answers = False
        for writer in self.writers:
            writer.transport.abort()


async def publications_are_delivered_in_order() -> None:
    with Server() as server:
        async with connect(server.url) as client, connect(server.url) as other:
            messages = client.subscribe("chat.*")
            await messages.ready()
            for number in range(10):
                assert (await other.publish("chat.room", {"n": number}))["reached"] == 1
            await other.publish("chat.room", b"\x00\xff")
            received = [await messages.__anext__() for _ in range(11)]
            assert [message.data for message in received[:10]] == [{"n": number} for number in range(10)]
            assert received[10].data == b"\x00\xff" and received[10].topic == "chat.room"
            messages.unsubscribe()
            assert [message async for message in messages] == []


async def a_topic_resumes_after_a_crash_of_the_server() -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = ["--streams", folder, "--streams-durable-topics", "stored.>"]
        gaps: List[Gap] = []
        lost = asyncio.Event()

        def notice(status: Status) -> None:
            if status.status == "waiting":
                lost.set()

        with Server(*options) as server:
            client = connect(server.url, on_status=notice, min_delay=0.05, max_delay=0.2)
            messages = client.subscribe("stored.a", on_gap=gaps.append)
            await messages.ready()
            await client.publish("stored.a", 1)
            assert (await messages.__anext__()).data == 1
        await lost.wait()
        with Server(*options, listen=server.address):
            await client.publish("stored.a", 2)
            assert (await messages.__anext__()).data == 2
            position = messages.position
            assert gaps == [] and position is not None and position.seq == 2
            page = await client.history("stored.a", after=Position(position.epoch, 1))
            assert [message.data for message in page] == [2]
            await client.close()


async def retained_messages_are_replayed() -> None:
    with Server("--history", "h.>=10") as server:
        async with connect(server.url) as client:
            for number in range(5):
                await client.publish("h.a", number)
            messages = client.subscribe("h.a", last=2)
            assert [(await messages.__anext__()).data for _ in range(2)] == [3, 4]
            assert [message.data for message in await client.history("h.a", 3)] == [2, 3, 4]
            try:
                await client.history("plain")
                raise AssertionError("a topic without a history")
            except SinewsError as error:
                assert error.code == 410


async def a_history_is_read_in_pages() -> None:
    with Server("--history", "h.>=10") as server:
        async with connect(server.url) as client:
            for number in range(7):
                await client.publish("h.a", number)
            page = await client.history("h.a", 3)
            pages = [[message.data for message in page]]
            while page.more:
                page = await client.history("h.a", 3, before=page.messages[0].position)
                pages.append([message.data for message in page])
            assert pages == [[4, 5, 6], [1, 2, 3], [0]] and page.complete, pages
            page = await client.history("h.a", after=page.messages[0].position, limit=2)
            assert [message.data for message in page] == [1, 2] and page.more
            assert all(message.at is not None for message in page)


async def patterns_resume_after_a_lost_connection() -> None:
    with Server("--history", "h.>=3") as server:
        gaps: List[Gap] = []
        states: asyncio.Queue[str] = asyncio.Queue()
        async with Network(server) as network, connect(server.url) as other:
            options: Dict[str, Any] = {"min_delay": STALL_SECONDS, "max_delay": STALL_SECONDS}
            async with connect(network.url, on_status=lambda status: states.put_nowait(status.status), **options) as client:
                messages = client.subscribe("h.*", on_gap=gaps.append)
                await messages.ready()
                await other.publish("h.a", 1)
                assert (await messages.__anext__()).data == 1
                for lost, gap in ((2, []), (4, ["h.b"])):
                    network.cut()
                    while await states.get() != "waiting":
                        pass
                    await other.publish("h.a", "missed")
                    for number in range(lost):
                        await other.publish("h.b", number)
                    client.retry()
                    received = [await messages.__anext__() for _ in range(1 + min(lost, 3))]
                    assert sorted(message.topic for message in received) == ["h.a"] + ["h.b"] * min(lost, 3)
                    of_b = [message.data for message in received if message.topic == "h.b"]
                    assert of_b == list(range(lost))[-3:]
                    assert [each.topic for each in gaps] == gap, gaps


async def a_lost_publication_is_sent_again_once() -> None:
    with Server("--history", "h.>=10") as server:
        lost = asyncio.Event()

        def notice(status: Status) -> None:
            if status.status == "waiting":
                lost.set()

        async with Network(server) as network, connect(server.url) as other:
            messages = other.subscribe("h.a")
            await messages.ready()
            async with connect(network.url, on_status=notice, min_delay=0.05, max_delay=0.2) as client:
                await client.publish("h.a", 1)
                network.loses_answers = True
                publication = asyncio.ensure_future(client.publish("h.a", 2, idempotency_key=True))
                # The server has it: only the answer is lost.
                assert [(await messages.__anext__()).data for _ in range(2)] == [1, 2]
                network.cut()
                assert (await publication)["repeated"] is True and lost.is_set()
                assert [message.data for message in await other.history("h.a")] == [1, 2]


async def members_and_presence_are_followed() -> None:
    with Server() as server:
        lists: asyncio.Queue[Dict[str, Any]] = asyncio.Queue()
        async with connect(server.url) as client, connect(server.url) as other:
            client.subscribe("room", lambda _: None, members=lists.put_nowait)
            assert await lists.get() == {}
            await other.join("room", "ben", {"name": "Ben"})
            assert await lists.get() == {"ben": {"name": "Ben"}}
            assert [(each.id, each.info, each.connections) for each in await client.members("room")] == [("ben", {"name": "Ben"}, 1)]
            assert await client.presence("room") == 2
            await other.leave("room")
            assert await lists.get() == {}


async def keys_are_followed_and_written() -> None:
    with Server() as server:
        changes: asyncio.Queue[Dict[str, Any]] = asyncio.Queue()
        async with connect(server.url) as client:
            state = client.state("game", lambda keys, _: changes.put_nowait(keys))
            assert await changes.get() == {}
            await client.set("game", "anna", {"x": 1})
            assert await changes.get() == {"anna": {"x": 1}}
            version = state.versions["anna"]
            await client.set("game", "anna", b"\xff", version=version)
            assert await changes.get() == {"anna": b"\xff"}
            try:
                await client.set("game", "anna", 3, version=version)
                raise AssertionError("an old version")
            except SinewsError as error:
                assert error.code == 412
            await client.delete("game", "anna")
            assert await changes.get() == {}


async def tokens_are_renewed_and_checked() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "secret")
        file.write_text(SECRET)
        asked = 0

        def token() -> str:
            nonlocal asked
            asked += 1
            words = [PROGRAM, "token", "--secret-file", str(file), "--subscribe", "a", "--expires", "2s", "--id", str(asked)]
            return subprocess.run(words, env=ENVIRONMENT, capture_output=True, check=True, text=True).stdout.strip()

        with Server("--auth-secret-file", str(file), "--auth-leeway", "0s") as server:
            states: List[str] = []
            async with connect(server.url, token=token, on_status=lambda status: states.append(status.status)) as client:
                await client.subscribe("a", lambda _: None).ready()
                while asked < 4:
                    await asyncio.sleep(0.05)
                assert states == ["connecting", "open"], states
                try:
                    await client.publish("a", 1)
                    raise AssertionError("a publication without a right")
                except SinewsError as error:
                    assert error.code == 403 and error.needs == {"publish": ["a"]}
            ends: asyncio.Queue[Status] = asyncio.Queue()
            client = connect(server.url, token="a.b.c", on_status=ends.put_nowait)
            assert (await ends.get()).status == "connecting"
            end = await ends.get()
            assert (end.status, end.code) == ("closed", 4401), end
            await client.close()


async def iteration_has_a_limit() -> None:
    with Server() as server:
        gaps: List[Gap] = []
        async with connect(server.url) as client:
            messages = client.subscribe("a", on_gap=gaps.append, max_queue=3)
            await messages.ready()
            for number in range(5):
                await client.publish("a", number)
            assert [(await messages.__anext__()).data for _ in range(3)] == [2, 3, 4]
            assert [gap.reason for gap in gaps] == ["overflow", "overflow"]


async def program_of_the_readme_runs() -> None:
    with Server() as server:
        programs = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
        assert len(programs) == 1
        for program in programs:
            text = program.replace("ws://127.0.0.1:8080/ws", server.url)
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE)
            output, _ = await child.communicate()
            assert output.decode().splitlines() == ["chat.room {'text': 'hello'}"], output


CHECKS: List[Callable[[], Awaitable[None]]] = [
    publications_are_delivered_in_order,
    a_topic_resumes_after_a_crash_of_the_server,
    retained_messages_are_replayed,
    a_history_is_read_in_pages,
    patterns_resume_after_a_lost_connection,
    a_lost_publication_is_sent_again_once,
    members_and_presence_are_followed,
    keys_are_followed_and_written,
    tokens_are_renewed_and_checked,
    iteration_has_a_limit,
    program_of_the_readme_runs,
]


async def main() -> int:
    failed = 0
    for check in CHECKS:
        name = check.__name__.replace("_", " ")
        try:
            await asyncio.wait_for(check(), STALL_SECONDS)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed += 1
            traceback.print_exc()
            print(f"FAIL {name}: {error!r}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main()) else 0)
