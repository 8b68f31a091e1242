import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";
import { promisify } from "node:util";

import { connect, SinewsError } from "../sinews.js";
import { channel, folder, proxy, serve, tokens } from "./server.js";

// Far more time than a test needs, also on a machine that stalls.
const limit = { timeout: 180_000 };

/** A client that is closed after the test. */
function client(test, url, options) {
  const made = connect(url, { minDelay: 20, ...options });
  test.after(() => made.close());
  return made;
}

/** Resolves at the next change to a status. */
function reaches(client, wanted) {
  return new Promise((resolve) => {
    const before = client.onstatus;
    client.onstatus = (change) => {
      before?.(change);
      if (change.status !== wanted) return;
      client.onstatus = before;
      resolve(change);
    };
  });
}

/**
 * A WebSocket whose server says that the token expires in a second. The token lasts longer: a machine that stalls does not delay
 * its renewal beyond its end.
 */
class SoonExpired extends WebSocket {
  get onmessage() {
    return super.onmessage;
  }

  set onmessage(handle) {
    super.onmessage = handle && ((event) => handle({
      data: typeof event.data === "string" ? event.data.replace(/"expires_in":\d{1,3}\b/, '"expires_in":1') : event.data,
    }));
  }
}

/** Runs a program with the client in a process of its own, until that ends. */
function program(text) {
  const script = `import { connect } from ${JSON.stringify(new URL("../sinews.js", import.meta.url))};${text}`;
  const flags = [...process.execArgv, "--no-warnings", "--input-type=module"];
  return promisify(execFile)(process.execPath, [...flags, "--eval", script], { timeout: 120_000 });
}

test("JSON, text and bytes arrive at subscribers by name and by pattern", limit, async (t) => {
  const { url, http } = await serve(t);
  const [one, two] = [client(t, url), client(t, http.concat("/ws"))];
  const [named, matched] = [channel(), channel()];
  const subscription = one.subscribe("chat.room", named.push);
  await Promise.all([subscription.ready, two.subscribe("chat.*", matched.push).ready]);
  const { reached } = await two.publish("chat.room", { text: "hello", at: [1, null] });
  assert.equal(reached, 2);
  await two.publish("chat.room", new Uint8Array([0, 128, 255]));
  await fetch(`${http}/topics/chat.room`, { method: "POST", body: "posted" });
  for (const messages of [named, matched]) {
    assert.deepEqual(await messages.next(), { op: "message", topic: "chat.room", data: { text: "hello", at: [1, null] } });
    assert.deepEqual((await messages.next()).data, new Uint8Array([0, 128, 255]));
    assert.equal((await messages.next()).data, "posted");
  }
  subscription.unsubscribe();
  // On the same connection: the server has read the end of the subscription before.
  assert.equal((await one.publish("chat.room", 1)).reached, 1);
  await matched.next();
  assert.equal(named.size, 0);
});

test("an error of the application does not keep messages from other subscriptions", limit, async (t) => {
  const { url } = await serve(t);
  const { stdout } = await program(`
    console.error = ({ message }) => console.log("reported", message);
    const client = connect(${JSON.stringify(url)});
    client.subscribe("a", () => { throw new Error("of the application"); });
    client.subscribe("a", async () => { throw new Error("of a promise"); });
    await client.subscribe("a", ({ data }) => console.log("message", data)).ready;
    await client.publish("a", 1);
    client.close();`);
  assert.deepEqual(stdout.trim().split("\n").sort(), ["message 1", "reported of a promise", "reported of the application"]);
});

test("rejections of the server have its code and text", limit, async (t) => {
  const { url } = await serve(t);
  const one = client(t, url);
  await assert.rejects(one.publish("a.>", 1), (error) => error instanceof SinewsError && error.code === 422);
  const errors = channel();
  const subscription = one.subscribe("a..b", () => {}, { onerror: errors.push });
  await assert.rejects(subscription.ready, { code: 422 });
  assert.equal((await errors.next()).code, 422);
  await assert.rejects(one.stream("orders").append(1), { name: "SinewsError" });
});

test("history is listed, replayed, and resumed from a stored position", limit, async (t) => {
  const { url } = await serve(t, ["--history", "kept.>=5"]);
  const one = client(t, url);
  for (const data of [1, 2, 3]) await one.publish("kept.a", data);
  const listed = await one.history("kept.a", 2);
  assert.deepEqual(listed.map(({ seq, data }) => [seq, data]), [[2, 2], [3, 3]]);
  const { epoch, seq } = listed[0];
  const after = await one.history("kept.a", { from: { epoch, seq } });
  assert.deepEqual(after.map(({ data }) => data), [3]);
  assert.equal((await one.history("kept.a")).length, 3);

  const first = channel();
  const subscription = one.subscribe("kept.a", first.push, { last: 2 });
  assert.deepEqual([(await first.next()).data, (await first.next()).data], [2, 3]);
  const { position } = subscription;
  assert.deepEqual(position, { epoch, seq: 3 });
  // A replay for another subscription of the client is no message of the first.
  const again = channel();
  one.subscribe("kept.a", again.push, { last: 3 });
  assert.deepEqual([(await again.next()).data, (await again.next()).data, (await again.next()).data], [1, 2, 3]);
  assert.equal(first.size, 0);
  one.close();

  const two = client(t, url);
  await two.publish("kept.a", 4);
  const [second, gaps] = [channel(), channel()];
  await two.subscribe("kept.a", second.push, { from: position, ongap: gaps.push }).ready;
  assert.equal((await second.next()).data, 4);
  assert.equal(gaps.size, 0);
  // The position is older than the oldest retained message.
  for (const data of [5, 6, 7, 8, 9]) await two.publish("kept.a", data);
  const [third, missed] = [channel(), channel()];
  const three = client(t, url);
  await three.subscribe("kept.a", third.push, { from: position, ongap: missed.push }).ready;
  assert.deepEqual(await missed.next(), { topic: "kept.a", reason: "history", replayed: 5 });
  assert.equal((await third.next()).data, 5);
});

