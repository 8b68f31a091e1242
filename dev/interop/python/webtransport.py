"""WebTransport of Chromium:

    webtransport.py certificate DIRECTORY      writes certificate.pem and key.pem, as short-lived as Chromium demands
    webtransport.py check HOST:PORT DIRECTORY  the server echoes streams and datagrams
    webtransport.py serve HOST:PORT DIRECTORY  the server is `sinews serve`, and accepts pages of any origin

The last two print `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.
"""

import base64
import datetime
import hashlib
import http.server
import ipaddress
import json
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading

# Seconds for a page, and for the end of a browser.
LIMIT = 60
# A browser abandons a handshake of QUIC after a few seconds, which a machine may stall: the page is opened again.
ATTEMPTS = 3

PAGE = """<!doctype html><script>
const text = (bytes) => new TextDecoder().decode(bytes), bytes = (text) => new TextEncoder().encode(text);
async function all(readable) {
  const reader = readable.getReader(), out = [];
  for (;;) { const { value, done } = await reader.read(); if (done) return text(new Uint8Array(out)); out.push(...value); }
}
async function send(writable, data) { const writer = writable.getWriter(); await writer.write(data); await writer.close(); }
(async () => {
  const seen = [];
  try {
    const hash = Uint8Array.from(atob("HASH"), (byte) => byte.charCodeAt(0));
    const options = { serverCertificateHashes: [{ algorithm: "sha-256", value: hash }] };
    const session = new WebTransport("https://ADDRESS/session", options);
    await session.ready; seen.push("session");
    const first = await session.createBidirectionalStream();
    await send(first.writable, bytes("hello"));
    if (await all(first.readable) === "hello") seen.push("bidirectional stream");
    const second = await session.createBidirectionalStream();
    await send(second.writable, new Uint8Array(300000).fill(65));
    if ((await all(second.readable)).length === 300000) seen.push("content beyond the windows");
    await send(await session.createUnidirectionalStream(), bytes("one way"));
    const { value } = await session.incomingUnidirectionalStreams.getReader().read();
    if (await all(value) === "one way") seen.push("unidirectional streams");
    const writer = session.datagrams.writable.getWriter(), reader = session.datagrams.readable.getReader();
    for (let number = 0; number < 5; number++) await writer.write(bytes("datagram"));
    if (text((await reader.read()).value) === "datagram") seen.push("datagrams");
    session.close({ closeCode: 7, reason: "bye" }); await session.closed; seen.push("close");
  } catch (error) { seen.push(`error: ${error.name} ${error.message}`); }
  await fetch("/seen", { method: "POST", body: JSON.stringify(seen) });
})();
</script>"""

CHECKS = (
    "session",
    "bidirectional stream",
    "content beyond the windows",
    "unidirectional streams",
    "datagrams",
    "close",
)


