// The application of the chat: logins, tokens, and a decision about each message. `node server.js`.
import session from "cookie-session";
import express from "express";
import jwt from "jsonwebtoken";
import { fileURLToPath } from "node:url";

const { SINEWS_AUTH_SECRET, REALTIME_URL = "http://127.0.0.1:8080", PORT = "3000" } = process.env;
if (!SINEWS_AUTH_SECRET) throw new Error("set SINEWS_AUTH_SECRET");

const app = express();
app.use(express.json());
app.use(session({ name: "session", keys: [SINEWS_AUTH_SECRET], sameSite: "lax" }));

// In the place of your login. The name becomes a key, so it has no dots and no wildcards.
app.post("/login", (request, response) => {
  const { user } = request.body;
  if (!/^[a-z0-9_-]{1,32}$/.test(user)) return response.status(422).json({ error: "invalid name" });
  request.session.user = user;
  response.json({ user });
});

// A user may read and write in all rooms, and set one key of `typing.*`: the own name.
app.get("/realtime", (request, response) => {
  const { user } = request.session;
  if (!user) return response.status(401).json({ error: "log in first" });
  const rights = { subscribe: ["chat.*", "typing.*"], publish: "chat.*", keys: "typing.*/{sub}" };
  const token = jwt.sign(rights, SINEWS_AUTH_SECRET, { subject: user, expiresIn: "10m" });
  response.json({ url: `${REALTIME_URL.replace("http", "ws")}/ws`, user, token });
});

// The server asks before it publishes a message of a client, and publishes the answer. `user` is from the token: a client
// cannot write under the name of another user.
app.post("/hooks/publish", (request, response) => {
  const { user, data } = request.body;
  const text = typeof data?.text === "string" ? data.text.trim() : "";
  if (!text) return response.json({ reject: { code: 422, reason: "a message has a text" } });
  if (/\bspam\b/i.test(text)) return response.json({ reject: { code: 422, reason: "no advertisements" } });
  response.json({ data: { from: user, text, at: new Date().toISOString() } });
});

app.get("/client.js", (request, response) => response.sendFile(fileURLToPath(import.meta.resolve("@sinews/client"))));
app.use(express.static(fileURLToPath(new URL("public", import.meta.url))));

const listener = app.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${listener.address().port}/`);
});
