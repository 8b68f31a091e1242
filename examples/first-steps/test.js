// The commands and the page of the first documents, as a reader types them.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { pathToFileURL } from "node:url";

import { chromium, noChromium } from "../testing/chromium.js";
import { folder, limit, serve } from "../testing/programs.js";

const read = (path) => readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");
const README = read("README.md");
const STEPS = read("docs/book/src/start/first-steps.md");

/** The blocks of code of a document in one language. */
function blocks(text, language) {
  return [...text.matchAll(new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, "gs"))].map(([, code]) => code);
}

/** The first command of a document that begins so, for the server of the test. */
function command(text, beginning, { port }) {
  const found = blocks(text, "sh").flatMap((block) => block.split("\n")).find((line) => line.startsWith(beginning));
  assert.ok(found, `no command ${beginning}`);
  return found.replaceAll(":8080", `:${port}`);
}

/** The options of `sinews serve` in the first steps. */
function options() {
  const line = command(STEPS, "sinews serve --origin", { port: 0 });
  return line.split("#")[0].trim().split(/\s+/).slice(2).map((option) => option.replaceAll("'", ""));
}

/** Starts a command in a shell. `until` resolves when it has printed a text. */
function shell(t, line) {
  const child = spawn("bash", ["-c", `exec ${line}`], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => child.kill());
  let output = "";
  let wake = () => {};
  child.stdout.setEncoding("utf8").on("data", (chunk) => {
    output += chunk;
    wake();
  });
  const until = async (text) => {
    while (!output.includes(text)) await new Promise((resolve) => { wake = resolve; });
    return output;
  };
  const end = async () => {
    await once(child, "close");
    return output;
  };
  return { until, end };
}

for (const [name, text, begin] of [["README", README, []], ["first steps", STEPS, options()]]) {
  test(`first-steps: the commands of the ${name} subscribe and publish`, limit, async (t) => {
    const server = await serve(t, begin);
    const subscriber = shell(t, command(text, "curl -N", server));
    await subscriber.until("event: subscribed");
    const answer = await shell(t, command(text, "curl -d hello", server)).end();
    assert.deepEqual(JSON.parse(answer), { subscribers: 1, topic: "lobby" });
    await subscriber.until("data: hello\n");
  });
}

test("first-steps: the page shows history, new messages, JSON and members", { ...limit, skip: noChromium }, async (t) => {
  const server = await serve(t, options());
  const publish = (beginning) => shell(t, command(STEPS, beginning, server)).end();
  await publish("curl -d hello");
  const [page] = blocks(STEPS, "html");
  const members = blocks(STEPS, "js").find((block) => block.includes("client.join"));
  const file = join(folder(t), "page.html");
  writeFileSync(file, page.replace("</script>", `${members}</script>`).replaceAll(":8080", `:${server.port}`));
  const open = await chromium(t);
  const [first, second] = [await open(pathToFileURL(file).href), await open(pathToFileURL(file).href)];
  await first.shows('"hello"');
  await publish("curl -H 'Content-Type: application/json'");
  await first.shows('{"text":"hello"}');
  for (const tab of [first, second]) await tab.until('document.title.split(", ").length === 2');
  await second.close();
  await first.until('document.title.startsWith("guest-") && !document.title.includes(",")');
});

test("first-steps: a stream keeps its records on disk", limit, async (t) => {
  const server = await serve(t, ["--streams", folder(t)]);
  const stream = blocks(STEPS, "sh").find((block) => block.includes("/streams/orders"));
  const [append, fetch] = stream.trim().split("\n").map((line) => line.replaceAll(":8080", `:${server.port}`));
  assert.equal(JSON.parse(await shell(t, append).end()).stream, "orders");
  assert.equal(JSON.parse(await shell(t, fetch).end()).data, "hello");
});
