"""WebSocket client and server for asyncio and uvloop.

``sinews.websockets`` has the API of the package ``websockets``; ``sinews.listener`` calls plain functions.
"""

from ._native import __version__

__all__ = ["__version__"]
