// The losses of a reconnect are reported: by each kind of subscription, and over each transport.
import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../sinews.js";
import { channel, folder, proxy, serve } from "./server.js";
import { overSockets, settled } from "./sockets.js";

const limit = { timeout: 180_000 };
const unretained = (topic) => ({ topic, reason: "unretained" });

/** A client, and functions that open its next connection, and lose the present one before. */
async function scripted(t, options) {
  const { client, sockets } = overSockets(t, { minDelay: 1, ...options });
  let socket = null;
  const open = async () => {
    socket = await sockets.next();
    socket.line({ op: "welcome" });
    return socket;
  };
  const reopen = () => {
    socket.lose();
    return open();
  };
  return { client, open, reopen };
}

/** Answers the next request of a connection with an acknowledgement, and returns the request. */
async function acknowledge(socket, fields = {}) {
  const request = await socket.sent.next();
  socket.line({ op: "ack", id: request.id, topic: request.topic, ...fields });
  return request;
}

test("each reconnect is a gap without a history and of a pattern, and the first acknowledgement is none", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const gaps = channel();
  const options = { ongap: gaps.push };
  client.subscribe("plain", () => {}, options);
  client.subscribe("a.*", () => {}, options);
  let socket = await open();
  for (let count = 0; count < 2; count += 1) await acknowledge(socket);
  assert.equal(gaps.size, 0);
  for (let round = 0; round < 2; round += 1) {
    socket = await reopen();
    for (let count = 0; count < 2; count += 1) await acknowledge(socket);
    assert.deepEqual([await gaps.next(), await gaps.next(), gaps.size], [unretained("plain"), unretained("a.*"), 0]);
  }
});

test("a subscription that is made while offline, or again, begins without a gap", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const gaps = channel();
  const options = { ongap: gaps.push };
  const first = client.subscribe("a", () => {}, options);
  let socket = await open();
  await acknowledge(socket);
  first.unsubscribe();
  assert.equal((await acknowledge(socket)).op, "unsubscribe");
  client.subscribe("a", () => {}, options);
  await acknowledge(socket);
  socket.lose();
  client.subscribe("offline", () => {}, options);
  socket = await open();
  assert.deepEqual([(await acknowledge(socket)).topic, (await acknowledge(socket)).topic], ["a", "offline"]);
  assert.deepEqual([await gaps.next(), gaps.size], [unretained("a"), 0]);
  // Another one to a topic that is subscribed has its own.
  client.subscribe("a", () => {}, options);
  await settled();
  assert.deepEqual([socket.sent.size, gaps.size], [0, 0]);
  socket = await reopen();
  for (let count = 0; count < 3; count += 1) await acknowledge(socket);
  const topics = [await gaps.next(), await gaps.next(), await gaps.next()].map(({ topic }) => topic);
  assert.deepEqual([topics.sort(), gaps.size], [["a", "a", "offline"], 0]);
  assert.equal(client.status, "open");
});

test("a loss before the first acknowledgement is no gap, and an error that is retried is none", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const gaps = channel();
  client.subscribe("a", () => {}, { ongap: gaps.push });
  let socket = await open();
  socket.line({ op: "error", id: (await socket.sent.next()).id, code: 503, error: "the store is away" });
  socket = await reopen();
  await acknowledge(socket);
  assert.equal(gaps.size, 0);
  // The server ends the subscription, and accepts it again.
  socket.line({ op: "error", topic: "a", code: 503, error: "the store has failed" });
  assert.equal((await acknowledge(socket)).op, "subscribe");
  assert.deepEqual([await gaps.next(), gaps.size], [unretained("a"), 0]);
});

test("a topic that gains or loses its history has a gap", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const gaps = channel();
  const subscription = client.subscribe("a", () => {}, { ongap: gaps.push });
  await acknowledge(await open());
  const gained = await acknowledge(await reopen(), { epoch: 7, seq: 4, replayed: 0, complete: true });
  assert.deepEqual([gained.from, await gaps.next()], [undefined, { topic: "a", reason: "history", replayed: 0 }]);
  const resumed = await acknowledge(await reopen(), { epoch: 7, seq: 4, replayed: 0, complete: true });
  assert.deepEqual([resumed.from, gaps.size], [{ epoch: 7, seq: 4 }, 0]);
  // Another epoch.
  await acknowledge(await reopen(), { epoch: 8, seq: 2, replayed: 0, complete: false });
  assert.deepEqual(await gaps.next(), { topic: "a", reason: "history", replayed: 0 });
  await acknowledge(await reopen(), { complete: false });
  assert.deepEqual([await gaps.next(), subscription.position], [unretained("a"), null]);
  const lost = await acknowledge(await reopen());
  assert.deepEqual([lost.from, await gaps.next(), gaps.size], [undefined, unretained("a"), 0]);
});

