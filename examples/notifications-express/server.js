// An Express application that notifies its users: `node server.js`.
import session from "cookie-session";
import express from "express";
import jwt from "jsonwebtoken";
import { fileURLToPath } from "node:url";

const { SINEWS_API_KEY, SINEWS_AUTH_SECRET, REALTIME_URL = "http://127.0.0.1:8080", PORT = "3000" } = process.env;
if (!SINEWS_API_KEY || !SINEWS_AUTH_SECRET) throw new Error("set SINEWS_API_KEY and SINEWS_AUTH_SECRET");

/** Shows a notification on all pages of a user. `key` makes a retry safe: the server publishes a key once. */
export async function notify(user, notification, key) {
  const response = await fetch(`${REALTIME_URL}/api/v1/publish`, {
    method: "POST",
    headers: { authorization: `Bearer ${SINEWS_API_KEY}` },
    body: JSON.stringify({ topic: `notifications.${user}`, data: notification, idempotency_key: key }),
    signal: AbortSignal.timeout(5_000),
  });
  if (!response.ok) throw new Error(`notification: status ${response.status}: ${await response.text()}`);
  return response.json();
}

const app = express();
app.use(express.json());
app.use(session({ name: "session", keys: [SINEWS_AUTH_SECRET], sameSite: "lax" }));

// In the place of your login. The name becomes a part of a topic, so it has no dots and no wildcards.
app.post("/login", (request, response) => {
  const { user } = request.body;
  if (!/^[a-z0-9_-]{1,32}$/.test(user)) return response.status(422).json({ error: "invalid name" });
  request.session.user = user;
  response.json({ user });
});

// The page calls this before it connects, and again before the token expires.
app.get("/realtime", (request, response) => {
  const { user } = request.session;
  if (!user) return response.status(401).json({ error: "log in first" });
  const token = jwt.sign({ subscribe: `notifications.${user}` }, SINEWS_AUTH_SECRET, { subject: user, expiresIn: "10m" });
  response.json({ url: `${REALTIME_URL.replace("http", "ws")}/ws`, user, token });
});

// In the place of an event of your application.
app.post("/orders/:number/ship", async (request, response) => {
  const { number } = request.params;
  await notify(request.body.user, { title: "On its way", text: `Order ${number} was shipped.` }, `ship-${number}`);
  response.json({ number, state: "shipped" });
});

app.get("/client.js", (request, response) => response.sendFile(fileURLToPath(import.meta.resolve("@sinews/client"))));
app.use(express.static(fileURLToPath(new URL("public", import.meta.url))));

const listener = app.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${listener.address().port}/`);
});
