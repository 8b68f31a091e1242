// Many clients in one process, over sockets and timers of this program, whose server crashes: `node test/herd.js [CLIENTS] [SECONDS]`. It
// prints how often the application is asked for a token. The test of the same name runs it with fewer clients.
import { pathToFileURL } from "node:url";

/** Timers that run in the order of their times, as fast as this machine can. */
class Clock {
  now = 1_800_000_000_000;
  #heap = [];
  #next = 1;

  set(callback, delay = 0) {
    const timer = { at: this.now + Math.max(0, delay), id: this.#next++, callback, unref() {} };
    this.#heap.push(timer);
    for (let child = this.#heap.length - 1; child > 0;) {
      const parent = (child - 1) >> 1;
      if (!this.#isBefore(child, parent)) break;
      this.#swap(child, parent);
      child = parent;
    }
    return timer;
  }

  clear(timer) {
    if (timer) timer.callback = null;
  }

  /** Runs all timers until a time. Between two times, promises settle. */
  async runUntil(end) {
    while (this.#heap.length > 0 && this.#heap[0].at <= end) {
      this.now = this.#heap[0].at;
      while (this.#heap.length > 0 && this.#heap[0].at === this.now) this.#pop().callback?.();
      await null;
      await new Promise(setImmediate);
    }
    this.now = end;
  }

  #isBefore(one, other) {
    const [a, b] = [this.#heap[one], this.#heap[other]];
    return a.at < b.at || (a.at === b.at && a.id < b.id);
  }

  #swap(one, other) {
    [this.#heap[one], this.#heap[other]] = [this.#heap[other], this.#heap[one]];
  }

  #pop() {
    this.#swap(0, this.#heap.length - 1);
    const first = this.#heap.pop();
    for (let parent = 0; ;) {
      const [left, right] = [2 * parent + 1, 2 * parent + 2];
      let least = parent;
      for (const child of [left, right]) if (child < this.#heap.length && this.#isBefore(child, least)) least = child;
      if (least === parent) return first;
      this.#swap(parent, least);
      parent = least;
    }
  }
}

/**
 * Connects clients with tokens of `life` seconds, ends all connections, and accepts none for `outage` seconds. Returns the number of
 * attempts and of requests for tokens in each part, and the time until all are connected again.
 */
export async function simulate({ clients = 50_000, life = 600, outage = 20 }) {
  const { connect } = await import("../sinews.js");
  const [clock, real] = [new Clock(), { setTimeout, clearTimeout, now: Date.now }];
  Object.assign(globalThis, { setTimeout: (callback, delay) => clock.set(callback, delay), clearTimeout: (timer) => clock.clear(timer) });
  Date.now = () => clock.now;
  const seen = { tokens: 0, attempts: 0, open: 0 };
  let isUp = true;
  const sockets = new Set();
  class Socket {
    constructor(_, [, bearer]) {
      seen.attempts += 1;
      const expires = Number(Buffer.from(bearer.split(".")[3], "base64url").toString().match(/\d+/)[0]);
      clock.set(() => {
        if (!isUp) return this.onclose?.({ code: 1006, reason: "" });
        sockets.add(this);
        this.#receive({ op: "welcome", expires_in: expires - clock.now / 1000 });
      }, 5 + Math.random() * 45);
    }

    #receive(message) {
      this.onmessage?.({ data: JSON.stringify(message) });
    }

    send(text) {
      const { op, id, token } = JSON.parse(text);
      const answer = op === "token" ? { op: "refreshed", id, expires_in: life } : { op: op === "ping" ? "pong" : "ack", id };
      clock.set(() => sockets.has(this) && this.#receive(answer), 10);
      if (op === "token" && !token) throw new Error("no token");
    }

    close() {
      sockets.delete(this);
    }
  }
  const token = async () => {
    seen.tokens += 1;
    return `e30.${Buffer.from(JSON.stringify({ exp: Math.floor(clock.now / 1000) + life })).toString("base64url")}.x`;
  };
  const all = Array.from({ length: clients }, () => connect("ws://localhost/ws", { WebSocket: Socket, token }));
  const countOpen = () => all.filter(({ status }) => status === "open").length;
  const part = async (seconds) => {
    const before = { ...seen };
    await clock.runUntil(clock.now + seconds * 1000);
    return { tokens: seen.tokens - before.tokens, attempts: seen.attempts - before.attempts, open: countOpen() };
  };
  await new Promise(setImmediate);
  const start = { ...await part(60), tokens: seen.tokens };
  const crashed = clock.now;
  isUp = false;
  for (const socket of [...sockets]) socket.onclose?.({ code: 1006, reason: "" });
  sockets.clear();
  const down = await part(outage);
  isUp = true;
  let again = { tokens: 0, attempts: 0, open: 0 };
  let seconds = 0;
  while (again.open < clients && seconds < 120) {
    const more = await part(1);
    again = { tokens: again.tokens + more.tokens, attempts: again.attempts + more.attempts, open: more.open };
    seconds += 1;
  }
  const rest = await part(life - (clock.now - crashed) / 1000 - 60 - 61);
  const renewed = await part(120);
  for (const client of all) client.close();
  Object.assign(globalThis, { setTimeout: real.setTimeout, clearTimeout: real.clearTimeout });
  Date.now = real.now;
  return { start, down, again, seconds, rest, renewed };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [clients = 50_000, outage = 20] = process.argv.slice(2).map(Number);
  const began = performance.now();
  const { start, down, again, seconds, rest, renewed } = await simulate({ clients, outage });
  console.log(`${clients} clients, tokens of 600 s, the server is away for ${outage} s`);
  console.log(`  start: ${start.tokens} requests for tokens, ${start.open} clients are open`);
  console.log(`  outage: ${down.tokens} requests for tokens, ${down.attempts} attempts`);
  console.log(`  return: ${again.tokens} requests for tokens, ${again.attempts} attempts, ${again.open} clients are open after ${seconds} s`);
  console.log(`  until a minute before the tokens expire: ${rest.tokens} requests for tokens; then ${renewed.tokens} (renewals)`);
  console.log(`  simulated in ${((performance.now() - began) / 1000).toFixed(1)} s`);
}
