import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import test from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { connect } from "@sinews/client";
import { API_KEY, channel, folder, freePort, limit, start } from "../testing/programs.js";

const file = (name) => new URL(name, import.meta.url).pathname;
const dev = (name) => file(`../../dev/${name}`);

/** Runs a script that fetches a program. Returns its output, or the reason why the program is unavailable. */
function fetchWith(script, ...parameters) {
  const { status, stdout, stderr } = spawnSync("bash", [dev(script), ...parameters], { encoding: "utf8" });
  if (status !== 0 && status !== 77) throw new Error(`${script}: ${stdout}${stderr}`);
  return { missing: status === 77 && stderr.trim(), output: stdout.trim() };
}

const broker = fetchWith("brokers/nats.sh", "fetch");
const proxy = fetchWith("interop/http/nginx.sh");

/** Runs `up.sh` in a folder of its own, with ports that are free. */
async function setUp(t) {
  const here = folder(t);
  const ports = { 4222: await freePort() };
  for (const port of [8080, 8081, 8082, 8083]) ports[port] = await freePort();
  for (const name of ["up.sh", "nginx.conf", "sinews.toml"]) {
    const text = readFileSync(file(name), "utf8");
    // The reader runs `up.sh` as it is in the repository.
    const { mode } = statSync(file(name));
    writeFileSync(join(here, name), text.replace(/\b(4222|808\d)\b/g, (port) => ports[port]), { mode });
  }
  // `up.sh` looks for the program by its name.
  if (process.env.SINEWS) symlinkSync(resolve(process.env.SINEWS), join(here, "sinews"));
  const path = [here, dirname(broker.output), dirname(proxy.output), process.env.PATH].filter(Boolean).join(":");
  const own = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("SINEWS") || name === "SINEWS_BACKEND"));
  const env = { ...own, SINEWS: undefined, PATH: path, SINEWS_API_KEY: API_KEY };
  // At this signal the script stops the programs that it has started.
  await start(t, join(here, "up.sh"), [], { env, ready: "nodes at the ports", signal: "SIGTERM" });
  const nodes = [8081, 8082, 8083].map((port) => ({
    url: `ws://127.0.0.1:${ports[port]}/ws`,
    http: `http://127.0.0.1:${ports[port]}`,
    kill: () => process.kill(Number(readFileSync(join(here, `run/node-${ports[port]}.pid`), "utf8")), "SIGKILL"),
  }));
  return { nodes, broker: `nats://127.0.0.1:${ports[4222]}`, nginx: `http://127.0.0.1:${ports[8080]}` };
}

/** A client with one subscription. `losses` counts the connections that it has lost. */
async function listen(t, url, topic, options) {
  const heard = { messages: channel(), losses: 0, opened: channel() };
  heard.client = connect(url, { onstatus: ({ status }) => { if (status === "waiting") heard.losses += 1; } });
  t.after(() => heard.client.close());
  const subscription = heard.client.subscribe(topic, ({ data }) => heard.messages.push(data), {
    ...options, onsubscribed: () => heard.opened.push(true),
  });
  await subscription.ready;
  return heard;
}

/** Publishes at a node until all have got one: a subscription is known at other nodes a moment after its acknowledgement. */
async function reach(node, topic, listeners) {
  const text = `${Math.random()}`;
  let open = true;
  const all = Promise.all(listeners.map(({ messages }) => messages.until((data) => data === text))).then(() => { open = false; });
  while (open) {
    await fetch(`${node.http}/topics/${topic}`, { method: "POST", body: text });
    await Promise.race([all, pause(50)]);
  }
}

test("three nodes: a message reaches clients of all nodes, by name and by pattern", { ...limit, skip: broker.missing }, async (t) => {
  const { nodes, broker: url } = await setUp(t);
  const listeners = await Promise.all([
    ...nodes.map((node) => listen(t, node.url, "chat.room")),
    listen(t, nodes[2].url, "chat.*"),
  ]);
  for (const node of nodes) await reach(node, "chat.room", listeners);
  const { stdout } = spawnSync(process.env.SINEWS ?? "sinews", ["nodes", "--json", url], { encoding: "utf8" });
  const listed = stdout.trim().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(listed.map(({ topics }) => topics).sort(), [1, 1, 2], stdout);
});

test("three nodes: members of all nodes are listed, and those of a killed node leave", { ...limit, skip: broker.missing }, async (t) => {
  const { nodes } = await setUp(t);
  const members = channel();
  await listen(t, nodes[1].url, "chat.room", { members: (all) => members.push([...all.keys()].sort().join()) });
  const others = ["anna", "ben", "carl"].map((id, index) => ({ id, client: connect(nodes[index].url) }));
  for (const { id, client } of others) {
    t.after(() => client.close());
    await client.join("chat.room", { id });
  }
  await members.until((names) => names === "anna,ben,carl");
  nodes[0].kill();
  await members.until((names) => names === "ben,carl");
  const headers = { authorization: `Bearer ${API_KEY}` };
  const presence = async () => (await fetch(`${nodes[1].http}/api/v1/topics/chat.room/presence`, { headers })).json();
  // One subscriber and two members, once the killed node no longer counts.
  while ((await presence()).subscribers !== 3) await pause(50);
});

const skip = broker.missing || proxy.missing;
test("three nodes: behind nginx, clients of a killed node continue at another one", { ...limit, skip }, async (t) => {
  const { nodes, nginx } = await setUp(t);
  const url = `${nginx.replace("http", "ws")}/ws`;
  const listeners = [];
  for (let i = 0; i < 6; i += 1) listeners.push(await listen(t, url, "chat.room"));
  await reach(nodes[0], "chat.room", listeners);
  nodes[0].kill();
  // nginx spreads six connections over three nodes: the killed node had some, and not all.
  const lost = () => listeners.filter(({ losses }) => losses > 0);
  while (lost().length === 0) await pause(10);
  await reach(nodes[1], "chat.room", listeners);
  assert.ok(lost().length < 6);
  await reach({ http: nginx }, "chat.room", listeners);
});

test("three nodes: nginx passes streaming responses on, and hides the API", { ...limit, skip }, async (t) => {
  const { nginx } = await setUp(t);
  const response = await fetch(`${nginx}/topics/lobby`, { headers: { accept: "application/x-ndjson" } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (!text.includes('"op":"ack"')) text += (await reader.read()).value;
  await fetch(`${nginx}/topics/lobby`, { method: "POST", body: "hello" });
  while (!text.includes("hello")) text += (await reader.read()).value;
  await reader.cancel();
  for (const path of ["/api/v1/info", "/metrics", "/dashboard/feed"]) assert.equal((await fetch(nginx + path)).status, 404);
});
