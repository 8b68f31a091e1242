// The client with the `URL` and the `WebSocket` of React Native on iOS and on Android, as their behavior is observed. Neither has the events
// of a page, an `EventTarget` or `crypto`.
import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../sinews.js";
import { channel } from "./server.js";

const limit = { timeout: 60_000 };

/** URLs as React Native makes them: text with a slash behind it, parts without a setter, and in earlier versions without a getter. */
function urls(hasGetters) {
  return class {
    #text;

    constructor(url, base) {
      if (typeof url !== "string" || (base !== undefined && typeof base !== "string")) throw new TypeError("not a text");
      const isAbsolute = /^[a-z][a-z\d+.-]*:\/\//i.test(url);
      this.#text = base === undefined || isAbsolute ? `${url}${url.endsWith("/") ? "" : "/"}` : `${base.replace(/\/$/, "")}/${url.replace(/^\//, "")}`;
    }

    get protocol() {
      if (!hasGetters) throw new Error("URL.protocol is not implemented");
      return this.#text.slice(0, this.#text.indexOf(":") + 1);
    }

    get href() { return this.#text; }

    get search() { return ""; }

    toString() { return this.#text; }
  };
}

/**
 * What differs: the text of a failure (Android's can be null), the codes that `close` takes, and whether a connection that the system
 * has ended in the background is reported when the application is active again.
 */
const PLATFORMS = {
  iOS: { failure: "The operation couldn't be completed. Connection refused", reportsLoss: true, closes: () => {} },
  Android: {
    failure: null,
    reportsLoss: false,
    closes(code = 1000) {
      if (code !== 1000 && !(code >= 3000 && code <= 4999)) throw new Error(`Code must be 1000 or in range [3000, 4999]: ${code}`);
    },
  },
};

/** The socket of React Native: its native part takes text, and a failure has neither a code nor a reason. */
function sockets(network) {
  const { failure, reportsLoss, closes } = PLATFORMS[network.platform];
  return class {
    #isOpen = false;

    constructor(url, protocols) {
      for (const value of [url, ...protocols]) {
        if (typeof value !== "string") throw new TypeError(`JSON value of type ${typeof value} cannot be converted to NSString`);
      }
      network.opened.push(url);
      queueMicrotask(() => {
        if (!network.isUp) {
          this.onerror?.({ type: "error", message: failure });
          return this.onclose?.({ type: "close" });
        }
        this.#isOpen = true;
        network.sockets.push(this);
        this.#receive({ op: "welcome" });
      });
    }

    /** The system has ended the connection in the background, and the application is active again. */
    wakeDead() {
      this.isDead = true;
      if (!reportsLoss) return;
      this.onerror?.({ type: "error", message: "Software caused connection abort" });
      this.onclose?.({ type: "close" });
    }

    #receive(message) {
      this.onmessage?.({ type: "message", data: JSON.stringify(message) });
    }

    send(text) {
      if (!this.#isOpen) throw new Error("INVALID_STATE_ERR");
      if (typeof text !== "string") throw new Error("Unsupported data type");
      if (this.isDead) return;
      const { id, op, topic, data } = JSON.parse(text);
      this.#receive({ op: "ack", id, topic });
      if (op === "publish") this.#receive({ op: "message", topic, data });
    }

    close(code) {
      closes(code);
      this.#isOpen = false;
    }
  };
}

/** Replaces the globals of Node.js during a test: there is no page, and no response is read in parts. */
function emulate(t, platform, hasGetters) {
  const network = { platform, isUp: true, opened: [], sockets: [] };
  const missing = Object.fromEntries(["TextDecoderStream", "EventTarget", "Event", "crypto", "document", "localStorage", "addEventListener"].map((name) => [name, undefined]));
  const emulated = { ...missing, URL: urls(hasGetters), WebSocket: sockets(network), fetch: async () => ({ ok: true, body: undefined }) };
  for (const [name, value] of Object.entries(emulated)) {
    const own = Object.getOwnPropertyDescriptor(globalThis, name);
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
    t.after(() => (own ? Object.defineProperty(globalThis, name, own) : delete globalThis[name]));
  }
  return network;
}

for (const platform of Object.keys(PLATFORMS)) for (const version of ["a present", "an earlier"]) {
  const place = `on ${platform}, in ${version} React Native,`;
  const prepare = (t) => emulate(t, platform, version === "a present");

  test(`${place} the client connects, and its URL stays as it is`, limit, async (t) => {
    const Real = globalThis.URL;
    const network = prepare(t);
    for (const url of ["wss://example.com/ws", "https://example.com/ws", "HTTPS://example.com/ws", new Real("https://example.com/ws")]) {
      const messages = channel();
      const client = connect(url, { token: "a.b.c" });
      const statuses = [];
      client.addEventListener("status", ({ status }) => statuses.push(status));
      await client.subscribe("a", messages.push).ready;
      await client.publish("a", { text: "hello" }, { idempotencyKey: true });
      assert.deepEqual((await messages.next()).data, { text: "hello" });
      client.close();
      assert.equal(network.opened.pop(), "wss://example.com/ws");
      assert.deepEqual(statuses, ["connecting", "open", "closed"]);
    }
    for (const url of ["/ws", undefined, 42]) assert.throws(() => connect(url), { code: "no-url" });
  });

  test(`${place} a failure has a text, and a retry works, also with fallback`, limit, async (t) => {
    const network = prepare(t);
    for (const fallback of [false, true]) {
      network.isUp = false;
      const changes = channel();
      const client = connect("wss://example.com/ws", { minDelay: 1_000_000, maxDelay: 1_000_000, onstatus: changes.push, fallback });
      for (let attempt = 1; attempt <= 6; attempt += 1) {
        const { code, reason } = await changes.until(({ status }) => status === "waiting");
        assert.deepEqual([code, typeof reason, reason !== ""], [1006, "string", true]);
        if (attempt === 1) assert.equal(reason, PLATFORMS[platform].failure ?? "the connection has failed");
        network.isUp = attempt > 3;
        client.retry();
        if (network.isUp) break;
      }
      await changes.until(({ status }) => status === "open");
      client.close();
    }
  });

  test(`${place} an application that is active again and calls retry() is connected within five seconds`, limit, async (t) => {
    const network = prepare(t);
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const changes = channel();
    const client = connect("wss://example.com/ws", { onstatus: changes.push });
    t.after(() => client.close());
    await changes.until(({ status }) => status === "open");
    network.sockets[0].wakeDead();
    client.retry();
    t.mock.timers.tick(3_000);
    const { reason } = await changes.until(({ status }) => status === "waiting");
    assert.equal(reason, PLATFORMS[platform].reportsLoss ? "Software caused connection abort" : "ping timeout");
    t.mock.timers.tick(250);
    await changes.until(({ status }) => status === "open");
    assert.equal(network.opened.length, 2);
  });
}
