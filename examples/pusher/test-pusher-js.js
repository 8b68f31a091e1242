// pusher-js and Laravel Echo themselves, in Chromium: their connections, channels, users and reactions to codes. The application is
// a few paths of this file, at which the libraries get their signatures.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import test, { after } from "node:test";

import Server from "pusher";
import { chromium, noChromium } from "../testing/chromium.js";
import { folder, limit, serve } from "../testing/programs.js";

const APPS = `
[[pusher.app]]
id = "1"
key = "key"
secret = "secret"
client_events = true
subscription_counts = true

[[pusher.app]]
id = "2"
key = "quiet"
secret = "secret"

[[pusher.app]]
id = "3"
key = "disabled"
secret = "secret"
enabled = false

[[pusher.app]]
id = "4"
key = "full"
secret = "secret"
max_connections = 1

[[pusher.app]]
id = "5"
key = "tls"
secret = "secret"
tls_only = true

[[pusher.app]]
id = "6"
key = "authorized"
secret = "secret"
authorization_timeout = "1s"

[[pusher.app]]
id = "7"
key = "other-pages"
secret = "secret"
origins = ["https://shop.example"]

[[pusher.app]]
id = "8"
key = "silent"
secret = "secret"
activity_timeout = "1s"
pong_timeout = "1s"
`;

const { resolve } = createRequire(import.meta.url);
const SCRIPTS = {
  "/pusher.js": resolve("pusher-js/dist/web/pusher-with-encryption.js"),
  "/echo.js": join(dirname(resolve("laravel-echo")), "echo.iife.js"),
};

/** Functions of the page. A user is in the path of its signatures. */
function helpers() {
  const clients = [];
  Object.assign(window, {
    /** Options for a server, as in the book. */
    server: () => ({
      wsHost: "127.0.0.1", wsPort: window.port, wssPort: window.port, forceTLS: false, enabledTransports: ["ws", "wss"],
      disableStats: true, cluster: "",
    }),
    options: (user) => ({
      ...window.server(),
      channelAuthorization: { endpoint: `/auth/${user}` }, userAuthentication: { endpoint: `/user-auth/${user}` },
    }),
    connect(user, { key = "key", ...more } = {}) {
      const client = new Pusher(key, { ...window.options(user), ...more });
      client.states = [client.connection.state];
      client.connection.bind("state_change", ({ current }) => client.states.push(current));
      // A code comes in a message, and again with the close of the connection.
      client.errors = new Set();
      client.connection.bind("error", (error) => client.errors.add((error.data ?? error.error?.data)?.code));
      clients.push(client);
      return client;
    },
    event: (target, name) => new Promise((done) => {
      const handler = (data) => {
        target.unbind(name, handler);
        done(data);
      };
      target.bind(name, handler);
    }),
    async state(client, expected) {
      while (client.connection.state !== expected) await window.event(client.connection, "state_change");
    },
    async subscribed(client, name) {
      const channel = client.subscribe(name);
      if (!channel.subscribed) await window.event(channel, "pusher:subscription_succeeded");
      return channel;
    },
    /** Asks the application for an event. */
    trigger: (...parameters) => window.ask("trigger", ...parameters),
    async ask(method, ...parameters) {
      const response = await fetch(`/call/${method}`, { method: "POST", body: JSON.stringify(parameters) });
      if (!response.ok) throw new Error(await response.text());
      return response.json();
    },
    /** Rejects after a minute, with the states of all clients. */
    late: () => new Promise((_, reject) => {
      const states = () => JSON.stringify(clients.map(({ states, errors }) => [states, [...errors]]));
      setTimeout(() => reject(new Error(`no result after 60 s: ${states()}`)), 60_000);
    }),
    end() {
      for (const client of clients.splice(0)) client.disconnect();
    },
  });
}

