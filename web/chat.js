// The chat page of `sinews serve`, shown at GET /chat.
//
// A room is a topic, and the people are its members: the topic sinews.chat.NAME, or, for a name with a dot, the topic of
// this name. The server delivers each message to all subscribers, the sender
// included. It retains messages if the topic has a history. Typing is in an ephemeral topic beside the room's. Delivery
// marks and typing are a small JSON protocol between the pages; see "Messages".

import { connect } from "./sinews.js";

// Limits of all collections. Lengths are characters, times are milliseconds.
const LIMIT = {
  text: 2000, // a message; 2,000 characters are at most 6 KB of UTF-8, well inside any server's message limit
  name: 32, room: 48, rooms: 8, people: 200,
  payload: 32_768, // longer text is cut before it is decoded
  waiting: 50, // own messages not yet echoed, per room
  shown: 500, // entries kept in a log
  seen: 500, // message ids remembered to drop duplicates
  history: 100, // retained messages shown when a room is entered
};
const HEARTBEAT = { heartbeatInterval: 5_000, responseTimeout: 5_000 }; // a dead connection is replaced after 10 s
const HOLD = 8_000; // after a reconnect, queued messages wait this long for people who are still reconnecting
const RECENT = 5_000; // a server that stops may disconnect other people this long before this page
const BACKOFF = { minDelay: 500, maxDelay: 15_000 };
const TYPING = { every: 3_000, lasts: 5_000, topic: (room) => `${topicOf(room)}.typing` };
const ROOMS = "sinews.chat."; // topics of rooms without a dot in their name
const GROUP = 5 * 60_000; // messages of one sender closer than this share one heading

const $ = (id) => document.getElementById(id);
const now = () => Date.now();

/** An element with classes, text (never HTML: text of strangers must stay text) and children. */
function make(tag, className = "", text = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

// Storage throws where cookies are blocked; the page then stores nothing.
const storageOf = (area) => ({
  read(key) { try { return JSON.parse(area().getItem("sinews." + key)); } catch { return null; } },
  write(key, value) { try { area().setItem("sinews." + key, JSON.stringify(value)); } catch { /* forgotten */ } },
});
const storage = storageOf(() => localStorage);
/** Storage of this tab, which outlives reloads. */
const tab = storageOf(() => sessionStorage);

function randomId() {
  // Not crypto.randomUUID: it exists on secure origins only, and a LAN address is not secure.
  return Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const pick = (list) => list[Math.floor(Math.random() * list.length)];

/** One line without control, invisible or direction-changing characters. */
function cleanName(raw) {
  const line = String(raw).replace(/\s+/gu, " ").replace(/\p{C}/gu, "").trim();
  return [...line].slice(0, LIMIT.name).join("").trim();
}

/** Rooms are topics, and a topic is a path segment: keep to characters that need no escaping anywhere. */
function cleanRoom(raw) {
  const plain = String(raw).normalize("NFKD").toLowerCase().replace(/[\s/]+/g, "-").replace(/[^a-z0-9._-]/g, "");
  // No token of a topic's name is empty.
  const name = plain.replace(/\.{2,}/g, ".").replace(/^[.-]+|[.-]+$/g, "");
  const room = name.startsWith(ROOMS) && !name.slice(ROOMS.length).includes(".") ? name.slice(ROOMS.length) : name;
  return room.slice(0, LIMIT.room).replace(/[.-]+$/, "");
}

/** The topic of a room. */
const topicOf = (room) => (room.includes(".") ? room : ROOMS + room);

// ---- Me -------------------------------------------------------------------------------------------------------------

const FIRST = ["Quiet", "Early", "Amber", "Brisk", "Gentle", "Lucid", "Nimble", "Plain"];
const SECOND = ["Heron", "Otter", "Maple", "Finch", "Lynx", "Willow", "Marten", "Plover"];
const HUES = [15, 45, 75, 110, 150, 185, 215, 245, 275, 300, 325, 350]; // degrees, distinct enough to tell people apart

const isId = (value) => typeof value === "string" && /^[0-9a-z]{8,40}$/.test(value);
const stored = tab.read("me") ?? {};

const me = {
  id: isId(stored.id) ? stored.id : randomId(), // of the tab: two tabs are two members, unless their token has a name
  name: cleanName(stored.name ?? storage.read("name") ?? "") || `${pick(FIRST)} ${pick(SECOND)}`,
  hue: [stored.hue, storage.read("hue")].find(Number.isInteger) ?? pick(HUES),
};
rememberMe();
storage.write("hue", me.hue);
storage.write("name", me.name);

function rememberMe() {
  tab.write("me", me);
}

// ---- Token ---------------------------------------------------------------------------------------------------------------
// If the server requires a token, the address has it in the fragment, `/chat#token=…` or `/chat#room=lobby&token=…`,
// which no server and no log sees. The page removes it from the address at once and stores it for this tab.

let token = "";
try { token = sessionStorage.getItem("sinews.token") ?? ""; } catch { /* storage throws where cookies are blocked */ }

/** Reads the fragment: a room, perhaps empty, and whether it has a new token, which is stored. */
function readHash() {
  const raw = location.hash.slice(1);
  const said = new URLSearchParams(raw);
  let room = said.get("room") ?? "";
  if (!said.has("room") && !said.has("token")) {
    try { room = decodeURIComponent(raw); } catch { room = raw; /* a stray percent sign: use the text unchanged */ }
  }
  const brought = said.get("token") ?? "";
  // A token is sent as a subprotocol, which limits its characters (RFC 6455 section 4.1).
  const isNew = /^[\w.~+-]+$/.test(brought) && brought !== token;
  if (isNew) {
    token = brought;
    try { sessionStorage.setItem("sinews.token", token); } catch { /* a reload will ask again */ }
  }
  return { room, isNew };
}

/** The id of this page as a member: the `sub` of the token, if it has one, since the server accepts no other. */
function memberId() {
  try {
    const claims = atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(claims, (char) => char.charCodeAt(0)))).sub ?? me.id;
  } catch { return me.id; /* no token, or the server will reject it */ }
}