test("at another node, the number of retained messages is known before they are repeated", limit, async (t) => {
  const here = await serve(t, ["--history", "kept.>=5"]);
  const there = await serve(t, ["--history", "kept.>=5"]);
  const [lost, other] = [client(t, here.url), client(t, there.url)];
  const first = channel();
  const subscription = lost.subscribe("kept.a", first.push);
  await subscription.ready;
  // As publications of a cluster arrive at both.
  for (const data of [1, 2]) for (const node of [lost, other]) await node.publish("kept.a", data);
  await first.until(({ data }) => data === 2);
  const { position } = subscription;
  await other.publish("kept.a", 3);
  const shown = [];
  const ended = channel();
  await client(t, there.url).subscribe("kept.a", ({ data }) => {
    shown.push(data);
    if (data === 3) ended.push(data);
  }, {
    from: position, ongap: ({ reason, replayed }) => shown.push(`${reason}: ${replayed}`),
  }).ready;
  await ended.next();
  assert.deepEqual(shown, ["history: 3", 1, 2, 3]);
});

test("a subscription resumes after a lost connection without loss or repetition", limit, async (t) => {
  const { port, url } = await serve(t, ["--history", "kept.>=100"]);
  const between = await proxy(t, port);
  const [lost, direct] = [client(t, between.url), client(t, url)];
  const messages = channel();
  await lost.subscribe("kept.a", messages.push).ready;
  await direct.publish("kept.a", 0);
  for (let round = 0; round < 5; round += 1) {
    const waiting = reaches(lost, "waiting");
    between.refuse();
    await waiting;
    await direct.publish("kept.a", 2 * round + 1);
    const opened = reaches(lost, "open");
    between.accept();
    await opened;
    await direct.publish("kept.a", 2 * round + 2);
  }
  for (let data = 0; data <= 10; data += 1) assert.equal((await messages.next()).data, data);
  await lost.publish("kept.a", "last");
  assert.equal((await messages.next()).data, "last");
});

test("publications are queued while disconnected, and rejected with `lost` in flight", limit, async (t) => {
  const { port } = await serve(t);
  const between = await proxy(t, port);
  const one = client(t, between.url);
  const messages = channel();
  await one.subscribe("a", messages.push).ready;
  between.stall();
  const unanswered = one.publish("a", "in flight");
  between.refuse();
  await assert.rejects(unanswered, { code: "lost" });
  const queued = one.publish("a", "queued");
  between.accept();
  assert.equal((await queued).reached, 1);
  await messages.until(({ data }) => data === "queued");
  const many = Array.from({ length: 300 }, () => null);
  const waiting = reaches(one, "waiting");
  between.refuse();
  await waiting;
  const outcomes = many.map(() => one.publish("a", 1).catch(({ code }) => code));
  one.close();
  const codes = await Promise.all(outcomes);
  assert.equal(codes.filter((code) => code === "full").length, 300 - 256);
  assert.equal(codes.filter((code) => code === "closed").length, 256);
});

test("delays between attempts double up to the limit, and differ", limit, async (t) => {
  const { port } = await serve(t);
  const between = await proxy(t, port);
  between.refuse();
  const changes = channel();
  client(t, between.url, { minDelay: 4, maxDelay: 32, onstatus: changes.push });
  const delays = [];
  for (let attempt = 1; attempt <= 8; attempt += 1) {
    const { delay } = await changes.until(({ status }) => status === "waiting");
    const most = Math.min(32, 4 * 2 ** (attempt - 1));
    assert.ok(delay >= most / 2 && delay <= most, `attempt ${attempt} waits ${delay} ms`);
    delays.push(delay);
  }
  assert.ok(delays.every(Number.isInteger) && new Set(delays.slice(-5)).size > 1, `delays of ${delays} ms`);
});

test("a server that never answers is abandoned after the timeout", limit, async (t) => {
  const { port } = await serve(t);
  const between = await proxy(t, port);
  const one = client(t, between.url, { heartbeatInterval: 20, responseTimeout: 1_000 });
  await one.subscribe("a", () => {}).ready;
  const waiting = reaches(one, "waiting");
  between.stall();
  assert.equal((await waiting).reason, "ping timeout");
});

test("the ping is sent one interval after the last message", limit, async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const sent = [];
  const socket = await new Promise((made) => {
    class Socket {
      constructor() {
        made(this);
      }
      send(frame) {
        sent.push(JSON.parse(frame).op);
      }
      close() {}
      receive(message) {
        this.onmessage({ data: JSON.stringify(message) });
      }
    }
    client(t, "ws://host/ws", { WebSocket: Socket, heartbeatInterval: 1_000, responseTimeout: 500, onstatus: ({ status }) => status === "waiting" && sent.push(status) });
  });
  const until = (milliseconds, expected) => {
    t.mock.timers.tick(milliseconds);
    assert.deepEqual(sent, expected);
  };
  socket.receive({ op: "welcome" });
  until(900, []);
  socket.receive({ op: "message", topic: "a", data: 1 });
  until(999, []);
  until(1, ["ping"]);
  until(499, ["ping"]);
  until(1, ["ping", "waiting"]);
});

test("a token function is called again after a rejection, and before the token expires", limit, async (t) => {
  const { options, make } = tokens(t);
  const { url } = await serve(t, options);
  const made = ["not.a.token", make("--subscribe", "a", "--publish", "a", "--expires", "300s"), make("--subscribe", "a", "--expires", "1h")];
  const [asked, renewal, changes] = [channel(), channel(), channel()];
  const token = async () => {
    asked.push(made.length);
    if (made.length === 1) await renewal.next();
    return made.shift();
  };
  const one = client(t, url, { WebSocket: SoonExpired, token, onstatus: changes.push });
  const messages = channel();
  await one.subscribe("a", messages.push).ready;
  const rejected = await changes.until(({ status }) => status === "waiting");
  assert.equal(rejected.code, 4401);
  await one.publish("a", "with the second token");
  assert.equal((await messages.next()).data, "with the second token");
  // The third token replaces the second on the same connection, and grants less.
  await asked.until((left) => left === 1);
  renewal.push(true);
  let error;
  while (!error) error = await one.publish("a", 1).then(() => null, (failure) => failure);
  assert.deepEqual([error.code, error.needs], [403, { publish: ["a"] }]);
  assert.equal((await changes.until(({ status }) => status === "open")).status, "open");
  assert.equal(changes.size, 0);
});