test("a stored position without a history is a gap at first", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const gaps = channel();
  client.subscribe("a", () => {}, { from: { epoch: 1, seq: 1 }, ongap: gaps.push });
  await acknowledge(await open(), { complete: false });
  assert.deepEqual(await gaps.next(), { topic: "a", reason: "history", replayed: 0 });
  await acknowledge(await reopen());
  assert.deepEqual(await gaps.next(), unretained("a"));
});

test("a loss before the retained messages arrive is a gap", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const gaps = channel();
  client.subscribe("a", () => {}, { last: 2, ongap: gaps.push });
  await acknowledge(await open(), { epoch: 1, seq: 5, replayed: 2, complete: true });
  assert.equal((await acknowledge(await reopen(), { epoch: 1, seq: 9, replayed: 2, complete: true })).last, 2);
  assert.deepEqual([await gaps.next(), gaps.size], [{ topic: "a", reason: "history", replayed: 2 }, 0]);
});

test("subscriptions to one topic share its position, and resume without a gap", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const gaps = channel();
  const messages = channel();
  const options = { ongap: gaps.push };
  const subscriptions = [0, 1].map(() => client.subscribe("a", messages.push, options));
  let socket = await open();
  await acknowledge(socket, { epoch: 1, seq: 5, replayed: 0, complete: true });
  // The server answers a second subscription to a topic without its position.
  await acknowledge(socket);
  subscriptions.push(client.subscribe("a", messages.push, options));
  assert.deepEqual(subscriptions.map(({ position }) => position), [1, 1, 1].map(() => ({ epoch: 1, seq: 5 })));
  socket = await reopen();
  for (let count = 0; count < 3; count += 1) {
    const { from } = await acknowledge(socket, { epoch: 1, seq: 6, replayed: 1, complete: true });
    assert.deepEqual(from, { epoch: 1, seq: 5 });
    socket.line({ op: "message", topic: "a", epoch: 1, seq: 6, data: 6 });
  }
  assert.deepEqual([messages.size, gaps.size], [3, 0]);
});

test("a second subscription does not count as accepted before the server has accepted the first", limit, async (t) => {
  const { client, open } = await scripted(t);
  const socket = await open();
  const subscriptions = [0, 1].map(() => client.subscribe("secret", () => {}));
  for (let count = 0; count < 2; count += 1) {
    socket.line({ op: "error", id: (await socket.sent.next()).id, code: 403, error: "no" });
  }
  for (const { ready } of subscriptions) await assert.rejects(ready, { code: 403 });
});

test("keys that begin anew are reported, keys that continue are not", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const calls = channel();
  client.state("a", (keys) => calls.push([...keys.keys()].join()), { ongap: calls.push });
  let socket = await open();
  const keys = (fields) => socket.line({ op: "keys", topic: "a", epoch: 1, seq: 1, ...fields });
  const snapshot = (fields, ...names) => keys({ part: 1, set: names.map((key) => ({ key, version: 1, data: 1 })), ...fields });
  await acknowledge(socket, { recovered: false });
  snapshot({}, "anna");
  assert.equal(await calls.next(), "anna");
  socket = await reopen();
  assert.deepEqual((await acknowledge(socket, { recovered: true })).from, { epoch: 1, seq: 1 });
  keys({ seq: 2, deleted: ["anna"] });
  assert.equal(await calls.next(), "");
  socket = await reopen();
  await acknowledge(socket, { recovered: false });
  snapshot({ seq: 9 }, "ben");
  assert.deepEqual([await calls.next(), await calls.next()], [{ topic: "a", reason: "history" }, "ben"]);
  // Another node owns the topic from now on: the server sends a snapshot by itself.
  snapshot({ epoch: 2, seq: 3 }, "carl");
  assert.deepEqual([await calls.next(), await calls.next(), calls.size], [{ topic: "a", reason: "reset" }, "carl", 0]);
});

