// The pages and the client of a server that requires tokens.
import { Person } from "./person.js";
import { contains, enter, eventually, expect, isBlank, noted, notes, shows, visit } from "./world.js";

const EVERYTHING = ["--subscribe", ">", "--publish", ">"];

export async function guests(part) {
  const { options, make } = part.tokens();
  const server = await part.serve(options);
  const page = await part.window();
  const renewing = await startRenewing({ part, server, make });
  await part.check("without a token the page says that one may be asked for", async () => {
    await page.goto(server.url("chat"));
    await contains(page, "#cause", "#token=");
  });
  await part.check("a token in the address lets in, leaves the address, and survives a reload", async () => {
    // Only the fragment after the # changes: the page is not reloaded.
    await visit(page, server.url(`chat#room=den&token=${make(...EVERYTHING)}`), "connected");
    expect(new URL(page.url()).hash).toBe("#den");
    await page.reload();
    await shows(page, "#state", "connected");
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
    await onlyReads(guest, "To write, open this page with a token");
  });
  await part.check("the client ends with the reason when its token is rejected", async () => {
    await page.goto(server.url("healthz"));
    await page.evaluate(async (forged) => {
      const { connect } = await import("/sinews.js");
      const open = (name, token) => {
        const client = connect("/ws", { minDelay: 10, maxDelay: 20, token });
        client.onstatus = ({ status, code, reason }) => {
          if (status === "closed") note(`${name} ${code} ${reason.includes("signature")}`);
        };
        return client;
      };
      open("constant", forged);
      open("same", () => forged);
      open("malformed", "no token");
      // A function that returns a function is called again.
      let asked = 0;
      const other = open("other", () => forged + asked++);
      other.onstatus = () => {
        if (asked <= 3) return;
        other.onstatus = null;
        other.close();
        note("asked again");
      };
    }, `${make(...EVERYTHING)}x`);
    await noted(page, "constant 4401 true", "same 4401 true", "malformed 4401 false", "asked again");
  });
  await part.check("the client ends with the reason when its origin is rejected", async () => {
    const elsewhere = await part.serve();
    await page.goto(server.url("healthz"));
    await page.evaluate(async (url) => {
      const { connect } = await import("/sinews.js");
      connect(url).onstatus = ({ status, code, reason }) => {
        if (status === "closed") note(`origin ${code} ${reason.includes(location.origin)}`);
      };
    }, elsewhere.url("ws"));
    await noted(page, "origin 4403 true");
  });
  const giveToken = async (token) => { await page.fill("#token", token); await page.click("#auth button"); };
  await part.check("the console says that its token is rejected, and takes another", async () => {
    const token = make(...EVERYTHING);
    await page.goto(server.url(`console#token=${token}x`));
    await contains(page, "#auth-problem", "signature");
    await contains(page, "#state", "signature");
    await giveToken(token);
    await shows(page, "#state", "connected");
    await isBlank(page, "#auth-problem");
    // Without a token it connects, and shows the operations that need a token.
    await page.goto(server.url("healthz"));
    await visit(page, server.url("console"), "connected");
    await enter(page, "#field-topic", "prices");
    await contains(page, "#auth-problem", "a token is needed to subscribe to prices");
  });
  await part.check("the dashboard says that a token is needed, and takes one", async () => {
    await page.goto(server.url("dashboard"));
    await contains(page, "#auth-problem", "a token is needed to subscribe to sinews.dashboard");
    await giveToken("no token");
    await contains(page, "#auth-problem", "the token is not a JWT");
    await giveToken(make("--subscribe", "other"));
    await contains(page, "#auth-problem", "this token may not subscribe to sinews.dashboard");
    await giveToken(make("--subscribe", "sinews.dashboard"));
    await shows(page, "#state", "live");
    await expect(page.locator("#auth")).toBeHidden();
  });
  await part.check("the client renews its token without a reconnect", async () => {
    await noted(renewing, "renewed");
    // Published after the first token has expired, with a right that only the second grants.
    await noted(renewing, "heard later");
    const states = (await notes(renewing)).filter((note) => note.startsWith("status "));
    expect(states).toEqual(["status connecting", "status open"]);
  });
}

/**
 * Opens a page with a client whose first token expires soon, during the other checks. The client renews it when a fifth of
 * that time is left, which is more than a machine stalls.
 */
async function startRenewing({ part, server, make }) {
  const page = await part.open(server.url("healthz"));
  await page.evaluate(async (tokens) => {
    const { connect } = await import("/sinews.js");
    const client = connect("/ws", { token: () => tokens.shift() });
    client.onstatus = ({ status }) => note(`status ${status}`);
    const send = WebSocket.prototype.send;
    WebSocket.prototype.send = function (text) {
      if (JSON.parse(text).op === "token") note("renewed");
      return send.call(this, text);
    };
    client.subscribe("room", ({ data }) => note(`heard ${data}`));
    setTimeout(() => client.publish("room", "later").catch((error) => note(`failed: ${error}`)), 21_000);
  }, [make("--subscribe", ">", "--expires", "20s"), make(...EVERYTHING)]);
  return page;
}

/** Checks that the page says why its reader cannot write, before the reader tries. */
async function onlyReads({ page }, reason) {
  await contains(page, "#hint", reason);
  for (const control of ["#message", "#send"]) await expect(page.locator(control)).toBeDisabled();
}

