"""Firefox without changes at `sinews serve` over TLS: firefox.py HOST:PORT DIRECTORY

The directory has the certificate of the server. Prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why` for each check.

The start page of the server runs the scripts, which WebDriver BiDi evaluates, so that they have its origin and its Content Security
Policy. Firefox has its default settings, except that the session accepts the certificate, which no authority has signed. A second
run switches on HTTP/3 for such certificates; the announcement `Alt-Svc` of the server leads Firefox to it.
"""

import asyncio
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from websockets.asyncio.client import connect

import webtransport

LIMIT_SECONDS = 60

# Firefox speaks no HTTP/3 with servers whose certificate no built-in authority has signed, unless this is false.
HTTP3_PREFERENCE = 'user_pref("network.http.http3.disable_when_third_party_roots_found", false);\n'

# The functions that the checks share. A check fails if its function throws.
SCRIPT = """
const SOCKETS = 8, checks = {};
const expect = (actual, wanted, what) => {
  if (actual !== wanted) throw new Error(`${what} is ${actual}, not ${wanted}`);
};
async function metric(name) {
  const text = await (await fetch('/metrics', { cache: 'no-store' })).text();
  return Number(text.match(new RegExp(`^sinews_${name} (\\\\d+)`, 'm'))[1]);
}
const protocolOfPage = () => performance.getEntriesByType('navigation')[0].nextHopProtocol;
const open = (path) => new Promise((resolve, reject) => {
  const socket = new WebSocket(`wss://${location.host}${path}`);
  socket.onopen = () => resolve(socket);
  socket.onclose = ({ code }) => reject(new Error(`the WebSocket is closed with ${code}`));
});
const event = (socket, name) => new Promise((resolve) => { socket[`on${name}`] = resolve; });
async function echo(socket, message) {
  const answer = event(socket, 'message');
  socket.send(message);
  expect((await answer).data === message, true, 'the echo');
}
// The numbers of connections and WebSockets over HTTP/2 that `action` opens.
async function opened(action) {
  const numbers = async () => [await metric('http2_connections_total'), await metric('http2_websockets_total')];
  const before = await numbers();
  await action();
  const after = await numbers();
  return after.map((number, index) => number - before[index]);
}
async function run() {
  const results = [];
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      results.push(`ok ${name}`);
    } catch (error) {
      results.push(`FAIL ${name}: ${error.name} ${error.message}`);
    }
  }
  return results;
}
"""

HTTP2_SCRIPT = SCRIPT + """
checks['page over HTTP/2'] = async () => expect(protocolOfPage(), 'h2', 'the protocol');
checks['WebSockets on the connection of the page'] = async () => {
  let sockets;
  const [connections, websockets] = await opened(async () => {
    sockets = await Promise.all(Array.from({ length: SOCKETS }, () => open('/echo')));
  });
  expect(websockets, SOCKETS, 'the number of WebSockets over HTTP/2');
  expect(connections, 0, 'the number of further connections');
  for (const socket of sockets) expect(socket.extensions, 'permessage-deflate', 'the extension');
  await Promise.all(sockets.map((socket, number) => echo(socket, `Grüße ${number}`)));
  await Promise.all(sockets.map((socket, number) => echo(socket, String(number).repeat(300000))));
  const closed = sockets.map((socket) => event(socket, 'close'));
  sockets.forEach((socket, number) => socket.close(4000 + number));
  for (const [number, { code, wasClean }] of (await Promise.all(closed)).entries()) {
    expect(`${code} ${wasClean}`, `${4000 + number} true`, 'the close code');
  }
};
checks['close code of the server'] = async () => {
  const { code } = await event(await open('/topics/a%00b'), 'close');
  expect(code, 4400, 'the code');
};
checks['sinews.js: publish, subscribe and presence'] = async () => {
  const { connect } = await import('/sinews.js');
  const [connections, websockets] = await opened(async () => {
    const [anna, ben] = [connect(), connect()];
    const message = new Promise((resolve) => {
      anna.subscribe('firefox', ({ data }) => resolve(data)).ready.then(() => ben.publish('firefox', { text: 'hello' }));
    });
    expect((await message).text, 'hello', 'the message');
    await ben.join('firefox', { id: 'ben' });
    expect((await anna.members('firefox')).map(({ id }) => id).join(), 'ben', 'the members');
    await ben.leave('firefox');
    expect((await anna.members('firefox')).length, 0, 'the number of members');
    anna.close();
    ben.close();
  });
  expect(`${websockets} ${connections}`, '2 0', 'the numbers of WebSockets and further connections');
};
run()
"""

