"""A connection's state."""

import enum

__all__ = ["CLOSED", "CLOSING", "CONNECTING", "OPEN", "State"]


class State(enum.IntEnum):
    """A connection's state (RFC 6455)."""

    CONNECTING, OPEN, CLOSING, CLOSED = range(4)


CONNECTING, OPEN, CLOSING, CLOSED = State.CONNECTING, State.OPEN, State.CLOSING, State.CLOSED
