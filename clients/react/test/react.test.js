// The hooks in React with jsdom, over the scripted sockets of the client's tests.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { JSDOM } from "jsdom";
import { renderToString } from "react-dom/server";

import { overSockets, settled } from "../../js/test/sockets.js";

const { window } = new JSDOM("<!doctype html>");
const { document, navigator } = window;
for (const [name, value] of Object.entries({ window, document, navigator, IS_REACT_ACT_ENVIRONMENT: true })) {
  // Node.js has a `navigator` from version 21 on.
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}
const { act, createElement: h, StrictMode, useEffect } = await import("react");
const { createRoot } = await import("react-dom/client");
const { Sinews, useClient, useKeys, useMembers, useStatus, useStream, useTopic } = await import("../react.js");

const limit = { timeout: 60_000 };
const root = fileURLToPath(new URL("..", import.meta.url));

/** Shows elements; `text` is what the page has, and `show` replaces them. */
async function render(t, element) {
  const container = document.createElement("div");
  const page = createRoot(container);
  const show = (next) => act(async () => page.render(next));
  t.after(() => act(async () => page.unmount()));
  await show(element);
  return { show, get text() { return container.textContent; } };
}

/** Components below a client with a connection, whose requests `requests` returns and acknowledges. */
async function setUp(t, ...elements) {
  const { client, sockets } = overSockets(t, { minDelay: 1_000_000, maxDelay: 1_000_000 });
  const within = (...children) => h(StrictMode, null, h(Sinews, { client }, ...children));
  const page = await render(t, within(...elements));
  const socket = await sockets.next();
  const line = (message) => act(async () => socket.line(message));
  await line({ op: "welcome" });
  const requests = async () => {
    await settled();
    const sent = [];
    while (socket.sent.size > 0) {
      const { id, ...request } = await socket.sent.next();
      sent.push(request);
      await line({ op: "ack", id, topic: request.topic, subscribers: 1, at: 1, members: request.members && [{ id: "ben", info: 7, connections: 1 }], partitions: [] });
    }
    return sent;
  };
  return { client, socket, line, requests, within, page };
}

const list = (values) => [...values].join();

test("two components of one topic share a subscription, under StrictMode, and the last one ends it", limit, async (t) => {
  const Room = ({ name, max }) => {
    const { messages, isReady, gap } = useTopic("chat.room", { max });
    return h("p", null, `${name} ${isReady} ${list(messages.map(({ data }) => data))} ${gap?.reason ?? ""};`);
  };
  const [one, two] = [h(Room, { name: "one", key: 1 }), h(Room, { name: "two", max: 2, key: 2 })];
  const { line, requests, within, page } = await setUp(t, one, two);
  assert.equal(page.text, "one false  ;two false  ;");
  assert.deepEqual((await requests()).map(({ op }) => op), ["subscribe", "subscribe"]);
  for (const data of [1, 2, 3]) await line({ op: "message", topic: "chat.room", data });
  await line({ op: "dropped", topic: "chat.room", messages: 1 });
  assert.equal(page.text, "one true 1,2,3 dropped;two true 2,3 dropped;");
  await page.show(within(two));
  assert.deepEqual(await requests(), []);
  await page.show(within());
  assert.deepEqual(await requests(), [{ op: "unsubscribe", topic: "chat.room" }]);
});

test("each change of a key renders, in two components", limit, async (t) => {
  const Game = ({ filter }) => {
    const { keys, isReady } = useKeys("game", { filter });
    return h("p", null, `${isReady} ${list([...keys].map(([key, value]) => `${key}=${value}`))};`);
  };
  const { line, requests, page } = await setUp(t, h(Game, { key: 1 }), h(Game, { key: 2, filter: "ben" }));
  await requests();
  await line({ op: "keys", topic: "game", epoch: 1, seq: 1, part: 1, set: [{ key: "ben", data: 1, version: 1 }] });
  for (let seq = 2; seq <= 4; seq += 1) await line({ op: "keys", topic: "game", epoch: 1, seq, set: [{ key: "anna", data: seq, version: seq }] });
  assert.equal(page.text, "true ben=1,anna=4;true ben=1;");
});

test("a member joins while a component shows it, and leaves with the last one", limit, async (t) => {
  const Present = () => {
    const { members, isReady } = useMembers("room", { id: "anna", info: { name: "Anna" } });
    return h("p", null, `${isReady} ${list([...members].map(([id, info]) => `${id} ${info}`))};`);
  };
  const { requests, within, page } = await setUp(t, h(Present, { key: 1 }), h(Present, { key: 2 }));
  assert.deepEqual((await requests()).filter(({ op }) => op === "join").length, 1);
  assert.equal(page.text, "true ben 7;true ben 7;");
  await page.show(within(h(Present, { key: 1 })));
  assert.deepEqual(await requests(), []);
  await page.show(within());
  assert.deepEqual((await requests()).map(({ op }) => op).sort(), ["leave", "unsubscribe"]);
});

