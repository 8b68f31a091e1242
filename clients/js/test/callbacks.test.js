// Functions, promises and classes of the application that never return, throw, or return nonsense: the client goes on, or its status
// has a text.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { connect } from "../sinews.js";
import { channel } from "./server.js";
import { overSockets, settled } from "./sockets.js";

const limit = { timeout: 60_000 };
const never = () => new Promise(() => {});

/** An object that fails wherever it is touched. */
const hostile = new Proxy({}, { get() { throw new Error("touched"); } });

/** What a callback may do, and the number of reports of one call. */
const CALLBACKS = {
  "never settle": [never, 0],
  "throw": [() => { throw new Error("of the application"); }, 1],
  "throw undefined": [() => { throw undefined; }, 1],
  "reject": [async () => { throw new Error("of the application"); }, 1],
  "reject with an object without a text": [() => Promise.reject(Object.create(null)), 1],
  "return a thenable that throws": [() => ({ then() { throw new Error("of the application"); } }), 1],
  "return an object that throws": [() => hostile, 1],
  "return a number": [() => 42, 0],
};

/** What has callbacks, by the name of its type, or of the method with one. */
const KINDS = { CoreOptions: "client", SubscribeOptions: "subscription", StateOptions: "state", ConsumeOptions: "stream", subscribe: "subscription", consume: "stream" };

const read = (name) => readFileSync(new URL(`../${name}`, import.meta.url), "utf8");

