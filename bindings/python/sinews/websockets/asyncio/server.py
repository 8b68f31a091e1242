"""The server."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Optional, Union

from ... import _base, _http, _native, _net, _options
from ..._http import HeadersLike, Request, Response, text_response
from ..exceptions import InvalidHandshake, InvalidHeader, InvalidMessage, InvalidOrigin, NegotiationError
from ..protocol import State
from .connection import Connection, broadcast, limits

__all__ = ["Server", "ServerConnection", "basic_auth", "broadcast", "serve", "unix_serve"]

_FAILED = "Failed to open a WebSocket connection.\nSee server log for more information.\n"


class ServerConnection(Connection):
    """A server's connection."""

    #: Set by ``basic_auth``.
    username: str

    def __init__(self, server: Server) -> None:
        super().__init__(server._loop, server._config, server.logger)
        self.server = server
        self._head: Optional[asyncio.Future[None]] = None

    def respond(self, status: int, text: str) -> Response:
        """Creates a plain text response for ``process_request``."""
        return text_response(status, text)

    def _made(self) -> None:
        if self._state != State.CLOSED:
            task = self._loop.create_task(self.server._handle(self))
            self.server._tasks.add(task)

    def _head_received(self) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_result(None)

    def _lost(self, error: Optional[BaseException]) -> None:
        super()._lost(error)
        self._head_received()

    async def _read_request(self) -> Request:
        while self._state != State.CLOSED:
            request = _http.read_request(self._early)
            if request is not None:
                self._early = self._early[len(request._data) :]
                return request
            if self._has_ended:
                break
            self._head = self._loop.create_future()
            await self._head
        raise InvalidMessage("did not receive a valid HTTP request")

    async def _handshake(self) -> bool:
        """Answers the request. Returns whether the connection is open."""
        server = self.server
        try:
            self.request = await self._read_request()
        except _native.HandshakeError as error:
            self._write_raw(_http.reject(error).serialize(), True)
            return False
        negotiation = None
        response = await self._ask("process_request", server._process_request, self.request)
        if response is None:
            if server._process_request is not None:
                # It may have changed the request.
                self.request._data = self.request.serialize()
            response, negotiation = self._accept(self.request)
        if server._server_header is not None:
            response.headers["Server"] = server._server_header
        self.response = response
        self.response = await self._ask("process_response", server._process_response, self.request, response) or response
        if self.response.status_code == 101 and not server.is_serving():
            self.response = text_response(503, "Server is shutting down.\n")
        if self.response.status_code != 101 or self._state != State.CONNECTING:
            negotiation = None
        self._write_raw(self.response.serialize(), negotiation is None)
        if negotiation is None:
            return False
        early = self._start(negotiation)
        if early:
            self._feed(early)
        return True

    async def _ask(self, name: str, function: Any, *args: Any) -> Optional[Response]:
        """Calls the program's function, or awaits its coroutine."""
        if function is None:
            return None
        try:
            response = function(self, *args)
            if inspect.isawaitable(response):
                response = await response
            if response is not None and not hasattr(response, "status_code"):
                raise TypeError(f"{name} must return a Response or None, not {type(response).__name__}")
            return response
        except Exception:
            self.logger.error("%s failed", name, exc_info=True)
            return text_response(500, _FAILED)

    def _accept(self, request: Request) -> tuple[Response, Optional[_native.Negotiation]]:
        """Checks the request."""
        server = self.server
        try:
            response, negotiation = _http.accept(request, self._config)
            _check_origin(request, server._origins)
            self.subprotocol = self._select(_http.offered_subprotocols(request))
        except _native.HandshakeError as error:
            return _http.reject(error), None
        except InvalidOrigin as error:
            return text_response(403, f"Failed to open a WebSocket connection: {error}.\n"), None
        except InvalidHandshake as error:
            return text_response(400, f"Failed to open a WebSocket connection: {error}.\n"), None
        except Exception:
            self.logger.error("select_subprotocol failed", exc_info=True)
            return text_response(500, _FAILED), None
        if self.subprotocol is not None:
            response.headers["Sec-WebSocket-Protocol"] = self.subprotocol
        response.headers.update(server._headers)
        return response, negotiation

    def _select(self, offers: list[str]) -> Optional[str]:
        server = self.server
        if server._select_subprotocol is not None:
            return server._select_subprotocol(self, offers)
        if not server._subprotocols:
            return None
        if not offers:
            raise NegotiationError("missing subprotocol")
        for name in server._subprotocols:
            if name in offers:
                return name
        raise NegotiationError(f"invalid subprotocol; expected one of {', '.join(server._subprotocols)}")


