// The dashboard of an operator: clients and the actions on them, nodes of a cluster, hooks and webhooks that fail.
import { mkdirSync, writeFileSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";

import {
  cluster, contains, enter, eventually, expect, isBlank, noted, notes, openDashboard, retry, rows, seen, shows,
} from "./world.js";

export const KEY = "an-api-key-of-the-browser-checks";
const READER = "another-key-without-the-right-to-it";
const MARKUP = "<img src=x onerror=window.ran=1>";

export async function dashboard(part) {
  const { options, make } = part.tokens();
  const folder = part.folder();
  const [keys, apps] = [join(folder, "api-keys"), join(folder, "apps")];
  writeFileSync(keys, `ops ${KEY} disconnect\nreader ${READER} read presence\n`);
  mkdirSync(apps);
  for (const [id, name] of [["3", ""], ["4", 'name = "<b>shop</b>"\n']]) {
    writeFileSync(join(apps, `${id}.toml`), `id = "${id}"\n${name}key = "app-key-${id}"\nsecret = "app-secret-${id}"\n`);
  }
  const server = await part.serve([...options, "--api-keys-file", keys, "--pusher-apps-directory", apps]);
  const [page, anna] = [await part.window(), await part.window()];
  const open = () => openDashboard(page, server, `#token=${make("--subscribe", "sinews.dashboard")}`);
  await part.check("the dashboard counts users, members, topics and keys", async () => {
    await connectAnna({ server, anna, make });
    await open();
    for (const [tile, value] of [["users", "1"], ["members", "1"], ["topics", "1"], ["keys", "1"], ["slow-clients", "0"]]) {
      await shows(page, `[data-testid=${tile}] dd:not(.key)`, value);
    }
  });
  await part.check("the apps of the Pusher protocol are listed, without their keys", async () => {
    await anna.evaluate(() => {
      window.app = new WebSocket("/app/app-key-4?protocol=7");
      app.onopen = () => app.send(JSON.stringify({ event: "pusher:subscribe", data: { channel: "room" } }));
    });
    // The app with a connection is the first.
    await eventually(() => rows(page, "#apps")).toEqual(["<b>shop</b>4|1|1|0|0 events|0|0", "3|0|0|0|0 events|0|0"]);
    expect(await page.content()).not.toMatch(/app-key|app-secret/);
  });
  await part.check("markup in the name of a topic stays text on the dashboard", async () => {
    await eventually(async () => (await rows(page, "#rates"))[0]).toBe(`${MARKUP}|0/s|1|0`);
    await expect(page.locator("main img")).toHaveCount(0);
    expect(await page.evaluate(() => window.ran)).toBe(undefined);
  });
  await part.check("charts have an axis of values and of time", async () => {
    await expect(page.locator('.chart .line:not([d]), .chart .line[d=""]')).toHaveCount(0);
    const charts = await page.locator(".chart").evaluateAll((all) => all.map((chart) => {
      const text = (selector) => chart.querySelector(selector).textContent;
      const curve = [...chart.querySelector(".line").getAttribute("d").matchAll(/[ML][\d.]+ (-?[\d.]+)/g)];
      const ticks = [...chart.querySelectorAll(".ticks span")].map((tick) => tick.textContent);
      return {
        name: chart.dataset.testid, ticks, time: text(".axis"), most: text(".most"), outside: curve.filter(([, y]) => y < 0 || y > 100),
      };
    }));
    expect(charts.length).toBeGreaterThan(0);
    for (const { name, ticks, time, most, outside } of charts) {
      // The upper end of the axis is not below the curve, and the curve is inside of the chart.
      expect(outside, name).toEqual([]);
      expect(new Set(ticks).size, `${name}: ${ticks}`).toBe(3);
      expect(ticks, name).toHaveLength(3);
      expect(time, name).toBe("60 s ago30 snow");
      expect(most, name).toMatch(/^max /);
    }
  });
  await part.check("without an API key no action is offered", () => offersNothing(page));
  await part.check("a wrong API key is rejected, and not kept", async () => {
    await give(page, "a-key-that-the-server-does-not-have");
    await shows(page, "#key-problem", /^Rejected: /);
    expect(await kept(page)).toEqual([null, {}]);
    await offersNothing(page);
  });
  await part.check("an API key without the right is rejected, and not kept", async () => {
    await give(page, READER);
    await shows(page, "#key-problem", "Rejected: the key reader has no right disconnect.");
    expect(await kept(page)).toEqual([null, {}]);
    await offersNothing(page);
  });
  await part.check("an API key lists the clients, for this tab only", async () => {
    await give(page, KEY);
    await contains(page, "#connections", "anna");
    expect(await kept(page)).toEqual([KEY, {}]);
    await expect(page.locator("#key")).toHaveValue("");
    // A reload of the tab asks for the token of the feed, and not for the key.
    await open();
    await contains(page, "#connections", "anna");
    const find = async (user) => { await enter(page, "#find-user", user); };
    await find("nobody");
    await contains(page, "#clients", "No connection is open.");
    await isBlank(page, "#connections");
    await find("anna");
    await contains(page, "#connections", "anna");
  });
  const asks = (question) => contains(page, "#sure", question);
  const tells = (result) => shows(page, "#clients-result", result);
  await part.check("the dialog is canceled by Escape, and a client is disconnected by the keyboard", async () => {
    const button = page.locator("#connections tr button").first();
    await button.press("Enter");
    await asks("Disconnect the connection");
    await page.keyboard.press("Escape");
    await expect(page.locator("#sure")).toBeHidden();
    await isBlank(page, "#clients-result");
    await button.press("Enter");
    await asks("Disconnect the connection");
    await page.press("#sure-yes", "Enter");
    await tells("Done: 1 connection closed.");
    await noted(anna, "waiting 4410");
  });
  await part.check("the tokens of a user are revoked", async () => {
    // The client is connected again.
    await eventually(async () => (await notes(anna)).filter((note) => note === "open ").length).toBeGreaterThanOrEqual(2);
    await page.click("#find button");
    await contains(page, "#connections", "anna");
    await page.click("#connections button[aria-label='Revoke the tokens of anna']");
    await asks("Revoke all tokens of anna");
    await page.click("#sure-yes");
    await tells("Revoked: 1 connection closed.");
    await noted(anna, "closed 4401");
    // By the id of a token: it has no connection now.
    await enter(page, "#revoke-token", "t2");
    await asks("Revoke the token t2");
    await page.click("#sure-yes");
    await tells("Revoked: 0 connections closed.");
  });
  await part.check("a forgotten key takes the actions away", async () => {
    await page.click("#forget");
    expect(await kept(page)).toEqual([null, {}]);
    await offersNothing(page);
  });
  await part.check("a stopped server is told, with the time of the numbers, and the dashboard reconnects", async () => {
    await server.kill();
    await contains(page, "#outage", "The page tries again.");
    await contains(page, "#outage", "The numbers are of ");
    await server.restart();
    await shows(page, "#state", "live");
    await expect(page.locator("#outage")).toBeHidden();
  });
}

/** Connects the page of Anna. */
async function connectAnna({ server, anna, make }) {
  const rights = ["--subscribe", ">", "--publish", ">", "--keys", "players/*"];
  await anna.goto(server.url("healthz"));
  await anna.evaluate(async ([token, topic]) => {
    const { connect } = await import("/sinews.js");
    window.client = connect(undefined, { token, minDelay: 20, onstatus: ({ status, code }) => note(`${status} ${code ?? ""}`) });
    await client.subscribe(topic, () => {}).ready;
    await client.join("room", { id: "anna" });
    await client.set("players", "anna", 1);
  }, [make("--subject", "anna", "--id", "t1", ...rights), MARKUP]);
}

async function offersNothing(page) {
  await expect(page.locator("main")).not.toContainText(/Disconnect|Revoke/, { useInnerText: true });
}

const kept = (page) => page.evaluate(() => [sessionStorage.getItem("sinews.api-key"), { ...localStorage }]);

async function give(page, key) {
  await page.fill("#key", key);
  await page.click("#key-form button");
}

/** The dashboard with nodes of a cluster, hooks and webhooks that fail, and slow clients. */
export async function operations(part) {
  const server = await part.serve(["--config", failingApplication(part), "--api-key", KEY, "--websocket-overflow", "drop-newest"]);
  const page = await part.window();
  await part.check("hooks are listed with their failures, and an open circuit is told", async () => {
    await openDashboard(page, server);
    await expect(page.locator("#hooks-open")).toBeHidden();
    await failCalls(page);
    await eventually(async () => (await rows(page, "#hooks"))[0]).toMatch(/^rpc\|(?=.* failed)(?=.* not asked)/);
    await shows(page, "#hooks-open", /^1 address of hooks failed and is not asked for a while/);
  });
  await part.check("webhooks are listed with their events and retries", async () => {
    // The application does not answer: the events are sent again and again.
    await eventually(() => rows(page, "#webhooks")).toEqual([
      expect.stringMatching(/^shop\|0 events[^|]*\|[^|]* event[^|]*\|[^|]*\|[^|]*\|(?!0$)[^|]+$/),
    ]);
  });
  await part.check("a slow client is listed with its queue", async (test) => {
    await openDashboard(page, server);
    await deafClient(test, server);
    await enter(page, "#key", KEY);
    const connections = async () => (await rows(page, "#connections")).join("\n");
    await eventually(connections).toContain("|/topics/{name}|");
    await page.click("label:has(#find-slow)");
    await shows(page, "#connections-none", "No client is slow.");
    await eventually(async () => {
      for (let times = 0; times < 50; times++) await server.publish("topics/prices", "x".repeat(60_000));
      await page.click("#find button");
      return connections();
    }).toMatch(/\|\/topics\/\{name\}\|.* (KiB|MiB)\|/);
  });
  await part.check("the nodes of a cluster are listed, and an outage of the broker is told", async (test) => {
    const started = await cluster(test);
    if (!started) return;
    await openDashboard(page, started.nodes[0]);
    await listsNodes(page);
    await contains(page, "#server", " · node eu-1 · ");
    await isAway(page, false);
    await started.killBroker();
    await isAway(page, true);
    await started.restartBroker();
    await isAway(page, false);
    await listsNodes(page);
  });
}

/** Writes a configuration with a hook and a webhook whose application does not answer; returns its path. */
export function failingApplication(part) {
  const path = join(part.folder(), "sinews.toml");
  // No program listens at port 1 of the loopback interface.
  writeFileSync(path, `[hooks]
rpc = "http://127.0.0.1:1/rpc"
[webhook.shop]
url = "http://127.0.0.1:1/events"
secret = "a secret of more than thirty-two bytes"
grace = "0s"
`);
  return path;
}

/** Calls the application until its circuit is open, and causes events for the webhook, from a page of the server. */
export const failCalls = (page) => page.evaluate(() => new Promise((done) => {
  window.caller = new WebSocket("/ws");
  caller.onopen = () => caller.send(JSON.stringify({ op: "subscribe", id: 0, topic: "orders" }));
  caller.onmessage = ({ data }) => {
    const { id } = JSON.parse(data);
    if (id >= 40) done();
    else if (id >= 0) caller.send(JSON.stringify({ op: "rpc", id: id + 1, method: "price" }));
  };
}));

/** Starts a client that subscribes to a topic and reads nothing after the handshake. */
async function deafClient(test, server) {
  const socket = net.connect(server.port, "127.0.0.1");
  test.after(() => socket.destroy());
  const key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13";
  socket.write(`GET /topics/prices HTTP/1.1\r\nHost: 127.0.0.1:${server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n${key}\r\n\r\n`);
  const head = await new Promise((resolve, reject) => socket.once("data", resolve).once("error", reject));
  socket.pause();
  expect(head.toString()).toMatch(/^HTTP\/1\.1 101/);
}

/** Waits until the dashboard lists both nodes, with version and uptime. */
export const listsNodes = (page) => retry(async () => {
  const nodes = (await rows(page, "#nodes")).map((row) => row.split("|"));
  expect(nodes.map(([name]) => name).sort()).toEqual(["eu-1", "eu-2"]);
  for (const [, version, uptime] of nodes) {
    expect(version).toMatch(/^\d/);
    expect(uptime).toMatch(/ (s|min)$/);
  }
});

/** Waits until the page says, or says no longer, that the broker is away. */
export const isAway = (page, away) => away
  ? shows(page, "#nodes-away", /^The broker of the cluster is unreachable/)
  : expect(seen(page, "#nodes-away")).toHaveCount(0);