// ---- Messages --------------------------------------------------------------------------------------------------------
// Messages of the pages are JSON objects {sinews: 1, t, id, name, hue, ...}:
//   msg     {m, text, at}: a message; its id `m` identifies the echo for the sender and duplicates for other pages, and
//           `at` is its time, which pages show of retained messages
//   typing  a member is typing, in a topic of its own
// Other payloads come from other publishers (curl, a script) and are shown as announcements.
// A page may claim any id in a message, so no message grants a right.

const KINDS = new Set(["msg", "typing"]);

/** Decodes a payload as {t, ...} with every field checked; null if it is of a page and malformed. */
function decode(data) {
  if (data instanceof Uint8Array) {
    // A publisher may send text as bytes; of other bytes, only the size is shown.
    try { data = new TextDecoder("utf-8", { fatal: true }).decode(data); } catch {
      return { t: "plain", text: `${data.byteLength} bytes of binary data` };
    }
  }
  let value = data;
  if (typeof data === "string") {
    if (data.length > LIMIT.payload) return { t: "plain", text: data.slice(0, LIMIT.text) + " …" };
    try { value = JSON.parse(data); } catch { value = null; }
  }
  if (value === null || typeof value !== "object" || value.sinews !== 1) {
    const text = typeof data === "string" ? data : JSON.stringify(data);
    return { t: "plain", text: text.length > LIMIT.text ? text.slice(0, LIMIT.text) + " …" : text };
  }
  if (!KINDS.has(value.t) || !isId(value.id)) return null;
  const message = { t: value.t, id: value.id, ...readPerson(value) };
  if (!message.name) return null;
  if (value.t === "msg") {
    if (!isId(value.m) || typeof value.text !== "string" || !value.text.trim()) return null;
    message.m = value.m;
    message.text = value.text.slice(0, LIMIT.text);
    message.at = Number.isFinite(value.at) && value.at > 0 && value.at <= now() ? value.at : null;
  }
  return message;
}

/** The name and the color of a message or of a member's info, checked: any client can join. */
function readPerson(value) {
  const name = typeof value?.name === "string" ? cleanName(value.name) : "";
  return { name, hue: Number.isFinite(value?.hue) ? Math.trunc(value.hue) % 360 : 200 };
}

// ---- Connection: one client for all rooms ------------------------------------------------------------------------------

const CLOSE_WORDS = {
  0: "The connection was lost.",
  1000: "The server closed the connection.", 1001: "The server is restarting or shutting down.",
  1002: "The server rejected a frame of the browser.", 1006: "The connection was lost.",
  1008: "The server rejected this connection.", 1009: "A message exceeded the server's limit.",
  1011: "The server had an internal error.", 1012: "The server is restarting.", 1013: "The server is busy.",
};
const READ_ONLY = "The token allows you to read this room, not to write.";
const READ_ONLY_GUEST = "You can read this room. To write, open this page with a token: /chat#token=…";
const NEW_TOKEN = "Open this page with a token that grants this right: /chat#token=…";
const UNREACHABLE = "The server cannot be reached.";
const REFUSED = "The server answers, but rejects this page. If it requires tokens, open /chat#token=…";
/** Error codes of a missing right. */
/** While the store of the server is away. */
const STORE = {
  away: "The server cannot store messages at the moment. Earlier messages may be missing; new ones are sent when it can.",
  delivers: "The server cannot store messages at the moment. It delivers them to the people who are here.",
  waiting: "waiting for the store of the server",
  again: 2_000, // milliseconds until a message is sent again
};

const isMissingRight = (error) => error.code === 401 || error.code === 403;

