// The client over HTTP before a server that answers as each test says.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";

import { connect } from "../sinews.js";
import { channel } from "./server.js";

/** The path of the requests by which a test counts those that are pending. */
const COUNTED = "/rpc/counted";
const limit = { timeout: 180_000 };

/** A WebSocket of a network that blocks WebSockets. */
class Blocked {
  constructor() {
    queueMicrotask(() => this.onclose?.({ code: 1006, reason: "" }));
  }

  close() {}
}

/**
 * A client whose requests, but those of its state, wait in `requests`: `{ method, path, query, signal, answer, line, ended }`.
 * `answer` rejects or answers a request, `line` adds a line to its response.
 */
function overHttp(t, options) {
  const requests = channel();
  const plain = { signal: null, counted: [] };
  t.mock.method(globalThis, "fetch", async (url, { method = "GET", headers, signal }) => {
    // Without it, proxies and frameworks answer with pages.
    assert.match(headers.Accept, /^application\/(json|x-ndjson)$/, url.pathname);
    if (url.pathname === "/healthz") {
      plain.signal = signal;
      return new Response("ok");
    }
    if (url.pathname === COUNTED) return new Promise((resolve) => plain.counted.push(() => resolve(Response.json({ data: null }))));
    return new Promise((resolve, reject) => {
      let body = null;
      let stop = null;
      const ended = new Promise((end) => {
        stop = () => {
          reject(signal.reason);
          body?.error(signal.reason);
          end();
        };
        signal.addEventListener("abort", stop, { once: true });
      });
      const line = (message) => {
        body ?? resolve(new Response(new ReadableStream({ start: (controller) => { body = controller; } })));
        body.enqueue(new TextEncoder().encode(`${JSON.stringify(message)}\n`));
      };
      const answer = (status, value) => {
        signal.removeEventListener("abort", stop);
        resolve(new Response(JSON.stringify(value), { status }));
      };
      requests.push({ method, path: url.pathname, query: url.searchParams, signal, answer, line, ended });
    });
  });
  const client = connect("ws://localhost/ws", { WebSocket: Blocked, fallback: true, minDelay: 1, ...options });
  t.after(() => client.close());
  return { client, requests, plain };
}

/** Accepts a response that joins topics. */
function accept({ query, line }) {
  for (const topic of query.getAll("join")) line({ op: "joined", topic });
}

/** Resolves once the client has done what it does without another answer. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

/** The number of requests of a client that are pending, of 4,096 at most. */
async function pending(client, { counted }) {
  const sent = Array.from({ length: 4_097 }, () => client.call("counted").then(() => 0, ({ code }) => Number(code === "full")));
  while (counted.length === 0) await settled();
  for (const answer of counted.splice(0)) answer();
  return (await Promise.all(sent)).reduce((sum, isFull) => sum + isFull, -1);
}

async function opened(client) {
  while (client.status !== "open") await settled();
  assert.equal(client.transport, "http");
}

test("a rejection of a hook with 401 rejects the request alone, that of a token ends the client", limit, async (t) => {
  const { client, requests } = overHttp(t, { token: "a.b.c" });
  await opened(client);
  for (const body of [{ error: "sign in" }, { error: "no", needs: { publish: ["a"] } }]) {
    const published = client.publish("a", 1);
    (await requests.next()).answer(401, body);
    await assert.rejects(published, { code: 401, message: body.error });
    assert.equal(client.status, "open");
  }
  const published = client.publish("a", 1);
  (await requests.next()).answer(401, { error: "the token has expired", needs: {} });
  await assert.rejects(published, { code: "lost" });
  assert.equal(client.status, "closed");
});

test("a client without a token has none that is rejected", limit, async (t) => {
  const { client, requests } = overHttp(t);
  await opened(client);
  const published = client.publish("a".repeat(65), 1);
  // An error names no right of a long topic.
  (await requests.next()).answer(401, { error: "a token is needed to publish to aaa…", needs: {} });
  await assert.rejects(published, { code: 401 });
  assert.equal(client.status, "open");
});

