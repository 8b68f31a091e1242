import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test, { before } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { promisify } from "node:util";

import { chromium, noChromium } from "../testing/chromium.js";
import { API_KEY, AUTH_SECRET, folder, freePort, limit, proxy, serveTutorial, start } from "../testing/programs.js";

const run = promisify(execFile);
const path = (name) => new URL(name, import.meta.url).pathname;
/** Milliseconds without a network: a minute, unless the variable says otherwise. */
const OFFLINE = Number(process.env.AUCTION_OFFLINE ?? 4_000);
/** A folder for pictures of the pages, if there is one. */
const PICTURES = process.env.AUCTION_PICTURES;

before(() => run(process.execPath, [path("build.js")]));

test("auction: the programs are strict TypeScript, and have less than 300 lines", limit, async () => {
  const { stdout } = await run("npx", ["tsc", "-p", "."], { cwd: path(".") }).catch((error) => error);
  assert.equal(stdout, "");
  const { stdout: lines } = await run("sh", ["-c", "cat *.ts *.tsx build.js index.html sinews.toml tsconfig.json package.json | wc -l"], { cwd: path(".") });
  assert.ok(Number(lines) < 300, `${lines} lines`);
});

/** The server behind a network that can fail, the application, and a function by which a user logs in. */
async function setUp(t, { tokenSeconds = 600 } = {}) {
  const port = await freePort();
  const options = ["--auth-secret", AUTH_SECRET, "--streams", folder(t), "--auth-leeway", "0s"];
  const serve = (listen) => serveTutorial(t, path("sinews.toml"), { ports: { 3000: port }, options, listen });
  let server = await serve();
  const network = await proxy(t, server.port);
  const env = {
    REALTIME_URL: server.http, PAGE_REALTIME_URL: network.url.replace("ws:", "http:").replace("/ws", ""), PORT: String(port), SINEWS_AUTH_SECRET: AUTH_SECRET,
    SINEWS_API_KEY: API_KEY, TOKEN_SECONDS: String(tokenSeconds),
  };
  await start(t, process.execPath, [path("dist/server.js")], { env });
  const open = await chromium(t);
  const user = async (name) => {
    const page = await open(`http://127.0.0.1:${port}/`);
    await page.until('document.querySelector("#login") !== null');
    // Counts the requests for tokens.
    await page.evaluate("{ const { fetch } = window; window.tokens = 0; window.fetch = (...all) => { if (all[0] === '/token') window.tokens += 1; return fetch(...all); }; }");
    await fill(page, "#login", "user", name);
    await page.until('document.querySelector("#status")?.textContent === "open"');
    return {
      ...page,
      bid: (amount) => fill(page, "#bid", "amount", String(amount)),
      status: (wanted) => page.until(`document.querySelector("#status").textContent.startsWith(${JSON.stringify(wanted)})`),
      price: (text) => page.until(`document.querySelector("#price").textContent === ${JSON.stringify(text)}`),
      bids: () => page.evaluate('[...document.querySelectorAll("#bids li")].map((bid) => bid.textContent)'),
      offline: (offline) => page.call("Network.emulateNetworkConditions", { offline, latency: 0, downloadThroughput: -1, uploadThroughput: -1 }),
    };
  };
  /** Asks the application, as the server does. */
  const decide = async (body) => {
    const headers = { "content-type": "application/json" };
    return (await fetch(`http://127.0.0.1:${port}/hooks/bid`, { method: "POST", headers, body: JSON.stringify(body) })).json();
  };
  return { user, network, decide, kill: () => server.stop("SIGKILL"), restart: async () => { server = await serve(server.port); } };
}

/** Writes into a field that React controls, and submits the form. */
async function fill(page, form, name, value) {
  await page.evaluate(`{
    const form = document.querySelector(${JSON.stringify(form)});
    const field = form.elements[${JSON.stringify(name)}];
    field.value = ${JSON.stringify(value)};
    form.requestSubmit();
  }`);
}

async function picture(page, name) {
  if (!PICTURES) return;
  mkdirSync(PICTURES, { recursive: true });
  const { data } = await page.call("Page.captureScreenshot", { format: "png" });
  writeFileSync(join(PICTURES, `${name}.png`), Buffer.from(data, "base64"));
}

