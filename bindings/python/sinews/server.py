"""A server of HTTP, WebSocket and topics in the running loop: handlers are plain functions, called in batches.

The sockets and the topics are the engine's. The loop watches one descriptor, and no thread is involved: the events of a
turn arrive in one call, and what their handlers send leaves with the next turn. A publication to all subscribers of a
topic is one call.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from . import _native
from ._options import compression as check_compression
from ._options import function, headers, integer, make_config, seconds, subprotocols

__all__ = ["Request", "Response", "Server", "ServerStopped", "TopicError", "WebSocket"]

Data = Union[str, bytes, bytearray, memoryview]

_TEXT, _BINARY, _OPEN, _DRAIN = _native.TEXT, _native.BINARY, _native.OPEN, _native.DRAIN
_REQUEST, _ANSWER, _CLOSE, _PONG = _native.REQUEST, _native.ANSWER, _native.CLOSE, _native.PONG
#: Messages of a history, at most.
_HISTORY_MAX = 1000
#: Seconds of turns in a row, until other work of the loop gets its time.
_TURNS_TIME = 0.005
#: Longest reason of a Close in bytes (RFC 6455 section 5.5).
_REASON_MAX = 123


class _Head:
    """A request's first line, the client's address, and the headers."""

    __slots__ = ("_lines", "_headers")

    def __init__(self, text: bytes) -> None:
        self._lines = text.decode("latin-1").split("\n")
        self._headers: Optional[dict[str, str]] = None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, by their names in lower case."""
        if self._headers is None:
            self._headers = {}
            for line in filter(None, self._lines[2:]):
                name, _, value = line.partition(": ")
                name = name.lower()
                known = self._headers.get(name)
                # RFC 6265 section 5.4, RFC 9110 section 5.3.
                separator = "; " if name == "cookie" else ", "
                self._headers[name] = value if known is None else known + separator + value
        return self._headers

    @property
    def remote_address(self) -> tuple[str, int]:
        """The client's IP address and port."""
        host, _, port = self._lines[1].rpartition(":")
        return host.strip("[]"), int(port)


class Request(_Head):
    """A request to one of the routes."""

    __slots__ = ("method", "target", "body")

    def __init__(self, head: bytes, body: bytes) -> None:
        super().__init__(head)
        self.method, _, self.target = self._lines[0].partition(" ")
        self.body = body


class Response:
    """A response: a ``str`` body is text, ``bytes`` are what the headers say."""

    __slots__ = ("status", "headers", "body")

    def __init__(self, body: Data = "", *, status: int = 200, headers: Any = None) -> None:
        self.body, self.status, self.headers = body, status, headers


Handler = Callable[[Request], Union[Response, Data, Awaitable[Union[Response, Data]]]]


class WebSocket(_Head):
    """A client's connection."""

    __slots__ = ("data", "_server", "_id", "_is_open")

    def __init__(self, server: Server, number: int, head: bytes) -> None:
        super().__init__(head)
        #: Anything that the program wants to keep with the connection.
        self.data: Any = None
        self._server, self._id, self._is_open = server, number, True

    @property
    def target(self) -> str:
        """The request's path and query."""
        return self._lines[0]

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def buffered(self) -> int:
        """Bytes that wait: sent since the last turn, and, from 16 KiB on, not taken by the socket."""
        return self._server._native.buffered(self._id) if self._is_open else 0

    def send(self, data: Data) -> bool:
        """Queues a message: ``str`` as text, bytes as binary.

        Returns ``True`` if the queue is long: send no more until ``on_drain``. Also if the message was dropped: the
        connection is closed, or its queue is full.
        """
        if not self._is_open:
            return True
        result = self._server._native.send(self._id, data)
        self._server._schedule()
        return result != 0

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Starts the closing handshake behind the queued messages."""
        if not isinstance(reason, str) or len(reason.encode()) > _REASON_MAX:
            raise ValueError(f"reason must be a str of at most {_REASON_MAX} bytes")
        if not isinstance(code, int) or not (1000 <= code < 5000) or code in (1004, 1005, 1006, 1015):
            raise ValueError(f"code must be a close code such as 1000 or 3000 to 4999, not {code!r}")
        if self._is_open:
            self._server._native.close(self._id, code, reason)
            self._server._schedule()

    def subscribe(self, topic: str) -> bool:
        """Subscribes to a topic, or to all topics that match a pattern: ``*`` is one part, ``>`` all further ones."""
        return self._is_open and self._server._native.subscribe(self._id, topic)

    def unsubscribe(self, topic: str) -> bool:
        return self._is_open and self._server._native.unsubscribe(self._id, topic)


class TopicError(Exception):
    """A topic's history cannot be read, or a stream rejects a publication. ``status`` is that of the HTTP API."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerStopped(Exception):
    """The server has stopped, or too many histories are being read."""


