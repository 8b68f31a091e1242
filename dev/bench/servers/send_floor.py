"""The limit of a fan-out: CPU time of one send over loopback TCP, without a server: send_floor.py SOCKETS [ROUNDS]

A process on processor 0 sends 110 bytes to each of some sockets, as a delivery of measure.mjs has, with one call for each socket.
Its peer on processor 1 receives them. The next round begins when all bytes have arrived.
"""

import os
import resource
import select
import socket
import sys

SIZE = 110
SOCKETS = int(sys.argv[1])
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000 // SOCKETS


def receive(address, done):
    """Connects, receives, and writes a byte for each complete round."""
    os.sched_setaffinity(0, {1})
    sockets = {}
    events = select.epoll()
    for _ in range(SOCKETS):
        connected = socket.create_connection(address)
        sockets[connected.fileno()] = connected
        events.register(connected, select.EPOLLIN)
    missing = SOCKETS * SIZE
    while True:
        for number, _ in events.poll():
            received = len(sockets[number].recv(65536))
            if received == 0:
                return
            missing -= received
        if missing == 0:
            missing = SOCKETS * SIZE
            os.write(done, b"x")


def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
read, write = os.pipe()
if os.fork() == 0:
    receive(listener.getsockname(), write)
    os._exit(0)
accepted = [listener.accept()[0] for _ in range(SOCKETS)]
os.sched_setaffinity(0, {0})
for one in accepted:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
sends = [one.send for one in accepted]
payload = bytes(SIZE)


def run(rounds):
    for _ in range(rounds):
        for send in sends:
            send(payload)
        os.read(read, 1)


run(20)
before = spent()
run(ROUNDS)
print(f"{SOCKETS} sockets: {(spent() - before) * 1e6 / ROUNDS / SOCKETS:.2f} µs for a send")
