// The client over a WebSocket that answers as each test says: requests that the application or the network ends.
import assert from "node:assert/strict";
import { test } from "node:test";

import { channel } from "./server.js";
import { overSockets, settled } from "./sockets.js";

const limit = { timeout: 60_000 };

/** All requests of a client that have one answer. */
function requests(client) {
  const stream = client.stream("orders");
  return [
    client.publish("a", 1), client.history("a"), client.call("m"), client.presence("a"), client.members("a"), client.join("a", { id: "anna" }),
    client.set("a", "key", 1), client.delete("a", "key"), stream.append(1), stream.read(0), stream.info(), stream.delete(),
  ];
}

/** A subscription, the keys of a topic and a consumption, whose callbacks push to `calls`. */
function repeated(client, calls) {
  const callbacks = Object.fromEntries(["presence", "onsubscribed", "ongap", "onerror"].map((name) => [name, (value) => calls.push([name, value])]));
  const subscription = client.subscribe("a", calls.push, callbacks);
  const state = client.state("b", calls.push, callbacks);
  const consumption = client.stream("orders").consume(calls.push, callbacks);
  return [[subscription, () => subscription.unsubscribe()], [state, () => state.unsubscribe()], [consumption, () => consumption.stop()]];
}

/** The answers of a server to a subscription, the keys of a topic and a consumption. */
function answer(socket, { id, op, topic, keys }) {
  socket.line({ op: "ack", id, topic, subscribers: 1, partitions: [] });
  if (op === "consume") socket.line({ op: "records", stream: "orders", partition: 0, records: [{ offset: 0, at: 1, data: 1 }] });
  else if (keys) socket.line({ op: "keys", topic, epoch: 1, seq: 1, part: 1, set: [] });
  else socket.line({ op: "message", topic, data: 1 });
}

/** Each way in which the application ends a request before its answer. */
const endings = {
  "before the connection": async (client, sockets, end) => {
    await sockets.next();
    end();
  },
  "behind the request": async (client, sockets, end) => {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    const asked = await socket.sent.next();
    end();
    answer(socket, asked);
  },
  "before the connection is lost": async (client, sockets, end) => {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    end();
    socket.lose();
  },
  "after the connection is lost": async (client, sockets, end) => {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    socket.lose();
    end();
  },
  "before an error": async (client, sockets, end) => {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    const { id } = await socket.sent.next();
    end();
    socket.line({ op: "error", id, code: 503, error: "the store is away" });
  },
  "behind an error that is retried": async (client, sockets, end) => {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    const { id } = await socket.sent.next();
    socket.line({ op: "error", id, code: 503, error: "the store is away" });
    end();
  },
  "before the client is closed": async (client, sockets, end) => {
    (await sockets.next()).line({ op: "welcome" });
    end();
    client.close();
  },
};

for (const [name, run] of Object.entries(endings)) {
  for (const at of [0, 1, 2]) {
    test(`a ${["subscription", "state", "consumption"][at]} that is ended ${name} is rejected with stopped`, limit, async (t) => {
      const { client, sockets } = overSockets(t);
      const calls = channel();
      const all = repeated(client, calls);
      // The others need no answer.
      for (const [index, [, end]] of all.entries()) if (index !== at) end();
      const [request, end] = all[at];
      await run(client, sockets, end);
      await assert.rejects(request.ready, { code: "stopped" });
      await settled();
      assert.equal(calls.size, 0, "callbacks after the end");
    });
  }
}

test("a client that closes rejects all requests that have no answer", limit, async (t) => {
  for (const isOpen of [false, true]) {
    const { client, sockets, timers } = overSockets(t);
    const calls = channel();
    const socket = await sockets.next();
    if (isOpen) {
      socket.line({ op: "welcome" });
      const joined = client.join("hall", { id: "anna" });
      socket.line({ op: "ack", id: (await socket.sent.next()).id });
      await joined;
    }
    const all = [...requests(client), ...repeated(client, calls).map(([{ ready }]) => ready)];
    if (isOpen) all.push(client.leave("hall"));
    client.close();
    for (const request of all) await assert.rejects(request, { code: "closed" });
    assert.deepEqual(calls.size, 3, "one onerror of each");
    assert.deepEqual([client.status, socket.isClosed, timers()], ["closed", true, []]);
  }
});

test("after a loss, requests without an answer are rejected, and subscriptions are requested again", limit, async (t) => {
  const { client, sockets } = overSockets(t, { minDelay: 1 });
  const socket = await sockets.next();
  socket.line({ op: "welcome" });
  const all = requests(client);
  const joined = all.splice(5, 1)[0];
  const calls = channel();
  const subscriptions = repeated(client, calls);
  socket.lose();
  for (const request of all) await assert.rejects(request, { code: "lost" });
  const next = await sockets.next();
  next.line({ op: "welcome" });
  while (next.sent.size > 0) answer(next, await next.sent.next());
  await Promise.all([joined, ...subscriptions.map(([{ ready }]) => ready)]);
});

