"""The common part of clients and servers."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Mapping
from typing import Any, Optional, Union

from ... import _base, _native, _options
from ..exceptions import (
    ConcurrencyError,
    ConnectionClosed,
    ConnectionClosedError,
    ConnectionClosedOK,
    PayloadTooBig,
    ProtocolError,
)
from ..frames import OK_CODES, Close
from ..protocol import State

__all__ = ["Connection", "broadcast"]

Data = Union[str, bytes]
DataLike = Union[str, bytes, bytearray, memoryview]

# Results of `_send`.
_SLOW_DOWN, _CLOSING, _UNSUPPORTED, _MESSAGE_OPEN = 1, 2, 3, 4
#: Behind the last piece of a fragmented message.
_END = object()


class SocketTransport:
    """The methods of a transport that programs call, for a connection with a socket of its own."""

    def __init__(self, connection: Connection) -> None:
        self.get_extra_info = connection.get_extra_info
        self.abort = connection.abort
        self.close = connection.abort
        self._connection = connection

    def is_closing(self) -> bool:
        """Returns whether the socket is closed."""
        return self._connection._state == State.CLOSED

    def get_write_buffer_size(self) -> int:
        """Returns the queued bytes."""
        return self._connection.buffered


class Connection(_base.BaseConnection):
    """A connection: ``recv``, ``send``, ``close``, and ``async for``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: _native.Config, logger: logging.Logger) -> None:
        super().__init__(loop, config)
        self._logger = logger
        self.latency = 0.0
        self._id: Optional[uuid.UUID] = None
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._pings: dict[bytes, tuple[asyncio.Future[float], float]] = {}
        self._closed: asyncio.Future[None] = loop.create_future()
        self._fragmenting: Optional[asyncio.Future[None]] = None

    @property
    def id(self) -> uuid.UUID:
        """A unique number for logs."""
        if self._id is None:
            self._id = uuid.uuid4()
        return self._id

    @property
    def logger(self) -> Any:
        """The logger, which adds the connection to each record as ``websocket``."""
        # Stored, it would be a cycle of references, and a closed connection would wait for the garbage collector.
        return logging.LoggerAdapter(self._logger, {"websocket": self})

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The connection's loop."""
        return self._loop

    @property
    def transport(self) -> Any:
        """The loop's transport, or one for the connection's own socket."""
        return self._transport or SocketTransport(self)

    @property
    def protocol(self) -> Any:
        """The connection itself, for programs that read ``protocol.state``."""
        return self

    @property
    def state(self) -> State:
        """CONNECTING, OPEN, CLOSING or CLOSED."""
        return State(self._state)

    @property
    def close_code(self) -> Optional[int]:
        """The peer's close code: 1005 for a Close without a code, 1006 without a Close; ``None`` before the end."""
        if self._state != State.CLOSED:
            return None
        received = self._ending[0]
        return 1006 if received is None else received[0]

    @property
    def close_reason(self) -> Optional[str]:
        """The peer's close reason; ``None`` before the end."""
        if self._state != State.CLOSED:
            return None
        received = self._ending[0]
        return "" if received is None else received[1]

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        await self.close(1000 if exc_type is None else 1011)

    async def __aiter__(self) -> AsyncIterator[Data]:
        """Yields messages until the connection is closed. Raises ``ConnectionClosedError`` after a failure."""
        take, wait = self._take, self._wait
        try:
            while True:
                message = take()
                while message is None:
                    await wait()
                    message = take()
                yield message
        except ConnectionClosedOK:
            return

    async def recv(self, decode: Optional[bool] = None) -> Any:
        """Receives a message: ``str`` for text, ``bytes`` for binary, or as ``decode`` says.

        A cancelled call loses no message.
        """
        message = self._take()
        while message is None:
            await self._wait()
            message = self._take()
        if decode is None:
            return message
        if isinstance(message, str):
            return message if decode else message.encode()
        if not decode:
            return message
        try:
            return message.decode()
        except UnicodeDecodeError as error:
            self._error = error
            self._close(1007, f"{error.reason} at position {error.start}")
            await self._wait_lost()
            raise self._closed_error() from error

    async def recv_streaming(self, decode: Optional[bool] = None) -> AsyncIterator[Any]:
        """Receives a message as an iterator: its fragments arrive as one piece."""
        yield await self.recv(decode)

    async def send(self, message: Any, text: Optional[bool] = None) -> None:
        """Sends ``str`` as text, bytes as binary, and an iterable of these as a fragmented message.

        Waits while more than ``write_limit`` bytes are queued. A cancelled call has queued its whole message, unless
        it sends fragments.
        """
        status = self._send(message, text)
        if status:
            await self._finish_send(status, message, text)

    async def _finish_send(self, status: int, message: Any, text: Optional[bool]) -> None:
        while status == _MESSAGE_OPEN and self._fragmenting is not None:
            await asyncio.shield(self._fragmenting)
            status = self._send(message, text)
        if status == _SLOW_DOWN:
            await self._drain()
        elif status == _CLOSING:
            await self._wait_lost()
            raise self._closed_error()
        elif status == _UNSUPPORTED:
            await self._send_fragments(message, text)

    async def _send_fragments(self, message: Any, text: Optional[bool]) -> None:
        if isinstance(message, Mapping):
            raise TypeError("data is a dict-like object")
        if isinstance(message, AsyncIterable):
            pieces = message.__aiter__()
        elif isinstance(message, Iterable):
            pieces = _iterate(message)
        else:
            raise TypeError(f"data must be str, bytes, iterable, or async iterable, not {type(message).__name__}")
        # One fragment waits, so that the last one is known.
        waiting = await _next(pieces)
        if waiting is _END:
            return
        is_text = isinstance(waiting, str)
        while self._fragmenting is not None:
            await asyncio.shield(self._fragmenting)
        self._fragmenting = self._loop.create_future()
        is_complete = False
        try:
            while waiting is not _END:
                if not isinstance(waiting, (str, bytes, bytearray, memoryview)):
                    raise TypeError("data iterable must contain str or bytes")
                if isinstance(waiting, str) != is_text:
                    raise TypeError("data iterable must contain uniform types")
                piece, waiting = waiting, await _next(pieces)
                status = self._send_fragment(piece, is_text if text is None else text, waiting is _END)
                is_complete = waiting is _END
                if status == _SLOW_DOWN:
                    await self._drain()
                elif status:
                    is_complete = True
                    await self._wait_lost()
                    raise self._closed_error()
        except BaseException:
            if not is_complete:
                # The message cannot be completed.
                self._close(1011, "error in fragmented message")
            raise
        finally:
            fragmenting, self._fragmenting = self._fragmenting, None
            fragmenting.set_result(None)

    async def _drain(self) -> None:
        """Waits until the queue has capacity."""
        while self._is_congested and self._state < State.CLOSED:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter
        if self._state == State.CLOSED:
            raise self._closed_error()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Closes, and waits for the end. Does nothing if the connection is closed."""
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a str, not {type(reason).__name__}")
        _options.integer("code", code, 0, none=False)
        if self._fragmenting is not None:
            code, reason = 1011, "close during fragmented message"
        self._close(code, reason)
        await self._wait_lost()

    async def wait_closed(self) -> None:
        """Waits for the connection's end."""
        await asyncio.shield(self._closed)

    async def _wait_lost(self) -> None:
        """Waits for the connection's end. The peer's Close may be behind messages that the queue has no capacity for."""
        self._unlimit()
        await asyncio.shield(self._closed)

    async def ping(self, data: Optional[DataLike] = None) -> Awaitable[float]:
        """Sends a ping. The returned awaitable waits for the pong, and returns the latency in seconds."""
        if data is None:
            payload = os.urandom(4)
            while payload in self._pings:
                payload = os.urandom(4)
        else:
            payload = _control_payload(data)
            if payload in self._pings:
                raise ConcurrencyError("already waiting for a pong with the same data")
        if not self._ping(payload):
            await self._wait_lost()
            raise self._closed_error()
        pong: asyncio.Future[float] = self._loop.create_future()
        self._pings[payload] = (pong, time.perf_counter())
        return pong

    async def pong(self, data: DataLike = b"") -> None:
        """Sends a pong that answers no ping."""
        if not self._pong(_control_payload(data)):
            await self._wait_lost()
            raise self._closed_error()

    def _pong_received(self, payload: bytes, latency: Optional[float]) -> None:
        if latency is not None:
            self.latency = latency
        if payload not in self._pings:
            return
        now = time.perf_counter()
        # A pong answers earlier pings, too (RFC 6455 section 5.5.3).
        for key in list(self._pings):
            pong, sent = self._pings.pop(key)
            if not pong.done():
                pong.set_result(now - sent)
            if key == payload:
                self.latency = now - sent
                return

    def _drained(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _lost(self, error: Optional[BaseException]) -> None:
        if self._error is None:
            self._error = error
        self._drained()
        pings, self._pings = self._pings, {}
        for pong, _ in pings.values():
            if not pong.done():
                pong.set_exception(self._closed_error())
                # Nobody may wait for a pong.
                pong.exception()
        if not self._closed.done():
            self._closed.set_result(None)

    def _concurrency_error(self) -> ConcurrencyError:
        return ConcurrencyError("cannot call recv while another coroutine is already running recv or recv_streaming")

    def _closed_error(self) -> ConnectionClosed:
        """Creates the exception for a closed connection."""
        received, sent, is_peer_first, fault = self._ending
        received = None if received is None else Close(*received)
        sent = None if sent is None else Close(*sent)
        order, is_ok = None, False
        if received is not None and sent is not None:
            order = is_peer_first
            is_ok = received.code in OK_CODES and sent.code in OK_CODES
        error = (ConnectionClosedOK if is_ok else ConnectionClosedError)(received, sent, order)
        error.__cause__ = self._error
        if fault is not None and self._error is None:
            if "timeout" in fault:
                error.__cause__ = TimeoutError(fault)
            elif "too big" in fault:
                error.__cause__ = PayloadTooBig(fault)
            else:
                error.__cause__ = ProtocolError(fault)
        return error


async def _iterate(pieces: Iterable[Any]) -> AsyncIterator[Any]:
    for piece in pieces:
        yield piece


async def _next(pieces: Any) -> Any:
    try:
        return await pieces.__anext__()
    except StopAsyncIteration:
        return _END


def _control_payload(data: DataLike) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"data must be str or bytes, not {type(data).__name__}")


