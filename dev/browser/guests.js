// The pages and the client of a server that requires tokens.
import { examine } from "./axe.js";
import { all, eventually, expect } from "./page.js";
import { Person } from "./person.js";

const EVERYTHING = ["--subscribe", ">", "--publish", ">"];

export async function guests(part) {
  const { options, make } = part.tokens();
  const server = await part.serve(options);
  const page = await part.window();
  const renewing = await part.openBare(server);
  // The first token expires during the other checks. A fifth of its time is more than a machine stalls.
  await renewing.evaluate((tokens) => {
    const client = connect("/ws", { token: () => tokens.shift() });
    client.onstatus = ({ status }) => note(`status ${status}`);
    intercept('"op":"token"', (socket, message) => { note("renewed"); socket.send(message); });
    client.subscribe("room", ({ data }) => note(`heard ${data}`));
    setTimeout(() => client.publish("room", "later").catch((error) => note(`failed: ${error}`)), 21_000);
  }, [make("--subscribe", ">", "--expires", "20s"), make(...EVERYTHING)]);
  const problem = (text) => page.contains("#auth-problem", text);
  await part.check("without a token the page says that one may be asked for", async () => {
    await page.goto(server.url("chat"));
    await page.contains("#cause", "#token=");
  });
  await part.check("a token in the address lets in, leaves the address, and survives a reload", async () => {
    // Only the fragment after the # changes: the page is not reloaded.
    await page.visit(server.url(`chat#room=den&token=${make(...EVERYTHING)}`), "connected");
    expect(new URL(page.url()).hash).toBe("#den");
    await page.reload();
    await page.shows("#state", "connected");
  });
  await part.check("a read-only token receives messages, and the page says at once that it only reads", async () => {
    const enter = (token, name) => Person.enter(part, server.url(`chat#room=den&token=${token}`), name);
    const reader = await enter(make("--subscribe", "sinews.chat.den"), "Rita");
    const writer = await enter(make(...EVERYTHING), "Anna");
    await writer.tells(reader, "Can you hear me?");
    await eventually(() => writer.people()).toContain("Rita");
    await onlyReads(reader, "The token allows you to read");
    await expect(writer.page.locator("#message")).toBeEnabled();
  });
  await part.check("a guest without a token may read, and the page says how to write", async () => {
    const open = await part.serve([...options, "--auth-public-subscribe", ">"]);
    const guest = await Person.enter(part, open.url("chat#room=den"), "Gus");
    await onlyReads(guest, "To write, open this page with a token: /chat#token=");
    await examine(guest.page);
  });
  await part.check("the client ends with the reason when its token is rejected", async () => {
    await page.visitBare(server);
    await page.evaluate((forged) => {
      const open = (name, token) => {
        const onstatus = ({ status, code, reason }) => {
          if (status === "closed") note(`${name} ${code} ${reason.includes("signature")}`);
        };
        connect("/ws", { minDelay: 10, maxDelay: 20, token, onstatus });
      };
      open("constant", forged);
      open("same", () => forged);
      open("malformed", "no token");
      // A function that returns another token is called again.
      let asked = 0;
      open("other", () => { if (asked === 3) note("asked again"); return forged + asked++; });
    }, `${make(...EVERYTHING)}x`);
    await page.noted("constant 4401 true", "same 4401 true", "malformed 4401 false", "asked again");
  });
  await part.check("the client ends with the reason when its origin is rejected", async () => {
    const elsewhere = await part.serve();
    await page.visitBare(server);
    await page.evaluate((url) => {
      connect(url).onstatus = ({ status, code, reason }) => {
        if (status === "closed") note(`origin ${code} ${reason.includes(location.origin)}`);
      };
    }, elsewhere.url("ws"));
    await page.noted("origin 4403 true");
  });
  const giveToken = async (token) => { await page.fill("#token", token); await page.click("#auth button"); };
  await part.check("the console says that its token is rejected, and takes another", async () => {
    const token = make(...EVERYTHING);
    await page.goto(server.url(`console#token=${token}x`));
    await all(problem("signature"), page.contains("#state", "signature"));
    await examine(page);
    await giveToken(token);
    await all(page.shows("#state", "connected"), page.isBlank("#auth-problem"));
    // Without a token it connects, and shows the operations that need a token.
    await page.visitBare(server);
    await page.visit(server.url("console"), "connected");
    await problem("a token is needed to subscribe to lobby");
    await page.enter("#field-topic", "prices");
    await problem("a token is needed to subscribe to prices");
  });
  await part.check("the dashboard says that a token is needed, and takes one", async () => {
    await page.goto(server.url("dashboard"));
    await problem("a token is needed to subscribe to sinews.dashboard");
    await examine(page);
    // The one field takes a key or a token.
    const give = async (token) => { await page.fill("#key", token); await page.click("#auth button"); };
    await give("no token");
    await problem("the HTTP API is disabled");
    await give(make("--subscribe", "other"));
    await problem("this token may not subscribe to sinews.dashboard");
    await give(make("--subscribe", "sinews.dashboard"));
    await all(page.shows("#state", "live"), expect(page.locator("#live-section")).toBeHidden());
  });
  await part.check("the client renews its token without a reconnect", async () => {
    // Published after the first token has expired, with a right that only the second grants.
    await renewing.noted("renewed", "heard later");
    expect(await renewing.notes("status ")).toEqual(["status connecting", "status open"]);
  });
}

/** Checks that the page says why its reader cannot write, before the reader tries. */
const onlyReads = ({ page }, reason) => all(page.contains("#hint", reason),
  ...["#message", "#send"].map((control) => expect(page.locator(control)).toBeDisabled()));
