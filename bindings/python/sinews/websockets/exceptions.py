"""Exceptions, with the names and attributes of the package ``websockets``."""

from __future__ import annotations

from typing import Optional

from .._http import Response
from .frames import Close

__all__ = [
    "ConcurrencyError",
    "ConnectionClosed",
    "ConnectionClosedError",
    "ConnectionClosedOK",
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
    "NegotiationError",
    "PayloadTooBig",
    "ProtocolError",
    "ProxyError",
    "SecurityError",
    "WebSocketException",
]


class WebSocketException(Exception):
    """Base class of all exceptions."""


class ConnectionClosed(WebSocketException):
    """The connection is closed: ``rcvd`` and ``sent`` are the peer's Close and the local one, or ``None``."""

    def __init__(self, rcvd: Optional[Close], sent: Optional[Close], rcvd_then_sent: Optional[bool] = None) -> None:
        super().__init__(rcvd, sent, rcvd_then_sent)
        self.rcvd = rcvd
        self.sent = sent
        self.rcvd_then_sent = rcvd_then_sent

    def __str__(self) -> str:
        if self.rcvd is None:
            return "no close frame received or sent" if self.sent is None else f"sent {self.sent}; no close frame received"
        if self.sent is None:
            return f"received {self.rcvd}; no close frame sent"
        if self.rcvd_then_sent:
            return f"received {self.rcvd}; then sent {self.sent}"
        return f"sent {self.sent}; then received {self.rcvd}"

    @property
    def code(self) -> int:
        """The peer's close code, or 1006."""
        return 1006 if self.rcvd is None else self.rcvd.code

    @property
    def reason(self) -> str:
        """The peer's reason."""
        return "" if self.rcvd is None else self.rcvd.reason


class ConnectionClosedOK(ConnectionClosed):
    """The connection was closed with 1000, 1001 or without a code."""


class ConnectionClosedError(ConnectionClosed):
    """The connection was closed with another code, or without the closing handshake."""


class InvalidURI(WebSocketException):
    """A URI that is not for WebSockets."""

    def __init__(self, uri: str, msg: str) -> None:
        super().__init__(uri, msg)
        self.uri = uri
        self.msg = msg

    def __str__(self) -> str:
        return f"{self.uri} isn't a valid URI: {self.msg}"


class InvalidProxy(WebSocketException):
    """A proxy that is not valid or not supported."""

    def __init__(self, proxy: str, msg: str) -> None:
        super().__init__(proxy, msg)
        self.proxy = proxy
        self.msg = msg

    def __str__(self) -> str:
        return f"{self.proxy} isn't a valid proxy: {self.msg}"


class InvalidHandshake(WebSocketException):
    """The opening handshake has failed."""


class SecurityError(InvalidHandshake):
    """A request or response breaks a rule of security."""


class ProxyError(InvalidHandshake):
    """A proxy has failed. Never raised: proxies are not supported."""


class InvalidProxyMessage(ProxyError):
    """A malformed response of a proxy. Never raised."""


class InvalidProxyStatus(ProxyError):
    """A proxy has rejected the connection. Never raised."""

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        self.response = response

    def __str__(self) -> str:
        return f"proxy rejected connection: HTTP {self.response.status_code:d}"


class InvalidMessage(InvalidHandshake):
    """A malformed request or response."""


class InvalidStatus(InvalidHandshake):
    """The server has rejected the connection: see ``response``."""

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        self.response = response

    def __str__(self) -> str:
        return f"server rejected WebSocket connection: HTTP {self.response.status_code:d}"


class InvalidHeader(InvalidHandshake):
    """A header with a wrong value."""

    def __init__(self, name: str, value: Optional[str] = None) -> None:
        super().__init__(name, value)
        self.name = name
        self.value = value

    def __str__(self) -> str:
        if self.value is None:
            return f"missing {self.name} header"
        if self.value == "":
            return f"empty {self.name} header"
        return f"invalid {self.name} header: {self.value}"


class InvalidOrigin(InvalidHeader):
    """An origin that the server does not accept."""

    def __init__(self, origin: Optional[str]) -> None:
        super().__init__("Origin", origin)


class InvalidUpgrade(InvalidHeader):
    """A wrong ``Upgrade`` or ``Connection`` header."""


class NegotiationError(InvalidHandshake):
    """No common subprotocol or extension."""


class ProtocolError(WebSocketException):
    """A frame violates the protocol."""


class PayloadTooBig(WebSocketException):
    """A message exceeds ``max_size``."""


class InvalidState(WebSocketException, AssertionError):
    """A frame that must not be sent now."""


class ConcurrencyError(WebSocketException, RuntimeError):
    """Two tasks receive at the same time, or send a ping with the same data."""
