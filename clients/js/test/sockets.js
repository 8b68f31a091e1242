// A client over a WebSocket that answers as each test says.
import { connect } from "../sinews.js";
import { channel } from "./server.js";

/** Resolves once the client has done what it does without another answer. */
export const settled = () => new Promise((resolve) => setImmediate(resolve));

/** A client whose connections wait in `sockets`: `{ sent, line, lose }`; `timers` are its timers that keep Node.js alive. */
export function overSockets(t, options) {
  const sockets = channel();
  const timers = new Set();
  const { setTimeout, clearTimeout } = globalThis;
  t.mock.method(globalThis, "setTimeout", (callback, delay) => {
    const timer = setTimeout(() => {
      timers.delete(timer);
      callback();
    }, delay);
    timers.add(timer);
    return timer;
  });
  t.mock.method(globalThis, "clearTimeout", (timer) => {
    timers.delete(timer);
    clearTimeout(timer);
  });
  class Scripted {
    bufferedAmount = 0;
    sent = channel();

    constructor() {
      sockets.push(this);
    }

    send(text) {
      this.sent.push(JSON.parse(text));
    }

    close() {
      this.isClosed = true;
    }

    line(message) {
      this.onmessage?.({ data: JSON.stringify(message) });
    }

    lose(code = 1006) {
      this.onclose?.({ code, reason: "" });
    }
  }
  const client = connect("ws://localhost/ws", { WebSocket: Scripted, ...options });
  t.after(() => client.close());
  return { client, sockets, timers: () => [...timers].filter((timer) => timer.hasRef()) };
}
