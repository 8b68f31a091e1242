// The pages with axe-core: no violation of WCAG 2.2 A and AA, or of its best practices. Each state is examined on a
// desktop and on a phone, light and dark; no page is wider than the phone.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname } from "node:path";

import { KEY, failCalls, failingApplication, isAway, listsNodes } from "./dashboard.js";
import { DESKTOP, PHONE, all, expect } from "./page.js";
import { Person } from "./person.js";
import { serveExample } from "./prices.js";
import { cluster } from "./world.js";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export async function axe(part) {
  const app = part.file("3.toml", 'id = "3"\nkey = "app-key"\nsecret = "app-secret"\n');
  const options = ["--streams", part.folder(), "--pusher-apps-directory", dirname(app), "--api-key", KEY];
  const server = await part.serve(["--config", failingApplication(part), ...options]);
  const page = await part.window();
  const join = (name, room) => Person.enter(part, server.url(`chat#${room}`), name);
  const check = (state, body) => part.check(`axe finds no violation ${state}`, body);
  /** Examines the page after each step. */
  const checkAfter = (state, ...steps) => check(state, async () => {
    for (const step of steps) {
      await step();
      await examine(page);
    }
  });
  await checkAfter("on the start page", () => page.goto(server.url()));
  await checkAfter("in the chat, with a message in it", async () => {
    await page.visit(server.url("chat"), "connected");
    await server.publish("topics/sinews.chat.lobby", "hello");
    await expect(page.locator("[data-testid=announcement]")).toHaveCount(1);
  });
  await check("in the chat with members, messages and typing", async () => {
    const [anna, ben] = [await join("Anna", "talk"), await join("Ben", "talk")];
    await anna.tells(ben, "Hello Ben");
    await anna.tells(ben, "See https://example.org/a/path");
    await anna.tells(ben, `A word without a break: ${"long".repeat(60)}`);
    await ben.tells(anna, "Hello Anna");
    await anna.isWith("Anna", "Ben");
    await examine(anna.page, { prepare: () => ben.isSeenTyping("Ben", anna) });
  });
  await check("in the open menu of a phone", async () => {
    const anna = await join("Anna", "lobby");
    await anna.join("attic");
    const open = anna.page.locator("body.drawer");
    const prepare = async () => {
      if (await open.count() === 0) await anna.page.click("#menu");
      await expect(open).toHaveCount(1);
    };
    await examine(anna.page, { devices: [PHONE], prepare });
  });
  await checkAfter("on the console", () => page.visit(server.url("console"), "connected"));
  await checkAfter("on the console with results", async () => {
    await page.click("#run");
    await page.contains("#chips", "lobby");
    await page.click("label[for=call-history]");
    await page.click("#run");
    await page.contains("#log", "history");
  });
  await checkAfter("on the dashboard", () => page.openDashboard(server));
  await checkAfter("on the dashboard with hooks, webhooks, apps and streams", async () => {
    await server.publish("streams/orders", '{"item": 7}');
    await page.openDashboard(server);
    await failCalls(page);
    const sections = ["hooks", "webhooks", "apps", "streams"];
    await all(...sections.map((section) => expect(page.locator(`#${section} tr`)).not.toHaveCount(0)));
    await page.shows("#hooks-open", /./);
  });
  await checkAfter("on the dashboard with clients and a dialog", async () => {
    await page.openDashboard(server);
    await page.evaluate(async () => { await request("/ws"); });
    await page.enter("#key", KEY);
    await page.contains("#connections", "/ws");
  }, async () => {
    await page.enter("#revoke-token", "t");
    await page.contains("#sure", "Revoke the token");
  });
  await check("on the dashboard of a cluster, with and without its broker", async (test) => {
    const started = await cluster(test);
    if (!started) return;
    await page.openDashboard(started.nodes[0]);
    await listsNodes(page);
    await examine(page);
    await started.killBroker();
    await isAway(page, true);
    await examine(page);
  });
  await check("on the example page of keys", async (test) => {
    const example = await serveExample(test);
    if (!example) return;
    await page.goto(example);
    await expect(page.locator("#prices span")).toHaveCount(1_000);
    await examine(page);
  });
  const guarded = await part.serve([...part.tokens().options, "--auth-public-subscribe", "sinews.chat.*"]);
  const form = (path, field, reason) => async () => {
    await page.goto(guarded.url(path));
    await page.contains(field, reason);
  };
  await checkAfter("in the forms for tokens",
    form("dashboard", "#auth-problem", "a token is needed"),
    form("console#token=wrong", "#auth-problem", "Rejected"),
    form("chat", "#hint", "#token="));
  await check("on the pages of a stopped server", async () => {
    const anna = await join("Anna", "lobby");
    await page.openDashboard(server);
    await server.kill();
    await anna.say("Typed while the server is away");
    await expect(anna.page.locator("#banner")).toBeVisible();
    await examine(anna.page);
    await page.contains("#outage", "The page tries again.");
    await examine(page);
  });
}

/** Runs axe on devices, light and dark, each after a preparation. */
async function examine(page, { devices = [DESKTOP, PHONE], prepare = () => {} } = {}) {
  await page.onEach(devices, async (colorScheme, { width }) => {
    await prepare();
    const place = `${page.url()}, ${colorScheme}, ${width} px wide`;
    if (!await page.evaluate(() => "axe" in window)) await page.evaluate(AXE);
    const violations = await page.evaluate(async () => (await window.axe.run(document, { resultTypes: ["violations"] })).violations
      .map(({ id, impact, help, nodes }) => `${id} (${impact}): ${help}: ${nodes.map(({ html }) => html).join(" | ")}`));
    expect(violations, place).toEqual([]);
    expect(await page.evaluate(wideElements), `${place}: elements wider than the device`).toEqual([]);
  });
  await page.device(DESKTOP);
}

/** In a page: what makes it wider than the device. Content of elements that scroll sideways or clip does not. */
function wideElements() {
  const { documentElement: root, body } = document;
  const clips = (element) => element && (clips(element.parentElement)
    || element !== root && element !== body && getComputedStyle(element).overflowX !== "visible");
  if (Math.max(root.scrollWidth, body.scrollWidth) <= innerWidth) return [];
  return [...document.querySelectorAll("body *")]
    .filter((element) => element.getBoundingClientRect().right > root.clientWidth + 1 && !clips(element.parentElement))
    .map((element) => element.outerHTML.slice(0, 120)).concat(`${root.clientWidth} px`);
}
