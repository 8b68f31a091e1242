"""WebTransport of Chromium against a server of HTTP/3 that echoes streams and datagrams.

    webtransport.py certificate DIRECTORY      writes certificate.pem and key.pem, as short-lived as Chromium demands
    webtransport.py check HOST:PORT DIRECTORY  prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`
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


def check(address, directory):
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("skipped chromium: no chromium here")
        return 0
    der = ssl.PEM_cert_to_DER_cert((directory / "certificate.pem").read_text())
    page = PAGE.replace("HASH", base64.b64encode(hashlib.sha256(der).digest()).decode())
    page = page.replace("ADDRESS", address).encode()
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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command = [chromium, *arguments, f"http://localhost:{server.server_port}/"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        done.wait(60)
        browser.terminate()
        browser.wait(10)
    for name in CHECKS:
        print(f"ok {name}" if name in seen else f"FAIL {name}: the page reports {seen}")
    return 0 if all(name in seen for name in CHECKS) else 1


if __name__ == "__main__":
    if sys.argv[1] == "certificate":
        certificate(pathlib.Path(sys.argv[2]))
    else:
        sys.exit(check(sys.argv[2], pathlib.Path(sys.argv[3])))