test("joins and subscriptions that are replaced or withdrawn at once are answered", limit, async (t) => {
  const { client, requests, plain } = overHttp(t);
  await opened(client);
  const joined = ["a", "b", "c"].map((id) => client.join("room", { id }));
  const withdrawn = [client.join("hall", { id: "a" }), client.leave("hall")];
  const response = await requests.next();
  assert.deepEqual([response.query.getAll("join"), response.query.getAll("member")], [["room"], ['{"id":"c"}']]);
  accept(response);
  await Promise.all([...joined, ...withdrawn]);
  // Replaced while the response opens.
  const replaced = client.join("hall", { id: "a" });
  const former = await requests.next();
  const last = client.join("hall", { id: "b" });
  await settled();
  accept(former);
  accept(await requests.next());
  await Promise.all([replaced, last]);
  const subscription = client.subscribe("a", () => {});
  subscription.unsubscribe();
  await assert.rejects(subscription.ready, { code: "stopped" });
  const other = client.subscribe("b", () => {});
  const followed = await requests.next();
  other.unsubscribe();
  await assert.rejects(other.ready, { code: "stopped" });
  await followed.ended;
  assert.equal(await pending(client, plain), 0);
});

test("a join that fails behind the status is rejected alone", limit, async (t) => {
  const { client, requests } = overHttp(t);
  await opened(client);
  const first = client.join("a", { id: "anna" });
  const response = await requests.next();
  accept(response);
  await first;
  const full = { op: "error", code: 429, error: "the server has no memory for more members" };
  const second = client.join("b", { id: "anna" });
  const rejected = await requests.next();
  rejected.line({ op: "joined", topic: "a" });
  rejected.line({ ...full, topic: "b" });
  rejected.line({ op: "close", code: 1013, reason: full.error });
  await assert.rejects(second, { code: 429, message: full.error });
  await rejected.ended;
  await settled();
  // The former response goes on, and no other one is opened.
  assert.deepEqual([client.status, response.signal.aborted, requests.size], ["open", false, 0]);

  // Of several, each is tried.
  const results = Promise.allSettled(["b", "c"].map((topic) => client.join(topic, { id: "anna" })));
  for (const joins of [["a", "b", "c"], ["a", "b"], ["a", "c"]]) {
    const next = await requests.next();
    assert.deepEqual(next.query.getAll("join"), joins);
    if (joins.includes("b")) next.line({ ...full, topic: "b" });
    else accept(next);
  }
  assert.deepEqual((await results).map(({ reason }) => reason?.code), [429, undefined]);

  // After the update of a member is rejected, the client is no member.
  const update = client.join("c", { id: "anna", info: "long" });
  (await requests.next()).line({ ...full, topic: "c" });
  await assert.rejects(update, { code: 429 });
  assert.deepEqual((await requests.next()).query.getAll("join"), ["a"]);
  assert.equal(client.status, "open");
});

test("a join waits for the subscriptions before it", limit, async (t) => {
  const { client, requests } = overHttp(t);
  const subscriptions = ["a", "b", "no"].map((topic) => client.subscribe(topic, () => {}));
  const joined = client.join("a", { id: "anna" });
  await opened(client);
  const all = await requests.next();
  await settled();
  assert.deepEqual([all.query.getAll("topic"), requests.size], [["a", "b", "no"], 0]);
  // One is rejected, and one is withdrawn while the client finds out.
  all.answer(403, { error: "no", needs: {} });
  const polls = [await requests.next(), await requests.next(), await requests.next()];
  subscriptions[1].unsubscribe();
  for (const { path, answer } of polls) {
    if (path === "/topics/no") answer(403, { error: "no", needs: {} });
    else answer(200, { messages: [] });
  }
  await assert.rejects(subscriptions[2].ready, { code: 403 });
  const rest = await requests.next();
  await settled();
  assert.deepEqual([rest.query.getAll("topic"), requests.size], [["a"], 0]);
  rest.line({ op: "ack", topic: "a" });
  const membership = await requests.next();
  assert.deepEqual(membership.query.getAll("join"), ["a"]);
  accept(membership);
  await joined;
  await subscriptions[0].ready;
});