test("a backend changes the expiry, and the token is renewed before it", limit, async (t) => {
  const { options, make } = tokens(t);
  const key = "a key of the tests, 32 bytes long".replaceAll(" ", "-");
  const { url, http } = await serve(t, [...options, "--api-key", key]);
  const asked = channel();
  let count = 0;
  const token = () => {
    asked.push(count);
    count += 1;
    return make("--subject", "anna", "--id", `t${count}`, "--subscribe", "a", "--expires", "1h");
  };
  const one = client(t, url, { WebSocket: SoonExpired, token });
  await one.subscribe("a", () => {}).ready;
  assert.equal(await asked.next(), 0);
  assert.equal(asked.size, 0);
  const body = JSON.stringify({ user: "anna", exp: Math.floor(Date.now() / 1000) + 300 });
  const answer = await fetch(`${http}/api/v1/refresh`, { method: "POST", body, headers: { Authorization: `Bearer ${key}` } });
  assert.deepEqual(await answer.json(), { connections: 1 });
  assert.equal(await asked.next(), 1);
});

test("a rejected constant token closes the client with the server's reason", limit, async (t) => {
  const { options, make } = tokens(t);
  const { url } = await serve(t, options);
  const changes = channel();
  const one = client(t, url, { token: `${make("--subscribe", "a", "--expires", "1h")}x`, onstatus: changes.push });
  const subscription = one.subscribe("a", () => {});
  const closed = await changes.until(({ status }) => status === "closed");
  assert.equal(closed.code, 4401);
  assert.match(closed.reason, /signature/);
  await assert.rejects(subscription.ready, { code: "closed" });
});

test("members join, are listed in pages, come back after a lost connection, and leave", limit, async (t) => {
  const { port, url } = await serve(t);
  const between = await proxy(t, port);
  const [watcher, member] = [client(t, url), client(t, between.url)];
  const [members, counts] = [channel(), channel()];
  watcher.subscribe("room", () => {}, { members: members.push, presence: counts.push });
  await member.join("room", { id: "anna", info: { name: "Anna" } });
  await members.until((now) => now.get("anna")?.name === "Anna");
  assert.deepEqual(await watcher.members("room"), [{ id: "anna", connections: 1, info: { name: "Anna" } }]);
  // A listed member can be joined.
  const second = client(t, url);
  await second.join("room", (await watcher.members("room"))[0]);
  assert.equal((await watcher.members("room"))[0].connections, 2);
  await second.leave("room");
  assert.equal(await watcher.presence("room"), 2);
  const waiting = reaches(member, "waiting");
  between.refuse();
  await waiting;
  await members.until((now) => now.size === 0);
  between.accept();
  await members.until((now) => now.has("anna"));
  await member.join("room", { id: "anna", info: "renamed" });
  await members.until((now) => now.get("anna") === "renamed");
  await assert.rejects(member.join("room", { id: "" }), { code: 422 });
  await member.join("room", { id: "anna" });
  await member.leave("room");
  await members.until((now) => now.size === 0);
  const crowd = Array.from({ length: 300 }, (_, number) => `crowd ${number}`);
  await Promise.all(crowd.map((id) => client(t, url).join("room", { id })));
  assert.equal((await watcher.members("room")).length, 300);
  await counts.until((count) => count === 301);
});

test("clients list the members again after random delays if an update does not list its changes", limit, async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  t.mock.method(Math, "random", () => 0.5);
  const [sent, seen] = [[], []];
  let subscription;
  const socket = await new Promise((made) => {
    class Socket {
      constructor() {
        made(this);
      }
      send(frame) {
        sent.push(JSON.parse(frame));
      }
      close() {}
      receive(message) {
        this.onmessage({ data: JSON.stringify({ topic: "room", subscribers: 4_000, ...message }) });
      }
    }
    const one = client(t, "ws://host/ws", { WebSocket: Socket, heartbeatInterval: 600_000 });
    subscription = one.subscribe("room", () => {}, { members: (members) => seen.push([...members.keys()]) });
  });
  const requests = () => sent.filter(({ op }) => op === "members");
  socket.receive({ op: "welcome" });
  socket.receive({ op: "ack", id: sent[0].id, at: 1, more: false, members: [{ id: "anna", connections: 1 }] });
  assert.deepEqual(seen, [["anna"]]);
  // The delay is half of 5 ms for each subscriber.
  socket.receive({ op: "presence", at: 8, since: 1, complete: false });
  t.mock.timers.tick(9_000);
  // Neither another such update nor a later one, which belongs to the list, changes the delay.
  socket.receive({ op: "presence", at: 9, since: 8, complete: false });
  socket.receive({ op: "presence", at: 10, since: 9, joined: [{ id: "carl" }] });
  t.mock.timers.tick(999);
  assert.deepEqual([requests().length, seen.length], [0, 1]);
  t.mock.timers.tick(1);
  assert.equal(requests().length, 1);
  const answer = async (at) => {
    socket.receive({ op: "members", id: requests().at(-1).id, at, more: false, members: [{ id: "ben", connections: 2 }] });
    await new Promise(setImmediate);
  };
  await answer(10);
  assert.deepEqual(seen.at(-1), ["ben"]);
  // A missed update concerns this client only.
  socket.receive({ op: "presence", at: 13, since: 12, left: ["ben"] });
  assert.equal(requests().length, 2);
  await answer(13);
  socket.receive({ op: "presence", at: 14, since: 13, complete: false });
  subscription.unsubscribe();
  t.mock.timers.tick(20_000);
  assert.equal(requests().length, 2, "a client that has unsubscribed needs no list");
});

test("a client subscribes before it joins, so that it gets what the members answer", limit, async (t) => {
  const sent = [];
  let socket;
  class Socket {
    constructor() {
      socket = this;
    }
    send(frame) {
      sent.push(JSON.parse(frame));
    }
    close() {}
  }
  const one = client(t, "ws://host/ws", { WebSocket: Socket });
  one.join("room", { id: "anna" });
  one.subscribe("room", () => {}, { members() {} });
  while (!socket) await new Promise(setImmediate);
  socket.onmessage({ data: JSON.stringify({ op: "welcome" }) });
  assert.deepEqual(sent.map(({ op }) => op), ["subscribe", "join"]);
});

