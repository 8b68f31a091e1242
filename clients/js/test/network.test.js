// Networks that change, pages that sleep, tokens that are kept, and what the client shows of it.
import assert from "node:assert/strict";
import { test } from "node:test";

import { SinewsError } from "../sinews.js";
import { channel } from "./server.js";
import { overSockets, settled } from "./sockets.js";

const limit = { timeout: 60_000 };
const waits = { minDelay: 1_000_000, maxDelay: 1_000_000 };

/** A token whose claim `exp` is in these seconds. The characters of its claims in base64 are those of URLs. */
function expiring(seconds, id = "?>") {
  const claims = Buffer.from(JSON.stringify({ exp: Math.floor(Date.now() / 1000) + seconds, id })).toString("base64url");
  return `e30.${claims}.c2ln`;
}

/** A page: events of the window and of the document. */
function page(t) {
  const target = new EventTarget();
  const document = Object.assign(new EventTarget(), { visibilityState: "visible" });
  const listeners = new Set();
  for (const one of [target, document]) {
    const { addEventListener: add, removeEventListener: remove } = one;
    one.addEventListener = (type, listener) => (listeners.add(type), add.call(one, type, listener));
    one.removeEventListener = (type, listener) => (listeners.delete(type), remove.call(one, type, listener));
  }
  const globals = { addEventListener: target.addEventListener, removeEventListener: target.removeEventListener, document };
  for (const [name, value] of Object.entries(globals)) {
    globalThis[name] = value;
    t.after(() => delete globalThis[name]);
  }
  return {
    listeners,
    window: (type) => target.dispatchEvent(new Event(type)),
    show(state) {
      document.visibilityState = state;
      document.dispatchEvent(new Event("visibilitychange"));
    },
  };
}

/** A client of a page, with timers and a clock of the test; `next` is its next socket, welcomed. */
async function inPage(t, options) {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const events = page(t);
  const sockets = [];
  class Socket {
    sent = [];
    constructor() { sockets.push(this); }
    send(text) { this.sent.push(JSON.parse(text)); }
    close() {}
    line(message) { this.onmessage({ data: JSON.stringify(message) }); }
  }
  const { connect } = await import("../sinews.js");
  const statuses = [];
  const client = connect("ws://localhost/ws", { WebSocket: Socket, onstatus: ({ status }) => statuses.push(status), ...options });
  t.after(() => client.close());
  const next = async () => {
    await settled();
    t.mock.timers.tick(0);
    await settled();
    const socket = sockets.at(-1);
    socket.line({ op: "welcome" });
    return socket;
  };
  return { client, sockets, statuses, next, ...events };
}

for (const [name, wake] of [["is online again", ({ window }) => window("online")], ["is offline", ({ window }) => window("offline")],
  ["is visible again", ({ show }) => { show("hidden"); show("visible"); }], ["calls retry()", ({ client }) => client.retry()]]) {
  test(`a page that ${name} tests its connection, and reconnects within five seconds`, limit, async (t) => {
    const all = await inPage(t);
    const first = await all.next();
    t.mock.timers.tick(20_000);
    wake(all);
    assert.deepEqual(first.sent.map(({ op }) => op), ["ping"]);
    // An answer in the same millisecond.
    first.line({ op: "pong", id: first.sent[0].id });
    t.mock.timers.tick(5_000);
    assert.deepEqual(all.statuses.slice(1), ["open"]);
    wake(all);
    t.mock.timers.tick(3_000);
    t.mock.timers.tick(250);
    await settled();
    assert.deepEqual([all.statuses.slice(1), all.sockets.length], [["open", "waiting", "connecting"], 2]);
  });
}

test("a hidden page, and one that is offline, do not retry; a page that is visible or online does at once", limit, async (t) => {
  const { sockets, show, window, next } = await inPage(t, waits);
  await next();
  for (const [quiet, wake] of [[() => show("hidden"), () => show("visible")], [() => window("offline"), () => window("online")]]) {
    const count = sockets.length;
    sockets.at(-1).onclose({ code: 1006, reason: "" });
    quiet();
    t.mock.timers.tick(1);
    await settled();
    assert.equal(sockets.length, count);
    wake();
    await next();
    assert.equal(sockets.length, count + 1);
  }
});