test("records that do not exist any more are reported after a reconnect", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const calls = channel();
  const names = ["ongap", "onreset"];
  const options = { from: "earliest", ...Object.fromEntries(names.map((name) => [name, (value) => calls.push([name, value])])) };
  client.stream("s").consume(({ partition, offset }) => calls.push([partition, offset]), options);
  let socket = await open();
  const begin = (...offsets) => acknowledge(socket, { stream: "s", partitions: offsets.map((offset, partition) => ({ partition, offset })) });
  const records = (partition, end, ...offsets) => socket.line({ op: "records", stream: "s", partition, records: offsets.map((offset) => ({ offset, at: 1, data: 1 })), end });
  await begin(0, 0);
  records(0, 8, 6, 7);
  records(1, 5, 4);
  assert.deepEqual([await calls.next(), await calls.next(), await calls.next()], [[0, 6], [0, 7], [1, 4]]);
  // Partition 1 has lost records by retention.
  socket = await reopen();
  assert.deepEqual((await begin(5, 9)).from, { offset: 5 });
  records(0, 9, 5, 6, 7, 8);
  assert.deepEqual([await calls.next(), await calls.next()], [["ongap", { partition: 1, from: 5, to: 9 }], [0, 8]]);
  // The stream was created again: partition 0 has fewer records than the client asks for.
  socket = await reopen();
  assert.deepEqual((await begin(2, 9)).from, { offset: 9 });
  records(0, 3, 2);
  assert.deepEqual([await calls.next(), await calls.next()], [["onreset", { partition: 0, offset: 2 }], [0, 2]]);
  // Partition 1, too, and it has more.
  socket = await reopen();
  assert.deepEqual((await begin(3, 3)).from, { offset: 3 });
  records(1, 5, 3, 4);
  assert.deepEqual([await calls.next(), await calls.next(), await calls.next()], [["onreset", { partition: 1, offset: 3 }], [1, 3], [1, 4]]);
  assert.equal(calls.size, 0);
});

test("an offset of the application that does not exist is reported at first", limit, async (t) => {
  for (const [asked, offset, expected] of [
    [5, 9, ["ongap", { partition: 0, from: 5, to: 9 }]],
    [5, 3, ["onreset", { partition: 0, offset: 3 }]],
    [0, 1, null],
    [5, 5, null],
  ]) {
    const { client, open } = await scripted(t);
    const calls = channel();
    const callbacks = { ongap: (value) => calls.push(["ongap", value]), onreset: (value) => calls.push(["onreset", value]) };
    client.stream("s").consume(({ offset: at }) => calls.push(at), { from: { offset: asked }, ...callbacks });
    const socket = await open();
    await acknowledge(socket, { stream: "s", partitions: [{ partition: 0, offset }] });
    socket.line({ op: "records", stream: "s", partition: 0, records: [{ offset, at: 1, data: 1 }], end: offset + 1 });
    if (expected) assert.deepEqual(await calls.next(), expected);
    assert.deepEqual([await calls.next(), calls.size], [offset, 0]);
    client.close();
  }
});

test("a member of a group whose committed offset is reset gets the records from there", limit, async (t) => {
  const { client, open, reopen } = await scripted(t);
  const calls = channel();
  client.stream("s").consume(({ offset }) => calls.push(offset), { group: "g", onreset: calls.push });
  let socket = await open();
  const assign = async (offset, reset) => {
    await acknowledge(socket, { stream: "s", partitions: [] });
    socket.line({ op: "assigned", stream: "s", partitions: [{ partition: 0, offset, reset }] });
  };
  const records = (end, ...offsets) => socket.line({ op: "records", stream: "s", partition: 0, records: offsets.map((offset) => ({ offset, at: 1, data: 1 })), end });
  await assign(0);
  records(51, 49, 50);
  assert.deepEqual([await calls.next(), await calls.next()], [49, 50]);
  // Not committed, and delivered before.
  socket = await reopen();
  await assign(50);
  records(52, 50, 51);
  assert.equal(await calls.next(), 51);
  socket = await reopen();
  await assign(3, true);
  records(52, 3);
  assert.deepEqual([await calls.next(), await calls.next()], [{ partition: 0, offset: 3 }, 3]);
  // Deleted and created again, with its committed offsets.
  socket = await reopen();
  await assign(0);
  records(2, 0, 1);
  assert.deepEqual([await calls.next(), await calls.next(), await calls.next(), calls.size], [{ partition: 0, offset: 0 }, 0, 1, 0]);
});

