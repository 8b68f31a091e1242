// The application: logins, signatures for channels, and events by the HTTP API. `node server.js`.
import session from "cookie-session";
import { createRequire } from "node:module";
import express from "express";
import Pusher from "pusher";
import { fileURLToPath } from "node:url";

// The app in sinews.toml. `sinews app new` prints these variables.
const {
  PUSHER_APP_ID = "1", PUSHER_APP_KEY = "shop-key", PUSHER_APP_SECRET = "shop-secret-of-the-tutorial",
  PUSHER_HOST = "127.0.0.1", PUSHER_PORT = "8080", PUSHER_SCHEME = "http", PORT = "3000",
} = process.env;
const useTLS = PUSHER_SCHEME === "https";

const pusher = new Pusher({
  appId: PUSHER_APP_ID, key: PUSHER_APP_KEY, secret: PUSHER_APP_SECRET,
  host: PUSHER_HOST, port: PUSHER_PORT, useTLS, timeout: 5_000,
});

const example = express.Router();
example.use(express.json());
example.use(express.urlencoded());
example.use(session({ name: "session", keys: [PUSHER_APP_SECRET], sameSite: "lax" }));

// In the place of your login. The name becomes a part of a channel's name.
example.post("/login", (request, response) => {
  const { user } = request.body;
  if (!/^[a-z0-9_-]{1,32}$/.test(user)) return response.status(422).json({ error: "a name has letters a to z, digits, - and _" });
  request.session.user = user;
  response.json({ user });
});

example.post("/logout", (request, response) => {
  request.session = null;
  response.json({});
});

// All other requests need a login.
example.get("/session", needsUser, (request, response) => {
  const { user } = request.session;
  response.json({ user, key: PUSHER_APP_KEY, host: PUSHER_HOST, port: Number(PUSHER_PORT), useTLS });
});

// pusher-js asks before it subscribes to a private or presence channel. The answer is a signature, with the member.
example.post("/auth", needsUser, (request, response) => {
  const { user } = request.session;
  const { socket_id: socket, channel_name: channel } = request.body;
  if (!["presence-team", `private-user-${user}`].includes(channel)) {
    return response.status(403).json({ error: `${user} may not subscribe to ${channel}` });
  }
  const member = channel.startsWith("presence-") ? { user_id: user, user_info: { name: user } } : undefined;
  response.json(pusher.authorizeChannel(socket, channel, member));
});

// In the place of an event of your application: only the pages of the user get it.
example.post("/orders/:number/ship", needsUser, async (request, response) => {
  const { number } = request.params;
  await pusher.trigger(`private-user-${request.session.user}`, "shipped", { number, text: `Order ${number} was shipped.` });
  response.json({ number, state: "shipped" });
});

// All pages get it: a public channel needs no signature, and only the application publishes there.
example.post("/news", needsUser, async (request, response) => {
  const text = typeof request.body.text === "string" ? request.body.text.trim() : "";
  if (!text || text.length > 200) return response.status(422).json({ error: "news have 1 to 200 characters" });
  await pusher.trigger("news", "published", { from: request.session.user, text });
  response.json({ text });
});

const { resolve } = createRequire(import.meta.url);
const libraries = {
  "/pusher.js": resolve("pusher-js/dist/web/pusher-with-encryption.min.js"),
  "/echo.js": resolve("laravel-echo").replace(/[^/]*$/, "echo.iife.js"),
};
for (const [path, file] of Object.entries(libraries)) example.get(path, (request, response) => response.sendFile(file));
example.use(express.static(fileURLToPath(new URL("public", import.meta.url))));

// The server is not reachable, or a request was invalid.
example.use((error, request, response, next) => {
  if (response.headersSent) return next(error);
  const isRealtime = error instanceof Pusher.RequestError;
  response.status(isRealtime ? 502 : error.status ?? 400).json({ error: isRealtime ? "events are not sent at present" : error.message });
});

const app = express();
app.use("/pusher-example", example);
app.get("/", (request, response) => response.redirect("/pusher-example/"));
const listener = app.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${listener.address().port}/pusher-example/`);
});

function needsUser(request, response, next) {
  if (request.session.user) next();
  else response.status(401).json({ error: "log in first" });
}
