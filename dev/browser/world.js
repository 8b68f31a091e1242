// What all parts use: windows of the browser, servers, and a broker.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, writeFileSync } from "node:fs";
import net from "node:net";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { folder, freePort, serve, tokens } from "../../examples/testing/programs.js";
import { DESKTOP, PATIENCE, newPage, retry } from "./page.js";

/** Milliseconds until a check fails. */
const CHECK_LIMIT = 10 * 60_000;

/** The program under test. */
export const PROGRAM = process.env.SINEWS ?? "sinews";
export const ROOT = fileURLToPath(new URL("../..", import.meta.url));

export const run = promisify(execFile);

/** The path of the first of these programs that this machine has, or undefined. */
export const findProgram = (...names) => names
  .flatMap((name) => process.env.PATH.split(delimiter).map((folder) => join(folder, name)))
  .find((path) => existsSync(path));

/** Starts a program that runs until `stop`, or until the end of the test. `text` is what it has printed. */
export function launch(test, command, parameters, options = {}) {
  const child = spawn(command, parameters, { ...options, stdio: ["ignore", "pipe", "inherit"] });
  const program = { text: "", stop: () => child.kill("SIGKILL") };
  child.on("error", (error) => { program.text += error; });
  child.stdout.setEncoding("utf8").on("data", (chunk) => { program.text += chunk; });
  test.after(program.stop);
  return program;
}

/** One part of the checks, with what it uses. */
export class Part {
  constructor(test, browser) { Object.assign(this, { test, browser }); }
  check(name, body) { return this.test.test(name, { timeout: CHECK_LIMIT }, body); }
  folder() { return folder(this.test); }
  /** Writes a file in a new folder; returns its path. */
  file(name, text) {
    const path = join(this.folder(), name);
    writeFileSync(path, text);
    return path;
  }
  tokens() { return tokens(this.test); }
  serve(options) { return Server.start(this.test, options); }
  /** Opens a window that shares no storage with another one. */
  async window() {
    const context = await this.browser.newContext({ viewport: DESKTOP, ignoreHTTPSErrors: true, locale: "en-GB" });
    this.test.after(() => context.close());
    context.setDefaultTimeout(PATIENCE);
    return newPage(context);
  }
  /** Opens a page in a new window. */
  async open(url) { const page = await this.window(); await page.goto(url); return page; }
  async openBare(server) { const page = await this.window(); await page.visitBare(server); return page; }
}

/** A server of the program. Its port stays the same across restarts, so that open pages reconnect. */
export class Server {
  static async start(test, options = []) {
    const server = new Server(test, options, await freePort());
    await server.restart();
    return server;
  }
  constructor(test, options, port) { Object.assign(this, { test, options, port }); }
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
  /** Kills the server, like a crash. */
  kill() { return this.running.stop("SIGKILL"); }
  get pid() { return this.running.pid; }
  url(path = "") { return `${this.running.http}/${path}`; }
  /** The URL of a WebSocket. */
  socket(path) { return this.url(path).replace(/^http/, "ws"); }
  /** Publishes by HTTP, like `curl -d <text> <url>`. */
  async publish(path, text) {
    const headers = { "content-type": "application/x-www-form-urlencoded" };
    const { ok, status } = await fetch(this.url(path), { method: "POST", headers, body: text });
    if (!ok) throw new Error(`POST /${path} is answered with ${status}`);
  }
}

/** Exit status of the script on a machine without the broker. */
const UNAVAILABLE = 77;

/** Starts a NATS server and two nodes with further options. Skips the test, and returns nothing, without NATS. */
export async function cluster(test, options = [[], []], names = ["eu-1", "eu-2"]) {
  const env = { ...process.env, BROKER_PORT: String(await freePort()) };
  const call = (action) => run("bash", [join(ROOT, "dev/brokers/nats.sh"), action], { env });
  // Before the folder with the process id is removed.
  test.after(() => call("down"));
  env.BROKER_RUN = join(folder(test), "run");
  const { code, stderr } = await call("up").catch((error) => error);
  if (code === UNAVAILABLE) return test.skip(stderr.trim());
  if (code) throw new Error(stderr);
  const broker = ["--cluster", `nats://127.0.0.1:${env.BROKER_PORT}`, "--cluster-node-name"];
  const nodes = await Promise.all(names.map((name, at) => Server.start(test, [...broker, name, ...options[at]])));
  return { nodes, killBroker: () => call("kill"), restartBroker: () => call("up") };
}
