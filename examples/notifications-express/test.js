import assert from "node:assert/strict";
import test from "node:test";

import { connect } from "@sinews/client";
import { chromium, noChromium } from "../testing/chromium.js";
import { API_KEY, AUTH_SECRET, browser, channel, freePort, limit, serveTutorial, startNode } from "../testing/programs.js";

const file = (name) => new URL(name, import.meta.url).pathname;

/** The server, the application, and a function that opens its page as a user. */
async function setUp(t) {
  const port = await freePort();
  const options = ["--auth-secret", AUTH_SECRET];
  const server = await serveTutorial(t, file("sinews.toml"), { ports: { 3000: port }, options });
  const env = { REALTIME_URL: server.http, PORT: String(port), SINEWS_API_KEY: API_KEY, SINEWS_AUTH_SECRET: AUTH_SECRET };
  await startNode(t, file("server.js"), { env });
  const site = `http://127.0.0.1:${port}`;
  const login = async (user) => {
    const window = browser(site);
    assert.equal((await window.post("/login", { user })).status, 200);
    return window;
  };
  /** Does the same as the script of the page. */
  const open = async (window, topic) => {
    const access = async () => (await window.get("/realtime")).json();
    const { url, user } = await access();
    const client = connect(url, { token: async () => (await access()).token });
    t.after(() => client.close());
    const messages = channel();
    const subscription = client.subscribe(topic ?? `notifications.${user}`, ({ data }) => messages.push(data), { last: 10 });
    return { client, messages, ready: subscription.ready };
  };
  return { site, login, open };
}

test("express: a notification reaches all pages of its user", limit, async (t) => {
  const { login, open } = await setUp(t);
  const [anna, ben] = [await login("anna"), await login("ben")];
  const pages = [await open(anna), await open(anna)];
  const other = await open(ben);
  await Promise.all([...pages, other].map((page) => page.ready));
  await anna.post("/orders/7/ship", { user: "anna" });
  for (const page of pages) {
    assert.deepEqual(await page.messages.next(), { title: "On its way", text: "Order 7 was shipped." });
  }
  await anna.post("/orders/8/ship", { user: "ben" });
  assert.equal((await other.messages.next()).text, "Order 8 was shipped.");
});

test("express: a page that opens later gets the last notifications, each once", limit, async (t) => {
  const { login, open } = await setUp(t);
  const anna = await login("anna");
  for (const number of [1, 2, 2]) assert.equal((await anna.post(`/orders/${number}/ship`, { user: "anna" })).status, 200);
  const page = await open(anna);
  await page.ready;
  await anna.post("/orders/3/ship", { user: "anna" });
  const texts = [await page.messages.next(), await page.messages.next(), await page.messages.next()].map(({ text }) => text);
  assert.deepEqual(texts, [1, 2, 3].map((number) => `Order ${number} was shipped.`));
});

test("express: a user neither reads notifications of another user nor publishes", limit, async (t) => {
  const { login, open } = await setUp(t);
  const page = await open(await login("ben"), "notifications.anna");
  await assert.rejects(page.ready, { code: 403 });
  await assert.rejects(page.client.publish("notifications.ben", "forged"), { code: 403 });
});

test("express: the page needs a login, and gets the client", limit, async (t) => {
  const { site } = await setUp(t);
  const window = browser(site);
  assert.equal((await window.get("/realtime")).status, 401);
  assert.equal((await window.post("/login", { user: "a.b" })).status, 422);
  assert.match(await (await window.get("/")).text(), /notifications\.js/);
  assert.match(await (await window.get("/client.js")).text(), /export function connect/);
});

test("express: the page shows notifications, the last ones first", { ...limit, skip: noChromium }, async (t) => {
  const { site, login } = await setUp(t);
  const anna = await login("anna");
  await anna.post("/orders/7/ship", { user: "anna" });
  const open = await chromium(t);
  const page = await open(`${site}/`);
  await page.submit("#login", { "[name=user]": "anna" });
  await page.shows("On its way: Order 7 was shipped.");
  await page.shows("open");
  await anna.post("/orders/8/ship", { user: "anna" });
  await page.until('document.querySelector("li").textContent === "On its way: Order 8 was shipped."');
});
