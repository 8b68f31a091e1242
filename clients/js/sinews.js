/**
 * Client of the Sinews protocol `sinews.v1` for browsers, Node.js, Deno and Bun. Subscriptions survive lost connections.
 *
 *   import { connect } from "@sinews/client"; // or from "/sinews.js" of the server
 *   const client = connect("wss://example.com/ws"); // in a page of the server: connect()
 *   client.subscribe("chat.room", ({ topic, data }) => console.log(topic, data), { ongap: ({ reason }) => console.log("lost:", reason) });
 *   await client.publish("chat.room", { text: "hello" });
 *
 * One file without dependencies. Types: sinews.d.ts.
 */

/** Limit of requests queued while disconnected; further requests are rejected at once. */
const QUEUE_MAX = 256;
/** Limit of pending requests. */
const PENDING_MAX = 4096;
/** Milliseconds for which a request with an idempotency key is repeated. The server remembers the key for 300 s. */
const REPEAT_MAX = 240_000;
/** Bytes of a generated idempotency key. */
const KEY_BYTES = 16;
/** Limit of topics whose positions a subscription to a pattern has, as at the server. */
const POSITIONS_MAX = 1024;
/** Close codes: invalid or expired token; path, origin or missing right, which no retry can fix. */
const TOKEN_REJECTED = 4401;
const REJECTED = new Set([4400, 4403, 4404]);
/** Close code of a connection that was lost or refused. */
const ABNORMAL = 1006;
/** The characters of a subprotocol (RFC 6455 section 4.1). */
const IS_TOKEN = /^[\w!#$%&'*+.^`|~-]+$/;
/** A token is renewed when this share of its lifetime is left, at most this many milliseconds before it expires. */
const RENEWAL_SHARE = 0.2;
const RENEWAL_MAX = 60_000;
/** Milliseconds between renewal attempts; less if the token expires soon. */
const RENEWAL_RETRY = 5_000;
const RENEWAL_RETRY_MIN = 250;
/** A connection that lasted this many milliseconds resets the delay between attempts. */
const STABLE = 5_000;
/** Milliseconds in which a ping is answered after a change of the network or a sleep, else the client reconnects. */
const WAKE_TIMEOUT = 3_000;
/** Longest delay of a timer, in milliseconds. */
const TIMER_MAX = 2 ** 31 - 1;
/** Characters of a frame that the option `debug` prints. */
const DEBUG_MAX = 1_000;
/** Prefix of the subprotocol with the token. */
const BEARER = "sinews.bearer.";
/** With the option `fallback`: failed attempts before the next one uses HTTP, at first and after HTTP has worked. */
const FALLBACK_AFTER = 2;
const FALLBACK_AGAIN_AFTER = 1;
/** Topics of one HTTP response, and topics that it joins. */
const RESPONSE_TOPICS_MAX = 64;
/**
 * HTTP responses at a time: browsers open six connections to a server, and requests need one. Two are for topics. While joins
 * change, there is one more.
 */
const RESPONSES_MAX = 5;
const RESPONSES_WITHOUT_TOPICS_MAX = RESPONSES_MAX - 2;
const EXCESS = `more than ${RESPONSES_MAX} responses need a WebSocket, and this network blocks it`;
/** Error code of a second consumption of a stream. */
const CONSUMED = 409;
/** Error code of a request that HTTP does not offer; close code of a connection that is made anew. */
const NOT_IMPLEMENTED = 501;
const RESTART = 1012;
/** Error code of a store that is temporarily unavailable, and milliseconds before a retry. */
const STORE = 503;
const RETRY_DELAY = 1_000;
/** Names of options. */
const REQUEST_OPTIONS = "queue timeout signal";
const KEY_OPTIONS = `ifNew ifExists version epoch idempotencyKey ${REQUEST_OPTIONS}`;
const CLIENT_OPTIONS = "WebSocket token onstatus onmessage ongap minDelay maxDelay heartbeatInterval responseTimeout debug";

/** An error of the server or of this client; `code` is a number of the protocol, or a word. */
export class SinewsError extends Error {
  /** @param {number | string} code @param {string} message @param {object} [needs] @param {boolean} [sent] */
  constructor(code, message, needs, sent) {
    super(message);
    this.name = "SinewsError";
    this.code = code;
    this.needs = needs;
    this.sent = sent;
  }
}

/** Connects, and reconnects until `close`. */
export function connect(url, options) {
  return new Client(url, options);
}

/** A connection to a server that reconnects automatically, without streams and HTTP. */
export class CoreClient {
  #url;
  #options;
  #HttpSocket;
  #socket = null;
  #status = "connecting";
  #listeners = new Set();
  #attempt = 0;
  #timer = 0;
  #heartbeat = 0;
  /** Time of the last message of the server, in milliseconds, and the number of messages. */
  #receivedAt = 0;
  #received = 0;
  #transport = "websocket";
  /** Consecutive WebSockets without a welcome, and whether HTTP has worked. */
  #failures = 0;
  #hasUsedHttp = false;
  /** Time of the welcome; 0 before it. */
  #openedAt = 0;
  /** Whether there was an earlier connection, whose server-side subscriptions have ended. */
  #hasOpened = false;
  /** Id of the WebSocket's connection. */
  #connection;
  #nextId = 1;
  #pending = new Map();
  #queue = [];
  /** Subscriptions, joins, followed keys and consumptions, which each connection requests. */
  #repeated = new Set();
  /** Followed keys, by topic. */
  #views = new Map();
  /** Joined topics: the last `Membership` of each. */
  #joined = new Map();
  /** Timeout of the token, and then of the welcome. */
  #welcome = null;
  #renewal = 0;
  /** Time at which the token expires, and at which another one is requested; the lifetime of the token. */
  #expiresAt = 0;
  #renewAt = 0;
  #life = 0;
  /** The connection's token, and the token that the server has rejected last. */
  #token;
  #rejectedToken = null;

  /** Called on each change of state: `{ status, attempt, delay, code, reason }`. */
  onstatus = null;

  constructor(url, options = {}, HttpSocket = undefined) {
    if (!(options.WebSocket ?? globalThis.WebSocket)) {
      throw new SinewsError("no-websocket", "this runtime has no global WebSocket (Node.js has one from version 22 on): "
        + "pass a class, for example connect(url, { WebSocket }) with the WebSocket of the package ws");
    }
    warnUnknown("connect", options, HttpSocket ? `fallback ${CLIENT_OPTIONS}` : CLIENT_OPTIONS);
    this.#url = absolute(url ?? "/ws");
    this.#options = { minDelay: 250, maxDelay: 30_000, heartbeatInterval: 30_000, responseTimeout: 10_000, ...options };
    this.#options.debug ??= storedDebug();
    this.#HttpSocket = HttpSocket;
    this.onstatus = options.onstatus ?? null;
    globalThis.addEventListener?.("online", this.#handleNetwork);
    globalThis.addEventListener?.("offline", this.#handleNetwork);
    globalThis.document?.addEventListener?.("visibilitychange", this.#handleNetwork);
    // The caller can set `onstatus` first.
    queueMicrotask(() => this.#open());
  }

  /** "connecting", "open", "waiting" (for the next attempt) or "closed". */
  get status() {
    return this.#status;
  }

  /** "websocket", or "http" with the option `fallback` where WebSockets fail. */
  get transport() {
    return this.#transport;
  }

  /**
   * Ids of the open connections, by which a backend addresses this client: one of a WebSocket, or one for each response
   * over HTTP.
   */
  get connections() {
    return this.#socket?.connections ?? (this.#connection === undefined ? [] : [this.#connection]);
  }

  /** Bytes that the socket has not yet sent. */
  get bufferedAmount() {
    return this.#socket?.bufferedAmount ?? 0;
  }

  /** Number of requests that wait for a connection. */
  get queued() {
    return this.#queue.length;
  }

  /** As an `EventTarget`: the event "status" has the fields that `onstatus` gets. */
  addEventListener(type, listener, { once, signal } = {}) {
    if (!listener || signal?.aborted || [...this.#listeners].some((one) => one.type === type && one.listener === listener)) return;
    const entry = { type, listener, once };
    this.#listeners.add(entry);
    signal?.addEventListener("abort", () => this.#listeners.delete(entry), { once: true });
  }

  removeEventListener(type, listener) {
    for (const entry of this.#listeners) if (entry.type === type && entry.listener === listener) this.#listeners.delete(entry);
  }

  /**
   * Subscribes to a topic or a pattern, and again after every reconnect. A topic with a history resumes after the last
   * received message, at first after the option `from`, and a pattern after the last message of each topic. `ongap` reports lost
   * messages: without a history, after every reconnect.
   */
  subscribe(topic, onmessage, options = {}) {
    warnUnknown("subscribe", options, "presence members last from recover onsubscribed ongap onerror");
    const unsubscribe = () => this.#unsubscribe(subscription);
    const subscription = new Subscription(this, topic, onmessage, options, unsubscribe, (message) => this._request(message));
    const { presence, members, last, from } = options;
    const other = this.#others(subscription).find(({ _isAcknowledged }) => _isAcknowledged);
    const shares = this.#status === "open" && other && !presence && !members && !last && !from;
    this._begin(subscription, shares);
    if (shares) subscription._acknowledge({ topic, ...other.position });
    return subscription;
  }

  /**
   * Publishes JSON, or bytes (an ArrayBuffer or a view of it). Resolves when the server acknowledges. Publications are
   * queued while disconnected. A publication in flight when the connection is lost is rejected with the code "lost",
   * because its delivery is unknown. With an `idempotencyKey`, or true for a generated one, it is repeated instead.
   */
  publish(topic, data, options = {}) {
    warnUnknown("publish", options, `idempotencyKey ${REQUEST_OPTIONS}`);
    return this._request({ op: "publish", topic, ...payload(data), idempotency_key: idempotencyKey(options) }, options);
  }

  /**
   * Fetches retained messages of a topic, the oldest first: the last ones, by default 100; with `{ before, last }` the last
   * ones before a position; with `{ from, limit }` those after a position. One answer has at most 1,000 messages and 1 MiB.
   * The array has the properties `more` and `complete`.
   */
  async history(topic, range = 100) {
    const options = typeof range === "number" ? { last: range } : range;
    warnUnknown("history", options, `last from before limit ${REQUEST_OPTIONS}`);
    const { last, limit } = options;
    // A message has further fields.
    const [from, before] = [options.from, options.before].map((one) => one && { epoch: one.epoch, seq: one.seq });
    const request = { op: "history", topic, last: last ?? (from ? undefined : 100), from, before, limit };
    const { messages, more = false, complete = true } = await this._request(request, options);
    for (const message of messages) if ("b64" in message) message.data = fromBase64(message.b64);
    return Object.defineProperties(messages, { more: { value: more }, complete: { value: complete } });
  }

  /**
   * Follows the keys of a topic, and again after every reconnect: `onchange` is called with a new map of their values by key
   * (bytes for a value in base64), and the keys that have changed. A client that is slower than the changes gets the last
   * values. Options: `filter`, a pattern of keys; `interval`, milliseconds between updates. Several states of one topic
   * share a subscription, with the shortest of their intervals.
   */
  state(topic, onchange, options = {}) {
    warnUnknown("state", options, "filter interval onsubscribed ongap onreset onerror");
    const state = new State(topic, onchange, options, () => {
      state._end();
      if (!view.states.delete(state) || view.states.size > 0 || this.#views.get(topic) !== view) return;
      this.#views.delete(topic);
      this._stop(view, { op: "unsubscribe", topic, keys: true });
    });
    const known = this.#views.get(topic);
    const view = known ?? new View(topic, () => this.#views.delete(topic));
    const isWider = view._add(state);
    if (!known) {
      this.#views.set(topic, view);
      this._begin(view);
    } else if (isWider && this.#status === "open") this.#repeat(view);
    return state;
  }

  /**
   * Sets a key of a topic to JSON or bytes. Options: `ttl` in milliseconds; one of `ifNew`, `ifExists` and `version`,
   * which may have an `epoch`; `idempotencyKey`. Resolves with the position of the change; rejects with 412 if the
   * condition is not met. On a lost connection, as `publish`. While disconnected, it replaces a queued `set` of its key.
   */
  set(topic, key, data, options = {}) {
    warnUnknown("set", options, `ttl ${KEY_OPTIONS}`);
    return this._request({ op: "set", topic, key, ...payload(data), ...conditions(options) }, options);
  }

  /** Deletes a key of a topic; options as for `set`, without `ttl`. */
  delete(topic, key, options = {}) {
    warnUnknown("delete", options, KEY_OPTIONS);
    return this._request({ op: "delete", topic, key, ...conditions(options) }, options);
  }

  /**
   * Calls a method of the application behind the server (hook `rpc`), and resolves with its result. With the option
   * `topic`, the application gets the topic, too. While disconnected, and on a lost connection, as `publish`.
   */
  async call(method, data = null, options = {}) {
    warnUnknown("call", options, `topic ${REQUEST_OPTIONS}`);
    return (await this._request({ op: "rpc", method, data, topic: options.topic }, options)).data;
  }

  /** The number of subscribers of a topic by its name. */
  async presence(topic, options) {
    return (await this._request({ op: "presence", topic }, options)).subscribers;
  }

  /**
   * Makes this client present in a topic as a member, `{ id, info }`, and again after every reconnect, until all joins of the
   * topic have ended: each by the method `leave` of its result, or all by `client.leave`. Joining again replaces the
   * member, and the earlier result takes that of the later. The result is a promise, which resolves when the server
   * acknowledges, or after `leave`, and rejects if the server rejects the member.
   */
  join(topic, member) {
    // A member of a list has a number of connections, which no client sets.
    const { connections: _, ...own } = member ?? {};
    const former = this.#joined.get(topic);
    const leave = () => (this.#joined.get(topic)?.share === joined.share ? this.leave(topic) : undefined);
    const joined = new Membership(topic, own, former, leave);
    const isJoined = this.#status === "open" && former?._isJoined && JSON.stringify(former.member) === JSON.stringify(own);
    this.#repeated.delete(former);
    if (this.#status !== "closed") this.#joined.set(topic, joined);
    this._begin(joined, isJoined);
    if (isJoined) joined._acknowledge();
    return joined;
  }

  /** Ends the presence of this client in a topic. Resolves when the server acknowledges. */
  async leave(topic) {
    const joined = this.#joined.get(topic);
    if (!joined) return;
    this.#joined.delete(topic);
    this.#repeated.delete(joined);
    joined.share.count = 0;
    joined._resolve();
    joined._end();
    if (this.#status === "open") await this._request({ op: "leave", topic });
  }

  /** Lists the members of a topic: `{ id, info, connections }` of each, in order of their ids. */
  async members(topic, options) {
    const members = [];
    let page;
    do {
      page = await this._request({ op: "members", topic, after: members.at(-1)?.id }, options);
      members.push(...page.members);
    } while (page.more);
    return members;
  }

  /** Connects now, if the client waits for its next attempt, or tests its connection, as a page does when it is visible again. */
  retry() {
    if (this.#status === "open") this.#ping(WAKE_TIMEOUT);
    if (this.#status !== "waiting") return;
    clearTimeout(this.#timer);
    // Not at once: an application that retries in `onstatus` may fail without a delay.
    this.#timer = setTimeout(() => this.#open());
  }

  /** Closes the connection permanently. */
  close() {
    if (this.#status !== "closed") this.#end(1000, "closed by this client");
  }

  #handleNetwork = ({ type }) => {
    const isHidden = type === "visibilitychange" && globalThis.document.visibilityState === "hidden";
    if (isHidden || (type === "offline" && this.#status !== "open")) return;
    this.#debug(type);
    this.retry();
  };

  async #open() {
    if (this.#status === "closed") return;
    this.#setStatus("connecting");
    if (this.#status === "closed") return;
    let token;
    try {
      token = await this.#fetchTokenInTime();
    } catch (error) {
      if (this.#status !== "closed" && !this.#endsWith(error)) this.#wait(0, `no token: ${describe(error)}`);
      return;
    }
    if (this.#status === "closed") return;
    if (this.#rejectedToken && token === this.#rejectedToken.token) {
      const { code, reason } = this.#rejectedToken;
      return this.#end(code, reason);
    }
    if (token && !isToken(token)) {
      const fault = `the token is ${typeof token === "string" ? "not a JWT" : `of the type ${typeof token}, and not a string`}`;
      // A function may return another token.
      return typeof this.#options.token === "function" ? this.#wait(TOKEN_REJECTED, fault) : this.#end(TOKEN_REJECTED, fault);
    }
    if (token !== this.#token) {
      this.#token = token;
      this.#setExpiry(secondsLeft(token));
      // The server's clock is right.
      this.#life = 0;
    }
    try {
      this.#connect(token ? ["sinews.v1", BEARER + token] : ["sinews.v1"]);
    } catch (error) {
      const reason = `cannot connect: ${describe(error)}`;
      // The URL is invalid, or the page may not connect to it (mixed content, CSP): later attempts fail, too.
      const isForbidden = isNamed(error, "SecurityError");
      if (isNamed(error, "SyntaxError") || (isForbidden && !this.#options.fallback)) return this.#end(0, reason);
      this.#failures = isForbidden ? FALLBACK_AFTER : this.#failures + 1;
      this.#wait(0, reason);
    }
  }

  #connect(protocols) {
    const { WebSocket: Socket = WebSocket, fallback, onmessage, responseTimeout } = this.#options;
    const usesHttp = this.#HttpSocket && fallback && this.#failures >= (this.#hasUsedHttp ? FALLBACK_AGAIN_AFTER : FALLBACK_AFTER);
    this.#transport = usesHttp ? "http" : "websocket";
    const socket = usesHttp ? new this.#HttpSocket(this.#url, protocols, Boolean(onmessage), responseTimeout) : new Socket(this.#url, protocols);
    let failure = "";
    socket.onmessage = (event) => {
      if (socket !== this.#socket) return;
      try {
        this.#debug("<", event.data);
        this.#handleMessage(JSON.parse(event.data));
      } catch (error) {
        this.#disconnected(socket, 0, `invalid message: ${describe(error)}`);
      }
    };
    // Runtimes other than browsers describe a failed handshake here. Node.js 20 reports no `close` after it.
    socket.onerror = (event) => {
      failure = event?.message ?? "";
      this.#disconnectLater(socket, failure);
    };
    // React Native has no code.
    socket.onclose = (event) => this.#disconnected(socket, event?.code ?? ABNORMAL, event?.reason || failure);
    this.#socket = socket;
    this.#welcome = setTimeout(() => this.#disconnected(socket, 0, "connect timeout"), responseTimeout);
  }

  async #fetchToken() {
    const { token } = this.#options;
    if (typeof token !== "function") return token;
    this.#debug("calls token");
    return token();
  }

  /** The present token, if most of its lifetime is left. Otherwise as `#fetchToken`, and rejects if the application does not answer. */
  #fetchTokenInTime() {
    if (this.#token && Date.now() < this.#renewAt) return this.#token;
    const { responseTimeout } = this.#options;
    return new Promise((resolve, reject) => {
      const timeout = () => reject(new Error(`the function \`token\` has not answered in ${responseTimeout} ms (responseTimeout)`));
      this.#welcome = setTimeout(timeout, responseTimeout);
      this.#fetchToken().then(resolve, reject);
    }).finally(() => clearTimeout(this.#welcome));
  }

  /** Whether an error of the function `token` ends this client: the user has no session any more. */
  #endsWith(error) {
    const isEnd = isNamed(error, "SinewsError") && error.code === TOKEN_REJECTED;
    if (isEnd) this.#end(TOKEN_REJECTED, error.message);
    return isEnd;
  }

  /** Ends a connection after the call in which it has failed: a caller may use it. */
  #disconnectLater(socket, reason) {
    setTimeout(() => this.#disconnected(socket, ABNORMAL, reason));
  }

  #disconnected(socket, code, reason) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    socket.onmessage = socket.onclose = null;
    closeSocket(socket);
    // Browsers do not tell why.
    if (code === ABNORMAL) reason ||= this.#openedAt ? "the connection was lost" : "the connection has failed";
    // A server that accepts connections and drops them at once must not be flooded.
    if (this.#openedAt && Date.now() - this.#openedAt >= STABLE) this.#attempt = 0;
    this.#failures = this.#openedAt || this.#transport === "http" ? 0 : this.#failures + 1;
    this.#openedAt = 0;
    this.#connection = undefined;
    clearTimeout(this.#welcome);
    clearTimeout(this.#heartbeat);
    clearTimeout(this.#renewal);
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const entry of pending) {
      if (entry.repeatsUntil && this.#queue.length < QUEUE_MAX) this.#queue.push(entry);
      else this.#rejectLost(entry);
    }
    if (code === TOKEN_REJECTED) {
      this.#rejectedToken = { token: this.#token, code, reason };
      this.#renewAt = 0;
    }
    // A constant token is rejected again. A function may return another token.
    const isFinal = REJECTED.has(code) || (code === TOKEN_REJECTED && typeof this.#options.token !== "function");
    if (isFinal) this.#end(code, reason);
    else this.#wait(code, reason);
  }

  #rejectLost({ reject }) {
    reject(new SinewsError("lost", "the connection was lost before the server answered", undefined, true));
  }

  /** Schedules the next attempt, with exponential backoff and jitter. */
  #wait(code, reason) {
    const { minDelay, maxDelay } = this.#options;
    const most = Math.min(maxDelay, minDelay * 2 ** Math.min(this.#attempt, 30));
    const delay = Math.round(most / 2 + (Math.random() * most) / 2);
    this.#attempt += 1;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), delay);
    this.#setStatus("waiting", { delay, code, reason });
  }

  #end(code, reason) {
    // Callbacks of the application may call this client, which has ended for them.
    this.#status = "closed";
    globalThis.removeEventListener?.("online", this.#handleNetwork);
    globalThis.removeEventListener?.("offline", this.#handleNetwork);
    globalThis.document?.removeEventListener?.("visibilitychange", this.#handleNetwork);
    for (const timer of [this.#timer, this.#heartbeat, this.#welcome, this.#renewal]) clearTimeout(timer);
    this.#connection = undefined;
    const socket = this.#socket;
    this.#socket = null;
    closeSocket(socket, 1000);
    const requests = [...this.#pending.values(), ...this.#queue];
    const repeated = [...this.#repeated];
    this.#pending.clear();
    this.#queue = [];
    this.#repeated.clear();
    this.#joined.clear();
    for (const { sent, reject } of requests) reject(new SinewsError("closed", reason || "the client is closed", undefined, sent));
    for (const one of repeated) one._reject(new SinewsError("closed", reason || "the client is closed"));
    this.#setStatus("closed", { code, reason });
  }

  #setStatus(status, more = {}) {
    this.#status = status;
    const change = { status, attempt: this.#attempt, ...more };
    this.#debug(status, change);
    notify(this.onstatus, change);
    for (const entry of [...this.#listeners]) {
      if (entry.type !== "status" || !this.#listeners.has(entry)) continue;
      if (entry.once) this.#listeners.delete(entry);
      const event = { type: "status", target: this, ...change };
      if (typeof entry.listener === "function") notify(entry.listener, event);
      else notify((event) => entry.listener.handleEvent(event), event);
    }
  }

  /** Prints with the option `debug`. */
  #debug(...parts) {
    if (!this.#options.debug) return;
    console.debug("sinews:", ...parts.map((part) => (typeof part === "string" ? part.slice(0, DEBUG_MAX) : JSON.stringify(part))));
  }

  #handleMessage(message) {
    this.#receivedAt = Date.now();
    this.#received += 1;
    switch (message.op) {
      case "welcome":
        return this.#handleWelcome(message);
      case "refreshed":
        this.#life = 0;
        return this.#renewBefore(message.expires_in);
      case "message":
        if ("b64" in message) message.data = fromBase64(message.b64);
        this.#deliver(message);
        return;
      case "dropped":
        return this.#reportGap({ topic: message.topic, reason: "dropped", messages: message.messages });
      case "reset":
        return this.#reportGap({ topic: message.topic, reason: "reset" });
      case "unsubscribed":
        return this.#endSubscriptions(message.topic);
      case "keys":
        return this.#views.get(message.topic)?._handleMessage(message);
      case "presence":
        for (const one of this.#repeated) one._updatePresence?.(message);
        break;
      case "records":
      case "gap":
      case "assigned":
        if (message.id !== undefined) break;
        for (const one of this.#repeated) if (one.stream === message.stream) one._handleMessage?.(message);
        return;
    }
    const pending = this.#pending.get(message.id);
    if (!pending) {
      if (message.op === "error") this.#repeatEnded(message);
      return;
    }
    this.#pending.delete(message.id);
    if (message.op === "error") pending.reject(new SinewsError(message.code, message.error, message.needs));
    else pending.resolve(message);
  }

  get #subscriptions() {
    return [...this.#repeated].filter((one) => one instanceof Subscription);
  }

  /** Passes a message to its subscriptions, or to the client's `onmessage` if the backend has subscribed this client. */
  #deliver(message) {
    let isOwn = false;
    const hasName = () => this.#subscriptions.some(({ topic }) => topic === message.topic);
    for (const one of this.#repeated) if (one instanceof Subscription) isOwn = one._handleMessage(message, hasName) || isOwn;
    if (!isOwn) notify(this.#options.onmessage, message);
  }

  /** The backend has ended the subscriptions to a topic. */
  #endSubscriptions(topic) {
    for (const subscription of this.#subscriptions) {
      if (subscription.topic !== topic) continue;
      this.#repeated.delete(subscription);
      subscription._reject(new SinewsError("unsubscribed", "the backend has ended the subscription"));
    }
  }

  /** As `#deliver`. A gap without a topic belongs to all. */
  #reportGap(gap) {
    let isOwn = false;
    for (const subscription of this.#subscriptions) isOwn = subscription._reportGap(gap) || isOwn;
    if (!isOwn || gap.topic === undefined) notify(this.#options.ongap, gap);
  }

  #handleWelcome({ connection, expires_in: expiresIn }) {
    clearTimeout(this.#welcome);
    this.#openedAt = Date.now();
    this.#connection = connection;
    this.#hasUsedHttp ||= this.#transport === "http";
    this.#renewBefore(expiresIn);
    this.#status = "open";
    this.#startHeartbeat();
    // Joins behind the subscriptions: other members may answer a new member at once.
    for (const one of [...this.#repeated].sort((one, other) => one._order - other._order)) this.#repeat(one);
    const queue = this.#queue;
    this.#queue = [];
    for (const entry of queue) {
      // The server may have forgotten the key of a request that was sent before.
      if (entry.sent && Date.now() >= entry.repeatsUntil) this.#rejectLost(entry);
      else this.#send(entry);
    }
    // Last: the application may make requests or close the client.
    this.#setStatus("open");
    if (this.#hasOpened && this.#options.onmessage) notify(this.#options.ongap, { reason: "unretained" });
    this.#hasOpened = true;
  }

  /** The token expires in these seconds. A renewal is due when a share of its lifetime is left; undefined: never. */
  #setExpiry(expiresIn) {
    const left = expiresIn * 1000;
    this.#expiresAt = this.#renewAt = expiresIn === undefined ? Infinity : Date.now() + left;
    if (expiresIn === undefined) return;
    this.#life = Math.max(this.#life, left);
    this.#renewAt -= Math.min(this.#life * RENEWAL_SHARE, RENEWAL_MAX);
  }

  /** Requests the next token before the current token expires in `expiresIn` seconds. */
  #renewBefore(expiresIn) {
    clearTimeout(this.#renewal);
    if (expiresIn === undefined || typeof this.#options.token !== "function") return;
    this.#setExpiry(expiresIn);
    this.#renewAfter(Math.max(this.#renewAt - Date.now(), 0));
  }

  #renewAfter(delay) {
    const step = Math.min(delay, TIMER_MAX);
    this.#renewal = setTimeout(() => (step < delay ? this.#renewAfter(delay - step) : this.#renew()), step);
  }

  /**
   * Renews the token, and again until the server has another one, also if the application does not answer. Without another
   * token, the connection is closed when the token expires, and reconnects then.
   */
  async #renew() {
    const socket = this.#socket;
    if (!socket) return;
    const left = this.#expiresAt - Date.now();
    this.#renewAfter(left > 0 ? Math.min(RENEWAL_RETRY, Math.max(RENEWAL_RETRY_MIN, left / 4)) : RENEWAL_RETRY);
    const token = await this.#fetchToken().catch((error) => void (socket === this.#socket && this.#endsWith(error)));
    if (socket !== this.#socket || token === this.#token || !isToken(token)) return;
    const resolve = ({ expires_in: expiresIn }) => {
      this.#token = token;
      this.#life = 0;
      this.#renewBefore(expiresIn);
    };
    this.#send({ message: { op: "token", token }, resolve, reject: ignore });
  }

  /** Sends a ping `heartbeatInterval` after the last message. A timer that is late has slept. */
  #startHeartbeat() {
    const { heartbeatInterval, responseTimeout } = this.#options;
    clearTimeout(this.#heartbeat);
    const rest = this.#receivedAt + heartbeatInterval - Date.now();
    if (rest > 0) this.#heartbeat = setTimeout(() => this.#startHeartbeat(), Math.min(rest, heartbeatInterval));
    else this.#ping(rest < -WAKE_TIMEOUT ? WAKE_TIMEOUT : responseTimeout);
  }

  /** Sends a ping, and drops the connection if no message follows in time. */
  #ping(timeout) {
    const [socket, received] = [this.#socket, this.#received];
    const most = Math.min(timeout, this.#options.responseTimeout);
    clearTimeout(this.#heartbeat);
    this.#send({ message: { op: "ping" }, resolve: ignore, reject: ignore });
    this.#heartbeat = setTimeout(() => {
      if (this.#received === received) this.#disconnected(socket, 0, "ping timeout");
      else this.#startHeartbeat();
    }, most);
  }

  /** Requests what each connection requests. If `isRequested`, the server has it already. */
  _begin(one, isRequested = false) {
    if (this.#status === "closed") return one._reject(new SinewsError("closed", "the client is closed"));
    this.#repeated.add(one);
    if (this.#status === "open" && !isRequested) this.#repeat(one);
  }

  /** Ends it, and tells the server. */
  _stop(one, message) {
    const was = this.#repeated.delete(one);
    one._end();
    if (was && this.#status === "open") this.#send({ message, resolve: ignore, reject: ignore });
  }

  #repeat(one) {
    const resolve = (ack) => {
      // Of several subscriptions to a topic, the server tells the first the position.
      const first = one instanceof Subscription && !("seq" in ack || ack.positions) && this.#others(one).find(({ _isAcknowledged, position }) => _isAcknowledged && position);
      one._acknowledge(first ? { ...ack, ...first.position } : ack);
    };
    one._id = this.#send({ message: one._request(), resolve, reject: (error) => {
      // A lost request is repeated by the next connection, and one that the server cannot execute now after a delay.
      if (error.code === STORE) this.#repeatLater(one);
      else if (one._isUnknown?.(error)) this.#repeat(one);
      else if (error.code !== "lost" && this.#repeated.delete(one)) {
        if (this.#joined.get(one.topic) === one) this.#joined.delete(one.topic);
        one._reject(error);
      }
    } });
  }

  /** The server has ended an acknowledged join, subscription or consumption: requests it again. */
  #repeatEnded(error) {
    for (const one of this.#repeated) if (one._covers(error)) this.#repeatLater(one);
  }

  /** Repeats after a delay on the same connection; a new connection requests everything again anyway. */
  #repeatLater(one) {
    const socket = this.#socket;
    const retry = () => socket && socket === this.#socket && this.#status === "open" && this.#repeated.has(one) && this.#repeat(one);
    // A program in Node.js may end meanwhile.
    setTimeout(retry, RETRY_DELAY).unref?.();
  }

  /** The other subscriptions to the same topic. */
  #others(subscription) {
    return this.#subscriptions.filter((other) => other !== subscription && other.topic === subscription.topic);
  }

  #unsubscribe(subscription) {
    if (this.#others(subscription).length === 0) return this._stop(subscription, { op: "unsubscribe", topic: subscription.topic });
    this.#repeated.delete(subscription);
    subscription._end();
  }

  /** Sends a request, or queues it while disconnected. */
  _request(message, { queue = true, timeout, signal } = {}) {
    let timer;
    const entry = { message, sent: false };
    entry.promise = new Promise((resolve, reject) => {
      const settle = (end) => (value) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", onabort);
        end(value);
      };
      Object.assign(entry, { resolve: settle(resolve), reject: settle(reject) });
    });
    const fail = (code, text) => entry.reject(new SinewsError(code, text, undefined, entry.sent));
    const abandon = () => {
      this.#queue = this.#queue.filter((other) => other !== entry);
      this.#pending.delete(entry.id);
    };
    const onabort = () => {
      abandon();
      if (signal.reason === undefined) fail("aborted", "the request was aborted");
      else entry.reject(signal.reason);
    };
    const ontimeout = () => {
      abandon();
      fail("timeout", `no answer in ${timeout} ms`);
    };
    if (message.idempotency_key !== undefined) entry.repeatsUntil = Date.now() + REPEAT_MAX;
    if (this.#status === "closed") fail("closed", "the client is closed");
    else if (signal?.aborted) onabort();
    else if (this.#status !== "open" && !queue) fail("offline", "there is no connection, and the request is not queued");
    else {
      if (timeout !== undefined) timer = setTimeout(ontimeout, timeout);
      signal?.addEventListener("abort", onabort);
      if (this.#status === "open") this.#send(entry);
      else this.#enqueue(entry);
    }
    return entry.promise;
  }

  /** A `set` replaces the last queued one of its key. A write with a condition depends on the one before, and replaces none. */
  #enqueue(entry) {
    const { op, topic, key } = entry.message;
    const former = op === "set" && this.#queue.filter(({ message }) => message.topic === topic && message.key === key).at(-1);
    if (former && [former, entry].every(({ message }) => isUnconditional(message))) {
      this.#queue = this.#queue.filter((other) => other !== former);
      // A caller that ignores it need not catch.
      former.promise.catch(ignore);
      former.reject(new SinewsError("replaced", `a later value of ${key} was set while disconnected`, undefined, false));
    }
    if (this.#queue.length < QUEUE_MAX) this.#queue.push(entry);
    else entry.reject(new SinewsError("full", `too many requests are queued while disconnected (limit ${QUEUE_MAX})`, undefined, false));
  }

  #send(entry) {
    const { message, reject, sent } = entry;
    const fail = (code, text) => reject(new SinewsError(code, text, undefined, Boolean(sent)));
    const socket = this.#socket;
    // A callback of the application, or the request before, has ended the connection.
    if (!socket) return fail("lost", "the connection was lost before the request");
    if (this.#pending.size >= PENDING_MAX) return fail("full", `too many requests are pending (limit ${PENDING_MAX})`);
    const id = this.#nextId++;
    let text;
    try {
      text = JSON.stringify({ ...message, id });
    } catch (error) {
      return fail("invalid", `the request cannot be JSON: ${describe(error)}`);
    }
    this.#debug(">", message.op === "token" ? "a new token" : text);
    Object.assign(entry, { id, sent: true });
    this.#pending.set(id, entry);
    try {
      socket.send(text);
    } catch (error) {
      this.#disconnectLater(socket, describe(error));
    }
    return id;
  }
}

/** A client with streams, and with HTTP where a network blocks WebSockets. */
export class Client extends CoreClient {
  constructor(url, options) {
    super(url, options, HttpSocket);
  }

  /** A durable stream of the server: it is appended to, and read from any offset. */
  stream(name) {
    return new Stream(name, {
      request: (message, options) => this._request(message, options),
      begin: (consumption) => this._begin(consumption),
      end: (consumption) => this._stop(consumption, { op: "stop", stream: name }),
    });
  }
}

/**
 * Requests of HTTP behind the interface of a WebSocket, for networks that block WebSockets: publications, calls, histories,
 * lists of members, streams, and subscriptions, joins and consumptions as lines of JSON. A consumer group needs a WebSocket.
 */
class HttpSocket {
  onmessage = null;
  onclose = null;
  #url;
  #responseTimeout;
  #headers = {};
  #abort = new AbortController();
  /** Requested subscriptions, which are combined. */
  #batch = [];
  /** Topics of subscriptions that have no answer yet, by id; called once all have one. */
  #unanswered = new Map();
  #onanswered = null;
  /** Open responses: `{ topics, abort, connection }`, with `{ ids, matches }` of each topic. */
  #responses = new Set();
  /** The same with keys, by topic, and with records, by stream. */
  #keyed = new Map();
  #consumed = new Map();
  /** Requested joins: `{ id, member, isJoined }`, by topic. */
  #joins = new Map();
  /** Requests that the next response answers: to leave, and joins that a later request has replaced: `[topic, { id }]`. */
  #leaves = [];
  /** The response by which this client is a member of topics, whether the joins differ from it, and whether it changes. */
  #membership = null;
  #joinsDiffer = false;
  #isJoining = false;
  /** Batches of subscriptions with open responses. */
  #batches = 0;
  #hasAssigned;
  /** The response with the topics to which the server has subscribed this client, which its `onmessage` gets. */
  #assigned = { abort: new AbortController(), topics: new Map() };

  constructor(url, protocols, assigned, responseTimeout) {
    this.#url = url.replace(/^ws/i, "http");
    this.#hasAssigned = assigned;
    this.#responseTimeout = responseTimeout;
    const offer = protocols.find((protocol) => protocol.startsWith(BEARER));
    if (offer) this.#headers.Authorization = `Bearer ${offer.slice(BEARER.length)}`;
    this.#check(() => {
      this.#receive({ op: "welcome" });
      if (assigned) this.#followAssigned();
    });
  }

  /** Ids of the responses that have begun. */
  get connections() {
    const open = [...this.#responses, ...this.#keyed.values(), ...this.#consumed.values(), this.#assigned, this.#membership];
    return open.map((response) => response?.connection).filter((connection) => connection !== undefined);
  }

  send(text) {
    const { id, ...message } = JSON.parse(text);
    const answer = (request) => request.then((reply) => this.#receive({ ...reply, id }), (error) => this.#reject(id, error));
    switch (message.op) {
      case "ping":
        return this.#check(() => this.#receive({ op: "pong", id }));
      case "publish":
        return answer(this.#publish(message));
      case "history":
        return answer(this.#history(message));
      case "rpc":
        return answer(this.#call(message));
      case "join":
        this.#withdrawJoin(message.topic);
        this.#joins.set(message.topic, { id, member: message.member, isJoined: false });
        return void this.#updateJoins();
      case "leave":
        this.#withdrawJoin(message.topic);
        this.#leaves.push([message.topic, { id }]);
        return void this.#updateJoins();
      case "presence":
      case "members":
        return answer(this.#listMembers(message));
      case "append":
        return answer(this.#append(message));
      case "set":
      case "delete":
        return answer(message.stream === undefined ? this.#writeKey(message) : this.#deleteStream(message));
      case "read":
        return answer(this.#readRecords(message));
      case "stream":
        return answer(this.#describeStream(message));
      case "consume":
        return void this.#consume({ id, ...message });
      case "stop":
        this.#unfollow(this.#consumed, message.stream);
        return this.#receive({ op: "ack", id, stream: message.stream });
      case "unsubscribe":
        if (message.keys) this.#unfollow(this.#keyed, message.topic);
        else this.#unsubscribe(message.topic);
        return this.#receive({ op: "ack", id, topic: message.topic });
      case "subscribe":
        if (message.keys) return void this.#followKeys({ id, ...message });
        // Positions of a pattern need a WebSocket.
        if (message.from?.positions) delete message.from;
        this.#unanswered.set(id, message.topic);
        // Subscriptions that are requested together share a response.
        if (this.#batch.push({ id, ...message }) === 1) queueMicrotask(() => this.#subscribe(this.#batch.splice(0)));
        return;
    }
    queueMicrotask(() => this.#reject(id, new SinewsError(NOT_IMPLEMENTED, `${message.op} needs a WebSocket, and this network blocks it`)));
  }

  close() {
    this.#abort.abort();
  }

  /** Whether the server answers. A server whose broker is away is not ready, and serves its clients. */
  async #check(then) {
    try {
      await this.#fetch("healthz");
      then();
    } catch (error) {
      this.#end(ABNORMAL, describe(error));
    }
  }

  async #publish({ topic, data, b64, idempotency_key: key }) {
    const init = { method: "POST", ...content(data, b64) };
    if (key !== undefined) init.headers["Idempotency-Key"] = key;
    const { subscribers, epoch, seq } = await (await this.#fetch(`topics/${encodeURIComponent(topic)}`, {}, init)).json();
    return { op: "ack", reached: subscribers, epoch, seq };
  }

  async #call({ method, data, topic }) {
    const init = { method: "POST", ...content(data) };
    return { op: "rpc", ...await (await this.#fetch(`rpc/${encodeURIComponent(method)}`, { topic }, init)).json() };
  }

  async #append({ stream, key, partition, ack, data, b64 }) {
    const init = { method: "POST", ...content(data, b64) };
    const path = `streams/${encodeURIComponent(stream)}`;
    return { op: "ack", ...await (await this.#fetch(path, { key, partition, ack }, init)).json() };
  }

  async #deleteStream({ stream }) {
    await this.#fetch(`streams/${encodeURIComponent(stream)}`, {}, { method: "DELETE" });
    return { op: "ack", stream };
  }

  /** Reads once, as the op `read`. */
  async #readRecords({ stream, partition, offset, max }) {
    const path = `streams/${encodeURIComponent(stream)}/records`;
    return { op: "records", ...await (await this.#fetch(path, { partition, offset, bytes: max })).json() };
  }

  async #describeStream({ stream }) {
    return { op: "stream", ...await (await this.#fetch(`streams/${encodeURIComponent(stream)}/info`)).json() };
  }

  #withdrawJoin(topic) {
    const former = this.#joins.get(topic);
    if (former && !former.isJoined) this.#leaves.push([topic, former]);
    this.#joins.delete(topic);
  }

  /** Joins and leaves what is requested. Requests that are made together share a response. */
  async #updateJoins() {
    this.#joinsDiffer = true;
    if (this.#isJoining) return;
    this.#isJoining = true;
    await null;
    for (let oneByOne = false; this.#joinsDiffer && !this.#abort.signal.aborted;) {
      // Other members may answer a new member at once.
      while (this.#unanswered.size > 0) await new Promise((resolve) => { this.#onanswered = resolve; });
      const joined = [...this.#joins].filter(([, { isJoined }]) => isJoined);
      const others = [...this.#joins].filter(([, { isJoined }]) => !isJoined);
      const added = others.slice(0, oneByOne ? 1 : others.length);
      const left = this.#leaves.splice(0);
      this.#joinsDiffer = added.length < others.length;
      const error = await this.#openMembership([...joined, ...added]).then(() => null, (failure) => failure);
      if (!error) {
        for (const [, entry] of added) entry.isJoined = true;
        for (const [topic, { id }] of [...added, ...left]) this.#receive({ op: "ack", id, topic });
        continue;
      }
      if (added.length === 0 || typeof error.code !== "number") return this.#end(ABNORMAL, error.message);
      this.#leaves.unshift(...left);
      const [[topic, entry]] = added;
      // One of them is rejected, and the others join.
      oneByOne = added.length > 1;
      // A response that has the former member ends, too.
      this.#joinsDiffer ||= oneByOne || left.length > 0 || Boolean(this.#membership?.joined.has(topic));
      if (oneByOne) continue;
      // Another request may have replaced it meanwhile.
      if (this.#joins.get(topic) === entry) this.#joins.delete(topic);
      this.#reject(entry.id, error);
    }
    this.#isJoining = false;
  }

  /** Opens a response that joins topics, and ends the former one once this client has joined all of them. */
  async #openMembership(entries) {
    const former = this.#membership;
    if (entries.length > RESPONSE_TOPICS_MAX) {
      throw new SinewsError(NOT_IMPLEMENTED, `more than ${RESPONSE_TOPICS_MAX} joined topics need a WebSocket, and this network blocks it`);
    }
    let response = null;
    if (entries.length > 0) {
      if (!former && !this.#hasCapacity(this.#countWithoutTopics() - 1)) throw new SinewsError(NOT_IMPLEMENTED, EXCESS);
      response = { abort: new AbortController(), topics: new Map(), joined: new Set() };
      const members = entries.map(([, { member }]) => JSON.stringify(member));
      const query = { join: entries.map(([topic]) => topic), member: new Set(members).size === 1 ? members[0] : members };
      const { body } = await this.#fetch("topics", query, { headers: { Accept: "application/x-ndjson" } }, response.abort);
      await new Promise((resolve, reject) => {
        this.#readMembership(response, body, entries.length, resolve).catch(reject);
      });
    }
    this.#membership = response;
    former?.abort.abort();
  }

  /** Calls `onjoined` once this client has joined `count` topics. An error before rejects them, and ends only this response. */
  async #readMembership(response, body, count, onjoined) {
    let failure = new SinewsError("lost", "the response has ended");
    try {
      for await (const line of lines(body)) {
        const message = JSON.parse(line);
        if (message.op === "joined") {
          response.joined.add(message.topic);
          if (response.joined.size === count) onjoined();
        } else if (message.op === "error" && response.joined.size < count) {
          response.abort.abort();
          throw new SinewsError(message.code, message.error, message.needs);
        } else this.#handleLine(response, message);
      }
    } catch (error) {
      failure = error instanceof SinewsError ? error : new SinewsError("lost", error.message);
    }
    // This client itself may have ended the response.
    if (!response.abort.signal.aborted) this.#end(ABNORMAL, failure.message);
    throw failure;
  }

  /** The conditions are headers. A version is an ETag, which has the epoch. */
  async #writeKey({ op, topic, key, data, b64, ttl, if_new, if_exists, version, epoch, idempotency_key }) {
    if (version !== undefined && epoch === undefined) {
      throw new SinewsError(NOT_IMPLEMENTED, "a version needs an epoch without a WebSocket, and this network blocks it");
    }
    const { body, headers } = op === "set" ? content(data, b64) : { headers: {} };
    if (if_new) headers["If-None-Match"] = "*";
    if (if_exists) headers["If-Match"] = "*";
    if (version !== undefined) headers["If-Match"] = `"${epoch}-${version}"`;
    if (idempotency_key !== undefined) headers["Idempotency-Key"] = idempotency_key;
    const init = { method: op === "set" ? "PUT" : "DELETE", body, headers };
    const path = `topics/${encodeURIComponent(topic)}/keys/${encodeURIComponent(key)}`;
    const { seq, changed, repeated, ...written } = await (await this.#fetch(path, { ttl }, init)).json();
    return { op: "ack", epoch: written.epoch, seq, changed, repeated };
  }

  /** A page of the members of a topic, with the number of subscribers. */
  async #listMembers({ op, topic, after }) {
    return { op, ...await (await this.#fetch(`topics/${encodeURIComponent(topic)}/members`, { after })).json() };
  }

  /** Opens a response with the keys of a topic. */
  #followKeys({ id, topic, filter, interval, from }) {
    const query = { filter, interval, from: from && positionText(from) };
    return this.#followAlone(this.#keyed, topic, id, `topics/${encodeURIComponent(topic)}/keys`, query);
  }

  /** Opens a response with the records of a stream. */
  #consume({ id, stream, from, partition, group }) {
    const fault = group !== undefined ? [NOT_IMPLEMENTED, "a consumer group needs a WebSocket, and this network blocks it"]
      : this.#consumed.has(stream) && [CONSUMED, `${stream} is being consumed already: stop first`];
    if (fault) return queueMicrotask(() => this.#reject(id, new SinewsError(...fault)));
    const query = { follow: true, partition, from: from?.offset ?? (from?.time === undefined ? from : undefined), time: from?.time };
    return this.#followAlone(this.#consumed, stream, id, `streams/${encodeURIComponent(stream)}/records`, query);
  }

  /** Opens a response for one topic or stream: `responses` has all of the kind. */
  async #followAlone(responses, name, id, path, query) {
    this.#unfollow(responses, name);
    if (!this.#hasCapacity(this.#countWithoutTopics())) return queueMicrotask(() => this.#rejectExcess(id));
    const topics = new Map([[name, { ids: [id], matches: () => false }]]);
    const response = { abort: new AbortController(), topics, isAnswered: false };
    responses.set(name, response);
    try {
      const { body } = await this.#fetch(path, query, { headers: { Accept: "application/x-ndjson" } }, response.abort);
      for await (const line of lines(body)) {
        const message = JSON.parse(line);
        if (message.op === "error" && responses === this.#consumed) {
          response.isAnswered = true;
          this.#unfollow(responses, name);
          // Of the request, or of the consumption that it has begun, which the client then begins anew.
          return this.#receive({ ...message, id });
        }
        this.#handleLine(response, message);
      }
      if (responses.get(name) === response) this.#end(ABNORMAL, "the response has ended");
    } catch (error) {
      if (responses.get(name) !== response) return;
      responses.delete(name);
      this.#reject(id, error);
    }
  }

  /** Ends the response for a topic or stream. Its request is answered, if the server has not yet answered it. */
  #unfollow(responses, name) {
    const response = responses.get(name);
    if (!response) return;
    responses.delete(name);
    response.abort.abort();
    if (response.isAnswered) return;
    for (const id of response.topics.get(name).ids) this.#receive({ op: "ack", id });
  }

  async #history({ topic, last, from, before, limit }) {
    if (before || limit !== undefined) throw new SinewsError(NOT_IMPLEMENTED, "before and limit need a WebSocket, and this network blocks it");
    const { messages } = await this.#poll({ topic, last, after: from && positionText(from) });
    if (!("seq" in messages[0])) throw new SinewsError(410, `${topic} has no history`);
    return { op: "history", messages: messages.slice(1) };
  }

  /** The retained messages, behind the acknowledgement. */
  async #poll({ topic, ...query }) {
    return (await this.#fetch(`topics/${encodeURIComponent(topic)}`, { wait: 0, ...query }, { headers: { Accept: "application/json" } })).json();
  }

  /** Responses with keys and with records, the one with assigned topics, and the one that joins topics. */
  #countWithoutTopics() {
    const isMember = this.#membership || this.#joins.size > 0;
    return this.#keyed.size + this.#consumed.size + (this.#hasAssigned ? 1 : 0) + (isMember ? 1 : 0);
  }

  /** Whether one more response than these others may be open without topics. The next connection combines subscriptions. */
  #hasCapacity(others) {
    const isFull = others + this.#responses.size >= RESPONSES_MAX;
    if (isFull && this.#batches > 1) this.#end(RESTART, "subscriptions are combined");
    return !isFull && others < RESPONSES_WITHOUT_TOPICS_MAX;
  }

  #rejectExcess(id) {
    this.#reject(id, new SinewsError(NOT_IMPLEMENTED, EXCESS));
  }

  /** Opens a response for each way to begin and each detail of presence, with many topics each. */
  #subscribe(batch) {
    if (batch.length === 0) return;
    const most = RESPONSES_MAX - this.#countWithoutTopics();
    let wanted = grouped(batch, ({ presence, members }) => [presence, members].join());
    // The next connection requests all subscriptions together.
    if (this.#responses.size > 0 && this.#responses.size + wanted.length > most) {
      return this.#end(RESTART, "subscriptions are combined");
    }
    if (wanted.length > most) {
      // The members include the number of subscribers, and need the same right.
      const detailed = batch.map(({ presence, members, ...entry }) => (presence || members ? { ...entry, members: true } : entry));
      wanted = grouped(detailed, ({ members }) => members);
    }
    for (const { id } of wanted.splice(most).flat()) this.#rejectExcess(id);
    this.#batches += 1;
    for (const entries of wanted) this.#follow(entries);
  }

  async #follow(entries) {
    const response = { abort: new AbortController(), topics: new Map() };
    for (const { id, topic } of entries) {
      const known = response.topics.get(topic);
      if (known) known.ids.push(id);
      else response.topics.set(topic, { ids: [id], matches: matcher(topic) });
    }
    const topics = [...response.topics.keys()];
    this.#responses.add(response);
    const [{ last, presence, members }] = entries;
    const resumes = entries.some(({ from }) => from);
    // Subscriptions to one topic begin at the earliest of their positions; each ignores what it has.
    const positions = (topic) => entries.filter((entry) => entry.topic === topic && entry.from).map(({ from }) => from);
    const begin = (topic) => positions(topic).sort((one, other) => one.seq - other.seq)[0];
    const query = {
      presence,
      members,
      topic: topics,
      last: resumes ? undefined : last,
      // Without a text, a topic begins with its next message.
      after: resumes ? topics.map(begin).map((from) => (from ? positionText(from) : "")).join() : undefined,
    };
    try {
      const { body } = await this.#fetch("topics", query, { headers: { Accept: "application/x-ndjson" } }, response.abort);
      for await (const line of lines(body)) this.#handleLine(response, JSON.parse(line));
      if (this.#responses.has(response)) this.#end(ABNORMAL, "the response has ended");
    } catch (error) {
      if (!this.#responses.delete(response)) return;
      if (typeof error.code !== "number") return this.#end(ABNORMAL, error.message);
      await this.#retryValid(entries, error);
    }
  }

  async #followAssigned() {
    try {
      const init = { headers: { Accept: "application/x-ndjson" } };
      const { body } = await this.#fetch("topics", { assigned: true }, init, this.#assigned.abort);
      for await (const line of lines(body)) this.#handleLine(this.#assigned, JSON.parse(line));
      this.#end(ABNORMAL, "the response has ended");
    } catch (error) {
      this.#end(ABNORMAL, error.message);
    }
  }

  /** One topic is rejected: rejects it, and follows the other topics. */
  async #retryValid(entries, error) {
    const request = (entry) => (entry.presence || entry.members ? this.#listMembers(entry) : this.#poll({ topic: entry.topic }));
    const check = (entry) => request(entry).then(() => null, (failure) => failure);
    const errors = entries.length > 1 ? await Promise.all(entries.map(check)) : [error];
    for (const [at, { id }] of entries.entries()) if (errors[at]) this.#reject(id, errors[at]);
    const valid = entries.filter((_, at) => !errors[at]);
    if (valid.length === entries.length) return this.#end(ABNORMAL, error.message);
    // The client may have unsubscribed meanwhile.
    const wanted = valid.filter(({ id }) => this.#unanswered.has(id));
    if (wanted.length > 0) this.#follow(wanted);
  }

  #handleLine(response, message) {
    const matches = ({ topics }) => [...topics.values()].some((topic) => topic.matches(message.topic));
    switch (message.op) {
      case "ping":
        return;
      case "welcome":
        response.connection = message.connection;
        return;
      case "close":
        return this.#end(message.code, message.reason);
      case "ack":
        response.isAnswered = true;
        for (const id of response.topics.get(message.topic ?? message.stream)?.ids ?? []) this.#receive({ ...message, id });
        return;
      case "message":
        // Delivered once, if several responses have it.
        if (([...this.#responses].find(matches) ?? this.#assigned) === response) this.#receive(message);
        return;
      default:
        this.#receive(message);
    }
  }

  #unsubscribe(topic) {
    this.#batch = this.#batch.filter((entry) => entry.topic !== topic);
    for (const [id, requested] of this.#unanswered) if (requested === topic) this.#receive({ op: "ack", id, topic });
    for (const response of this.#responses) {
      if (!response.topics.delete(topic) || response.topics.size > 0) continue;
      this.#responses.delete(response);
      response.abort.abort();
    }
  }

  /** A response with status 2xx; an error of the server is thrown with its status. */
  async #fetch(path, query = {}, { headers, ...init } = {}, abort = this.#abort) {
    const url = new URL(path, this.#url);
    url.search = "";
    for (const [name, value] of Object.entries(query)) {
      for (const one of [value].flat()) if (one !== undefined) url.searchParams.append(name, one);
    }
    const isOwn = abort !== this.#abort;
    if (isOwn) this.#abort.signal.addEventListener("abort", () => abort.abort(), { once: true, signal: abort.signal });
    // Without `Accept`, proxies answer errors with pages.
    const request = { ...init, headers: { Accept: "application/json", ...this.#headers, ...headers }, signal: abort.signal, cache: "no-store" };
    // Some proxies hold a response that does not end. A request may take its time.
    const timeout = () => !abort.signal.aborted && this.#end(ABNORMAL, `no response in ${this.#responseTimeout} ms (responseTimeout)`);
    const timer = isOwn && setTimeout(timeout, this.#responseTimeout);
    const response = await guarded(() => fetch(url, request)).finally(() => clearTimeout(timer));
    if (response.ok) return response;
    const text = await guarded(() => response.text());
    // Removes the listener.
    if (isOwn) abort.abort();
    let { error = text, needs } = {};
    try {
      ({ error = text, needs } = JSON.parse(text));
    } catch {
      // A proxy's page.
    }
    // The server names no right that this token lacks: the token is invalid, or has expired. Rejections of hooks have no
    // `needs`. Pages of other origins cannot read `WWW-Authenticate`.
    const isInvalid = this.#headers.Authorization && needs && Object.keys(needs).length === 0;
    if (response.status === 401 && isInvalid) this.#end(TOKEN_REJECTED, error);
    throw new SinewsError(response.status, error, needs);
  }

  #receive(message) {
    if (this.#abort.signal.aborted) return;
    if (this.#unanswered.delete(message.id) && this.#unanswered.size === 0) this.#onanswered?.();
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  #reject(id, error) {
    if (typeof error.code !== "number") return this.#end(ABNORMAL, error.message);
    this.#receive({ op: "error", id, code: error.code, error: error.message, needs: error.needs });
  }

  #end(code, reason) {
    if (this.#abort.signal.aborted) return;
    this.#abort.abort();
    this.onclose?.({ code, reason });
  }
}

/** Subscriptions in groups, each for one response, which have the same detail and begin in the same way. */
function grouped(batch, detailOf) {
  const groups = new Map();
  for (const entry of batch) {
    const begin = [entry.from ? 0 : entry.last ?? 0, detailOf(entry)].join();
    const found = groups.get(begin) ?? [];
    groups.set(begin, found);
    if (found.length === 0 || found.at(-1).length === RESPONSE_TOPICS_MAX) found.push([]);
    found.at(-1).push(entry);
  }
  return [...groups.values()].flat();
}

/** A request that the client repeats after every reconnect, until the application ends it. */
class Repeated {
  #ready;
  #resolve;
  #reject;
  #onerror;
  /** Whether an error of `ready` reaches the application: it has asked for it, and it is pending. */
  #isAwaited = false;
  #isReady = false;
  #hasEnded = false;
  /** Place among the requests of a connection. */
  _order = 2;

  constructor(onerror) {
    this.#onerror = onerror;
    this.#ready = new Promise((resolve, reject) => ([this.#resolve, this.#reject] = [resolve, reject]));
    // A caller that ignores it need not catch.
    this.#ready.catch(ignore);
  }

  /** Resolves on the first acknowledgement; rejects on an error, or if the application ends the request before. */
  get ready() {
    this.#isAwaited = true;
    return this.#ready;
  }

  /** Whether the application has ended it; an answer may arrive later. */
  get _hasEnded() {
    return this.#hasEnded;
  }

  /** Whether the server ends it by an error without an id. */
  _covers({ topic, keys }) {
    return topic !== undefined && topic === this.topic && !keys;
  }

  _resolve(value) {
    this.#isReady = true;
    this.#resolve(value);
  }

  /** Takes the result of a later request. */
  _follow(later) {
    later.#isAwaited ||= this.#isAwaited && !this.#isReady;
    this._resolve(later.#ready);
  }

  _reject(error) {
    if (this.#hasEnded) return;
    this.#reject(error);
    if (this.#onerror) notify(this.#onerror, error);
    else if (error.code !== "closed" && (this.#isReady || !this.#isAwaited)) warn(this.topic ?? this.stream, error);
  }

  _end() {
    this.#hasEnded = true;
    this.#reject(new SinewsError("stopped", "it was ended before the server answered"));
  }
}

/** The result of `subscribe`. */
class Subscription extends Repeated {
  #onmessage;
  #options;
  #matches;
  #isPattern;
  /** Whether it asks for the positions of a pattern's topics. */
  #recovers;
  #position = null;
  /** Whether the present request is acknowledged, whether one was before, and whether it continues after a position. */
  #isAcknowledged = false;
  #hasBegun = false;
  #resumes = false;
  #changes = -1;
  /** With the option `members`. */
  #members = null;

  constructor(client, topic, onmessage, options, unsubscribe, request) {
    super(options.onerror);
    this._order = 0;
    this.client = client;
    this.topic = topic;
    this.unsubscribe = unsubscribe;
    this.#onmessage = onmessage;
    this.#options = options;
    this.#matches = matcher(topic);
    this.#isPattern = isPattern(topic);
    this.#recovers = this.#isPattern && options.recover !== false;
    this.#position = copyPosition(options.from);
    if (options.members) this.#members = new MemberList(topic, options.members, request);
    if (this.#isPattern && options.last) console.warn(`sinews: last has no effect on the pattern ${topic}`);
  }

  /**
   * Position of the last message, `{ epoch, seq }`, or null; of a pattern `{ positions }` by topic. A later client can subscribe
   * `from` it.
   */
  get position() {
    return copyPosition(this.#position);
  }

  /** Whether the server has acknowledged it on the present connection. */
  get _isAcknowledged() {
    return this.#isAcknowledged;
  }

  _request() {
    this.#isAcknowledged = false;
    this.#resumes = Boolean(this.#position);
    const { presence, members, last } = this.#options;
    const wishes = { op: "subscribe", topic: this.topic };
    if (members) wishes.members = true;
    else if (presence) wishes.presence = true;
    if (this.#recovers) wishes.recover = true;
    const { epoch, seq, positions } = this.#position ?? {};
    if (this.#position) wishes.from = this.#isPattern ? { positions } : { epoch, seq };
    else if (last) wishes.last = last;
    return wishes;
  }

  /** Whether an earlier version of the server does not know the field `recover`. It then gets none. */
  _isUnknown({ code, message }) {
    const isUnknown = this.#recovers && code === 400 && message.includes("`recover`");
    if (isUnknown) this.#recovers = false;
    return isUnknown;
  }

  /** Returns whether the message is of this subscription. `hasName` tells whether there is a subscription to its topic by name. */
  _handleMessage(message, hasName) {
    if (!this.#matches(message.topic)) return false;
    if ("seq" in message && !this.#advance(message, hasName)) return true;
    notify(this.#onmessage, message);
    return true;
  }

  /** Stores the position of a message. Returns false for a duplicate that another subscription requested. */
  #advance({ topic, epoch, seq }, hasName) {
    if (!this.#isPattern) {
      if (this.#position?.epoch === epoch && seq <= this.#position.seq) return false;
      this.#position = { epoch, seq };
      return true;
    }
    // Without recovery, a pattern has no positions.
    if (!this.#position) return true;
    const { positions } = this.#position;
    const last = positions[topic];
    if (last?.epoch === epoch && seq <= last.seq) return false;
    if (!this.#isAcknowledged) {
      // The server repeats it after the acknowledgement, except for a subscription by name, which continues at its own position.
      if (!hasName()) return false;
      if (last && (last.epoch !== epoch || seq > last.seq + 1)) notify(this.#options.ongap, { topic, reason: "history", replayed: 0 });
    }
    if (last || Object.keys(positions).length < POSITIONS_MAX) positions[topic] = { epoch, seq };
    else this.#position.isPartial = true;
    return true;
  }

  /** Returns whether the gap is of this subscription. */
  _reportGap(gap) {
    if (gap.topic !== undefined && !this.#matches(gap.topic)) return false;
    this.#members?.list();
    notify(this.#options.ongap, gap);
    return true;
  }

  _end() {
    super._end();
    this.#members?.stop();
  }

  _updatePresence(message) {
    const { topic, subscribers, at } = message;
    if (topic !== this.topic) return;
    if ("since" in message) this.#members?.update(message);
    if (at <= this.#changes) return;
    this.#changes = at;
    notify(this.#options.presence, subscribers);
  }

  _acknowledge(ack) {
    if (this._hasEnded) return;
    // A restarted server counts from the beginning.
    this.#changes = -1;
    if ("subscribers" in ack) this._updatePresence(ack);
    if ("members" in ack) this.#members?.list(ack);
    for (const gap of this.#isPattern ? this.#resumePattern(ack) : this.#resumeName(ack)) notify(this.#options.ongap, gap);
    this._resolve(ack);
    notify(this.#options.onsubscribed, ack);
  }

  /** Takes the position of an acknowledgement, and returns the gaps before it. */
  #resumeName(ack) {
    const { topic } = this;
    const isComplete = this.#resumes ? ack.complete !== false : !this.#hasBegun;
    const isRetained = "seq" in ack || (this.#resumes && !this.#hasBegun);
    this.#isAcknowledged = this.#hasBegun = true;
    if (!("seq" in ack)) this.#position = null;
    else if (!ack.replayed) this.#position = { epoch: ack.epoch, seq: ack.seq };
    if (isComplete) return [];
    return [isRetained ? { topic, reason: "history", replayed: ack.replayed ?? 0 } : { topic, reason: "unretained" }];
  }

  /** As `#resumeName`. Topics that the server names have lost messages; otherwise any topic of the pattern may have. */
  #resumePattern({ positions, positions_complete: isWhole, complete, incomplete = [], replayed }) {
    const isPartial = this.#position?.isPartial;
    const isComplete = this.#resumes ? positions && complete !== false && !isPartial : !this.#hasBegun;
    const wasBegun = this.#hasBegun;
    this.#isAcknowledged = this.#hasBegun = true;
    if (!positions) this.#position = null;
    // Messages that follow have later positions.
    else {
      const known = this.#resumes && replayed ? this.#position.positions : positions;
      this.#position = copyPosition({ positions: known, ...(isWhole === false && { isPartial: true }) });
    }
    if (isComplete || (!wasBegun && !this.#resumes)) return [];
    const named = incomplete.map((topic) => ({ topic, reason: "history", replayed: 0 }));
    return named.length > 0 && !isPartial ? named : [...named, { topic: this.topic, reason: "unretained" }];
  }
}

/** The result of `join`: a promise that the application can end. */
class Membership extends Repeated {
  #leave;
  _order = 1;
  _isJoined = false;

  constructor(topic, member, former, leave) {
    super();
    this.topic = topic;
    this.member = member;
    this.#leave = leave;
    this.share = former?.share ?? { count: 0 };
    this.share.count += 1;
    former?._follow(this);
  }

  /** Ends this join. The last one ends the presence of the client in the topic. */
  async leave() {
    const leave = this.#leave;
    this.#leave = null;
    if (!leave) return;
    this.share.count -= 1;
    if (this.share.count === 0) await leave();
  }

  then(resolve, reject) {
    return this.ready.then(resolve, reject);
  }

  catch(reject) {
    return this.ready.catch(reject);
  }

  finally(settle) {
    return this.ready.finally(settle);
  }

  _request() {
    this._isJoined = false;
    return { op: "join", topic: this.topic, member: this.member };
  }

  _acknowledge() {
    this._isJoined = true;
    this._resolve();
  }
}

/** The keys of a topic, which its states share. */
class View extends Repeated {
  states = new Set();
  #onrejected;
  #filter;
  #interval;
  #keys = new Map();
  #versions = new Map();
  /** Parts of a snapshot so far. */
  #parts = null;
  #position = null;
  #ack = null;
  _order = 3;

  constructor(topic, onrejected) {
    super(ignore);
    this.topic = topic;
    this.#onrejected = onrejected;
  }

  get position() {
    return this.#position;
  }

  version(key) {
    return this.#versions.get(key);
  }

  /** Adds a state, and returns whether the server must send more for it. */
  _add(state) {
    const { filter, interval = 0 } = state.options;
    const isFirst = this.states.size === 0;
    state._view = this;
    this.states.add(state);
    const isFiltered = !isFirst && this.#filter !== filter && this.#filter !== undefined;
    const isSlower = !isFirst && interval < this.#interval;
    if (isFirst) this.#filter = filter;
    if (isFiltered) this.#filter = this.#position = undefined;
    if (isFirst || isSlower) this.#interval = interval;
    if (isFiltered || isFirst) return true;
    // Not at once: the caller has no result yet.
    queueMicrotask(() => {
      if (this.#ack) notify(state.options.onsubscribed, this.#ack);
      if (this.#position) state._update(this.#keys, new Set(this.#keys.keys()));
    });
    return isSlower;
  }

  _covers({ topic, keys }) {
    return topic === this.topic && Boolean(keys);
  }

  _request() {
    this.#ack = this.#parts = null;
    const interval = this.#interval || undefined;
    return { op: "subscribe", topic: this.topic, keys: true, filter: this.#filter, interval, from: this.#position ?? undefined };
  }

  _acknowledge(ack) {
    if (this._hasEnded) return;
    this.#ack = ack;
    for (const { options } of this.states) notify(options.onsubscribed, ack);
  }

  _reject(error) {
    this.#onrejected();
    for (const state of this.states) state._reject(error);
  }

  _handleMessage({ epoch, seq, part, more, set = [], deleted = [] }) {
    // Of an earlier subscription.
    if (!this.#ack) return;
    if (part === 1) this.#parts = [];
    if (part) this.#parts.push(...set);
    if (more) return;
    const changed = new Set(deleted);
    const last = this.#position;
    this.#position = { epoch, seq };
    const keys = new Map(part ? [] : this.#keys);
    if (part) {
      const reason = last && (epoch === last.epoch ? "history" : "reset");
      if (last) for (const state of this.states) state._reportGap({ topic: this.topic, reason });
      for (const key of this.#keys.keys()) changed.add(key);
      this.#versions.clear();
      set = this.#parts;
      this.#parts = null;
    }
    for (const entry of set) {
      keys.set(entry.key, "b64" in entry ? fromBase64(entry.b64) : entry.data);
      this.#versions.set(entry.key, entry.version);
      changed.add(entry.key);
    }
    for (const key of deleted) {
      keys.delete(key);
      this.#versions.delete(key);
    }
    this.#keys = keys;
    for (const state of [...this.states]) state._update(keys, changed);
  }
}

/** The result of `state`: the keys of a topic that the application follows. */
class State extends Repeated {
  #onchange;
  #matches;
  #keys = new Map();
  #hasKeys = false;

  constructor(topic, onchange, options, unsubscribe) {
    super(options.onerror);
    this.topic = topic;
    this.unsubscribe = unsubscribe;
    this.options = options;
    this.#onchange = onchange;
    this.#matches = options.filter === undefined ? () => true : matcher(options.filter);
  }

  /** The values by key: another map after each change. */
  get keys() {
    return this.#keys;
  }

  /** Position of the view, `{ epoch, seq }`, or null before the first snapshot. */
  get position() {
    return this._view.position ?? null;
  }

  /** The version of a key, for the option `version` of `set` and `delete`. */
  version(key) {
    return this._view.version(key);
  }

  _reportGap(gap) {
    const { onreset, ongap } = this.options;
    notify((gap.reason === "reset" && onreset) || ongap, gap);
  }

  /** Takes the keys of the view that this state selects. */
  _update(keys, changed) {
    if (this._hasEnded) return;
    const own = new Set([...changed].filter((key) => this.#matches(key)));
    if (own.size === 0 && this.#hasKeys) return;
    this.#hasKeys = true;
    this.#keys = this.options.filter === undefined ? keys : new Map([...keys].filter(([key]) => this.#matches(key)));
    this._resolve(this);
    notify(this.#onchange, this.#keys, own);
  }
}

/** Delay of a list of members that all clients of a topic need, for each subscriber, in milliseconds: they are about 200 lists a second. */
const LIST_DELAY = 5;

/** Longest such delay. */
const LIST_DELAY_MAX = 30_000;

/** The members of a topic: lists, and the updates after them. */
class MemberList {
  #topic;
  #onchange;
  #request;
  #members = new Map();
  /** Version of the members; updates up to it are known. */
  #at = -1;
  /** The list under way, `{ members }` from its first page on. */
  #listing = null;
  /** The delay before the next list. */
  #timer = null;

  constructor(topic, onchange, request) {
    this.#topic = topic;
    this.#onchange = onchange;
    this.#request = request;
  }

  /** Lists the members from the first page on, which may be known. */
  async list(first) {
    this.stop();
    const listing = { members: null };
    this.#listing = listing;
    try {
      for (let page = first, after; ; after = page.members.at(-1).id, page = null) {
        page ??= await this.#request({ op: "members", topic: this.#topic, after });
        if (listing !== this.#listing) return;
        // Updates between two pages repeat what the later page has.
        if (!listing.members) [listing.members, this.#at] = [new Map(), page.at];
        for (const { id, info } of page.members) listing.members.set(id, info);
        if (!page.more) break;
      }
    } catch {
      if (listing !== this.#listing) return;
      // The next update, or the acknowledgement of the next connection, lists again.
      this.#listing = null;
      this.#at = -1;
      return;
    }
    this.#listing = null;
    this.#members = listing.members;
    notify(this.#onchange, new Map(this.#members));
  }

  /** Ends the delay of a list. */
  stop() {
    clearTimeout(this.#timer);
    this.#timer = null;
  }

  /** Lists the members after a random delay, since all clients of the topic need the list. */
  #listLater(subscribers) {
    // Updates meanwhile repeat what the list has.
    this.#listing = null;
    if (this.#timer) return;
    this.#timer = setTimeout(() => this.list(), Math.random() * Math.min(LIST_DELAY_MAX, subscribers * LIST_DELAY));
    // A program in Node.js may end meanwhile.
    this.#timer.unref?.();
  }

  update({ since, at, complete, subscribers, joined = [], left = [] }) {
    // A list that begins later than the update includes it.
    if (at <= this.#at || (this.#listing && !this.#listing.members)) return;
    if (complete === false) return this.#listLater(subscribers);
    if (this.#timer) return;
    if (since > this.#at) return void this.list();
    this.#at = at;
    const members = this.#listing?.members ?? this.#members;
    for (const { id, info } of joined) members.set(id, info);
    for (const id of left) members.delete(id);
    if (!this.#listing && joined.length + left.length > 0) notify(this.#onchange, new Map(members));
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
  append(data, options = {}) {
    warnUnknown("append", options, `key partition ack ${REQUEST_OPTIONS}`);
    const { key, partition, ack } = options;
    return this.#client.request({ op: "append", stream: this.name, key, partition, ack, ...payload(data) }, options);
  }

  /**
   * Delivers each record once, in the order of its partition: from `from` on ("earliest", "latest", `{ offset }` or
   * `{ time }` in microseconds since 1970; default "latest"), or as a member of a `group` from its committed offset.
   * After a reconnect it resumes after the last record. A client has one consumption of each stream.
   */
  consume(onrecord, options = {}) {
    warnUnknown("consume", options, "from group partition onassigned onreset ongap onerror");
    const consumption = new Consumption(this.name, onrecord, options, this.#client);
    this.#client.begin(consumption);
    return consumption;
  }

  /** Reads records once from an offset on, about `max` bytes: `{ records, next, end }`. */
  async read(offset, { partition = 0, max } = {}) {
    const answer = await this.#client.request({ op: "read", stream: this.name, partition, offset, max });
    return { records: answer.records.map(readable), next: answer.next, end: answer.end };
  }

  /** Deletes the stream, which needs its own right. Resolves when the server acknowledges. */
  async delete() {
    await this.#client.request({ op: "delete", stream: this.name });
  }

  /** The first and end offsets of the partitions, and the committed offsets of the groups. */
  async info() {
    const { partitions, groups } = await this.#client.request({ op: "stream", stream: this.name });
    return { partitions, groups };
  }
}

/** The result of `consume`. */
class Consumption extends Repeated {
  #onrecord;
  #options;
  #client;
  #next = new Map();
  /** Set by the acknowledgement; earlier messages belong to a previous consumption. */
  #begun = false;
  /** The offset of the last request. */
  #requested;

  constructor(stream, onrecord, options, client) {
    super(options.onerror);
    this.stream = stream;
    this.#onrecord = onrecord;
    this.#options = options;
    this.#client = client;
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

  _covers({ id }) {
    return id !== undefined && id === this._id;
  }

  _request() {
    this.#begun = false;
    const { from, group, partition } = this.#options;
    const message = { op: "consume", stream: this.stream, from, group, partition };
    // One offset for all partitions: duplicates of partitions that are further are skipped.
    if (!group && this.#next.size > 0) message.from = { offset: Math.min(...this.#next.values()) };
    this.#requested = group ? undefined : message.from?.offset;
    return message;
  }

  _acknowledge(ack) {
    if (this._hasEnded) return;
    this.#begun = true;
    const [isFirst, requested] = [this.#next.size === 0, this.#requested];
    for (const { partition, offset } of ack.partitions) {
      const next = this.#next.get(partition) ?? requested ?? offset;
      if (isFirst || offset > next) this.#next.set(partition, offset);
      if (requested === undefined) continue;
      // The application asks for 0 to begin with the first record; at a broker, its offset may be 1.
      if (offset > next && !(isFirst && requested === 0)) notify(this.#options.ongap, { partition, from: next, to: offset });
      // The server begins at the end: it has fewer records. An application may name one offset for several partitions.
      else if (offset < requested && !(isFirst && ack.partitions.length > 1)) this.#reset(partition, offset);
    }
    this._resolve(ack);
  }

  #reset(partition, offset) {
    this.#next.set(partition, offset);
    notify(this.#options.onreset, { partition, offset });
  }

  _handleMessage(message) {
    if (!this.#begun) return;
    const { partition } = message;
    switch (message.op) {
      case "assigned":
        // Another member may have committed a later offset meanwhile.
        this.#next = new Map(message.partitions.map(({ partition, offset, reset }) =>
          [partition, reset ? offset : Math.max(offset, this.#next.get(partition) ?? 0)]));
        notify(this.#options.onassigned, [...this.#next.keys()]);
        for (const { partition, offset, reset } of message.partitions) {
          if (reset) notify(this.#options.onreset, { partition, offset });
        }
        return;
      case "gap":
        this.#next.set(partition, Math.max(message.to, this.#next.get(partition) ?? 0));
        notify(this.#options.ongap, { partition, from: message.from, to: message.to });
        return;
      default:
        // Records that were delivered do not exist: the stream was deleted and created again.
        if (message.end < this.#next.get(partition)) this.#reset(partition, message.records[0]?.offset ?? message.next);
        for (const record of message.records) {
          // The application may stop in its callback.
          if (this._hasEnded || record.offset < (this.#next.get(partition) ?? 0)) continue;
          this.#next.set(partition, record.offset + 1);
          notify(this.#onrecord, { partition, ...readable(record) });
        }
    }
  }
}

/**
 * The URL of a WebSocket as text, relative to the page if there is one. Classes such as that of React Native take text only, and
 * its `URL` adds a slash and has no setters.
 */
function absolute(url) {
  let text = String(url).trim();
  try {
    if (!/^[a-z][a-z\d+.-]*:/i.test(text)) text = new URL(text, globalThis.location.href).href;
  } catch {
    throw new SinewsError("no-url", `${text} is no absolute URL; outside of a page, pass one: connect("wss://example.com/ws")`);
  }
  return text.replace(/^http(s?):/i, (_, secure) => `ws${secure.toLowerCase()}:`);
}

function isToken(token) {
  return typeof token === "string" && IS_TOKEN.test(token);
}

/** Closes a socket, of any class. */
function closeSocket(socket, ...code) {
  try {
    socket?.close(...code);
  } catch {
    // It is of no use any more.
  }
}

/** The text of an exception, which can be any value. */
function describe(error) {
  try {
    return String(error?.message || error?.name || error);
  } catch {
    return "unknown error";
  }
}

function isNamed(error, name) {
  try {
    return error?.name === name;
  } catch {
    return false;
  }
}

/** Runs foreign code. Its exceptions can be any value, and a number as their `code` is no code of the server. */
async function guarded(run) {
  try {
    return await run();
  } catch (error) {
    throw new Error(describe(error));
  }
}

function ignore() {}

/** Writes each option that does not exist to the console. */
function warnUnknown(method, options, known) {
  for (const name of Object.keys(options)) if (!known.split(" ").includes(name)) console.warn(`sinews: ${method} has no option ${name}`);
}

/** The option `debug` of a page's user: localStorage.sinews = "debug". */
function storedDebug() {
  try {
    return globalThis.localStorage?.sinews === "debug";
  } catch {
    // The page has no storage.
    return false;
  }
}

/** Seconds until a token expires, by its claim `exp`; undefined if there is none. */
function secondsLeft(token) {
  try {
    const { exp } = JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
    return typeof exp === "number" ? exp - Date.now() / 1000 : undefined;
  } catch {
    return undefined;
  }
}

/** The key of a request that may be repeated: of the application, or with `true` a random one. */
function idempotencyKey({ idempotencyKey: key }) {
  if (key !== true) return key || undefined;
  const bytes = new Uint8Array(KEY_BYTES);
  // Older React Native has no `crypto`.
  if (globalThis.crypto?.getRandomValues) crypto.getRandomValues(bytes);
  else for (const at of bytes.keys()) bytes[at] = Math.random() * 256;
  return toBase64(bytes).slice(0, 22);
}

/** Whether a queued write of a key depends on no other one. */
function isUnconditional({ op, if_new, if_exists, version, idempotency_key }) {
  return op === "set" && !if_new && !if_exists && version === undefined && idempotency_key === undefined;
}

/** Writes an error of the server that no callback and no promise passes on to the application. */
function warn(name, { code, message }) {
  console.warn(`sinews: ${name}: ${message} (${code})`);
}

/** Calls a function of the application. Its exceptions and rejections are reported, and end nothing here. */
function notify(callback, ...parts) {
  try {
    const result = callback?.(...parts);
    if (typeof result?.then === "function") Promise.resolve(result).catch(report);
  } catch (error) {
    report(error);
  }
}

/** Reports as an uncaught exception in browsers. In other runtimes, that may end the process. */
function report(error) {
  try {
    if (globalThis.reportError && !globalThis.process) globalThis.reportError(error);
    else console.error(error);
  } catch {
    // It cannot be written.
  }
}

function positionText({ epoch, seq }) {
  return `${epoch}-${seq}`;
}

/** The lines of a body in UTF-8. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await guarded(() => reader.read());
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}

/** The body of a request, and its type. */
function content(data, b64) {
  return b64 === undefined
    ? { body: JSON.stringify(data), headers: { "Content-Type": "application/json" } }
    : { body: fromBase64(b64), headers: { "Content-Type": "application/octet-stream" } };
}

function conditions(options) {
  const { ttl, ifNew, ifExists, version, epoch } = options;
  return { ttl, if_new: ifNew, if_exists: ifExists, version, epoch, idempotency_key: idempotencyKey(options) };
}

/** The fields of a request with JSON or bytes. */
function payload(data) {
  const bytes = toBytes(data);
  return bytes ? { b64: toBase64(bytes) } : { data };
}

function readable(record) {
  return "b64" in record ? { ...record, data: fromBase64(record.b64) } : record;
}

/** A copy, which the caller may keep; null without a position. */
function copyPosition(position) {
  return position ? { ...position, ...(position.positions && { positions: { ...position.positions } }) } : null;
}

function isPattern(topic) {
  return topic.split(".").some((part) => part === "*" || part === ">");
}

/** `*` matches one part between dots, `>` at the end one or more. */
function matcher(pattern) {
  const parts = pattern.split(".");
  if (!isPattern(pattern)) return (topic) => topic === pattern;
  const open = parts.at(-1) === ">";
  const fixed = open ? parts.slice(0, -1) : parts;
  return (topic) => {
    const found = topic.split(".");
    const fits = open ? found.length > fixed.length : found.length === fixed.length;
    return fits && fixed.every((part, at) => part === "*" || part === found[at]);
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