/** Paths of the application: the page, signatures, and calls of the library `pusher`. */
async function application(server, full) {
  const pusher = new Server({
    appId: "1", key: "key", secret: "secret", host: "127.0.0.1", port: server.port, useTLS: false,
    encryptionMasterKeyBase64: Buffer.alloc(32, 7).toString("base64"),
  });
  const scripts = Object.keys(SCRIPTS).map((path) => `<script src="${path}"></script>`).join("");
  const page = `<!doctype html><title>pusher-js</title>${scripts}<script>port = ${server.port}; fullPort = ${full.port}; (${helpers})()</script>`;
  const answer = async (path, body) => {
    if (path === "/") return page;
    if (path in SCRIPTS) return readFileSync(SCRIPTS[path], "utf8");
    const [, kind, name] = path.split("/");
    if (kind === "call") {
      const parameters = JSON.parse(body);
      const response = await pusher[name](...parameters);
      return response.text();
    }
    const { socket_id: socket, channel_name: channel } = Object.fromEntries(new URLSearchParams(body));
    if (kind === "user-auth") {
      const watchlist = { watcher: ["anna", "ben"], many: Array.from({ length: 101 }, (_, i) => `user${i}`) }[name];
      return JSON.stringify(pusher.authenticateUser(socket, { id: name, user_info: { name }, watchlist }));
    }
    if (kind === "forged") return JSON.stringify({ auth: `key:${"0".repeat(64)}` });
    // `broadcasting` is the path of Laravel.
    const member = channel.startsWith("presence-") ? { user_id: name, user_info: { name } } : undefined;
    return JSON.stringify(pusher.authorizeChannel(socket, channel, member));
  };
  const listener = createServer(async (request, response) => {
    try {
      const chunks = await request.toArray();
      const text = await answer(request.url, Buffer.concat(chunks).toString());
      const type = request.url === "/" ? "text/html" : request.url.endsWith(".js") ? "text/javascript" : "application/json";
      response.writeHead(200, { "content-type": `${type}; charset=utf-8` }).end(text);
    } catch (error) {
      response.writeHead(500).end(String(error));
    }
  }).listen(0, "127.0.0.1");
  await once(listener, "listening");
  return listener;
}

const cleanups = [];
after(async () => {
  for (const cleanup of cleanups.reverse()) await cleanup();
});

let opened;
/** The page in which all checks run. */
function page() {
  opened ??= (async () => {
    const hooks = { after: (cleanup) => cleanups.push(cleanup) };
    const config = join(folder(hooks), "sinews.toml");
    writeFileSync(config, APPS);
    const server = await serve(hooks, ["--config", config]);
    const full = await serve(hooks, ["--config", config, "--limits-max-connections", "1"]);
    const listener = await application(server, full);
    hooks.after(() => {
      listener.closeAllConnections();
      return new Promise((done) => listener.close(done));
    });
    const open = await chromium(hooks);
    const window = await open(`http://127.0.0.1:${listener.address().port}/`);
    await window.until("typeof connect === 'function'");
    return window;
  })();
  return opened;
}

/** A test of a function that runs in the page, and of the value that it returns. */
function check(name, run, expected) {
  test(`pusher-js in Chromium: ${name}`, { ...limit, skip: noChromium }, async () => {
    const window = await page();
    try {
      assert.deepEqual(await window.evaluate(`Promise.race([(${run})(), late()])`), expected);
    } finally {
      await window.evaluate("end()");
    }
  });
}

check("states of a connection, and a new socket id for each", async () => {
  const client = connect("anna");
  await state(client, "connected");
  const first = client.connection.socket_id;
  client.disconnect();
  await state(client, "disconnected");
  client.connect();
  await state(client, "connected");
  const second = client.connection.socket_id;
  return [client.states, /^\d+\.\d+$/.test(first), /^\d+\.\d+$/.test(second), first !== second];
}, [["connecting", "connected", "disconnected", "connecting", "connected"], true, true, true]);

check("a ping is answered, and the connection stays", async () => {
  const client = connect("anna", { activityTimeout: 200, pongTimeout: 20_000 });
  await state(client, "connected");
  const pongs = () => new Promise((done) => client.connection.bind("message", ({ event }) => event === "pusher:pong" && done()));
  await pongs();
  return client.states;
}, ["connecting", "connected"]);

check("public, private, presence and encrypted channels", async () => {
  const client = connect("anna");
  const received = [];
  for (const name of ["public", "private-a", "presence-a", "private-encrypted-a"]) {
    const channel = await subscribed(client, name);
    const data = event(channel, "news");
    await trigger(name, "news", { text: `ü 😀 ${name}` });
    received.push((await data).text);
  }
  return received;
}, ["ü 😀 public", "ü 😀 private-a", "ü 😀 presence-a", "ü 😀 private-encrypted-a"]);

check("a forged signature is rejected, and the connection stays", async () => {
  const client = connect("anna", { channelAuthorization: { endpoint: "/forged" } });
  const { type, status } = await event(client.subscribe("private-a"), "pusher:subscription_error");
  const publicChannel = await subscribed(client, "public");
  return [type, status, publicChannel.subscribed, client.connection.state];
}, ["AuthError", 401, true, "connected"]);

