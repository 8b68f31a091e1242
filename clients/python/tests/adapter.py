"""The adapter of this client for the cases in `clients/cases`: JSON lines, and a clock that the cases advance."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
from typing import Any, Callable, Coroutine, Dict, List, Optional, Union

from sinews_client import Client, Gap, HistoryPage, Message, Position, SinewsError, State, Status, Subscription, connect

Fields = Dict[str, Any]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time passes by `advance` only. Input wakes it at any time."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        # More than the sums of the client lose by rounding.
        end = self.now + seconds + 1e-6
        while True:
            await settle()
            scheduled = self._scheduled  # type: ignore[attr-defined]
            due = [timer.when() for timer in scheduled if not timer.cancelled() and timer.when() <= end]
            if not due:
                break
            self.now = max(self.now, min(due))
            await settle()
        self.now = end


async def settle() -> None:
    """Does what the present step causes, without more input."""
    for _ in range(20):
        await asyncio.sleep(0)


def emit(event: str, **fields: Any) -> None:
    shown = {name: value for name, value in fields.items() if value is not None or name == "value"}
    print(json.dumps({"event": event, **shown}), flush=True)


def plain(data: Any) -> Any:
    return {"b64": base64.b64encode(data).decode()} if isinstance(data, bytes) else data


def payload(command: Fields) -> Any:
    return base64.b64decode(command["b64"]) if "b64" in command else command.get("data")


def position(value: Optional[Fields]) -> Optional[Position]:
    return Position(**value) if value is not None else None


class Adapter:
    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.client: Client
        self.repeated: Dict[str, Union[Subscription, State]] = {}
        self.tasks: List["asyncio.Task[None]"] = []

    def tokens(self, values: List[Any]) -> Callable[[], Coroutine[Any, Any, Optional[str]]]:
        """A function that returns one of these tokens after the other, and then the last."""
        left = list(values)

        async def fetch() -> Optional[str]:
            emit("token")
            token = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(token, dict):
                if "logged_out" in token:
                    raise SinewsError(4401, token["logged_out"])
                if "error" in token:
                    raise RuntimeError(token["error"])
                await asyncio.Event().wait()
            return token  # type: ignore[no-any-return]

        return fetch

    def status(self, status: Status) -> None:
        delay = status.delay * 1000 if status.delay is not None else None
        emit("status", status=status.status, attempt=status.attempt, delay=delay, code=status.code, reason=status.reason)

    def message(self, name: str) -> Callable[[Message], None]:
        def show(message: Message) -> None:
            at = message.position._asdict() if message.position is not None else None
            user, info = message.user, message.info
            emit("message", name=name, topic=message.topic, data=plain(message.data), position=at, user=user, info=info, at=message.at)

        return show

    def gap(self, name: str) -> Callable[[Gap], None]:
        return lambda gap: emit(
            "gap", name=name, reason=gap.reason, topic=gap.topic, messages=gap.messages, replayed=gap.replayed
        )

    def failed(self, name: str) -> Callable[[SinewsError], None]:
        return lambda error: emit("failed", name=name, code=error.code)

    def answer(self, name: str, request: Coroutine[Any, Any, Any], value: Callable[[Any], Any] = lambda result: result) -> None:
        async def run() -> None:
            try:
                emit("result", name=name, value=value(await request))
            except SinewsError as error:
                emit("error", name=name, code=error.code)

        self.tasks.append(self.loop.create_task(run()))

    def do_connect(self, command: Fields) -> None:
        token = self.tokens(command["tokens"]) if "tokens" in command else command.get("token")
        own: Fields = {"on_message": self.message(""), "on_gap": self.gap("")} if command.get("assigned") else {}
        self.client = connect(
            command["url"],
            token=token,
            on_status=self.status,
            min_delay=command.get("min_delay", 1000) / 1000,
            max_delay=command.get("max_delay", 8000) / 1000,
            heartbeat_interval=command.get("heartbeat", 30_000) / 1000,
            response_timeout=command.get("response_timeout", 10_000) / 1000,
            **own,
        )

    def do_subscribe(self, command: Fields) -> None:
        name = command["name"]
        presence = (lambda count: emit("presence", name=name, subscribers=count)) if command.get("presence") else None
        members = (lambda members: emit("members", name=name, members=members)) if command.get("members") else None
        subscription = self.client.subscribe(
            command["topic"],
            self.message(name),
            last=command.get("last"),
            after=position(command.get("after")),
            presence=presence,
            members=members,
            on_gap=self.gap(name),
            on_error=self.failed(name),
        )
        self.repeated[name] = subscription

        async def ready() -> None:
            try:
                await subscription.ready()
                emit("ready", name=name)
            except SinewsError:
                pass

        self.tasks.append(self.loop.create_task(ready()))

    def do_unsubscribe(self, command: Fields) -> None:
        self.repeated[command["name"]].unsubscribe()

    def do_state(self, command: Fields) -> None:
        name = command["name"]

        def show(keys: Dict[str, Any], changed: Any) -> None:
            emit("keys", name=name, keys={key: plain(value) for key, value in keys.items()}, changed=sorted(changed))

        options: Fields = {"on_gap": self.gap(name), "on_error": self.failed(name)}
        self.repeated[name] = self.client.state(command["topic"], show, filter=command.get("filter"), **options)

    def do_publish(self, command: Fields) -> None:
        key, queue = command.get("idempotency_key"), command.get("queue", True)
        request = self.client.publish(command["topic"], payload(command), idempotency_key=key, queue=queue)
        self.answer(command["name"], request)

    def do_set(self, command: Fields) -> None:
        options = {name: command[name] for name in ("ttl", "if_new", "version") if name in command}
        self.answer(command["name"], self.client.set(command["topic"], command["key"], payload(command), **options))

    def do_delete(self, command: Fields) -> None:
        self.answer(command["name"], self.client.delete(command["topic"], command["key"]))

    def do_history(self, command: Fields) -> None:
        after, before = position(command.get("after")), position(command.get("before"))
        request = self.client.history(
            command["topic"], command.get("last"), after=after, before=before, limit=command.get("limit")
        )

        def data(page: HistoryPage) -> List[Any]:
            return [plain(message.data) for message in page]

        self.answer(command["name"], request, data)

    def do_presence(self, command: Fields) -> None:
        self.answer(command["name"], self.client.presence(command["topic"]))

    def do_members(self, command: Fields) -> None:
        self.answer(command["name"], self.client.members(command["topic"]), lambda members: [each.id for each in members])

    def do_join(self, command: Fields) -> None:
        self.answer(command["name"], self.client.join(command["topic"], command["id"], command.get("info")))

    def do_leave(self, command: Fields) -> None:
        self.answer(command["name"], self.client.leave(command["topic"]))

    def do_call(self, command: Fields) -> None:
        request = self.client.call(command["method"], command.get("data"), topic=command.get("topic"))
        self.answer(command["name"], request)

    def do_retry(self, _: Fields) -> None:
        self.client.retry()

    def do_close(self, _: Fields) -> None:
        self.tasks.append(self.loop.create_task(self.client.close()))

    async def do_advance(self, command: Fields) -> None:
        await self.loop.advance(command["ms"] / 1000)

    async def do_sync(self, command: Fields) -> None:
        await settle()
        emit("sync", number=command["number"])

    async def run(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 20)
        await self.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while True:
            line = await reader.readline()
            if not line:
                return
            command = json.loads(line)
            done = getattr(self, f"do_{command.pop('do')}")(command)
            if done is not None:
                await done
            # The command takes effect before the next one.
            await settle()


def main() -> None:
    logging.disable(logging.CRITICAL)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(Adapter(loop).run())


main()
