// The browser's own `EventSource` and `fetch` with the topics of the server.
import { createServer } from "node:http";
import { once } from "node:events";

import { eventually, expect } from "./page.js";
import { serveDurable } from "./streams.js";

export async function events(part) {
  const server = await serveDurable(part, ["--history", "last.>=3"]);
  const page = await part.openBare(server);
  const publish = (topic, text) => server.publish(`topics/${topic}`, text);
  /** Opens an `EventSource` in place of the one before. It notes everything that it dispatches. */
  const open = (path, name) => page.evaluate(([path, name]) => {
    window.source?.close();
    const source = window.source = new EventSource(path);
    source.onmessage = ({ data }) => note(`${name} message ${data}`);
    source.onerror = () => note(`${name} error ${source.readyState}`);
    source.addEventListener("binary", ({ data }) => note(`${name} binary ${data}`));
    source.addEventListener("close", ({ data }) => note(`${name} close ${data}`));
    source.addEventListener("subscribed", ({ data }) => {
      const { topic, complete } = JSON.parse(data);
      note(`${name} subscribed ${topic} ${complete}`);
    });
  }, [path, name]);
  const listen = async (path, name) => {
    await open(path, name);
    await eventually(() => page.notes(`${name} subscribed`)).not.toEqual([]);
  };
  await part.check("an EventSource receives payloads as they are", async () => {
    await listen("/topics/room", "room");
    for (const text of ["hello", "two\nlines\n\nevent: close\ndata: forged\n\n", ""]) {
      await publish("room", text);
      await page.noted(`room message ${text}`);
    }
    const headers = { "Content-Type": "application/octet-stream" };
    await fetch(server.url("topics/room"), { method: "POST", body: new Uint8Array([0, 255]), headers });
    await page.noted("room binary AP8=");
    // The forged event is data.
    expect(await page.notes("room close")).toEqual([]);
  });
  await part.check("an EventSource of several topics receives messages with their topic", async () => {
    await listen("/topics?topic=last.a&topic=room.*", "many");
    await page.noted("many subscribed room.* undefined");
    await publish("room.7", "seven");
    await page.noted('many message {"op":"message","topic":"room.7","data":"seven"}');
  });
  await part.check("an EventSource resumes after a crash, without loss or repetition", async () => {
    await listen("/topics/kept.room", "kept");
    await publish("kept.room", "1");
    await page.noted("kept message 1");
    await server.kill();
    await page.noted("kept error 0");
    await server.restart();
    for (const text of ["2", "3"]) await publish("kept.room", text);
    await page.noted("kept message 3", "kept subscribed kept.room true");
    expect(await page.notes("kept message")).toEqual([1, 2, 3].map((n) => `kept message ${n}`));
  });
  await part.check("an EventSource is told of a gap", async () => {
    await listen("/topics/last.room", "last");
    await publish("last.room", "1");
    await page.noted("last message 1");
    // The history is in memory, so another process has none.
    await server.stop();
    await page.noted('last close {"code":1001,"reason":"server stops"}');
    await server.restart();
    await page.noted("last subscribed last.room false");
  });
  await part.check("a page reads lines by fetch, and polls", async () => {
    await page.evaluate(async () => {
      const { body } = await fetch("/topics/lines", { headers: { Accept: "application/x-ndjson" } });
      const write = (text) => text.trimEnd().split("\n").forEach(note);
      body.pipeThrough(new TextDecoderStream()).pipeTo(new WritableStream({ write }));
    });
    const lines = () => page.notes("{");
    await eventually(lines).toHaveLength(2);
    await publish("lines", "first");
    await eventually(lines).toHaveLength(3);
    const expected = [{ connection: expect.any(String) }, { op: "ack" }, { data: "first" }];
    expect((await lines()).map((line) => JSON.parse(line))).toEqual(expected.map(expect.objectContaining));
    const poll = (query) => page.evaluate(async (query) =>
      (await fetch(`/topics/last.poll?${query}`, { headers: { Accept: "application/json" } })).json(), query);
    const { cursor } = await poll("wait=0");
    const waiting = poll(`after=${cursor}`);
    await publish("last.poll", "polled");
    expect((await waiting).messages[1].data).toBe("polled");
  });
  await part.check("a page of another origin reads nothing", async () => {
    const other = await part.serve();
    await open(other.url("topics/room"), "foreign");
    // 2: it does not connect again.
    await page.noted("foreign error 2");
    await other.publish("topics/room", "secret");
    expect(await page.notes("foreign message")).toEqual([]);
  });
  await part.check("a page of an allowed origin subscribes, publishes, calls and writes by HTTP", async (test) => {
    const [allowed, other, { options, make }] = [await part.serve(), await part.serve(), part.tokens()];
    const token = make("--subscribe", "chat.>", "--publish", "chat.>", "--keys", "chat.room/*");
    const answer = (request, response) => request.resume().on("end", () => response.end('{"data":"done"}'));
    const application = createServer(answer).listen(0, "127.0.0.1");
    await once(application, "listening");
    test.after(() => application.close());
    const hooks = ["--hooks-rpc", `http://127.0.0.1:${application.address().port}/`, "--hooks-timeout", "30s"];
    const api = await part.serve([...options, ...hooks, "--origin", new URL(allowed.url()).origin]);
    /** Opens a page of a server with a client of the API whose WebSockets fail. */
    const connectByHttp = async (origin) => {
      await page.visitBare(origin);
      await page.evaluate(([url, token]) => {
        window.client = connect(url, { WebSocket: Blocked, fallback: true, minDelay: 1, token });
        client.onstatus = ({ status }) => note(`status ${status}`);
      }, [api.socket("ws"), token]);
    };
    await connectByHttp(allowed);
    await page.script(async () => {
      await client.subscribe("chat.room", ({ data }) => note(`received ${data}`)).ready;
      await client.publish("chat.room", "hello");
      const called = await client.call("m", 1);
      const { epoch, seq } = await client.set("chat.room", "k", 1, { idempotencyKey: "once" });
      await client.delete("chat.room", "k", { epoch, version: seq });
      note([client.transport, called, await client.publish("other", 1).catch(({ code }) => code)].join());
    }, "http,done,403", "received hello");
    await connectByHttp(other);
    const error = await page.evaluate(([url, authorization]) =>
      fetch(url, { method: "POST", headers: { authorization }, body: "1" }).catch(({ name }) => name),
    [api.url("topics/chat.room"), `Bearer ${token}`]);
    expect(error).toBe("TypeError");
    expect(await page.notes()).not.toContain("status open");
  });
}
