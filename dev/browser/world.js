// What all parts use: windows of the browser, servers, a broker, and waiting assertions.
import { execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import net from "node:net";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { expect as assertions } from "playwright/test";

import { folder, freePort, serve, tokens } from "../../examples/testing/programs.js";

/** Milliseconds until a wait fails. Successful checks never wait this long, also on a machine that stalls. */
export const PATIENCE = 60_000;
/** Milliseconds until a check fails. */
const CHECK_LIMIT = 10 * 60_000;

/** The program under test. */
export const PROGRAM = process.env.SINEWS ?? "sinews";
export const ROOT = fileURLToPath(new URL("../..", import.meta.url));

export const DESKTOP = { width: 1180, height: 760 };
export const PHONE = { width: 390, height: 844, mobile: true };

export const expect = assertions.configure({ timeout: PATIENCE });
/** An assertion about what a function returns, which waits. */
export const eventually = (probe) => expect.poll(probe, { timeout: PATIENCE, intervals: [25] });
/** Repeats a function until it throws nothing. */
export const retry = (attempt) => expect(attempt).toPass({ timeout: PATIENCE, intervals: [25] });

export const run = promisify(execFile);

/** The path of the first of these programs that this machine has, or undefined. */
function findProgram(...names) {
  const folders = process.env.PATH.split(delimiter);
  return names.flatMap((name) => folders.map((folder) => join(folder, name))).find((path) => existsSync(path));
}
export const hasProgram = (name) => Boolean(findProgram(name));
export const browserPath = () => findProgram("chromium", "chromium-browser", "google-chrome");

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
  constructor(test, browser) { this.test = test; this.browser = browser; }
  check(name, body) { return this.test.test(name, { timeout: CHECK_LIMIT }, body); }
  folder() { return folder(this.test); }
  tokens() { return tokens(this.test); }
  serve(options) { return Server.start(this.test, options); }
  /** Opens a window that shares no storage with another one. `page.errors` are the errors in its console. */
  async window() {
    const context = await this.browser.newContext({ viewport: DESKTOP, ignoreHTTPSErrors: true, locale: "en-GB" });
    this.test.after(() => context.close());
    context.setDefaultTimeout(PATIENCE);
    await context.addInitScript(() => { window.notes = []; window.note = (words) => notes.push(words); });
    const page = await context.newPage();
    page.errors = [];
    page.on("pageerror", (error) => page.errors.push(String(error)));
    page.on("console", (message) => {
      if (message.type() === "error") page.errors.push(`${message.text()} (${message.location().url})`);
    });
    return page;
  }
  /** Opens a page in a new window. */
  async open(url) { const page = await this.window(); await page.goto(url); return page; }
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
    await retry(() => canListen(this.port));
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

function canListen(port) {
  return new Promise((resolve, reject) => {
    const listener = net.createServer().on("error", reject);
    listener.listen(port, "127.0.0.1", () => listener.close(resolve));
  });
}

/** Exit status of the script on a machine without the broker. */
const UNAVAILABLE = 77;

/** Starts a NATS server, and two nodes of a cluster with further options. Skips the test, and returns null, without NATS. */
export async function cluster(test, options = [[], []], names = ["eu-1", "eu-2"]) {
  let isUp = false;
  const env = { ...process.env };
  const call = (action) => run("bash", [join(ROOT, "dev/brokers/nats.sh"), action], { env });
  // Before the folder is removed, which has the process id.
  test.after(() => isUp && call("down"));
  const port = await freePort();
  Object.assign(env, { BROKER_PORT: String(port), BROKER_RUN: join(folder(test), "run") });
  try {
    await call("up");
  } catch (error) {
    if (error.code !== UNAVAILABLE) throw error;
    test.skip(error.stderr.trim());
    return null;
  }
  isUp = true;
  const node = (name, at) =>
    Server.start(test, ["--cluster", `nats://127.0.0.1:${port}`, "--cluster-node-name", name, ...options[at]]);
  return { nodes: await Promise.all(names.map(node)), killBroker: () => call("kill"), restartBroker: () => call("up") };
}

/** The elements of a page that a selector finds, as far as a user sees them. */
export const seen = (page, selector) => page.locator(selector).filter({ visible: true });

/** Waits until the user sees this text: all text of the element, or what a regular expression finds in it. */
export const shows = (page, selector, text) => expect(seen(page, selector)).toHaveText(text, { useInnerText: true });

/** Waits until the user sees this text in the element. */
export const contains = (page, selector, text) => expect(seen(page, selector)).toContainText(text, { useInnerText: true });

/** Waits until the user sees no text in the element. */
export const isBlank = (page, selector) => expect(seen(page, selector).filter({ hasText: /\S/ })).toHaveCount(0);

/** Waits until the page has noted all of these. Its scripts note by `note(words)`. */
export const noted = (page, ...words) => eventually(() => notes(page)).toEqual(expect.arrayContaining(words));

export const notes = (page) => page.evaluate(() => window.notes);

/** The rows of a table with their cells, separated by `|`. */
export const rows = (page, selector) =>
  page.locator(`${selector} tr`).evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.textContent).join("|")));

/** Opens a page, and waits until it says that it is in this state. */
export async function visit(page, url, state) {
  await page.goto(url);
  await shows(page, "#state", state);
}

/** Replaces the text of a field, and presses Enter. */
export async function enter(page, field, text) {
  await page.fill(field, text);
  await page.press(field, "Enter");
}

const sessions = new WeakMap();

/** Calls a method of the DevTools protocol. */
export async function devtools(page, method, parameters) {
  if (!sessions.has(page)) sessions.set(page, await page.context().newCDPSession(page));
  return sessions.get(page).send(method, parameters);
}

/** Shows the page on a device of this size, also where the size of its window differs. */
export const device = (page, { width, height, scale = 1, mobile = false }) =>
  devtools(page, "Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: scale, mobile });

/** Fails if the page is wider than its window. */
export async function fitsWidth(page) {
  const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  expect(wider, `${page.url()} is too wide by these pixels`).toBe(0);
}

/** Opens the dashboard of a server. */
export async function openDashboard(page, server, fragment = "") {
  await page.goto(server.url("healthz"));
  await visit(page, server.url(`dashboard${fragment}`), "live");
}