# Messages have their kind in one byte, and their length in four. `sessions()` resolves to the names of the passed checks.
SERVE_SCRIPT = """
const text = (bytes) => new TextDecoder().decode(bytes), bytes = (text) => new TextEncoder().encode(text);
const hash = Uint8Array.from(atob("HASH"), (byte) => byte.charCodeAt(0));
const options = { serverCertificateHashes: [{ algorithm: "sha-256", value: hash }] };
class Session {
  static async open(path, opensStream = false) {
    const self = new Session();
    self.transport = new WebTransport("https://ADDRESS" + path, options);
    await self.transport.ready;
    const stream = opensStream
      ? await self.transport.createBidirectionalStream()
      : (await self.transport.incomingBidirectionalStreams.getReader().read()).value;
    self.reader = stream.readable.getReader(); self.writer = stream.writable.getWriter(); self.received = new Uint8Array();
    self.datagrams = self.transport.datagrams.readable.getReader();
    return self;
  }
  async next() {
    for (;;) {
      const length = this.received.length < 5 ? Infinity : new DataView(this.received.buffer).getUint32(1);
      if (this.received.length >= 5 + length) {
        const message = text(this.received.slice(5, 5 + length));
        this.received = this.received.slice(5 + length);
        return message;
      }
      const { value, done } = await this.reader.read();
      if (done) return null;
      this.received = new Uint8Array([...this.received, ...value]);
    }
  }
  send(message) {
    const payload = bytes(message), head = new Uint8Array(5);
    head[0] = 1; new DataView(head.buffer).setUint32(1, payload.length);
    return this.writer.write(new Uint8Array([...head, ...payload]));
  }
  async nextDatagram() { return text((await this.datagrams.read()).value.slice(1)); }
}
async function sessions() {
  const seen = [];
  try {
    const echo = await Session.open("/echo"); seen.push("session");
    await echo.send("grüße"); await echo.send("A".repeat(300000));
    if (await echo.next() === "grüße" && (await echo.next()).length === 300000) seen.push("messages");
    const reliable = await Session.open("/topics/prices"), lossy = await Session.open("/topics/prices?datagrams=true");
    await reliable.send("1");
    if (await reliable.next() === "1") seen.push("topic by a stream");
    if (await lossy.nextDatagram() === "1") seen.push("topic by datagrams");
    const writer = lossy.transport.datagrams.writable.getWriter();
    await writer.write(bytes("\\x012"));
    if (await reliable.next() === "2" && await lossy.nextDatagram() === "2") seen.push("publication by a datagram");
    const denied = await Session.open("/topics/a%00b"), close = await denied.next(); denied.writer.close();
    const { closeCode } = await denied.transport.closed;
    if (close !== null && closeCode === 4400) seen.push("close code");
    const own = await Session.open("/topics/own", true), other = await Session.open("/topics/own");
    await own.send("from the page");
    if (await own.next() === "from the page" && await other.next() === "from the page") seen.push("stream of the page");
    // Chromium sometimes reports a NetworkError without a code.
    let rejected = {};
    for (let tries = 0; tries < 20 && rejected.source !== "stream"; tries++) {
      const oneWay = (await own.transport.createUnidirectionalStream()).getWriter();
      oneWay.write(bytes("x")).catch(() => {});
      rejected = await oneWay.closed.catch((error) => error);
    }
    if (rejected.source === "stream") seen.push("rejected stream");
    if (rejected.streamErrorCode === 1003) seen.push("code of a rejected stream");
    reliable.transport.close({ closeCode: 7, reason: "bye" }); await reliable.transport.closed; seen.push("close");
  } catch (error) { seen.push(`error: ${error.name} ${error.message}`); }
  return seen;
}
"""

SERVE_PAGE = f"""<!doctype html><script>{SERVE_SCRIPT}
sessions().then((seen) => fetch("/seen", {{ method: "POST", body: JSON.stringify(seen) }}));
</script>"""

CODE_OF_STREAM = "code of a rejected stream"

SERVE_CHECKS = (
    "session",
    "messages",
    "topic by a stream",
    "topic by datagrams",
    "publication by a datagram",
    "close code",
    "stream of the page",
    "rejected stream",
    CODE_OF_STREAM,
    "close",
)


def certificate(directory):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    pkcs8 = serialization.PrivateFormat.PKCS8
    (directory / "certificate.pem").write_bytes(made.public_bytes(pem))
    (directory / "key.pem").write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def fill(page, address, directory):
    """Puts the address, and the hash of the certificate, into a page or script."""
    der = ssl.PEM_cert_to_DER_cert((directory / "certificate.pem").read_text())
    digest = base64.b64encode(hashlib.sha256(der).digest()).decode()
    return page.replace("HASH", digest).replace("ADDRESS", address)


def end(browser):
    browser.terminate()
    try:
        browser.wait(LIMIT)
    except subprocess.TimeoutExpired:
        browser.kill()
        browser.wait()


def check(address, directory, page, checks):
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("skipped chromium: no chromium here")
        return 0
    page = fill(page, address, directory).encode()
    seen, done = [], threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def do_POST(self):
            seen.extend(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()
            done.set()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in range(ATTEMPTS):
        seen.clear()
        done.clear()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
            command = [chromium, *arguments, f"http://localhost:{server.server_port}/"]
            browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            done.wait(LIMIT)
            end(browser)
        if all(name in seen for name in checks):
            break
    for name in checks:
        print(f"ok {name}" if name in seen else f"FAIL {name}: the page reports {seen}")
    return 0 if all(name in seen for name in checks) else 1


if __name__ == "__main__":
    if sys.argv[1] == "certificate":
        certificate(pathlib.Path(sys.argv[2]))
    else:
        page, checks = {"check": (PAGE, CHECKS), "serve": (SERVE_PAGE, SERVE_CHECKS)}[sys.argv[1]]
        sys.exit(check(sys.argv[2], pathlib.Path(sys.argv[3]), page, checks))
