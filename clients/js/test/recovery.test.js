// What the server adds: recovery of patterns, publications that are repeated, pages of a history, and senders.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { connect } from "../sinews.js";
import { channel, folder, proxy, serve, tokens } from "./server.js";

const limit = { timeout: 180_000 };

function open(t, url, options) {
  const client = connect(url, { minDelay: 10, maxDelay: 100, ...options });
  t.after(() => client.close());
  return client;
}

const is = (wanted) => ({ status }) => status === wanted;

/** A subscription to a pattern through a network that can fail, and a client beside it. */
async function follow(t, options, pattern = "chat.*") {
  const { port, url } = await serve(t, options);
  const network = await proxy(t, port);
  const [changes, messages, gaps] = [channel(), channel(), channel()];
  const client = open(t, network.url, { onstatus: changes.push });
  const away = async (act) => {
    network.refuse();
    await changes.until(is("waiting"));
    await act();
    network.accept();
    client.retry();
    await changes.until(is("open"));
  };
  const subscription = client.subscribe(pattern, messages.push, { ongap: gaps.push });
  await subscription.ready;
  return { client, subscription, direct: open(t, url), network, messages, gaps, away };
}

test("a pattern resumes after the last message of each topic, and gets topics that began meanwhile", limit, async (t) => {
  const { subscription, direct, messages, gaps, away } = await follow(t, ["--history", "chat.>=100"]);
  const seen = async (count) => {
    const all = [];
    while (all.length < count) all.push(await messages.next());
    return all.map(({ topic, data }) => `${topic} ${data}`);
  };
  await direct.publish("chat.a", 1);
  await direct.publish("chat.b", 1);
  await seen(2);
  for (let round = 2; round <= 4; round += 1) {
    await away(async () => {
      await direct.publish("chat.a", round);
      await direct.publish("chat.a", `${round} again`);
      await direct.publish(`chat.new${round}`, 1);
    });
    await direct.publish("chat.b", round);
    const all = await seen(4);
    assert.deepEqual(all.filter((one) => one.startsWith("chat.a")), [`chat.a ${round}`, `chat.a ${round} again`]);
    assert.deepEqual(all.filter((one) => !one.startsWith("chat.a")).sort(), [`chat.b ${round}`, `chat.new${round} 1`]);
  }
  assert.deepEqual([messages.size, gaps.size], [0, 0]);
  assert.deepEqual(Object.keys(subscription.position.positions).sort(), ["chat.a", "chat.b", "chat.new2", "chat.new3", "chat.new4"]);
});

test("a topic of a pattern that has lost messages is reported by name", limit, async (t) => {
  const { direct, messages, gaps, away } = await follow(t, ["--history", "chat.>=2"]);
  for (const topic of ["chat.a", "chat.b"]) await direct.publish(topic, 0);
  await away(async () => {
    for (let number = 1; number <= 5; number += 1) await direct.publish("chat.a", number);
  });
  assert.deepEqual([(await gaps.next()).topic, gaps.size], ["chat.a", 0]);
  await messages.until(({ data }) => data === 5);
});

test("a pattern with topics without a history reports each reconnect", limit, async (t) => {
  const { direct, gaps, away } = await follow(t, ["--history", "chat.>=2"], "*.*");
  await away(() => direct.publish("other.a", 1));
  assert.deepEqual(await gaps.next(), { topic: "*.*", reason: "unretained" });
});

test("a publication with an idempotency key is published once, also if its answer was lost", limit, async (t) => {
  const { client, direct, network, messages } = await follow(t, ["--history", "chat.>=100"]);
  network.stall();
  const published = client.publish("chat.a", "once", { idempotencyKey: true });
  // The server has published it, and its answer does not arrive.
  await new Promise((resolve) => direct.subscribe("chat.a", resolve, { last: 1 }));
  network.cut();
  assert.equal((await published).repeated, true);
  await direct.publish("chat.a", "last");
  assert.deepEqual((await messages.until(({ data }) => data === "last")).seq, 2);
});

test("a history is read in pages, back and forward", limit, async (t) => {
  const { url } = await serve(t, ["--history", "chat.>=100"]);
  const client = open(t, url);
  for (let number = 1; number <= 10; number += 1) await client.publish("chat.a", number);
  const data = (page) => [page.map((message) => message.data), page.more, page.complete];
  const newest = await client.history("chat.a", 4);
  assert.deepEqual(data(newest), [[7, 8, 9, 10], true, true]);
  const older = await client.history("chat.a", { before: newest[0], last: 4 });
  assert.deepEqual(data(older), [[3, 4, 5, 6], true, true]);
  assert.deepEqual(data(await client.history("chat.a", { before: older[0], last: 4 })), [[1, 2], false, true]);
  const [{ epoch, seq }] = older;
  assert.deepEqual(data(await client.history("chat.a", { from: { epoch, seq }, limit: 3 })), [[4, 5, 6], true, true]);
});

test("a message has the user and the info of the publisher's token, and the time of the server", limit, async (t) => {
  const { options, make } = tokens(t);
  const config = join(folder(t), "sinews.toml");
  writeFileSync(config, '[namespace."chat.*"]\nsender = true\nhistory = 10\n');
  const { url } = await serve(t, [...options, "--config", config]);
  const token = make("--subject", "anna", "--subscribe", "chat.*", "--publish", "chat.*", "--expires", "1h");
  const client = open(t, url, { token });
  const messages = channel();
  await client.subscribe("chat.a", messages.push).ready;
  const before = Date.now();
  await client.publish("chat.a", { user: "mallory" });
  const { user, at } = await messages.next();
  assert.equal(user, "anna");
  assert.ok(Math.abs(at - before) < 60_000);
});
