// The client with the `URL` and the `WebSocket` of React Native, as their behavior is observed.
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

/** The socket of React Native: its native part takes text, and a failure has neither a code nor a reason. */
function sockets(network) {
  return class {
    #isOpen = false;

    constructor(url, protocols) {
      for (const value of [url, ...protocols]) {
        if (typeof value !== "string") throw new TypeError(`JSON value of type ${typeof value} cannot be converted to NSString`);
      }
      network.opened.push(url);
      queueMicrotask(() => {
        if (!network.isUp) {
          this.onerror?.({ type: "error", message: "Connection refused" });
          return this.onclose?.({ type: "close" });
        }
        this.#isOpen = true;
        this.#receive({ op: "welcome" });
      });
    }

    #receive(message) {
      this.onmessage?.({ type: "message", data: JSON.stringify(message) });
    }

    send(text) {
      if (!this.#isOpen) throw new Error("INVALID_STATE_ERR");
      if (typeof text !== "string") throw new Error("Unsupported data type");
      const { id, op, topic, data } = JSON.parse(text);
      this.#receive({ op: "ack", id, topic });
      if (op === "publish") this.#receive({ op: "message", topic, data });
    }

    close() {
      this.#isOpen = false;
    }
  };
}

/** Replaces the globals of Node.js during a test: there is no page, and no response is read in parts. */
function emulate(t, hasGetters) {
  const network = { isUp: true, opened: [] };
  const emulated = { URL: urls(hasGetters), WebSocket: sockets(network), fetch: async () => ({ ok: true, body: undefined }), TextDecoderStream: undefined };
  for (const [name, value] of Object.entries(emulated)) {
    const own = Object.getOwnPropertyDescriptor(globalThis, name);
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
    t.after(() => (own ? Object.defineProperty(globalThis, name, own) : delete globalThis[name]));
  }
  return network;
}

for (const version of ["a present", "an earlier"]) {
  test(`in ${version} React Native, the client connects, and its URL stays as it is`, limit, async (t) => {
    const Real = globalThis.URL;
    const network = emulate(t, version === "a present");
    for (const url of ["wss://example.com/ws", "https://example.com/ws", "HTTPS://example.com/ws", new Real("https://example.com/ws")]) {
      const messages = channel();
      const client = connect(url, { token: "a.b.c" });
      await client.subscribe("a", messages.push).ready;
      await client.publish("a", { text: "hello" });
      assert.deepEqual((await messages.next()).data, { text: "hello" });
      client.close();
      assert.equal(network.opened.pop(), "wss://example.com/ws");
    }
    for (const url of ["/ws", undefined, 42]) assert.throws(() => connect(url), { code: "no-url" });
  });

  test(`in ${version} React Native, a failure has a text, and a retry works, also with fallback`, limit, async (t) => {
    const network = emulate(t, version === "a present");
    for (const fallback of [false, true]) {
      network.isUp = false;
      const changes = channel();
      const client = connect("wss://example.com/ws", { minDelay: 1_000_000, maxDelay: 1_000_000, onstatus: changes.push, fallback });
      for (let attempt = 1; attempt <= 6; attempt += 1) {
        const { code, reason } = await changes.until(({ status }) => status === "waiting");
        assert.deepEqual([code, typeof reason, reason !== ""], [1006, "string", true]);
        if (attempt === 1) assert.equal(reason, "Connection refused");
        network.isUp = attempt > 3;
        client.retry();
        if (network.isUp) break;
      }
      await changes.until(({ status }) => status === "open");
      client.close();
    }
  });
}