const connection = {
  client: null,
  state: "connecting", // connecting | open | waiting | rejected
  cause: "",
  retryAt: 0,
  store: "", // what the people should know while the store of the server is away

  /** Connects with the current token. */
  open() {
    const former = this.client;
    const client = this.client = connect(beside("ws"), { ...BACKOFF, ...HEARTBEAT, token });
    client.onstatus = (change) => { if (client === this.client) this.changed(change); };
    former?.close();
  },

  retryNow() { this.client.retry(); },

  changed({ status, delay, code, reason }) {
    const wasOpen = this.state === "open";
    if (status === "waiting") {
      this.retryAt = now() + delay;
      this.cause = !navigator.onLine ? "This device is offline."
        : !wasOpen && (code === 0 || code === 1006) ? UNREACHABLE
        : CLOSE_WORDS[code] ?? `The server closed the connection (code ${code}).`;
      if (this.cause === UNREACHABLE) this.askWhy();
    } else if (status === "closed") {
      this.cause = `The server rejects this page: ${reason || `code ${code}`}.${code === 4401 ? ` ${NEW_TOKEN}` : ""}`;
    } else if (status === "open") {
      this.cause = this.store = "";
    }
    this.state = status === "closed" ? "rejected" : status;
    if (status === "waiting" || status === "closed") for (const room of rooms.values()) room.lost(code);
    drawState();
  },

  /** Notes whether the server stores messages. */
  noteStore(text) {
    if (this.store === text) return;
    this.store = text;
    drawState();
  },

  /** Tells a rejected handshake from an unreachable server by HTTP: the WebSocket API does not. */
  askWhy() {
    fetch(location.pathname, { method: "HEAD", cache: "no-store" }).then(() => {
      if (this.state !== "waiting" || this.cause !== UNREACHABLE) return;
      this.cause = REFUSED;
      drawState();
    }, () => { /* unreachable */ });
  },
};

// ---- Room: one topic, its members and its messages ---------------------------------------------------------------------

class Room {
  readOnly = false; // the page may not publish here: the acknowledgement or a rejected publication says so
  people = new Map(); // other members: id -> {name, hue}
  typists = new Map(); // page id -> {name, until}
  unread = 0; // messages since the reader last saw the end of this log
  below = 0; // arrived while the reader was scrolled up
  draft = "";
  day = ""; // the day heading last written
  stick = true; // whether the log follows its end
  hasHistory = false; // the topic retains messages
  #subscription = null;
  #typing = null; // the subscription to the topic of typing
  #isReplaying = false; // the message that is being handled was retained
  #replayed = 0; // retained messages that follow the first acknowledgement
  #isEntered = false; // after the first acknowledgement
  #isSubscribed = false; // the server has acknowledged the subscription on the current connection
  #problem = ""; // the server has rejected the subscription
  #waiting = new Map(); // m -> {message, element, sent}
  #seen = new Set();
  #members = null; // of the topic, as listed last; null before the first list
  #missing = new Set(); // after a reconnect: earlier members that are not back yet
  #left = new Map(); // members that have left recently, and when
  #holdUntil = 0;
  #isHolding = false; // queued messages wait for the missing members
  #typedAt = 0;
  #sendTimer = 0; // messages are sent again then

  constructor(name) {
    this.name = name;
    this.log = make("div", "log");
    this.log.dataset.testid = "log";
    this.log.tabIndex = 0; // so that the keyboard can scroll it
    this.log.hidden = true;
    this.log.setAttribute("role", "log");
    this.log.setAttribute("aria-label", "Messages in " + name);
    this.log.addEventListener("scroll", () => {
      if (this.log.hidden) return;
      this.stick = atEnd(this.log);
      sawEnd(this);
    }, { passive: true });
    this.subscribe();
  }

  /** connecting | open | waiting | rejected */
  get state() {
    if (connection.state !== "open") return connection.state;
    return this.#problem ? "rejected" : this.#isSubscribed ? "open" : "connecting";
  }

  /** Whether retained messages arrive. */
  get isReplaying() { return this.#isReplaying; }

  get cause() { return (this.state === "open" && this.hasHistory ? connection.store : "") || connection.cause || this.#problem; }

  /** Subscribes with the connection's client. */
  subscribe() {
    this.readOnly = this.#isSubscribed = false;
    this.#problem = "";
    // With another token the room goes on where it was.
    const from = this.#subscription?.position;
    this.#subscription = connection.client.subscribe(topicOf(this.name), ({ data }) => this.#receive(data), {
      ...(from ? { from } : { last: LIMIT.history }),
      members: (members) => this.#listed(members),
      onsubscribed: (ack) => this.#opened(ack),
      ongap: ({ messages }) => appendNotice(this, messages ? `${messages} messages were lost` : "some messages may be missing"),
      onerror: (error) => {
        if (error.code === "closed") return; // the connection says why
        this.#problem = `The server rejects this page: ${error.message}.${isMissingRight(error) ? ` ${NEW_TOKEN}` : ""}`;
        drawState();
      },
    });
    // Without the right to it, the room has no signs of typing.
    this.#typing = connection.client.subscribe(TYPING.topic(this.name), ({ data }) => this.#receiveTyping(data), { onerror() {} });
    // Behind the subscription: a message that waits for this page is sent when its member appears.
    this.join();
  }

