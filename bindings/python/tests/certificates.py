"""A certificate for localhost."""

import shutil
import ssl
import subprocess

import pytest


def server_and_client_context(path):
    """Creates contexts with a new certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = path / "key.pem", path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    return server, client
