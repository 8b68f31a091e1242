"""The client."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Any, Literal, Optional, Union
from urllib.parse import unquote, urljoin

from ... import _base, _http, _native, _options
from ..._http import HeadersLike, Response
from ..exceptions import InvalidHandshake, InvalidMessage, InvalidProxy, InvalidStatus, InvalidURI, SecurityError
from .connection import Connection, limits

__all__ = ["ClientConnection", "backoff", "connect", "process_exception", "unix_connect"]

MAX_REDIRECTS = 10


class ClientConnection(_base.ClientMixin, Connection):
    """A client's connection."""

    #: The server's URI, the last one after redirects.
    uri: _options.Uri


def backoff() -> Generator[float, None, None]:
    """Yields the delays between attempts: 5 s at random, then longer ones up to a minute."""
    yield random.random() * 5.0
    delay = 3.1
    while True:
        yield delay
        delay = min(delay * 1.618, 60.0)


def process_exception(exc: Exception) -> Optional[Exception]:
    """Returns ``None`` for an error after which ``connect`` tries again, otherwise the error."""
    if isinstance(exc, (OSError, EOFError, asyncio.TimeoutError)):
        return None
    if isinstance(exc, InvalidMessage) and isinstance(exc.__cause__, EOFError):
        return None
    if isinstance(exc, InvalidStatus) and exc.response.status_code in (500, 502, 503, 504):
        return None
    return exc


