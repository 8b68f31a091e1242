"""Handshake requests and responses."""

from .._http import SERVER, USER_AGENT, Request, Response

__all__ = ["SERVER", "USER_AGENT", "Request", "Response"]
