// The pages with axe-core: no violation of WCAG 2.2 A and AA, or of its best practices. Each state is examined on a desktop
// and on a phone, light and dark; no page is wider than the phone.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

import { typingIsShown } from "./chat.js";
import { KEY, failCalls, failingApplication, isAway, listsNodes } from "./dashboard.js";
import { Person } from "./person.js";
import { serveExample } from "./prices.js";
import { DESKTOP, PHONE, cluster, contains, device, enter, expect, openDashboard, shows, visit } from "./world.js";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export async function accessibility(part) {
  const apps = part.folder();
  writeFileSync(join(apps, "3.toml"), 'id = "3"\nkey = "app-key"\nsecret = "app-secret"\n');
  const options = ["--streams", part.folder(), "--pusher-apps-directory", apps, "--api-key", KEY];
  const server = await part.serve(["--config", failingApplication(part), ...options]);
  const page = await part.window();
  const check = (state, body) => part.check(`axe finds no violation ${state}`, body);
  await check("on the start page", async () => { await page.goto(server.url()); await examine(page); });
  await check("in the chat, with a message in it", async () => {
    await visit(page, server.url("chat"), "connected");
    await server.publish("topics/sinews.chat.lobby", "hello");
    await expect(page.locator("[data-testid=announcement]")).toHaveCount(1);
    await examine(page);
  });
  await check("in the chat with members, messages and typing", async () => {
    const enter = (name) => Person.enter(part, server.url("chat#talk"), name);
    const [anna, ben] = [await enter("Anna"), await enter("Ben")];
    for (const text of ["Hello Ben", "See https://example.org/a/path", `A word without a break: ${"long".repeat(60)}`]) {
      await anna.tells(ben, text);
    }
    await ben.tells(anna, "Hello Anna");
    await anna.isWith("Anna", "Ben");
    await examine(anna.page, { prepare: () => typingIsShown(ben, anna, "Ben") });
  });
  await check("in the open menu of a phone", async () => {
    const anna = await Person.enter(part, server.url("chat"), "Anna");
    await anna.join("attic");
    await examine(anna.page, {
      devices: [PHONE],
      prepare: async () => {
        if (await anna.page.locator("body.drawer").count() === 0) await anna.page.click("#menu");
        await expect(anna.page.locator("body.drawer")).toHaveCount(1);
      },
    });
  });
  await check("on the console", async () => { await visit(page, server.url("console"), "connected"); await examine(page); });
  await check("on the console with results", async () => {
    await page.click("#run");
    await contains(page, "#chips", "lobby");
    await page.click("label[for=call-history]");
    await page.click("#run");
    await contains(page, "#log", "history");
    await examine(page);
  });
  await check("on the dashboard", async () => { await openDashboard(page, server); await examine(page); });
  await check("on the dashboard with hooks, webhooks, apps and streams", async () => {
    await server.publish("streams/orders", '{"item": 7}');
    await openDashboard(page, server);
    await failCalls(page);
    for (const section of ["hooks", "webhooks", "apps", "streams"]) await expect(page.locator(`#${section} tr`)).not.toHaveCount(0);
    await shows(page, "#hooks-open", /./);
    await examine(page);
  });
  await check("on the dashboard with clients and a dialog", async () => {
    await openDashboard(page, server);
    await page.evaluate(() => new Promise((open) => { new WebSocket("/ws").onopen = () => open(); }));
    await enter(page, "#key", KEY);
    await contains(page, "#connections", "/ws");
    await examine(page);
    await enter(page, "#revoke-token", "t");
    await contains(page, "#sure", "Revoke the token");
    await examine(page);
  });
  await check("on the dashboard of a cluster, with and without its broker", async (test) => {
    const started = await cluster(test);
    if (!started) return;
    await openDashboard(page, started.nodes[0]);
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
  await check("in the forms for tokens", async () => {
    const guarded = await part.serve([...part.tokens().options, "--auth-public-subscribe", "sinews.chat.*"]);
    await page.goto(guarded.url("dashboard"));
    await contains(page, "#auth-problem", "a token is needed");
    await examine(page);
    await page.goto(guarded.url("console#token=wrong"));
    await contains(page, "#auth-problem", "Rejected");
    await examine(page);
    await page.goto(guarded.url("chat"));
    await contains(page, "#hint", "#token=");
    await examine(page);
  });
  await check("on the pages of a stopped server", async () => {
    const anna = await Person.enter(part, server.url("chat"), "Anna");
    await openDashboard(page, server);
    await server.kill();
    await anna.say("Typed while the server is away");
    await expect(anna.page.locator("#banner")).toBeVisible();
    await examine(anna.page);
    await contains(page, "#outage", "The page tries again.");
    await examine(page);
  });
}

/** Runs axe on devices, light and dark, each after a preparation. */
async function examine(page, { devices = [DESKTOP, PHONE], prepare = () => {} } = {}) {
  for (const size of devices) {
    await device(page, size);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await prepare();
      const place = `${page.url()}, ${colorScheme}, ${size.width} px wide`;
      if (!await page.evaluate(() => "axe" in window)) await page.evaluate(AXE);
      const violations = await page.evaluate(async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
        .map(({ id, impact, help, nodes }) => `${id} (${impact}): ${help}: ${nodes.map(({ html }) => html).join(" | ")}`));
      expect(violations, place).toEqual([]);
      expect(await page.evaluate(wideElements), `${place}: elements wider than the device`).toEqual([]);
    }
  }
  await device(page, DESKTOP);
}

/** In a page: what makes it wider than the device. Content of elements that scroll sideways or clip does not. */
function wideElements() {
  const { documentElement: root, body } = document;
  const clips = (element) => element
    && (element !== root && element !== body && getComputedStyle(element).overflowX !== "visible" || clips(element.parentElement));
  if (Math.max(root.scrollWidth, body.scrollWidth) <= innerWidth) return [];
  return [...document.querySelectorAll("body *")]
    .filter((element) => element.getBoundingClientRect().right > root.clientWidth + 1 && !clips(element.parentElement))
    .map((element) => element.outerHTML.slice(0, 120)).concat(`${root.clientWidth} px`);
}
