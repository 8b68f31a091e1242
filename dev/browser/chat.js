// The chat page in the windows of two people, Anna and Ben, and its rooms with the keyboard.
import { chromium } from "../../examples/testing/chromium.js";
import { examine } from "./axe.js";
import { PHONE, all, eventually, expect } from "./page.js";
import { LOG, Person } from "./person.js";

const LOBBY = "topics/sinews.chat.lobby";

export async function chat(part) {
  // Without the history of rooms, the page itself has to save messages from a restart.
  const server = await part.serve(["--history", "kept.*=10", "--chat-history", "off"]);
  const enter = (name, room = "lobby") => Person.enter(part, server.url(`chat#${room}`), name);
  const [anna, ben] = [await enter("Anna"), await enter("Ben")];
  const both = (wait) => Promise.all([anna, ben].map(wait));
  const bothAreThere = () => both((person) => person.isWith("Anna", "Ben"));
  await part.check("both windows show both people", async () => {
    await all(bothAreThere(), anna.page.shows("#count", "2 here"));
  });
  await part.check("a message typed and sent by a click arrives in the other window", async () => {
    await anna.tells(ben, "Hello Ben, do you read me?");
    await ben.page.shows(`${LOG} .msg:last-child .name`, "Anna");
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
    await anna.tells(ben, "<img src=x onerror=alert(1)> javascript://%0aalert(1) see https://example.org/a?b=1.");
    const links = await ben.page.locator(`${LOG} .msg a`).evaluateAll((all) =>
      all.map((a) => `${a.href} ${a.rel} ${a.target}`));
    expect(links).toEqual(["https://example.org/a?b=1 noopener noreferrer nofollow ugc _blank"]);
    await expect(ben.page.locator(".log img")).toHaveCount(0);
  });
  await part.check("a room with a history shows retained messages, and typing is not retained", async () => {
    const dora = await enter("Dora", "kept.log");
    await dora.say("For people who come later");
    await dora.hasDelivered();
    const eve = await enter("Eve", "kept.log");
    await eve.hears("For people who come later");
    // Retained messages do not count as unread.
    expect(await eve.page.title()).toBe("#kept.log · Sinews");
    await eve.isSeenTyping("Eve", dora);
    const headers = { accept: "application/json" };
    const retained = await fetch(server.url("topics/kept.log?wait=0&last=10"), { headers });
    expect((await retained.json()).messages.map(({ data }) => data?.t)).toEqual([undefined, "msg"]);
    // The tab has the same id after a reload.
    await dora.page.reload();
    await expect(dora.page.locator(".msg.mine:not(.pending)")).toHaveCount(1);
    await eve.join("quiet");
    await eve.page.contains("#empty-text", "--history 'sinews.chat.quiet=100'");
    for (const { page } of [dora, eve]) await page.context().close();
  });
  await part.check("a publication of a terminal is announced in both windows", async () => {
    expect(await anna.commandPath()).toBe(LOBBY);
    await server.publish(LOBBY, "hello");
    await both((person) => person.sees("hello"));
  });
  await part.check("malformed frames change nothing", async () => {
    const [people, entries] = [await anna.people(), await anna.entryCount()];
    const valid = { t: "typing", id: "eeeeeeeeeeee", name: "x" };
    for (const frame of [
      {}, { ...valid, id: [valid.id] }, { ...valid, t: "shout" }, { ...valid, name: "" }, { ...valid, name: {} },
      { ...valid, t: "msg", m: 7, text: "x" }, { ...valid, t: "msg", m: valid.id, text: ["x"] },
    ]) await server.publish(LOBBY, JSON.stringify({ sinews: 1, ...frame }));
    // Published last: once it is shown, all earlier messages have been processed.
    await server.publish(LOBBY, '{"not": "ours"}');
    await anna.sees('{"not": "ours"}');
    expect(await anna.entryCount()).toBe(entries + 1);
    expect(await anna.people()).toEqual(people);
  });
  await part.check("a message that comes twice is shown once", async () => {
    // Simulates a lost connection between a message and its echo.
    const message = { sinews: 1, t: "msg", id: "c0ffeec0ffee", name: "Ghost", m: "abcdef012345", text: "Twice" };
    const frame = JSON.stringify(message);
    for (const text of [frame, frame, "after the message"]) await server.publish(LOBBY, text);
    await anna.sees("after the message");
    await anna.hasHeardOnce("Twice");
  });
  await anna.tells(ben, `A word without a break: ${"long".repeat(60)}`);
  const typing = () => ben.isSeenTyping("Ben", anna);
  await part.examine("in the chat with members, messages and typing", anna.page, typing);
  await part.check("the other window shows a typing person", async () => {
    await typing();
    const typed = await ben.page.inputValue("#message");
    await ben.type(" then");
    await ben.page.press("#message", "Enter");
    await all(anna.hears(`${typed} then`), anna.page.isBlank("#typing"));
  });
  await part.check("a new name is shown in the other window", async () => {
    await ben.rename("<u>Ben</u>");
    await all(anna.isTold("Ben is now called <u>Ben</u>"), anna.isWith("<u>Ben</u>", "Anna"));
    await ben.rename("Ben");
    await bothAreThere();
  });
  await part.check("rooms are isolated, and messages in the other room are counted", async () => {
    await ben.join("attic");
    await ben.isWith("Ben");
    await ben.say("Nobody hears this");
    await ben.hasDelivered();
    expect(new URL(ben.page.url()).hash).toBe("#attic");
    await anna.say("Ben, where are you?");
    await ben.page.shows("[data-room=lobby]", /lobby\s+1(\s|$)/);
    expect(await ben.messages()).toEqual(["Nobody hears this"]);
    await ben.goTo("lobby");
    await ben.hears("Ben, where are you?");
    await ben.tells(anna, "Back again");
    expect(await anna.messages()).not.toContain("Nobody hears this");
  });
  await part.check("a hidden tab counts unread messages in its title", async (test) => {
    // Playwright shows all tabs as visible. So this window is one of another browser.
    const tab = await (await chromium(test))(server.url("chat#den"));
    await tab.until("document.querySelector('#state').textContent === 'connected'");
    await anna.join("den");
    const { targetInfo: { browserContextId } } = await tab.call("Target.getTargetInfo");
    const { targetId } = await tab.call("Target.createTarget", { url: "about:blank", browserContextId });
    await tab.until("document.hidden");
    for (const text of ["One", "Two"]) await anna.say(text);
    await tab.until("document.title === '(2) #den · Sinews'");
    await tab.call("Target.closeTarget", { targetId });
    await tab.until("!document.hidden && document.title === '#den · Sinews'");
    await anna.leave("den");
  });
  await part.check("members of other programs come, change and go with their connection", async () => {
    // Not of the page: any client can join, with any info.
    const join = (info) => ben.page.evaluate(async (info) => {
      window.ghost ??= await request("/ws");
      ghost.send(JSON.stringify({ op: "join", topic: "sinews.chat.lobby", member: { id: "ghost", info } }));
    }, info);
    await join({ name: 7, hue: "green" });
    await all(anna.isTold("ghost joined"), anna.isWith("Anna", "Ben", "ghost"));
    await join({ name: " Casper\u202E ", hue: 40 });
    await all(anna.isTold("ghost is now called Casper"), anna.isWith("Anna", "Ben", "Casper"));
    await ben.page.evaluate(() => ghost.close());
    await all(anna.isTold("Casper left"), bothAreThere());
  });
  await part.check("closing the window leaves at once", async () => {
    const cleo = await enter("Cleo");
    for (const person of [anna, cleo]) await person.isWith("Anna", "Ben", "Cleo");
    await cleo.page.close({ runBeforeUnload: true });
    await all(anna.isTold("Cleo left"), bothAreThere());
  });
  await part.check("a stopped server is explained, new messages are queued", async () => {
    await server.stop();
    await both((person) => all(person.isDisconnected(), person.page.shows("#countdown", /^Trying again in /)));
    await ben.say("Said while away");
    await ben.waitsFor("waiting for the connection");
    await examine(ben.page);
  });
  await part.check('"Try now" tries at once', async () => {
    // Counts the attempts, and makes them fail until the next check has Anna offline.
    await anna.page.evaluate(() => {
      Object.assign(window, { attempts: 0, astray: true });
      window.WebSocket = class extends WebSocket {
        constructor(url) { super(astray ? String(url).replace("/ws", "/nowhere") : url); attempts += 1; }
      };
    });
    // The client connects in the next task, which precedes this one's. No other timer of the page expires before: the
    // single attempt is the click's. While an attempt fails, there is no button to click.
    let tried;
    await eventually(async () => tried = await anna.page.evaluate(async () => {
      const button = document.querySelector("#retry:not([hidden])");
      if (!button) return "no button";
      const before = attempts;
      button.click();
      await new Promise((resolve) => setTimeout(resolve));
      return attempts - before;
    })).not.toBe("no button");
    expect(tried).toBe(1);
    await anna.page.shows("#cause", "The server cannot be reached.");
  });
  /** Restarts the server. The message of Ben waits until Anna is back, since the server has no history. */
  const comeBack = async (text, annaComesBack) => {
    await server.restart();
    await tryUntilConnected(ben);
    await ben.waitsFor("waiting for other people");
    await annaComesBack();
    // Other people, who have just left, do not come back: the page does not wait longer for them.
    await startClock(ben);
    await all(anna.hears(text), ben.hasDelivered());
  };
  await part.check("both windows reconnect, queued messages are delivered once", async () => {
    await stopClock(ben);
    await comeBack("Said while away", async () => {
      await anna.page.evaluate(() => { window.astray = false; });
      await tryUntilConnected(anna);
    });
    await ben.tells(anna, "And now?");
    await anna.hasHeardOnce("Said while away");
    await all(bothAreThere(), expect(anna.page.locator("#banner")).toBeHidden());
  });
  await part.check("a message waits for a person whom a stopping server disconnected first", async () => {
    // The page of Anna may open more slowly than the page of Ben waits. The server may stop long after Anna has left.
    await stopClock(ben);
    await anna.page.goto("about:blank");
    await ben.isWith("Ben");
    await server.stop();
    await ben.isDisconnected();
    await ben.say("Said to those who come back");
    await comeBack("Said to those who come back", () => anna.page.visit(server.url("chat#lobby"), "connected"));
    await bothAreThere();
  });
  await part.check("a crashed server is survived too", async () => {
    await server.kill();
    await anna.page.shows("#cause", /./);
    await server.restart();
    await both((person) => person.isConnected());
    await anna.tells(ben, "Still here");
  });
  await part.check("name and room survive a reload", async () => {
    await ben.goTo("attic");
    await ben.reload();
    await all(ben.isWith("Ben"), ben.isIn("attic"));
    await ben.goTo("lobby");
    await bothAreThere();
  });
  await part.check("a message over the limit cannot be sent", async () => {
    await anna.page.fill("#message", "x".repeat(2001));
    await all(anna.page.shows("#hint", "1 characters too long"), expect(anna.page.locator("#send")).toBeDisabled());
    await anna.page.fill("#message", "x".repeat(2000));
    await anna.page.click("#send");
    await ben.hears("x".repeat(2000));
  });
  await part.check("a message that the server rejects as too long is not retried", async () => {
    // Every message that the page can send fits every server's limit, so the rejection is simulated.
    await ben.page.evaluate(() => intercept('"msg"', (socket) =>
      setTimeout(() => socket.onclose(new CloseEvent("close", { code: 1009 })))));
    await ben.say("Too long for you");
    await expect(ben.page.locator(`${LOG} .failed`)).toHaveCount(1);
    await all(ben.hasDelivered(), ben.isConnected());
    await ben.tells(anna, "Shorter");
    expect(await anna.messages()).not.toContain("Too long for you");
  });
  await part.check("a connection that went silent is replaced", async () => {
    // Simulates a pulled cable: no bytes pass in either direction, and no event reports it.
    await ben.page.evaluate(() => intercept("", (socket) => Object.assign(socket, { send() {}, onmessage: null })));
    await ben.tells(anna, "Is this thing on?");
    await ben.hasDelivered();
  });
  await part.check("the log keeps 500 entries, follows its end, and leaves the reader alone", async () => {
    const lines = Array.from({ length: 30 }, (_, at) => `line ${at}`);
    for (let round = 0; round < 17; round++) await Promise.all(lines.map((line) => server.publish(LOBBY, line)));
    await server.publish(LOBBY, "the last line");
    await anna.sees("the last line");
    expect(await anna.entryCount()).toBe(500);
    const log = anna.page.locator(LOG);
    const isAtEnd = () => log.evaluate((log) => log.scrollHeight - log.clientHeight - log.scrollTop < 4);
    await eventually(isAtEnd).toBe(true);
    // The page learns of it in its next frame.
    await log.evaluate((log) => new Promise((done) => { log.onscroll = () => done(); log.scrollTop = 100; }));
    await eventually(isAtEnd).toBe(false);
    await ben.say("Look down");
    await anna.page.shows("#jump", "1 new message ↓");
    expect(await isAtEnd()).toBe(false);
    await anna.page.click("#jump");
    await all(eventually(isAtEnd).toBe(true), expect(anna.page.locator("#jump")).toBeHidden());
  });
  await part.check("every control has a name for a screen reader", async () => {
    const hasName = (control) => expect(ben.page.seen(control)).toHaveAccessibleName(/\S/);
    await Promise.all(["#message", "#send", "#name-input", "#room-input", "#room-join", "#copy"].map(hasName));
    await ben.page.device(PHONE);
    await hasName("#menu");
  });
  await part.check("a phone shows the page without sideways scrolling, the menu opens and closes", async () => {
    await ben.page.fitsWidth();
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
  });
  await part.check("the console holds no error", () => {
    // A stopped server is not reached. While it stops or starts, an accepted connection is reset, or gets no response.
    const expected = /WebSocket connection to|net::ERR_CONNECTION_|net::ERR_EMPTY_RESPONSE/;
    for (const { page } of [anna, ben]) expect(page.errors.filter((error) => !expected.test(error))).toEqual([]);
  });
}

