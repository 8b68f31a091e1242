"""The whole server: `sinews.Server(config=…)`."""

import asyncio
import json
import urllib.request

import pytest

from sinews import Server, ServerStopped, TopicError
from sinews.websockets import InvalidStatus, connect

API_KEY = "an-api-key-of-at-least-32-bytes-for-tests"
SECRET = "a-secret-of-at-least-32-bytes-for-tests"


def url(server, path):
    return f"ws://127.0.0.1:{server.address[1]}{path}"


async def ask(client, **request):
    await client.send(json.dumps(request))
    return json.loads(await client.recv())


async def test_topics_have_history_presence_and_clients_of_all_protocols():
    config = {"history": ["chat.>=3"], "api": {"key": API_KEY}, "log": "warn"}

    def subscribe(socket):
        socket.subscribe("chat.a")
        socket.send("open")

    async with Server(config=config, port=0, path="/own", routes={"/own": lambda _: "own"}, on_open=subscribe) as server:
        async with connect(url(server, "/own")) as own, connect(url(server, "/ws")) as client:
            assert await own.recv() == "open"
            assert json.loads(await client.recv())["op"] == "welcome"
            subscribed = await ask(client, op="subscribe", id=1, topic="chat.a", presence=True)
            assert (subscribed["op"], subscribed["subscribers"]) == ("ack", 2)
            assert server.presence("chat.a") == {"subscribers": 2, "members": [], "more": False}
            server.publish("chat.a", "text")
            server.publish_json("chat.a", {"a": [1]})
            server.publish("chat.a", b"\x00\xff")
            history = await server.history("chat.a")
            assert [message["data"] for message in history] == ["text", {"a": [1]}, b"\x00\xff"]
            assert [await own.recv() for _ in range(3)] == ["text", '{"a":[1]}'.replace(":", ": "), b"\x00\xff"]
            assert [json.loads(await client.recv()).get("data") for _ in range(3)] == ["text", {"a": [1]}, None]
            assert await server.history("chat.a", last=1) == history[2:]
            assert await server.history("chat.a", after=(history[0]["epoch"], 1)) == history[1:]

            def publish():
                body = json.dumps({"topic": "chat.a", "data": "from HTTP"}).encode()
                target = f"http://127.0.0.1:{server.address[1]}/api/v1/publish"
                request = urllib.request.Request(target, body, {"Authorization": f"Bearer {API_KEY}"})
                with urllib.request.urlopen(request, timeout=30) as response:
                    return json.loads(response.read())["subscribers"]

            assert await asyncio.get_running_loop().run_in_executor(None, publish) == 2
            assert await own.recv() == "from HTTP"
            with pytest.raises(TopicError, match="other has no history") as failed:
                await server.history("other")
            assert failed.value.status == 410
    with pytest.raises(ServerStopped):
        await server.history("chat.a")


async def test_streams_keep_records_over_a_restart(tmp_path):
    config = {"streams": {"directory": str(tmp_path), "durable_topics": ["a.>"], "max_streams": 1}, "log": "off"}
    failed = asyncio.get_running_loop().create_future()
    async with Server(config=config, port=0, on_error=lambda error, _: failed.set_result(error)) as server:
        for number in range(10):
            assert server.publish("a.b", str(number))
        server.publish("a.c", "beyond max_streams")
        error = await asyncio.wait_for(failed, 60)
        assert isinstance(error, TopicError) and error.status == 429
    async with Server(config=config, port=0) as server:
        assert [message["data"] for message in await server.history("a.b")] == [str(number) for number in range(10)]


async def test_tokens_are_required_and_errors_name_settings(tmp_path):
    file = tmp_path / "sinews.toml"
    file.write_text(f'listen = "127.0.0.1:0"\nlog = "error"\n[auth]\nsecret = "{SECRET}"\n')
    async with Server(config=file) as server:
        with pytest.raises(InvalidStatus, match="401"):
            await connect(url(server, "/ws?token=no"))
        async with connect(url(server, "/ws")) as client:
            await client.recv()
            assert (await ask(client, op="subscribe", id=1, topic="news"))["code"] == 401
        with pytest.raises(ValueError, match="^topic: "):
            server.publish("a.*", "")
        with pytest.raises(ValueError, match="last must be an int"):
            await server.history("a", last=0)
    file.write_text('\nmax_message = "no"\n')
    for config, message in [
        (file, r"sinews\.toml:2: max_message must be .*, not \"no\""),
        ({"histroy": []}, "config: unknown key histroy; did you mean history"),
        ({"threads": 2}, "config: threads: 2 threads are not possible"),
    ]:
        with pytest.raises(ValueError, match=message):
            await Server(config=config, port=0).start()
    with pytest.raises(TypeError, match="config must be a path or a mapping"):
        Server(config=7)
    async with Server() as plain:
        for call in [lambda: plain.presence("a"), lambda: plain.publish_json("a", 1)]:
            with pytest.raises(ValueError, match="without config"):
                call()