check("presence: own data, added, removed", async () => {
  const [anna, ben] = [connect("anna"), connect("ben")];
  const first = await subscribed(anna, "presence-b");
  const added = event(first, "pusher:member_added");
  const second = await subscribed(ben, "presence-b");
  const values = [first.members.me.id, (await added).info.name, first.members.count, second.members.get("anna").info.name];
  const removed = event(first, "pusher:member_removed");
  ben.disconnect();
  return [...values, (await removed).id, first.members.count];
}, ["anna", "ben", 2, "anna", "ben", 1]);

check("client events have their sender, and do not return to it", async () => {
  const channels = await Promise.all(["anna", "ben"].map((user) => subscribed(connect(user), "presence-c")));
  const own = [];
  channels[0].bind("client-typing", () => own.push(1));
  const received = new Promise((done) => channels[1].bind("client-typing", (data, metadata) => done([data.on, metadata.user_id])));
  channels[0].trigger("client-typing", { on: true });
  const result = await received;
  const done = channels.map((channel) => event(channel, "done"));
  await trigger("presence-c", "done", {});
  await Promise.all(done);
  return [...result, own.length];
}, [true, "anna", 0]);

check("after unsubscribe no event arrives, and the channel is empty", async () => {
  const client = connect("anna");
  const other = await subscribed(client, "other");
  const channel = await subscribed(client, "left");
  let events = 0;
  channel.bind("news", () => { events += 1; });
  const first = event(channel, "news");
  await trigger("left", "news", {});
  await first;
  client.unsubscribe("left");
  // An answer on the same connection: the server has read the message before.
  await subscribed(client, "later");
  const done = event(other, "done");
  await trigger(["left", "other"], "news", {});
  await trigger("other", "done", {});
  await done;
  const { occupied } = await ask("get", { path: "/channels/left" });
  return [events, client.channel("left") === undefined, occupied];
}, [1, true, false]);

check("a cache channel: a miss, then the last event", async () => {
  const first = connect("anna").subscribe("cache-a");
  await event(first, "pusher:cache_miss");
  const received = event(first, "news");
  await trigger("cache-a", "news", { number: 1 });
  await received;
  return (await event(connect("ben").subscribe("cache-a"), "news")).number;
}, 1);

check("numbers of subscribers", async () => {
  const first = connect("anna").subscribe("counted");
  const one = await event(first, "pusher:subscription_count");
  const two = event(first, "pusher:subscription_count");
  connect("ben").subscribe("counted");
  return [one.subscription_count, (await two).subscription_count, first.subscriptionCount];
}, [1, 2, 2]);

check("sign-in, watchlist, event of a user, termination with 4009", async () => {
  const watcher = connect("watcher");
  watcher.signin();
  await watcher.user.signinDonePromise;
  const online = event(watcher.user.watchlist, "online");
  const anna = connect("anna");
  anna.signin();
  await anna.user.signinDonePromise;
  const values = [anna.user.user_data.user_info.name, (await online).user_ids];
  await subscribed(anna, "barrier"); // the channel of the user is subscribed before
  const received = event(anna.user, "news");
  await ask("sendToUser", "anna", "news", { text: "for you" });
  values.push((await received).text);
  const offline = event(watcher.user.watchlist, "offline");
  await ask("terminateUserConnections", "anna");
  values.push((await offline).user_ids);
  await state(anna, "disconnected");
  return [...values, [...anna.errors], anna.states];
}, ["anna", ["anna"], "for you", ["anna"], [4009], ["connecting", "connected", "disconnected"]]);

check("4302: a watchlist of 101 users, and the sign-in succeeds", async () => {
  const client = connect("many");
  const error = event(client.connection, "error");
  client.signin();
  await client.user.signinDonePromise;
  const { data, error: inner } = await error;
  return [(data ?? inner.data).code, client.user.user_data.id, client.connection.state];
}, [4302, "many", "connected"]);

for (const [code, key] of [[4001, "unknown"], [4003, "disabled"], [4009, "other-pages"]]) {
  check(`${code}: the app "${key}" is refused, and not tried again`, `async () => {
    const client = connect("anna", { key: "${key}" });
    await state(client, "disconnected");
    return [[...client.errors], client.states];
  }`, [[code], ["connecting", "disconnected"]]);
}

check("4004: a full app is refused, and not tried again", async () => {
  await state(connect("anna", { key: "full" }), "connected");
  const second = connect("ben", { key: "full" });
  await state(second, "disconnected");
  return [[...second.errors], second.states];
}, [[4004], ["connecting", "disconnected"]]);

check("4005: a wrong path is refused, and not tried again", async () => {
  const client = connect("anna", { wsPath: "/wrong" });
  await state(client, "disconnected");
  return [[...client.errors], client.states];
}, [[4005], ["connecting", "disconnected"]]);

