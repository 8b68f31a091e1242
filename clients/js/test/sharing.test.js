// Several parts of an application use one client, as the components of a page do: they share subscriptions, and none ends another's.
import assert from "node:assert/strict";
import { test } from "node:test";

import { overSockets, settled } from "./sockets.js";

const limit = { timeout: 60_000 };

/** An open client, and functions that read the requests of its connection and answer them. */
async function open(t, options) {
  const { client, sockets } = overSockets(t, { minDelay: 1, ...options });
  const socket = await sockets.next();
  socket.line({ op: "welcome" });
  const requests = async (own = socket) => {
    await settled();
    const sent = [];
    while (own.sent.size > 0) sent.push(await own.sent.next());
    return sent;
  };
  /** Acknowledges all requests, and returns them without their ids. */
  const answer = async (own = socket, more = {}) => {
    const sent = await requests(own);
    for (const { id, topic } of sent) own.line({ op: "ack", id, topic, ...more });
    return sent.map(({ id: _, ...request }) => request);
  };
  return { client, socket, sockets, requests, answer };
}

const snapshot = (epoch, seq, keys) => ({ op: "keys", topic: "game", epoch, seq, part: 1, set: Object.entries(keys).map(([key, data]) => ({ key, data, version: seq })) });

test("each change of a state has a map of its own, and earlier maps stay as they are", limit, async (t) => {
  const { client, socket, answer } = await open(t);
  const maps = [];
  const state = client.state("game", (keys) => maps.push(keys));
  await answer();
  socket.line(snapshot(1, 1, { anna: 1 }));
  socket.line({ op: "keys", topic: "game", epoch: 1, seq: 2, set: [{ key: "ben", data: 2, version: 2 }] });
  socket.line({ op: "keys", topic: "game", epoch: 1, seq: 3, deleted: ["anna"] });
  assert.deepEqual(maps.map((keys) => [...keys]), [[["anna", 1]], [["anna", 1], ["ben", 2]], [["ben", 2]]]);
  assert.equal(state.keys, maps[2]);
  assert.deepEqual([state.version("ben"), state.version("anna"), state.position], [2, undefined, { epoch: 1, seq: 3 }]);
});

test("states of a topic share a subscription, and the last one ends it", limit, async (t) => {
  const { client, socket, answer } = await open(t);
  const seen = { first: [], second: [], filtered: [] };
  const first = client.state("game", (keys, changed) => seen.first.push([[...keys], [...changed]]));
  assert.deepEqual(await answer(), [{ op: "subscribe", topic: "game", keys: true }]);
  socket.line(snapshot(1, 1, { anna: 1, ben: 1 }));
  const acknowledged = [];
  const second = client.state("game", (keys, changed) => seen.second.push([[...keys], [...changed]]), { onsubscribed: ({ topic }) => acknowledged.push(topic) });
  const filtered = client.state("game", (keys, changed) => seen.filtered.push([[...keys], [...changed]]), { filter: "ben" });
  assert.deepEqual([seen.second, second.keys.size], [[], 0]);
  assert.equal((await second.ready).keys.get("anna"), 1);
  assert.equal((await filtered.ready).keys.size, 1);
  socket.line({ op: "keys", topic: "game", epoch: 1, seq: 2, set: [{ key: "anna", data: 2, version: 2 }] });
  assert.deepEqual(seen.first.at(-1), [[["anna", 2], ["ben", 1]], ["anna"]]);
  assert.deepEqual([seen.second.length, seen.second.at(-1)], [2, seen.first.at(-1)]);
  assert.deepEqual(seen.filtered, [[[["ben", 1]], ["ben"]]]);
  assert.deepEqual(acknowledged, ["game"]);
  for (const state of [first, filtered, first]) state.unsubscribe();
  assert.deepEqual(await answer(), []);
  second.unsubscribe();
  assert.deepEqual(await answer(), [{ op: "unsubscribe", topic: "game", keys: true }]);
  assert.deepEqual(seen.first.length, 2);
});

test("a state that needs more keys, or sooner, widens the subscription without a gap", limit, async (t) => {
  const { client, socket, answer } = await open(t);
  const gaps = [];
  const slow = client.state("game", () => {}, { filter: "ben", interval: 500, ongap: gaps.push.bind(gaps) });
  assert.deepEqual(await answer(), [{ op: "subscribe", topic: "game", keys: true, filter: "ben", interval: 500 }]);
  socket.line(snapshot(1, 5, { ben: 1 }));
  const all = client.state("game", () => {}, { interval: 1000 });
  assert.deepEqual(await answer(), [{ op: "subscribe", topic: "game", keys: true, interval: 500 }]);
  socket.line(snapshot(1, 5, { anna: 1, ben: 1 }));
  client.state("game", () => {}, { interval: 100 });
  assert.deepEqual(await answer(), [{ op: "subscribe", topic: "game", keys: true, interval: 100, from: { epoch: 1, seq: 5 } }]);
  assert.deepEqual([[...slow.keys.keys()], [...all.keys.keys()], gaps], [["ben"], ["anna", "ben"], []]);
});

