"""A connection to a server that reconnects automatically."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import ssl as tls
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set, Tuple, Union

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from ._subscription import AnyRepeated, Repeated, State, Subscription, check_callbacks, notify
from ._token import RENEWAL_MAX, RENEWAL_RETRY, RENEWAL_RETRY_MIN, RENEWAL_SHARE, TokenSource, TokenStore
from ._types import Fields, Gap, HistoryPage, Json, Member, Message, Position, SinewsError, Status
from ._types import content, message_of, position_of, present

log = logging.getLogger("sinews_client")

#: Limits of requests that are queued while disconnected, and of pending requests.
QUEUE_MAX = 256
PENDING_MAX = 4096
#: Close codes: invalid or expired token; path, origin or missing right, which no retry can fix.
TOKEN_REJECTED = 4401
REJECTED = frozenset((4400, 4403, 4404))
ABNORMAL = 1006
#: Error code of a store that is temporarily unavailable, and seconds before a retry.
STORE = 503
RETRY_DELAY = 1.0
#: Seconds during which a request with an idempotency key is sent again: servers remember keys for five minutes.
REPEAT_MAX = 240.0
#: A connection that lasted this many seconds resets the delay between attempts.
STABLE = 5.0
#: Seconds for the close handshake with a server that may be gone.
CLOSE_TIMEOUT = 2.0
#: Default limit of a message, in bytes; a server sends at most its own ``max_message``.
MESSAGE_MAX = 64 << 20


class _Request:
    """A request and its answer."""

    __slots__ = ("message", "on_answer", "on_error", "is_wanted", "sent_at")

    def __init__(
        self,
        message: Fields,
        on_answer: Callable[[Fields], None],
        on_error: Callable[[SinewsError], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.message, self.on_answer, self.on_error, self.is_wanted = message, on_answer, on_error, is_wanted
        #: The time at which it was first sent.
        self.sent_at: Optional[float] = None

    def may_repeat(self, now: float) -> bool:
        """Whether the server executes it once, however often it arrives."""
        return "idempotency_key" in self.message and (self.sent_at is None or now - self.sent_at < REPEAT_MAX)

    def replaces(self, other: "_Request") -> bool:
        """Whether the request makes an earlier one superfluous."""
        fields = {"op", "topic", "key", "data", "b64", "ttl"}
        one, two = self.message, other.message
        is_plain = one["op"] == two["op"] == "set" and fields.issuperset(one) and fields.issuperset(two)
        return is_plain and (one["topic"], one["key"]) == (two["topic"], two["key"])


class _Connection:
    """One WebSocket."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self.outgoing: asyncio.Queue[str] = asyncio.Queue()
        self.lost: asyncio.Future[Tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.opened_at: Optional[float] = None

    def fail(self, code: int, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result((code, reason))

    async def write(self) -> None:
        try:
            while True:
                await self.websocket.send(await self.outgoing.get())
        except ConnectionClosed:
            # The reader has the reason.
            return

    async def read(self, handle: Callable[[Fields], None]) -> None:
        try:
            while True:
                handle(json.loads(await self.websocket.recv()))
        except ConnectionClosed:
            code, reason = self.websocket.close_code, self.websocket.close_reason
            self.fail(ABNORMAL if code is None else code, reason or "the connection was lost")
        except Exception as error:
            log.exception("a message of the server cannot be handled")
            self.fail(0, f"invalid message: {error!r}")


class Client:
    """A client that reconnects until ``close``. It needs a running event loop; times are in seconds."""

    def __init__(
        self,
        url: str,
        *,
        token: TokenSource = None,
        on_status: Optional[Callable[[Status], Any]] = None,
        on_message: Optional[Callable[[Message], Any]] = None,
        on_gap: Optional[Callable[[Gap], Any]] = None,
        min_delay: float = 0.25,
        max_delay: float = 30.0,
        heartbeat_interval: float = 30.0,
        response_timeout: float = 10.0,
        max_message: int = MESSAGE_MAX,
        headers: Optional[Mapping[str, str]] = None,
        ssl: Optional[tls.SSLContext] = None,
    ) -> None:
        check_callbacks(on_status=on_status, on_message=on_message, on_gap=on_gap)
        scheme, separator, rest = url.partition("://")
        self._url = {"http": "ws", "https": "wss"}.get(scheme, scheme) + separator + rest
        self._tokens = TokenStore(token)
        #: Called with each change of the connection's state.
        self.on_status = on_status
        self._on_message, self._on_gap = on_message, on_gap
        self._min_delay, self._max_delay = min_delay, max_delay
        self._heartbeat_interval, self._response_timeout = heartbeat_interval, response_timeout
        self._max_message, self._headers, self._ssl = max_message, dict(headers or {}), ssl
        self._loop = asyncio.get_running_loop()
        self._status = Status("connecting")
        self._attempt = 0
        self._connection: Optional[_Connection] = None
        #: The id of the open connection, by which a backend addresses this client.
        self.connection_id: Optional[str] = None
        self._has_opened = False
        self._next_id = 1
        self._pending: Dict[int, _Request] = {}
        self._queue: List[_Request] = []
        self._subscriptions: Dict[Subscription, None] = {}
        self._states: Dict[str, State] = {}
        self._joined: Dict[str, Tuple[Fields, "asyncio.Future[None]"]] = {}
        self._timers: Dict[str, asyncio.TimerHandle] = {}
        self._received_at = 0.0
        self._wakes = asyncio.Event()
        self._tasks: Set["asyncio.Task[Any]"] = set()
        self._run_task = self._loop.create_task(self._run())

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def status(self) -> Status:
        """The state of the connection."""
        return self._status

    # Requests of the application.

    def subscribe(
        self,
        topic: str,
        on_message: Optional[Callable[[Message], Any]] = None,
        *,
        last: Optional[int] = None,
        after: Optional[Position] = None,
        presence: Optional[Callable[[int], Any]] = None,
        members: Optional[Callable[[Dict[str, Json]], Any]] = None,
        on_gap: Optional[Callable[[Gap], Any]] = None,
        on_error: Optional[Callable[[SinewsError], Any]] = None,
        on_subscribed: Optional[Callable[[Fields], Any]] = None,
        max_queue: int = 1024,
    ) -> Subscription:
        """
        Subscribes to a topic or a pattern, and again after every reconnect. A topic with a history resumes after the last
        message, at first with the ``last`` messages, or those ``after`` a position. Without ``on_message``, iterate over the
        result: up to ``max_queue`` messages wait, then the oldest are dropped. ``presence`` and ``members`` get the number
        of subscribers and the members after each change. ``on_gap`` gets lost messages; without it, a warning is logged.
        """
        subscription = Subscription(
            self, topic, on_message, last=last, after=after, presence=presence, members=members, on_gap=on_gap,
            on_error=on_error, on_subscribed=on_subscribed, max_queue=max_queue,
        )
        if self._is("closed"):
            subscription.reject(self._closed())
            return subscription
        other = next((other for other in self._others(subscription) if other.is_acknowledged), None)
        self._subscriptions[subscription] = None
        if self._is("open"):
            if other is None or subscription.has_options:
                self._send_subscribe(subscription)
            else:
                position = other.position._asdict() if other.position is not None else {}
                subscription.acknowledge({"topic": topic, **position})
        return subscription

    async def publish(
        self,
        topic: str,
        data: Json,
        *,
        idempotency_key: Union[str, bool, None] = None,
        queue: bool = True,
    ) -> Fields:
        """
        Publishes JSON or bytes, and returns the acknowledgement. Publications are queued while disconnected, unless
        ``queue`` is false. One in flight when the connection is lost raises the code "lost", since its delivery is unknown.
        With an ``idempotency_key``, or True for a random one, the client sends it again instead.
        """
        key = secrets.token_hex(16) if idempotency_key is True else idempotency_key or None
        message = {"op": "publish", "topic": topic, **content(data), **present(idempotency_key=key)}
        return await self.request(message, queue)

    async def history(
        self,
        topic: str,
        last: Optional[int] = None,
        *,
        after: Optional[Position] = None,
        before: Optional[Position] = None,
        limit: Optional[int] = None,
    ) -> HistoryPage:
        """
        Fetches retained messages: the ``last`` ones, by default 100, also ``before`` a position; or those ``after`` a
        position, at most ``limit``. One answer has at most 1,000 messages and 1 MiB.
        """
        if last is None and after is None:
            last = 100
        start = {"from": Position(*after)._asdict()} if after is not None else {}
        end = {"before": Position(*before)._asdict()} if before is not None else {}
        message = {"op": "history", "topic": topic, **present(last=last, limit=limit), **start, **end}
        answer = await self.request(message)
        messages = [message_of(fields) for fields in answer["messages"]]
        return HistoryPage(messages, answer.get("more", False), answer.get("complete", True))

    async def presence(self, topic: str) -> int:
        """The number of subscribers of a topic by its name."""
        return int((await self.request({"op": "presence", "topic": topic}))["subscribers"])

    async def members(self, topic: str) -> List[Member]:
        """Lists the members of a topic, in order of their ids."""
        members: List[Member] = []
        while True:
            after = members[-1].id if members else None
            page = await self.request({"op": "members", "topic": topic, **present(after=after)})
            members += [Member(each["id"], each.get("info"), each["connections"]) for each in page["members"]]
            if not page["more"]:
                return members

    async def join(self, topic: str, id: str, info: Json = None) -> None:
        """
        Makes this client present in a topic as a member, and again after every reconnect, until ``leave``. Joining again
        replaces the member.
        """
        if self._is("closed"):
            raise self._closed()
        former = self._joined.get(topic)
        done: "asyncio.Future[None]" = former[1] if former is not None and not former[1].done() else self._loop.create_future()
        self._joined[topic] = ({"id": id, **present(info=info)}, done)
        if self._is("open"):
            self._send_join(topic)
        await asyncio.shield(done)

    async def leave(self, topic: str) -> None:
        """Ends the presence of this client in a topic."""
        joined = self._joined.pop(topic, None)
        if joined is None:
            return
        _settle(joined[1], None)
        if self._is("open"):
            await self.request({"op": "leave", "topic": topic})

    def state(
        self,
        topic: str,
        on_change: Optional[Callable[[Dict[str, Json], Set[str]], Any]] = None,
        *,
        filter: Optional[str] = None,
        interval: Optional[int] = None,
        on_gap: Optional[Callable[[Gap], Any]] = None,
        on_error: Optional[Callable[[SinewsError], Any]] = None,
    ) -> State:
        """
        Follows the keys of a topic, or those that match a ``filter``, and again after every reconnect. ``on_change`` gets all
        values by key and the changed keys, at most once in ``interval`` milliseconds. One for each topic.
        """
        if topic in self._states:
            raise SinewsError("duplicate", f"the keys of {topic} are followed already")
        state = State(self, topic, on_change, filter=filter, interval=interval, on_gap=on_gap, on_error=on_error)
        if self._is("closed"):
            state.reject(self._closed())
            return state
        self._states[topic] = state
        if self._is("open"):
            self._send_state(state)
        return state

    async def set(
        self,
        topic: str,
        key: str,
        data: Json,
        *,
        ttl: Optional[int] = None,
        if_new: Optional[bool] = None,
        if_exists: Optional[bool] = None,
        version: Optional[int] = None,
        epoch: Optional[int] = None,
        idempotency_key: Optional[str] = None,
        queue: bool = True,
    ) -> Fields:
        """
        Sets a key of a topic to JSON or bytes, for ``ttl`` milliseconds. Conditions: one of ``if_new``, ``if_exists`` and
        ``version``, which may have an ``epoch``; ``idempotency_key`` as for ``publish``. Raises 412 if the condition is not met. While
        disconnected, a later value of the key replaces a queued one.
        """
        conditions = present(if_new=if_new, if_exists=if_exists, version=version, epoch=epoch)
        options = present(ttl=ttl, idempotency_key=idempotency_key)
        message = {"op": "set", "topic": topic, "key": key, **content(data), **options, **conditions}
        return await self.request(message, queue)

    async def delete(
        self,
        topic: str,
        key: str,
        *,
        if_exists: Optional[bool] = None,
        version: Optional[int] = None,
        epoch: Optional[int] = None,
        idempotency_key: Optional[str] = None,
        queue: bool = True,
    ) -> Fields:
        """Deletes a key of a topic; conditions as for ``set``."""
        options = present(if_exists=if_exists, version=version, epoch=epoch, idempotency_key=idempotency_key)
        return await self.request({"op": "delete", "topic": topic, "key": key, **options}, queue)

    async def call(self, method: str, data: Json = None, *, topic: Optional[str] = None, queue: bool = True) -> Json:
        """Calls a method of the application behind the server, and returns its result."""
        message = {"op": "rpc", "method": method, "data": data, **present(topic=topic)}
        return (await self.request(message, queue))["data"]

    def retry(self) -> None:
        """Connects now, if the client waits for its next attempt."""
        self._wakes.set()

    async def close(self) -> None:
        """Closes the connection permanently."""
        connection = self._connection
        self._end(1000, "closed by this client")
        if connection is not None:
            await self._close_websocket(connection)
        if asyncio.current_task() is not self._run_task:
            await asyncio.gather(self._run_task, return_exceptions=True)
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    async def request(self, message: Fields, queue: bool = True) -> Fields:
        """Sends a request of the protocol, and returns its answer. The client adds the ``id``."""
        answer: "asyncio.Future[Fields]" = self._loop.create_future()
        request = _Request(
            message, lambda fields: _settle(answer, fields), lambda error: _fail(answer, error), lambda: not answer.done()
        )
        if self._is("closed"):
            raise self._closed()
        if self._is("open"):
            self._send(request)
        elif not queue:
            raise SinewsError("offline", "the client is not connected, and the request is not to be queued")
        else:
            self._enqueue(request)
        return await answer

    # Requests of subscriptions.

    def end_request(self, request: Repeated) -> None:
        """An application has ended a subscription."""
        topic = request.topic
        if isinstance(request, State):
            if self._states.get(topic) is request:
                del self._states[topic]
                self._tell({"op": "unsubscribe", "topic": topic, "keys": True})
        elif isinstance(request, Subscription) and request in self._subscriptions:
            del self._subscriptions[request]
            if not any(True for _ in self._others(request)):
                self._tell({"op": "unsubscribe", "topic": topic})

    def call_later(self, delay: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, run)

    def spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The connection.

    async def _run(self) -> None:
        while not self._is("closed"):
            self._set_status("connecting")
            code, reason = await self._attempt_connection()
            if self._is("closed"):
                return
            if code == TOKEN_REJECTED:
                self._tokens.rejected = self._tokens.token
            if code in REJECTED or (code == TOKEN_REJECTED and not self._tokens.is_renewable):
                return self._end(code, reason)
            await self._wait(code, reason)

    async def _wait(self, code: int, reason: str) -> None:
        """Waits for the next attempt, with exponential backoff and jitter."""
        most = min(self._max_delay, self._min_delay * 2 ** min(self._attempt, 30))
        delay = most / 2 + random.random() * most / 2
        self._attempt += 1
        self._wakes.clear()
        self._set_status("waiting", delay=delay, code=code, reason=reason)
        try:
            await asyncio.wait_for(self._wakes.wait(), delay)
        except asyncio.TimeoutError:
            pass

    async def _attempt_connection(self) -> Tuple[int, str]:
        """One connection, until it is lost: the close code, and the reason."""
        try:
            token = await asyncio.wait_for(self._tokens.current(), self._response_timeout)
        except asyncio.TimeoutError:
            return 0, f"no token in {self._response_timeout} s (response_timeout)"
        except SinewsError as error:
            # The application says that the user is logged out.
            if error.code in (401, TOKEN_REJECTED):
                self._end(TOKEN_REJECTED, error.args[0])
            return 0, f"no token: {error}"
        except Exception as error:
            return 0, f"no token: {error!r}"
        if token is not None and token == self._tokens.rejected:
            self._end(TOKEN_REJECTED, "the server has rejected this token already")
            return TOKEN_REJECTED, ""
        if self._is("closed"):
            return 0, ""
        try:
            websocket = await asyncio.wait_for(self._open(token), self._response_timeout)
        except InvalidStatus as error:
            return 4000 + error.response.status_code, _reason(error)
        except InvalidURI as error:
            self._end(0, f"cannot connect: {error}")
            return 0, ""
        except (OSError, InvalidHandshake, ConnectionClosed, asyncio.TimeoutError, EOFError) as error:
            return ABNORMAL, f"cannot connect: {error!r}"
        return await self._serve(_Connection(websocket))

    async def _open(self, token: Optional[str]) -> ClientConnection:
        headers = dict(self._headers)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        options: Dict[str, Any] = {"ssl": self._ssl} if self._ssl is not None else {}
        return await open_websocket(
            self._url,
            subprotocols=[Subprotocol("sinews.v1")],
            additional_headers=headers,
            # The protocol has its own, which also the application layer of the server answers.
            ping_interval=None,
            close_timeout=CLOSE_TIMEOUT,
            open_timeout=None,
            max_size=self._max_message,
            **options,
        )

    async def _serve(self, connection: _Connection) -> Tuple[int, str]:
        if self._is("closed"):
            await self._close_websocket(connection)
            return 0, ""
        self._connection = connection
        self._set_timer("welcome", self._response_timeout, lambda: connection.fail(0, "connect timeout"))
        tasks = [self._loop.create_task(connection.write()), self._loop.create_task(connection.read(self._handle))]
        try:
            lost = await connection.lost
        except asyncio.CancelledError:
            # The program ends.
            connection.websocket.transport.abort()
            raise
        finally:
            for task in tasks:
                task.cancel()
        if self._connection is connection:
            self._disconnected(connection)
        self.spawn(self._close_websocket(connection))
        return lost

    async def _close_websocket(self, connection: _Connection) -> None:
        try:
            await asyncio.wait_for(connection.websocket.close(), CLOSE_TIMEOUT)
        except (OSError, asyncio.TimeoutError, ConnectionClosed):
            connection.websocket.transport.abort()

    def _disconnected(self, connection: _Connection) -> None:
        self._connection, self.connection_id = None, None
        # A server that accepts connections and drops them at once must not be flooded.
        if connection.opened_at is not None and self._loop.time() - connection.opened_at >= STABLE:
            self._attempt = 0
        self._status = Status("connecting", self._attempt)
        self._stop_timers()
        pending = list(self._pending.values())
        self._pending.clear()
        now = self._loop.time()
        self._queue[:0] = [request for request in pending if request.may_repeat(now)]
        for request in pending:
            if not request.may_repeat(now):
                request.on_error(SinewsError("lost", "the connection was lost before the server answered"))

    def _end(self, code: int, reason: str) -> None:
        if self._is("closed"):
            return
        self._status = Status("closed", self._attempt, None, code, reason)
        self._stop_timers()
        connection, self._connection, self.connection_id = self._connection, None, None
        if connection is not None:
            connection.fail(code, reason)
        self._wakes.set()
        error = SinewsError("closed", reason)
        requests = [*self._pending.values(), *self._queue]
        repeated: List[AnyRepeated] = [*self._subscriptions, *self._states.values()]
        joined = list(self._joined.values())
        for collection in (self._pending, self._queue, self._subscriptions, self._states, self._joined):
            collection.clear()
        for request in requests:
            request.on_error(error)
        for one in repeated:
            one.reject(error)
        for _, done in joined:
            _fail(done, error)
        notify(self.on_status, self._status)

    def _set_status(self, status: str, **more: Any) -> None:
        self._status = Status(status, self._attempt, **more)
        notify(self.on_status, self._status)

    def _is(self, status: str) -> bool:
        return self._status.status == status

    def _closed(self) -> SinewsError:
        return SinewsError("closed", "the client is closed")

    def _set_timer(self, name: str, delay: float, run: Callable[[], None]) -> None:
        former = self._timers.pop(name, None)
        if former is not None:
            former.cancel()
        self._timers[name] = self._loop.call_later(delay, run)

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # Messages of the server.

    def _handle(self, message: Fields) -> None:
        self._received_at = self._loop.time()
        op = message.get("op")
        handler: Optional[Callable[[Fields], None]] = getattr(self, f"_handle_{op}", None) if op in _UNREQUESTED else None
        if handler is not None:
            handler(message)
        request = self._pending.pop(message.get("id", -1), None)
        if request is None:
            if op == "error":
                self._request_again(message)
        elif op == "error":
            request.on_error(SinewsError(message["code"], message["error"], message.get("needs")))
        else:
            request.on_answer(message)

    def _handle_welcome(self, message: Fields) -> None:
        connection = self._connection
        if connection is None:
            return
        timer = self._timers.pop("welcome", None)
        if timer is not None:
            timer.cancel()
        connection.opened_at = self._loop.time()
        self.connection_id = message.get("connection")
        self._handle_refreshed(message)
        self._status = Status("open", self._attempt)
        self._start_heartbeat()
        for subscription in list(self._subscriptions):
            self._send_subscribe(subscription)
        # Behind the subscriptions: other members may answer a new member at once.
        for topic in list(self._joined):
            self._send_join(topic)
        for state in list(self._states.values()):
            self._send_state(state)
        queue, self._queue = self._queue, []
        for request in queue:
            if request.sent_at is not None and not request.may_repeat(self._loop.time()):
                request.on_error(SinewsError("lost", "the server may have forgotten the idempotency key meanwhile"))
            elif request.is_wanted():
                self._send(request)
        # Last: the application may make requests or close the client.
        self._set_status("open")
        if self._has_opened and self._on_message is not None:
            notify(self._on_gap, Gap("unretained"))
        self._has_opened = True

    def _handle_refreshed(self, message: Fields) -> None:
        timer = self._timers.pop("renewal", None)
        if timer is not None:
            timer.cancel()
        left = message.get("expires_in")
        if left is not None and self._tokens.is_renewable:
            self._tokens.use(self._tokens.token, left)
            self._set_timer("renewal", left - min(left * RENEWAL_SHARE, RENEWAL_MAX), self._renew)

    def _handle_message(self, message: Fields) -> None:
        # Each subscription checks it: a list of the accepting ones, so that none is skipped.
        if not any([subscription.accept(message) for subscription in list(self._subscriptions)]):
            notify(self._on_message, message_of(message))

    def _handle_dropped(self, message: Fields) -> None:
        self._report(Gap("dropped", message.get("topic"), message["messages"]))

    def _handle_reset(self, message: Fields) -> None:
        self._report(Gap("reset", message["topic"]))

    def _report(self, gap: Gap) -> None:
        if not any([subscription.lose(gap) for subscription in list(self._subscriptions)]) or gap.topic is None:
            notify(self._on_gap, gap)

    def _handle_presence(self, message: Fields) -> None:
        for subscription in list(self._subscriptions):
            subscription.update_presence(message)

    def _handle_unsubscribed(self, message: Fields) -> None:
        for subscription in [each for each in self._subscriptions if each.topic == message["topic"]]:
            del self._subscriptions[subscription]
            subscription.reject(SinewsError("unsubscribed", "the backend has ended the subscription"))

    def _handle_keys(self, message: Fields) -> None:
        state = self._states.get(message["topic"])
        if state is not None:
            state.update(message)

    def _handle_ignored(self, message: Fields) -> None:
        # An older server.
        log.debug("the server does not know the fields %s", ", ".join(message["fields"]))

    def _request_again(self, error: Fields) -> None:
        """The server has ended an acknowledged join or subscription: requests it again."""
        topic = error.get("topic")
        if topic is None:
            return
        if error.get("keys"):
            state = self._states.get(topic)
            if state is not None:
                self._retry_later(lambda: self._send_state(state))
            return
        if topic in self._joined:
            self._retry_later(lambda: self._send_join(topic))
        for subscription in [each for each in self._subscriptions if each.topic == topic]:
            self._retry_later(partial(self._send_subscribe, subscription))

    # Messages of this client.

    def _send(self, request: _Request) -> None:
        connection = self._connection
        if connection is None:
            return request.on_error(SinewsError("lost", "the connection was lost before the request"))
        if len(self._pending) >= PENDING_MAX:
            return request.on_error(SinewsError("full", f"too many requests are pending (limit {PENDING_MAX})"))
        number = self._next_id
        try:
            text = json.dumps({**request.message, "id": number}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            return request.on_error(SinewsError("invalid", f"the request cannot be JSON: {error}"))
        self._next_id += 1
        request.sent_at = request.sent_at or self._loop.time()
        self._pending[number] = request
        connection.outgoing.put_nowait(text)

    def _tell(self, message: Fields) -> None:
        """Sends a request whose answer changes nothing."""
        if self._is("open"):
            self._send(_Request(message, _ignore, _ignore))

    def _enqueue(self, request: _Request) -> None:
        self._queue = [queued for queued in self._queue if queued.is_wanted()]
        for index, queued in enumerate(self._queue):
            if request.replaces(queued):
                del self._queue[index]
                queued.on_error(SinewsError("replaced", "a later value of the key was set while disconnected"))
                break
        if len(self._queue) >= QUEUE_MAX:
            return request.on_error(SinewsError("full", f"too many requests are queued while disconnected (limit {QUEUE_MAX})"))
        self._queue.append(request)

    def _send_subscribe(self, subscription: Subscription) -> None:
        if subscription not in self._subscriptions:
            return

        def acknowledge(ack: Fields) -> None:
            # Of several subscriptions to a topic, the server tells the first the position.
            positions = (other.position for other in self._others(subscription) if other.is_acknowledged)
            position = next((position for position in positions if position is not None), None)
            has_own = position_of(ack) is not None or position is None
            subscription.acknowledge(ack if has_own else {**ack, **position._asdict()})  # type: ignore[union-attr]

        def fail(error: SinewsError) -> None:
            if self._repeats(error, lambda: self._send_subscribe(subscription)):
                return
            self._subscriptions.pop(subscription, None)
            subscription.reject(error)

        self._send(_Request(subscription.message(), acknowledge, fail))

    def _send_state(self, state: State) -> None:
        if self._states.get(state.topic) is not state:
            return

        def fail(error: SinewsError) -> None:
            if self._repeats(error, lambda: self._send_state(state)) or self._states.get(state.topic) is not state:
                return
            del self._states[state.topic]
            state.reject(error)

        self._send(_Request(state.message(), state.acknowledge, fail))

    def _send_join(self, topic: str) -> None:
        joined = self._joined.get(topic)
        if joined is None:
            return
        member, done = joined

        def fail(error: SinewsError) -> None:
            if self._repeats(error, lambda: self._send_join(topic)) or self._joined.get(topic) is not joined:
                return
            del self._joined[topic]
            if done.done():
                log.warning("%s: the member has left: %s", topic, error)
            _fail(done, error)

        self._send(_Request({"op": "join", "topic": topic, "member": member}, lambda _: _settle(done, None), fail))

    def _repeats(self, error: SinewsError, retry: Callable[[], None]) -> bool:
        """
        Whether a request is repeated after its error: a lost one by the next connection, and one that the server cannot
        execute now after a delay.
        """
        if error.code == STORE:
            self._retry_later(retry)
        return error.code in (STORE, "lost")

    def _retry_later(self, retry: Callable[[], None]) -> None:
        """Retries after a delay on the same connection; a new connection requests everything again anyway."""
        connection = self._connection
        self._loop.call_later(RETRY_DELAY, lambda: retry() if connection is self._connection and self._is("open") else None)

    def _others(self, subscription: Subscription) -> Iterable[Subscription]:
        """The other subscriptions to the same topic."""
        topic = subscription.topic
        return [other for other in self._subscriptions if other is not subscription and other.topic == topic]

    def _start_heartbeat(self) -> None:
        """Sends a ping some time after the last message, and drops the connection if the answer times out."""
        connection, received_at = self._connection, self._received_at
        rest = received_at + self._heartbeat_interval - self._loop.time()
        if rest > 0:
            return self._set_timer("heartbeat", rest, self._start_heartbeat)
        self._tell({"op": "ping"})

        def check() -> None:
            if self._received_at != received_at:
                self._start_heartbeat()
            elif connection is not None:
                connection.fail(0, "ping timeout")

        self._set_timer("heartbeat", self._response_timeout, check)

    def _renew(self) -> None:
        """
        Renews the token, and again until the server has another one. Without another token, the connection is closed when
        the token expires, and reconnects then.
        """
        left = self._tokens.expires_at - self._loop.time()
        delay = min(RENEWAL_RETRY, max(RENEWAL_RETRY_MIN, left / 4)) if left > 0 else RENEWAL_RETRY
        self._set_timer("renewal", delay, self._renew)
        self.spawn(self._send_token(self._connection))

    async def _send_token(self, connection: Optional[_Connection]) -> None:
        try:
            token = await self._tokens.fetch()
        except Exception:
            return
        if connection is not self._connection or token is None or token == self._tokens.token:
            return

        def renewed(ack: Fields) -> None:
            self._tokens.use(token)
            self._handle_refreshed(ack)

        self._send(_Request({"op": "token", "token": token}, renewed, _ignore))


#: Messages that need no request.
_UNREQUESTED = frozenset(
    ("welcome", "refreshed", "message", "dropped", "reset", "presence", "unsubscribed", "keys", "ignored")
)


#: Connects, and reconnects until ``close``.
connect = Client


def _ignore(_: Any) -> None:
    return None


def _settle(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: SinewsError) -> None:
    if not future.done():
        future.set_exception(error)
        # A caller that ignores it need not await.
        future.exception()


def _reason(error: InvalidStatus) -> str:
    """The text of a rejection."""
    try:
        return str(json.loads(error.response.body or b"")["error"])
    except (ValueError, LookupError, TypeError):
        return f"the server answers {error.response.status_code}"