test("a stream is appended to, consumed across a lost connection, read and deleted", limit, async (t) => {
  const { port, url } = await serve(t, ["--streams", folder(t)]);
  const between = await proxy(t, port);
  const [one, direct] = [client(t, between.url), client(t, url)];
  const orders = one.stream("orders");
  assert.deepEqual(await orders.append({ item: 1 }, { key: "k" }), { op: "ack", id: 1, stream: "orders", partition: 0, offset: 0, count: 1 });
  await orders.append(new Uint8Array([255]), { ack: "memory" });
  const records = channel();
  await orders.consume(records.push, { from: "earliest" }).ready;
  const first = await records.next();
  assert.deepEqual([first.partition, first.offset, first.key, first.data], [0, 0, "k", { item: 1 }]);
  assert.deepEqual((await records.next()).data, new Uint8Array([255]));
  const news = channel();
  await direct.stream("news").append("before");
  await one.stream("news").consume(news.push).ready;
  const waiting = reaches(one, "waiting");
  between.refuse();
  await waiting;
  await direct.stream("orders").append("missed");
  await direct.stream("news").append("behind the latest");
  between.accept();
  assert.equal((await news.next()).data, "behind the latest");
  assert.deepEqual(await records.next().then(({ offset, data }) => [offset, data]), [2, "missed"]);
  const { records: read, next, end } = await orders.read(1);
  assert.deepEqual([read.map(({ offset }) => offset), next, end], [[1, 2], 3, 3]);
  const { partitions } = await orders.info();
  assert.deepEqual(partitions.map(({ earliest, end }) => [earliest, end]), [[0, 3]]);
  await direct.stream("orders").delete();
  // The next use creates another stream of this name.
  assert.equal((await direct.stream("orders").append("anew")).offset, 0);
});

test("a member of a group continues at the committed offset", limit, async (t) => {
  const { url } = await serve(t, ["--streams", folder(t)]);
  const one = client(t, url);
  for (const data of [1, 2, 3]) await one.stream("jobs").append(data);
  const [records, assigned] = [channel(), channel()];
  const consumption = one.stream("jobs").consume(records.push, { group: "workers", onassigned: assigned.push });
  assert.deepEqual(await assigned.next(), [0]);
  assert.deepEqual([(await records.next()).data, (await records.next()).data, (await records.next()).data], [1, 2, 3]);
  await consumption.commit();
  await one.stream("jobs").append(4);
  assert.equal((await records.next()).data, 4);
  consumption.stop();
  one.close();

  const two = client(t, url);
  const later = channel();
  two.stream("jobs").consume(later.push, { group: "workers" });
  assert.equal((await later.next()).data, 4);
  const { groups } = await two.stream("jobs").info();
  assert.deepEqual(groups, [{ group: "workers", partitions: [{ partition: 0, offset: 3 }] }]);
});

test("a slow client is told how many messages were dropped", limit, async (t) => {
  const { port, url } = await serve(t, ["--websocket-overflow", "drop-oldest", "--deflate", "off"]);
  const between = await proxy(t, port);
  const [slow, fast] = [client(t, between.url), client(t, url)];
  const [messages, gaps] = [channel(), channel()];
  await slow.subscribe("prices", messages.push, { ongap: gaps.push }).ready;
  between.stall();
  const text = "x".repeat(50_000);
  const COUNT = 400;
  // More than the buffers of the sockets hold.
  for (let sent = 0; sent < COUNT; sent += 1) await fast.publish("prices", { sent, text });
  between.flow();
  const gap = await gaps.next();
  assert.deepEqual([gap.reason, gap.topic], ["dropped", "prices"]);
  let dropped = gap.messages;
  await messages.until(({ data }) => data.sent === COUNT - 1);
  while (gaps.size > 0) dropped += (await gaps.next()).messages;
  assert.ok(dropped > 0 && dropped < COUNT, `${dropped} dropped`);
});

test("a slow client is closed with 1008, and resumes", limit, async (t) => {
  const { port, url } = await serve(t, ["--websocket-max-outbound", "64k", "--deflate", "off", "--history", "kept=1000"]);
  const between = await proxy(t, port);
  const [slow, fast] = [client(t, between.url), client(t, url)];
  const messages = channel();
  await slow.subscribe("kept", messages.push).ready;
  between.stall();
  const text = "x".repeat(50_000);
  for (let sent = 0; sent < 400; sent += 1) await fast.publish("kept", { sent, text });
  const waiting = reaches(slow, "waiting");
  between.flow();
  const { code } = await waiting;
  // The socket's buffers may be lost with the Close.
  assert.ok([1006, 1008].includes(code), `${code}`);
  await fast.publish("kept", { sent: "last" });
  await messages.until(({ data }) => data.sent === "last");
});

test("a deleted stream of a durable topic is reported as a reset", limit, async (t) => {
  const { url, http } = await serve(t, ["--streams", folder(t), "--streams-durable-topics", "log.>"]);
  const one = client(t, url);
  const [messages, gaps] = [channel(), channel()];
  await one.subscribe("log.a", messages.push, { ongap: gaps.push }).ready;
  const { epoch, seq } = await one.publish("log.a", "before");
  assert.equal(seq, 1);
  assert.equal((await messages.next()).data, "before");
  const { status } = await fetch(`${http}/streams/log.a`, { method: "DELETE" });
  assert.ok(status < 300, `${status}`);
  assert.deepEqual(await gaps.next(), { topic: "log.a", reason: "reset" });
  const again = await one.publish("log.a", "after");
  assert.notEqual(again.epoch, epoch);
  assert.deepEqual(await messages.next().then(({ seq, data }) => [seq, data]), [1, "after"]);
});

test("calls reach the application, and messages of topics of the backend reach onmessage", limit, async (t) => {
  const application = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const { hook, method, data, topic } = JSON.parse(body);
    const answer = hook === "connect" ? { claims: { subscribe: ["own"] }, topics: ["by.backend"] }
      : method === "rename" ? { data: { ...data, topic } } : { reject: { code: 422, reason: "no such method" } };
    response.end(JSON.stringify(answer));
  }).listen(0, "127.0.0.1");
  await once(application, "listening");
  t.after(() => application.close());
  const hook = `http://127.0.0.1:${application.address().port}/`;
  const key = "a-key-of-the-tests-of-32-bytes-or-more";
  const { url, http } = await serve(t, ["--hooks-connect", hook, "--hooks-rpc", hook, "--hooks-timeout", "30s", "--api-key", key]);
  const [own, others] = [channel(), channel()];
  const one = client(t, url, { onmessage: others.push });
  await one.subscribe("own", own.push).ready;
  assert.deepEqual(await one.call("rename", { name: "Anna" }, { topic: "a.b" }), { name: "Anna", topic: "a.b" });
  await assert.rejects(one.call("delete"), { code: 422, message: /no such method/ });
  for (const topic of ["own", "by.backend"]) {
    const headers = { authorization: `Bearer ${key}` };
    await fetch(`${http}/api/v1/publish`, { method: "POST", headers, body: JSON.stringify({ topic, data: topic }) });
  }
  assert.equal((await others.next()).data, "by.backend");
  assert.equal((await own.next()).data, "own");
  assert.equal(others.size + own.size, 0);
});

