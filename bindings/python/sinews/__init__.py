"""WebSocket client and server for asyncio and uvloop.

``sinews.Server`` serves HTTP, WebSocket and topics; ``sinews.websockets`` has the API of the package ``websockets``; ``sinews.listener`` calls plain functions.
"""

from ._native import __version__
from .server import Request, Response, Server, ServerStopped, TopicError, WebSocket

__all__ = ["Request", "Response", "Server", "ServerStopped", "TopicError", "WebSocket", "__version__"]