  /** Shows this page to the other members, or its new name or color. If the server rejects it, the page is not shown. */
  join() {
    connection.client.join(topicOf(this.name), { id: memberId(), info: { name: me.name, hue: me.hue } });
  }

  leave() {
    connection.client.leave(topicOf(this.name)).catch(() => { /* the connection is lost, and the presence with it */ });
    this.#subscription.unsubscribe();
    this.#typing.unsubscribe();
    this.log.remove();
  }

  /** Queues a message and sends it if the room is open. False if the queue is full. */
  say(text) {
    if (this.#waiting.size >= LIMIT.waiting) return false;
    const message = { m: randomId(), text, at: now() };
    const element = appendMessage(this, { ...me, text }, { isMine: true, isPending: true, at: now() });
    this.#waiting.set(message.m, { message, element, sent: false });
    this.#deliver();
    this.#typedAt = 0;
    return true;
  }

  typing() {
    if (now() - this.#typedAt < TYPING.every) return;
    if (this.#send("typing")) this.#typedAt = now();
  }

  /** Once a second (once a minute in a hidden tab): stops to wait for missing members. */
  tick() {
    if (this.state !== "open" || !this.#missing.size || now() < this.#holdUntil) return;
    this.#missing.clear();
    this.#listed(this.#members);
  }

  #send(t, more = {}) {
    if (this.state !== "open" || this.readOnly) return false;
    const message = { sinews: 1, t, id: me.id, name: me.name, hue: me.hue, ...more };
    const topic = t === "typing" ? TYPING.topic(this.name) : topicOf(this.name);
    connection.client.publish(topic, message).then((ack) => {
      if (t === "msg") connection.noteStore(ack?.stored === false ? STORE.delivers : "");
    }, (error) => {
      if (t === "typing") return;
      if (isMissingRight(error)) this.#becomeReadOnly();
      else if (error.code === 503 && this.state === "open") this.#sendLater(more.m);
    });
    return true;
  }

  /** The store of the server is away: a message is sent again. Other pages show it once. */
  #sendLater(m) {
    connection.noteStore(STORE.away);
    const entry = this.#waiting.get(m);
    if (!entry) return;
    entry.sent = false;
    entry.element.querySelector(".mark").textContent = STORE.waiting;
    this.#sendTimer ||= setTimeout(() => {
      this.#sendTimer = 0;
      this.#deliver();
    }, STORE.again);
  }

  #becomeReadOnly() {
    if (this.readOnly) return;
    this.readOnly = true;
    for (const entry of this.#waiting.values()) settle(entry.element, "failed", "not delivered: the token does not allow it");
    this.#waiting.clear();
    drawState();
  }

  #opened({ publish, seq, replayed, stale }) {
    this.#isSubscribed = true;
    this.readOnly = false;
    this.hasHistory = seq !== undefined;
    if (!this.#isEntered) this.#replayed = replayed ?? 0;
    this.#isEntered = true;
    if (publish === false) this.#becomeReadOnly();
    if (stale !== undefined) connection.noteStore(STORE.away);
    drawState();
    // Without a history, after a server restart, the first page would publish to an empty room. So queued messages wait
    // until the other members are back.
    this.#holdUntil = now() + HOLD;
    this.#isHolding = !this.hasHistory && this.#waiting.size > 0;
    this.#deliver();
  }

