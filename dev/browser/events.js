// The browser's own `EventSource` and `fetch` with the topics of the server.
import { createServer } from "node:http";
import { once } from "node:events";

import { serveDurable } from "./streams.js";
import { expect, noted, notes } from "./world.js";

export async function events(part) {
  const server = await serveDurable(part, ["--history", "last.>=3"]);
  // A page without script and without a policy for any.
  const page = await part.open(server.url("healthz"));
  await page.evaluate(() => {
    /** Notes everything that an `EventSource` dispatches. */
    window.listen = (path, name) => new Promise((resolve) => {
      const source = new EventSource(path);
      source.onmessage = ({ data }) => note(`${name} message ${data}`);
      for (const type of ["binary", "close"]) source.addEventListener(type, ({ data }) => note(`${name} ${type} ${data}`));
      source.addEventListener("subscribed", ({ data }) => {
        const { topic, complete } = JSON.parse(data);
        note(`${name} subscribed ${topic} ${complete}`);
        resolve(source);
      });
      source.onerror = () => note(`${name} error ${source.readyState}`);
    });
  });
  const publish = (topic, text) => server.publish(`topics/${topic}`, text);
  const listen = (path, name) => page.evaluate(async ([path, name]) => { window[name] = await listen(path, name); }, [path, name]);
  await part.check("an EventSource receives payloads as they are", async () => {
    await listen("/topics/room", "room");
    for (const text of ["hello", "two\nlines\n\nevent: close\ndata: forged\n\n", ""]) {
      await publish("room", text);
      await noted(page, `room message ${text}`);
    }
    const headers = { "Content-Type": "application/octet-stream" };
    await fetch(server.url("topics/room"), { method: "POST", body: new Uint8Array([0, 255]), headers });
    await noted(page, "room binary AP8=");
    await page.evaluate(() => room.close());
    // The forged event is data.
    expect((await notes(page)).filter((note) => note.startsWith("room close"))).toEqual([]);
  });
  await part.check("an EventSource of several topics receives messages with their topic", async () => {
    await listen("/topics?topic=last.a&topic=room.*", "many");
    await noted(page, "many subscribed room.* undefined");
    await publish("room.7", "seven");
    await noted(page, 'many message {"op":"message","topic":"room.7","data":"seven"}');
    await page.evaluate(() => many.close());
  });
  await part.check("an EventSource resumes after a crash, without loss or repetition", async () => {
    await listen("/topics/kept.room", "kept");
    await publish("kept.room", "1");
    await noted(page, "kept message 1");
    await server.kill();
    await noted(page, "kept error 0");
    await server.restart();
    await publish("kept.room", "2");
    await publish("kept.room", "3");
    await noted(page, "kept message 3", "kept subscribed kept.room true");
    expect((await notes(page)).filter((note) => note.startsWith("kept message"))).toEqual([1, 2, 3].map((n) => `kept message ${n}`));
    await page.evaluate(() => kept.close());
  });
  await part.check("an EventSource is told of a gap", async () => {
    await listen("/topics/last.room", "last");
    await publish("last.room", "1");
    await noted(page, "last message 1");
    // The history is in memory, so another process has none.
    await server.stop();
    await noted(page, 'last close {"code":1001,"reason":"server stops"}');
    await server.restart();
    await noted(page, "last subscribed last.room false");
    await page.evaluate(() => last.close());
  });
  await part.check("a page reads lines by fetch, and polls", async () => {
    const next = () => page.evaluate(async () => {
      window.reader ??= (await fetch("/topics/lines", { headers: { Accept: "application/x-ndjson" } }))
        .body.pipeThrough(new TextDecoderStream()).getReader();
      window.lines ??= [];
      while (lines.length === 0) lines.push(...(await reader.read()).value.trimEnd().split("\n"));
      return JSON.parse(lines.shift());
    });
    expect(typeof (await next()).connection).toBe("string");
    expect((await next()).op).toBe("ack");
    await publish("lines", "first");
    expect((await next()).data).toBe("first");
    await page.evaluate(() => { reader.cancel(); });
    const poll = (query) => page.evaluate(async (query) =>
      (await fetch(`/topics/last.poll?${query}`, { headers: { Accept: "application/json" } })).json(), query);
    const { cursor } = await poll("wait=0");
    const waiting = poll(`after=${cursor}`);
    await publish("last.poll", "polled");
    expect((await waiting).messages[1].data).toBe("polled");
  });
  await part.check("a page of another origin reads nothing", async () => {
    const other = await part.serve();
    await page.evaluate((url) => {
      const source = new EventSource(url);
      source.onmessage = () => note("foreign message");
      source.onerror = () => note(`foreign error ${source.readyState}`);
    }, other.url("topics/room"));
    // 2: it does not connect again.
    await noted(page, "foreign error 2");
    await other.publish("topics/room", "secret");
    expect(await notes(page)).not.toContain("foreign message");
  });
  await part.check("a page of an allowed origin subscribes, publishes, calls and writes by HTTP", async (test) => {
    const [allowed, other, { options, make }] = [await part.serve(), await part.serve(), part.tokens()];
    const token = make("--subscribe", "chat.>", "--publish", "chat.>", "--keys", "chat.room/*");
    const origin = new URL(allowed.url()).origin;
    const hooks = ["--origin", origin, "--hooks-rpc", await application(test), "--hooks-timeout", "30s"];
    const api = await part.serve([...options, ...hooks]);
    await page.goto(allowed.url("healthz"));
    await connectByHttp(page, api.socket("ws"), token);
    const results = await page.evaluate(async () => {
      await client.subscribe("chat.room", ({ data }) => note(`received ${data}`)).ready;
      await client.publish("chat.room", "hello");
      const called = await client.call("m", 1);
      const { epoch, seq } = await client.set("chat.room", "k", 1, { idempotencyKey: "once" });
      await client.delete("chat.room", "k", { epoch, version: seq });
      return [client.transport, called, await client.publish("other", 1).catch(({ code }) => code)];
    });
    expect(results).toEqual(["http", "done", 403]);
    await noted(page, "received hello");
    await page.goto(other.url("healthz"));
    await connectByHttp(page, api.socket("ws"), token);
    const error = await page.evaluate(([url, token]) =>
      fetch(url, { method: "POST", headers: { Authorization: `Bearer ${token}` }, body: "1" }).catch(({ name }) => name),
    [api.url("topics/chat.room"), token]);
    expect(error).toBe("TypeError");
    expect(await notes(page)).not.toContain("status open");
  });
}

/** In the page: a client whose WebSockets fail, with a token. */
const connectByHttp = (page, url, token) => page.evaluate(async ([url, token]) => {
  class Blocked {
    constructor() { queueMicrotask(() => this.onclose?.({ code: 1006, reason: "" })); }
    close() {}
  }
  const { connect } = await import("/sinews.js");
  window.client = connect(url, { WebSocket: Blocked, fallback: true, minDelay: 1, token });
  client.onstatus = ({ status }) => note(`status ${status}`);
}, [url, token]);

/** Starts an application that answers each call; returns its URL. */
async function application(test) {
  const application = createServer((request, response) => { request.resume().on("end", () => response.end('{"data":"done"}')); });
  application.listen(0, "127.0.0.1");
  await once(application, "listening");
  test.after(() => application.close());
  return `http://127.0.0.1:${application.address().port}/`;
}