test("HTTP replaces a blocked WebSocket, and resumes without loss or repetition", limit, async (t) => {
  const { port, url } = await serve(t, ["--history", "kept.>=100"]);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const [blocked, direct] = [client(t, between.url, { fallback: true }), client(t, url)];
  for (const data of [1, 2, 3]) await direct.publish("kept.a", data);
  const [kept, matched, plain] = [channel(), channel(), channel()];
  const subscriptions = [
    blocked.subscribe("kept.a", kept.push, { last: 2 }),
    blocked.subscribe("*.a", matched.push),
    blocked.subscribe("plain", plain.push),
  ];
  await Promise.all(subscriptions.map(({ ready }) => ready));
  assert.equal(blocked.transport, "http");
  assert.deepEqual([(await kept.next()).data, (await kept.next()).data], [2, 3]);
  // Further responses have the same messages: each arrives once.
  await blocked.subscribe("*", () => {}).ready;
  await blocked.subscribe("later", plain.push).ready;
  assert.equal((await blocked.publish("plain", new Uint8Array([0, 255]))).reached, 2);
  assert.deepEqual((await plain.next()).data, new Uint8Array([0, 255]));
  await direct.publish("later", { text: "κόσμε" });
  assert.deepEqual((await plain.next()).data, { text: "κόσμε" });
  assert.ok((await blocked.publish("kept.a", 4)).reached >= 1);
  assert.deepEqual((await blocked.history("kept.a", 2)).map(({ data }) => data), [3, 4]);
  await assert.rejects(blocked.history("plain"), { code: 410 });
  await assert.rejects(blocked.stream("plain").read(0), { code: 404 });
  await assert.rejects(blocked.stream("plain").consume(() => {}).ready, { code: 404 });
  await assert.rejects(blocked.stream("plain").append(1), { code: 404 });
  await assert.rejects(blocked.publish("a..b", 1), { code: 400 });
  await blocked.subscribe("more", () => {}).ready;
  // More responses than a browser has connections: the next connection combines them, without the invalid topic.
  await assert.rejects(blocked.subscribe("a..b", () => {}).ready, { code: 400 });
  assert.equal((await kept.next()).data, 4);

  between.refuse();
  await direct.publish("kept.a", 5);
  between.accept();
  assert.equal((await kept.next()).data, 5);
  assert.equal(blocked.transport, "http");
  between.blockWebSockets(false);
  between.cut();
  await direct.publish("kept.a", 6);
  assert.equal((await kept.next()).data, 6);
  assert.equal(blocked.transport, "websocket");
  subscriptions[0].unsubscribe();
  assert.equal(kept.size, 0);
});

test("over HTTP, a client leaves a connection of a browser to requests", limit, async (t) => {
  const { port, url } = await serve(t, ["--history", "kept.>=100"]);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const [blocked, direct] = [client(t, between.url, { fallback: true, onmessage: () => {} }), client(t, url)];
  for (const topic of ["kept.a", "kept.b", "kept.c", "kept.d"]) await direct.publish(topic, 1);
  const [kept, plain, counts, members] = [channel(), channel(), channel(), channel()];
  const details = [{}, { presence: counts.push }, { members: members.push }];
  const subscriptions = details.flatMap((options, at) => [
    blocked.subscribe(`kept.${"abc"[at]}`, kept.push, { ...options, last: 1 }),
    blocked.subscribe(`plain.${at}`, plain.push, options),
  ]);
  const excess = blocked.subscribe("kept.d", () => {}, { last: 2 });
  await Promise.all(subscriptions.map(({ ready }) => ready));
  await assert.rejects(excess.ready, { code: 501, message: /more than 5 responses need a WebSocket/ });
  while (blocked.connections.length < 5) await new Promise(setImmediate);
  assert.equal(blocked.transport, "http");
  assert.deepEqual([(await kept.next()).data, (await kept.next()).data, (await kept.next()).data], [1, 1, 1]);
  assert.deepEqual([await counts.next(), await counts.next()], [1, 1]);
  assert.deepEqual([(await members.next()).size, (await members.next()).size], [0, 0]);
  await assert.rejects(blocked.state("keys", () => {}).ready, { code: 501 });

  // Topics that resume share responses with topics that do not.
  between.refuse();
  await direct.publish("kept.a", 2);
  between.accept();
  assert.equal((await kept.next()).data, 2);
  for (const at of [0, 1, 2]) {
    while ((await direct.publish(`plain.${at}`, at)).reached === 0);
    assert.equal((await plain.next()).data, at);
  }
  assert.equal(blocked.connections.length, 4);
  await blocked.state("keys", () => {}).ready;
  assert.equal(blocked.connections.length, 5);
  await assert.rejects(blocked.state("others", () => {}).ready, { code: 501 });
  assert.equal(blocked.transport, "http");
  assert.equal(kept.size + plain.size, 0);
});

test("over HTTP, the number of subscribers and the members are followed and listed", limit, async (t) => {
  const { port, url } = await serve(t);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const [blocked, direct] = [client(t, between.url, { fallback: true }), client(t, url)];
  const [messages, members, counts, others] = [channel(), channel(), channel(), channel()];
  const subscriptions = [
    blocked.subscribe("room", messages.push, { members: members.push }),
    blocked.subscribe("hall", messages.push, { presence: counts.push }),
    blocked.subscribe("plain", messages.push),
  ];
  await Promise.all(subscriptions.map(({ ready }) => ready));
  assert.equal(blocked.transport, "http");
  assert.equal((await members.next()).size, 0);
  assert.equal(await counts.next(), 1);
  await direct.join("room", { id: "anna", info: { name: "Anna" } });
  await members.until((now) => now.get("anna")?.name === "Anna");
  assert.deepEqual(await blocked.members("room"), [{ id: "anna", connections: 1, info: { name: "Anna" } }]);
  assert.equal(await blocked.presence("room"), 2);
  await direct.subscribe("hall", () => {}).ready;
  await counts.until((count) => count === 2);

  // One of the topics that share a response is invalid.
  const pair = ["room.*", "cellar"].map((topic) => blocked.subscribe(topic, () => {}, { members: others.push }));
  await assert.rejects(pair[0].ready, { code: 400 });
  await pair[1].ready;
  assert.equal((await others.next()).size, 0);
  const crowd = Array.from({ length: 300 }, (_, number) => `crowd ${number}`);
  await Promise.all(crowd.map((id) => client(t, url).join("cellar", { id })));
  assert.equal((await blocked.members("cellar")).length, 300);
  await others.until((now) => now.size === 300);

  // After a lost connection, the list is new, and messages are delivered once.
  between.refuse();
  await direct.leave("room");
  between.accept();
  await members.until((now) => now.size === 0);
  await others.until((now) => now.size === 300);
  assert.equal(blocked.transport, "http");
  for (const topic of ["room", "hall", "plain"]) {
    while ((await direct.publish(topic, topic)).reached === 0);
    assert.equal((await messages.next()).data, topic);
  }
  assert.equal(messages.size, 0);
});