test("a heartbeat that is late, as after a sleep, waits three seconds for the answer", limit, async (t) => {
  const { statuses, next } = await inPage(t);
  const socket = await next();
  // The clock goes on in a sleep, and timers do not.
  t.mock.timers.setTime(Date.now() + 3_600_000);
  t.mock.timers.tick(30_000);
  assert.equal(socket.sent.at(-1).op, "ping");
  t.mock.timers.tick(2_999);
  assert.equal(statuses.at(-1), "open");
  t.mock.timers.tick(1);
  assert.equal(statuses.at(-1), "waiting");
});

test("a closed client leaves no listeners at the page", limit, async (t) => {
  const { client, listeners, next } = await inPage(t);
  await next();
  assert.deepEqual([...listeners], ["online", "offline", "visibilitychange"]);
  client.close();
  assert.equal(listeners.size, 0);
});

test("a token is kept over attempts until a fifth of its life is left, and is requested again after a rejection", limit, async (t) => {
  let calls = 0;
  const all = await inPage(t, { ...waits, token: () => expiring(200, calls += 1) });
  let socket = await all.next();
  const reconnect = async (code = 1006) => {
    socket.onclose({ code, reason: "" });
    all.client.retry();
    socket = await all.next();
  };
  for (let attempt = 0; attempt < 10; attempt += 1) await reconnect();
  assert.equal(calls, 1);
  t.mock.timers.tick(159_000);
  await reconnect();
  assert.equal(calls, 1);
  t.mock.timers.tick(2_000);
  await reconnect();
  assert.equal(calls, 2);
  await reconnect(4401);
  assert.equal(calls, 3);
});

test("the server's time decides about a token, and not the clock of the device", limit, async (t) => {
  let calls = 0;
  // The clock of this device is an hour ahead: the token seems to have expired.
  const all = await inPage(t, { ...waits, token: () => expiring(-3_000, calls += 1) });
  let socket = await all.next();
  socket.line({ op: "welcome", expires_in: 600 });
  const reconnect = async (expires) => {
    socket.onclose({ code: 1006, reason: "" });
    all.client.retry();
    socket = await all.next();
    socket.line({ op: "welcome", expires_in: expires });
  };
  await reconnect(600);
  t.mock.timers.tick(500_000);
  await reconnect(100);
  assert.equal(calls, 1);
  // 60 s of 600 s are left. A renewal fails, and the next attempt asks.
  t.mock.timers.tick(40_000);
  await settled();
  assert.equal(calls, 2);
});

test("a token that is no JWT is kept until the server rejects it", limit, async (t) => {
  let calls = 0;
  const { client, sockets } = overSockets(t, { ...waits, token: () => `opaque${calls += 1}` });
  for (let round = 0; round < 3; round += 1) {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    assert.equal(calls, 1);
    socket.lose(round === 2 ? 4401 : 1006);
    client.retry();
  }
  await sockets.next();
  assert.equal(calls, 2);
});

test("a SinewsError with 4401 of the function `token` ends the client, at first and at a renewal", limit, async (t) => {
  const signedOut = () => { throw new SinewsError(4401, "the session has ended"); };
  const changes = channel();
  const { client } = overSockets(t, { token: signedOut, onstatus: changes.push });
  const published = client.publish("a", 1);
  const { code, reason } = await changes.until(({ status }) => status === "closed");
  assert.deepEqual([code, reason], [4401, "the session has ended"]);
  await assert.rejects(published, { code: "closed", message: "the session has ended" });

  let calls = 0;
  const all = await inPage(t, { token: () => ((calls += 1) === 1 ? expiring(100) : signedOut()) });
  const socket = await all.next();
  socket.line({ op: "welcome", expires_in: 100 });
  t.mock.timers.tick(80_000);
  await settled();
  assert.deepEqual([all.statuses.at(-1), calls], ["closed", 2]);
});

