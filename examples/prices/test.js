import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import test from "node:test";

import { connect } from "@sinews/client";
import { chromium, noChromium } from "../testing/chromium.js";
import { API_KEY, browser, channel, freePort, limit, proxy, serveTutorial, startNode } from "../testing/programs.js";
import { setPrice, symbols } from "./feed.js";

const file = (name) => new URL(name, import.meta.url).pathname;
const ROUNDS = 20;

/** The server with 50 prices, and functions that follow and change them. */
async function setUp(t) {
  const server = await serveTutorial(t, file("sinews.toml"));
  const set = (symbol, price) => setPrice(symbol, price, { url: server.http, key: API_KEY });
  const first = symbols(50);
  await Promise.all([...first].map(([symbol, price]) => set(symbol, price)));
  /** Changes each price many times, and returns the number of changes and the last prices. */
  const change = async () => {
    for (let round = 1; round <= ROUNDS; round += 1) {
      await Promise.all([...first].map(([symbol, price]) => set(symbol, price + round)));
    }
    return { changes: ROUNDS * first.size, last: new Map([...first].map(([symbol, price]) => [symbol, price + ROUNDS])) };
  };
  const follow = async (url, options) => {
    const client = connect(url);
    t.after(() => client.close());
    const updates = channel();
    let calls = 0;
    const update = (keys, changed) => updates.push([new Map(keys), calls += 1, changed.size]);
    const state = client.state("prices", update, options);
    await state.ready;
    const until = async (last) => {
      const [, number] = await updates.until(([keys]) => [...last].every(([symbol, price]) => keys.get(symbol) === price));
      return number;
    };
    return { client, state, updates, until };
  };
  return { server, first, change, follow };
}

test("prices: a page gets all prices at once, then changes at its own pace", limit, async (t) => {
  const { server, first, change, follow } = await setUp(t);
  const page = await follow(server.url, { interval: 200 });
  assert.deepEqual(new Map([...page.state.keys].sort()), first);
  const started = Date.now();
  const { changes, last } = await change();
  const calls = await page.until(last);
  // One with all prices, one for each interval of 200 ms, and those at its ends.
  const most = Math.min(3 + (Date.now() - started) / 200, changes / 2);
  assert.ok(calls <= most, `${calls} updates for ${changes} changes, and not ${most}`);
});

test("prices: a page that stops reading stays connected, and continues with the last prices", limit, async (t) => {
  const { server, change, follow } = await setUp(t);
  const network = await proxy(t, server.port);
  const page = await follow(network.url);
  network.stall();
  const { last } = await change();
  network.flow();
  await page.until(last);
  assert.equal(network.attempts, 1);
});

/** Bytes a second of a slow phone: 64 kbit/s. */
const PHONE = 8_000;

test("prices: a page that reads slowly stays connected, and skips values that were replaced", limit, async (t) => {
  const { server, first, follow } = await setUp(t);
  const network = await proxy(t, server.port, { rate: 4 * PHONE });
  const page = await follow(network.url);
  const rounds = 3 * ROUNDS;
  // Large values, which compression leaves large: all changes would take this page minutes.
  for (let round = 1; round <= rounds; round += 1) {
    const data = () => ({ round, text: randomBytes(750).toString("base64") });
    const body = JSON.stringify({ writes: [...first.keys()].map((key) => ({ key, data: data() })) });
    const headers = { authorization: `Bearer ${API_KEY}` };
    assert.equal((await fetch(`${server.http}/api/v1/topics/prices/keys`, { method: "POST", headers, body })).status, 200);
  }
  let values = 0;
  const [, count] = await page.updates.until(([keys, , changed]) => {
    values += changed;
    return [...first.keys()].every((symbol) => keys.get(symbol)?.round === rounds);
  });
  assert.ok(count > 1 && values < (rounds * first.size) / 2, `${values} values in ${count} updates`);
  assert.equal(network.attempts, 1);
});