/** Stops the clock of a page, which waits for people for a while by this clock. Its timers run. */
const stopClock = ({ page }) => page.evaluate((at) => { window.clock ??= Date.now; Date.now = () => at; }, Date.now());
const startClock = ({ page }) => page.evaluate(() => { Date.now = clock; });

// Lets a page try until it is connected, even where the button is hidden. An attempt that began before fails first. A
// later one would miss the time that messages wait for other people.
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
    await all(anna.hears("This stays"), anna.sees("hello"));
    expect(await anna.messages()).toHaveLength(1);
    // The address of the topic is the same room.
    await page.goto(server.url("chat#sinews.chat.lobby"));
    await anna.isIn("lobby");
  });
  await part.examine("in the chat, with a message in it", page);
  await part.check("a room with a dot in its name is the topic of this name, without a history", async () => {
    await anna.join("prices.gold");
    await server.publish("topics/prices.gold", "3712");
    await anna.sees("3712");
    await page.reload();
    await page.contains("#empty-text", "--history 'prices.gold=100'");
    await anna.leave("prices.gold");
  });
  const [attic, leaveAttic] = ["[data-room=attic] a", "[data-room=attic] button"];
  const [lobby, leaveLobby] = ["[data-room=lobby] a", "[data-room=lobby] button"];
  /** Presses a key, and waits until an element has the focus, and the room is shown. */
  const press = async (key, focus, room) => {
    await page.keyboard.press(key);
    await expect(page.locator(focus)).toBeFocused();
    if (room) await anna.isIn(room);
  };
  await part.check("rooms are entered and left by the keyboard", async () => {
    await page.focus("#room-input");
    await page.keyboard.type("attic");
    await press("Enter", "#room-input", "attic");
    // The order of the document, from its end.
    for (const focus of [leaveAttic, attic, leaveLobby, lobby]) await press("Shift+Tab", focus);
    await press("Enter", lobby, "lobby");
    await press("Tab", leaveLobby);
    await press("Enter", "#room-input", "attic");
    await expect(page.locator("[data-testid=room]")).toHaveCount(1);
    await page.keyboard.type("lobby");
    await press("Enter", "#room-input", "lobby");
  });
  await part.check("the menu of a phone is opened, used and closed by the keyboard", async () => {
    await page.device(PHONE);
    const menuIs = (open) => expect(page.locator("#menu")).toHaveAttribute("aria-expanded", open);
    await page.focus("#menu");
    await press("Enter", attic);
    await menuIs("true");
    await press("Escape", "#menu");
    await menuIs("false");
    await page.keyboard.press("Enter");
    await menuIs("true");
    // The content behind the open menu takes no focus.
    for (let times = 0; times < 12; times++) {
      await page.keyboard.press("Tab");
      expect(await page.locator("main :focus").count()).toBe(0);
    }
    await page.focus(attic);
    await press("Enter", "#menu", "attic");
    await menuIs("false");
  });
  const open = page.locator("body.drawer");
  await part.examine("in the open menu of a phone", page, async () => {
    if (await open.count() === 0) await page.click("#menu");
    await expect(open).toHaveCount(1);
  }, [PHONE]);
}
