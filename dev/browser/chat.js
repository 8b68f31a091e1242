// The chat page in the windows of two people, Anna and Ben, and its rooms with the keyboard. The checks run in order in the
// same windows. A failed check may cause later failures; the first is the cause.
import { chromium } from "../../examples/testing/chromium.js";
import { LOG, Person } from "./person.js";
import { DESKTOP, PHONE, contains, device, eventually, expect, fitsWidth, isBlank, retry, seen, shows } from "./world.js";

const LOBBY = "topics/sinews.chat.lobby";

export async function chat(part) {
  // Without the history of rooms, the page itself has to save messages from a restart.
  const server = await part.serve(["--history", "kept.*=10", "--chat-history", "off"]);
  const anna = await Person.enter(part, server.url("chat"), "Anna");
  const ben = await Person.enter(part, server.url("chat"), "Ben");
  const both = (wait) => Promise.all([anna, ben].map(wait));
  await part.check("both windows show both people", async () => {
    await both((person) => person.isWith("Anna", "Ben"));
    await shows(anna.page, "#count", "2 here");
  });
  await part.check("a message typed and sent by a click arrives in the other window", async () => {
    await anna.tells(ben, "Hello Ben, do you read me?");
    await shows(ben.page, `${LOG} .msg:last-child .name`, "Anna");
  });
  await part.check("Enter sends, Shift+Enter breaks the line", async () => {
    await ben.type("Loud");
    await ben.page.press("#message", "Shift+Enter");
    await ben.type("and clear");
    await ben.page.press("#message", "Enter");
    await anna.hears("Loud\nand clear");
  });
  await part.check("the echo confirms delivery", async () => {
    await both((person) => person.hasDelivered());
    const messages = await anna.messages();
    expect(messages).toHaveLength(2);
    expect(await ben.messages()).toEqual(messages);
  });
  await part.check("markup stays text, addresses become safe links", async () => {
    const text = "<img src=x onerror=alert(1)> javascript://%0aalert(1) see https://example.org/a?b=1.";
    await anna.tells(ben, text);
    const links = await ben.page.locator(`${LOG} .msg a`).evaluateAll((all) => all.map((a) => `${a.href} ${a.rel} ${a.target}`));
    expect(links).toEqual(["https://example.org/a?b=1 noopener noreferrer nofollow ugc _blank"]);
    await expect(ben.page.locator(".log img")).toHaveCount(0);
  });
  await part.check("a room with a history shows retained messages, and typing is not retained", async () => {
    const dora = await Person.enter(part, server.url("chat#kept.log"), "Dora");
    await dora.say("For people who come later");
    await dora.hasDelivered();
    const eve = await Person.enter(part, server.url("chat#kept.log"), "Eve");
    await eve.hears("For people who come later");
    // Retained messages do not count as unread.
    expect(await eve.page.title()).toBe("#kept.log · Sinews");
    await typingIsShown(eve, dora, "Eve");
    const retained = await dora.page.evaluate(async () => {
      const response = await fetch("/topics/kept.log?wait=0&last=10", { headers: { Accept: "application/json" } });
      return (await response.json()).messages.map(({ data }) => data?.t);
    });
    expect(retained).toEqual([undefined, "msg"]);
    // The tab has the same id after a reload.
    await dora.page.reload();
    await expect(dora.page.locator(".msg.mine:not(.pending)")).toHaveCount(1);
    await eve.join("quiet");
    await contains(eve.page, "#empty-text", "--history 'sinews.chat.quiet=100'");
    await Promise.all([dora, eve].map(({ page }) => page.context().close()));
  });
  await part.check("a publication of a terminal is announced in both windows", async () => {
    expect(await anna.commandPath()).toBe(LOBBY);
    await server.publish(LOBBY, "hello");
    await both((person) => person.sees("hello"));
  });
  await part.check("malformed frames change nothing", async () => {
    const [people, entries] = [await anna.people(), await anna.entryCount()];
    const id = "eeeeeeeeeeee";
    for (const frame of [
      {},
      { t: "typing", id: [id], name: "x" },
      { t: "shout", id, name: "x" },
      { t: "typing", id, name: "" },
      { t: "typing", id, name: {} },
      { t: "msg", id, name: "x", m: 7, text: "x" },
      { t: "msg", id, name: "x", m: id, text: ["x"] },
    ]) await server.publish(LOBBY, JSON.stringify({ sinews: 1, ...frame }));
    // Published last: once it is shown, all earlier messages have been processed.
    await server.publish(LOBBY, '{"not": "ours"}');
    await anna.sees('{"not": "ours"}');
    expect(await anna.entryCount()).toBe(entries + 1);
    expect(await anna.people()).toEqual(people);
  });
  await part.check("a message that comes twice is shown once", async () => {
    // Simulates a lost connection between a message and its echo.
    const message = JSON.stringify({ sinews: 1, t: "msg", id: "c0ffeec0ffee", name: "Ghost", m: "abcdef012345", text: "Twice" });
    for (const frame of [message, message, "after the message"]) await server.publish(LOBBY, frame);
    await anna.sees("after the message");
    expect((await anna.messages()).filter((text) => text === "Twice")).toHaveLength(1);
  });
  await part.check("the other window shows a typing person", async () => {
    await typingIsShown(ben, anna, "Ben");
    const typed = await ben.page.inputValue("#message");
    await ben.type(" then");
    await ben.page.press("#message", "Enter");
    await anna.hears(`${typed} then`);
    await isBlank(anna.page, "#typing");
  });
  await part.check("a new name is shown in the other window", async () => {
    await ben.rename("<u>Ben</u>");
    await anna.isTold("Ben is now called <u>Ben</u>");
    await anna.isWith("<u>Ben</u>", "Anna");
    await ben.rename("Ben");
    await anna.isWith("Anna", "Ben");
  });
  await part.check("rooms are isolated, and messages in the other room are counted", async () => {
    await ben.join("attic");
    await ben.isWith("Ben");
    await ben.say("Nobody hears this");
    await ben.hasDelivered();
    expect(await ben.page.evaluate(() => location.hash)).toBe("#attic");
    await anna.say("Ben, where are you?");
    await shows(ben.page, "[data-room=lobby]", /lobby\s+1(\s|$)/);
    expect(await ben.messages()).toEqual(["Nobody hears this"]);
    await ben.goTo("lobby");
    await ben.hears("Ben, where are you?");
    await ben.tells(anna, "Back again");
    expect(await anna.messages()).not.toContain("Nobody hears this");
  });
  await part.check("a hidden tab counts unread messages in its title", async (test) => {
    // Playwright shows all tabs as visible. So this window is one of another browser.
    const open = await chromium(test);
    const tab = await open(server.url("chat#den"));
    await tab.until("document.querySelector('#state').textContent === 'connected'");
    await anna.join("den");
    const { targetInfo: { browserContextId } } = await tab.call("Target.getTargetInfo");
    const { targetId } = await tab.call("Target.createTarget", { url: "about:blank", browserContextId });
    await tab.until("document.hidden");
    await anna.say("One");
    await anna.say("Two");
    await tab.until("document.title === '(2) #den · Sinews'");
    await tab.call("Target.closeTarget", { targetId });
    await tab.until("!document.hidden && document.title === '#den · Sinews'");
    await anna.leave("den");
  });
  await part.check("members of other programs come, change and go with their connection", async () => {
    // Not of the page: any client can join, with any info.
    await ben.page.evaluate(() => {
      window.ghost = new WebSocket("/ws");
      ghost.join = (info) => ghost.send(JSON.stringify({ op: "join", topic: "sinews.chat.lobby", member: { id: "ghost", info } }));
      ghost.onopen = () => ghost.join({ name: 7, hue: "green" });
    });
    await anna.isTold("ghost joined");
    await anna.isWith("Anna", "Ben", "ghost");
    await ben.page.evaluate(() => ghost.join({ name: " Casper\u202E ", hue: 40 }));
    await anna.isTold("ghost is now called Casper");
    await anna.isWith("Anna", "Ben", "Casper");
    await ben.page.evaluate(() => ghost.close());
    await anna.isTold("Casper left");
    await anna.isWith("Anna", "Ben");
  });
  await part.check("closing the window leaves at once", async () => {
    const cleo = await Person.enter(part, server.url("chat#lobby"), "Cleo");
    await anna.isWith("Anna", "Ben", "Cleo");
    await cleo.isWith("Anna", "Ben", "Cleo");
    await cleo.page.close({ runBeforeUnload: true });
    await anna.isTold("Cleo left");
    await ben.isWith("Anna", "Ben");
  });
  await part.check("a stopped server is explained, new messages are queued", async () => {
    await server.stop();
    await both((person) => person.isDisconnected());
    await both(({ page }) => shows(page, "#countdown", /^Trying again in /));
    await ben.say("Said while away");
    await ben.waitsFor("waiting for the connection");
  });
  await part.check('"Try now" tries at once', async () => {
    // Counts the attempts, and makes them fail until the next check has Anna offline.
    await anna.page.evaluate(() => {
      window.attempts = 0;
      window.astray = true;
      window.WebSocket = class extends WebSocket {
        constructor(url) { super(astray ? String(url).replace("/ws", "/nowhere") : url); window.attempts += 1; }
      };
    });
    // The client connects in the next task, which precedes this one's. No other timer of the page expires until then, so the
    // single attempt is the click's. While an attempt fails, there is no button to click.
    const click = () => anna.page.evaluate(async () => {
      const button = document.querySelector("#retry:not([hidden])");
      if (!button) return "no button";
      const before = attempts;
      button.click();
      await new Promise((resolve) => setTimeout(resolve));
      return attempts - before;
    });
    let tried;
    await eventually(async () => { tried = await click(); return tried; }).not.toBe("no button");
    expect(tried).toBe(1);
    await shows(anna.page, "#cause", "The server cannot be reached.");
  });
  await part.check("both windows reconnect, queued messages are delivered once", async () => {
    // The page of Ben waits for Anna until she is back: its clock stands still.
    await stopClock(ben);
    await server.restart();
    await tryUntilConnected(ben);
    // Anna is still offline, and the server has no history: a message sent now would be lost for her.
    await ben.waitsFor("waiting for other people");
    await anna.page.evaluate(() => { window.astray = false; });
    await tryUntilConnected(anna);
    // Other people, who have just left, do not come back: the page does not wait longer for them.
    await startClock(ben);
    await anna.hears("Said while away");
    await ben.hasDelivered();
    await ben.tells(anna, "And now?");
    expect((await anna.messages()).filter((text) => text === "Said while away")).toHaveLength(1);
    await anna.isWith("Anna", "Ben");
    await expect(anna.page.locator("#banner")).toBeHidden();
  });
  await part.check("a message waits for a person whom a stopping server disconnected first", async () => {
    // The page of Anna may open more slowly than the page of Ben waits, and the server may stop long after Anna has left.
    await stopClock(ben);
    await anna.page.goto("about:blank");
    await ben.isWith("Ben");
    await server.stop();
    await ben.isDisconnected();
    await ben.say("Said to those who come back");
    await server.restart();
    await tryUntilConnected(ben);
    await ben.waitsFor("waiting for other people");
    await anna.page.goto(server.url("chat#lobby"));
    await anna.isConnected();
    await startClock(ben);
    await anna.hears("Said to those who come back");
    await ben.hasDelivered();
    await anna.isWith("Anna", "Ben");
  });
  await part.check("a crashed server is survived too", async () => {
    await server.kill();
    await shows(anna.page, "#cause", /./);
    await server.restart();
    await both((person) => person.isConnected());
    await anna.tells(ben, "Still here");
  });
  await part.check("name and room survive a reload", async () => {
    await ben.goTo("attic");
    await ben.reload();
    await ben.isWith("Ben");
    await ben.isIn("attic");
    await ben.goTo("lobby");
    await both((person) => person.isWith("Anna", "Ben"));
  });
  await part.check("a message over the limit cannot be sent", async () => {
    // Pasted, like a long text.
    await anna.page.fill("#message", "x".repeat(2001));
    await shows(anna.page, "#hint", "1 characters too long");
    await expect(anna.page.locator("#send")).toBeDisabled();
    await anna.page.fill("#message", "x".repeat(2000));
    await anna.page.click("#send");
    await ben.hears("x".repeat(2000));
  });
  await part.check("a message that the server rejects as too long is not retried", async () => {
    // Every message that the page can send fits every server's limit, so the rejection is simulated.
    await ben.page.evaluate(() => {
      const send = WebSocket.prototype.send;
      WebSocket.prototype.send = function (frame) {
        if (!frame.includes('"msg"')) return send.call(this, frame);
        WebSocket.prototype.send = send;
        setTimeout(() => this.onclose(new CloseEvent("close", { code: 1009 })));
      };
    });
    await ben.say("Too long for you");
    await expect(ben.page.locator(`${LOG} .failed`)).toHaveCount(1);
    await ben.hasDelivered();
    await ben.isConnected();
    await ben.tells(anna, "Shorter");
    expect(await anna.messages()).not.toContain("Too long for you");
  });
  await part.check("a connection that went silent is replaced", async () => {
    // Simulates a pulled cable: no bytes pass in either direction, and no event reports it.
    await ben.page.evaluate(() => {
      const send = WebSocket.prototype.send;
      let dead = null;
      WebSocket.prototype.send = function (frame) {
        dead ??= this;
        if (this !== dead) return send.call(this, frame);
        this.onmessage = null;
      };
    });
    await ben.tells(anna, "Is this thing on?");
    await ben.hasDelivered();
  });
  await part.check("the log keeps 500 entries, follows its end, and leaves the reader alone", async () => {
    const lines = Array.from({ length: 30 }, (_, at) => `line ${at}`);
    for (let round = 0; round < 17; round++) await Promise.all(lines.map((line) => server.publish(LOBBY, line)));
    await server.publish(LOBBY, "the last line");
    await anna.sees("the last line");
    expect(await anna.entryCount()).toBe(500);
    const isAtEnd = () => anna.page.locator(LOG).evaluate((log) => log.scrollHeight - log.clientHeight - log.scrollTop < 4);
    await eventually(isAtEnd).toBe(true);
    // The page learns of it in its next frame.
    await anna.page.locator(LOG).evaluate((log) => new Promise((done) => {
      log.addEventListener("scroll", done, { once: true });
      log.scrollTop = 100;
    }).then(() => true));
    await eventually(isAtEnd).toBe(false);
    await ben.say("Look down");
    await shows(anna.page, "#jump", "1 new message ↓");
    expect(await isAtEnd()).toBe(false);
    await anna.page.click("#jump");
    await eventually(isAtEnd).toBe(true);
    await expect(anna.page.locator("#jump")).toBeHidden();
  });
  await part.check("every control has a name for a screen reader", async () => {
    for (const control of ["#message", "#send", "#name-input", "#room-input", "#room-join", "#copy", "#menu"]) {
      // The menu button exists on phones only; its name is read there.
      if (control === "#menu") await device(ben.page, PHONE);
      await expect(seen(ben.page, control)).toHaveAccessibleName(/\S/);
    }
    await device(ben.page, DESKTOP);
  });
  await part.check("a phone shows the page without sideways scrolling, the menu opens and closes", async () => {
    await device(ben.page, PHONE);
    await fitsWidth(ben.page);
    // Phones zoom into fields under 16 px.
    const small = await ben.page.locator("input, textarea").evaluateAll((fields) =>
      fields.filter((field) => parseFloat(getComputedStyle(field).fontSize) < 16).map((field) => field.id));
    expect(small).toEqual([]);
    const menu = ben.page.locator("#side");
    await expect(menu).toHaveCSS("visibility", "hidden");
    await ben.page.click("#menu");
    await expect(menu).toHaveCSS("visibility", "visible");
    await eventually(() => menu.evaluate((side) => side.getBoundingClientRect().left)).toBe(0);
    await ben.goTo("attic");
    await expect(menu).toHaveCSS("visibility", "hidden");
    await device(ben.page, DESKTOP);
  });
  await part.check("the console holds no error", () => {
    // A stopped server is not reached. A connection that is accepted while it stops or starts is reset, or ends without an answer.
    const expected = /WebSocket connection to|net::ERR_CONNECTION_|net::ERR_EMPTY_RESPONSE/;
    for (const { page } of [anna, ben]) expect(page.errors.filter((error) => !expected.test(error))).toEqual([]);
  });
}

