"""The wheel in an environment without anything else: set ``SINEWS_WHEEL`` to its path."""

import os
import subprocess
import sys

import pytest

WHEEL = os.environ.get("SINEWS_WHEEL")

PROGRAM = """
import asyncio
from sinews.websockets import connect, serve

async def echo(websocket):
    async for message in websocket:
        await websocket.send(message)

async def main():
    async with serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}/") as websocket:
            await websocket.send("hello")
            print(await websocket.recv())

asyncio.run(main())
"""


@pytest.mark.skipif(WHEEL is None, reason="SINEWS_WHEEL is not set")
def test_wheel_works_in_an_empty_environment(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", WHEEL]
    subprocess.run(install, check=True, timeout=120)
    command = [python, "-I", "-c", PROGRAM]
    result = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout == "hello\n"
    files = "import sinews, pathlib; print(*(p.name for p in pathlib.Path(sinews.__file__).parent.iterdir()))"
    result = subprocess.run([python, "-I", "-c", files], check=True, capture_output=True, text=True)
    assert {"py.typed", "_native.pyi"} <= set(result.stdout.split())