test("keys that begin anew reach `onreset`, other gaps `ongap`", limit, async (t) => {
  const { client, socket, answer } = await open(t);
  const calls = [];
  client.state("game", () => {}, { onreset: ({ reason }) => calls.push(`onreset ${reason}`), ongap: ({ reason }) => calls.push(`ongap ${reason}`) });
  client.state("game", () => {}, { ongap: ({ reason }) => calls.push(`second ${reason}`) });
  await answer();
  for (const [epoch, seq] of [[1, 1], [1, 9], [2, 1]]) socket.line(snapshot(epoch, seq, {}));
  assert.deepEqual(calls, ["ongap history", "second history", "onreset reset", "second reset"]);
});

test("a rejected subscription to keys rejects each of its states, and a later state asks again", limit, async (t) => {
  const { client, socket, requests } = await open(t);
  const errors = [];
  const states = [1, 2].map(() => client.state("game", () => {}, { onerror: ({ code }) => errors.push(code) }));
  const [{ id }] = await requests();
  socket.line({ op: "error", id, code: 403, error: "no" });
  for (const { ready } of states) await assert.rejects(ready, { code: 403 });
  assert.deepEqual(errors, [403, 403]);
  for (const state of states) state.unsubscribe();
  client.state("game", () => {});
  assert.equal((await requests()).length, 1);
});

test("joins of a topic are counted: the last `leave` of them ends the presence", limit, async (t) => {
  const { client, answer } = await open(t);
  const anna = { id: "anna", info: { name: "Anna" } };
  const first = client.join("room", anna);
  assert.deepEqual(await answer(), [{ op: "join", topic: "room", member: anna }]);
  await first;
  const second = client.join("room", anna);
  await second;
  await first.leave();
  await first.leave();
  assert.deepEqual(await answer(), []);
  const left = second.leave();
  assert.deepEqual(await answer(), [{ op: "leave", topic: "room" }]);
  await left;
});

test("`client.leave` ends all joins of a topic, whose own `leave` then has no effect on a later join", limit, async (t) => {
  const { client, answer } = await open(t);
  const [first, second] = [client.join("room", { id: "anna" }), client.join("room", { id: "anna", info: 2 })];
  assert.deepEqual((await answer()).map(({ op, member }) => [op, member.info]), [["join", undefined], ["join", 2]]);
  await Promise.all([first, second]);
  const left = client.leave("room");
  await answer();
  await left;
  client.join("room", { id: "anna" });
  await answer();
  await first.leave();
  await second.leave();
  assert.deepEqual(await answer(), []);
});

test("an effect that runs twice, as in StrictMode, leaves one subscription, one state and one member", limit, async (t) => {
  const { client, sockets } = overSockets(t, { minDelay: 1 });
  const effect = () => {
    const all = [client.subscribe("room", () => {}), client.state("game", () => {})];
    const joined = client.join("room", { id: "anna" });
    return () => {
      for (const one of all) one.unsubscribe();
      joined.leave();
    };
  };
  effect()();
  effect();
  for (let round = 1; round <= 2; round += 1) {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    await settled();
    const sent = [];
    while (socket.sent.size > 0) sent.push((await socket.sent.next()).op);
    assert.deepEqual(sent, ["subscribe", "join", "subscribe"]);
    socket.lose();
  }
});

test("a join that the server rejects is written to the console, unless the application waits for it", limit, async (t) => {
  const warned = [];
  t.mock.method(console, "warn", (text) => warned.push(text));
  const { client, socket, requests } = await open(t);
  client.join("one", { id: "anna" });
  const awaited = assert.rejects(client.join("two", { id: "anna" }), { code: 403 });
  const caught = client.join("three", { id: "anna" }).catch(({ code }) => code);
  // The second join replaces the member, and the first caller waits for it.
  const replaced = assert.rejects(client.join("four", { id: "anna" }), { code: 403 });
  await settled();
  client.join("four", { id: "anna", info: 2 });
  for (const { id } of await requests()) socket.line({ op: "error", id, code: 403, error: "no" });
  await replaced;
  await awaited;
  assert.equal(await caught, 403);
  assert.deepEqual(warned, ["sinews: one: no (403)"]);
});
