// One scenario against the program before and after the move.
import assert from "node:assert/strict";
import test from "node:test";

import { API_KEY, AUTH_SECRET as SECRET, browser, channel, freePort, limit, serveTutorial, startNode } from "../testing/programs.js";
import * as after from "./after/client.js";
import * as before from "./before/client.js";

const file = (name) => new URL(name, import.meta.url).pathname;

async function startBefore(t) {
  const port = await freePort();
  await startNode(t, file("before/server.js"), { env: { SECRET, PORT: String(port) } });
  const site = `http://127.0.0.1:${port}`;
  return { site, url: site };
}

async function startAfter(t) {
  const port = await freePort();
  const options = ["--auth-secret", SECRET];
  const server = await serveTutorial(t, file("after/sinews.toml"), { ports: { 3000: port }, options });
  const env = { SECRET, SINEWS_API_KEY: API_KEY, REALTIME_URL: server.http, PORT: String(port) };
  await startNode(t, file("after/server.js"), { env });
  return { site: `http://127.0.0.1:${port}`, url: server.url };
}

for (const [name, start, { open }] of [["before, with Socket.IO", startBefore, before], ["after, with Sinews", startAfter, after]]) {
  test(`from-socket-io: ${name}: rooms, alerts and calls`, limit, async (t) => {
    const { site, url } = await start(t);
    const enter = async (user) => {
      const window = browser(site);
      const { token } = await (await window.post("/login", { user })).json();
      const [messages, alerts] = [channel(), channel()];
      const desk = open({ url, token }, { onmessage: messages.push, onalert: alerts.push });
      t.after(() => desk.close());
      await desk.enter("billing");
      return { window, desk, messages, alerts };
    };
    const [anna, ben] = [await enter("anna"), await enter("ben")];

    await anna.desk.send("billing", "hello");
    for (const { messages } of [anna, ben]) assert.deepEqual(await messages.next(), { room: "billing", from: "anna", text: "hello" });

    await assert.rejects(anna.desk.send("billing", " "), { message: "a message has a text" });

    assert.equal((await ben.desk.rename(" Benjamin ")).name, "Benjamin");
    await ben.desk.send("billing", "hello, too");
    assert.equal((await anna.messages.next()).from, "Benjamin");

    assert.equal((await anna.window.post("/alert", { user: "ben", text: "your shift ends" })).status, 200);
    assert.equal(await ben.alerts.next(), "your shift ends");
    assert.equal(anna.alerts.size, 0);
  });
}