test("messages of topics of the backend are reported as lost to the client's ongap", limit, async (t) => {
  const gaps = channel();
  const { client, open, reopen } = await scripted(t, { onmessage() {}, ongap: gaps.push });
  client.subscribe("own", () => {});
  const socket = await open();
  await acknowledge(socket);
  assert.equal(gaps.size, 0);
  socket.line({ op: "dropped", topic: "own", messages: 1 });
  socket.line({ op: "dropped", topic: "personal", messages: 2 });
  socket.line({ op: "reset", topic: "personal" });
  assert.deepEqual([await gaps.next(), await gaps.next()], [{ topic: "personal", reason: "dropped", messages: 2 }, { topic: "personal", reason: "reset" }]);
  await acknowledge(await reopen());
  assert.deepEqual([await gaps.next(), gaps.size], [{ reason: "unretained" }, 0]);
});

test("a subscription or a membership that the server ends is written to the console, if nothing else reports it", limit, async (t) => {
  const lines = channel();
  t.mock.method(console, "warn", lines.push);
  const { client, open, reopen } = await scripted(t);
  const errors = channel();
  const known = client.subscribe("known", () => {});
  client.subscribe("handled", () => {}, { onerror: errors.push });
  client.subscribe("silent", () => {});
  client.subscribe("later", () => {}).ready.catch(() => {});
  client.join("later", { id: "anna" });
  const { ready } = known;
  let socket = await open();
  const reject = async () => socket.line({ op: "error", id: (await socket.sent.next()).id, code: 403, error: "no" });
  for (let count = 0; count < 3; count += 1) await reject();
  for (let count = 0; count < 2; count += 1) await acknowledge(socket);
  await assert.rejects(ready, { code: 403 });
  assert.deepEqual([errors.size, await lines.next(), lines.size], [1, "sinews: silent: no (403)", 0]);
  socket = await reopen();
  for (let count = 0; count < 2; count += 1) await reject();
  const ended = "sinews: later: no (403)";
  assert.deepEqual([await lines.next(), await lines.next(), lines.size], [ended, ended, 0]);
  // The application ends it.
  client.close();
  assert.equal(lines.size, 0);
});

test("a subscription that the backend ends is rejected, and not requested again", limit, async (t) => {
  const key = "a-key-of-the-tests,-32-bytes-long";
  const { port, http } = await serve(t, ["--api-key", key]);
  const between = await proxy(t, port);
  for (const transport of ["websocket", "http"]) {
    between.blockWebSockets(transport === "http");
    const { made } = client(t, between.url, { fallback: true });
    const errors = channel();
    const subscription = made.subscribe("orders", () => {}, { onerror: errors.push });
    await Promise.all([subscription.ready, made.subscribe("other", () => {}).ready]);
    assert.equal(made.transport, transport);
    const body = JSON.stringify({ topic: "orders", connection: made.connections[0] });
    await fetch(`${http}/api/v1/unsubscribe`, { method: "POST", body, headers: { Authorization: `Bearer ${key}` } });
    assert.equal((await errors.next()).code, "unsubscribed");
    // A response over HTTP ends, and the next one has the other topic.
    const reach = async (topic) => (await (await fetch(`${http}/topics/${topic}`, { method: "POST", body: "1" })).json()).subscribers;
    while (await reach("other") === 0);
    assert.equal(await reach("orders"), 0);
    made.close();
    while (await reach("other") > 0);
  }
});

test("a response that is no JSON ends the connection over HTTP with a text", limit, async (t) => {
  const page = () => new Response("<html>\n");
  t.mock.method(globalThis, "fetch", async () => page());
  class Blocked {
    constructor() { queueMicrotask(() => this.onclose?.({ code: 1006, reason: "" })); }
    close() {}
  }
  for (const request of ["subscribe", "state", "consume", "publish", "join"]) {
    const { made, changes, opens } = client(t, "ws://host/ws", { minDelay: 1, fallback: true, WebSocket: Blocked });
    await opens();
    if (request === "publish") made.publish("a", 1).catch(() => {});
    else if (request === "join") made.join("a", { id: "anna" });
    else if (request === "consume") made.stream("a").consume(() => {});
    else made[request]("a", () => {});
    const { code, reason } = await changes.until(({ status }) => status === "waiting");
    assert.deepEqual([code, /JSON/.test(reason)], [1006, true], `${request}: ${reason}`);
    made.close();
  }
});

