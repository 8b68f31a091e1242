"""WebSockets with plain functions as callbacks: no coroutine runs between a message and its handler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Optional, Union

from . import _base, _http, _native, _net
from ._http import Headers, HeadersLike, Request, Response, text_response
from ._options import Uri, compression, function, headers, integer, make_config, seconds, subprotocols

__all__ = [
    "BINARY",
    "TEXT",
    "Connection",
    "HandshakeError",
    "Headers",
    "Listener",
    "Request",
    "Response",
    "Server",
    "connect",
    "serve",
    "text_response",
]

#: A text message: the payload is ``str``.
TEXT = _native.TEXT
#: A binary message: the payload is ``bytes``.
BINARY = _native.BINARY




class HandshakeError(Exception):
    """The opening handshake has failed. ``response`` is the server's, if there is one."""

    def __init__(self, message: str, response: Optional[Response] = None) -> None:
        super().__init__(message)
        self.response = response


class Listener:
    """Callbacks of a connection. An exception closes the connection with 1011, and goes to the loop's handler."""

    def on_connected(self, conn: Connection) -> None:
        """The connection is open."""

    def on_message(self, conn: Connection, kind: int, payload: Union[str, bytes]) -> None:
        """A message: ``str`` for TEXT, ``bytes`` for BINARY."""

    def on_ping(self, conn: Connection, payload: bytes) -> None:
        """A ping. The connection answers it."""

    def on_pong(self, conn: Connection, payload: bytes, latency: Optional[float]) -> None:
        """A pong; ``latency`` in seconds if it answers the newest keepalive ping."""

    def on_drain(self, conn: Connection) -> None:
        """After ``send`` has returned ``True``: the queue has capacity again."""

    def on_disconnected(self, conn: Connection) -> None:
        """The connection has ended: see ``close_code`` and ``close_reason``."""


class Connection(_base.BaseConnection):
    """A connection with a listener."""

    #: ``send(payload, kind=None) -> bool`` queues a message: ``str`` as text, bytes as binary, or as ``kind`` says. It
    #: returns ``True`` if the caller should send no more until ``on_drain``.
    send: Callable[..., bool]
    listener: Optional[Listener] = None
    _closed: Optional[asyncio.Future[None]] = None
    _is_connected = False

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Starts the closing handshake behind the queued messages."""
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a str, not {type(reason).__name__}")
        self._close(integer("code", code, 0, none=False), reason)

    def ping(self, payload: bytes = b"") -> None:
        """Queues a ping of at most 125 bytes."""
        self._ping(payload)

    def pong(self, payload: bytes = b"") -> None:
        """Queues a pong of at most 125 bytes."""
        self._pong(payload)

    async def wait_disconnected(self) -> None:
        """Waits for the connection's end."""
        if self._state == 3:
            return
        if self._closed is None:
            self._closed = self._loop.create_future()
        await asyncio.shield(self._closed)

    def _connect_listener(self, negotiation: _native.Negotiation, listener: Listener) -> None:
        """Opens the connection, and passes the messages behind the handshake."""
        self.listener = listener
        pings = type(listener).on_ping is not Listener.on_ping
        early = self._start(negotiation, listener.on_message, listener.on_ping if pings else None)
        self._is_connected = True
        listener.on_connected(self)
        if early:
            self._feed(early)

    def _drained(self) -> None:
        if self.listener is not None:
            self.listener.on_drain(self)

    def _pong_received(self, payload: bytes, latency: Optional[float]) -> None:
        if self.listener is not None:
            self.listener.on_pong(self, payload, latency)

    def _lost(self, error: Optional[BaseException]) -> None:
        self._error = error
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if self._is_connected and self.listener is not None:
            self.listener.on_disconnected(self)