def _check_origin(request: Request, origins: Any) -> None:
    values = request.headers.get_all("Origin")
    if len(values) > 1:
        raise InvalidHeader("Origin", "multiple values")
    if origins is None:
        return
    value = values[0] if values else None
    for origin in origins:
        if origin == value:
            return
        if isinstance(origin, re.Pattern) and value is not None and origin.fullmatch(value):
            return
    raise InvalidOrigin(value)


class Server:
    """A server that ``serve`` has started."""

    def __init__(self, handler: Any, options: dict[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._config: _native.Config = options["config"]
        self._headers: list[tuple[str, str]] = options["headers"]
        self._subprotocols: list[str] = options["subprotocols"]
        self._select_subprotocol = options["select_subprotocol"]
        self._origins = options["origins"]
        self._process_request = options["process_request"]
        self._process_response = options["process_response"]
        self._server_header: Optional[str] = options["server_header"]
        self._open_timeout: Optional[float] = options["open_timeout"]
        self.logger: Any = options["logger"]
        self.server: Any = None
        self._acceptor: Optional[_net.Acceptor] = None
        self._open: set[ServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_serving = False
        self._close_task: Optional[asyncio.Task[None]] = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def connections(self) -> set[ServerConnection]:
        """The open connections."""
        return {connection for connection in self._open if connection.is_open}

    @property
    def sockets(self) -> Any:
        """The listening sockets."""
        return self.server.sockets

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """See ``asyncio.Server.get_loop``."""
        return self._loop

    def is_serving(self) -> bool:
        """Returns whether connections are accepted."""
        return self._is_serving

    async def start_serving(self) -> None:
        """Accepts connections."""
        if self._close_task is not None or self._is_serving:
            return
        self._is_serving = True
        if self._acceptor is not None:
            self._acceptor.start()
        else:
            await self.server.start_serving()

    async def serve_forever(self) -> None:
        """Serves until cancelled, or until the server is closed."""
        try:
            await self.start_serving()
            await self.wait_closed()
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise

    def close(self, close_connections: bool = True, code: int = 1001, reason: str = "") -> None:
        """Accepts no connection any more, closes those that are open, and waits for the handlers."""
        if self._close_task is None:
            self._is_serving = False
            self._close_task = self._loop.create_task(self._close(close_connections, code, reason))

    async def _close(self, close_connections: bool, code: int, reason: str) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        self.server.close()
        # Accepted connections are answered with 503.
        await asyncio.sleep(0)
        if close_connections:
            closing = [self._loop.create_task(connection.close(code, reason)) for connection in self.connections]
            if closing:
                await asyncio.wait(closing)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.server.wait_closed()
        self._closed.set_result(None)

    async def wait_closed(self) -> None:
        """Waits until the server is closed and all handlers have returned."""
        await asyncio.shield(self._closed)

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()
        await self.wait_closed()

    async def _handle(self, connection: ServerConnection) -> None:
        """Runs a connection's handshake and handler."""
        timer = None
        try:
            if self._open_timeout is not None:
                timer = self._loop.call_later(self._open_timeout, connection.abort)
            try:
                is_open = await connection._handshake()
            except InvalidMessage:
                connection.abort()
                return
            finally:
                if timer is not None:
                    timer.cancel()
            if is_open:
                await self._run(connection)
        except Exception:
            self.logger.error("opening handshake failed", exc_info=True)
            connection.abort()
        except BaseException:
            connection.abort()
            raise
        finally:
            self._tasks.discard(asyncio.current_task())  # type: ignore[arg-type]

    async def _run(self, connection: ServerConnection) -> None:
        self._open.add(connection)
        try:
            async with connection:
                await self._handler(connection)
        except Exception:
            self.logger.error("connection handler failed", exc_info=True)
        finally:
            self._open.discard(connection)


class serve:  # noqa: N801
    """Starts a server: ``await serve(...)``, or ``async with serve(...)``."""

    def __init__(
        self,
        handler: Callable[[ServerConnection], Awaitable[None]],
        host: Any = None,
        port: Optional[int] = None,
        *,
        origins: Optional[Sequence[Any]] = None,
        extensions: None = None,
        subprotocols: Optional[Sequence[str]] = None,
        select_subprotocol: Optional[Callable[[ServerConnection, Sequence[str]], Optional[str]]] = None,
        compression: Optional[str] = "deflate",
        process_request: Optional[Callable[[ServerConnection, Request], Any]] = None,
        process_response: Optional[Callable[[ServerConnection, Request, Response], Any]] = None,
        server_header: Optional[str] = _http.SERVER,
        additional_headers: Optional[HeadersLike] = None,
        extra_headers: Optional[HeadersLike] = None,
        open_timeout: Optional[float] = 10,
        ping_interval: Optional[float] = 20,
        ping_timeout: Optional[float] = 20,
        close_timeout: Optional[float] = 10,
        max_size: Any = 2**20,
        max_queue: Any = 16,
        write_limit: Any = 2**15,
        logger: Any = None,
        create_connection: Optional[Callable[[Server], ServerConnection]] = None,
        **kwargs: Any,
    ) -> None:
        if extensions is not None:
            raise ValueError("extensions is not supported: use compression")
        if handler is None:
            raise TypeError("handler must be callable, not NoneType")
        self._handler = _options.function("handler", handler)
        name = "additional_headers" if extra_headers is None else "extra_headers"
        self._options: dict[str, Any] = {
            "config": limits(
                ping_interval=ping_interval,
                ping_timeout=ping_timeout,
                close_timeout=close_timeout,
                max_size=max_size,
                max_queue=max_queue,
                write_limit=write_limit,
                compression=compression,
            ),
            "headers": _options.headers(name, additional_headers if extra_headers is None else extra_headers),
            "subprotocols": _options.subprotocols(subprotocols),
            "select_subprotocol": _options.function("select_subprotocol", select_subprotocol),
            "origins": _origins(origins),
            "process_request": _options.function("process_request", process_request),
            "process_response": _options.function("process_response", process_response),
            "server_header": server_header,
            "open_timeout": _options.seconds("open_timeout", open_timeout),
            "logger": logger if logger is not None else logging.getLogger("sinews.server"),
        }
        self._factory = _options.function("create_connection", create_connection) or ServerConnection
        self._address = (host, port)
        if kwargs.get("ssl") is not None:
            kwargs.setdefault("ssl_handshake_timeout", open_timeout)
        self._kwargs = kwargs

    async def _start(self) -> Server:
        server = Server(self._handler, self._options)
        factory = self._factory
        host, port = self._address
        server.server, server._acceptor = await _base.bind_server(
            server._loop, lambda: factory(server), host, port, self._kwargs
        )
        if self._kwargs.get("start_serving", True):
            await server.start_serving()
        return server

    def __await__(self) -> Generator[Any, None, Server]:
        return self._start().__await__()

    async def __aenter__(self) -> Server:
        self._server = await self._start()
        return self._server

    async def __aexit__(self, *args: Any) -> None:
        await self._server.__aexit__(*args)


def _origins(origins: Any) -> Any:
    if origins is None:
        return None
    if isinstance(origins, str):
        raise TypeError("origins must be a list, not a str")
    for origin in origins:
        if origin is not None and not isinstance(origin, (str, re.Pattern)):
            raise TypeError(f"origins must be str, re.Pattern or None, not {type(origin).__name__}")
    return list(origins)


def unix_serve(handler: Callable[[ServerConnection], Awaitable[None]], path: Any = None, **kwargs: Any) -> serve:
    """Starts a server on a Unix socket."""
    return serve(handler, unix=True, path=path, **kwargs)


def basic_auth(
    realm: str = "",
    credentials: Union[tuple[str, str], Iterable[tuple[str, str]], None] = None,
    check_credentials: Optional[Callable[[str, str], Union[Awaitable[bool], bool]]] = None,
) -> Callable[[ServerConnection, Request], Awaitable[Optional[Response]]]:
    """Creates a ``process_request`` that requires HTTP Basic authentication, and sets ``username``."""
    if (credentials is None) == (check_credentials is None):
        raise ValueError("provide either credentials or check_credentials")
    if credentials is not None:
        check_credentials = _known(credentials)
    realm = realm.replace("\\", "\\\\").replace('"', '\\"')

    async def process_request(connection: ServerConnection, request: Request) -> Optional[Response]:
        pair = _basic_credentials(request.headers.get_all("Authorization"))
        if pair is not None:
            valid = check_credentials(*pair)  # type: ignore[misc]
            if inspect.isawaitable(valid):
                valid = await valid
            if valid:
                connection.username = pair[0]
                return None
        response = connection.respond(401, "Invalid credentials\n" if pair else "Missing credentials\n")
        response.headers["WWW-Authenticate"] = f'Basic realm="{realm}", charset="UTF-8"'
        return response

    return process_request


def _known(credentials: Any) -> Callable[[str, str], bool]:
    def is_pair(item: Any) -> bool:
        return isinstance(item, tuple) and len(item) == 2 and all(isinstance(part, str) for part in item)

    if not isinstance(credentials, Iterable):
        raise TypeError(f"credentials must be tuples, not {type(credentials).__name__}")
    pairs: list[Any] = [credentials] if is_pair(credentials) else list(credentials)
    if not all(is_pair(pair) for pair in pairs):
        raise TypeError("credentials must be a (username, password) tuple, or a list of these")
    known = dict(pairs)

    def check(username: str, password: str) -> bool:
        expected = known.get(username)
        if expected is None:
            return False
        return hmac.compare_digest(expected.encode(), password.encode())

    return check


def _basic_credentials(values: list[str]) -> Optional[tuple[str, str]]:
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        username, separator, password = base64.b64decode(token.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (username, password) if separator else None
