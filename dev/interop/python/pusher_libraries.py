"""Unmodified Python libraries of the Pusher protocol against the server: pusher_libraries.py BASE LIMITED

`pusher` is the server library, `pysher` a client. Each check prints `ok NAME` or `FAIL NAME: why`.
"""

import json
import os
import queue
import sys
import time
import traceback
from urllib.parse import urlsplit

import pusher
import pysher

BASE = urlsplit(sys.argv[1])
KEY, SECRET = "278d425bdf160c739803", "7ad3773142a6692b25b8"
LIMIT_SECONDS = 60


def expect(actual, wanted, what):
    if actual != wanted:
        raise AssertionError(f"{what} is {actual!r:.60}, not {wanted!r:.60}")


def server():
    return pusher.Pusher(app_id="3", key=KEY, secret=SECRET, host=BASE.hostname, port=BASE.port, ssl=False)


def client(**options):
    """A connected client."""
    connected = queue.Queue()
    made = pysher.Pusher(
        KEY, secret=SECRET, custom_host=BASE.hostname, port=BASE.port, secure=False, daemon=True, **options
    )
    made.connection.bind("pusher:connection_established", connected.put)
    made.connect()
    connected.get(timeout=LIMIT_SECONDS)
    return made


def subscribe(made, name, *events):
    """Subscribes; returns a queue for each event."""
    channel = made.subscribe(name)
    queues = []
    for event in events:
        queues.append(queue.Queue())
        channel.bind(event, queues[-1].put)
    # pysher may handle the answer before a callback for it can be bound, so the server is asked.
    end = time.monotonic() + LIMIT_SECONDS
    while not server().channel_info(name)["occupied"]:
        if time.monotonic() > end:
            raise AssertionError(f"no subscription to {name}")
    return queues


def trigger_reaches_a_client():
    made = client()
    (events,) = subscribe(made, "python-public", "news")
    expect(server().trigger("python-public", "news", {"text": "ü"}), {}, "the answer")
    expect(events.get(timeout=LIMIT_SECONDS), '{"text": "ü"}', "the data")


def private_and_presence_channels():
    made = client(user_data={"user_id": "1", "user_info": {"name": "A"}})
    (events,) = subscribe(made, "private-python", "news")
    server().trigger(["private-python"], "news", "text")
    expect(events.get(timeout=LIMIT_SECONDS), "text", "the data")
    subscribe(made, "presence-python")
    expect(server().users_info("presence-python"), {"users": [{"id": "1"}]}, "the users")
    expect(server().channel_info("presence-python", ["user_count"]), {"occupied": True, "user_count": 1}, "the channel")
    listed = server().channels_info("presence-py", ["user_count"])
    expect(listed, {"channels": {"presence-python": {"user_count": 1}}}, "the channels")


def batch_of_events():
    made = client()
    (events,) = subscribe(made, "python-batch", "news")
    batch = [{"channel": "python-batch", "name": "news", "data": str(number)} for number in range(3)]
    expect(server().trigger_batch(batch), {}, "the answer")
    expect([events.get(timeout=LIMIT_SECONDS) for _ in range(3)], ["0", "1", "2"], "the events")


def signed_in(user):
    """A client of a user, and queues of the user's events and of errors. The client has no call for a sign-in."""
    made = client()
    answers, events, errors = queue.Queue(), queue.Queue(), queue.Queue()
    made.connection.bind("pusher:signin_success", answers.put)
    made.connection.bind("pusher:error", errors.put)
    made.connection.send_event("pusher:signin", server().authenticate_user(made.connection.socket_id, {"id": user}))
    expect(json.loads(answers.get(timeout=LIMIT_SECONDS)["user_data"]), {"id": user}, "the user")
    made.subscribe(f"#server-to-user-{user}", auth="").bind("news", events.put)
    return made, events, errors


def events_and_termination_of_users():
    _, events, errors = signed_in("python")
    _, other_events, _ = signed_in("other")

    def send_until_received(user, queue_of_user):
        # The client does not tell when it has subscribed.
        end = time.monotonic() + LIMIT_SECONDS
        while queue_of_user.empty() and time.monotonic() < end:
            expect(server().send_to_user(user, "news", {"to": user}), {}, "the answer")
        expect(queue_of_user.get(timeout=1), '{"to": "%s"}' % user, "the data")

    send_until_received("python", events)
    expect(server().terminate_user_connections("python"), {}, "the answer")
    expect(errors.get(timeout=LIMIT_SECONDS)["code"], 4009, "the code")
    send_until_received("other", other_events)


def signature_is_checked():
    wrong = pusher.Pusher(app_id="3", key=KEY, secret="wrong", host=BASE.hostname, port=BASE.port, ssl=False)
    try:
        wrong.trigger("a", "b", {})
    except pusher.errors.PusherBadAuth:
        return
    raise AssertionError("accepted")


FAILED = False
for check in [
    trigger_reaches_a_client, private_and_presence_channels, batch_of_events, events_and_termination_of_users,
    signature_is_checked,
]:
    name = check.__name__.replace("_", " ")
    try:
        check()
        print(f"ok {name}", flush=True)
    except Exception as error:
        FAILED = True
        print(f"FAIL {name}: {error!r}", flush=True)
        traceback.print_exc()
sys.stdout.flush()
# A client that disconnects may wait for its own thread for ever.
os._exit(FAILED)
