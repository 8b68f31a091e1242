"""An echo server on the Python `websockets` package: echo_server.py [FOLDER]

With a folder, TLS by its certificate.pem and key.pem. Prints `listening on ADDRESS`.
"""

import asyncio
import ssl
import sys

from websockets.asyncio.server import serve


async def echo(socket):
    async for message in socket:
        await socket.send(message)


async def main():
    context = None
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{sys.argv[1]}/certificate.pem", f"{sys.argv[1]}/key.pem")
    async with serve(echo, "127.0.0.1", 0, ssl=context, max_size=None) as server:
        port = server.sockets[0].getsockname()[1]
        print(f"listening on 127.0.0.1:{port}", flush=True)
        await server.serve_forever()


asyncio.run(main())