test("requests of a callback of the status are sent once", limit, async (t) => {
  const { client, sockets } = overSockets(t);
  client.onstatus = ({ status }) => {
    if (status !== "open") return;
    repeated(client, channel());
    client.join("a", { id: "anna" });
  };
  const socket = await sockets.next();
  socket.line({ op: "welcome" });
  const sent = [];
  while (socket.sent.size > 0) sent.push((await socket.sent.next()).op);
  assert.deepEqual(sent.sort(), ["consume", "join", "subscribe", "subscribe"]);
});

test("a client that is closed in a callback stays closed", limit, async (t) => {
  for (const last of ["connecting", "open", "waiting"]) {
    const { client, sockets, timers } = overSockets(t);
    const changes = [];
    client.onstatus = ({ status }) => {
      changes.push(status);
      if (status === last) client.close();
    };
    const subscription = client.subscribe("a", () => {}, { onerror: () => client.close() });
    if (last !== "connecting") {
      const socket = await sockets.next();
      socket.line({ op: "welcome" });
      socket.lose();
    }
    await assert.rejects(subscription.ready, { code: "closed" });
    await settled();
    assert.deepEqual([changes.indexOf("closed"), client.status, sockets.size, timers()], [changes.length - 1, "closed", 0, []], last);
  }
});

test("a retry in a callback of the status opens one connection", limit, async (t) => {
  const { client, sockets } = overSockets(t, { minDelay: 1, maxDelay: 1 });
  client.onstatus = ({ status }) => {
    if (status === "waiting") client.retry();
  };
  (await sockets.next()).lose();
  const socket = await sockets.next();
  // Longer than the delay of an attempt.
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.deepEqual([client.status, sockets.size, socket.isClosed], ["connecting", 0, undefined]);
});

test("a token that fails after the end does not open the client again", limit, async (t) => {
  let fail = null;
  const { client, sockets, timers } = overSockets(t, { token: () => new Promise((_, reject) => { fail = reject; }) });
  await settled();
  client.close();
  fail(new Error("no session"));
  await settled();
  assert.deepEqual([client.status, sockets.size, timers()], ["closed", 0, []]);
});

test("subscriptions, keys, joins and consumptions are requested again after a temporary error, at first and after a reconnect", limit, async (t) => {
  const { setTimeout } = globalThis;
  t.mock.method(globalThis, "setTimeout", (callback, delay) => setTimeout(callback, Math.min(delay, 5)));
  const errors = channel();
  t.mock.method(console, "error", errors.push);
  const { client, sockets } = overSockets(t, { heartbeatInterval: 1_000_000, responseTimeout: 1_000_000 });
  const onerror = errors.push;
  const all = [client.subscribe("a", () => {}, { onerror }), client.state("b", () => {}, { onerror }), client.stream("c").consume(() => {}, { onerror })];
  const joined = client.join("d", { id: "anna" });
  const ops = ["consume c", "join d", "subscribe a", "subscribe b"];
  for (const round of [1, 2]) {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    const requests = async () => {
      const received = [];
      while (received.length < ops.length) received.push(await socket.sent.next());
      assert.deepEqual(received.map(({ op, topic, stream }) => `${op} ${topic ?? stream}`).sort(), ops);
      return received;
    };
    for (let attempt = 0; attempt < 2; attempt += 1) {
      for (const { id } of await requests()) socket.line({ op: "error", id, code: 503, error: "the application is away" });
    }
    for (const { id, topic } of await requests()) socket.line({ op: "ack", id, topic, partitions: [] });
    socket.line({ op: "keys", topic: "b", epoch: 1, seq: 1, part: 1, set: [] });
    await Promise.all([...all.map(({ ready }) => ready), joined]);
    if (round === 1) socket.lose();
  }
  assert.equal(errors.size, 0);
});

test("a closed client has no timers of a renewal of the token, or of a retry", limit, async (t) => {
  let token = 0;
  const { client, sockets, timers } = overSockets(t, { token: () => `a.b.${token += 1}` });
  client.subscribe("a", () => {});
  const socket = await sockets.next();
  socket.line({ op: "welcome", expires_in: 0.001 });
  const { id } = await socket.sent.next();
  socket.line({ op: "error", id, code: 503, error: "the store is away" });
  assert.equal((await socket.sent.next()).op, "token");
  client.close();
  assert.deepEqual(timers(), []);
});

test("a consumption that is stopped in its callback gets no further record", limit, async (t) => {
  const { client, sockets } = overSockets(t);
  const offsets = [];
  const consumption = client.stream("orders").consume(({ offset }) => {
    offsets.push(offset);
    consumption.stop();
  });
  const socket = await sockets.next();
  socket.line({ op: "welcome" });
  socket.line({ op: "ack", id: (await socket.sent.next()).id, partitions: [{ partition: 0, offset: 0 }] });
  socket.line({ op: "records", stream: "orders", partition: 0, records: [0, 1].map((offset) => ({ offset, at: 1, data: 1 })) });
  assert.deepEqual(offsets, [0]);
});