class _ServerConnection(Connection):
    """A server's connection, which answers its handshake itself."""

    def __init__(self, server: Server) -> None:
        super().__init__(server._loop, server._config)
        self._server: Optional[Server] = server
        self._timer: Any = None

    def _made(self) -> None:
        server = self._server
        if server is None or self._state == 3:
            return
        server._connections.add(self)
        if server._open_timeout is not None:
            self._timer = self._loop.call_later(server._open_timeout, self.abort)

    def _head_received(self) -> None:
        server = self._server
        if server is None or self.request is not None:
            return
        try:
            self.request = _http.read_request(self._early)
            if self.request is None:
                if self._has_ended:
                    self.abort()
                return
            self._early = self._early[len(self.request._data) :]
            self._answer(server, self.request)
        except _native.HandshakeError as error:
            self.request = self.request or Request("", Headers())
            self._respond(_http.reject(error))
        except Exception:
            # The caller closes the transport behind the response.
            if self.response is None:
                self._respond(text_response(500, "Failed to open a WebSocket connection.\n"))
            raise

    def _answer(self, server: Server, request: Request) -> None:
        response, negotiation = _http.accept(request, self._config)
        listener = server._factory(request)
        if isinstance(listener, Response):
            self._respond(listener)
            return
        if not isinstance(listener, Listener):
            raise TypeError(f"the factory must return a Listener or a Response, not {listener!r}")
        offers = _http.offered_subprotocols(request)
        self.subprotocol = next((name for name in server._subprotocols if name in offers), None)
        if self.subprotocol is not None:
            response.headers["Sec-WebSocket-Protocol"] = self.subprotocol
        response.headers.update(server._headers)
        self._cancel_timer()
        self.response = response
        self._write_raw(response.serialize())
        self._connect_listener(negotiation, listener)

    def _respond(self, response: Response) -> None:
        self.response = response
        self._write_raw(response.serialize(), True)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _lost(self, error: Optional[BaseException]) -> None:
        self._cancel_timer()
        server, self._server = self._server, None
        if server is not None:
            server._remove(self)
        super()._lost(error)


class _ClientConnection(_base.ClientMixin, Connection):
    """A client's connection."""


