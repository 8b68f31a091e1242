// Pictures of a staged conversation and of the pages, for the README, for the book and for work on the design.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { Person } from "./person.js";
import {
  DESKTOP, PHONE, Server, cluster, contains, device, devtools, enter, eventually, expect, noted, openDashboard, retry, visit,
} from "./world.js";

/** Speaker and text; the last speaker is a terminal. */
const TALK = [
  ["Mara", "Morning! Is the tide table for the weekend out already?"],
  ["Jonas", "Since an hour ago: https://example.org/tides/saturday"],
  ["Jonas", "High water is at 7:40, so the boat leaves at seven sharp."],
  ["Mara", "Seven it is. I bring coffee, you bring the chart."],
  ["", "harbour gauge: 3.12 m, rising"],
  ["Jonas", "Did you set that up? A gauge that talks to us is wonderful."],
  ["Mara", "One line of curl in a cron job. It says hello every hour."],
  ["Mara", "Ines is coming too, she only has to find her boots."],
];
const USERS = ["mara", "jonas", "ines", "tove", "lars", "aino", "piet"];
const KEY = "an-api-key-of-the-pictures-of-the-pages";

/** Pictures have twice the resolution. */
const WINDOW = { ...DESKTOP, height: 740, scale: 2 };
const HAND = { ...PHONE, scale: 2 };
/** For charts, nodes and topics in one picture. */
const TALL = { ...WINDOW, height: 1500 };

export async function pictures(part) {
  const directory = process.env.SINEWS_PICTURES;
  if (!directory) return part.test.skip("no folder for them (cargo xtask browser --pictures DIRECTORY)");
  mkdirSync(directory, { recursive: true });
  // A picture by Playwright has the size of the window, and not that of the device.
  const write = async (page, name) => {
    const { data } = await devtools(page, "Page.captureScreenshot");
    writeFileSync(join(directory, `${name}.png`), data, "base64");
  };
  /** On a desktop and on a phone, light and dark. */
  const writeAll = async (page, names) => {
    for (const [name, size] of Object.entries(names)) {
      await device(page, size);
      for (const [colorScheme, suffix] of [["dark", "-dark"], ["light", ""]]) {
        // Without animations no picture is taken halfway.
        await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
        await write(page, name + suffix);
      }
    }
  };
  await part.check("pictures of the start page and of the console", () => showPages(part, writeAll));
  await part.check("pictures of the dashboard", (test) => showDashboard(part, test, write, writeAll));
  await part.check("pictures of the chat", () => showChat(part, write, writeAll));
}

async function showPages(part, writeAll) {
  const server = await part.serve(["--streams", part.folder(), "--streams-durable-topics", "prices.>"]);
  const page = await part.open(server.url());
  await writeAll(page, { start: WINDOW, "phone-start": HAND });
  await visit(page, server.url("console"), "connected");
  await enter(page, "#field-topic", "prices.gold");
  await contains(page, "#chips", "prices.gold");
  for (const price of ['{"eur": 3712.4}', '{"eur": 3713.1}']) await server.publish("topics/prices.gold", price);
  await page.click("label[for=call-publish]");
  await page.click("label[for=language-javascript]");
  await writeAll(page, { console: WINDOW, "phone-console": HAND });
}

