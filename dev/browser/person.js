// The chat page in its user's terms: names instead of selectors.
import { eventually, expect, retry } from "./page.js";

export const LOG = "[data-testid=log]:not([hidden])";

export class Person {
  static async enter(part, url, name) {
    const person = new Person(await part.open(url));
    await person.isConnected();
    await person.rename(name);
    return person;
  }
  constructor(page) { this.page = page; }
  rename(name) { return this.page.enter("#name-input", name); }
  isConnected() { return this.page.shows("#state", "connected"); }
  isDisconnected() { return expect(this.page.locator("#state")).not.toHaveText("connected"); }
  type(text) { return this.page.locator("#message").pressSequentially(text); }
  async say(text) { await this.type(text); await this.page.click("#send"); }
  async tells(other, text) { await this.say(text); await other.hears(text); }
  /** Types until the other page shows it: the sign lasts for a few seconds only. */
  isSeenTyping(name, other) {
    return retry(async () => {
      await this.type("x");
      await expect(other.page.seen("#typing")).toHaveText(`${name} is typing…`, { timeout: 2_000 });
    });
  }
  /** The texts of the entries in the log: of a `msg`, an `announcement` or a `notice`. */
  entries(kind) {
    return this.page.locator(`${LOG} [data-testid=${kind}]`).evaluateAll((all) =>
      all.map((entry) => entry.querySelector(".text")?.textContent ?? entry.textContent));
  }
  messages() { return this.entries("msg"); }
  hears(text) { return eventually(() => this.messages()).toContain(text); }
  async hasHeardOnce(text) { expect((await this.messages()).filter((message) => message === text)).toHaveLength(1); }
  sees(announcement) { return eventually(() => this.entries("announcement")).toContain(announcement); }
  isTold(notice) { return eventually(() => this.entries("notice")).toContain(notice); }
  async people() { return (await this.page.locator("[data-testid=person] .name").allTextContents()).sort(); }
  /** Waits until exactly these people are shown as here. */
  isWith(...names) { return eventually(() => this.people()).toEqual(names); }
  hasDelivered() { return expect(this.page.locator(".pending")).toHaveCount(0); }
  /** Waits until the last message waits for this. */
  waitsFor(mark) { return this.page.shows(`${LOG} .pending .mark`, mark); }
  async join(room) { await this.page.enter("#room-input", room); await this.isIn(room); await this.isConnected(); }
  async goTo(room) { await this.page.click(`[data-room='${room}'] a`); await this.isIn(room); }
  async leave(room) { await this.page.click(`[data-room='${room}'] button`); await this.isIn("lobby"); }
  async reload() { await this.page.reload(); await this.isConnected(); }
  isIn(room) { return this.page.shows("#title", room); }
  entryCount() { return this.page.locator(`${LOG} > *`).count(); }
  /** The path that the page's command for a terminal publishes to. */
  async commandPath() {
    const command = await this.page.seen("#curl").innerText();
    return /^curl -d 'hello' http:\/\/[^/]+\/(\S+)$/.exec(command)?.[1] ?? `no path in: ${command}`;
  }
}
