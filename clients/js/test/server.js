// A server of the program at $SINEWS, tokens for it, and a proxy in front that loses connections.
import { spawn, execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PROGRAM = process.env.SINEWS ?? "sinews";
const SECRET = "a secret of the tests, 32 bytes long";

/** Variables of the test's environment that are settings of a server, except the backend. */
const environment = Object.fromEntries(Object.entries(process.env)
  .filter(([name]) => !name.startsWith("SINEWS") || name === "SINEWS_BACKEND"));

/** A folder that is removed after the test. */
export function folder(test) {
  const path = mkdtempSync(join(tmpdir(), "sinews-client-"));
  test.after(() => rmSync(path, { recursive: true }));
  return path;
}

/** Starts a server, which is stopped after the test, or by `stop`. It listens on a free port unless `listen` says which. */
export async function serve(test, options = [], { listen = 0 } = {}) {
  const child = spawn(PROGRAM, ["serve", "--listen", `127.0.0.1:${listen}`, "--threads", "1", ...options],
    { env: environment, stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  child.stderr.on("data", (chunk) => { log += chunk; });
  const stop = async (signal) => {
    if (child.exitCode === null && child.signalCode === null && child.kill(signal)) await once(child, "exit");
  };
  test.after(() => stop("SIGKILL"));
  let banner = "";
  for await (const chunk of child.stdout) {
    banner += chunk;
    if (banner.includes("Ctrl-C stops.")) break;
  }
  const [, http, port] = /(https?:\/\/127\.0\.0\.1:(\d+))\//.exec(banner) ?? [];
  if (!port) throw new Error(`the server did not start: ${banner}${log}`);
  return { port: Number(port), url: `${http.replace("http", "ws")}/ws`, http, pid: child.pid, stop };
}

/** The options of a server with tokens, and a function that makes tokens. */
export function tokens(test) {
  const file = join(folder(test), "secret");
  writeFileSync(file, SECRET);
  const make = (...options) =>
    execFileSync(PROGRAM, ["token", "--secret-file", file, ...options], { env: environment, encoding: "utf8" }).trim();
  return { options: ["--auth-secret-file", file, "--auth-leeway", "0s"], make };
}

/**
 * A TCP proxy that can lose its connections, refuse new ones, and stop reading from the server. `rate` limits the bytes a
 * second of each connection from the server.
 */
export async function proxy(test, target, { rate = Infinity } = {}) {
  const pairs = new Set();
  const state = { accepts: true, upgrades: true, attempts: 0 };
  const listener = net.createServer((near) => {
    state.attempts += 1;
    if (!state.accepts) return near.destroy();
    const far = net.connect(target, "127.0.0.1");
    const pair = [near, far];
    pairs.add(pair);
    for (const socket of pair) {
      socket.on("error", () => {});
      socket.on("close", () => {
        pairs.delete(pair);
        for (const one of pair) one.destroy();
      });
    }
    near.on("data", (chunk) => {
      if (!state.upgrades && /^upgrade: *websocket/im.test(chunk.toString("latin1"))) return near.destroy();
      far.write(chunk);
    });
    far.on("data", (chunk) => {
      near.write(chunk);
      if (rate === Infinity) return;
      far.pause();
      setTimeout(() => far.resume(), (chunk.length / rate) * 1000);
    });
  });
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  const cut = () => {
    for (const pair of pairs) for (const socket of pair) socket.destroy();
  };
  test.after(() => {
    cut();
    listener.close();
  });
  return {
    url: `ws://127.0.0.1:${listener.address().port}/ws`,
    /** Connections so far. */
    get attempts() { return state.attempts; },
    cut,
    refuse({ cuts = true } = {}) {
      state.accepts = false;
      if (cuts) cut();
    },
    accept() { state.accepts = true; },
    /** Loses every connection that asks for a WebSocket, as some networks do, or no longer. */
    blockWebSockets(blocks = true) { state.upgrades = !blocks; },
    stall() {
      for (const [, far] of pairs) far.pause();
    },
    flow() {
      for (const [, far] of pairs) far.resume();
    },
  };
}

/** Values in the order of `push`, each of which `next` returns once. */
export function channel() {
  const values = [];
  const waiting = [];
  return {
    push(value) {
      const resolve = waiting.shift();
      if (resolve) resolve(value);
      else values.push(value);
    },
    next: () => (values.length > 0 ? Promise.resolve(values.shift()) : new Promise((resolve) => waiting.push(resolve))),
    /** The next value that fits; earlier values are dropped. */
    async until(fits) {
      for (;;) {
        const value = await this.next();
        if (fits(value)) return value;
      }
    },
    get size() { return values.length; },
  };
}