  /** Sends unsent messages in order, and marks each message with its state. */
  #deliver() {
    for (const entry of this.#waiting.values()) {
      if (!entry.sent && !(this.#isHolding && this.#missing.size)) entry.sent = this.#send("msg", entry.message);
      entry.element.querySelector(".mark").textContent = entry.sent ? "sending…"
        : this.state === "open" ? "waiting for other people" : "waiting for the connection";
    }
    if (this.stick) toEnd(this); // the mark may have made the message taller
  }

  /** The members of the topic have changed. */
  #listed(members) {
    const isFirst = !this.#members;
    let hasTwin = false;
    let hasNamesake = false;
    this.#members = members;
    const mine = memberId();
    const people = new Map();
    for (const [id, info] of members) {
      if (id === mine) continue;
      const { name, hue } = readPerson(info);
      people.set(id, { name: name || cleanName(id) || "?", hue });
      // Of two equal colors, the member with the greater id takes another; the same for names that nobody has chosen.
      if (hue === me.hue && id < mine) hasTwin = true;
      if (name === me.name && id < mine && !storage.read("named")) hasNamesake = true;
    }
    for (const id of people.keys()) {
      this.#missing.delete(id);
      this.#left.delete(id);
    }
    for (const [id, { name }] of this.people) {
      const person = people.get(id);
      if (!person && this.#missing.has(id)) people.set(id, this.people.get(id));
      else if (!person) {
        appendNotice(this, `${name} left`);
        this.#left.set(id, now());
      } else if (person.name !== name) appendNotice(this, `${name} is now called ${person.name}`);
    }
    for (const [id, { name }] of people) {
      if (!isFirst && !this.people.has(id)) appendNotice(this, `${name} joined`);
    }
    this.people = people;
    for (const [id, at] of this.#left) if (at < now() - RECENT) this.#left.delete(id);
    if (hasTwin) this.#changeHue();
    if (hasNamesake) this.#changeName();
    this.#deliver();
    if (this === current) drawPeople();
  }

  /** The connection was lost with this close code. */
  lost(code) {
    this.#isSubscribed = false;
    let longest = null;
    for (const [m, entry] of this.#waiting) {
      if (entry.sent && (!longest || entry.message.text.length > longest.entry.message.text.length)) longest = { m, entry };
      entry.sent = false;
    }
    // Resending a message that was rejected for its length would close every new connection, too.
    if (code === 1009 && longest) {
      this.#waiting.delete(longest.m);
      settle(longest.entry.element, "failed", "not delivered: too long for this server");
    }
    const recent = Array.from(this.#left).filter(([, at]) => at >= now() - RECENT).map(([id]) => id);
    this.#missing = new Set([...this.#missing, ...this.people.keys(), ...recent]);
    this.#deliver();
  }

  #receive(data) {
    const isRetained = this.#isReplaying = this.#replayed > 0;
    if (isRetained) this.#replayed--;
    const message = decode(data);
    if (!message) return;
    // The time of a message that arrives is now, whatever its sender says.
    const at = isRetained ? message.at ?? null : now();
    if (message.t === "plain") return appendAnnouncement(this, message.text, at);
    if (message.t !== "msg") return;
    if (this.#waiting.has(message.m)) return this.#echo(message);
    if (!this.#isNew(message.m)) return;
    this.typists.delete(message.id);
    if (this === current) drawTyping();
    appendMessage(this, message, { isMine: message.id === me.id, at });
  }

  #receiveTyping(data) {
    const message = decode(data);
    if (message?.t !== "typing" || message.id === me.id || this.typists.size >= LIMIT.people) return;
    this.typists.set(message.id, { name: message.name, until: now() + TYPING.lasts });
    if (this === current) drawTyping();
  }

  /** Handles the echo of an own message: the server has delivered it to all members. */
  #echo({ m }) {
    const entry = this.#waiting.get(m);
    this.#waiting.delete(m);
    this.#isNew(m); // a second echo after a reconnect is a duplicate
    settle(entry.element, "", "");
    // Other members received messages before it meanwhile: keep their order.
    if (entry.element.nextElementSibling?.classList.contains("pending") === false) moveToEnd(this, entry.element);
  }

  /** Takes a color that is free in this room, if there is one. */
  #changeHue() {
    const taken = new Set([me.hue, ...[...this.people.values()].map((person) => person.hue)]);
    const free = HUES.filter((hue) => !taken.has(hue));
    if (!free.length) return;
    me.hue = pick(free);
    rememberMe();
    for (const room of rooms.values()) room.join();
    drawPeople();
  }

  /** Takes a name for this tab that is free in this room: another tab of this browser has the same one. */
  #changeName() {
    const taken = new Set(Array.from(this.people.values(), ({ name }) => name));
    const free = FIRST.flatMap((first) => SECOND.map((second) => `${first} ${second}`)).filter((name) => !taken.has(name));
    if (free.length) setName(pick(free));
  }