/** The dashboard of an operator: of two nodes, if the machine has the broker of a cluster. */
async function showDashboard(part, test, write, writeAll) {
  const { options: secret, make } = part.tokens();
  const options = [...secret, "--auth-public-publish", ">", "--origin", "any"];
  const first = [...options, "--streams", part.folder(), "--api-key", KEY];
  const started = await cluster(test, [first, options], ["harbour-1", "harbour-2"]);
  const nodes = started?.nodes ?? [await Server.start(test, first)];
  const clients = await part.open(nodes[0].url("healthz"));
  for (const [at, user] of USERS.entries()) {
    // A node rejects keys until it has those of the other one.
    await retry(() => clients.evaluate(async ([url, token, topic, user, y]) => {
      const { connect } = await import("/sinews.js");
      window.client?.close();
      window.client = connect(url, { token });
      for (const name of [topic, "prices.gold"]) await client.subscribe(name, () => {}).ready;
      await client.join("harbour", { id: user });
      for (const x of [1, 2, 3]) await client.set("boats", `${user}-${x}`, { x, y });
      // It stays open.
      window.client = null;
    }, [
      nodes[at % nodes.length].socket("ws"), make("--subject", user, "--keys", "boats/*", "--subscribe", ">", "--publish", ">"),
      ["weather", "harbour", "tides"][at % 3], user, at,
    ]));
  }
  const viewer = make("--subscribe", ">", "--publish", ">");
  await clients.evaluate(startWorkers, nodes[0].socket(`streams/orders?token=${viewer}`));
  await noted(clients, "ready");
  const page = await part.window();
  await openDashboard(page, nodes[0], `#token=${viewer}`);
  // Publishes until a curve is visible; each round has a different size.
  let round = 0;
  await eventually(async () => {
    round += 1;
    for (let times = 0; times < 20 + 10 * (round % 4); times++) {
      for (const topic of ["prices.gold", "weather", "prices.gold"]) await nodes[0].publish(`topics/${topic}`, "1");
    }
    return (await page.locator("[data-testid=messages] .line").first().getAttribute("d"))?.split("L").length;
  }).toBeGreaterThan(10);
  await writeAll(page, { dashboard: WINDOW, "phone-dashboard": HAND });
  // The picture of the book has the whole page down to the topics.
  await device(page, TALL);
  await write(page, "dashboard");
  await enter(page, "#key", KEY);
  await contains(page, "#connections", "mara");
  for (const section of ["topics-title", "streams-section", "clients-title"]) {
    for (const [prefix, size] of [["", WINDOW], ["phone-", HAND]]) {
      await device(page, size);
      await page.locator(`#${section}`).evaluate((element) => element.scrollIntoView());
      await write(page, `${prefix}dashboard-${section}`);
    }
  }
}

/** In a page: a stream with constant writes, and two of its groups. One keeps up, one does not. */
function startWorkers(url) {
  for (const group of ["billing", "warehouse"]) {
    const socket = new WebSocket(url);
    const send = (request) => socket.send(JSON.stringify(request));
    socket.onmessage = ({ data }) => {
      const { op, next } = JSON.parse(data);
      if (op === "welcome") {
        send({ op: "consume", id: 1, group });
        send({ op: "commit", id: 2, group, offset: 0 });
      }
      if (op === "records" && group === "billing") send({ op: "commit", group, offset: next });
      if (op === "ack") note("ready");
    };
  }
  const shop = new WebSocket(url);
  const order = { item: "rope, 12 mm", metres: 30, to: "Pier 3" };
  shop.onopen = () => setInterval(() => shop.send(JSON.stringify({ op: "append", data: order })), 20);
}

async function showChat(part, write, writeAll) {
  const server = await part.serve();
  const enter = async (name, hue) => {
    const person = await Person.enter(part, server.url("chat#harbour"), name);
    // Colors are random; the picture must be reproducible.
    await person.page.evaluate((hue) => {
      sessionStorage.setItem("sinews.me", JSON.stringify({ ...JSON.parse(sessionStorage.getItem("sinews.me")), hue }));
    }, hue);
    await person.page.reload();
    await person.isConnected();
    return person;
  };
  const [mara, jonas, ines] = [await enter("Mara", 185), await enter("Jonas", 45), await enter("Ines", 245)];
  await mara.join("kitchen");
  await mara.join("lobby");
  await mara.goTo("harbour");
  await mara.isWith("Ines", "Jonas", "Mara");
  // The notices of arrival are removed before the conversation.
  await mara.page.locator(".notice").evaluateAll((all) => all.forEach((notice) => notice.remove()));
  for (const [speaker, text] of TALK) {
    if (!speaker) await server.publish("topics/sinews.chat.harbour", text);
    else await (speaker === "Mara" ? mara : jonas).say(text);
    await (speaker ? mara.hears(text) : mara.sees(text));
    await jonas.hasDelivered();
  }
  await server.publish("topics/sinews.chat.kitchen", "the kettle boils");
  await mara.hasDelivered();
  await retry(async () => {
    await ines.type("Found");
    await expect(mara.page.locator("#typing")).toHaveText(/^Ines/, { timeout: 2_000 });
  });
  await writeAll(mara.page, { chat: WINDOW, phone: HAND });
  await mara.page.click("#menu");
  await write(mara.page, "phone-menu");
  await mara.goTo("lobby");
  await write(mara.page, "phone-empty");
  await server.kill();
  await device(mara.page, WINDOW);
  await mara.goTo("harbour");
  await mara.say("Typed while the server is away");
  await expect(mara.page.locator("#banner")).toBeVisible();
  await write(mara.page, "chat-offline");
}
