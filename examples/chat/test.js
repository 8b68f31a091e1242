import assert from "node:assert/strict";
import test from "node:test";

import { connect } from "@sinews/client";
import { chromium, noChromium } from "../testing/chromium.js";
import { AUTH_SECRET, browser, channel, freePort, limit, serveTutorial, startNode } from "../testing/programs.js";
import { enter } from "./public/room.js";

const file = (name) => new URL(name, import.meta.url).pathname;

/** The server, the application, and a function by which a user logs in and enters the room. */
async function setUp(t) {
  const port = await freePort();
  const options = ["--auth-secret", AUTH_SECRET];
  const server = await serveTutorial(t, file("sinews.toml"), { ports: { 3000: port }, options });
  const env = { REALTIME_URL: server.http, PORT: String(port), SINEWS_AUTH_SECRET: AUTH_SECRET };
  await startNode(t, file("server.js"), { env });
  const site = `http://127.0.0.1:${port}`;
  const user = async (name) => {
    const window = browser(site);
    assert.equal((await window.post("/login", { user: name })).status, 200);
    const access = async () => (await window.get("/realtime")).json();
    const { url, user } = await access();
    const client = connect(url, { token: async () => (await access()).token });
    t.after(() => client.close());
    const [messages, members, typing] = [channel(), channel(), channel()];
    const room = enter(client, "lobby", user, { onmessage: messages.push, onmembers: members.push, ontyping: typing.push });
    await room.ready;
    return { client, room, messages, members, typing };
  };
  return { user, site };
}

const are = (...names) => (list) => list.join() === names.join();

test("chat: a message has its sender's name, from the application", limit, async (t) => {
  const { user } = await setUp(t);
  const [anna, ben] = [await user("anna"), await user("ben")];
  await anna.room.send(" hello ");
  const { from, text, at } = await ben.messages.next();
  assert.deepEqual([from, text], ["anna", "hello"]);
  assert.ok(Date.parse(at) > 0);
  assert.equal((await anna.messages.next()).text, "hello", "the sender gets it, too");
  await ben.client.publish("chat.lobby", { from: "anna", text: "forged" });
  assert.equal((await anna.messages.next()).from, "ben");
});

test("chat: the application rejects a message with a reason", limit, async (t) => {
  const { user } = await setUp(t);
  const anna = await user("anna");
  await assert.rejects(anna.room.send("  "), { code: 422, message: /a message has a text/ });
  await assert.rejects(anna.room.send("buy SPAM"), { code: 422, message: /no advertisements/ });
  await anna.room.send("hello");
  assert.equal((await anna.messages.next()).text, "hello");
});

test("chat: the server limits sizes and rates", limit, async (t) => {
  const { user } = await setUp(t);
  const anna = await user("anna");
  await assert.rejects(anna.room.send("x".repeat(5_000)), { code: 413 });
  // While the server stalls, further messages become permitted: a burst is sent until one of its messages is rejected.
  for (let codes = []; !codes.includes(429);) {
    const sent = await Promise.allSettled(Array.from({ length: 40 }, (_, i) => anna.client.publish("chat.lobby", { text: `${i}` })));
    codes = sent.map(({ reason }) => reason?.code);
    assert.ok(codes.every((code) => code === undefined || code === 429), `${codes}`);
  }
});

test("chat: a user that enters later gets the last messages", limit, async (t) => {
  const { user } = await setUp(t);
  const anna = await user("anna");
  await anna.room.send("one");
  await anna.room.send("two");
  const ben = await user("ben");
  assert.deepEqual([(await ben.messages.next()).text, (await ben.messages.next()).text], ["one", "two"]);
});

test("chat: members are the users in the room", limit, async (t) => {
  const { user } = await setUp(t);
  const anna = await user("anna");
  const ben = await user("ben");
  await anna.members.until(are("anna", "ben"));
  const second = await user("ben"); // in another tab
  await second.members.until(are("anna", "ben"));
  second.client.close();
  ben.client.close();
  await anna.members.until(are("anna"));
});

test("chat: typing is shown to the other users, and ends", limit, async (t) => {
  const { user } = await setUp(t);
  const [anna, ben] = [await user("anna"), await user("ben")];
  await anna.room.type();
  await ben.typing.until(are("anna"));
  await anna.room.send("done");
  await ben.typing.until(are());
  await anna.room.type();
  await ben.typing.until(are("anna"));
  await ben.typing.until(are()); // after its time to live
  await assert.rejects(ben.client.set("typing.lobby", "anna", true), { code: 403 });
});

test("chat: two pages chat", { ...limit, skip: noChromium }, async (t) => {
  const { site } = await setUp(t);
  const open = await chromium(t);
  const [anna, ben] = [await open(`${site}/`), await open(`${site}/`)];
  await anna.submit("#login", { "[name=user]": "anna" });
  await anna.shows("Here: anna (open)");
  await ben.submit("#login", { "[name=user]": "ben" });
  await anna.shows("Here: anna, ben (open)");
  await anna.submit("#send", { "#text": "<b>hello</b>" });
  await ben.shows("anna: <b>hello</b>");
  await ben.evaluate('setInterval(() => document.querySelector("#text").dispatchEvent(new Event("input")), 100)');
  await anna.shows("typing: ben");
  await anna.submit("#send", { "#text": "spam" });
  await anna.shows("no advertisements");
});
