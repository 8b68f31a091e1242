// What the application says about one request: whether it waits, how long, and whether it may be repeated.
import assert from "node:assert/strict";
import { test } from "node:test";

import { overSockets, settled } from "./sockets.js";

const limit = { timeout: 60_000 };

/** Requests without an answer, which the end of the test rejects. */
const ignored = (...requests) => Promise.allSettled(requests);

/** The requests that a socket has got. */
async function sent(socket) {
  await settled();
  const all = [];
  while (socket.sent.size > 0) all.push(await socket.sent.next());
  return all;
}

/** The next connection of a client, which the server has accepted. */
async function welcome(sockets) {
  const socket = await sockets.next();
  socket.line({ op: "welcome" });
  return socket;
}

test("while disconnected, a later value of a key replaces the queued one, and leaves a place to other requests", limit, async (t) => {
  const { client, sockets } = overSockets(t);
  const early = client.set("cursors", "anna", { x: 0 });
  // The application ignores this one, which is no unhandled rejection.
  client.set("cursors", "anna", { x: -1 });
  for (let x = 1; x <= 1000; x += 1) ignored(client.set("cursors", "anna", { x }));
  const other = client.set("cursors", "ben", { x: 1 });
  const bid = client.publish("bids", 120);
  assert.equal(client.queued, 3);
  await assert.rejects(early, { code: "replaced", sent: false });
  const socket = await welcome(sockets);
  const requests = await sent(socket);
  assert.deepEqual(requests.map(({ op, key, data }) => [op, key, data]), [["set", "anna", { x: 1000 }], ["set", "ben", { x: 1 }], ["publish", undefined, 120]]);
  for (const { id } of requests) socket.line({ op: "ack", id, seq: id });
  await Promise.all([other, bid]);
  assert.equal(client.queued, 0);
});

test("a queued write of a key that has a condition, or that a condition follows, is not replaced", limit, async (t) => {
  const { client, sockets } = overSockets(t);
  ignored(client.set("k", "a", 1), client.set("k", "a", 2, { ifExists: true }), client.set("k", "a", 3), client.delete("k", "a"));
  ignored(client.set("k", "a", 4), client.set("k", "a", 5, { idempotencyKey: true }), client.set("other", "a", 6));
  const requests = await sent(await welcome(sockets));
  assert.deepEqual(requests.map(({ data }) => data), [1, 2, 3, undefined, 4, 5, 6]);
});

test("a request with `queue: false` is rejected while disconnected, and sent while connected", limit, async (t) => {
  const { client, sockets } = overSockets(t);
  const requests = () => [client.publish("a", 1, { queue: false }), client.call("m", 1, { queue: false }), client.set("a", "k", 1, { queue: false })];
  for (const request of requests()) await assert.rejects(request, { code: "offline", sent: false });
  const socket = await welcome(sockets);
  assert.deepEqual(await sent(socket), []);
  const all = requests();
  for (const { id } of await sent(socket)) socket.line({ op: "ack", id });
  await Promise.all(all);
});

test("`timeout` and `signal` end a request: one that waits is never sent, and one that was sent may have been executed", limit, async (t) => {
  const { client, sockets, timers } = overSockets(t);
  const abort = new AbortController();
  const waiting = [client.call("m", 1, { timeout: 1 }), client.publish("a", 2, { signal: abort.signal })];
  const kept = client.publish("a", 3, { timeout: 1_000_000, signal: new AbortController().signal });
  await assert.rejects(waiting[0], { code: "timeout", sent: false });
  abort.abort(new Error("the user left"));
  await assert.rejects(waiting[1], /the user left/);
  await assert.rejects(client.publish("a", 4, { signal: abort.signal }), /the user left/);
  assert.equal(client.queued, 1);
  const socket = await welcome(sockets);
  const [request, ...others] = await sent(socket);
  assert.deepEqual([request.data, others], [3, []]);
  const before = timers().length;
  socket.line({ op: "ack", id: request.id });
  await kept;
  assert.equal(timers().length, before - 1);
  const late = client.call("m", 1, { timeout: 1 });
  await assert.rejects(late, { code: "timeout", sent: true });
  // The late answer belongs to no request.
  for (const { id } of await sent(socket)) socket.line({ op: "rpc", id, data: 1 });
  assert.equal(client.status, "open");
});

