"""Checks of options: each error names the option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional
from urllib.parse import SplitResult, urlsplit

from . import _native


def seconds(name: str, value: Any, *, zero: bool = False) -> Any:
    """Checks a time in seconds, or ``None``."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if math.isnan(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be positive: {value!r}")
    return float(value)


def integer(name: str, value: Any, minimum: int = 1, *, none: bool = True) -> Any:
    """Checks an integer, or ``None`` if that is allowed."""
    if value is None and none:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int{' or None' if none else ''}, not {type(value).__name__}")
    if not minimum <= value < 1 << 62:
        raise ValueError(f"{name} must be at least {minimum}: {value!r}")
    return value


def function(name: str, value: Any) -> Any:
    """Checks a callable, or ``None``."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    return value


def compression(value: Any, level: int = 2, takeover: bool = False) -> Optional[tuple[int, bool]]:
    """Checks ``compression``: ``"deflate"`` or ``None``."""
    if value is None:
        return None
    if value != "deflate":
        raise ValueError(f"compression must be 'deflate' or None: {value!r}")
    return (level, takeover)


def subprotocols(value: Any) -> list[str]:
    """Checks a sequence of subprotocols, or ``None``."""
    if value is None:
        return []
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"subprotocols must be a list of str, not {value!r}")
    return list(value)


def headers(name: str, value: Any) -> list[tuple[str, str]]:
    """Checks headers: a mapping or pairs, or ``None``."""
    if value is None:
        return []
    if hasattr(value, "raw_items"):
        pairs = list(value.raw_items())
    else:
        pairs = list(value.items() if isinstance(value, Mapping) else value)
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise TypeError(f"{name} must be pairs of str, not {pair!r}")
        if any(character in part for part in pair for character in "\r\n\0"):
            raise ValueError(f"{name} must not contain line breaks: {pair!r}")
    return [(str(key), str(text)) for key, text in pairs]


class Uri:
    """A WebSocket URI's parts."""

    __slots__ = ("secure", "host", "port", "path", "authority", "user", "password")

    def __init__(self, uri: str) -> None:
        if not isinstance(uri, str):
            raise TypeError(f"uri must be a str, not {type(uri).__name__}")
        try:
            parts: SplitResult = urlsplit(uri)
            port = parts.port
        except ValueError as error:
            raise ValueError(str(error)) from None
        if parts.scheme not in ("ws", "wss"):
            raise ValueError("scheme isn't ws or wss")
        if not parts.hostname:
            raise ValueError("hostname isn't provided")
        if parts.fragment:
            raise ValueError("fragment identifier is meaningless")
        self.secure = parts.scheme == "wss"
        host = parts.hostname
        if not host.isascii():
            host = host.encode("idna").decode()
        self.host = host
        self.port = port if port is not None else 443 if self.secure else 80
        path = _ascii(parts.path or "/")
        self.path = f"{path}?{_ascii(parts.query)}" if parts.query else path
        bracketed = f"[{host}]" if ":" in host else host
        is_default = self.port == (443 if self.secure else 80)
        self.authority = bracketed if is_default else f"{bracketed}:{self.port}"
        self.user = parts.username
        self.password = parts.password


def _ascii(text: str) -> str:
    from urllib.parse import quote

    return text if text.isascii() else quote(text, safe="!#$%&'()*+,/:;=?@[]~")


def make_config(**settings: Any) -> _native.Config:
    """Creates the native limits from checked options."""
    return _native.Config(**settings)