class Server:
    """A server in the running loop. ``async with Server(...) as server`` starts and stops it. All calls are from the
    loop's thread; others use ``loop.call_soon_threadsafe``.

    An exception of a handler closes its connection with 1011, or answers its request with 500, and goes to
    ``on_error``, or else to the loop's exception handler.

    With ``config``, the server is all of ``sinews serve``, and the routes are beside its own. ``config`` is the path of
    a configuration file, or a mapping with its tables and keys. Without ``host`` and ``port``, its setting ``listen`` has
    the addresses. Without ``config``, they are ``127.0.0.1`` and a free port.
    """

    def __init__(
        self,
        *,
        config: Union[str, os.PathLike[str], Mapping[str, Any], None] = None,
        host: Optional[str] = None,
        port: Optional[int] = None,
        path: Optional[str] = "/",
        routes: Optional[Mapping[str, Handler]] = None,
        on_open: Optional[Callable[[WebSocket], None]] = None,
        on_message: Optional[Callable[[WebSocket, Union[str, bytes]], None]] = None,
        on_drain: Optional[Callable[[WebSocket], None]] = None,
        on_pong: Optional[Callable[[WebSocket, bytes], None]] = None,
        on_close: Optional[Callable[[WebSocket, int, str], None]] = None,
        on_error: Optional[Callable[[BaseException, Optional[WebSocket]], None]] = None,
        subprotocols: Optional[Sequence[str]] = None,
        origins: Optional[Sequence[str]] = None,
        compression: Optional[str] = None,
        max_message: int = 1 << 24,
        max_outbound: int = 1 << 20,
        high_water: int = 1 << 16,
        ping_interval: Optional[float] = 25,
        idle_timeout: Optional[float] = 120,
    ) -> None:
        for name, value in [("on_open", on_open), ("on_message", on_message), ("on_drain", on_drain),
                            ("on_pong", on_pong), ("on_close", on_close), ("on_error", on_error)]:
            function(name, value)
        self._on_open, self._on_message, self._on_drain = on_open, on_message, on_drain
        self._on_pong, self._on_close, self._on_error = on_pong, on_close, on_error
        for route, handler in (routes or {}).items():
            function(f"routes[{route!r}]", handler)
        #: By the index of the route in the native settings.
        self._routes = list((routes or {}).values())
        if config is not None and not isinstance(config, (str, os.PathLike, Mapping)):
            raise TypeError(f"config must be a path or a mapping, not {config!r}")
        limits = make_config(
            max_message=integer("max_message", max_message, none=False),
            ping_interval=seconds("ping_interval", ping_interval), pong_timeout=20.0,
            idle_timeout=seconds("idle_timeout", idle_timeout), write_timeout=30.0, close_timeout=5.0,
            high_water=integer("high_water", high_water, none=False), pause_reads=True,
            max_outbound=integer("max_outbound", max_outbound, none=False),
            deflate=check_compression(compression),
        )
        if port is not None and (not isinstance(port, int) or not 0 <= port < 1 << 16):
            raise ValueError(f"port must be an int from 0 to 65535, not {port!r}")
        origins = subprotocols_list("origins", origins)
        self._settings: dict[str, Any] = {
            "websockets": [] if path is None else [path], "requests": list(routes or {}), "config": limits,
            "file": os.fspath(config) if isinstance(config, (str, os.PathLike)) else None,
            "json": json.dumps(dict(config)) if isinstance(config, Mapping) else None,
            "subprotocols": subprotocols_list("subprotocols", subprotocols), "origins": origins,
        }
        self._address: Optional[str] = None
        if config is None or host is not None or port is not None:
            host = "127.0.0.1" if host is None else host
            self._address = f"[{host}]:{port or 0}" if ":" in host else f"{host}:{port or 0}"
        self._histories: dict[int, asyncio.Future[list[dict[str, Any]]]] = {}
        self._native: Any = None
        self._sockets: dict[int, WebSocket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Events of the last turn that are not dispatched yet.
        self._events: Iterator[tuple[int, int, Any]] = iter(())
        self._is_turning = self._is_scheduled = False
        self._timer: Optional[asyncio.TimerHandle] = None

    async def start(self) -> Server:
        """Binds the address, and serves in the running loop.

        Raises ``OSError`` if the address is in use, ``ValueError`` for an invalid route, origin or setting, and
        ``RuntimeError`` for a second call.
        """
        if self._native is not None:
            raise RuntimeError("the server was started before")
        self._native = _native.NativeServer(self._address, **self._settings)
        self._bound: Optional[tuple[str, int]] = self._native.address
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._loop.add_reader(self._native.fileno(), self._tick)
        self._loop.call_soon(self._tick)
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The bound IP address and port."""
        if self._bound is None:
            raise OSError("the configuration has Unix sockets only")
        return self._bound

    def publish(self, topic: str, data: Data) -> bool:
        """Publishes a message to all subscribers of a topic, after the sends and subscriptions of the running callback.

        Returns whether the message was queued: at most 64 MiB wait for the callback's end. With ``config``, it also goes
        to the topic's history and to clients of all protocols, or to a durable topic's stream: its :class:`TopicError`
        goes to ``on_error``.
        """
        is_queued = self._native.publish(topic, data)
        self._schedule()
        return is_queued

    def publish_json(self, topic: str, value: Any) -> bool:
        """Publishes a value as JSON, which clients of ``/ws`` get as it is. With ``config`` only."""
        is_queued = self._native.publish_json(topic, json.dumps(value))
        self._schedule()
        return is_queued

    async def history(
        self, topic: str, *, last: int = _HISTORY_MAX, after: Optional[tuple[int, int]] = None
    ) -> list[dict[str, Any]]:
        """Reads a topic's retained messages, at most 1,000 and 1 MiB: the last ones, or those after an epoch and a
        sequence. Each has ``epoch``, ``seq`` and ``data``: JSON's value, a ``str`` or ``bytes``. Those of a durable topic
        are the records that are on disk. With ``config`` only.

        Raises :class:`TopicError`, for example if the topic has no history, and :class:`ServerStopped`.
        """
        if not isinstance(last, int) or not 1 <= last <= _HISTORY_MAX:
            raise ValueError(f"last must be an int from 1 to {_HISTORY_MAX}, not {last!r}")
        number = None if self._ended.done() else self._native.history(topic, last, after)
        if number is None:
            raise ServerStopped("the server has stopped, or too many histories are being read")
        answer = self._histories[number] = self._loop.create_future()
        self._schedule()
        return await answer

    def presence(self, topic: str, *, after: Optional[str] = None) -> dict[str, Any]:
        """Reads who is present in a topic: the number of ``subscribers``, and at most 256 ``members`` whose ids follow
        ``after``, with ``more`` if further ones follow. With ``config`` only.
        """
        page: dict[str, Any] = json.loads(self._native.presence(topic, after))
        return {name: page[name] for name in ("subscribers", "members", "more")}

    async def stop(self) -> None:
        """Closes all connections with 1001, and returns once they have ended."""
        if not self._ended.done():
            self._native.stop()
            self._schedule()
        await asyncio.shield(self._ended)

    async def wait_closed(self) -> None:
        """Waits until the server has stopped."""
        await asyncio.shield(self._ended)

    async def __aenter__(self) -> Server:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _schedule(self) -> None:
        """What is sent outside of a turn leaves together, after the running callback."""
        if not self._is_turning and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._is_scheduled = False
        if self._is_turning or self._ended.done():
            return
        self._is_turning = True
        is_idle, end = False, self._loop.time() + _TURNS_TIME
        try:
            while True:
                # Those that an exception such as KeyboardInterrupt has left come first.
                for kind, number, payload in self._events:
                    self._dispatch(kind, number, payload)
                if self._loop.time() >= end:
                    break
                events = self._native.turn()
                if not events:
                    is_idle = True
                    self._wait()
                    break
                self._events = iter(events)
        finally:
            self._is_turning = False
            if not is_idle:
                self._schedule()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._native.has_ended:
            self._loop.remove_reader(self._native.fileno())
            self._ended.set_result(None)
            for answer in self._histories.values():
                if not answer.done():
                    answer.set_exception(ServerStopped("the server has stopped"))
        elif (timeout := self._native.timeout) is not None:
            self._timer = self._loop.call_later(timeout, self._tick)

    def _dispatch(self, kind: int, number: int, payload: Any) -> None:
        # Requests and answers have ids of their own.
        if kind & 0xFF == _REQUEST:
            self._answer(self._routes[kind >> 8], number, payload)
            return
        if kind & 0xFF == _ANSWER:
            self._complete(number, kind >> 8, payload.decode())
            return
        socket: Any = self._sockets.get(number)
        try:
            if kind == _TEXT or kind == _BINARY:
                if self._on_message is not None:
                    self._on_message(socket, payload)
            elif kind == _OPEN:
                socket = self._sockets[number] = WebSocket(self, number, payload)
                if self._on_open is not None:
                    self._on_open(socket)
            elif kind == _CLOSE:
                del self._sockets[number]
                socket._is_open = False
                if self._on_close is not None:
                    self._on_close(socket, int.from_bytes(payload[:2], "big"), payload[2:].decode())
            elif kind == _DRAIN and self._on_drain is not None:
                self._on_drain(socket)
            elif kind == _PONG and self._on_pong is not None:
                self._on_pong(socket, payload)
        except Exception as error:
            self._fail(error, socket)

    def _complete(self, number: int, status: int, text: str) -> None:
        answer = self._histories.pop(number, None)
        if answer is None:
            # A publication to a stream has no caller that waits.
            if status != 0:
                self._fail(TopicError(text, status), None)
        elif answer.done():
            # Cancelled.
            pass
        elif status != 0:
            answer.set_exception(TopicError(text, status))
        else:
            answer.set_result([_message(message) for message in json.loads(text)])

    def _answer(self, handler: Handler, number: int, payload: bytes) -> None:
        head, _, body = payload.partition(b"\n\n")
        try:
            response = handler(Request(head, body))
            if not hasattr(response, "__await__"):
                self._respond(number, response)
                return
        except Exception as error:
            self._reject(number, error)
            return
        task = self._loop.create_task(self._answer_later(number, response))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_later(self, number: int, response: Awaitable[Any]) -> None:
        try:
            self._respond(number, await response)
        except asyncio.CancelledError as error:
            self._reject(number, error)
            raise
        except Exception as error:
            self._reject(number, error)

    def _respond(self, number: int, response: Any) -> None:
        if not isinstance(response, Response):
            response = Response(response)
        pairs = headers("headers", response.headers)
        if isinstance(response.body, str) and not any(name.lower() == "content-type" for name, _ in pairs):
            pairs.append(("content-type", "text/plain; charset=utf-8"))
        self._native.respond(number, response.status, pairs, response.body)
        self._schedule()

    def _reject(self, number: int, error: BaseException) -> None:
        self._native.respond(number, 500, [], "the handler has failed\n")
        self._schedule()
        self._fail(error, None)

    def _fail(self, error: BaseException, socket: Optional[WebSocket]) -> None:
        if socket is not None:
            socket.close(1011, "handler failed")
        if self._on_error is not None:
            try:
                self._on_error(error, socket)
                return
            except Exception as second:
                error = second
        self._loop.call_exception_handler({"message": "a handler of sinews.Server has failed", "exception": error})


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message of a history: bytes are in base64."""
    data = base64.b64decode(message["b64"]) if "b64" in message else message["data"]
    return {"epoch": message["epoch"], "seq": message["seq"], "data": data}


def subprotocols_list(name: str, value: Any) -> list[str]:
    """Checks a sequence of names, or ``None``."""
    try:
        return subprotocols(value)
    except TypeError:
        raise TypeError(f"{name} must be a list of str, not {value!r}") from None