test("listeners of the event `status` get what `onstatus` gets, and none ends another's", limit, async (t) => {
  const reported = channel();
  t.mock.method(console, "error", reported.push);
  const { client, sockets } = overSockets(t, waits);
  const [seen, changes] = [[], []];
  client.onstatus = (change) => changes.push(change);
  const count = (event) => seen.push(event.status);
  const controller = new AbortController();
  client.addEventListener("status", () => { throw new Error("of the application"); });
  client.addEventListener("status", count);
  client.addEventListener("status", count);
  client.addEventListener("status", ({ type, target, ...change }) => assert.deepEqual([type, target, change], ["status", client, changes.at(-1)]));
  client.addEventListener("status", { handleEvent: ({ status }) => seen.push(`object ${status}`) }, { signal: controller.signal });
  client.addEventListener("status", ({ status }) => seen.push(`once ${status}`), { once: true });
  client.addEventListener("other", count);
  client.addEventListener("status", null);
  (await sockets.next()).line({ op: "welcome" });
  assert.deepEqual(seen.splice(0), ["connecting", "object connecting", "once connecting", "open", "object open"]);
  controller.abort();
  client.removeEventListener("status", count);
  client.close();
  assert.deepEqual(seen, []);
  assert.equal(reported.size, 3);
  assert.deepEqual(changes.map(({ status }) => status), ["connecting", "open", "closed"]);
});

test("with `debug`, states, delays and frames are printed, and no token is", limit, async (t) => {
  for (const [stored, debug, prints] of [[null, true, true], ["debug", undefined, true], ["debug", false, false], [null, undefined, false]]) {
    const printed = [];
    const method = t.mock.method(console, "debug", (...parts) => printed.push(parts.join(" ")));
    globalThis.localStorage = { sinews: stored };
    t.after(() => delete globalThis.localStorage);
    const token = expiring(100);
    const { client, sockets } = overSockets(t, { ...waits, token: () => token, ...(debug !== undefined && { debug }) });
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    client.publish("a", "x".repeat(5_000)).catch(() => {});
    socket.lose();
    client.close();
    const text = printed.join("\n");
    for (const part of ["calls token", "> {\"op\":\"publish\"", "< {\"op\":\"welcome\"", "waiting {", "\"delay\":", "closed {"]) assert.equal(text.includes(part), prints, part);
    assert.equal(text.includes(token) || printed.some((line) => line.length > 1_100), false);
    method.mock.restore();
  }
});

test("with `debug`, a renewal prints no token", limit, async (t) => {
  const printed = [];
  t.mock.method(console, "debug", (...parts) => printed.push(parts.join(" ")));
  let calls = 0;
  const made = [expiring(100, 1), expiring(200, 2)];
  const { next } = await inPage(t, { debug: true, token: () => made[calls++] });
  const socket = await next();
  socket.line({ op: "welcome", expires_in: 100 });
  t.mock.timers.tick(80_000);
  await settled();
  assert.equal(socket.sent.at(-1).token, made[1]);
  assert.ok(printed.includes("sinews: > a new token"));
  assert.ok(!printed.some((line) => made.some((token) => line.includes(token))));
});

test("options that do not exist are written to the console", limit, async (t) => {
  const warned = [];
  t.mock.method(console, "warn", (text) => warned.push(text));
  const { client } = overSockets(t, { minimumDelay: 1, fallback: false });
  client.subscribe("a", () => {}, { presense: () => {} });
  client.subscribe("a.*", () => {}, { last: 5 });
  client.state("a", () => {}, { filters: "a" });
  client.stream("a").consume(() => {}, { groups: "a" });
  const requests = [client.publish("a", 1, { retry: true }), client.set("a", "k", 1, { ifnew: true }), client.delete("a", "k", { ttl: 1 }),
    client.call("m", 1, { topics: "a" }), client.history("a", { first: 1 }), client.stream("a").append(1, { keys: "k" })];
  Promise.allSettled(requests);
  const of = (method, name) => `sinews: ${method} has no option ${name}`;
  assert.deepEqual(warned, [of("connect", "minimumDelay"), of("subscribe", "presense"), "sinews: last has no effect on the pattern a.*",
    of("state", "filters"), of("consume", "groups"), of("publish", "retry"), of("set", "ifnew"), of("delete", "ttl"), of("call", "topics"),
    of("history", "first"), of("append", "keys")]);
});