  #isNew(m) {
    if (this.#seen.has(m)) return false;
    this.#seen.add(m);
    if (this.#seen.size > LIMIT.seen) this.#seen.delete(this.#seen.values().next().value);
    return true;
  }
}

/** An address beside this page, so that the page also works below a path prefix of a proxy. */
function beside(path) {
  return new URL(path, location.origin + location.pathname).href;
}

// ---- The log -----------------------------------------------------------------------------------------------------------

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const EARLIER = "earlier"; // of a retained message without a time
const timeOf = (at) => (at === null ? EARLIER : clock.format(at));
const calendar = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long" });

const atEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 48;

/** Text with its http(s) addresses as links; other text stays a text node. */
function linked(text) {
  const parts = document.createDocumentFragment();
  let from = 0;
  for (const match of text.matchAll(/\bhttps?:\/\/[^\s<>"]+/giu)) {
    const shown = match[0].replace(/[.,;:!?'’)\]}]+$/u, ""); // the full stop of a sentence is not part of the address
    let url;
    try { url = new URL(shown); } catch { continue; }
    const link = make("a", "", shown);
    link.href = url.href;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow ugc";
    parts.append(text.slice(from, match.index), link);
    from = match.index + shown.length;
  }
  parts.append(text.slice(from));
  return parts;
}

function appendMessage(room, { id, name, hue, text }, { isMine, isPending = false, at }) {
  const time = make("time", "", timeOf(at));
  const item = make("div", "msg" + (isMine ? " mine" : "") + (isPending ? " pending" : ""), "",
    make("p", "who", "", make("span", "name", name), time), make("p", "text", "", linked(text)), make("span", "mark"));
  item.dataset.testid = "msg";
  item.dataset.from = id;
  item.dataset.at = at ?? 0;
  item.title = time.textContent;
  item.style.setProperty("--hue", hue);
  append(room, item, isMine, at);
  if (!isMine && !room.isReplaying) noteUnread(room);
  return item;
}

function appendNotice(room, text) {
  const item = make("div", "notice", text);
  item.dataset.testid = "notice";
  append(room, item, false, now());
}

function appendAnnouncement(room, text, at) {
  const item = make("div", "announce", "", $("horn").content.cloneNode(true), make("div", "", "",
    make("p", "who", `Announcement · ${timeOf(at)}`), make("p", "text", "", linked(text))));
  item.dataset.testid = "announcement";
  append(room, item, false, at);
  if (!room.isReplaying) noteUnread(room);
}

function append(room, item, mine, at) {
  const day = at === null ? room.day : calendar.format(at);
  if (room.day !== day) {
    room.day = day;
    room.log.append(make("div", "day", day));
  }
  const follow = room.stick || mine;
  room.log.append(item);
  group(item.previousElementSibling);
  group(item);
  while (room.log.childElementCount > LIMIT.shown) room.log.firstElementChild.remove();
  group(room.log.firstElementChild);
  if (follow) toEnd(room);
  if (room === current) $("empty").hidden = true;
}

/** Marks the first and last message of a group, by the neighbors alone. */
function group(item) {
  if (!item?.classList.contains("msg")) return;
  const name = (message) => message.querySelector(".name").textContent;
  const together = (a, b) => Boolean(a?.dataset.from) && a.dataset.from === b?.dataset.from && name(a) === name(b)
    && Math.abs(a.dataset.at - b.dataset.at) < GROUP;
  item.classList.toggle("first", !together(item.previousElementSibling, item));
  item.classList.toggle("last", !together(item, item.nextElementSibling));
}

/** A pending message becomes delivered (no class) or failed. */
function settle(item, className, mark) {
  item.classList.remove("pending");
  if (className) item.classList.add(className);
  item.querySelector(".mark").textContent = mark;
}

function moveToEnd(room, item) {
  const [before, after] = [item.previousElementSibling, item.nextElementSibling];
  room.log.append(item);
  for (const changed of [before, after, item.previousElementSibling, item]) group(changed);
  if (room.stick) toEnd(room);
}

function toEnd(room) {
  room.log.scrollTop = room.log.scrollHeight;
  room.stick = true;
  sawEnd(room);
}

function noteUnread(room) {
  if (room === current && !document.hidden && room.stick) return;
  room.unread++;
  if (!room.stick) room.below++;
  drawUnread();
}

/** Resets the unread counters when the reader is at the end of the current log. */
function sawEnd(room) {
  if (room !== current || document.hidden || !room.stick || !(room.unread || room.below)) return;
  room.unread = room.below = 0;
  drawUnread();
}

// ---- Drawing -----------------------------------------------------------------------------------------------------------

const rooms = new Map(); // name -> Room, all connected: unread messages are counted in the background
let current = null;

function drawRooms() {
  const focused = $("rooms").contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  $("rooms").replaceChildren(...Array.from(rooms.values(), (room) => {
    const link = make("a", "", "", make("span", "", room.name));
    link.href = "#" + room.name;
    if (room === current) link.setAttribute("aria-current", "page");
    if (room.unread) {
      link.append(make("b", "", room.unread > 99 ? "99+" : String(room.unread), make("span", "sr", " unread")));
    }
    const item = make("li", "room", "", link);
    item.dataset.testid = "room";
    item.dataset.room = room.name;
    if (rooms.size > 1) {
      const leave = make("button", "", "×");
      leave.type = "button";
      leave.setAttribute("aria-label", "Leave " + room.name);
      leave.onclick = () => leaveRoom(room);
      item.append(leave);
    }
    return item;
  }));
  // The list was rebuilt: restore the keyboard focus.
  if (focused) $("rooms").querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function drawUnread() {
  drawRooms();
  let total = 0;
  for (const room of rooms.values()) total += room.unread;
  document.title = (total ? `(${total}) ` : "") + `#${current.name} · Sinews`;
  $("menu").toggleAttribute("data-unread", total > current.unread);
  $("jump").hidden = current.below === 0;
  $("jump").textContent = current.below === 1 ? "1 new message ↓" : `${current.below} new messages ↓`;
}

function personItem({ name, hue }, isMe) {
  const words = name.split(" ").filter(Boolean);
  const initials = [...words[0]][0] + (words.length > 1 ? [...words.at(-1)][0] : "");
  const face = make("span", "face", initials.toUpperCase());
  face.setAttribute("aria-hidden", "true");
  const item = make("li", "person", "", face, make("span", "name", name));
  item.style.setProperty("--hue", hue);
  item.dataset.testid = "person";
  if (isMe) item.append(make("small", "", "you"));
  return item;
}

function drawPeople() {
  if (!current) return;
  const others = [...current.people.values()].sort((a, b) => a.name.localeCompare(b.name));
  const shown = others.slice(0, LIMIT.people);
  $("people").replaceChildren(personItem(me, true), ...shown.map((person) => personItem(person, false)));
  $("people-count").textContent = String(others.length + 1);
  $("count").textContent = others.length ? `${others.length + 1} here` : "only you";
  drawTyping();
}

function drawTyping() {
  for (const [id, { until }] of current.typists) if (until <= now()) current.typists.delete(id);
  const names = current.state === "open" ? Array.from(current.typists.values(), ({ name }) => name) : []; // unknown while offline
  const text = names.length > 2 ? "Several people are typing…"
    : names.length ? `${names.join(" and ")} ${names.length > 1 ? "are" : "is"} typing…` : "";
  if ($("typing").textContent !== text) $("typing").textContent = text;
}

function drawState() {
  if (!current) return;
  const { state, cause } = current;
  const words = { open: "connected", connecting: "connecting…", waiting: "reconnecting", rejected: "rejected" }[state];
  if ($("state").dataset.state !== state) {
    $("state").dataset.state = state;
    $("state").textContent = words;
  }
  // The first attempt shows no banner; the cause of a failure stays until the connection is open again.
  $("banner").hidden = !cause;
  if ($("cause").textContent !== cause) $("cause").textContent = cause;
  $("retry").hidden = state !== "waiting";
  $("token-form").hidden = state !== "rejected" && cause !== REFUSED;
  $("app").dataset.state = state;
  fitComposer();
  drawEmpty();
  drawCountdown();
  drawTyping();
}

/** What an empty room is, and whether messages stay. */
function drawEmpty() {
  $("empty").hidden = current.log.childElementCount > 0;
  const text = current.state !== "open" ? ""
    : current.hasHistory ? "The server retains messages of this room for people who come later. Share its address to invite people."
    : `This page shows messages that are sent while it is open: the server retains none of this room. The option --history '${topicOf(current.name)}=100' retains them.`;
  if ($("empty-text").textContent !== text) $("empty-text").textContent = text;
}

function drawCountdown() {
  const { state } = current;
  const seconds = Math.max(1, Math.ceil((connection.retryAt - now()) / 1000));
  $("countdown").textContent = state === "rejected" ? "" : state === "waiting" ? `Trying again in ${seconds} s.` : "Trying again…";
}

// ---- Moving between rooms ----------------------------------------------------------------------------------------------

function enterRoom(name) {
  let room = rooms.get(name);
  if (!room) {
    if (rooms.size >= LIMIT.rooms) leaveQuietly([...rooms.values()].find((other) => other !== current));
    room = new Room(name);
    rooms.set(name, room);
    $("room-view").prepend(room.log);
    storage.write("rooms", [...rooms.keys()]);
  }
  if (current) {
    current.draft = $("message").value;
    current.log.hidden = true;
  }
  current = room;
  room.log.hidden = false;
  $("title").textContent = name;
  drawEmpty();
  $("curl").textContent = `curl -d 'hello' ${beside("topics/" + topicOf(name))}`;
  $("message").value = room.draft;
  toEnd(room);
  fitComposer();
  drawPeople();
  drawState();
  drawUnread();
}

function leaveQuietly(room) {
  rooms.delete(room.name);
  room.leave();
  storage.write("rooms", [...rooms.keys()]);
}

function leaveRoom(room) {
  const next = room === current ? [...rooms.values()].find((other) => other !== room) : current;
  leaveQuietly(room);
  if (room === current) location.hash = next.name;
  else drawUnread();
  $("room-input").focus();
}

function followHash() {
  const { room, isNew } = readHash();
  const name = cleanRoom(room) || "lobby";
  if ("#" + name !== location.hash) history.replaceState(null, "", "#" + name);
  enterRoom(name);
  if (isNew) reconnect();
}

/** Connects again, with another token. */
function reconnect() {
  connection.open();
  for (const room of rooms.values()) {
    room.lost(1000);
    room.subscribe();
  }
  drawState();
}

// ---- Actions of the reader ---------------------------------------------------------------------------------------------

function hint(text) {
  if (current.readOnly) text = token ? READ_ONLY : READ_ONLY_GUEST;
  $("hint").textContent = text;
  $("hint").hidden = !text;
}

function fitComposer() {
  const box = $("message");
  box.style.height = "auto";
  box.style.height = box.scrollHeight + "px";
  const left = LIMIT.text - box.value.length;
  hint(left < 0 ? `${-left} characters too long` : left < 200 ? `${left} characters left` : "");
  box.disabled = current.readOnly;
  box.placeholder = current.readOnly ? "Read only" : "Message #" + current.name;
  $("send").disabled = !box.value.trim() || left < 0 || current.readOnly;
}

function sendMessage() {
  const box = $("message");
  const text = box.value.trim();
  if (!text || box.value.length > LIMIT.text || current.readOnly) return;
  if (!current.say(text)) return hint(`${LIMIT.waiting} messages are waiting for the connection already.`);
  box.value = "";
  fitComposer();
  box.focus(); // a tap on the button must not close the phone's keyboard
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); sendMessage(); });
$("message").addEventListener("input", () => { fitComposer(); if ($("message").value.trim()) current.typing(); });
$("message").addEventListener("keydown", (event) => {
  // While an input method composes a word, Enter belongs to it.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); sendMessage(); }
});

function saveName() {
  const name = cleanName($("name-input").value);
  $("name-input").value = name || me.name;
  if (!name || name === me.name) return;
  storage.write("name", name);
  storage.write("named", true);
  setName(name);
}

function setName(name) {
  me.name = name;
  rememberMe();
  if (document.activeElement !== $("name-input")) $("name-input").value = name;
  for (const room of rooms.values()) room.join();
  drawPeople();
}
$("name-input").value = me.name;
$("name-input").addEventListener("change", saveName);
$("name-form").addEventListener("submit", (event) => {
  event.preventDefault();
  saveName();
  openDrawer(false);
  $("message").focus();
});

$("room-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = cleanRoom($("room-input").value.replace(/^#/, ""));
  if (!name) return;
  $("room-input").value = "";
  location.hash = name;
  openDrawer(false);
});

function openDrawer(open) {
  const isLeft = !open && document.body.classList.contains("drawer") && $("side").contains(document.activeElement);
  if (open) document.body.classList.add("slides");
  document.body.classList.toggle("drawer", open);
  $("menu").setAttribute("aria-expanded", String(open));
  document.querySelector("main").inert = open;
  // The focus would be in the hidden menu.
  if (isLeft) $("menu").focus();
}
$("menu").onclick = () => { openDrawer(true); $("rooms").querySelector("a").focus(); };
$("scrim").onclick = () => openDrawer(false);
$("rooms").addEventListener("click", (event) => { if (event.target.closest("a")) openDrawer(false); });
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.body.classList.contains("drawer")) { openDrawer(false); $("menu").focus(); }
});
matchMedia("(max-width: 44rem)").addEventListener("change", () => {
  openDrawer(false);
  document.body.classList.remove("slides"); // rotating the phone must not animate the drawer
});

