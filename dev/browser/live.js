// The live view of the dashboard, and the dialogs of a topic and of a client.
import { examine } from "./axe.js";
import { KEY } from "./dashboard.js";
import { all, eventually, expect, retry } from "./page.js";

const MARKUP = "<img src=x onerror=window.ran=1>";

export async function live(part) {
  const { options, make } = part.tokens();
  const keys = part.file("api-keys", `ops ${KEY} admin\n`);
  const histories = ["--history", "chat.>=20"];
  const server = await part.serve([...options, ...histories, "--api-keys-file", keys]);
  const [page, anna] = [await part.window(), await part.openBare(server)];
  const lines = () => page.locator("#live li:not(.empty)").allInnerTexts().then((all) => all.map((line) => line.replaceAll("\n", " ")));
  const shows = (...patterns) => eventually(lines).toEqual(expect.arrayContaining(patterns.map((pattern) => expect.stringMatching(pattern))));
  await part.check("one field opens the page: an API key with the right admin", async () => {
    await page.goto(server.url("dashboard"));
    await page.contains("#auth-problem", "a token is needed to subscribe to sinews.dashboard");
    await examine(page);
    await page.enter("#key", "a-key-that-the-server-does-not-have");
    await page.shows("#auth-problem", /^Rejected: /);
    await page.enter("#key", KEY);
    await all(page.shows("#state", "live"), page.contains("#live-note", "Clients of node"), expect(page.locator("#auth")).toBeHidden());
    // The key is enough after a reload, too.
    await page.reload();
    await all(page.shows("#state", "live"), page.contains("#live-note", "Clients of node"), expect(page.locator("#clients")).toBeVisible());
  });
  await part.check("the live view shows what clients do, and markup stays text", async () => {
    await anna.evaluate(async ([token, topic, text]) => {
      window.client = connect(undefined, { token, minDelay: 20 });
      client.onstatus = ({ status }) => note(status);
      await client.subscribe(topic, () => {}).ready;
      await client.join("chat.room", { id: "anna", info: { color: "red" } });
      await client.set("chat.room", "anna", { x: 1 });
      await client.publish(topic, { text });
      await client.publish("secret", 1).catch(() => {});
    }, [make("--subject", "anna", "--subscribe", "chat.>", "--publish", "chat.>", "--keys", "chat.room/*"), "chat.room", MARKUP]);
    await shows(/anna connects/, /anna subscribes chat\.room/, /anna joins chat\.room anna/, /anna sets chat\.room anna = {"x":1}/,
      /anna publishes chat\.room {"text":"<img/, /anna rejected secret publish: .*\(403\)/);
    await expect(page.locator("main img")).toHaveCount(0);
    expect(await page.evaluate(() => window.ran)).toBe(undefined);
    await examine(page);
  });
  await part.check("a filter is evaluated by the server, and the list can be paused by the keyboard", async () => {
    await page.fill("#live-topic", "chat.*");
    await page.selectOption("#live-kind", "messages");
    await page.press("#live-topic", "Enter");
    await page.contains("#live", "Nothing has happened yet.");
    const publish = (topic, text) => server.api(KEY, "publish", { topic, data: text });
    await publish("news", "other");
    await publish("chat.room", "first");
    await shows(/backend publishes chat\.room "first"/);
    expect((await lines()).join()).not.toContain("other");
    await page.press("#live-pause", "Enter");
    await publish("chat.room", "second");
    await page.shows("#live-pause", "Continue (1 not shown)");
    expect((await lines()).join()).not.toContain("second");
    await page.press("#live-pause", "Enter");
    await page.shows("#live-pause", "Pause");
  });
  await part.check("above the rate the view is a sample, and says so", async () => {
    await server.api(KEY, "batch", { messages: Array.from({ length: 900 }, (_, at) => ({ topic: "chat.room", data: at })) });
    await page.contains("#live-note", /A sample\. Left out in the last second: \d+ × publish\./);
  });
  await part.check("a topic opens to messages, members, keys, options and a form", async () => {
    await page.locator("#rates button", { hasText: "chat.room" }).press("Enter");
    const within = (text) => page.contains("#details-body", text);
    await all(within("1 present, 1 of them members."), within('"color":"red"'), within('{"x":1}'), within("20 messages"),
      within("clients whose token grants it"), within("899"));
    await page.fill("#publish-data", '{"n": 7}');
    await page.click("#details .publish button");
    await page.contains("#publish-result", "Delivered to 1 subscription.");
    await page.contains("#details .log", '{"n":7}');
    await examine(page);
    await page.keyboard.press("Escape");
    await expect(page.locator("#details")).toBeHidden();
  });
  await part.check("a client opens to its subscriptions and rights, without its token, and is disconnected", async () => {
    await page.click("#find button");
    await page.locator("#connections tr", { hasText: "anna" }).locator("button.link").press("Enter");
    const within = (text) => page.contains("#details-body", text);
    await all(within("anna"), within("chat.room"), within("member anna"), within("chat.room/*"));
    expect(await page.locator("#details").innerText()).not.toMatch(/eyJ/);
    await examine(page);
    await page.click("#details button.danger");
    await within("Disconnected.");
    await all(anna.noted("waiting"), page.contains("#details .log", "closes"));
    await page.click("#details-close");
  });
  await part.check("a forgotten key takes all of it away", async () => {
    await page.click("#forget");
    await page.contains("#auth-problem", "a token is needed");
    await expect(page.locator("#live-section")).toBeHidden();
    expect(await page.evaluate(() => sessionStorage.getItem("sinews.api-key"))).toBe(null);
  });
  await part.check("an unknown address has a page, and every page an icon", async () => {
    await page.goto(server.url("nothing"));
    await page.contains("main", "Nothing is here.");
    await examine(page);
    const icon = await fetch(server.url("favicon.ico"));
    expect([icon.status, icon.headers.get("content-type")]).toEqual([200, "image/svg+xml"]);
  });
  await part.check("the start page has the version, commands to copy and the book", async () => {
    await page.goto(server.url());
    await all(page.contains("#version", /Sinews \d+\.\d+\.\d+/), page.contains("#book", "First steps"));
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    const copies = async (nth, command) => {
      const button = page.seen(".copy").nth(nth);
      // The button says so for a moment only.
      await retry(async () => {
        await button.press("Enter");
        await expect(button).toHaveText("Copied", { timeout: 500 });
      });
      expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(command);
    };
    await copies(0, "sinews token --secret-file FILE --subscribe lobby --publish lobby");
    await copies(1, `curl -H "Authorization: Bearer $TOKEN" -N ${server.url("topics/lobby")}`);
    await examine(page);
    const open = await part.serve();
    await page.goto(open.url());
    await copies(0, `curl -N ${open.url("topics/lobby")}`);
    await expect(page.seen(".token")).toHaveCount(0);
  });
}