test("an error tells whether the request was sent", limit, async (t) => {
  const { client, sockets } = overSockets(t, { minDelay: 1 });
  const first = await welcome(sockets);
  const lost = client.publish("a", 1);
  await sent(first);
  first.lose();
  await assert.rejects(lost, { code: "lost", sent: true });
  const queued = client.publish("a", 2);
  client.close();
  await assert.rejects(queued, { code: "closed", sent: false });
});

test("a publication and a write with an idempotency key are repeated after a lost connection with the same key", limit, async (t) => {
  const { client, sockets } = overSockets(t, { minDelay: 1 });
  const all = [
    client.publish("a", 1, { idempotencyKey: true }), client.publish("a", 2, { idempotencyKey: "order-7" }), client.set("a", "k", 3, { idempotencyKey: true }),
  ];
  const once = client.publish("a", 4);
  const [first, keys] = [await welcome(sockets), []];
  for (const { data, idempotency_key: key } of await sent(first)) keys.push([data, key]);
  assert.deepEqual(keys.map(([data]) => data), [1, 2, 3, 4]);
  assert.match(keys[0][1], /^[\w+/]{22}$/);
  assert.deepEqual([keys[1][1], keys[3][1], new Set(keys.map(([, key]) => key)).size], ["order-7", undefined, 4]);
  first.lose();
  await assert.rejects(once, { code: "lost" });
  for (const round of [1, 2]) {
    const next = await welcome(sockets);
    const again = await sent(next);
    assert.deepEqual(again.map(({ data, idempotency_key: key }) => [data, key]), keys.slice(0, 3));
    if (round === 1) next.lose();
    else for (const { id } of again) next.line({ op: "ack", id, seq: 7, repeated: true });
  }
  assert.equal((await all[0]).seq, 7);
  await Promise.all(all);
});

test("a request is repeated only while the server remembers its key", limit, async (t) => {
  const { client, sockets } = overSockets(t, { minDelay: 1 });
  const first = await welcome(sockets);
  const published = client.publish("a", 1, { idempotencyKey: true });
  await sent(first);
  first.lose();
  const waiting = client.publish("a", 2, { idempotencyKey: true });
  const now = Date.now();
  t.mock.method(Date, "now", () => now + 241_000);
  const second = await welcome(sockets);
  await assert.rejects(published, { code: "lost", sent: true });
  // This one was not sent before.
  const [{ id, data }] = await sent(second);
  assert.equal(data, 2);
  second.line({ op: "ack", id });
  await waiting;
});

test("a history pages back before a position, and forward with a limit", limit, async (t) => {
  const { client, sockets } = overSockets(t);
  const socket = await welcome(sockets);
  const position = { epoch: 1, seq: 20 };
  for (const [range, request, answer] of [
    [{ before: position, last: 10 }, { last: 10, before: position }, { more: true, complete: true }],
    [{ from: position, limit: 5 }, { from: position, limit: 5 }, { more: false, complete: false }],
    [undefined, { last: 100 }, { more: false, complete: true }],
    [{ before: position, timeout: 1000 }, { last: 100, before: position }, { more: false, complete: true }],
  ]) {
    const history = client.history("a", range);
    const [{ id, op, topic, ...fields }] = await sent(socket);
    assert.deepEqual(fields, request);
    socket.line({ op, id, messages: [{ topic, epoch: 1, seq: 19, b64: "AQ==" }], ...(answer.more && { more: true }), ...(!answer.complete && { complete: false }) });
    const messages = await history;
    assert.deepEqual([messages.length, messages[0].data, messages.more, messages.complete], [1, new Uint8Array([1]), answer.more, answer.complete]);
  }
});
