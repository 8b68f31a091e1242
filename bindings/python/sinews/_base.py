"""The common part of both APIs' connections: the transport and the opening handshake."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Optional

from . import _http, _native, _net
from ._http import Request, Response
from ._options import Uri

#: Bytes that may follow a request before it is answered.
MAX_EARLY = 1 << 20


class BaseConnection(_native.Connection):
    """A connection in its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: _native.Config) -> None:
        self._setup(loop, config)
        self._loop = loop
        self._config = config
        self._socket: Any = None
        self._addresses: dict[str, Any] = {}
        self._early = b""
        self._has_ended = False
        self._error: Optional[BaseException] = None
        self.request: Optional[Request] = None
        self.response: Optional[Response] = None
        self.subprotocol: Optional[str] = None

    # Called by the native class.

    def _attach(self, sock: Any, poller: Any = None) -> None:
        self._socket = sock
        try:
            self._addresses = {"sockname": sock.getsockname(), "peername": sock.getpeername()}
        except OSError:
            # The peer has closed the connection already.
            pass
        super()._attach(sock, poller)

    def _made(self) -> None:
        """The transport is connected."""

    def _raw(self, data: Optional[bytes]) -> None:
        """Bytes before the connection is open, or ``None`` at the transport's end."""
        if data is None:
            self._has_ended = True
        else:
            self._early += data
            if len(self._early) > MAX_EARLY:
                self.abort()
                return
        self._head_received()

    def _head_received(self) -> None:
        """More of the handshake may be complete."""

    def _lost(self, error: Optional[BaseException]) -> None:
        """The transport is closed."""

    def _drained(self) -> None:
        """The queue has capacity again."""

    def _pong_received(self, payload: bytes, latency: Optional[float]) -> None:
        """A pong; with the latency if it answers the newest keepalive ping."""

    # For both APIs.

    def _start(self, negotiation: _native.Negotiation, *callbacks: Any) -> bytes:
        """Opens the connection. Returns the bytes that followed the handshake."""
        early, self._early = self._early, b""
        self._open(negotiation, self._config, *callbacks)
        return early

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See ``asyncio.BaseTransport.get_extra_info``."""
        transport = self._transport
        if transport is not None:
            return transport.get_extra_info(name, default)
        if name == "socket" and self._socket is not None:
            return self._socket
        return self._addresses.get(name, default)

    @property
    def local_address(self) -> Any:
        """The socket's own address."""
        return self.get_extra_info("sockname")

    @property
    def remote_address(self) -> Any:
        """The peer's address."""
        return self.get_extra_info("peername")

    @property
    def close_code(self) -> Optional[int]:
        """The close code: 1005 for a Close without a code, 1006 without a Close; ``None`` before the end."""
        return self._close_code

    @property
    def close_reason(self) -> Optional[str]:
        """The close reason; ``None`` before the end."""
        return self._close_reason


def start_client(
    uri: Uri,
    headers: list[tuple[str, str]],
    subprotocols: list[str],
    config: _native.Config,
) -> tuple[_native.ClientHandshake, bytes, Request]:
    """Creates a client's handshake, its request's bytes and the request."""
    handshake = _native.ClientHandshake(
        uri.authority, uri.path, headers, subprotocols, list(os.urandom(16)), config
    )
    data = handshake.request()
    request = _http.read_request(data)
    assert request is not None
    return handshake, data, request


class ClientMixin:
    """A client's side of the handshake."""

    _opened: Optional[asyncio.Future[Response]] = None

    def _head_received(self) -> None:
        opened = self._opened
        if opened is None or opened.done():
            return
        try:
            response = _http.read_response(self._early, self._has_ended)  # type: ignore[attr-defined]
        except _native.HandshakeError as error:
            opened.set_exception(error)
            return
        if response is not None:
            opened.set_result(response)
        elif self._has_ended:  # type: ignore[attr-defined]
            opened.set_exception(EOFError("connection closed before the response"))

    def _lost(self, error: Optional[BaseException]) -> None:
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error or EOFError("connection closed before the response"))
        super()._lost(error)  # type: ignore[misc]


async def open_client(
    loop: asyncio.AbstractEventLoop, connection: Any, uri: Uri, data: bytes, options: dict[str, Any]
) -> Response:
    """Connects, sends the request and returns the response."""
    await open_transport(loop, connection, uri, options)
    connection._opened = loop.create_future()
    connection._write_raw(data)
    connection._head_received()
    return await connection._opened


async def open_transport(
    loop: asyncio.AbstractEventLoop, connection: BaseConnection, uri: Uri, options: dict[str, Any]
) -> None:
    """Connects a client's transport."""
    options = dict(options)
    is_unix = options.pop("unix", False)
    if is_unix and options.get("path") is None and options.get("sock") is None:
        raise ValueError("no path and sock were specified")
    if not is_unix and options.get("sock") is None:
        options.setdefault("host", uri.host)
        options.setdefault("port", uri.port)
    if uri.secure:
        options.setdefault("ssl", True)
        options.setdefault("server_hostname", uri.host)
    if _net.uses_socket(loop, options):
        options.pop("ssl", None)
        if is_unix and set(options) == {"path"}:
            connection._attach(await _net.open_unix_socket(loop, options["path"]))
            return
        if not is_unix and set(options) <= _net.SIMPLE:
            connection._attach(await _net.open_socket(loop, options))
            return
    if is_unix:
        await loop.create_unix_connection(lambda: connection, **options)
    else:
        await loop.create_connection(lambda: connection, **options)


async def bind_server(
    loop: asyncio.AbstractEventLoop, factory: Any, host: Any, port: Any, options: dict[str, Any]
) -> tuple[Any, Optional[_net.Acceptor]]:
    """Binds a server that does not serve yet. Without an acceptor, the server accepts itself."""
    options = dict(options)
    is_unix = options.pop("unix", False)
    options.pop("start_serving", None)
    options["start_serving"] = False
    backlog = options.setdefault("backlog", 100)
    if is_unix:
        server = await loop.create_unix_server(factory, **options)
    else:
        server = await loop.create_server(factory, host, port, **options)
    if not _net.uses_socket(loop, options):
        return server, None
    return server, _net.Acceptor(loop, server, factory, backlog)