class Server:
    """A server that ``serve`` has started."""

    def __init__(self, loop: asyncio.AbstractEventLoop, factory: Any, config: _native.Config) -> None:
        self._loop = loop
        self._factory = factory
        self._config = config
        self._open_timeout: Optional[float] = None
        self._subprotocols: list[str] = []
        self._headers: list[tuple[str, str]] = []
        self._server: Any = None
        self._acceptor: Optional[_net.Acceptor] = None
        self._connections: set[Connection] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._is_closed = False

    @property
    def sockets(self) -> Any:
        """The listening sockets."""
        return self._server.sockets

    @property
    def connections(self) -> set[Connection]:
        """The open connections."""
        return {connection for connection in self._connections if connection.is_open}

    async def _start_serving(self) -> None:
        if self._acceptor is not None:
            self._acceptor.start()
        else:
            await self._server.start_serving()

    def close(self, code: int = 1001, reason: str = "") -> None:
        """Accepts no connection any more, and closes those that are open."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._acceptor is not None:
            self._acceptor.close()
        self._server.close()
        for connection in list(self._connections):
            if connection._state == 0:
                connection.abort()
            else:
                connection.close(code, reason)
        self._check_closed()

    async def wait_closed(self) -> None:
        """Waits until the server and its connections are closed."""
        if self._is_closed and not self._connections:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    async def serve_forever(self) -> None:
        """Serves until cancelled, or until the server is closed."""
        try:
            await self.wait_closed()
        except asyncio.CancelledError:
            self.close()
            raise

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()
        await self.wait_closed()

    def _remove(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._check_closed()

    def _check_closed(self) -> None:
        if self._is_closed and not self._connections:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _config(
    max_message: Optional[int],
    high_water: int,
    max_outbound: Optional[int],
    ping_interval: Optional[float],
    pong_timeout: Optional[float],
    idle_timeout: Optional[float],
    write_timeout: Optional[float],
    close_timeout: Optional[float],
    compress: Optional[str],
    compression_level: int,
    pause_reads: bool,
) -> _native.Config:
    level = integer("compression_level", compression_level, none=False)
    if level > 9:
        raise ValueError(f"compression_level must be at most 9: {level}")
    return make_config(
        max_message=integer("max_message", max_message),
        high_water=integer("high_water", high_water, none=False),
        max_outbound=integer("max_outbound", max_outbound),
        ping_interval=seconds("ping_interval", ping_interval),
        pong_timeout=seconds("pong_timeout", pong_timeout),
        idle_timeout=seconds("idle_timeout", idle_timeout),
        write_timeout=seconds("write_timeout", write_timeout),
        close_timeout=seconds("close_timeout", close_timeout),
        deflate=compression(compress, level),
        pause_reads=pause_reads,
    )


async def connect(
    listener: Union[Listener, Callable[[], Listener]],
    uri: str,
    *,
    subprotocols: Optional[list[str]] = None,
    additional_headers: Optional[HeadersLike] = None,
    compression: Optional[str] = None,
    compression_level: int = 2,
    open_timeout: Optional[float] = 10,
    ping_interval: Optional[float] = 25,
    pong_timeout: Optional[float] = 20,
    idle_timeout: Optional[float] = None,
    write_timeout: Optional[float] = 30,
    close_timeout: Optional[float] = 5,
    max_message: Optional[int] = 16 << 20,
    high_water: int = 64 << 10,
    max_outbound: Optional[int] = 16 << 20,
    **options: Any,
) -> Connection:
    """Connects. Further options, such as ``ssl``, are those of ``loop.create_connection``.

    A connection that is not open after ``open_timeout`` seconds raises ``TimeoutError``. ``send`` returns ``True``
    above ``high_water`` queued bytes; at ``max_outbound`` the connection closes with 1008.
    """
    config = _config(
        max_message, high_water, max_outbound, ping_interval, pong_timeout, idle_timeout, write_timeout,
        close_timeout, compression, compression_level, False,
    )  # fmt: skip
    try:
        target = Uri(uri)
    except ValueError as error:
        raise ValueError(f"uri {uri!r}: {error}") from None
    fields = headers("additional_headers", additional_headers)
    if not any(name.lower() == "user-agent" for name, _ in fields):
        fields.append(("User-Agent", _http.USER_AGENT))
    names = _subprotocols(subprotocols)
    handshake, data, request = _base.start_client(target, fields, names, config)
    if not isinstance(listener, Listener) and not callable(listener):
        raise TypeError(f"listener must be a Listener or a factory, not {type(listener).__name__}")
    loop = asyncio.get_running_loop()
    connection = _ClientConnection(loop, config)
    connection.request = request

    timeout = seconds("open_timeout", open_timeout)
    try:
        response = await asyncio.wait_for(_base.open_client(loop, connection, target, data, options), timeout)
        connection.response = response
        if response.status_code != 101:
            raise HandshakeError(f"server rejected the connection with {response.status_code}", response)
        length, subprotocol, negotiation = handshake.finish(connection._early)
    except (_native.HandshakeError, EOFError) as error:
        connection.abort()
        raise HandshakeError(str(error.args[0]), connection.response) from None
    except asyncio.TimeoutError:
        connection.abort()
        raise TimeoutError("timed out during opening handshake") from None
    except BaseException:
        connection.abort()
        raise
    connection._early = connection._early[length:]
    connection.subprotocol = subprotocol
    try:
        made = listener if isinstance(listener, Listener) else listener()
        connection._connect_listener(negotiation, made)
    except BaseException:
        connection.abort()
        raise
    return connection


def _subprotocols(value: Any) -> list[str]:
    return subprotocols(value)


async def serve(
    factory: Callable[[Request], Union[Listener, Response]],
    host: Any = None,
    port: Optional[int] = None,
    *,
    subprotocols: Optional[list[str]] = None,
    additional_headers: Optional[HeadersLike] = None,
    compression: Optional[str] = None,
    compression_level: int = 2,
    open_timeout: Optional[float] = 10,
    ping_interval: Optional[float] = 25,
    pong_timeout: Optional[float] = 20,
    idle_timeout: Optional[float] = None,
    write_timeout: Optional[float] = 30,
    close_timeout: Optional[float] = 5,
    max_message: Optional[int] = 16 << 20,
    high_water: int = 64 << 10,
    max_outbound: Optional[int] = 16 << 20,
    **options: Any,
) -> Server:
    """Serves. ``factory`` returns a connection's listener, or a ``Response`` that rejects its request.

    Further options, such as ``ssl``, are those of ``loop.create_server``. A connection with more than ``high_water``
    queued bytes is not read until its client has received them.
    """
    config = _config(
        max_message, high_water, max_outbound, ping_interval, pong_timeout, idle_timeout, write_timeout,
        close_timeout, compression, compression_level, True,
    )  # fmt: skip
    if factory is None or inspect.iscoroutinefunction(factory):
        raise TypeError("factory must be a function, not a coroutine function")
    loop = asyncio.get_running_loop()
    server = Server(loop, function("factory", factory), config)
    server._open_timeout = seconds("open_timeout", open_timeout)
    server._subprotocols = _subprotocols(subprotocols)
    server._headers = headers("additional_headers", additional_headers)
    make = lambda: _ServerConnection(server)  # noqa: E731
    server._server, server._acceptor = await _base.bind_server(loop, make, host, port, options)
    if options.get("start_serving", True):
        await server._start_serving()
    return server