test("prices: a filter selects symbols", limit, async (t) => {
  const { server, follow } = await setUp(t);
  const page = await follow(server.url, { filter: "SYM007" });
  assert.deepEqual([...page.state.keys], [["SYM007", 107]]);
});

test("prices: clients read, also by plain HTTP, and do not write", limit, async (t) => {
  const { server, follow } = await setUp(t);
  const { client } = await follow(server.url);
  await assert.rejects(client.set("prices", "SYM000", 1), { code: 403 });
  const one = `${server.http}/topics/prices/keys/SYM000`;
  assert.equal((await fetch(one, { method: "PUT", body: "1" })).status, 403);
  assert.equal((await (await fetch(one)).json()).data, 100);
});

test("prices: the feed and the page run", limit, async (t) => {
  const server = await serveTutorial(t, file("sinews.toml"));
  const port = await freePort();
  const env = { REALTIME_URL: server.http, SINEWS_API_KEY: API_KEY, PORT: String(port) };
  await startNode(t, file("feed.js"), { env, ready: "feeding 200 prices" });
  await startNode(t, file("server.js"), { env });
  const window = browser(`http://127.0.0.1:${port}`);
  assert.equal((await (await window.get("/realtime")).json()).url, server.url);
  assert.match(await (await window.get("/")).text(), /page\.js/);
  const client = connect(server.url);
  t.after(() => client.close());
  const changed = channel();
  client.state("prices", (keys, symbols) => changed.push([keys.size, symbols.size]));
  assert.deepEqual(await changed.next(), [200, 200]);
  const [size, number] = await changed.next();
  assert.ok(size === 200 && number > 0 && number < 200);
});

test("prices: the page shows all prices, and changes them", { ...limit, skip: noChromium }, async (t) => {
  const port = await freePort();
  const server = await serveTutorial(t, file("sinews.toml"), { ports: { 3000: port } });
  const set = (symbol, price) => setPrice(symbol, price, { url: server.http, key: API_KEY });
  await Promise.all([...symbols(50)].map(([symbol, price]) => set(symbol, price)));
  await startNode(t, file("server.js"), { env: { REALTIME_URL: server.http, PORT: String(port) } });
  const open = await chromium(t);
  const page = await open(`http://127.0.0.1:${port}/`);
  await page.until('document.querySelectorAll("li").length === 50');
  await set("SYM007", 99.5);
  await page.until('[...document.querySelectorAll("li")].some((row) => row.textContent === "SYM00799.50")');
});

test("prices: the page on a slow phone shows the last prices, over one connection", { ...limit, skip: noChromium }, async (t) => {
  const port = await freePort();
  const server = await serveTutorial(t, file("sinews.toml"), { ports: { 3000: port } });
  const network = await proxy(t, server.port, { rate: PHONE });
  const set = (symbol, price) => setPrice(symbol, price, { url: server.http, key: API_KEY });
  await Promise.all([...symbols(50)].map(([symbol, price]) => set(symbol, price)));
  const through = network.url.replace("ws:", "http:").replace("/ws", "");
  await startNode(t, file("server.js"), { env: { REALTIME_URL: through, PORT: String(port) } });
  const open = await chromium(t);
  const page = await open(`http://127.0.0.1:${port}/`);
  await page.until('document.querySelectorAll("li").length === 50');
  for (let round = 1; round <= ROUNDS; round += 1) {
    await Promise.all([...symbols(50)].map(([symbol, price]) => set(symbol, price + round)));
  }
  const last = [...symbols(50)].map(([symbol, price]) => `${symbol}${(price + ROUNDS).toFixed(2)}`).sort().join();
  await page.until(`[...document.querySelectorAll("li")].map((row) => row.textContent).sort().join() === ${JSON.stringify(last)}`);
  assert.equal(await page.evaluate('document.getElementById("status").textContent'), "open");
  assert.equal(network.attempts, 1);
});
