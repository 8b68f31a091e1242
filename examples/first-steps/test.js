// The commands and the page of the first documents, as a reader types them.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
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

/** Runs a program with the request of a server, and returns what it prints; without the program, skips the test. */
function run(t, command, parameters, input) {
  const { error, status, stdout, stderr } = spawnSync(command, parameters, { input, encoding: "utf8" });
  if (error?.code === "ENOENT") return t.skip(`${command} is not installed`);
  assert.equal(status, 0, stderr);
  return stdout.trim();
}

const GO_IMPORTS = ["bytes", "crypto/hmac", "crypto/sha256", "encoding/hex", "os", "strconv", "strings", "time"];

/** Programs that print whether the function of a page accepts the signature and the body of their input. */
const VERIFIERS = {
  js: (t, code, directory, input) => {
    const file = join(directory, "verify.mjs");
    writeFileSync(file, `${code}
const { signature, body } = JSON.parse(readFileSync(0, "utf8"));
console.log(isValid(signature, Buffer.from(body)));`);
    return run(t, process.execPath, [file], input);
  },
  python: (t, code, directory, input) => {
    const program = `${code}
import json, sys
request = json.load(sys.stdin)
print("true" if is_valid(request["signature"], request["body"].encode()) else "false")`;
    return run(t, "python3", ["-c", program], input);
  },
  go: (t, code, directory, input) => {
    const file = join(directory, "verify.go");
    const imports = [...GO_IMPORTS, "encoding/json", "fmt"].map((name) => `import "${name}"\n`).join("");
    writeFileSync(file, `package main
${imports}${code}
func main() {
	var request struct{ Signature, Body string }
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		panic(err)
	}
	fmt.Println(isValid(request.Signature, []byte(request.Body)))
}`);
    return run(t, "go", ["run", file], input);
  },
};

/** An application that receives one request of a server, and accepts all. */
async function receiver(t) {
  let received;
  const request = new Promise((resolve) => { received = resolve; });
  const application = createServer(async (message, answer) => {
    const chunks = [];
    for await (const chunk of message) chunks.push(chunk);
    received({ signature: message.headers["sinews-signature"], body: Buffer.concat(chunks).toString() });
    answer.end("{}");
  }).listen(0, "127.0.0.1");
  await once(application, "listening");
  t.after(() => application.close());
  return { url: `http://127.0.0.1:${application.address().port}/`, request };
}

const SIGNATURES = [
  ["webhooks", "/etc/sinews/webhook", (url, file) => `[webhook.app]\nurl = "${url}"\nsecret_file = "${file}"\n`],
  ["hooks", "/etc/sinews/hooks", (url, file) => `[hooks]\npublish = "${url}"\nsigning_key_file = "${file}"\n`],
];

for (const [page, path, configure] of SIGNATURES) {
  const text = read(`docs/book/src/server/${page}.md`);
  const functions = Object.keys(VERIFIERS).flatMap((language) =>
    blocks(text, language).filter((code) => /is_?valid\(/i.test(code)).map((code) => [language, code]));
  assert.ok(functions.length > 0, page);
  for (const [language, code] of functions) {
    test(`first-steps: the ${language} function of ${page} accepts the signature of the server`, limit, async (t) => {
      const directory = folder(t);
      const [file, config] = [join(directory, "secret"), join(directory, "sinews.toml")];
      // As `openssl rand -hex 32` writes it: with a line break.
      writeFileSync(file, `${randomBytes(32).toString("hex")}\n`);
      const application = await receiver(t);
      writeFileSync(config, configure(application.url, file));
      const { port } = await serve(t, ["--config", config]);
      const published = fetch(`http://127.0.0.1:${port}/topics/lobby`, { method: "POST", body: "hello" });
      const request = await application.request;
      assert.equal((await published).status, 200);
      assert.ok(code.includes(`"${path}"`), "the function reads the file of the page");
      const verify = (changed) =>
        VERIFIERS[language](t, code.replace(path, file), directory, JSON.stringify({ ...request, ...changed }));
      const accepted = verify({});
      if (accepted === undefined) return;
      assert.equal(accepted.toLowerCase(), "true");
      assert.equal(verify({ body: `${request.body} ` }), "false");
    });
  }
}
