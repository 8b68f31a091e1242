"""Client and server for asyncio."""
