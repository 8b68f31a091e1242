// The dashboard of an operator: clients and the actions on them, nodes of a cluster, hooks and webhooks that fail.
import { once } from "node:events";
import http from "node:http";
import { dirname } from "node:path";

import { examine } from "./axe.js";
import { all, eventually, expect } from "./page.js";
import { cluster } from "./world.js";

export const KEY = "an-api-key-of-the-browser-checks";
const READER = "another-key-without-the-right-to-it";
const MARKUP = "<img src=x onerror=window.ran=1>";
const app = (id) => `id = "${id}"\nkey = "app-key-${id}"\nsecret = "app-secret-${id}"\n`;

export async function dashboard(part) {
  const { options, make } = part.tokens();
  const keys = part.file("api-keys", `ops ${KEY} disconnect\nreader ${READER} read presence\n`);
  const apps = part.folder();
  part.file("3.toml", app("3"), apps);
  part.file("4.toml", `name = "<b>shop</b>"\n${app("4")}`, apps);
  const server = await part.serve([...options, "--api-keys-file", keys, "--pusher-apps-directory", apps]);
  const [page, anna] = [await part.window(), await part.openBare(server)];
  const open = () => page.openDashboard(server, `#token=${make("--subscribe", "sinews.dashboard")}`);
  await part.check("the dashboard counts users, members, topics and keys", async () => {
    await anna.evaluate(async ([token, topic]) => {
      const onstatus = ({ status, code }) => note(`${status} ${code ?? ""}`);
      window.client = connect(undefined, { token, minDelay: 20, onstatus });
      await client.subscribe(topic, () => {}).ready;
      await client.join("room", { id: "anna" });
      await client.set("players", "anna", 1);
    }, [make("--subject", "anna", "--id", "t1", "--subscribe", ">", "--publish", ">", "--keys", "players/*"), MARKUP]);
    await open();
    const tiles = { users: "1", members: "1", topics: "1", keys: "1" };
    for (const [tile, value] of Object.entries(tiles)) await page.shows(`[data-testid=${tile}] dd:not(.key)`, value);
    // What has never happened takes no room.
    await expect(page.locator("[data-testid=slow-clients], [data-testid=dropped]").filter({ visible: true })).toHaveCount(0);
  });
  await part.check("the apps of the Pusher protocol are listed, without their keys", async () => {
    await anna.evaluate(() => {
      window.app = new WebSocket("/app/app-key-4?protocol=7");
      app.onopen = () => app.send(JSON.stringify({ event: "pusher:subscribe", data: { channel: "room" } }));
    });
    // The app with a connection is the first.
    await eventually(() => page.rows("#apps")).toEqual(["<b>shop</b> 4|1|1|0|0 events|0|0", "3|0|0|0|0 events|0|0"]);
    expect(await page.content()).not.toMatch(/app-key|app-secret/);
  });
  await part.check("markup in the name of a topic stays text on the dashboard", async () => {
    await eventually(async () => (await page.rows("#rates"))[0]).toBe(`${MARKUP}|0/s|1|0`);
    await expect(page.locator("main img")).toHaveCount(0);
    expect(await page.evaluate(() => window.ran)).toBe(undefined);
  });
  await part.check("charts have an axis of values and of time", async () => {
    await expect(page.locator('.chart .line:not([d]), .chart .line[d=""]')).toHaveCount(0);
    const charts = await page.locator(".chart").evaluateAll((all) => all.map((chart) => {
      const texts = (selector) => [...chart.querySelectorAll(selector)].map((element) => element.textContent);
      const curve = [...chart.querySelector(".line").getAttribute("d").matchAll(/[ML][\d.]+ (-?[\d.]+)/g)];
      const ticks = texts(".ticks span");
      const outside = curve.filter(([, y]) => y < 0 || y > 100);
      return { outside, ticks: ticks.length, values: new Set(ticks).size, time: texts(".axis"), most: texts(".most") };
    }));
    expect(charts.length).toBeGreaterThan(0);
    // The upper end of the axis is not below the curve, and the curve is inside of the chart.
    const texts = { time: ["60 s ago30 snow"], most: [expect.stringMatching(/^max /)] };
    for (const chart of charts) expect(chart).toEqual({ outside: [], ticks: 3, values: 3, ...texts });
  });
  const kept = () => page.evaluate(() => [sessionStorage.getItem("sinews.api-key"), { ...localStorage }]);
  const hasNoKey = async () => {
    expect(await kept()).toEqual([null, {}]);
    await expect(page.locator("#clients-section")).toBeHidden();
  };
  await part.check("without an API key no action is offered", hasNoKey);
  for (const [name, key, reason] of [
    ["a wrong API key", "a-key-that-the-server-does-not-have", /^Rejected: /],
    ["an API key without the right", READER, "Rejected: the key reader has no right disconnect."],
  ]) {
    await part.check(`${name} is rejected, and not kept`, async () => {
      await page.enter("#key", key);
      await page.shows("#auth-problem", reason);
      await hasNoKey();
    });
  }
  const lists = (text) => page.contains("#connections", text);
  await part.check("an API key lists the clients, for this tab only", async () => {
    await page.fill("#key", KEY);
    await page.click("#auth button");
    await lists("anna");
    expect(await kept()).toEqual([KEY, {}]);
    await expect(page.locator("#key")).toHaveValue("");
    // A reload of the tab asks for the token of the feed, and not for the key.
    await open();
    await lists("anna");
    await page.enter("#find-user", "nobody");
    await all(page.contains("#clients", "No connection is open."), page.isBlank("#connections"));
    await page.enter("#find-user", "anna");
    await lists("anna");
    await examine(page);
  });
  const asks = (question) => page.contains("#sure", question);
  const confirms = async (question, confirm, result) => {
    await asks(question);
    await confirm();
    await page.shows("#clients-result", result);
  };
  await part.check("the dialog is canceled by Escape, and a client is disconnected by the keyboard", async () => {
    const button = page.locator("#connections tr button.danger").first();
    await button.press("Enter");
    await asks("Disconnect the connection");
    await examine(page);
    await page.keyboard.press("Escape");
    await all(expect(page.locator("#sure")).toBeHidden(), page.isBlank("#clients-result"));
    await button.press("Enter");
    await confirms("Disconnect the connection", () => page.press("#sure-yes", "Enter"), "Done: 1 connection closed.");
    await anna.noted("waiting 4410");
  });
  await part.check("the tokens of a user are revoked", async () => {
    const revoke = () => page.click("#sure-yes");
    // The client is connected again.
    await eventually(async () => (await anna.notes("open ")).length).toBeGreaterThanOrEqual(2);
    await page.click("#find button");
    await lists("anna");
    await page.click("#connections button[aria-label='Revoke tokens of anna']");
    await confirms("Revoke all tokens of anna", revoke, "Revoked: 1 connection closed.");
    await anna.noted("closed 4401");
    // By the id of a token: it has no connection now.
    await page.enter("#revoke-token", "t2");
    await confirms("Revoke the token t2", revoke, "Revoked: 0 connections closed.");
  });
  await part.check("a forgotten key takes the actions away", async () => {
    await page.click("#forget");
    await hasNoKey();
  });
  await part.check("a stopped server is told, with the time of the numbers, and the dashboard reconnects", async () => {
    await server.kill();
    await all(...["The page tries again.", "The numbers are of "].map((text) => page.contains("#outage", text)));
    await examine(page);
    await server.restart();
    await all(page.shows("#state", "live"), expect(page.locator("#outage")).toBeHidden());
  });
}

