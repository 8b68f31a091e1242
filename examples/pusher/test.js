import assert from "node:assert/strict";
import test from "node:test";

import { chromium, noChromium } from "../testing/chromium.js";
import { browser, freePort, limit, serveTutorial, startNode } from "../testing/programs.js";
import "./test-pusher-js.js";

const file = (name) => new URL(name, import.meta.url).pathname;
const MEMBERS = '[...document.querySelectorAll("#members li")].map((line) => line.textContent).join()';

/** The server, the application, and a function that opens its page in Chromium as a user. */
async function setUp(t) {
  const port = await freePort();
  // The server is started again at its port, which no connection may take in the meantime.
  const listen = await freePort();
  const serve = () => serveTutorial(t, file("sinews.toml"), { ports: { 3000: port }, listen });
  const server = await serve();
  await startNode(t, file("server.js"), { env: { PUSHER_PORT: String(server.port), PORT: String(port) } });
  const site = `http://127.0.0.1:${port}/pusher-example`;
  /** Pages of several users, each in a profile of its own. */
  const enter = async (...users) => {
    const open = await chromium(t);
    return Promise.all(users.map(async (user) => {
      const page = await open(`${site}/`);
      await page.submit("#login", { "#user": user });
      await page.until('document.querySelector("#status").textContent === "connected"');
      await page.until(`${MEMBERS}.includes("${user} (you)")`);
      return page;
    }));
  };
  return { site, server, enter, restart: serve };
}

const members = (names) => `${MEMBERS} === ${JSON.stringify(names)}`;

test("pusher: the application signs for the user's own channels only", limit, async (t) => {
  const { site } = await setUp(t);
  const window = browser(site);
  const sign = (channel) => window.post("/auth", { socket_id: "1.2", channel_name: channel });
  assert.equal((await sign("presence-team")).status, 401);
  assert.equal((await window.post("/login", { user: "a,b" })).status, 422);
  assert.equal((await window.post("/login", { user: "anna" })).status, 200);
  const { auth, channel_data: data } = await (await sign("presence-team")).json();
  assert.match(auth, /^shop-key:[0-9a-f]{64}$/);
  assert.deepEqual(JSON.parse(data), { user_id: "anna", user_info: { name: "anna" } });
  assert.equal((await sign("private-user-anna")).status, 200);
  for (const channel of ["private-user-ben", "presence-other"]) assert.equal((await sign(channel)).status, 403, channel);
  assert.equal((await window.post("/auth", { socket_id: "none", channel_name: "presence-team" })).status, 400);
});

test("pusher: pages show each other, and a page that is closed disappears", { ...limit, skip: noChromium }, async (t) => {
  const { enter } = await setUp(t);
  const [anna, ben] = await enter("anna", "ben");
  await anna.until(members("anna (you),ben"));
  await ben.until(members("anna,ben (you)"));
  await ben.close();
  await anna.until(members("anna (you)"));
});

test("pusher: a user with two pages is one member until both are closed", { ...limit, skip: noChromium }, async (t) => {
  const { enter } = await setUp(t);
  const [anna, ben, second] = await enter("anna", "ben", "ben");
  await anna.until(members("anna (you),ben"));
  await second.evaluate('document.querySelector("#leave").click()');
  await second.shows("Who are you?");
  // A note of the other page shows that its user is a member still.
  await ben.submit("#send", { "#note": "here" });
  await anna.shows("ben: here");
  assert.equal(await anna.evaluate(MEMBERS), "anna (you),ben");
  await ben.close();
  await anna.until(members("anna (you)"));
});

