// The pictures of the documents, on a desktop and on a phone, light and dark.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { DESKTOP, PHONE, eventually, retry } from "./page.js";
import { Person } from "./person.js";
import { Server, cluster } from "./world.js";

/** Speaker and text; a text without a speaker is published by a terminal. */
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

export async function pictures(part) {
  const directory = process.env.SINEWS_PICTURES;
  if (!directory) return part.test.skip("no folder for them (cargo xtask browser --pictures DIRECTORY)");
  mkdirSync(directory, { recursive: true });
  const write = async (page, name, height) => {
    for (const [prefix, size] of [["", { ...DESKTOP, height }], ["phone-", PHONE]]) {
      // Pictures have twice the resolution.
      await page.onEach([{ ...size, scale: 2 }], async (colorScheme) => {
        // A picture by Playwright has the size of the window, and not that of the device.
        const { data } = await page.devtools.send("Page.captureScreenshot");
        const suffix = colorScheme === "dark" ? "-dark" : "";
        writeFileSync(join(directory, `${prefix}${name}${suffix}.png`), data, "base64");
      });
    }
  };
  await part.check("pictures of the dashboard", (test) => showDashboard(part, test, write));
  await part.check("pictures of the chat", () => showChat(part, write));
}

/** The dashboard of an operator: of two nodes, if the machine has NATS, which also stores their keys. */
async function showDashboard(part, test, write) {
  const { options: secret, make } = part.tokens();
  const options = [...secret, "--auth-public-publish", ">", "--origin", "any"];
  const started = await cluster(test, [options, options], ["harbour-1", "harbour-2"]);
  const nodes = started?.nodes ?? [await Server.start(test, options)];
  const rights = ["--subscribe", ">", "--publish", ">"];
  const clients = await part.openBare(nodes[0]);
  for (const [at, user] of USERS.entries()) {
    const url = nodes[at % nodes.length].socket("ws");
    const options = { token: make("--subject", user, "--keys", "boats/*", ...rights) };
    const topics = [["weather", "harbour", "tides"][at % 3], "prices.gold"];
    // A node rejects keys until the topic store answers.
    await retry(() => clients.evaluate(async ({ url, options, topics, user, y }) => {
      window.client?.close();
      window.client = connect(url, options);
      for (const topic of topics) await client.subscribe(topic, () => {}).ready;
      await client.join("harbour", { id: user });
      for (const x of [1, 2, 3]) await client.set("boats", `${user}-${x}`, { x, y });
      // It stays open.
      window.client = null;
    }, { url, options, topics, user, y: at }));
  }
  const page = await part.window();
  await page.openDashboard(nodes[0], `#token=${make(...rights)}`);
  // Publishes until a curve is visible.
  await eventually(async () => {
    for (let times = 0; times < 20; times++) {
      for (const topic of ["prices.gold", "weather", "prices.gold"]) await nodes[0].publish(`topics/${topic}`, "1");
    }
    return (await page.locator("[data-testid=messages] .line").first().getAttribute("d"))?.split("L").length;
  }).toBeGreaterThan(10);
  // The picture of the book has the whole page down to the topics.
  await write(page, "dashboard", 1500);
}

async function showChat(part, write) {
  const server = await part.serve();
  const enter = async (name, hue) => {
    const person = await Person.enter(part, server.url("chat#harbour"), name);
    // Colors are random; the picture must be reproducible.
    await person.page.evaluate((hue) => {
      const me = JSON.parse(sessionStorage.getItem("sinews.me"));
      sessionStorage.setItem("sinews.me", JSON.stringify({ ...me, hue }));
    }, hue);
    await person.reload();
    return person;
  };
  const [mara, jonas, ines] = [await enter("Mara", 185), await enter("Jonas", 45), await enter("Ines", 245)];
  for (const room of ["kitchen", "lobby"]) await mara.join(room);
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
  await ines.isSeenTyping("Ines", mara);
  await write(mara.page, "chat", 740);
}