/** The dashboard with nodes of a cluster, hooks and webhooks that fail, and slow clients. */
export async function operations(part) {
  // An application that does not answer: no program listens at port 1 of the loopback interface.
  const silent = "http://127.0.0.1:1/";
  const config = part.file("sinews.toml", `[webhook.shop]
url = "${silent}"
secret = "a secret of more than thirty-two bytes"
grace = "0s"
`);
  const apps = dirname(part.file("3.toml", app("3")));
  const options = ["--streams", part.folder(), "--pusher-apps-directory", apps, "--websocket-overflow", "drop-newest"];
  const server = await part.serve(["--config", config, "--hooks-rpc", silent, "--api-key", KEY, ...options]);
  await server.publish("streams/orders", '{"item": 7}');
  const page = await part.window();
  await part.check("hooks are listed with their failures, and an open circuit is told", async () => {
    await page.openDashboard(server);
    await expect(page.locator("#hooks-open")).toBeHidden();
    // Opens the circuit, and causes events for the webhook.
    await page.evaluate(async () => {
      const calls = Array(40).fill({ op: "rpc", method: "price" });
      window.caller = await request("/ws", { op: "subscribe", topic: "orders" }, ...calls);
    });
    await eventually(async () => (await page.rows("#hooks"))[0]).toMatch(/^rpc\|(?=.* failed)(?=.* not asked)/);
    await page.shows("#hooks-open", /^1 address of hooks failed and is not asked for a while/);
  });
  await part.check("webhooks are listed with their events and retries", async () => {
    // The application does not answer: the events are sent again and again.
    const shop = /^shop\|0 events[^|]*\|[^|]* event[^|]*\|[^|]*\|[^|]*\|(?!0$)[^|]+$/;
    await eventually(() => page.rows("#webhooks")).toEqual([expect.stringMatching(shop)]);
  });
  await part.examine("on the dashboard with hooks, webhooks, apps and streams", page, () =>
    all(...["hooks", "webhooks", "apps", "streams"].map((id) => expect(page.locator(`#${id} tr`)).not.toHaveCount(0))));
  await part.check("a slow client is listed with its queue", async (test) => {
    await page.openDashboard(server);
    // It subscribes to a topic, and reads nothing after the handshake.
    const key = { "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version": "13" };
    const headers = { connection: "upgrade", upgrade: "websocket", ...key };
    const [, socket] = await once(http.get(server.url("topics/prices"), { headers }), "upgrade");
    test.after(() => socket.destroy());
    await page.enter("#key", KEY);
    const connections = async () => (await page.rows("#connections")).join("\n");
    await eventually(connections).toContain("|/topics/{name}|");
    await page.click("label:has(#find-slow)");
    await page.shows("#connections-none", "No client is slow.");
    await eventually(async () => {
      for (let times = 0; times < 50; times++) await server.publish("topics/prices", "x".repeat(60_000));
      await page.click("#find button");
      return connections();
    }).toMatch(/\|\/topics\/\{name\}\|.* (KiB|MiB)\|/);
  });
  await part.check("the nodes of a cluster are listed, and an outage of the broker is told", async (test) => {
    const started = await cluster(test);
    if (!started) return;
    await page.openDashboard(started.nodes[0]);
    const nodes = ["eu-1", "eu-2"].map((name) => expect.stringMatching(`^${name}\\|\\d[^|]*\\|[^|]* (s|min)(\\||$)`));
    const listsNodes = () => eventually(async () => (await page.rows("#nodes")).sort()).toEqual(nodes);
    const isUp = () => expect(page.seen("#nodes-away")).toHaveCount(0);
    await all(listsNodes(), page.contains("#server", " · node eu-1 · "), isUp());
    await examine(page);
    await started.killBroker();
    await page.shows("#nodes-away", /^The broker of the cluster is unreachable/);
    await examine(page);
    await started.restartBroker();
    await all(listsNodes(), isUp());
  });
}