test("pusher: client events reach the other page, with their sender", { ...limit, skip: noChromium }, async (t) => {
  const { enter } = await setUp(t);
  const [anna, ben] = await enter("anna", "ben");
  await anna.until(members("anna (you),ben"));
  // A real pointer, three quarters to the right.
  const { x, y, width, height } = await anna.evaluate('document.querySelector("#board").getBoundingClientRect().toJSON()');
  await anna.call("Input.dispatchMouseEvent", { type: "mouseMoved", x: x + width * 0.75, y: y + height / 2 });
  const left = `parseFloat(document.querySelector('.cursor[data-user="anna"]').style.left)`;
  await ben.until(`Math.abs(${left} - 75) < 2`);
  // The arrow keys do the same.
  await anna.evaluate('document.querySelector("#board").focus()');
  await anna.call("Input.dispatchKeyEvent", { type: "keyDown", key: "ArrowLeft", code: "ArrowLeft" });
  await ben.until(`Math.abs(${left} - 70) < 2`);
  await ben.evaluate('document.querySelector("#note").focus()');
  await ben.call("Input.insertText", { text: "<b>hello</b>" });
  await anna.shows("typing: ben");
  await ben.call("Input.dispatchKeyEvent", { type: "keyDown", key: "Enter", code: "Enter", windowsVirtualKeyCode: 13, text: "\r" });
  await anna.shows("ben: <b>hello</b>");
  await ben.shows("you: <b>hello</b>");
  assert.equal(await anna.evaluate('document.querySelector("#typing").textContent.trim()'), "");
  assert.equal(await ben.evaluate(`document.querySelector("#notes").innerText.includes("ben:")`), false, "not the sender");
});

test("pusher: the application's events arrive", { ...limit, skip: noChromium }, async (t) => {
  const { enter } = await setUp(t);
  const [anna, ben] = await enter("anna", "ben");
  await anna.evaluate('document.querySelector("#ship").click()');
  await anna.until('/Order \\d+ was shipped/.test(document.querySelector("#orders").textContent)');
  await anna.submit("#publish", { "#text": "The shop is open" });
  for (const page of [anna, ben]) await page.shows("anna: The shop is open");
  // The order came before the news, on the same connections.
  assert.equal(await ben.evaluate('document.querySelector("#orders").textContent'), "", "the order is of the other user");
});

test("pusher: a page with Laravel Echo", { ...limit, skip: noChromium }, async (t) => {
  const { site } = await setUp(t);
  const [anna, ben] = await Promise.all(["anna", "ben"].map(async (user) => {
    const page = await (await chromium(t))(`${site}/echo.html`);
    await page.submit("#login", { "#user": user });
    return page;
  }));
  for (const page of [anna, ben]) await page.until('document.querySelector("#members").value === "anna, ben"');
  await ben.submit("#send", { "#text": "<b>hello</b>" });
  await anna.shows("ben: <b>hello</b>");
  await anna.evaluate('document.querySelector("#ship").click()');
  await anna.shows("Order 7 was shipped.");
  await anna.evaluate(`fetch("news", {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ text: "We are open" }),
  }).then(({ status }) => status)`);
  await ben.shows("anna announces: We are open");
  await ben.close();
  await anna.until('document.querySelector("#members").value === "anna"');
});

for (const [how, signal] of [["is restarted", "SIGTERM"], ["dies", "SIGKILL"]]) {
  test(`pusher: pages connect again after the server ${how}`, { ...limit, skip: noChromium }, async (t) => {
    const { server, enter, restart } = await setUp(t);
    const [anna, ben] = await enter("anna", "ben");
    const id = "document.querySelector('#status').dataset.state";
    await server.stop(signal);
    await anna.until(`${id} !== "connected"`);
    await anna.submit("#publish", { "#text": "lost" });
    await anna.shows("events are not sent at present");
    await restart();
    for (const page of [anna, ben]) await page.until(`${id} === "connected"`);
    await anna.until(members("anna (you),ben"));
    await ben.until(members("anna,ben (you)"));
    await anna.submit("#publish", { "#text": "We are back" });
    for (const page of [anna, ben]) await page.shows("anna: We are back");
    await ben.submit("#send", { "#note": "and so am I" });
    await anna.shows("ben: and so am I");
  });
}