test("over HTTP, a client appends to streams, reads and deletes them", limit, async (t) => {
  const { port, url } = await serve(t, ["--streams", folder(t)]);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const [blocked, direct] = [client(t, between.url, { fallback: true }), client(t, url)];
  const [stream, read] = [blocked.stream("orders"), direct.stream("orders")];
  const { partition, offset } = await stream.append({ id: 1 }, { key: "a b" });
  assert.deepEqual([partition, offset], [0, 0]);
  assert.equal((await stream.append(new Uint8Array([0, 255]), { partition: 0, ack: "disk" })).offset, 1);
  const { records } = await read.read(0);
  assert.deepEqual(records.map(({ key, data }) => [key, data]), [["a b", { id: 1 }], [undefined, new Uint8Array([0, 255])]]);
  await assert.rejects(stream.append(1, { partition: 7 }), { code: 404 });
  for (const [offset, options] of [[0, {}], [1, { max: 1 }], [7, { partition: 0 }]]) {
    assert.deepEqual(await stream.read(offset, options), await read.read(offset, options));
  }
  assert.deepEqual(await stream.info(), await read.info());
  assert.equal((await stream.info()).partitions[0].end, 2);
  for (const method of ["read", "append"]) await assert.rejects(stream[method](0, { partition: 7 }), { code: 404 });
  await assert.rejects(blocked.stream("a..b").info(), { code: 422 });
  await stream.delete();
  await assert.rejects(stream.delete(), { code: 404 });
});

test("over HTTP, a client consumes streams, and resumes after a lost connection and an error", limit, async (t) => {
  const { port, url } = await serve(t, ["--streams", folder(t), "--streams-partitions", "2"]);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const [blocked, direct] = [client(t, between.url, { fallback: true }), client(t, url)];
  const orders = direct.stream("orders");
  for (const data of [0, 1, 2]) await orders.append(data, { partition: 0 });
  await orders.append("other", { partition: 1 });
  const [all, latest, errors] = [channel(), channel(), channel()];
  const from = (value) => ({ from: value, onerror: errors.push });
  const consumption = blocked.stream("orders").consume(all.push, from({ offset: 1 }));
  const { partitions } = await consumption.ready;
  assert.deepEqual(partitions.map(({ partition }) => partition), [0, 1]);
  assert.equal(blocked.transport, "http");
  for (const data of [1, 2]) assert.equal((await all.next()).data, data);
  await blocked.stream("new").consume(latest.push).ready;
  const group = blocked.stream("third").consume(() => {}, { group: "g" });
  await assert.rejects(group.ready, { code: 501, message: /^a consumer group needs a WebSocket/ });
  await assert.rejects(blocked.stream("a..b").consume(() => {}).ready, { code: 422 });
  await assert.rejects(blocked.stream("third").consume(() => {}, { partition: 7 }).ready, { code: 404 });
  for (const one of [blocked, direct]) {
    const other = one === direct ? one.stream("orders").consume(() => {}) : consumption;
    await other.ready;
    await assert.rejects(one.stream("orders").consume(() => {}).ready, { code: 409 });
  }
  await orders.append(3, { partition: 0 });
  assert.equal((await all.until(({ partition }) => partition === 0)).data, 3);
  const { offset } = await direct.stream("new").append(new Uint8Array([0, 255]), { partition: 0 });
  assert.deepEqual(await latest.next().then(({ offset, data }) => [offset, data]), [offset, new Uint8Array([0, 255])]);

  between.refuse();
  await direct.stream("new").append("while away", { partition: 0 });
  between.accept();
  assert.equal((await latest.next()).data, "while away");
  assert.equal(blocked.transport, "http");
  consumption.stop();
  await orders.append(4, { partition: 0 });
  const again = blocked.stream("orders").consume(all.push, from({ time: 0 }));
  await again.ready;
  assert.equal((await all.until(({ partition }) => partition === 0)).data, 0);
  assert.equal(errors.size + latest.size, 0);
});

test("over HTTP, members join, replace each other, come back after a lost connection, and leave", limit, async (t) => {
  const { port, url } = await serve(t);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const [blocked, watcher] = [client(t, between.url, { fallback: true }), client(t, url)];
  const ids = async (topic) => (await watcher.members(topic)).map(({ id, connections, info }) => [id, connections, info]);
  const [members, messages] = [channel(), channel()];
  await watcher.subscribe("room", () => {}, { members: members.push }).ready;
  const subscription = blocked.subscribe("room", messages.push);
  // One of them is rejected, and the others join.
  const joins = [["room", { id: "anna", info: { name: "Anna" } }], ["hall", { id: "" }], ["cellar", { id: "anna" }]];
  const results = await Promise.allSettled(joins.map(([topic, member]) => blocked.join(topic, member)));
  assert.deepEqual(results.map(({ reason }) => reason?.code), [undefined, 422, undefined]);
  await subscription.ready;
  assert.equal(blocked.transport, "http");
  await members.until((now) => now.get("anna")?.name === "Anna");
  const until = async (topic, expected) => {
    while (JSON.stringify(await ids(topic)) !== JSON.stringify(expected)) await new Promise(setImmediate);
  };
  await until("cellar", [["anna", 1, undefined]]);
  assert.deepEqual(await ids("hall"), []);
  assert.equal(blocked.connections.length, 2);

  await blocked.join("room", { id: "anna", info: "renamed" });
  await members.until((now) => now.get("anna") === "renamed");
  await blocked.leave("cellar");
  await until("cellar", []);
  await blocked.join("hall", { id: "ben" });
  await until("hall", [["ben", 1, undefined]]);
  // Requested and withdrawn at once.
  await Promise.all([blocked.join("attic", { id: "ben" }), blocked.leave("attic")]);
  assert.deepEqual(await ids("attic"), []);

  between.refuse();
  await members.until((now) => now.size === 0);
  await until("hall", []);
  between.accept();
  await members.until((now) => now.get("anna") === "renamed");
  await until("hall", [["ben", 1, undefined]]);
  assert.equal(blocked.transport, "http");
  await watcher.publish("room", 1);
  assert.equal((await messages.next()).data, 1);
  await Promise.all([blocked.leave("room"), blocked.leave("hall")]);
  await until("room", []);
  await until("hall", []);
  assert.equal(blocked.connections.length, 1);
  const many = Array.from({ length: 65 }, (_, number) => blocked.join(`many.${number}`, { id: "anna" }));
  const rejected = (await Promise.allSettled(many)).filter(({ reason }) => reason);
  assert.deepEqual(rejected.map(({ reason }) => reason.code), [501]);
  blocked.close();
  await until("many.0", []);
});

