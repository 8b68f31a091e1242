"""Tests the tutorial: `SINEWS=path/to/sinews python3 test.py`. Prints `ok NAME` or `FAIL NAME: why` for each check."""

import contextlib
import hashlib
import hmac
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import requests
import websocket

HERE = os.path.dirname(os.path.abspath(__file__))
API_KEY = "an-API-key-of-the-tests-32-bytes-long"
HOOK_KEY = "a key for hooks of the tests, 32 bytes long"


def free_port():
    """A port that nothing listens on, below those that the system gives to connections."""
    for port in range(4_900, 5_000):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    sys.exit("no port from 4900 to 4999 is free")


def start(command, env, ready):
    """Starts a program, and waits for a line that matches `ready`. Returns the program and the match."""
    program = subprocess.Popen(command, cwd=HERE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = ""
    for line in program.stdout:
        output += line
        match = re.search(ready, line)
        if match:
            return program, match
    raise RuntimeError(f"{command} exited with {program.wait()}: {output}")


class Page:
    """The same as the script of the page: a WebSocket with the browser's cookies, and one subscription."""

    def __init__(self, server, cookies, user):
        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
        url = f"ws://127.0.0.1:{server}/ws"
        # As a browser does, it sends the origin of the page.
        self.socket = websocket.create_connection(url, timeout=60, cookie=cookie, origin=ORIGIN)
        self.first = self.read()
        if self.first.get("op") != "welcome":
            return
        self.send({"op": "subscribe", "id": 1, "topic": f"notifications.{user}", "last": 10})
        self.answer = self.read()

    def send(self, message):
        self.socket.send(json.dumps(message))

    def read(self):
        """The next message, or the code and the reason with which the server closes."""
        opcode, data = self.socket.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            return {"closed": int.from_bytes(data[:2], "big"), "reason": data[2:].decode()}
        return json.loads(data)


def login(site, user):
    browser = requests.Session()
    response = browser.post(f"{site}/login", data={"user": user})
    assert response.status_code == 200, response
    assert f'subscribe("notifications.{user}"' in response.text, response.text
    return browser


def all_pages_of_a_user(site, server):
    anna, ben = login(site, "anna"), login(site, "ben")
    pages = [Page(server, anna.cookies, "anna") for _ in range(2)]
    other = Page(server, ben.cookies, "ben")
    for number, user in [(7, "anna"), (8, "ben")]:
        assert anna.post(f"{site}/orders/{number}/ship", data={"user": user}).status_code == 200
    for page, number in [(pages[0], 7), (pages[1], 7), (other, 8)]:
        data = page.read()["data"]
        assert data == {"title": "On its way", "text": f"Order {number} was shipped."}, data


def late_page(site, server):
    carl = login(site, "carl")
    for number in [1, 2, 2]:
        assert carl.post(f"{site}/orders/{number}/ship", data={"user": "carl"}).status_code == 200
    page = Page(server, carl.cookies, "carl")
    assert page.answer["replayed"] == 2, page.answer
    assert [page.read()["data"]["text"] for _ in range(2)] == [f"Order {number} was shipped." for number in [1, 2]]


def without_login(site, server):
    first = Page(server, {}, "anna").first
    assert first == {"closed": 4401, "reason": "log in first"}, first


def other_users_topic(site, server):
    page = Page(server, login(site, "ben").cookies, "anna")
    assert page.answer["code"] == 403, page.answer
    page.send({"op": "publish", "id": 2, "topic": "notifications.ben", "data": "forged"})
    answer = page.read()
    assert answer["code"] == 403, answer


def forged_hook(site, server):
    body = {"hook": "connect", "connection": "1-1", "path": "/ws"}
    assert login(site, "ben").post(f"{site}/hooks/connect", json=body).status_code == 403


def django_view(site, server):
    from django.conf import settings
    from django.test import RequestFactory

    os.environ["SINEWS_HOOKS_SIGNING_KEY"] = HOOK_KEY
    settings.configure(ALLOWED_HOSTS=["*"])
    from django_view import connect_hook

    body = b'{"hook":"connect"}'

    def answer(user, key=HOOK_KEY):
        now = str(int(time.time()))
        digest = hmac.new(key.encode(), now.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers = {"Sinews-Signature": f"t={now},v1={digest}"}
        request = RequestFactory().post("/hooks/connect", body, content_type="application/json", headers=headers)
        request.user = user
        return connect_hook(request)

    anna, guest = SimpleNamespace(is_authenticated=True, pk=7), SimpleNamespace(is_authenticated=False)
    assert json.loads(answer(anna).content) == {"claims": {"sub": "7", "subscribe": ["notifications.7"]}}
    assert json.loads(answer(guest).content)["reject"]["code"] == 4401
    assert answer(anna, key="another key").status_code == 403


CHECKS = {
    "flask: a notification reaches all pages of its user": all_pages_of_a_user,
    "flask: a page that opens later gets the last notifications, each once": late_page,
    "flask: the hook rejects a page without a login": without_login,
    "flask: a user neither reads notifications of another user nor publishes": other_users_topic,
    "flask: a hook without the server's signature is rejected": forged_hook,
    "django: the view answers hooks of the server by the login": django_view,
}

port = free_port()
ORIGIN = f"http://127.0.0.1:{port}"
with tempfile.TemporaryDirectory() as folder:
    config = os.path.join(folder, "sinews.toml")
    with open(os.path.join(HERE, "sinews.toml"), encoding="utf-8") as file, open(config, "w", encoding="utf-8") as copy:
        copy.write(file.read().replace(":5000", f":{port}"))
    own = {name: value for name, value in os.environ.items() if not name.startswith("SINEWS") or name == "SINEWS_BACKEND"}
    keys = {"SINEWS_API_KEY": API_KEY, "SINEWS_HOOKS_SIGNING_KEY": HOOK_KEY}
    programs = []
    failed = False
    try:
        command = [os.environ.get("SINEWS", "sinews"), "serve", "--config", config, "--listen", "127.0.0.1:0", "--threads", "1"]
        program, match = start(command, own | keys, r"http://127\.0\.0\.1:(\d+)/")
        programs.append(program)
        server = int(match[1])
        env = own | keys | {"REALTIME_URL": f"http://127.0.0.1:{server}", "SECRET_KEY": "a secret of the tests"}
        command = [sys.executable, "-m", "flask", "--app", "app", "run", "--port", str(port)]
        programs.append(start(command, env, "Running on")[0])
        for name, check in CHECKS.items():
            try:
                check(ORIGIN, server)
                print(f"ok {name}")
            except Exception as error:  # pylint: disable=broad-except
                failed = True
                print(f"FAIL {name}: {error!r}")
    finally:
        for program in programs:
            program.kill()
            program.wait()
sys.exit(1 if failed else 0)
