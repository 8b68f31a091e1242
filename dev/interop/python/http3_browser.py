"""Chromium loads the page of `sinews serve` over HTTP/3: http3_browser.py HOST:PORT CERTIFICATE.

Prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why` for each check.
"""

import base64
import hashlib
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.request

from cryptography import x509
from cryptography.hazmat.primitives import serialization

ATTEMPTS = 3


def connections(address):
    """The number of connections over HTTP/3, read over HTTP/1.1; and the announcement of that answer."""
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(f"https://{address}/metrics", context=context, timeout=60) as answer:
        text = answer.read().decode()
        count = int(re.search(r"^sinews_http3_connections_total (\d+)", text, re.MULTILINE)[1])
        return count, answer.headers["alt-svc"]


def main(address, certificate):
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("skipped page: no chromium here")
        return
    port = address.rpartition(":")[2]
    key = x509.load_pem_x509_certificate(pathlib.Path(certificate).read_bytes()).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).digest()
    before, announced = connections(address)
    print("ok announcement" if announced == f'h3=":{port}"; ma=86400' else f"FAIL announcement: {announced}")
    # A browser abandons a handshake of QUIC after a few seconds, which a machine may stall: the page is opened again.
    for _ in range(ATTEMPTS):
        browser = open_page(chromium, port, digest)
        has_page = "<title>Sinews</title>" in browser.stdout
        if has_page:
            break
    print("ok page" if has_page else f"FAIL page: {browser.stdout[:200]} {browser.stderr[-300:]}")
    after, _ = connections(address)
    print("ok metric" if after > before else f"FAIL metric: {after} connections over HTTP/3")


def open_page(chromium, port, digest):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = (
            chromium,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            f"--origin-to-force-quic-on=localhost:{port}",
            f"--ignore-certificate-errors-spki-list={base64.b64encode(digest).decode()}",
            "--host-resolver-rules=MAP localhost 127.0.0.1",
            "--dump-dom",
            f"https://localhost:{port}/",
        )
        return subprocess.run(arguments, capture_output=True, text=True, timeout=180)


main(*sys.argv[1:])