HTTP3_SCRIPT = SCRIPT + """
checks['page over HTTP/3'] = async () => {
  expect(protocolOfPage(), 'h3', 'the protocol');
  expect(await metric('http3_connections_total') > 0, true, 'a connection over HTTP/3');
};
checks['WebSockets beside HTTP/3 share one connection of HTTP/2'] = async () => {
  const sockets = [];
  const [connections, websockets] = await opened(async () => {
    for (let number = 0; number < SOCKETS; number++) sockets.push(await open('/echo'));
  });
  await Promise.all(sockets.map((socket, number) => echo(socket, `Grüße ${number}`)));
  expect(websockets, SOCKETS, 'the number of WebSockets over HTTP/2');
  expect(connections <= 1, true, 'at most one connection');
  for (const socket of sockets) socket.close();
};
run()
"""


class Browser:
    """A session of WebDriver BiDi."""

    def __init__(self, socket):
        self.socket, self.number, self.context = socket, 0, None

    async def call(self, method, **params):
        self.number += 1
        await self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            answer = json.loads(await asyncio.wait_for(self.socket.recv(), LIMIT_SECONDS))
            if answer.get("id") == self.number:
                break
        if answer["type"] == "error":
            raise RuntimeError(f"{method}: {answer['error']}: {answer['message']}")
        return answer["result"]

    async def load(self, url):
        if self.context is None:
            self.context = (await self.call("browsingContext.getTree"))["contexts"][0]["context"]
        await self.call("browsingContext.navigate", context=self.context, url=url, wait="complete")

    async def evaluate(self, script):
        """Returns the value of the script as JSON."""
        target = {"context": self.context}
        result = await self.call("script.evaluate", expression=script, target=target, awaitPromise=True)
        if result["type"] == "exception":
            raise RuntimeError(result["exceptionDetails"]["text"])
        value = result["result"]
        return [item["value"] for item in value["value"]] if value["type"] == "array" else value["value"]


@contextlib.asynccontextmanager
async def start(program, preferences):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        (pathlib.Path(profile) / "user.js").write_text(preferences)
        arguments = ["--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"]
        process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = await asyncio.wait_for(listen_address(pathlib.Path(profile)), LIMIT_SECONDS)
            async with connect(f"ws://{address}/session", max_size=None, ping_interval=None) as socket:
                browser = Browser(socket)
                await browser.call("session.new", capabilities={"alwaysMatch": {"acceptInsecureCerts": True}})
                yield browser
        finally:
            webtransport.end(process)


async def listen_address(profile):
    """Firefox writes it into its profile."""
    while True:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found = json.loads((profile / "WebDriverBiDiServer.json").read_text())
            return f"{found['ws_host']}:{found['ws_port']}"
        await asyncio.sleep(0.1)


async def check_defaults(program, address, directory):
    async with start(program, "") as browser:
        await browser.load(f"https://{address}/")
        results = await browser.evaluate(HTTP2_SCRIPT)
        seen = await browser.evaluate(webtransport.fill(webtransport.SERVE_SCRIPT + "sessions()", address, directory))
    results.append(f"skipped WebTransport: {webtransport.CODE_OF_STREAM}: Firefox reports 0 for each code")
    for name in webtransport.SERVE_CHECKS:
        if name == webtransport.CODE_OF_STREAM:
            continue
        results.append(f"ok WebTransport: {name}" if name in seen else f"FAIL WebTransport: {name}: Firefox reports {seen}")
    return results


async def check_http3(program, address):
    async with start(program, HTTP3_PREFERENCE) as browser:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(load_over_http3(browser, address), LIMIT_SECONDS)
        return await browser.evaluate(HTTP3_SCRIPT)


async def load_over_http3(browser, address):
    """Firefox loads the first page over TCP, and connects to the announced address beside it."""
    protocol = None
    while protocol != "h3":
        await browser.load(f"https://{address}/")
        protocol = await browser.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol")


async def main(address, directory):
    program = next(filter(None, map(shutil.which, ("firefox", "firefox-esr"))), None)
    if program is None:
        print("skipped firefox: no firefox here (apt-get install firefox-esr)")
        return
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    print(version.stdout.strip())
    print("\n".join(await check_defaults(program, address, pathlib.Path(directory))))
    print("\n".join(await check_http3(program, address)))


asyncio.run(main(*sys.argv[1:]))