test("over HTTP, joins take one of the responses, and a token names the member", limit, async (t) => {
  const { options, make } = tokens(t);
  const { port, url } = await serve(t, options);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const token = make("--subject", "anna", "--subscribe", ">", "--expires", "1h");
  const one = client(t, between.url, { fallback: true, token });
  await Promise.all(["a", "b"].map((topic) => one.state(topic, () => {}).ready));
  await assert.rejects(one.join("room", { id: "ben" }), { code: 403 });
  await one.join("room", { id: "anna" });
  assert.deepEqual((await client(t, url, { token }).members("room")).map(({ id }) => id), ["anna"]);
  await assert.rejects(one.state("c", () => {}).ready, { code: 501 });
  await one.leave("room");
  await one.state("c", () => {}).ready;
  await assert.rejects(one.join("room", { id: "anna" }), { code: 501, message: /more than 5 responses need a WebSocket/ });
});

test("a backend disconnects the connections that a client names", limit, async (t) => {
  const key = "a-key-of-the-tests,-32-bytes-long";
  const { port, url, http } = await serve(t, ["--api-key", key]);
  const call = async (path, body) => {
    const init = { method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers: { Authorization: `Bearer ${key}` } };
    return (await fetch(`${http}/api/v1/${path}`, init)).json();
  };
  const between = await proxy(t, port);
  between.blockWebSockets();
  const clients = [client(t, url), client(t, between.url, { fallback: true, onmessage: () => {} })];
  for (const [at, one] of clients.entries()) {
    assert.deepEqual(one.connections, []);
    await Promise.all([one.subscribe("a", () => {}).ready, one.subscribe("b", () => {}).ready, one.state("c", () => {}).ready]);
    let listed;
    // The response with the assigned topics begins without an acknowledgement.
    do listed = (await call("connections")).connections.map(({ connection }) => connection);
    while (at > 0 && one.connections.length < 3);
    assert.deepEqual(one.connections.toSorted(), listed.toSorted());
    const waiting = reaches(one, "waiting");
    assert.deepEqual(await call("disconnect", { connection: one.connections[0] }), { connections: 1 });
    assert.equal((await waiting).code, 4410);
    assert.deepEqual(one.connections, []);
    await reaches(one, "open");
    one.close();
    assert.deepEqual(one.connections, []);
    while ((await call("connections")).connections.length > 0);
  }
});

test("over HTTP, a node serves its clients while the broker of its cluster is away", limit, async (t) => {
  const { port, http } = await serve(t, ["--cluster", "nats://127.0.0.1:1"]);
  assert.equal((await fetch(`${http}/readyz`)).status, 503);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const blocked = client(t, between.url, { fallback: true });
  const messages = channel();
  await blocked.subscribe("a", messages.push).ready;
  assert.equal(blocked.transport, "http");
  await blocked.publish("a", 1);
  assert.equal((await messages.next()).data, 1);
});

test("over HTTP, hooks of the application decide, and its topics are received", limit, async (t) => {
  const asked = [];
  const application = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const { hook, method, topic, key, data } = JSON.parse(body);
    asked.push([hook, topic ?? null, key ?? null]);
    const no = { reject: { code: method === "sign in" ? 401 : 422, reason: "no" } };
    const answers = {
      connect: { claims: { sub: "anna", subscribe: ">", publish: ">", keys: ">/>" }, topics: ["personal.anna"] },
      subscribe: topic === "no" ? no : {},
      publish: data === "spam" ? no : key ? { data: { checked: data } } : {},
      rpc: method === "a/b é" ? { data: [data, topic ?? null] } : no,
    };
    response.end(JSON.stringify(answers[hook]));
  });
  application.listen(0, "127.0.0.1");
  await once(application, "listening");
  t.after(() => application.close());
  const hook = `http://127.0.0.1:${application.address().port}/`;
  const key = "a-key-of-the-tests,-32-bytes-long";
  const options = ["connect", "subscribe", "publish", "rpc"].flatMap((name) => [`--hooks-${name}`, hook]);
  const { port, http } = await serve(t, [...options, "--hooks-timeout", "30s", "--api-key", key]);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const [messages, assigned] = [channel(), channel()];
  const one = client(t, between.url, { fallback: true, onmessage: assigned.push });
  await one.subscribe("chat", messages.push).ready;
  assert.equal(one.transport, "http");
  await one.publish("chat", "hello");
  assert.equal((await messages.next()).data, "hello");
  await assert.rejects(one.publish("chat", "spam"), { code: 422, message: "no" });
  await assert.rejects(one.subscribe("no", () => {}).ready, { code: 422, message: "no" });
  assert.deepEqual(await one.call("a/b é", { n: 1 }), [{ n: 1 }, null]);
  assert.deepEqual(await one.call("a/b é", undefined, { topic: "chat" }), [null, "chat"]);
  await assert.rejects(one.call("other"), { code: 422, message: "no" });
  await assert.rejects(one.call("sign in"), { code: 401, message: "no" });
  assert.equal(one.status, "open");
  await one.join("chat", { id: "anna" });
  assert.deepEqual(await one.members("chat"), [{ id: "anna", connections: 1 }]);
  await one.set("prices", "gold", 1);
  await assert.rejects(one.set("prices", "gold", "spam"), { code: 422 });
  const views = channel();
  const state = one.state("prices", (keys) => views.push(Object.fromEntries(keys)));
  await state.ready;
  assert.deepEqual(await views.next(), { gold: { checked: 1 } });
  const init = { method: "POST", headers: { Authorization: `Bearer ${key}` } };
  const body = JSON.stringify({ topic: "personal.anna", data: "for you" });
  let reached = 0;
  while (reached === 0) {
    ({ subscribers: reached } = await (await fetch(`${http}/api/v1/publish`, { ...init, body })).json());
  }
  assert.deepEqual(await assigned.next(), { op: "message", topic: "personal.anna", data: "for you" });
  const names = new Set(asked.map(([name]) => name));
  assert.deepEqual([...names].sort(), ["connect", "publish", "rpc", "subscribe"]);
});

