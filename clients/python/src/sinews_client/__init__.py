"""Client of the Sinews real-time server for asyncio.

    from sinews_client import connect

    async with connect("ws://127.0.0.1:8080/ws") as client:
        subscription = client.subscribe("chat.room", last=10)
        await client.publish("chat.room", {"text": "hello"})
        async for message in subscription:
            print(message.topic, message.data)
"""

from ._client import Client, connect
from ._subscription import State, Subscription
from ._types import Gap, HistoryPage, Member, Message, Position, SinewsError, Status

__all__ = [
    "Client",
    "Gap",
    "HistoryPage",
    "Member",
    "Message",
    "Position",
    "SinewsError",
    "State",
    "Status",
    "Subscription",
    "connect",
]
