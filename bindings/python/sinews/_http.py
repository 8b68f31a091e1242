"""Heads of HTTP/1.1."""

from __future__ import annotations

import dataclasses
import http
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Optional, Union

from . import _native

SERVER = f"Python sinews/{_native.__version__}"
USER_AGENT = SERVER

#: Bytes of a rejecting response's body that a client reads.
MAX_BODY = 1 << 20


class MultipleValuesError(LookupError):
    """A header that is looked up as a single one occurs several times."""

    def __str__(self) -> str:
        return repr(self.args[0]) if len(self.args) == 1 else super().__str__()


class Headers(MutableMapping[str, str]):
    """HTTP headers in order: names are case-insensitive, and may occur several times."""

    __slots__ = ("_items",)

    def __init__(self, *args: Any, **kwargs: str) -> None:
        self._items: list[tuple[str, str]] = []
        self.update(*args, **kwargs)

    def __str__(self) -> str:
        return "".join(f"{name}: {value}\r\n" for name, value in self._items) + "\r\n"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"

    def copy(self) -> Headers:
        return type(self)(self._items)

    def serialize(self) -> bytes:
        return str(self).encode(errors="surrogateescape")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.get_all(name))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.lower() for name, _ in self._items))

    def __len__(self) -> int:
        return len({name.lower() for name, _ in self._items})

    def __getitem__(self, name: str) -> str:
        values = self.get_all(name)
        if not values:
            raise KeyError(name)
        if len(values) > 1:
            raise MultipleValuesError(name)
        return values[0]

    def __setitem__(self, name: str, value: str) -> None:
        self._items.append((name, value))

    def __delitem__(self, name: str) -> None:
        name = name.lower()
        self._items = [item for item in self._items if item[0].lower() != name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Headers):
            return NotImplemented
        return self._lower() == other._lower()

    def _lower(self) -> list[tuple[str, str]]:
        return sorted((name.lower(), value) for name, value in self._items)

    def clear(self) -> None:
        self._items = []

    def update(self, *args: Any, **kwargs: str) -> None:
        args = tuple(list(arg.raw_items()) if isinstance(arg, Headers) else arg for arg in args)
        super().update(*args, **kwargs)

    def get_all(self, name: str) -> list[str]:
        name = name.lower()
        return [value for key, value in self._items if key.lower() == name]

    def raw_items(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)


HeadersLike = Union[Headers, Mapping[str, str], Iterable[tuple[str, str]]]


@dataclasses.dataclass
class Request:
    """A handshake's request."""

    path: str
    headers: Headers
    _data: bytes = dataclasses.field(default=b"", repr=False, compare=False)

    def serialize(self) -> bytes:
        return f"GET {self.path} HTTP/1.1\r\n".encode() + self.headers.serialize()


@dataclasses.dataclass
class Response:
    """A handshake's response."""

    status_code: int
    reason_phrase: str
    headers: Headers
    body: bytes = b""

    def serialize(self) -> bytes:
        head = f"HTTP/1.1 {self.status_code} {self.reason_phrase}\r\n".encode()
        return head + self.headers.serialize() + self.body


def text_response(status: int, text: str) -> Response:
    """Creates a plain text response that rejects a request."""
    body = text.encode()
    headers = Headers(
        [
            ("Connection", "close"),
            ("Content-Length", str(len(body))),
            ("Content-Type", "text/plain; charset=utf-8"),
        ]
    )
    status = http.HTTPStatus(status)
    return Response(status.value, status.phrase, headers, body)


def read_request(data: bytes) -> Optional[Request]:
    """Parses a request. Returns ``None`` if it is incomplete."""
    parsed = _native.parse_request(data)
    if parsed is None:
        return None
    length, _method, target, _is_http11, headers = parsed
    return Request(target, Headers(headers), data[:length])


def read_response(data: bytes, has_ended: bool) -> Optional[Response]:
    """Parses a response and, unless it opens a WebSocket, its body. Returns ``None`` if it is incomplete."""
    parsed = _native.parse_response(data)
    if parsed is None:
        return None
    length, status, fields = parsed
    if 100 <= status < 200 and status != 101:
        return read_response(data[length:], has_ended)
    headers = Headers(fields)
    line = data[: data.index(b"\r\n")].decode("latin-1").split(" ", 2)
    response = Response(status, line[2] if len(line) > 2 else "", headers)
    if status == 101:
        return response
    body = data[length : length + MAX_BODY]
    try:
        expected = min(int(headers.get("Content-Length", MAX_BODY)), MAX_BODY)
    except (ValueError, LookupError):
        expected = MAX_BODY
    if status in (204, 304):
        expected = 0
    if len(body) < expected and not has_ended:
        return None
    response.body = body[:expected]
    return response


def accept(request: Request, config: _native.Config) -> tuple[Response, _native.Negotiation]:
    """Accepts a request. Raises ``HandshakeError`` with the status if it is no WebSocket handshake."""
    key, extensions, negotiation = _native.accept(request._data, config)
    headers = Headers([("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", key)])
    if extensions is not None:
        headers["Sec-WebSocket-Extensions"] = extensions
    return Response(101, "Switching Protocols", headers), negotiation


def reject(error: _native.HandshakeError) -> Response:
    """Creates the response to a request that ``accept`` or ``read_request`` has rejected."""
    text, status, fields = error.args
    response = text_response(status, f"Failed to open a WebSocket connection: {text}.\n")
    for name, value in fields:
        if name.lower() not in ("content-length", "content-type", "connection"):
            response.headers[name] = value
    return response


def offered_subprotocols(request: Request) -> list[str]:
    """Returns the client's subprotocols in its order."""
    values = ",".join(request.headers.get_all("Sec-WebSocket-Protocol")).split(",")
    return [value.strip() for value in values if value.strip()]
