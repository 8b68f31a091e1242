"""The values that applications get."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Union

Json = Any
Fields = Dict[str, Any]


class SinewsError(Exception):
    """An error of the server or of this client. ``code`` is a number of the protocol, or a word."""

    def __init__(self, code: Union[int, str], text: str, needs: Optional[Dict[str, List[str]]] = None) -> None:
        super().__init__(text)
        self.code = code
        self.needs = needs

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.code})"


class Position(NamedTuple):
    """The position of a message in the history of its topic."""

    epoch: int
    seq: int


@dataclass(frozen=True)
class Message:
    """A publication. ``user``, ``info`` and ``at`` are statements of the server, where the topic has them."""

    topic: str
    data: Json
    position: Optional[Position] = None
    user: Optional[str] = None
    info: Json = None
    #: Milliseconds since 1970.
    at: Optional[int] = None


@dataclass(frozen=True)
class Gap:
    """Messages that are lost. ``reason`` is "unretained", "history", "dropped", "reset" or "overflow"."""

    reason: str
    #: None: of several topics.
    topic: Optional[str] = None
    #: The number of dropped messages.
    messages: Optional[int] = None
    #: The number of retained messages that follow.
    replayed: Optional[int] = None


@dataclass(frozen=True)
class Status:
    """A state of the connection: "connecting", "open", "waiting" or "closed"."""

    status: str
    #: Failed attempts before this one.
    attempt: int = 0
    #: Seconds until the next attempt, of "waiting".
    delay: Optional[float] = None
    #: The close code, and its reason.
    code: Optional[int] = None
    reason: str = ""


@dataclass(frozen=True)
class Member:
    """A member of a topic, and the number of its connections."""

    id: str
    info: Json = None
    connections: int = 1


@dataclass(frozen=True)
class HistoryPage:
    """Retained messages, the oldest first."""

    messages: List[Message] = field(default_factory=list)
    #: Whether more messages are retained in the direction of the request.
    more: bool = False
    #: False if messages next to the requested position are lost.
    complete: bool = True

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


def content(data: Json) -> Fields:
    """The fields of a payload: bytes are sent as base64."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return {"b64": base64.b64encode(data).decode()}
    return {"data": data}


def payload(fields: Fields) -> Json:
    return base64.b64decode(fields["b64"]) if "b64" in fields else fields.get("data")


def position_of(fields: Fields) -> Optional[Position]:
    return Position(fields["epoch"], fields["seq"]) if "seq" in fields else None


def message_of(fields: Fields) -> Message:
    return Message(
        fields["topic"], payload(fields), position_of(fields), fields.get("user"), fields.get("info"), fields.get("at")
    )


def present(**fields: Any) -> Fields:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def matcher(pattern: str) -> Callable[[str], bool]:
    """``*`` matches one part between dots, ``>`` at the end one or more."""
    parts = pattern.split(".")
    if "*" not in parts and ">" not in parts:
        return lambda topic: topic == pattern
    is_open = parts[-1] == ">"
    fixed = parts[:-1] if is_open else parts

    def matches(topic: str) -> bool:
        found = topic.split(".")
        fits = len(found) > len(fixed) if is_open else len(found) == len(fixed)
        return fits and all(part in ("*", name) for part, name in zip(fixed, found))

    return matches
