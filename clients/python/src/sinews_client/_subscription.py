"""What a client repeats after each reconnect: subscriptions to messages, members and keys."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from typing import Any, AsyncIterator, Callable, Deque, Dict, List, Optional, Protocol, Set, Union

from ._types import Fields, Gap, Json, Message, Position, SinewsError, matcher, message_of, payload, position_of, present

log = logging.getLogger("sinews_client")

#: Topics whose positions a pattern knows, as at the server.
POSITIONS_MAX = 1024
#: Delay of a list of members that all clients of a topic need, for each subscriber, and its limit, in seconds.
LIST_DELAY = 0.005
LIST_DELAY_MAX = 30.0

MemberMap = Dict[str, Json]


class Requester(Protocol):
    """The client, as its subscriptions see it."""

    def end_request(self, request: "Repeated") -> None: ...

    async def request(self, message: Fields) -> Fields: ...

    def call_later(self, delay: float, run: Callable[[], None]) -> asyncio.TimerHandle: ...

    def spawn(self, coroutine: Any) -> None: ...


def notify(callback: Optional[Callable[..., Any]], *values: Any) -> None:
    """Calls a function of the application. Its exceptions are logged, and end nothing here."""
    if callback is None:
        return
    try:
        callback(*values)
    except Exception:
        log.exception("a callback of the application has failed")


def check_callbacks(**callbacks: Optional[Callable[..., Any]]) -> None:
    for name, callback in callbacks.items():
        if inspect.iscoroutinefunction(callback):
            raise TypeError(f"{name} is a coroutine function: pass a plain function, or iterate over the subscription")


class Repeated:
    """A request that the client repeats after every reconnect, until the application ends it."""

    def __init__(self, client: Requester, topic: str, on_error: Optional[Callable[[SinewsError], Any]]) -> None:
        self.topic = topic
        self._client = client
        self._on_error = on_error
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Whether the present request is acknowledged; earlier messages belong to a previous one.
        self.is_acknowledged = False
        self.has_ended = False

    async def ready(self) -> None:
        """Returns on the first acknowledgement, and raises the error if the server rejects the request."""
        await asyncio.shield(self._ready)

    def unsubscribe(self) -> None:
        """Ends the subscription."""
        self._end(SinewsError("stopped", "it was ended before the server answered"))
        self._client.end_request(self)

    def _resolve(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _end(self, error: SinewsError) -> None:
        self.has_ended = True
        if not self._ready.done():
            self._ready.set_exception(error)
            # A caller that ignores it need not await.
            self._ready.exception()

    def reject(self, error: SinewsError) -> None:
        """The server has rejected the request, or the client has ended."""
        if self.has_ended:
            return
        if self._on_error is not None:
            notify(self._on_error, error)
        elif error.code != "closed":
            log.warning("%s: %s", self.topic, error)
        self._end(error)


class Subscription(Repeated):
    """A subscription to a topic or a pattern. Without ``on_message``, iterate over it."""

    def __init__(
        self,
        client: Requester,
        topic: str,
        on_message: Optional[Callable[[Message], Any]] = None,
        *,
        last: Optional[int] = None,
        after: Optional[Position] = None,
        presence: Optional[Callable[[int], Any]] = None,
        members: Optional[Callable[[MemberMap], Any]] = None,
        on_gap: Optional[Callable[[Gap], Any]] = None,
        on_error: Optional[Callable[[SinewsError], Any]] = None,
        on_subscribed: Optional[Callable[[Fields], Any]] = None,
        max_queue: int = 1024,
    ) -> None:
        callbacks = {"on_message": on_message, "presence": presence, "members": members, "on_gap": on_gap}
        check_callbacks(**callbacks, on_error=on_error, on_subscribed=on_subscribed)
        super().__init__(client, topic, on_error)
        self.matches = matcher(topic)
        #: The position of the last message; a later client can subscribe ``after`` it.
        self.position: Optional[Position] = Position(*after) if after is not None else None
        self._is_pattern = any(part in ("*", ">") for part in topic.split("."))
        self._positions: Optional[Dict[str, Position]] = None
        #: Whether the pattern has more topics than positions.
        self._is_partial = False
        self._on_message, self._presence, self._on_gap, self._on_subscribed = on_message, presence, on_gap, on_subscribed
        self._last = last
        self._members = MemberList(client, topic, members) if members is not None else None
        self._has_begun = self._resumes = False
        self._changes = -1
        self._queue: Deque[Message] = deque()
        self._max_queue = max_queue
        self._arrival = asyncio.Event()
        self._error: Optional[SinewsError] = None

    @property
    def has_options(self) -> bool:
        """Whether the server has to learn more than the topic."""
        return bool(self._presence or self._members or self._last or self.position)

    def message(self) -> Fields:
        """The request."""
        self.is_acknowledged = False
        fields: Fields = {"op": "subscribe", "topic": self.topic}
        if self._members is not None:
            fields["members"] = True
        elif self._presence is not None:
            fields["presence"] = True
        if self._is_pattern:
            fields["recover"] = True
        start: Optional[Fields] = None
        if self._positions is not None:
            start = {"positions": {topic: position._asdict() for topic, position in self._positions.items()}}
        elif self.position is not None:
            start = self.position._asdict()
        self._resumes = start is not None
        if start is not None:
            fields["from"] = start
        elif self._last:
            fields["last"] = self._last
        return fields

    def acknowledge(self, ack: Fields) -> None:
        if self.has_ended:
            return
        # A restarted server counts from the beginning.
        self._changes = -1
        if "subscribers" in ack:
            self.update_presence(ack)
        if "members" in ack and self._members is not None:
            self._members.start(ack)
        for gap in self._resume_pattern(ack) if self._is_pattern else self._resume_name(ack):
            self._lose(gap)
        self._resolve()
        notify(self._on_subscribed, ack)

    def _resume_name(self, ack: Fields) -> List[Gap]:
        """Takes the position of an acknowledgement, and returns the gap before it."""
        is_complete = ack.get("complete") is not False if self._resumes else not self._has_begun
        is_retained = "seq" in ack or (self._resumes and not self._has_begun)
        self.is_acknowledged = self._has_begun = True
        replayed = ack.get("replayed") or 0
        if "seq" not in ack:
            self.position = None
        # With messages that follow, their positions count.
        elif not replayed:
            self.position = position_of(ack)
        if is_complete:
            return []
        return [Gap("history", self.topic, replayed=replayed) if is_retained else Gap("unretained", self.topic)]

    def _resume_pattern(self, ack: Fields) -> List[Gap]:
        """As `_resume_name`. Topics that the server names have lost messages; otherwise any topic of the pattern may have."""
        positions = ack.get("positions")
        is_partial = self._is_partial
        is_recovered = positions is not None and ack.get("complete") is not False and not is_partial
        is_complete = is_recovered if self._resumes else not self._has_begun
        self.is_acknowledged = self._has_begun = True
        if positions is None:
            self._positions = None
        # With messages that follow, their positions count.
        elif not (self._resumes and ack.get("replayed")):
            self._positions = {topic: Position(**at) for topic, at in positions.items()}
        self._is_partial = positions is not None and ack.get("positions_complete") is False
        if is_complete:
            return []
        named = [Gap("history", topic, replayed=0) for topic in ack.get("incomplete", [])]
        return named if named and not is_partial else [*named, Gap("unretained", self.topic)]

    def accept(self, fields: Fields) -> bool:
        """Delivers a message of this subscription; returns whether it is one."""
        topic, position = fields["topic"], position_of(fields)
        if not self.matches(topic):
            return False
        if position is not None and self._is_pattern:
            self._store_position(topic, position)
        elif position is not None:
            # A duplicate that another subscription has requested.
            if self.position is not None and self.position.epoch == position.epoch and position.seq <= self.position.seq:
                return True
            self.position = position
        message = message_of(fields)
        if self._on_message is not None:
            notify(self._on_message, message)
        else:
            self._push(message)
        return True

    def _store_position(self, topic: str, position: Position) -> None:
        if self._positions is None:
            return
        if topic in self._positions or len(self._positions) < POSITIONS_MAX:
            self._positions[topic] = position
        else:
            self._is_partial = True

    def _push(self, message: Message) -> None:
        self._queue.append(message)
        if len(self._queue) > self._max_queue:
            self._queue.popleft()
            self._lose(Gap("overflow", self.topic, messages=1))
        self._arrival.set()

    def lose(self, gap: Gap) -> bool:
        """Reports a gap of this subscription; returns whether it is one."""
        if gap.topic is not None and not self.matches(gap.topic):
            return False
        if self._members is not None:
            self._members.start()
        self._lose(gap)
        return True

    def _lose(self, gap: Gap) -> None:
        if self._on_gap is not None:
            notify(self._on_gap, gap)
        else:
            log.warning("%s: messages are lost: %s", self.topic, gap.reason)

    def update_presence(self, fields: Fields) -> None:
        if fields["topic"] != self.topic:
            return
        if "since" in fields and self._members is not None:
            self._members.update(fields)
        if fields["at"] > self._changes:
            self._changes = fields["at"]
            notify(self._presence, fields["subscribers"])

    def _end(self, error: SinewsError) -> None:
        super()._end(error)
        if error.code not in ("stopped", "closed"):
            self._error = error
        if self._members is not None:
            self._members.stop()
        self._arrival.set()

    def __aiter__(self) -> AsyncIterator[Message]:
        if self._on_message is not None:
            raise TypeError("messages of this subscription go to on_message")
        return self

    async def __anext__(self) -> Message:
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self.has_ended:
                raise StopAsyncIteration
            self._arrival.clear()
            await self._arrival.wait()
        return self._queue.popleft()

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.unsubscribe()


class MemberList:
    """The members of a topic: lists, and the updates after them."""

    def __init__(self, client: Requester, topic: str, on_change: Callable[[MemberMap], Any]) -> None:
        self._client, self._topic, self._on_change = client, topic, on_change
        self._members: MemberMap = {}
        #: Version of the members; updates up to it are known.
        self._at = -1
        #: The list under way, with its members from the first page on.
        self._listing: Optional[Dict[str, Optional[MemberMap]]] = None
        self._timer: Optional[asyncio.TimerHandle] = None

    def start(self, first: Optional[Fields] = None) -> None:
        """Lists the members from the first page on, which may be known."""
        self.stop()
        listing: Dict[str, Optional[MemberMap]] = {"members": None}
        self._listing = listing
        if first is not None and not first.get("more"):
            self._add(listing, first)
            self._finish(listing)
        else:
            self._client.spawn(self._list(listing, first))

    async def _list(self, listing: Dict[str, Optional[MemberMap]], page: Optional[Fields]) -> None:
        after: Optional[str] = None
        try:
            while True:
                if page is None:
                    page = await self._client.request({"op": "members", "topic": self._topic, **present(after=after)})
                if listing is not self._listing:
                    return
                self._add(listing, page)
                if not page["more"]:
                    return self._finish(listing)
                after, page = page["members"][-1]["id"], None
        except SinewsError:
            if listing is self._listing:
                # The next update, or the acknowledgement of the next connection, lists again.
                self._listing, self._at = None, -1

    def _add(self, listing: Dict[str, Optional[MemberMap]], page: Fields) -> None:
        members = listing["members"]
        if members is None:
            # Updates between two pages repeat what the later page has.
            members = listing["members"] = {}
            self._at = page["at"]
        members.update({member["id"]: member.get("info") for member in page["members"]})

    def _finish(self, listing: Dict[str, Optional[MemberMap]]) -> None:
        self._listing = None
        self._members = listing["members"] or {}
        notify(self._on_change, dict(self._members))

    def stop(self) -> None:
        """Ends the delay of a list."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _list_later(self, subscribers: int) -> None:
        """All clients of the topic need the list: it follows after a random delay."""
        # Updates meanwhile repeat what the list has.
        self._listing = None
        if self._timer is None:
            delay = random.random() * min(LIST_DELAY_MAX, subscribers * LIST_DELAY)
            self._timer = self._client.call_later(delay, self.start)

    def update(self, fields: Fields) -> None:
        listing = self._listing
        # A list that begins later than the update includes it.
        if fields["at"] <= self._at or (listing is not None and listing["members"] is None):
            return
        if fields.get("complete") is False:
            return self._list_later(fields["subscribers"])
        if self._timer is not None:
            return
        if fields["since"] > self._at:
            return self.start()
        self._at = fields["at"]
        members = self._members if listing is None else listing["members"]
        assert members is not None
        joined, left = fields.get("joined", []), fields.get("left", [])
        members.update({member["id"]: member.get("info") for member in joined})
        for member in left:
            members.pop(member, None)
        if listing is None and (joined or left):
            notify(self._on_change, dict(members))