/** The callbacks that the types declare: those of options with their kind, and those of methods. */
function declaredCallbacks() {
  const types = read("sinews.d.ts");
  const interfaces = [...types.matchAll(/^export interface (\w+)[^{\n]*\{\n(.*?)^\}/gms)];
  const options = interfaces.flatMap(([, kind, body]) => [...body.matchAll(/^  (\w+)\?: \(/gm)].map(([, option]) => `${KINDS[kind] ?? kind} ${option}`));
  const methods = [...types.matchAll(/^  (?!catch|finally)(\w+)(?:<[^>]*>)?\([^)]*: \([^)]*\) =>/gm)].map(([, method]) => KINDS[method] ?? method);
  return [...options, ...methods];
}

test("the types declare each callback that the client reads, and each other function has a test", () => {
  const declared = declaredCallbacks().map((name) => name.split(" ").at(-1));
  for (const [, option] of read("sinews.js").matchAll(/options\.(on\w+)/g)) assert.ok(declared.includes(option), option);
  const others = [...read("sinews.d.ts").matchAll(/^  (\w+)\?: (?!\()[^;]*(?:=>|\bnew \(|Function|typeof)/gm)].map(([, option]) => option);
  // Below.
  assert.deepEqual(others.sort(), ["WebSocket", "token"]);
});

for (const [name, [fault, reports]] of Object.entries(CALLBACKS)) {
  test(`callbacks that ${name} stop nothing, and keep no other callback from its call`, limit, async (t) => {
    const reported = channel();
    t.mock.method(console, "error", reported.push);
    const calls = new Map();
    const faulty = (callback) => (...values) => {
      calls.set(callback, (calls.get(callback) ?? 0) + 1);
      return fault(...values);
    };
    const callbacks = (kind) => {
      const names = declaredCallbacks().filter((name) => name.startsWith(`${kind} `));
      return Object.fromEntries(names.map((name) => [name.split(" ")[1], faulty(name)]));
    };
    const { client, sockets } = overSockets(t, { minDelay: 1, ...callbacks("client") });
    client.subscribe("a", faulty("subscription"), callbacks("subscription"));
    client.state("a", faulty("state"), callbacks("state"));
    client.stream("a").consume(faulty("stream"), callbacks("stream"));
    const messages = channel();
    client.subscribe("a", messages.push);
    for (let round = 1; round <= 2; round += 1) {
      const socket = await sockets.next();
      socket.line({ op: "welcome" });
      while (socket.sent.size > 0) {
        const { id, op, topic } = await socket.sent.next();
        socket.line({ op: "ack", id, topic, subscribers: 1, members: [], at: 1, recovered: false, partitions: op === "consume" ? [{ partition: 0, offset: 0 }] : [] });
      }
      for (const seq of [1, 2]) socket.line({ op: "keys", topic: "a", epoch: round, seq, part: 1, set: [] });
      socket.line({ op: "assigned", stream: "a", partitions: [{ partition: 0, offset: 0, reset: true }] });
      socket.line({ op: "gap", stream: "a", partition: 0, from: 0, to: 1 });
      socket.line({ op: "records", stream: "a", partition: 0, records: [{ offset: 1, at: 1, data: 1 }], end: 2 });
      socket.line({ op: "message", topic: "a", data: round });
      socket.line({ op: "message", topic: "personal", data: round });
      assert.equal((await messages.next()).data, round);
      assert.equal(client.status, "open");
      if (round === 1) socket.lose();
      else for (const ended of [{ topic: "a" }, { topic: "a", keys: true }]) socket.line({ op: "error", code: 403, error: "no", ...ended });
    }
    client.close();
    await settled();
    assert.deepEqual([...calls.keys()].sort(), declaredCallbacks().sort());
    const all = [...calls.values()].reduce((sum, count) => sum + count);
    assert.equal(reported.size, reports * all);
  });
}

/** The next status of a client that waits or has ended. */
async function ending(changes) {
  const change = await changes.until(({ status }) => status === "waiting" || status === "closed");
  assert.ok(typeof change.reason === "string" && change.reason !== "", `the text of ${JSON.stringify(change)}`);
  return change;
}

const TOKENS = {
  "never settles": [never, /has not answered in 20 ms \(responseTimeout\)/],
  "returns a thenable that never settles": [() => ({ then() {} }), /responseTimeout/],
  "throws": [() => { throw new Error("no session"); }, /^no token: no session$/],
  "throws undefined": [() => { throw undefined; }, /^no token: undefined$/],
  "throws an object that throws": [() => { throw hostile; }, /^no token: /],
  "rejects": [async () => { throw new Error("no session"); }, /^no token: no session$/],
  "rejects with null": [() => Promise.reject(null), /^no token: null$/],
  "returns an object": [() => ({ token: "a.b.c" }), /of the type object, and not a string$/],
  "returns a number": [() => 42, /of the type number, and not a string$/],
  "returns a function": [() => () => "a.b.c", /of the type function, and not a string$/],
  "returns a page": [async () => "<html>bad gateway</html>", /not a JWT$/],
};

for (const [name, [fault, reason]] of Object.entries(TOKENS)) {
  test(`a token function that ${name} ends in a status with a text, and a retry calls it again`, limit, async (t) => {
    const changes = channel();
    let calls = 0;
    const token = () => {
      calls += 1;
      return calls < 3 ? fault() : "a.b.c";
    };
    const { client, sockets } = overSockets(t, { token, minDelay: 1_000_000, maxDelay: 1_000_000, responseTimeout: 20, onstatus: changes.push });
    const published = client.publish("a", 1);
    for (const count of [1, 2]) {
      const change = await ending(changes);
      assert.deepEqual([change.status, calls], ["waiting", count]);
      assert.match(change.reason, reason);
      client.retry();
    }
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    socket.line({ op: "ack", id: (await socket.sent.next()).id, reached: 1 });
    assert.equal((await published).reached, 1);
  });

  test(`a token function that ${name} at a renewal is called again before the token expires`, limit, async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
    let calls = 0;
    const token = () => {
      calls += 1;
      return calls === 1 || calls === 4 ? `a.b.${calls}` : fault();
    };
    const sent = [];
    let socket;
    class Socket {
      constructor() { socket = this; }
      send(text) { sent.push(JSON.parse(text)); }
      close() {}
      line(message) { this.onmessage({ data: JSON.stringify(message) }); }
    }
    const client = connect("ws://host/ws", { WebSocket: Socket, token, heartbeatInterval: 600_000 });
    t.after(() => client.close());
    while (!socket) await new Promise(setImmediate);
    // A short life: a fifth of it is left for the renewal.
    socket.line({ op: "welcome", expires_in: 20 });
    for (let time = 0; time < 20_000 && sent.length === 0; time += 100) {
      t.mock.timers.tick(100);
      await new Promise(setImmediate);
    }
    assert.deepEqual([sent.map(({ op, token: text }) => [op, text]), client.status], [[["token", "a.b.4"]], "open"]);
  });
}

test("a late token of a renewal is used", limit, async (t) => {
  const answers = [];
  const { sockets } = overSockets(t, { token: () => (answers.length === 0 ? (answers.push(null), "a.b.1") : new Promise((resolve) => answers.push(resolve))) });
  const socket = await sockets.next();
  socket.line({ op: "welcome", expires_in: 0.5 });
  while (answers.length < 3) await settled();
  answers[1]("a.b.2");
  const { id, ...request } = await socket.sent.next();
  assert.deepEqual(request, { op: "token", token: "a.b.2" });
  socket.line({ op: "ack", id, expires_in: 600 });
});

test("a constant token that is none ends the client with a text", limit, async (t) => {
  for (const token of ["no token", 42, { a: 1 }, Promise.resolve({})]) {
    const changes = channel();
    const { sockets } = overSockets(t, { token, onstatus: changes.push });
    const { status, code } = await ending(changes);
    assert.deepEqual([status, code, sockets.size], ["closed", 4401, 0]);
  }
});

/** Errors of a constructor, and the status that follows. */
const CONSTRUCTORS = [
  [() => new DOMException("An insecure WebSocket connection may not be initiated from a page loaded over HTTPS.", "SecurityError"), "closed"],
  [() => new DOMException("The URL contains a fragment identifier.", "SyntaxError"), "closed"],
  [() => new SyntaxError("Invalid URL"), "closed"],
  [() => new TypeError("no WebSocket now"), "waiting"],
  [() => "a text", "waiting"],
  [() => undefined, "waiting"],
  [() => hostile, "waiting"],
];

test("a WebSocket class that throws ends in a status with a text, and in no request without an answer", limit, async (t) => {
  for (const [error, expected] of CONSTRUCTORS) {
    const changes = channel();
    let throws = true;
    let socket = null;
    class Socket {
      constructor() {
        if (throws) throw error();
        socket = this;
      }
      send() {}
      close() {}
    }
    const client = connect("wss://host/ws", { WebSocket: Socket, minDelay: 1_000_000, maxDelay: 1_000_000, onstatus: changes.push });
    t.after(() => client.close());
    const published = client.publish("a", 1).catch(({ code }) => code);
    const { status, code, reason } = await ending(changes);
    assert.deepEqual([status, code], [expected, 0]);
    assert.match(reason, /^cannot connect: /);
    throws = false;
    client.retry();
    if (expected === "closed") {
      assert.equal(await published, "closed");
      continue;
    }
    while (!socket) await settled();
    socket.onmessage({ data: '{"op":"welcome"}' });
    assert.equal(client.status, "open");
  }
});

test("a retry for each failure leaves time for other tasks", limit, async (t) => {
  const faults = [{ token: () => { throw new Error("no session"); } }, { WebSocket: class { constructor() { throw new Error("no network"); } } }];
  for (const options of faults) {
    let failures = 0;
    const client = connect("ws://host/ws", { WebSocket: class {}, ...options, onstatus: ({ status }) => {
      if (status !== "waiting") return;
      failures += 1;
      // Without time for other tasks, the test would not end.
      if (failures < 10_000) client.retry();
    } });
    t.after(() => client.close());
    while (failures < 3) await settled();
    assert.ok(failures < 10_000, `${failures} failures in a turn`);
    client.close();
  }
});

test("a URL that no WebSocket can have ends the client with a text", limit, async (t) => {
  for (const url of ["ws://127.0.0.1:1/ws#top", "ftp://127.0.0.1/ws", new URL("ftp://127.0.0.1/ws"), "ws://"]) {
    const changes = channel();
    const client = connect(url, { onstatus: changes.push });
    t.after(() => client.close());
    const { status, code } = await ending(changes);
    assert.deepEqual([String(url), status, code], [String(url), "closed", 0]);
  }
});

test("where a policy forbids the WebSocket, `fallback` uses HTTP", limit, async (t) => {
  t.mock.method(globalThis, "fetch", async () => new Response("ok"));
  const changes = channel();
  class Forbidden {
    constructor() { throw new DOMException("forbidden", "SecurityError"); }
  }
  const client = connect("ws://host/ws", { WebSocket: Forbidden, fallback: true, minDelay: 1, onstatus: changes.push });
  t.after(() => client.close());
  assert.match((await ending(changes)).reason, /^cannot connect: forbidden$/);
  await changes.until(({ status }) => status === "open");
  assert.equal(client.transport, "http");
});

/** Instances of a WebSocket class that behave wrongly, and the text of the status. */
const SOCKETS = {
  "never does anything": [() => {}, /^connect timeout$/],
  "has events without details": [(socket) => socket.onclose(), /^the connection has failed$/],
  "fails without details": [(socket) => socket.onerror(), /^the connection has failed$/],
  "has a close without a code": [(socket) => socket.onclose({}), /^the connection has failed$/],
  "has a message without data": [(socket) => socket.onmessage({}), /^invalid message: /],
  "has a message that is no event": [(socket) => socket.onmessage(), /^invalid message: /],
  "has a binary message": [(socket) => socket.onmessage({ data: new Blob(["{}"]) }), /^invalid message: /],
  "has a page of a proxy as a message": [(socket) => socket.onmessage({ data: "<html>" }), /^invalid message: /],
  "has a message that is null": [(socket) => socket.onmessage({ data: "null" }), /^invalid message: /],
  "throws as it sends": [(socket) => {
    socket.send = () => { throw new Error("InvalidStateError"); };
    socket.onmessage({ data: '{"op":"welcome"}' });
  }, /^InvalidStateError$/],
  "has a message without a topic": [(socket) => {
    socket.onmessage({ data: '{"op":"welcome"}' });
    socket.onmessage({ data: '{"op":"message","data":1}' });
  }, /^invalid message: /],
  "has invalid base64": [(socket) => {
    socket.onmessage({ data: '{"op":"welcome"}' });
    socket.onmessage({ data: '{"op":"message","topic":"a","b64":"?"}' });
  }, /^invalid message: /],
};

for (const [name, [fault, reason]] of Object.entries(SOCKETS)) {
  test(`a connection that ${name} is followed by another one`, limit, async (t) => {
    const changes = channel();
    const sockets = channel();
    class Socket {
      constructor() { sockets.push(this); }
      send(text) { this.sent = JSON.parse(text); }
      close() { throw new Error("of close"); }
    }
    const client = connect("ws://host/ws", { WebSocket: Socket, minDelay: 1_000_000, maxDelay: 1_000_000, responseTimeout: 50, onstatus: changes.push });
    t.after(() => client.close());
    const subscription = client.subscribe("a.*", () => {});
    fault(await sockets.next());
    const change = await ending(changes);
    assert.equal(change.status, "waiting");
    assert.match(change.reason, reason);
    client.retry();
    const socket = await sockets.next();
    socket.onmessage({ data: '{"op":"welcome"}' });
    socket.onmessage({ data: JSON.stringify({ op: "ack", id: socket.sent.id, topic: "a.*" }) });
    await subscription.ready;
  });
}

test("data that is no JSON rejects its request alone, also if it was queued", limit, async (t) => {
  const circular = {};
  circular.self = circular;
  const all = [circular, 1n, { toJSON() { throw new Error("of the application"); } }, { toJSON() { throw undefined; } }];
  const { client, sockets } = overSockets(t);
  const requests = () => all.flatMap((data) => [client.publish("a", data), client.set("a", `key ${all.indexOf(data)}`, data), client.call("m", data), client.join("a", { id: "a", info: data })]);
  const queued = requests();
  const subscription = client.subscribe("a", () => {});
  const last = client.publish("a", "last");
  const socket = await sockets.next();
  socket.line({ op: "welcome" });
  for (const request of [...queued.filter((_, at) => at % 4 < 3), ...requests()]) await assert.rejects(request, { code: "invalid" });
  assert.equal(client.status, "open");
  while (socket.sent.size > 0) {
    const { id, topic } = await socket.sent.next();
    socket.line({ op: "ack", id, topic });
  }
  await Promise.all([subscription.ready, last]);
});

/** A client of a network that blocks WebSockets, and the changes of its status. */
function overHttp(t, delay) {
  class Blocked {
    constructor() { queueMicrotask(() => this.onclose?.({ code: 1006, reason: "" })); }
    close() {}
  }
  const changes = channel();
  const client = connect("ws://host/ws", { WebSocket: Blocked, fallback: true, minDelay: delay, maxDelay: delay, responseTimeout: 50, onstatus: changes.push });
  t.after(() => client.close());
  return { client, changes };
}

const RESPONSES = {
  "never settles": [never, /^connect timeout$/],
  "throws": [() => { throw new Error("of the application"); }, /^of the application$/],
  "rejects": [async () => { throw new Error("of the application"); }, /^of the application$/],
  "rejects with undefined": [() => Promise.reject(undefined), /./],
  "returns nothing": [() => {}, /./],
  "returns an object": [async () => ({}), /./],
  "returns a page": [async () => new Response("<html>", { status: 502 }), /^<html>$/],
};

for (const [name, [fault, reason]] of Object.entries(RESPONSES)) {
  test(`a function fetch that ${name} ends in a status with a text, and a retry works`, limit, async (t) => {
    let isFaulty = true;
    t.mock.method(globalThis, "fetch", (...parts) => (isFaulty ? fault(...parts) : Promise.resolve(new Response("ok"))));
    const { client, changes } = overHttp(t, 100_000);
    const next = async () => {
      const change = await ending(changes);
      client.retry();
      return change;
    };
    for (let attempt = 0; attempt < 2; attempt += 1) assert.equal((await next()).reason, "the connection has failed");
    assert.match((await next()).reason, reason);
    isFaulty = false;
    for (let attempt = 0; attempt < 2; attempt += 1) await next();
    await changes.until(({ status }) => status === "open");
    assert.equal(client.transport, "http");
  });

  test(`a function fetch that ${name} behind the beginning ends a request, or the connection, with a text`, limit, async (t) => {
    t.mock.method(globalThis, "fetch", (url, init) => (url.pathname === "/healthz" ? Promise.resolve(new Response("ok")) : fault(url, init)));
    const { client, changes } = overHttp(t, 1);
    await changes.until(({ status }) => status === "open");
    const errors = channel();
    const all = [client.publish("a", 1), client.history("a"), client.members("a"), client.stream("a").read(0)];
    for (const request of all) request.catch(errors.push);
    if (fault === never) {
      client.close();
      for (const request of all) await assert.rejects(request, { code: "closed" });
      return;
    }
    for (let count = 0; count < all.length; count += 1) assert.ok(["lost", 502].includes((await errors.next()).code));
  });
}

test("a proxy that holds a response of a subscription ends the connection with a text", limit, async (t) => {
  t.mock.method(globalThis, "fetch", (url) => (url.pathname === "/healthz" ? Promise.resolve(new Response("ok")) : never()));
  const { client, changes } = overHttp(t, 1);
  for (const follow of [() => client.subscribe("a", () => {}), () => client.state("a", () => {}), () => client.stream("a").consume(() => {})]) {
    const followed = follow();
    await changes.until(({ status }) => status === "open");
    assert.equal((await ending(changes)).reason, "no response in 50 ms (responseTimeout)");
    (followed.unsubscribe ?? followed.stop).call(followed);
  }
});