test("auction: two users see each other, the price and each bid, and the application refuses a low one", { ...limit, skip: noChromium }, async (t) => {
  const { user } = await setUp(t);
  const anna = await user("anna");
  await anna.price("100 € ");
  const ben = await user("ben");
  for (const page of [anna, ben]) await page.shows("In the room: anna, ben");
  await anna.bid(120);
  for (const page of [anna, ben]) await page.price("120 € by anna");
  await ben.bid(110);
  await ben.shows("the price is 120 already");
  await anna.bid(130);
  await anna.shows("your bid is the highest already");
  await Promise.all([ben.bid(140), anna.bid(140)]);
  await anna.until('document.querySelectorAll("#bids li").length === 2');
  assert.equal((await anna.bids())[0], "120 € by anna");
  await picture(anna, "bids");
  await ben.close();
  await anna.until('document.querySelector("#members").textContent === "In the room: anna"');
});

test("auction: after kill -9 of the server, the pages continue with all bids, the price and the members", { ...limit, skip: noChromium }, async (t) => {
  const { user, kill, restart } = await setUp(t);
  const [anna, ben] = [await user("anna"), await user("ben")];
  await anna.bid(120);
  for (const page of [anna, ben]) await page.until('document.querySelectorAll("#bids li").length === 1');
  await ben.price("120 € by anna");
  await kill();
  for (const page of [anna, ben]) await page.status("Waiting for the network");
  await ben.bid(130);
  await ben.shows("there is no connection");
  await picture(ben, "killed");
  await restart();
  for (const page of [anna, ben]) await page.status("open");
  await ben.bid(150);
  for (const page of [anna, ben]) {
    await page.price("150 € by ben");
    await page.until('document.querySelectorAll("#bids li").length === 2');
    await page.shows("In the room: anna, ben");
    assert.deepEqual(await page.bids(), ["120 € by anna", "150 € by ben"]);
    assert.equal(await page.evaluate('document.querySelector("#gap")'), null);
    // The token lives for ten minutes.
    assert.equal(await page.evaluate("window.tokens"), 1);
  }
});

test("auction: a page that was offline waits within five seconds, and gets what it has missed when it is online", { timeout: limit.timeout + OFFLINE, skip: noChromium }, async (t) => {
  const { user, network, decide } = await setUp(t);
  const anna = await user("anna");
  await anna.price("100 € ");
  // Packets are lost, and no connection ends.
  network.stall();
  network.refuse({ cuts: false });
  const since = Date.now();
  await anna.offline(true);
  await anna.status("Waiting for the network");
  t.diagnostic(`waiting after ${Date.now() - since} ms`);
  assert.equal(await anna.evaluate("navigator.onLine"), false);
  assert.deepEqual(await decide({ user: "ben", topic: "auction.lamp", data: { amount: 200 } }), { data: { amount: 200 } });
  await pause(OFFLINE);
  await anna.price("100 € ");
  await anna.status("Waiting for the network");
  await picture(anna, "offline");
  network.accept();
  const back = Date.now();
  await anna.offline(false);
  await anna.status("open");
  t.diagnostic(`open ${Date.now() - back} ms after the network`);
  await anna.price("200 € by ben");
  await anna.until('document.querySelectorAll("#bids li").length === 1');
  assert.deepEqual([await anna.bids(), await anna.evaluate('document.querySelector("#gap")')], [["200 € by ben"], null]);
  assert.equal(await anna.evaluate("window.tokens"), 1);
});

test("auction: a token is renewed before it expires, and a user without a session is logged out", { ...limit, skip: noChromium }, async (t) => {
  const { user } = await setUp(t, { tokenSeconds: 5 });
  const anna = await user("anna");
  await anna.until("window.tokens >= 3");
  assert.equal(await anna.evaluate('document.querySelector("#status").textContent'), "open");
  // In another tab.
  await anna.evaluate('fetch("/logout", { method: "POST" })');
  await anna.status("You are logged out.");
  const asked = await anna.evaluate("window.tokens");
  await picture(anna, "logged-out");
  await pause(2_000);
  assert.equal(await anna.evaluate("window.tokens"), asked);
});

test("auction: a user that logs out leaves the room", { ...limit, skip: noChromium }, async (t) => {
  const { user } = await setUp(t);
  const [anna, ben] = [await user("anna"), await user("ben")];
  await ben.shows("In the room: anna, ben");
  await anna.evaluate('document.querySelector("#logout").click()');
  await anna.until('document.querySelector("#login") !== null');
  await ben.until('document.querySelector("#members").textContent === "In the room: ben"');
});