def broadcast(
    connections: Iterable[Connection],
    message: DataLike,
    *,
    text: Optional[bool] = None,
    raise_exceptions: bool = False,
) -> None:
    """Sends a message to all open connections, without waiting for slow ones."""
    if not isinstance(message, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"message must be str or bytes, not {type(message).__name__}")
    skipped = []
    for connection in connections:
        if connection._send(message, text) == _MESSAGE_OPEN:
            skipped.append(ConcurrencyError("sending a fragmented message"))
            if not raise_exceptions:
                connection.logger.warning("skipped broadcast: sending a fragmented message")
    if raise_exceptions and skipped:
        import builtins

        group = getattr(builtins, "ExceptionGroup", None)
        raise group("skipped broadcast", skipped) if group else skipped[0]


def limits(
    *,
    ping_interval: Optional[float],
    ping_timeout: Optional[float],
    close_timeout: Optional[float],
    max_size: Any,
    max_queue: Any,
    write_limit: Any,
    compression: Optional[str],
) -> _native.Config:
    """Checks the options of ``connect`` and ``serve``."""
    max_message, max_frame = _pair("max_size", max_size, 1)
    high, low = _pair("max_queue", max_queue, 0)
    if low is None and high is not None:
        low = high // 4
    if high is not None and low > high:
        raise ValueError(f"max_queue must have its low-water mark below the high-water mark: {max_queue!r}")
    high_water, _ = _pair("write_limit", write_limit, 0)
    interval = _options.seconds("ping_interval", ping_interval)
    timeout = _options.seconds("ping_timeout", ping_timeout)
    closing = _options.seconds("close_timeout", close_timeout, zero=True)
    has_both = interval is not None and timeout is not None
    return _options.make_config(
        max_message=max_message,
        max_frame=max_frame,
        ping_interval=interval,
        pong_timeout=timeout,
        idle_timeout=None,
        # A peer that accepts no bytes cannot answer a ping either.
        write_timeout=interval + timeout if has_both else None,
        close_timeout=None if close_timeout is None else max(closing, 0.001),
        high_water=(1 << 62) if high_water is None else high_water,
        max_outbound=None,
        max_queue=high,
        low_queue=(1 << 62) if low is None else low,
        deflate=_options.compression(compression),
    )


def _pair(name: str, value: Any, minimum: int) -> tuple[Any, Any]:
    """Checks an option that is one limit, or a pair."""
    first, second = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    return _options.integer(name, first, minimum), _options.integer(name, second, minimum)