class State(Repeated):
    """The keys of a topic. ``on_change`` gets a new dictionary for each change, and the changed keys."""

    def __init__(
        self,
        client: Requester,
        topic: str,
        on_change: Optional[Callable[[Dict[str, Json], Set[str]], Any]] = None,
        *,
        filter: Optional[str] = None,
        interval: Optional[int] = None,
        on_gap: Optional[Callable[[Gap], Any]] = None,
        on_error: Optional[Callable[[SinewsError], Any]] = None,
    ) -> None:
        check_callbacks(on_change=on_change, on_gap=on_gap, on_error=on_error)
        super().__init__(client, topic, on_error)
        self._on_change, self._on_gap = on_change, on_gap
        self._options = present(filter=filter, interval=interval)
        #: The values by key.
        self.keys: Dict[str, Json] = {}
        #: The versions by key, for the conditions of ``set`` and ``delete``.
        self.versions: Dict[str, int] = {}
        self.position: Optional[Position] = None
        self._parts: Optional[List[Fields]] = None

    def message(self) -> Fields:
        """The request."""
        self.is_acknowledged, self._parts = False, None
        start = {"from": self.position._asdict()} if self.position is not None else {}
        return {"op": "subscribe", "topic": self.topic, "keys": True, **self._options, **start}

    def acknowledge(self, _: Fields) -> None:
        self.is_acknowledged = not self.has_ended

    def update(self, fields: Fields) -> None:
        """Takes a part of a snapshot, or an update."""
        if not self.is_acknowledged:
            return
        entries: List[Fields] = fields.get("set", [])
        deleted: List[str] = fields.get("deleted", [])
        part = fields.get("part")
        if part == 1:
            self._parts = []
        if part is not None and self._parts is not None:
            self._parts += entries
        if fields.get("more"):
            return
        last, self.position = self.position, position_of(fields)
        changed = set(deleted)
        keys = dict(self.keys)
        if part is not None:
            if last is not None:
                reason = "history" if last.epoch == fields["epoch"] else "reset"
                notify(self._on_gap, Gap(reason, self.topic))
            changed |= set(keys)
            keys.clear()
            self.versions.clear()
            entries, self._parts = self._parts or [], None
        for entry in entries:
            keys[entry["key"]] = payload(entry)
            self.versions[entry["key"]] = entry["version"]
            changed.add(entry["key"])
        for key in deleted:
            keys.pop(key, None)
            self.versions.pop(key, None)
        self.keys = keys
        self._resolve()
        notify(self._on_change, keys, changed)


AnyRepeated = Union[Subscription, State]
