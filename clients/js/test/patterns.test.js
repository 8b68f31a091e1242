// Recovery of patterns: the client continues after the last message of each topic, or reports what may be lost.
import assert from "node:assert/strict";
import { test } from "node:test";

import { overSockets, settled } from "./sockets.js";

const limit = { timeout: 60_000 };

/** A subscription to a pattern, and a function that connects: it answers the request, which it returns. */
function follow(t, options = {}) {
  const { client, sockets } = overSockets(t, { minDelay: 1 });
  const [seen, gaps] = [[], []];
  const subscription = client.subscribe("chat.*", ({ topic, data }) => seen.push(`${topic} ${data}`), { ongap: (gap) => gaps.push(gap), ...options });
  let socket;
  const connect = async (answer) => {
    socket?.lose();
    socket = await sockets.next();
    socket.line({ op: "welcome" });
    await settled();
    const { id, ...request } = await socket.sent.next();
    socket.line({ op: "ack", id, topic: "chat.*", ...answer });
    return request;
  };
  const message = (topic, seq, data = seq) => socket.line({ op: "message", topic, epoch: 1, seq, data });
  return { client, subscription, seen, gaps, connect, message, line: (line) => socket.line(line) };
}

const at = (seq) => ({ epoch: 1, seq });

test("a pattern resumes after the last message of each topic, without a gap", limit, async (t) => {
  const { subscription, seen, gaps, connect, message } = follow(t);
  assert.deepEqual(await connect({ positions: { "chat.a": at(3), "chat.b": at(8) } }), { op: "subscribe", topic: "chat.*", recover: true });
  message("chat.a", 4);
  message("chat.c", 1);
  const positions = { "chat.a": at(4), "chat.b": at(8), "chat.c": at(1) };
  assert.deepEqual(subscription.position, { positions });
  const answer = { positions: { "chat.a": at(5), "chat.b": at(8), "chat.c": at(1), "chat.d": at(1) }, replayed: 2, complete: true };
  assert.deepEqual(await connect(answer), { op: "subscribe", topic: "chat.*", recover: true, from: { positions } });
  // The messages that follow are not received yet: the next connection asks for them again.
  assert.deepEqual((await connect(answer)).from, { positions });
  for (const [topic, seq] of [["chat.a", 5], ["chat.d", 1], ["chat.a", 5], ["chat.a", 6]]) message(topic, seq);
  assert.deepEqual(seen, ["chat.a 4", "chat.c 1", "chat.a 5", "chat.d 1", "chat.a 6"]);
  assert.deepEqual(gaps, []);
  assert.deepEqual((await connect({ positions: {}, complete: true })).from.positions["chat.a"], at(6));
});

test("topics of a pattern that have lost messages are reported by name, unknown ones as the pattern", limit, async (t) => {
  const { gaps, connect } = follow(t);
  await connect({ positions: { "chat.a": at(3) } });
  await connect({ positions: { "chat.a": at(9) }, complete: false, incomplete: ["chat.a"] });
  assert.deepEqual(gaps.splice(0), [{ topic: "chat.a", reason: "history", replayed: 0 }]);
  await connect({ positions: { "chat.a": at(9) }, complete: false });
  assert.deepEqual(gaps.splice(0), [{ topic: "chat.*", reason: "unretained" }]);
  // More topics than the server lists.
  await connect({ positions: { "chat.a": at(9) }, positions_complete: false, complete: true });
  assert.deepEqual(gaps.splice(0), []);
  await connect({ positions: { "chat.a": at(9) }, complete: true });
  assert.deepEqual(gaps.splice(0), [{ topic: "chat.*", reason: "unretained" }]);
  await connect({ positions: { "chat.a": at(9) }, complete: true });
  assert.deepEqual(gaps.splice(0), []);
});

