"""A link as slow as that of a phone, between a page and a server of this machine:

    link.py PORT     prints `listening on PORT`, and `upgrade` for each request for a WebSocket

It passes RATE bytes a second on to its clients, over all connections together. Node.js cannot set the options of its sockets.
"""

import re
import socket
import sys
import threading
import time

# Bytes a second: 64 kbit/s. One message for each change takes more without compression, which the link does not offer. So a
# page that gets each change never catches up with those during the snapshot.
RATE = 8_000
# Bytes that the link takes before it is full.
LINK_BUFFER = 8_192
# Bytes of a segment. Those of the loopback interface would be larger than the buffer: the window would stay closed.
SEGMENT = 1_400

turn = threading.Lock()


def connect(port):
    far = socket.socket()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LINK_BUFFER)
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    far.connect(("127.0.0.1", port))
    return far


def upload(near, far):
    while data := near.recv(16 << 10):
        if re.search(rb"\r\nupgrade: websocket\r\n", data, re.IGNORECASE):
            print("upgrade", flush=True)
            # The server knows no header of this name: it does not compress.
            data = data.replace(b"Sec-WebSocket-Extensions:", b"X-Removed:")
        far.sendall(data)
    far.shutdown(socket.SHUT_WR)


def download(far, near):
    while data := far.recv(RATE // 20):
        with turn:
            near.sendall(data)
            # The time that the link takes.
            time.sleep(len(data) / RATE)
    near.shutdown(socket.SHUT_WR)


def copy(direction, source, sink):
    try:
        direction(source, sink)
    except OSError:
        # The other side may have gone.
        pass


listener = socket.create_server(("127.0.0.1", 0))
print(f"listening on {listener.getsockname()[1]}", flush=True)
while True:
    near = listener.accept()[0]
    far = connect(int(sys.argv[1]))
    threading.Thread(target=copy, args=(upload, near, far), daemon=True).start()
    threading.Thread(target=copy, args=(download, far, near), daemon=True).start()