/** A client whose reconnects are short, and the changes of its status. */
function client(t, url, options) {
  const changes = channel();
  const made = connect(url, { minDelay: 20, onstatus: changes.push, ...options });
  t.after(() => made.close());
  return { made, changes, opens: () => changes.until(({ status }) => status === "open") };
}

test("over a WebSocket, over HTTP and back, each lost message has a gap, and a history has none", limit, async (t) => {
  const { port, url } = await serve(t, ["--history", "kept.>=100", "--history", "h.>=100"]);
  const between = await proxy(t, port);
  const { made, opens } = client(t, between.url, { fallback: true });
  const { made: direct } = client(t, url);
  const topics = ["plain", "h.*", "kept.a"];
  const seen = Object.fromEntries(topics.map((topic) => [topic, channel()]));
  const subscriptions = topics.map((topic) => made.subscribe(topic, ({ data }) => seen[topic].push(data), { ongap: ({ reason }) => seen[topic].push(reason) }));
  await Promise.all(subscriptions.map(({ ready }) => ready));
  await opens();
  let sent = 0;
  const publish = async () => {
    sent += 1;
    for (const topic of ["plain", "h.a", "kept.a"]) await direct.publish(topic, sent);
  };
  const arrives = async (...names) => {
    for (const topic of names) assert.equal(await seen[topic].next(), sent);
  };
  for (const [transport, resumes] of [["websocket", true], ["http"], ["http"], ["websocket"], ["websocket", true]]) {
    await publish();
    await arrives(...topics);
    between.refuse();
    await publish();
    between.blockWebSockets(transport === "http");
    between.accept();
    await opens();
    assert.equal(made.transport, transport);
    // A pattern resumes over a WebSocket.
    const lost = resumes ? ["plain"] : ["plain", "h.*"];
    for (const topic of lost) assert.equal(await seen[topic].next(), "unretained");
    await arrives("kept.a", ...(resumes ? ["h.*"] : []));
  }
  await publish();
  await arrives(...topics);
  for (const topic of topics) assert.equal(seen[topic].size, 0);
});

for (const transport of ["websocket", "http"]) {
  test(`over ${transport}, a restart of the server is a gap of a history and of keys`, limit, async (t) => {
    const first = await serve(t, ["--history", "kept.>=100"]);
    const between = await proxy(t, first.port);
    between.blockWebSockets(transport === "http");
    const { made } = client(t, between.url, { fallback: true });
    const [gaps, resets] = [channel(), channel()];
    const subscription = made.subscribe("kept.a", () => {}, { ongap: gaps.push });
    const state = made.state("keys", () => {}, { ongap: resets.push });
    await made.publish("kept.a", 1);
    await made.set("keys", "a", 1);
    await Promise.all([subscription.ready, state.ready]);
    assert.equal(made.transport, transport);
    await first.stop("SIGKILL");
    await serve(t, ["--history", "kept.>=100"], { listen: first.port });
    assert.deepEqual(await gaps.next(), { topic: "kept.a", reason: "history", replayed: 0 });
    assert.deepEqual(await resets.next(), { topic: "keys", reason: "reset" });
    assert.equal(state.keys.size, 0);
  });

  test(`over ${transport}, a stream that is created again is reported`, limit, async (t) => {
    const { port, url } = await serve(t, ["--streams", folder(t)]);
    const between = await proxy(t, port);
    between.blockWebSockets(transport === "http");
    const [{ made }, { made: direct }] = [client(t, between.url, { fallback: true }), client(t, url)];
    const calls = channel();
    const orders = direct.stream("orders");
    for (const data of [1, 2, 3]) await orders.append(data);
    made.stream("orders").consume(({ offset, data }) => calls.push([offset, data]), { from: "earliest", onreset: calls.push });
    await calls.until(([offset]) => offset === 2);
    assert.equal(made.transport, transport);
    between.refuse();
    await orders.delete();
    await orders.append("anew");
    between.accept();
    assert.deepEqual(await calls.next(), { partition: 0, offset: 1 });
    await orders.append("next");
    assert.deepEqual(await calls.next(), [1, "next"]);
  });
}