class connect:  # noqa: N801
    """Connects to a server: ``await connect(...)``, ``async with connect(...)``, or ``async for`` to reconnect."""

    def __init__(
        self,
        uri: str,
        *,
        origin: Optional[str] = None,
        extensions: None = None,
        subprotocols: Optional[Sequence[str]] = None,
        compression: Optional[str] = "deflate",
        additional_headers: Optional[HeadersLike] = None,
        extra_headers: Optional[HeadersLike] = None,
        user_agent_header: Optional[str] = _http.USER_AGENT,
        proxy: Union[str, Literal[True], None] = True,
        process_exception: Callable[[Exception], Optional[Exception]] = process_exception,
        open_timeout: Optional[float] = 10,
        ping_interval: Optional[float] = 20,
        ping_timeout: Optional[float] = 20,
        close_timeout: Optional[float] = 10,
        reconnect_delays: Callable[[], Generator[float, None, None]] = backoff,
        max_size: Any = 2**20,
        max_queue: Any = 16,
        write_limit: Any = 2**15,
        logger: Any = None,
        create_connection: Optional[Callable[..., ClientConnection]] = None,
        **kwargs: Any,
    ) -> None:
        if extensions is not None:
            raise ValueError("extensions is not supported: use compression")
        if isinstance(proxy, str):
            raise InvalidProxy(proxy, "proxies are not supported: pass a connected sock")
        self._set_uri(uri)
        if not self._target.secure and kwargs.get("ssl") is not None:
            raise ValueError("ssl argument is incompatible with a ws:// URI")
        if self._target.secure and "ssl" in kwargs and kwargs["ssl"] is None:
            raise ValueError("ssl=None is incompatible with a wss:// URI")
        self._config = limits(
            ping_interval=ping_interval,
            ping_timeout=ping_timeout,
            close_timeout=close_timeout,
            max_size=max_size,
            max_queue=max_queue,
            write_limit=write_limit,
            compression=compression,
        )
        name = "additional_headers" if extra_headers is None else "extra_headers"
        self._headers = _options.headers(name, additional_headers if extra_headers is None else extra_headers)
        if origin is not None:
            self._headers.append(("Origin", origin))
        names = {key.lower() for key, _ in self._headers}
        if user_agent_header is not None and "user-agent" not in names:
            self._headers.append(("User-Agent", user_agent_header))
        self._has_authorization = "authorization" in names
        self._subprotocols = _options.subprotocols(subprotocols)
        self._open_timeout = _options.seconds("open_timeout", open_timeout)
        self._process_exception = _options.function("process_exception", process_exception)
        self._delays = _options.function("reconnect_delays", reconnect_delays)
        self._factory = _options.function("create_connection", create_connection) or ClientConnection
        self._logger = logger if logger is not None else logging.getLogger("sinews.client")
        self._kwargs = kwargs

    def _set_uri(self, uri: str) -> None:
        self.uri = uri
        try:
            self._target = _options.Uri(uri)
        except ValueError as error:
            raise InvalidURI(uri, str(error)) from None

    async def _open(self) -> ClientConnection:
        for _ in range(MAX_REDIRECTS + 1):
            try:
                return await asyncio.wait_for(self._open_once(), self._open_timeout)
            except asyncio.TimeoutError:
                raise TimeoutError("timed out during opening handshake") from None
            except InvalidStatus as error:
                location = error.response.headers.get("Location")
                if error.response.status_code not in (300, 301, 302, 303, 307, 308) or location is None:
                    raise
                self._redirect(error, location)
        raise SecurityError(f"more than {MAX_REDIRECTS} redirects")

    def _redirect(self, error: InvalidStatus, location: str) -> None:
        old, uri = self._target, urljoin(self.uri, location)
        self._set_uri(uri)
        if old.secure and not self._target.secure:
            raise SecurityError(f"cannot follow redirect to non-secure URI {uri}") from error
        is_same = (old.host, old.port) == (self._target.host, self._target.port)
        fixed = self._fixed_address(is_same)
        if fixed is not None:
            origin = "" if is_same else "cross-origin "
            raise ValueError(f"cannot follow {origin}redirect to {uri} with {fixed}") from error
        if not is_same:
            # Credentials are for their origin only.
            secrets = ("authorization", "cookie", "proxy-authorization")
            self._headers = [item for item in self._headers if item[0].lower() not in secrets]

    def _fixed_address(self, is_same: bool) -> Optional[str]:
        """Returns the option that names the server's address."""
        if self._kwargs.get("sock") is not None:
            return "a preexisting socket"
        if is_same:
            return None
        if self._kwargs.get("unix"):
            return "a Unix socket"
        return "an explicit host or port" if {"host", "port"} & set(self._kwargs) else None

    async def _open_once(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        headers = list(self._headers)
        target = self._target
        if target.user is not None and not self._has_authorization:
            credentials = f"{unquote(target.user)}:{unquote(target.password or '')}".encode()
            headers.append(("Authorization", f"Basic {base64.b64encode(credentials).decode()}"))
        handshake, data, request = _base.start_client(target, headers, self._subprotocols, self._config)
        connection = self._factory(loop, self._config, self._logger)
        connection.request, connection.uri = request, target
        try:
            response: Response = await _base.open_client(loop, connection, target, data, self._kwargs)
            connection.response = response
            if response.status_code != 101:
                raise InvalidStatus(response)
            length, connection.subprotocol, negotiation = handshake.finish(connection._early)
        except _native.HandshakeError as error:
            connection.abort()
            kind = InvalidMessage if connection.response is None else InvalidHandshake
            raise kind(str(error.args[0])) from None
        except EOFError as error:
            connection.abort()
            raise InvalidMessage("did not receive a valid HTTP response") from error
        except BaseException:
            connection.abort()
            raise
        connection._early = connection._early[length:]
        early = connection._start(negotiation)
        if early:
            connection._feed(early)
        return connection

    def __await__(self) -> Generator[Any, None, ClientConnection]:
        return self._open().__await__()

    async def __aenter__(self) -> ClientConnection:
        if hasattr(self, "connection"):
            raise RuntimeError("connect() isn't reentrant")
        self.connection = await self._open()
        return self.connection

    async def __aexit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        try:
            await self.connection.__aexit__(exc_type, exc_value, traceback)
        finally:
            del self.connection

    async def __aiter__(self) -> AsyncIterator[ClientConnection]:
        """Yields a connection, and another one when the loop's body has finished with it."""
        delays: Optional[Generator[float, None, None]] = None
        uri = self.uri
        while True:
            try:
                connection = await self._open()
            except Exception as error:
                decided = self._process_exception(error)
                if decided is error:
                    raise
                if decided is not None:
                    raise decided from error
                delays = delays or self._delays()
                delay = next(delays)
                self._logger.info("connect failed; reconnecting in %.1f seconds: %r", delay, error)
                await asyncio.sleep(delay)
                continue
            finally:
                self._set_uri(uri)
            delays = None
            async with connection:
                yield connection


def unix_connect(path: Any = None, uri: Optional[str] = None, **kwargs: Any) -> connect:
    """Connects to a server on a Unix socket."""
    if uri is None:
        uri = "ws://localhost/" if kwargs.get("ssl") is None else "wss://localhost/"
    return connect(uri=uri, unix=True, path=path, **kwargs)
