"""Sockets: connect and accept."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Optional

from . import _native

#: Options of ``loop.create_connection`` that a socket of our own supports.
SIMPLE = frozenset({"host", "port", "family", "proto", "flags", "sock", "local_addr"})

#: Whether connections read and write their socket themselves. Elsewhere they use the loop's transports.
HAS_SOCKETS = os.name == "posix"


def uses_socket(loop: asyncio.AbstractEventLoop, options: dict[str, Any]) -> bool:
    """Returns whether the connection can do without the loop's transport."""
    return HAS_SOCKETS and options.get("ssl") is None and sys.platform != "win32"


async def open_socket(loop: asyncio.AbstractEventLoop, options: dict[str, Any]) -> socket.socket:
    """Connects to the first address that accepts."""
    sock: Optional[socket.socket] = options.pop("sock", None)
    if sock is not None:
        sock.setblocking(False)
        return prepare(sock)
    local_addr = options.pop("local_addr", None)
    host, port = options.pop("host"), options.pop("port")
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, **options)
    errors: list[OSError] = []
    for family, kind, proto, _, address in infos:
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            if local_addr is not None:
                sock.bind(local_addr)
            await loop.sock_connect(sock, address)
            return prepare(sock)
        except OSError as error:
            sock.close()
            errors.append(error)
        except BaseException:
            sock.close()
            raise
    if not errors:
        raise OSError(f"getaddrinfo({host!r}) returned no address")
    raise errors[0]


async def open_unix_socket(loop: asyncio.AbstractEventLoop, path: Any) -> socket.socket:
    """Connects to a Unix socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, os.fspath(path))
    except BaseException:
        sock.close()
        raise
    return sock


def prepare(sock: socket.socket) -> socket.socket:
    """Sends small messages at once."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Acceptor:
    """Accepts the connections of an ``asyncio.Server`` that is bound, but not serving."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: Any,
        factory: Callable[[], Any],
        backlog: int,
    ) -> None:
        self._loop = loop
        self._factory = factory
        self._backlog = backlog
        # The loop owns the descriptors of its server.
        self._sockets: list[socket.socket] = [sock.dup() for sock in server.sockets]
        self._is_listening = False
        #: One reader of the loop for all connections, where the system has it.
        self._poller: Any = _native.Poller(loop) if hasattr(_native, "Poller") else None

    def start(self) -> None:
        if self._is_listening:
            return
        self._is_listening = True
        for sock in self._sockets:
            sock.setblocking(False)
            sock.listen(self._backlog)
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def close(self) -> None:
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(self._backlog):
            try:
                accepted, _address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._pause(sock, error)
                return
            accepted.setblocking(False)
            connection = self._factory()
            connection._attach(prepare(accepted), self._poller)
            connection._made()

    def _pause(self, sock: socket.socket, error: OSError) -> None:
        """Accepts no connection for a second: the descriptors are used up."""
        context = {"message": "cannot accept connections", "exception": error, "socket": sock}
        self._loop.call_exception_handler(context)
        self._loop.remove_reader(sock.fileno())
        self._loop.call_later(1.0, self._continue, sock)

    def _continue(self, sock: socket.socket) -> None:
        if sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)
