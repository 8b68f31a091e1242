// What all parts use: windows of the browser, servers, and a broker.
import { execFile } from "node:child_process";
import { once } from "node:events";
import { existsSync, writeFileSync } from "node:fs";
import net from "node:net";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { folder, freePort, serve, tokens } from "../../examples/testing/programs.js";
import { examine } from "./axe.js";
import { newPage, retry } from "./page.js";

export const PROGRAM = process.env.SINEWS ?? "sinews";
export const ROOT = fileURLToPath(new URL("../..", import.meta.url));

export const run = promisify(execFile);

/** The path of the first of these programs that this machine has, or undefined. */
export const findProgram = (...names) => names
  .flatMap((name) => process.env.PATH.split(delimiter).map((folder) => join(folder, name)))
  .find((path) => existsSync(path));

/** One part of the checks, with what it uses. */
export class Part {
  constructor(test, browser) { Object.assign(this, { test, browser }); }
  /** A check fails after ten minutes. */
  check(name, body) { return this.test.test(name, { timeout: 600_000 }, body); }
  /** Checks a state of a page with axe. */
  examine(state, ...options) { return this.check(`axe finds no violation ${state}`, () => examine(...options)); }
  folder() { return folder(this.test); }
  /** Writes a file, by default in a new folder; returns its path. */
  file(name, text, folder = this.folder()) {
    const path = join(folder, name);
    writeFileSync(path, text);
    return path;
  }
  tokens() { return tokens(this.test); }
  serve(options) { return Server.start(this.test, options); }
  window() { return newPage(this.test, this.browser); }
  async open(url) { const page = await this.window(); await page.goto(url); return page; }
  async openBare(server) { const page = await this.window(); await page.visitBare(server); return page; }
}

/** A server of the program. Its port stays the same across restarts, so that open pages reconnect. */
export class Server {
  static async start(test, options = []) {
    const server = Object.assign(new Server(), { test, options, port: await freePort() });
    await server.restart();
    return server;
  }
  async restart() {
    // The kernel takes a while to close the descriptors in the ring of a killed process.
    await retry(async () => {
      const listener = net.createServer().listen(this.port, "127.0.0.1");
      await once(listener, "listening");
      await once(listener.close(), "close");
    });
    this.running = await serve(this.test, this.options, { listen: this.port });
  }
  /** Stops the server like a service manager: it can close its connections. */
  stop() { return this.running.stop("SIGTERM"); }
  kill() { return this.running.stop("SIGKILL"); }
  url(path = "") { return `${this.running.http}/${path}`; }
  socket(path) { return this.url(path).replace(/^http/, "ws"); }
  /** Publishes by HTTP, like `curl -d <text> <url>`. */
  async publish(path, text) {
    const headers = { "content-type": "application/x-www-form-urlencoded" };
    const { ok, status } = await fetch(this.url(path), { method: "POST", headers, body: text });
    if (!ok) throw new Error(`POST /${path} is answered with ${status}`);
  }
  /** Calls the HTTP API with a key. */
  async api(key, path, body) {
    const headers = { authorization: `Bearer ${key}` };
    const { ok, status } = await fetch(this.url(`api/v1/${path}`), { method: "POST", headers, body: JSON.stringify(body) });
    if (!ok) throw new Error(`POST ${path} is answered with ${status}`);
  }
}

/** Starts a NATS server and two nodes with further options. Skips the test, and returns nothing, without NATS. */
export async function cluster(test, options = [[], []], names = ["eu-1", "eu-2"]) {
  const env = { ...process.env, BROKER_PORT: String(await freePort()) };
  const call = (action) => run("bash", [join(ROOT, "dev/brokers/nats.sh"), action], { env });
  // Before the folder with the process id is removed.
  test.after(() => call("down"));
  env.BROKER_RUN = join(folder(test), "run");
  const { code, stderr } = await call("up").catch((error) => error);
  // The exit status on a machine without the broker.
  if (code === 77) return test.skip(stderr.trim());
  if (code) throw new Error(stderr);
  const broker = ["--cluster", `nats://127.0.0.1:${env.BROKER_PORT}`, "--cluster-node-name"];
  const nodes = await Promise.all(names.map((name, at) => Server.start(test, [...broker, name, ...options[at]])));
  return { nodes, killBroker: () => call("kill"), restartBroker: () => call("up") };
}