check("4100: a server at its maximum of connections is tried again until one ends", async () => {
  const full = { wsPort: window.fullPort };
  const first = connect("anna", full);
  await state(first, "connected");
  const second = connect("ben", full);
  await event(second.connection, "error");
  const before = [[...second.errors], second.connection.state];
  first.disconnect();
  await state(second, "connected");
  return [...before, second.states];
}, [[4100], "connecting", ["connecting", "connected"]]);

check("4000: an app for TLS makes the client use TLS", async () => {
  const client = connect("anna", { key: "tls" });
  const before = client.connection.usingTLS;
  await event(client.connection, "error");
  return [before, client.connection.usingTLS, [...client.errors]];
}, [false, true, [4000]]);

check("4009: a connection that is not authorized in time", async () => {
  const client = connect("anna", { key: "authorized" });
  await state(client, "connected");
  await state(client, "disconnected");
  return [[...client.errors], client.states];
}, [[4009], ["connecting", "connected", "disconnected"]]);

check("4201: a client whose pings and pongs are lost connects again at once", async () => {
  const { send } = WebSocket.prototype;
  WebSocket.prototype.send = function (message) {
    if (!/pusher:p[io]ng/.test(message)) send.call(this, message);
  };
  try {
    const client = connect("anna", { key: "silent" });
    await state(client, "connected");
    const first = client.connection.socket_id;
    await state(client, "connecting");
    await state(client, "connected");
    return [[...client.errors], client.states, client.connection.socket_id !== first];
  } finally {
    WebSocket.prototype.send = send;
  }
}, [[4201], ["connecting", "connected", "connecting", "connected"], true]);

check("4301: too many client events, and the connection stays", async () => {
  const client = connect("anna");
  const channel = await subscribed(client, "private-d");
  const error = event(client.connection, "error");
  let isRejected = false;
  error.then(() => { isRejected = true; });
  // A server that stalls permits more in the meantime.
  while (!isRejected) {
    for (let i = 0; i < 40; i += 1) channel.trigger("client-move", { i });
    await new Promise((done) => setTimeout(done));
  }
  const { data, error: inner } = await error;
  const received = event(channel, "news");
  await trigger("private-d", "news", {});
  await received;
  return [(data ?? inner.data).code, client.connection.state];
}, [4301, "connected"]);

for (const broadcaster of ["pusher", "reverb"]) {
  check(`Laravel Echo with the broadcaster "${broadcaster}"`, `async () => {
    const make = (user) => new Echo.default({
      broadcaster: "${broadcaster}", key: "key", ...server(), // as in the page of the book
      authEndpoint: "/broadcasting/" + user,
    });
    const [anna, ben] = [make("anna"), make("ben")];
    try {
      const room = anna.join("${broadcaster}");
      const values = [(await new Promise((done) => room.here(done))).map(({ name }) => name)];
      const joining = new Promise((done) => room.joining(done));
      const whisper = new Promise((done) => room.listenForWhisper("typing", done));
      const leaving = new Promise((done) => room.leaving(done));
      const other = ben.join("${broadcaster}");
      await new Promise((done) => other.here(done));
      values.push((await joining).name);
      other.whisper("typing", { text: "a" });
      values.push((await whisper).text);
      ben.leave("${broadcaster}");
      values.push((await leaving).name);
      // Events of Laravel have the name of their class; the sender's own page is excluded by its socket id.
      const listen = (echo, channel) => new Promise((done) => {
        const target = echo[channel]("${broadcaster}-orders");
        target.subscribed(() => done({
          next: new Promise((event) => target.listen("OrderShipped", event)),
          all: [], target,
        }));
      });
      for (const [kind, prefix] of [["channel", ""], ["private", "private-"], ["encryptedPrivate", "private-encrypted-"]]) {
        const [one, two] = [await listen(anna, kind), await listen(ben, kind)];
        let own = 0;
        one.target.listen("OrderShipped", () => { own += 1; });
        const done = new Promise((event) => one.target.listen(".done", event));
        const name = prefix + "${broadcaster}-orders";
        await trigger(name, "App\\\\Events\\\\OrderShipped", { id: 5 }, { socket_id: anna.socketId() });
        values.push((await two.next).id);
        await trigger(name, "done", {});
        await done;
        values.push(own);
      }
      return values;
    } finally {
      anna.disconnect();
      ben.disconnect();
    }
  }`, [["anna"], "ben", "a", "ben", 5, 0, 5, 0, 5, 0]);
}
