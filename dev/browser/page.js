// What the checks' pages have besides the methods of Playwright.
import { expect as assertions } from "playwright/test";

/** Milliseconds until a wait fails. Successful checks never wait this long, also on a machine that stalls. */
const PATIENCE = 60_000;

export const DESKTOP = { width: 1180, height: 760 };
export const PHONE = { width: 390, height: 844, mobile: true };

export const expect = assertions.configure({ timeout: PATIENCE });
/** An assertion about what a function returns, which waits. */
export const eventually = (probe) => expect.poll(probe, { timeout: PATIENCE, intervals: [25] });
export const retry = (attempt) => expect(attempt).toPass({ timeout: PATIENCE, intervals: [25] });
/** Waits for all of these, in any order. */
export const all = (...waits) => Promise.all(waits);

/** Opens a window that shares no storage with another one. `errors` are those in its console. */
export async function newPage(test, browser) {
  const context = await browser.newContext({ viewport: DESKTOP, ignoreHTTPSErrors: true, locale: "en-GB" });
  test.after(() => context.close());
  context.setDefaultTimeout(PATIENCE);
  await context.addInitScript(addHelpers);
  const page = Object.assign(await context.newPage(), METHODS, { errors: [] });
  page.devtools = await context.newCDPSession(page);
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") page.errors.push(`${message.text()} (${message.location().url})`);
  });
  return page;
}

const METHODS = {
  /** The elements that a selector finds, as far as a user sees them. */
  seen(selector) { return this.locator(selector).filter({ visible: true }); },
  /** Waits until the user sees all text of the element, or what a regular expression finds in it. */
  shows(selector, text) { return expect(this.seen(selector)).toHaveText(text, { useInnerText: true }); },
  contains(selector, text) { return expect(this.seen(selector)).toContainText(text, { useInnerText: true }); },
  isBlank(selector) { return expect(this.seen(selector).filter({ hasText: /\S/ })).toHaveCount(0); },
  /** What scripts have noted by `note(words)`, as far as it begins with a text. */
  notes(begin = "") { return this.evaluate((begin) => notes.filter((note) => note.startsWith(begin)), begin); },
  clearNotes() { return this.evaluate(() => { notes.length = 0; }); },
  /** Waits until scripts have noted all of these. */
  noted(...words) { return eventually(() => this.notes()).toEqual(expect.arrayContaining(words)); },
  /** Runs a script, and waits until all of these are noted. */
  async script(body, ...words) { await this.evaluate(body); await this.noted(...words); },
  /** The rows of a table with their cells, separated by `|`. */
  rows(selector) {
    return this.locator(`${selector} tr`).evaluateAll((rows) => rows.map(({ cells }) =>
      Array.from(cells, (cell) => cell.innerText.replaceAll("\n", " ")).join("|")));
  },
  /** Opens a page, and waits until it says that it is in this state. */
  async visit(url, state) { await this.goto(url); await this.shows("#state", state); },
  /** Opens a page without script and without a policy for any, in which scripts have the client's `connect`. */
  async visitBare(server) {
    await this.goto(server.url("healthz"));
    await this.evaluate(async () => { window.connect = (await import("/sinews.js")).connect; });
  },
  async openDashboard(server, fragment = "") {
    await this.goto(server.url("healthz"));
    await this.visit(server.url(`dashboard${fragment}`), "live");
  },
  /** Replaces the text of a field, and presses Enter. */
  async enter(field, text) { await this.fill(field, text); await this.press(field, "Enter"); },
  /** Shows the page on a device of this size, also where the size of its window differs. */
  device({ width, height, scale = 1, mobile = false }) {
    const metrics = { width, height, deviceScaleFactor: scale, mobile };
    return this.devtools.send("Emulation.setDeviceMetricsOverride", metrics);
  },
  /** Shows the page on each device, light and dark. */
  async onEach(devices, look) {
    for (const size of devices) {
      await this.device(size);
      for (const colorScheme of ["dark", "light"]) {
        // Without animations nothing is seen halfway.
        await this.emulateMedia({ colorScheme, reducedMotion: "reduce" });
        await look(colorScheme, size);
      }
    }
    await this.emulateMedia({ colorScheme: null, reducedMotion: null });
    await this.device(DESKTOP);
  },
  /** Fails if the page is wider than its window. */
  async fitsWidth() {
    const wider = await this.evaluate(() => {
      const { documentElement: root, body } = document;
      return Math.max(root.scrollWidth, body.scrollWidth) - root.clientWidth;
    });
    expect(wider, `${this.url()} is too wide by these pixels`).toBe(0);
  },
};

/** In each page: what the scripts of the checks use. */
function addHelpers() {
  window.notes = [];
  window.note = (words) => notes.push(words);
  /** Calls a function instead of sending the next message with this text. */
  window.intercept = (text, instead) => {
    const { prototype } = WebSocket;
    const { send } = prototype;
    prototype.send = function (message) {
      if (!message.includes(text)) return send.call(this, message);
      prototype.send = send;
      instead(this, message);
    };
  };
  /** Opens a WebSocket, and sends requests, each after the response to the previous one. */
  window.request = async (path, ...requests) => {
    const socket = new WebSocket(path);
    await new Promise((resolve) => { socket.onopen = resolve; });
    for (const [id, request] of requests.entries()) {
      socket.send(JSON.stringify({ ...request, id }));
      await new Promise((resolve) => { socket.onmessage = ({ data }) => JSON.parse(data).id === id && resolve(); });
    }
    return socket;
  };
  /** A WebSocket in a network that blocks them. */
  window.Blocked = class {
    constructor() { setTimeout(() => this.onclose?.({ code: 1006, reason: "" })); }
    close() {}
  };
}