/** Types until the other page shows it: the sign lasts for a few seconds only. */
export function typingIsShown(typist, other, name) {
  return retry(async () => {
    await typist.type("x");
    await expect(seen(other.page, "#typing")).toHaveText(`${name} is typing…`, { timeout: 2_000 });
  });
}

/** Stops the clock of a page. Its timers run. */
const stopClock = ({ page }) => page.evaluate(() => { window.dateNow ??= Date.now; const at = Date.now(); Date.now = () => at; });
const startClock = ({ page }) => page.evaluate(() => { Date.now = dateNow; });

/**
 * Lets a page try until it is connected. An attempt that began before fails first, and a later one would miss the time that
 * messages wait for other people. The script clicks even where the button is hidden.
 */
const tryUntilConnected = ({ page }) => eventually(() => page.evaluate(() => {
  document.querySelector("#retry").click();
  return document.querySelector("#state").textContent;
})).toBe("connected");

/** The chat's rooms: their history on a server without options, and their keyboard. */
export async function rooms(part) {
  const server = await part.serve();
  const anna = await Person.enter(part, server.url("chat"), "Anna");
  const { page } = anna;
  await part.check("a reload shows the messages of a room, without any option of the server", async () => {
    await anna.say("This stays");
    await anna.hasDelivered();
    await server.publish(await anna.commandPath(), "hello");
    await anna.sees("hello");
    await anna.reload();
    await anna.hears("This stays");
    await anna.sees("hello");
    expect(await anna.messages()).toHaveLength(1);
    // The address of the topic is the same room.
    await page.goto(server.url("chat#sinews.chat.lobby"));
    await anna.isIn("lobby");
  });
  await part.check("a room with a dot in its name is the topic of this name, without a history", async () => {
    await anna.join("prices.gold");
    await server.publish("topics/prices.gold", "3712");
    await anna.sees("3712");
    await page.reload();
    await contains(page, "#empty-text", "--history 'prices.gold=100'");
    await anna.leave("prices.gold");
  });
  /** Presses a key, and waits until the focus is at an element with this id, label or text, and the room is shown. */
  const press = async (key, focus, room) => {
    await page.keyboard.press(key);
    await eventually(() => page.evaluate(() => {
      const { id, textContent, ariaLabel } = document.activeElement;
      return id || ariaLabel || textContent;
    })).toBe(focus);
    if (room) await anna.isIn(room);
  };
  await part.check("rooms are entered and left by the keyboard", async () => {
    await page.focus("#room-input");
    await page.keyboard.type("attic");
    await press("Enter", "room-input", "attic");
    // The order of the document, from its end.
    for (const focus of ["Leave attic", "attic", "Leave lobby", "lobby"]) await press("Shift+Tab", focus);
    await press("Enter", "lobby", "lobby");
    await press("Tab", "Leave lobby");
    await press("Enter", "room-input", "attic");
    await expect(page.locator("[data-testid=room]")).toHaveCount(1);
    await page.keyboard.type("lobby");
    await press("Enter", "room-input", "lobby");
  });
  await part.check("the menu of a phone is opened, used and closed by the keyboard", async () => {
    await device(page, PHONE);
    const menuIs = (open) => expect(page.locator("#menu")).toHaveAttribute("aria-expanded", open);
    await page.focus("#menu");
    await press("Enter", "attic");
    await menuIs("true");
    await press("Escape", "menu");
    await menuIs("false");
    await page.keyboard.press("Enter");
    await menuIs("true");
    // The content behind the open menu takes no focus.
    for (let times = 0; times < 7; times++) {
      await page.keyboard.press("Tab");
      expect(await page.evaluate(() => document.querySelector("main").contains(document.activeElement))).toBe(false);
    }
    await page.focus("[data-room=attic] a");
    await press("Enter", "menu", "attic");
    await menuIs("false");
  });
}
