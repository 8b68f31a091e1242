/**
 * The browser's side of the protocol at /ws (docs/protocol.md): topics that survive lost connections.
 *
 *   import { connect } from "/sinews.js";
 *   const client = connect();
 *   client.subscribe("chat.*", ({ topic, data }) => console.log(topic, data));
 *   await client.publish("chat.room", { text: "hello" });
 *
 * One file, nothing from elsewhere. Types: /sinews.d.ts.
 */

/** Messages that wait for a connection, at most; more are refused at once. */
const QUEUE_MAX = 256;
/** Acknowledgements that are waited for, at most. */
const AWAITED_MAX = 4096;
/** Close codes: the token has expired or is rejected; the path, the origin or a missing right is, for every attempt. */
const TOKEN_REJECTED = 4401;
const REJECTED = new Set([4400, 4403, 4404]);
/** What can be sent as a subprotocol (RFC 6455 section 4.1). */
const IS_TOKEN = /^[\w!#$%&'*+.^`|~-]+$/;
/** A token is renewed when this share of its time is left, and at most so many milliseconds before its end. */
const RENEWAL_SHARE = 0.2;
const RENEWAL_MAX = 60_000;
/** Milliseconds between attempts to renew. */
const RENEWAL_RETRY = 5_000;
/** The longest time of a timer. */
const TIMER_MAX = 2 ** 31 - 1;
/** Error code of what keeps streams and cannot just now, and milliseconds until it is asked again. */
const STORE = 503;
const AGAIN = 1_000;

/** What the server, or this client, says went wrong; `code` is that of docs/protocol.md, or a word. */
export class SinewsError extends Error {
  /** @param {number | string} code @param {string} message @param {object} [needs] */
  constructor(code, message, needs) {
    super(message);
    this.name = "SinewsError";
    this.code = code;
    this.needs = needs;
  }
}

/** Connects, and stays connected until `close`. */
export function connect(url, options) {
  return new Client(url, options);
}

/** One connection to a server, over and over again. */
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
  /** The token of the connection, and the one that the server has rejected last. */
  #token;
  #rejectedToken = null;

  /** Called with each change of state: `{ status, attempt, delay, code, reason }`. */
  onstatus = null;

  constructor(url, options = {}) {
    if (!(options.WebSocket ?? globalThis.WebSocket)) {
      throw new SinewsError("no-websocket", "this runtime has no global WebSocket (Node.js has one from version 22 on): "
        + "pass a class, for example connect(url, { WebSocket }) with the one of the package ws");
    }
    const base = globalThis.location?.href;
    this.#url = new URL(url ?? "/ws", base);
    if (this.#url.protocol.startsWith("http")) {
      this.#url.protocol = this.#url.protocol.replace("http", "ws");
    }
    this.#options = { minDelay: 250, maxDelay: 30_000, silence: 30_000, patience: 10_000, ...options };
    this.onstatus = options.onstatus ?? null;
    globalThis.addEventListener?.("online", this.#online);
    // So that whoever made it can set `onstatus` first.
    queueMicrotask(() => this.#open());
  }

  /** "connecting", "open", "waiting" (for the next attempt) or "closed". */
  get status() {
    return this.#status;
  }

  /**
   * Hears a topic, or all that match a pattern, from now on and after every reconnect. A topic that the server keeps is
   * resumed behind the last message that was heard; what was forgotten meanwhile is told by `ongap`.
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
   * Publishes JSON, or bytes (an ArrayBuffer or a view of one). Resolves when the server has it. What is published
   * while there is no connection waits for one; what was sent when it was lost is rejected with the code "lost", since
   * nobody knows whether it arrived.
   */
  publish(topic, data) {
    const bytes = toBytes(data);
    return this.#request(bytes ? { op: "publish", topic, b64: toBase64(bytes) } : { op: "publish", topic, data });
  }

  /** What the server keeps of a topic: the last so many messages. */
  async history(topic, last = 100) {
    const { messages } = await this.#request({ op: "history", topic, last });
    for (const message of messages) if ("b64" in message) message.data = fromBase64(message.b64);
    return messages;
  }

  /** A stream of the server (docs/streams.md): what is appended to it stays, and is read from any place on. */
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

  /** How many are subscribed to a topic by its name. */
  async presence(topic) {
    return (await this.#request({ op: "presence", topic })).subscribers;
  }

  /** Ends the connection, for good. */
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
    if (token && !IS_TOKEN.test(token)) return this.#end("closed", TOKEN_REJECTED, "the token is no JWT");
    this.#token = token;
    const protocols = token ? ["sinews.v1", `sinews.bearer.${token}`] : ["sinews.v1"];
    const Socket = this.#options.WebSocket ?? WebSocket;
    const socket = new Socket(this.#url, protocols);
    this.#socket = socket;
    this.#welcome = setTimeout(() => this.#lose(socket, 0, "no answer"), this.#options.patience);
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
    // A token that never changes is rejected again. A function is asked for another one.
    const isFinal = REJECTED.has(code) || (code === TOKEN_REJECTED && typeof this.#options.token !== "function");
    if (isFinal) this.#end("closed", code, reason);
    else this.#wait(code, reason);
  }

  /** The next attempt: twice as late each time, and not all clients of a server at once. */
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

  /** Asks the function for the next token before the connection's ends, in so many seconds. */
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

  /** Without a new token the connection goes on until its token ends, and is opened anew then. */
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

  /** Silence is broken by a ping, and when that stays without an answer, the connection is gone. */
  #listen() {
    const { silence, patience } = this.#options;
    clearTimeout(this.#watch);
    this.#heard = false;
    this.#watch = setTimeout(() => {
      if (this.#heard) return this.#listen();
      const socket = this.#socket;
      this.#send({ op: "ping" }, () => {}, () => {});
      this.#watch = setTimeout(() => (this.#heard ? this.#listen() : this.#lose(socket, 0, "silence")), patience);
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

  /** Asks for a stream from where this client has come to. */
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

  /** The server could not go on with something that it had acknowledged: it is asked again. */
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

  /** In a while, if this connection is still there; with another one everything is asked again anyway. */
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
      if (this.#queue.length >= QUEUE_MAX) return reject(new SinewsError("full", "too much waits for a connection"));
      this.#queue.push({ words, resolve, reject });
    });
  }

  #send(words, resolve, reject) {
    if (this.#awaited.size >= AWAITED_MAX) return reject(new SinewsError("full", "too much waits for an answer"));
    const id = this.#nextId++;
    this.#awaited.set(id, { resolve, reject });
    this.#socket.send(JSON.stringify({ ...words, id }));
    return id;
  }
}

/** What `subscribe` answers. */
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
    /** Resolves when the server has it for the first time; rejects if it refuses. */
    this.ready = new Promise((resolve, reject) => ([this.#resolve, this.#reject] = [resolve, reject]));
    // Whoever does not ask does not have to catch.
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
      // What another subscription asked for again.
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
    // The server that was restarted counts from the beginning.
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

/** What `stream` answers. */
class Stream {
  #client;

  constructor(name, client) {
    this.name = name;
    this.#client = client;
  }

  /**
   * Appends JSON, or bytes. Resolves with `{ partition, offset }` when it is on disk, or with the option `ack: "memory"`
   * when it has its place. Without a connection, and when one is lost, as `publish`.
   */
  append(data, { key, partition, ack } = {}) {
    const bytes = toBytes(data);
    const record = bytes ? { b64: toBase64(bytes) } : { data };
    return this.#client.request({ op: "append", stream: this.name, key, partition, ack, ...record });
  }

  /**
   * Hears each record once, in the order of its partition: from `from` on ("earliest", "latest", `{ offset }` or `{ time }`
   * in microseconds since 1970; "latest" unless told), or as a member of a `group` from where that has come to. After a
   * reconnect it goes on behind the last one. A client has one consumption of each stream.
   */
  consume(onrecord, options = {}) {
    const consumption = new Consumption(this.name, onrecord, options, this.#client);
    this.#client.begin(consumption);
    return consumption;
  }

  /** Records once, from an offset on, about so many bytes: `{ records, next, end }`. */
  async read(offset, { partition = 0, max } = {}) {
    const answer = await this.#client.request({ op: "read", stream: this.name, partition, offset, max });
    return { records: answer.records.map(readable), next: answer.next, end: answer.end };
  }

  /** Where its partitions begin and end, and how far its groups have come. */
  async info() {
    const { partitions, groups } = await this.#client.request({ op: "stream", stream: this.name });
    return { partitions, groups };
  }
}

/** What `consume` answers. */
class Consumption {
  #onrecord;
  #options;
  #client;
  #next = new Map();
  /** The server has acknowledged it: what came before that is of another one. */
  #begun = false;
  #resolve;
  #reject;

  constructor(stream, onrecord, options, client) {
    this.stream = stream;
    this.#onrecord = onrecord;
    this.#options = options;
    this.#client = client;
    /** Resolves when the server has it for the first time; rejects if it refuses. */
    this.ready = new Promise((resolve, reject) => ([this.#resolve, this.#reject] = [resolve, reject]));
    // Whoever does not ask does not have to catch.
    this.ready.catch(() => {});
  }

  /** Stores that the group goes on behind the records that were heard so far. */
  commit() {
    const { group } = this.#options;
    const stored = [...this.#next].map(([partition, offset]) =>
      this.#client.request({ op: "commit", stream: this.stream, group, partition, offset }));
    return Promise.all(stored);
  }

  /** Ends it. A group goes on without it from where it has committed. */
  stop() {
    this.#client.end(this);
  }

  _wishes() {
    this.#begun = false;
    const { from, group, partition } = this.#options;
    const words = { op: "consume", stream: this.stream, from, group, partition };
    // One offset for all partitions: what comes again of one that is further is not heard again.
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
        // What another member has read meanwhile is not asked of this one.
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

/** `*` stands for one token between dots, `>` at the end for one or more. */
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