test("subscriptions to one topic share it, and begin at the earliest position", limit, async (t) => {
  const { client, requests } = overHttp(t);
  const messages = channel();
  const positions = [5, 3, null].map((seq) => seq && { epoch: 1, seq });
  const subscriptions = positions.map((from) => client.subscribe("a", ({ seq }) => messages.push([from?.seq, seq]), { from }));
  subscriptions.push(client.subscribe("b", () => {}));
  const { query, line } = await requests.next();
  assert.deepEqual([query.getAll("topic"), query.getAll("after")], [["a", "b"], ["1-3,"]]);
  line({ op: "ack", topic: "a", epoch: 1, seq: 4, replayed: 1, complete: true });
  line({ op: "ack", topic: "b" });
  await Promise.all(subscriptions.map(({ ready }) => ready));
  for (const seq of [4, 6]) line({ op: "message", topic: "a", epoch: 1, seq, data: 1 });
  const all = [[3, 4], [undefined, 4], [5, 6], [3, 6], [undefined, 6]];
  for (const expected of all) assert.deepEqual(await messages.next(), expected);
});

test("requests leave no listeners behind", limit, async (t) => {
  const { client, requests, plain } = overHttp(t);
  await opened(client);
  const count = () => getEventListeners(plain.signal, "abort").length;
  for (let published = 0; published < 20; published += 1) {
    const sent = client.publish("a", 1);
    (await requests.next()).answer(200, { subscribers: 0 });
    await sent;
  }
  assert.equal(count(), 0);
  const { ready } = client.state("a", () => {});
  (await requests.next()).answer(403, { error: "no", needs: {} });
  await assert.rejects(ready, { code: 403 });
  assert.equal(count(), 0);
  const joined = client.join("a", { id: "anna" });
  const membership = await requests.next();
  accept(membership);
  await joined;
  assert.equal(count(), 1);
  client.close();
  await membership.ended;
});

test("a consumption that the server ends begins anew behind the last record", limit, async (t) => {
  const { client, requests } = overHttp(t);
  const records = channel();
  const consumption = client.stream("orders").consume(({ data }) => records.push(data), { from: "earliest" });
  const first = await requests.next();
  const query = ({ query: asked }) => ["follow", "from", "partition", "time"].map((name) => asked.get(name));
  assert.deepEqual([first.path, query(first)], ["/streams/orders/records", ["true", "earliest", null, null]]);
  first.line({ op: "welcome", connection: "1-1" });
  first.line({ op: "ack", stream: "orders", partitions: [{ partition: 0, offset: 0 }] });
  await consumption.ready;
  first.line({ op: "records", stream: "orders", partition: 0, records: [{ offset: 0, at: 1, data: "a" }], next: 1, end: 1 });
  assert.equal(await records.next(), "a");
  assert.deepEqual(client.connections, ["1-1"]);
  first.line({ op: "error", code: 503, error: "the store has failed" });
  await first.ended;
  const second = await requests.next();
  assert.deepEqual([query(second), client.status], [["true", "1", null, null], "open"]);
  // An error before the acknowledgement rejects a consumption, and nothing else.
  const other = client.stream("gone").consume(() => {}, { from: { time: 5 }, partition: 7 });
  const third = await requests.next();
  assert.deepEqual(query(third), ["true", null, "7", "5"]);
  third.line({ op: "error", code: 404, error: "no such partition" });
  await assert.rejects(other.ready, { code: 404 });
  consumption.stop();
  await second.ended;
  await settled();
  assert.deepEqual([client.status, requests.size], ["open", 0]);
});

test("a consumption and a subscription to keys that are ended before their answer leave no request", limit, async (t) => {
  const { client, requests, plain } = overHttp(t);
  await opened(client);
  const consumption = client.stream("orders").consume(() => {});
  const state = client.state("a", () => {});
  const open = [await requests.next(), await requests.next()];
  consumption.stop();
  state.unsubscribe();
  for (const { ended } of open) await ended;
  for (const { ready } of [consumption, state]) await assert.rejects(ready, { code: "stopped" });
  assert.equal(await pending(client, plain), 0);
  // Later ones are answered, and an end has no effect on them.
  const again = client.stream("orders").consume(() => {});
  const { line, ended } = await requests.next();
  line({ op: "ack", stream: "orders", partitions: [] });
  await again.ready;
  again.stop();
  await ended;
  assert.deepEqual([await pending(client, plain), client.status, requests.size], [0, "open", 0]);
});
