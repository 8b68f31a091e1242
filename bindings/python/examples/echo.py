"""An echo for measurements: ``python echo.py PORT``; with ``picows`` as a second word, the same by the package picows."""

import asyncio
import sys

PORT = int(sys.argv[1])


async def main() -> None:
    if sys.argv[2:] == ["picows"]:
        from picows import WSListener, WSMsgType, ws_create_server

        class Echo(WSListener):
            def on_ws_frame(self, transport, frame):
                if frame.msg_type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    transport.send(frame.msg_type, frame.get_payload_as_bytes())

        await (await ws_create_server(lambda _: Echo(), "127.0.0.1", PORT)).serve_forever()
    else:
        from sinews import Server

        server = Server(port=PORT, ping_interval=None, idle_timeout=None, on_message=lambda socket, data: socket.send(data))
        await (await server.start()).wait_closed()


try:
    import uvloop
except ImportError:
    asyncio.run(main())
else:
    uvloop.run(main())
