"""The API of the package ``websockets`` for asyncio: ``from sinews.websockets import connect, serve``."""

from .asyncio.client import ClientConnection, connect, unix_connect
from .asyncio.connection import Connection, broadcast
from .asyncio.server import Server, ServerConnection, basic_auth, serve, unix_serve
from .datastructures import Headers, HeadersLike, MultipleValuesError
from .exceptions import (
    ConcurrencyError,
    ConnectionClosed,
    ConnectionClosedError,
    ConnectionClosedOK,
    InvalidHandshake,
    InvalidHeader,
    InvalidMessage,
    InvalidOrigin,
    InvalidProxy,
    InvalidProxyMessage,
    InvalidProxyStatus,
    InvalidState,
    InvalidStatus,
    InvalidUpgrade,
    InvalidURI,
    NegotiationError,
    PayloadTooBig,
    ProtocolError,
    ProxyError,
    SecurityError,
    WebSocketException,
)
from .frames import Close, CloseCode
from .http11 import Request, Response
from .protocol import State

__all__ = [
    "ClientConnection",
    "Close",
    "CloseCode",
    "ConcurrencyError",
    "Connection",
    "ConnectionClosed",
    "ConnectionClosedError",
    "ConnectionClosedOK",
    "Headers",
    "HeadersLike",
    "InvalidHandshake",
    "InvalidHeader",
    "InvalidMessage",
    "InvalidOrigin",
    "InvalidProxy",
    "InvalidProxyMessage",
    "InvalidProxyStatus",
    "InvalidState",
    "InvalidStatus",
    "InvalidURI",
    "InvalidUpgrade",
    "MultipleValuesError",
    "NegotiationError",
    "PayloadTooBig",
    "ProtocolError",
    "ProxyError",
    "Request",
    "Response",
    "SecurityError",
    "Server",
    "ServerConnection",
    "State",
    "WebSocketException",
    "basic_auth",
    "broadcast",
    "connect",
    "serve",
    "unix_connect",
    "unix_serve",
]
