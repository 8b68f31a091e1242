"""Close codes."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["Close", "CloseCode"]


class CloseCode(enum.IntEnum):
    """Close codes (RFC 6455 section 7.4)."""

    NORMAL_CLOSURE = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    NO_STATUS_RCVD = 1005
    ABNORMAL_CLOSURE = 1006
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    MANDATORY_EXTENSION = 1010
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013
    BAD_GATEWAY = 1014
    TLS_HANDSHAKE = 1015


_NAMES = {
    1000: "OK",
    1005: "no status received [internal]",
    1006: "connection closed abnormally [internal]",
    1007: "invalid frame payload data",
    1011: "internal error",
    1015: "TLS handshake failure [internal]",
}

#: Codes of an orderly end.
OK_CODES = (1000, 1001, 1005)


class Close(NamedTuple):
    """A Close frame's code and reason."""

    code: int
    reason: str

    def __str__(self) -> str:
        if 3000 <= self.code < 4000:
            name = "registered"
        elif 4000 <= self.code < 5000:
            name = "private use"
        elif self.code in _NAMES:
            name = _NAMES[self.code]
        elif self.code in CloseCode._value2member_map_:
            name = CloseCode(self.code).name.lower().replace("_", " ")
        else:
            name = "unknown"
        return f"{self.code} ({name}) {self.reason}".rstrip()
