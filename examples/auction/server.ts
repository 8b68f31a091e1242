// The application of the auction: logins, tokens, and the rule of a bid. It holds no connection and no state.
import session from "cookie-session";
import express from "express";
import jwt from "jsonwebtoken";
import { fileURLToPath } from "node:url";
import { type Bid, FIRST_BID, LOT, type Session } from "./bid.js";

const { SINEWS_AUTH_SECRET: secret, SINEWS_API_KEY: key, REALTIME_URL: realtime = "http://127.0.0.1:8080", PORT: port = "3000" } = process.env;
if (!secret || !key) throw new Error("set SINEWS_AUTH_SECRET and SINEWS_API_KEY");
const PAGE_URL = (process.env.PAGE_REALTIME_URL ?? realtime).replace("http", "ws") + "/ws";
const TOKEN_SECONDS = Number(process.env.TOKEN_SECONDS ?? 600);

const app = express();
app.use(express.json());
app.use(session({ name: "session", keys: [secret], sameSite: "lax" }));

// In the place of your login.
app.post("/login", (request, response) => {
  const { user }: { user?: unknown } = request.body;
  if (typeof user !== "string" || !/^[a-z]{1,20}$/.test(user)) return void response.status(422).json({ error: "invalid name" });
  request.session = { user };
  response.json({ user });
});

app.post("/logout", (request, response) => {
  request.session = null;
  response.end();
});

app.get("/session", (request, response) => {
  const user: string | undefined = request.session?.user;
  if (!user) return void response.status(401).end();
  response.json({ user, url: PAGE_URL } satisfies Session);
});

// A user may read the lots, and be a member of them. Only this application writes.
app.get("/token", (request, response) => {
  const user: string | undefined = request.session?.user;
  if (!user) return void response.status(401).end();
  response.send(jwt.sign({ subscribe: "auction.*" }, secret, { subject: user, expiresIn: TOKEN_SECONDS }));
});

/** A request of the server's HTTP API. */
function api(method: string, path: string, data?: unknown, headers: Record<string, string> = {}) {
  const body = data === undefined ? null : JSON.stringify(data);
  return fetch(`${realtime}/api/v1/${path}`, { method, body, headers: { ...headers, authorization: `Bearer ${key}` } });
}

/** Accepts a bid that is higher than the last one, or returns the reason against it. */
async function bid(lot: string, next: Bid): Promise<string | null> {
  const path = `topics/${lot}/keys/bid`;
  for (;;) {
    const known = await api("GET", path);
    const { amount, by } = known.ok ? ((await known.json()) as { data: Bid }).data : FIRST_BID;
    if (next.amount <= amount) return `the price is ${amount} already`;
    if (next.by === by) return "your bid is the highest already";
    // Only if no other bid has come meanwhile.
    const condition: Record<string, string> = known.ok ? { "if-match": known.headers.get("etag") ?? "" } : { "if-none-match": "*" };
    const written = await api("PUT", path, { data: next }, condition);
    if (written.status === 412) continue;
    if (!written.ok) throw new Error(`status ${written.status}: ${await written.text()}`);
    await api("POST", "publish", { topic: lot, data: next, idempotency_key: `${next.amount}` });
    return null;
  }
}

// The server asks for each call of a page. `user` is from the token.
app.post("/hooks/bid", async (request, response) => {
  const { user, topic, data }: { user?: string; topic?: string; data?: { amount?: unknown } } = request.body;
  const amount = data?.amount;
  const isValid = user && topic === LOT && typeof amount === "number" && Number.isSafeInteger(amount);
  const reason = isValid ? await bid(topic, { amount, by: user }) : "invalid bid";
  response.json(reason === null ? { data: { amount } } : { reject: { code: 422, reason } });
});

// The page alone: this program is in the same folder.
for (const [path, file] of [["/", "../index.html"], ["/page.js", "page.js"]] as const) {
  app.get(path, (_, response) => response.sendFile(fileURLToPath(new URL(file, import.meta.url))));
}
app.listen(Number(port), "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${port}/`));