test("without positions, or with `recover: false`, each reconnect of a pattern is a gap", limit, async (t) => {
  for (const options of [{}, { recover: false }]) {
    const { seen, gaps, connect, message } = follow(t, options);
    assert.equal("recover" in await connect({}), options.recover !== false);
    message("chat.a", 4);
    message("chat.a", 4);
    assert.equal("from" in await connect({}), false);
    assert.deepEqual([seen, gaps], [["chat.a 4", "chat.a 4"], [{ topic: "chat.*", reason: "unretained" }]]);
  }
});

test("positions beyond the limit are not stored, and the next reconnect is a gap", limit, async (t) => {
  const { gaps, subscription, connect, message } = follow(t);
  await connect({ positions: {} });
  for (let topic = 0; topic <= 1024; topic += 1) message(`chat.${topic}`, 1);
  assert.equal(Object.keys(subscription.position.positions).length, 1024);
  assert.equal(Object.keys((await connect({ positions: {}, complete: true })).from.positions).length, 1024);
  assert.deepEqual(gaps, [{ topic: "chat.*", reason: "unretained" }]);
});

test("a stored position of a pattern continues in another client", limit, async (t) => {
  const from = { positions: { "chat.a": at(3) } };
  const { gaps, seen, connect, message } = follow(t, { from });
  assert.deepEqual((await connect({ positions: { "chat.a": at(4) }, replayed: 1, complete: true })).from, from);
  message("chat.a", 3);
  message("chat.a", 4);
  assert.deepEqual([seen, gaps, from], [["chat.a 4"], [], { positions: { "chat.a": at(3) } }]);
});

test("a pattern gets the messages that a subscription by name resumes, once, and learns of its gap", limit, async (t) => {
  const { client, sockets } = overSockets(t, { minDelay: 1 });
  const [seen, gaps] = [[], []];
  client.subscribe("chat.a", ({ seq }) => seen.push(`name ${seq}`));
  client.subscribe("chat.*", ({ topic, seq }) => seen.push(`${topic} ${seq}`), { ongap: ({ topic, reason }) => gaps.push([topic, reason]) });
  const connect = async () => {
    const socket = await sockets.next();
    socket.line({ op: "welcome" });
    await settled();
    return { socket, ids: [(await socket.sent.next()).id, (await socket.sent.next()).id], message: (topic, seq) => socket.line({ op: "message", topic, ...at(seq), data: 0 }) };
  };
  const first = await connect();
  first.socket.line({ op: "ack", id: first.ids[0], topic: "chat.a", ...at(3) });
  first.socket.line({ op: "ack", id: first.ids[1], topic: "chat.*", positions: { "chat.a": at(3), "chat.b": at(1) } });
  for (const [next, begin] of [[4, false], [9, true]]) {
    (next === 4 ? first : seen.second).socket.lose();
    const second = await connect();
    seen.second = second;
    second.socket.line({ op: "ack", id: second.ids[0], topic: "chat.a", ...at(next), replayed: 1, complete: !begin });
    second.message("chat.a", next);
    // A message of another topic before the acknowledgement is repeated behind it.
    second.message("chat.b", next);
    second.socket.line({ op: "ack", id: second.ids[1], topic: "chat.*", positions: {}, replayed: 1, complete: true });
    second.message("chat.b", next);
    assert.deepEqual(seen.splice(0), [`name ${next}`, `chat.a ${next}`, `chat.b ${next}`]);
    assert.deepEqual(gaps.splice(0), begin ? [["chat.a", "history"]] : []);
  }
});

test("an earlier server that does not know `recover` gets the subscription without it", limit, async (t) => {
  const { client, sockets } = overSockets(t);
  const subscription = client.subscribe("chat.*", () => {});
  const socket = await sockets.next();
  socket.line({ op: "welcome" });
  await settled();
  const first = await socket.sent.next();
  socket.line({ op: "error", id: first.id, code: 400, error: "invalid message: unknown field `recover`, expected one of `op`" });
  const { id, ...second } = await socket.sent.next();
  assert.deepEqual(second, { op: "subscribe", topic: "chat.*" });
  socket.line({ op: "ack", id, topic: "chat.*" });
  await subscription.ready;
});