test("the status and a stream render, and errors reach the components", limit, async (t) => {
  const Page = () => {
    const { status, delay } = useStatus();
    const { records, isReady } = useStream("orders", { from: { offset: 1 }, max: 2 });
    const { error } = useTopic("secret");
    return h("p", null, `${status} ${delay ?? ""} ${isReady} ${list(records.map(({ data }) => data))} ${error?.code ?? ""}`);
  };
  const { socket, line, page } = await setUp(t, h(Page));
  await settled();
  while (socket.sent.size > 0) {
    const { id, op, topic } = await socket.sent.next();
    if (topic) await line({ op: "error", id, code: 403, error: "no" });
    else if (op === "consume") await line({ op: "ack", id, partitions: [{ partition: 0, offset: 1 }] });
  }
  await line({ op: "records", stream: "orders", partition: 0, records: [1, 2, 3].map((offset) => ({ offset, at: 1, data: offset })), end: 4 });
  assert.equal(page.text, "open  true 2,3 403");
  await act(async () => socket.lose());
  assert.match(page.text, /^waiting \d+ true 2,3 403$/);
});

test("another topic begins with none of the messages of the former", limit, async (t) => {
  const Room = ({ topic }) => h("p", null, `${topic} ${list(useTopic(topic).messages.map(({ data }) => data))}`);
  const { line, requests, within, page } = await setUp(t, h(Room, { topic: "a" }));
  await requests();
  await line({ op: "message", topic: "a", data: 1 });
  await page.show(within(h(Room, { topic: "b" })));
  assert.deepEqual((await requests()).map(({ op, topic }) => `${op} ${topic}`).sort(), ["subscribe b", "unsubscribe a"]);
  assert.equal(page.text, "b ");
});

test("`connect` is called in effects only, and its client is closed with the component", limit, async (t) => {
  const made = [];
  const connect = () => {
    const { client } = overSockets(t);
    made.push(client);
    return client;
  };
  const Part = () => {
    const client = useClient();
    useEffect(() => void client().publish("a", 1).catch(() => {}), [client]);
    return useStatus().status;
  };
  const element = h(StrictMode, null, h(Sinews, { connect }, h(Part)));
  assert.equal(renderToString(element), "connecting");
  assert.equal(made.length, 0);
  const page = await render(t, element);
  // StrictMode runs effects twice.
  assert.deepEqual(made.map(({ status }) => status), ["closed", "connecting"]);
  await page.show(h(StrictMode, null, h(Sinews, { connect: () => connect() }, h(Part))));
  assert.equal(made.length, 2);
  await page.show(null);
  assert.equal(made.at(-1).status, "closed");
});

test("a hook without <Sinews> is an error that names it", limit, () => {
  const Part = () => useStatus().status;
  assert.throws(() => renderToString(h(Part)), /<Sinews>/);
});

test("the package has its files, and its types accept programs", limit, async (t) => {
  const run = promisify(execFile);
  const [packed] = Object.values(JSON.parse((await run("npm", ["pack", "--json", "--dry-run", "--ignore-scripts"], { cwd: root })).stdout));
  assert.deepEqual(packed.files.map(({ path }) => path).sort(), ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json", "react.d.ts", "react.js"]);
  const project = mkdtempSync(join(tmpdir(), "sinews-react-"));
  t.after(() => rmSync(project, { recursive: true }));
  symlinkSync(join(root, "node_modules"), join(project, "node_modules"));
  const readme = readFileSync(join(root, "README.md"), "utf8");
  const programs = [...readme.matchAll(/^```tsx\n(.*?)^```/gms)].map(([, program]) => program);
  programs.push(readFileSync(new URL("types.tsx", import.meta.url), "utf8"));
  assert.equal(programs.length, 3);
  for (const [at, program] of programs.entries()) {
    writeFileSync(join(project, `${at}.tsx`), program.replaceAll('"@sinews/react"', JSON.stringify(join(root, "react.js"))));
  }
  const options = ["--noEmit", "--strict", "--jsx", "react-jsx", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom", "--types", "react", "--ignoreConfig", "--preserveSymlinks"];
  const compiler = join(root, "node_modules/typescript/bin/tsc");
  const { stdout } = await run(process.execPath, [compiler, ...options, ...programs.map((_, at) => `${at}.tsx`)], { cwd: project }).catch((error) => error);
  assert.equal(stdout, "");
});
