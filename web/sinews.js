/**
 * Browser client of the protocol at /ws (docs/book/src/server/protocol.md). Subscriptions survive lost connections.
 *
 *   import { connect } from "/sinews.js";
 *   const client = connect();
 *   client.subscribe("chat.*", ({ topic, data }) => console.log(topic, data));
 *   await client.publish("chat.room", { text: "hello" });
 *
 * One file without dependencies. Types: /sinews.d.ts.
 */

/** Limit of requests queued while disconnected; further requests are rejected at once. */
const QUEUE_MAX = 256;
/** Limit of pending requests. */
const AWAITED_MAX = 4096;
/** Close codes: invalid or expired token; path, origin or missing right, which no retry can fix. */
const TOKEN_REJECTED = 4401;
const REJECTED = new Set([4400, 4403, 4404]);
/** The characters of a subprotocol (RFC 6455 section 4.1). */
const IS_TOKEN = /^[\w!#$%&'*+.^`|~-]+$/;
/** A token is renewed when this share of its lifetime is left, at most this many milliseconds before it expires. */
const RENEWAL_SHARE = 0.2;
const RENEWAL_MAX = 60_000;
/** Milliseconds between renewal attempts. */
const RENEWAL_RETRY = 5_000;
/** Longest delay of a timer, in milliseconds. */
const TIMER_MAX = 2 ** 31 - 1;
/** Error code of a store that is temporarily unavailable, and milliseconds before a retry. */
const STORE = 503;
const AGAIN = 1_000;

/** An error of the server or of this client; `code` is a code of docs/book/src/server/protocol.md, or a word. */
export class SinewsError extends Error {
  /** @param {number | string} code @param {string} message @param {object} [needs] */
  constructor(code, message, needs) {
    super(message);
    this.name = "SinewsError";
    this.code = code;
    this.needs = needs;
  }
}

/** Connects, and reconnects until `close`. */
export function connect(url, options) {
  return new Client(url, options);
}

/** A connection to a server that reconnects automatically. */
export class Client {
  #url;
  #options;
  #socket = null;
  #status = "connecting";
  #attempt = 0;
  #timer = 0;
  #watch = 0;
  #heard = false;
  #nextId = 1;
  #awaited = new Map();
  #queue = [];
  #subscriptions = new Set();
  #consumptions = new Set();
  #welcome = null;
  #renewal = 0;
  /** The connection's token, and the token that the server has rejected last. */
  #token;
  #rejectedToken = null;

  /** Called on each change of state: `{ status, attempt, delay, code, reason }`. */
  onstatus = null;

  constructor(url, options = {}) {
    if (!(options.WebSocket ?? globalThis.WebSocket)) {
      throw new SinewsError("no-websocket", "this runtime has no global WebSocket (Node.js has one from version 22 on): "
        + "pass a class, for example connect(url, { WebSocket }) with the WebSocket of the package ws");
    }
    const base = globalThis.location?.href;
    this.#url = new URL(url ?? "/ws", base);
    if (this.#url.protocol.startsWith("http")) {
      this.#url.protocol = this.#url.protocol.replace("http", "ws");
    }
    this.#options = { minDelay: 250, maxDelay: 30_000, silence: 30_000, patience: 10_000, ...options };
    this.onstatus = options.onstatus ?? null;
    globalThis.addEventListener?.("online", this.#online);
    // The caller can set `onstatus` first.
    queueMicrotask(() => this.#open());
  }

  /** "connecting", "open", "waiting" (for the next attempt) or "closed". */
  get status() {
    return this.#status;
  }

  /**
   * Subscribes to a topic or a pattern, and again after every reconnect. A topic with a history resumes after the last
   * received message; `ongap` reports messages that the history no longer has.
   */
  subscribe(topic, onmessage, options = {}) {
    const subscription = new Subscription(this, topic, onmessage, options, () => this.#unsubscribe(subscription));
    const first = !this.#others(subscription);
    this.#subscriptions.add(subscription);
    if (this.#status === "open" && (first || options.presence || options.last)) this.#ask(subscription);
    else if (this.#status === "open") subscription._settle({ topic });
    return subscription;
  }

  /**
   * Publishes JSON, or bytes (an ArrayBuffer or a view of it). Resolves when the server acknowledges. Publications are
   * queued while disconnected. A publication in flight when the connection is lost is rejected with the code "lost",
   * because its delivery is unknown.
   */
  publish(topic, data) {
    const bytes = toBytes(data);
    return this.#request(bytes ? { op: "publish", topic, b64: toBase64(bytes) } : { op: "publish", topic, data });
  }

  /** Fetches the last `last` messages of a topic's history. */
  async history(topic, last = 100) {
    const { messages } = await this.#request({ op: "history", topic, last });
    for (const message of messages) if ("b64" in message) message.data = fromBase64(message.b64);
    return messages;
  }

  /** A durable stream of the server (docs/book/src/server/streams.md): it is appended to, and read from any offset. */
  stream(name) {
    return new Stream(name, {
      request: (words) => this.#request(words),
      begin: (consumption) => {
        this.#consumptions.add(consumption);
        if (this.#status === "open") this.#consume(consumption);
        else if (this.#status === "closed") this.#refuse(consumption, new SinewsError("closed", "the client is closed"));
      },
      end: (consumption) => {
        const was = this.#consumptions.delete(consumption);
        if (was && this.#status === "open") this.#send({ op: "stop", stream: name }, () => {}, () => {});
      },
    });
  }

  /** The number of subscribers of a topic by its name. */
  async presence(topic) {
    return (await this.#request({ op: "presence", topic })).subscribers;
  }

  /** Closes the connection permanently. */
  close() {
    this.#end("closed", 1000, "closed by the page");
    this.#socket?.close(1000);
    this.#socket = null;
  }

  #online = () => {
    if (this.#status !== "waiting") return;
    clearTimeout(this.#timer);
    this.#open();
  };

  async #open() {
    if (this.#status === "closed") return;
    this.#become("connecting");
    let token;
    try {
      token = await this.#askToken();
    } catch (error) {
      return this.#wait(0, `no token: ${error.message}`);
    }
    if (this.#status === "closed") return;
    if (this.#rejectedToken && token === this.#rejectedToken.token) {
      const { code, reason } = this.#rejectedToken;
      return this.#end("closed", code, reason);
    }
    if (token && !IS_TOKEN.test(token)) return this.#end("closed", TOKEN_REJECTED, "the token is not a JWT");
    this.#token = token;
    const protocols = token ? ["sinews.v1", `sinews.bearer.${token}`] : ["sinews.v1"];
    const Socket = this.#options.WebSocket ?? WebSocket;
    const socket = new Socket(this.#url, protocols);
    this.#socket = socket;
    this.#welcome = setTimeout(() => this.#lose(socket, 0, "connect timeout"), this.#options.patience);
    socket.onmessage = (event) => socket === this.#socket && this.#hear(event.data);
    socket.onclose = (event) => this.#lose(socket, event.code, event.reason);
  }

  async #askToken() {
    const { token } = this.#options;
    return typeof token === "function" ? token() : token;
  }

  #lose(socket, code, reason) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    socket.onmessage = socket.onclose = null;
    socket.close();
    clearTimeout(this.#welcome);
    clearTimeout(this.#watch);
    clearTimeout(this.#renewal);
    for (const { reject } of this.#awaited.values()) {
      reject(new SinewsError("lost", "the connection was lost before the server answered"));
    }
    this.#awaited.clear();
    if (code === TOKEN_REJECTED) this.#rejectedToken = { token: this.#token, code, reason };
    // A constant token is rejected again. A function may return another token.
    const isFinal = REJECTED.has(code) || (code === TOKEN_REJECTED && typeof this.#options.token !== "function");
    if (isFinal) this.#end("closed", code, reason);
    else this.#wait(code, reason);
  }

  /** Schedules the next attempt, with exponential backoff and jitter. */
  #wait(code, reason) {
    const { minDelay, maxDelay } = this.#options;
    const most = Math.min(maxDelay, minDelay * 2 ** Math.min(this.#attempt, 30));
    const delay = most / 2 + (Math.random() * most) / 2;
    this.#attempt += 1;
    this.#become("waiting", { delay, code, reason });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), delay);
  }

  #end(status, code, reason) {
    globalThis.removeEventListener?.("online", this.#online);
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    clearTimeout(this.#welcome);
    clearTimeout(this.#renewal);
    const error = new SinewsError("closed", reason || "the client is closed");
    for (const { reject } of [...this.#awaited.values(), ...this.#queue]) reject(error);
    for (const subscription of [...this.#subscriptions, ...this.#consumptions]) subscription._refuse(error);
    this.#awaited.clear();
    this.#queue = [];
    this.#become(status, { code, reason });
  }

  #become(status, more = {}) {
    this.#status = status;
    this.onstatus?.({ status, attempt: this.#attempt, ...more });
  }

  #hear(text) {
    this.#heard = true;
    const message = JSON.parse(text);
    switch (message.op) {
      case "welcome":
        return this.#begin(message.expires_in);
      case "message":
        if ("b64" in message) message.data = fromBase64(message.b64);
        for (const subscription of this.#subscriptions) subscription._hear(message);
        return;
      case "dropped":
        for (const subscription of this.#subscriptions) subscription._miss(message.topic);
        return;
      case "presence":
        for (const subscription of this.#subscriptions) subscription._present(message);
        break;
      case "records":
      case "gap":
      case "assigned":
        if (message.id !== undefined) break;
        for (const consumption of this.#consumptions) consumption._hear(message);
        return;
    }
    const awaited = this.#awaited.get(message.id);
    if (!awaited) {
      if (message.op === "error") this.#ended(message);
      return;
    }
    this.#awaited.delete(message.id);
    if (message.op === "error") awaited.reject(new SinewsError(message.code, message.error, message.needs));
    else awaited.resolve(message);
  }

  #begin(expiresIn) {
    clearTimeout(this.#welcome);
    this.#attempt = 0;
    this.#renewBefore(expiresIn);
    this.#become("open");
    this.#listen();
    for (const subscription of this.#subscriptions) this.#ask(subscription);
    for (const consumption of this.#consumptions) this.#consume(consumption);
    const queue = this.#queue;
    this.#queue = [];
    for (const { words, resolve, reject } of queue) this.#send(words, resolve, reject);
  }

  /** Requests the next token before the current token expires in `expiresIn` seconds. */
  #renewBefore(expiresIn) {
    clearTimeout(this.#renewal);
    if (expiresIn === undefined || typeof this.#options.token !== "function") return;
    const left = expiresIn * 1000;
    this.#renewAfter(left - Math.min(left * RENEWAL_SHARE, RENEWAL_MAX));
  }

  #renewAfter(delay) {
    const step = Math.min(delay, TIMER_MAX);
    this.#renewal = setTimeout(() => (step < delay ? this.#renewAfter(delay - step) : this.#renew()), step);
  }

  /** Renews the token. Without a new token, the connection is closed when the token expires, and reconnects then. */
  async #renew() {
    const socket = this.#socket;
    if (!socket) return;
    const again = () => socket === this.#socket && this.#renewAfter(RENEWAL_RETRY);
    let token;
    try {
      token = await this.#askToken();
    } catch {
      return again();
    }
    if (socket !== this.#socket) return;
    if (!token || token === this.#token) return again();
    this.#send({ op: "token", token }, ({ expires_in: expiresIn }) => {
      this.#token = token;
      this.#renewBefore(expiresIn);
    }, again);
  }

  /** Sends a ping after a silence, and drops the connection if the answer times out. */
  #listen() {
    const { silence, patience } = this.#options;
    clearTimeout(this.#watch);
    this.#heard = false;
    this.#watch = setTimeout(() => {
      if (this.#heard) return this.#listen();
      const socket = this.#socket;
      this.#send({ op: "ping" }, () => {}, () => {});
      this.#watch = setTimeout(() => (this.#heard ? this.#listen() : this.#lose(socket, 0, "ping timeout")), patience);
    }, silence);
  }

  #ask(subscription) {
    const { topic } = subscription;
    const words = { op: "subscribe", topic, ...subscription._wishes() };
    this.#send(words, (ack) => subscription._settle(ack), (error) => {
      if (error.code === "lost") return;
      if (error.code === STORE) return this.#later(() => this.#subscriptions.has(subscription) && this.#ask(subscription));
      this.#subscriptions.delete(subscription);
      subscription._refuse(error);
    });
  }

  /** Consumes a stream from the client's next offset. */
  #consume(consumption) {
    const id = this.#send(consumption._wishes(), (ack) => consumption._settle(ack), (error) => {
      if (error.code === STORE) this.#later(() => this.#consumptions.has(consumption) && this.#consume(consumption));
      else if (error.code !== "lost") this.#refuse(consumption, error);
    });
    consumption._id = id;
  }

  #refuse(consumption, error) {
    this.#consumptions.delete(consumption);
    consumption._refuse(error);
  }

  /** The server has ended an acknowledged subscription or consumption: requests it again. */
  #ended({ id, topic }) {
    for (const consumption of this.#consumptions) {
      if (id !== undefined && consumption._id === id) {
        this.#later(() => this.#consumptions.has(consumption) && this.#consume(consumption));
      }
    }
    for (const subscription of this.#subscriptions) {
      if (topic !== undefined && subscription.topic === topic) {
        this.#later(() => this.#subscriptions.has(subscription) && this.#ask(subscription));
      }
    }
  }

  /** Retries after a delay on the same connection; a new connection requests everything again anyway. */
  #later(again) {
    const socket = this.#socket;
    setTimeout(() => socket && socket === this.#socket && this.#status === "open" && again(), AGAIN);
  }

  #others(subscription) {
    return [...this.#subscriptions].some((other) => other !== subscription && other.topic === subscription.topic);
  }

  #unsubscribe(subscription) {
    const was = this.#subscriptions.delete(subscription);
    if (was && this.#status === "open" && !this.#others(subscription)) {
      this.#send({ op: "unsubscribe", topic: subscription.topic }, () => {}, () => {});
    }
  }

  #request(words) {
    return new Promise((resolve, reject) => {
      if (this.#status === "closed") return reject(new SinewsError("closed", "the client is closed"));
      if (this.#status === "open") return this.#send(words, resolve, reject);
      if (this.#queue.length >= QUEUE_MAX) return reject(new SinewsError("full", "too many requests are queued while disconnected (limit 256)"));
      this.#queue.push({ words, resolve, reject });
    });
  }

  #send(words, resolve, reject) {
    if (this.#awaited.size >= AWAITED_MAX) return reject(new SinewsError("full", "too many requests are pending (limit 4096)"));
    const id = this.#nextId++;
    this.#awaited.set(id, { resolve, reject });
    this.#socket.send(JSON.stringify({ ...words, id }));
    return id;
  }
}

/** The result of `subscribe`. */
class Subscription {
  #onmessage;
  #options;
  #matches;
  #position = null;
  #resolve;
  #reject;
  #changes = -1;

  constructor(client, topic, onmessage, options, unsubscribe) {
    this.client = client;
    this.topic = topic;
    this.unsubscribe = unsubscribe;
    this.#onmessage = onmessage;
    this.#options = options;
    this.#matches = matcher(topic);
    /** Resolves on the first acknowledgement; rejects on an error. */
    this.ready = new Promise((resolve, reject) => ([this.#resolve, this.#reject] = [resolve, reject]));
    // A caller that ignores it need not catch.
    this.ready.catch(() => {});
  }

  _wishes() {
    const { presence, last } = this.#options;
    const wishes = presence ? { presence: true } : {};
    if (this.#position) wishes.from = this.#position;
    else if (last) wishes.last = last;
    return wishes;
  }

  _hear(message) {
    if (!this.#matches(message.topic)) return;
    if ("seq" in message && message.topic === this.topic) {
      const { epoch, seq } = message;
      // A duplicate that another subscription requested.
      if (this.#position?.epoch === epoch && seq <= this.#position.seq) return;
      this.#position = { epoch, seq };
    }
    this.#onmessage(message);
  }

  _miss(topic) {
    if (topic === undefined || this.#matches(topic)) this.#options.ongap?.();
  }

  _present({ topic, subscribers, at }) {
    if (topic !== this.topic || !this.#options.presence || at <= this.#changes) return;
    this.#changes = at;
    this.#options.presence(subscribers);
  }

  _settle(ack) {
    // A restarted server counts from the beginning.
    this.#changes = -1;
    if ("subscribers" in ack) this._present(ack);
    if ("seq" in ack) {
      if (this.#position && ack.complete === false) this.#options.ongap?.();
      if (!ack.replayed) this.#position = { epoch: ack.epoch, seq: ack.seq };
    }
    this.#resolve(ack);
  }

  _refuse(error) {
    this.#reject(error);
    this.#options.onerror?.(error);
  }
}

/** The result of `stream`. */
class Stream {
  #client;

  constructor(name, client) {
    this.name = name;
    this.#client = client;
  }

  /**
   * Appends JSON, or bytes. Resolves with `{ partition, offset }` when the record is on disk, or with the option
   * `ack: "memory"` when it has its offset. While disconnected, and on a lost connection, as `publish`.
   */
  append(data, { key, partition, ack } = {}) {
    const bytes = toBytes(data);
    const record = bytes ? { b64: toBase64(bytes) } : { data };
    return this.#client.request({ op: "append", stream: this.name, key, partition, ack, ...record });
  }

  /**
   * Delivers each record once, in the order of its partition: from `from` on ("earliest", "latest", `{ offset }` or
   * `{ time }` in microseconds since 1970; default "latest"), or as a member of a `group` from its committed offset.
   * After a reconnect it resumes after the last record. A client has one consumption of each stream.
   */
  consume(onrecord, options = {}) {
    const consumption = new Consumption(this.name, onrecord, options, this.#client);
    this.#client.begin(consumption);
    return consumption;
  }

  /** Reads records once from an offset on, about `max` bytes: `{ records, next, end }`. */
  async read(offset, { partition = 0, max } = {}) {
    const answer = await this.#client.request({ op: "read", stream: this.name, partition, offset, max });
    return { records: answer.records.map(readable), next: answer.next, end: answer.end };
  }

  /** The first and end offsets of the partitions, and the committed offsets of the groups. */
  async info() {
    const { partitions, groups } = await this.#client.request({ op: "stream", stream: this.name });
    return { partitions, groups };
  }
}

/** The result of `consume`. */
class Consumption {
  #onrecord;
  #options;
  #client;
  #next = new Map();
  /** Set by the acknowledgement; earlier messages belong to a previous consumption. */
  #begun = false;
  #resolve;
  #reject;

  constructor(stream, onrecord, options, client) {
    this.stream = stream;
    this.#onrecord = onrecord;
    this.#options = options;
    this.#client = client;
    /** Resolves on the first acknowledgement; rejects on an error. */
    this.ready = new Promise((resolve, reject) => ([this.#resolve, this.#reject] = [resolve, reject]));
    // A caller that ignores it need not catch.
    this.ready.catch(() => {});
  }

  /** Commits the group's offset after the records delivered so far. */
  commit() {
    const { group } = this.#options;
    const stored = [...this.#next].map(([partition, offset]) =>
      this.#client.request({ op: "commit", stream: this.stream, group, partition, offset }));
    return Promise.all(stored);
  }

  /** Stops. The other members of a group continue from its committed offset. */
  stop() {
    this.#client.end(this);
  }

  _wishes() {
    this.#begun = false;
    const { from, group, partition } = this.#options;
    const words = { op: "consume", stream: this.stream, from, group, partition };
    // One offset for all partitions: duplicates of partitions that are further are skipped.
    if (!group && this.#next.size > 0) words.from = { offset: Math.min(...this.#next.values()) };
    return words;
  }

  _settle(ack) {
    this.#begun = true;
    for (const { partition, offset } of ack.partitions) {
      if (!this.#next.has(partition)) this.#next.set(partition, offset);
    }
    this.#resolve(ack);
  }

  _hear(message) {
    if (!this.#begun || message.stream !== this.stream) return;
    const { partition } = message;
    switch (message.op) {
      case "assigned":
        // Another member may have committed a later offset meanwhile.
        this.#next = new Map(message.partitions.map(({ partition, offset }) =>
          [partition, Math.max(offset, this.#next.get(partition) ?? 0)]));
        this.#options.onassigned?.([...this.#next.keys()]);
        for (const { partition, offset, reset } of message.partitions) {
          if (reset) this.#options.onreset?.({ partition, offset });
        }
        return;
      case "gap":
        this.#next.set(partition, Math.max(message.to, this.#next.get(partition) ?? 0));
        this.#options.ongap?.({ partition, from: message.from, to: message.to });
        return;
      default:
        for (const record of message.records) {
          if (record.offset < (this.#next.get(partition) ?? 0)) continue;
          this.#next.set(partition, record.offset + 1);
          this.#onrecord({ partition, ...readable(record) });
        }
    }
  }

  _refuse(error) {
    this.#reject(error);
    this.#options.onerror?.(error);
  }
}

function readable(record) {
  return "b64" in record ? { ...record, data: fromBase64(record.b64) } : record;
}

/** `*` matches one token between dots, `>` at the end one or more. */
function matcher(pattern) {
  const tokens = pattern.split(".");
  if (!tokens.includes("*") && !tokens.includes(">")) return (topic) => topic === pattern;
  const open = tokens.at(-1) === ">";
  const fixed = open ? tokens.slice(0, -1) : tokens;
  return (topic) => {
    const found = topic.split(".");
    const fits = open ? found.length > fixed.length : found.length === fixed.length;
    return fits && fixed.every((token, at) => token === "*" || token === found[at]);
  };
}

function toBytes(data) {
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return null;
}

function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(text);
}

function fromBase64(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}