$("jump").onclick = () => { toEnd(current); $("message").focus(); };
$("retry").onclick = () => connection.retryNow();

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = new URLSearchParams({ room: current.name, token: $("token-input").value });
  $("token-input").value = "";
});

$("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText($("curl").textContent);
  } catch { // no clipboard on insecure origins (a LAN address): copy by selection
    getSelection().selectAllChildren($("curl"));
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
};

// ---- Events of the browser ---------------------------------------------------------------------------------------------

addEventListener("hashchange", followHash);
addEventListener("visibilitychange", () => {
  if (!document.hidden) connection.retryNow();
  sawEnd(current);
});
addEventListener("pagehide", () => { for (const room of rooms.values()) room.leave(); });
// Restored from the back/forward cache: the sockets were closed, so reload.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// On phones whose keyboard covers the page, only this event has the visible height.
visualViewport?.addEventListener("resize", () => {
  if (visualViewport.scale === 1) document.documentElement.style.setProperty("--app-height", visualViewport.height + "px");
  scrollTo(0, 0);
});
new ResizeObserver(() => { if (current?.stick) toEnd(current); }).observe($("room-view"));

setInterval(() => {
  for (const room of rooms.values()) room.tick();
  drawTyping();
  if (current.state !== "open") drawCountdown();
}, 1000);

readHash();
connection.open();
for (const name of [storage.read("rooms")].flat().slice(0, LIMIT.rooms - 1)) {
  const clean = typeof name === "string" ? cleanRoom(name) : "";
  if (clean) enterRoom(clean);
}
followHash();
if (matchMedia("(hover: hover)").matches) $("message").focus(); // on a phone this would open the keyboard