test("over HTTP, keys are followed and written under conditions", limit, async (t) => {
  const { port, url } = await serve(t);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const [blocked, direct] = [client(t, between.url, { fallback: true }), client(t, url)];
  await direct.set("prices", "gold", 1);
  const views = channel();
  const state = blocked.state("prices", (keys, changed) => views.push([Object.fromEntries(keys), [...changed].sort()]), { filter: "*" });
  await state.ready;
  assert.equal(blocked.transport, "http");
  assert.deepEqual(await views.next(), [{ gold: 1 }, ["gold"]]);
  const { seq, epoch } = await blocked.set("prices", "tin", new Uint8Array([0, 255]), { ifNew: true, ttl: 60_000 });
  assert.deepEqual(await views.next(), [{ gold: 1, tin: new Uint8Array([0, 255]) }, ["tin"]]);
  assert.equal(state.version("tin"), seq);
  await assert.rejects(blocked.set("prices", "tin", 2, { ifNew: true }), { code: 412 });
  await assert.rejects(blocked.set("prices", "tin", 2, { version: seq }), { code: 501 });
  await blocked.set("prices", "tin", 2, { version: seq, epoch, idempotencyKey: "one" });
  assert.equal((await blocked.set("prices", "tin", 3, { idempotencyKey: "one" })).repeated, true);
  assert.deepEqual(await views.next(), [{ gold: 1, tin: 2 }, ["tin"]]);
  // After a reconnect, the changes since follow.
  between.refuse();
  await direct.delete("prices", "gold");
  between.accept();
  assert.deepEqual(await views.next(), [{ tin: 2 }, ["gold"]]);
  assert.equal((await blocked.delete("prices", "none")).changed, false);
  state.unsubscribe();
  await blocked.delete("prices", "tin");
  assert.equal(views.size, 0);
});

test("over HTTP, a rejected token closes the client, and a token function is called again", limit, async (t) => {
  const { options, make } = tokens(t);
  const { port } = await serve(t, options);
  const between = await proxy(t, port);
  between.blockWebSockets();
  const good = make("--subscribe", "a", "--publish", "a", "--expires", "1h");
  const closed = channel();
  const wrong = client(t, between.url, { fallback: true, token: `${good}x`, onstatus: closed.push });
  wrong.subscribe("a", () => {});
  assert.equal((await closed.until(({ status }) => status === "closed")).code, 4401);
  let asked = 0;
  const one = client(t, between.url, { fallback: true, token: () => { asked += 1; return asked < 2 ? `${good}x` : good; } });
  const messages = channel();
  await one.subscribe("a", messages.push).ready;
  await one.publish("a", 1);
  assert.equal((await messages.next()).data, 1);
  await assert.rejects(one.publish("b", 1), { code: 403, needs: { publish: ["b"] } });
});

test("a closed client rejects requests, and its process ends", limit, async (t) => {
  const { url } = await serve(t);
  const one = client(t, url);
  const changes = channel();
  await one.publish("a", 1);
  one.onstatus = changes.push;
  one.close();
  one.close();
  assert.equal(changes.size, 1);
  await assert.rejects(one.publish("a", 1), { code: "closed" });
  await assert.rejects(one.subscribe("a", () => {}).ready, { code: "closed" });
  await assert.rejects(one.stream("a").consume(() => {}).ready, { code: "closed" });
  await assert.rejects(one.join("a", { id: "a" }), { code: "closed" });
  await program(`
    const client = connect(${JSON.stringify(url)});
    await client.subscribe("a", () => {}).ready;
    await client.join("a", { id: "b" });
    client.close();`);
});

test("a missing WebSocket class and a relative URL outside of a page are errors", limit, () => {
  const known = globalThis.WebSocket;
  globalThis.WebSocket = undefined;
  try {
    assert.throws(() => connect("ws://127.0.0.1:1/ws"), { code: "no-websocket" });
  } finally {
    globalThis.WebSocket = known;
  }
  assert.throws(() => connect(), { code: "no-url" });
});

test("keys are followed across a lost connection, and written under conditions", limit, async (t) => {
  const { port, url } = await serve(t);
  const between = await proxy(t, port);
  const [lost, direct] = [client(t, between.url), client(t, url)];
  await direct.set("game", "anna", { x: 1 });
  await direct.set("game", "bytes", new Uint8Array([0, 255]));
  const changes = channel();
  const state = lost.state("game", (keys, changed) => changes.push([Object.fromEntries(keys), [...changed]]));
  await state.ready;
  assert.deepEqual(await changes.next(), [{ anna: { x: 1 }, bytes: new Uint8Array([0, 255]) }, ["anna", "bytes"]]);
  await assert.rejects(direct.set("game", "anna", 2, { ifNew: true }), { code: 412 });
  const { seq } = await direct.set("game", "anna", { x: 2 }, { version: state.version("anna") });
  assert.equal(seq, 3);
  assert.deepEqual((await changes.next())[1], ["anna"]);
  const waiting = reaches(lost, "waiting");
  between.refuse();
  await waiting;
  await direct.delete("game", "bytes");
  await direct.set("game", "ben", 5, { ttl: 60_000 });
  between.accept();
  const [keys, changed] = await changes.next();
  assert.deepEqual([keys, changed.sort()], [{ anna: { x: 2 }, ben: 5 }, ["ben", "bytes"]]);
  assert.deepEqual(state.position.seq, 5);
  state.unsubscribe();
  await direct.set("game", "anna", 3);
  await lost.publish("game", "the keys are independent");
  assert.equal(changes.size, 0);
  const filtered = lost.state("game", changes.push, { filter: "b*" });
  await filtered.ready;
  assert.equal(filtered.keys.size, 0, "a wildcard is a whole token");
  await assert.rejects(lost.state("a.*", () => {}).ready, { code: 422 });
});
