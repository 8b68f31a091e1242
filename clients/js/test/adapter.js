// The adapter of this client for the cases in `clients/cases`: commands and events as JSON lines, and a clock that the cases advance.
import { register } from "node:module";
import { createInterface } from "node:readline";

const timers = new Map();
let now = 1_000_000;
let nextTimer = 1;

/** The clock of the client's modules. The runtime, and so its WebSocket, has its own. */
globalThis.virtualClock = {
  Date: { now: () => now },
  // A timer without a delay is the next step, and waits for no command.
  setTimeout(run, delay = 0, ...values) {
    if (delay <= 0) return setTimeout(run, 0, ...values);
    const timer = { number: nextTimer++, at: now + delay, run: () => run(...values), unref() {}, ref() {} };
    timers.set(timer.number, timer);
    return timer;
  },
  clearTimeout: (timer) => (timer?.number === undefined ? clearTimeout(timer) : void timers.delete(timer.number)),
};
const source = new URL(process.argv[2] ?? "../sinews.js", import.meta.url);
const hook = `export async function load(url, context, next) {
  const loaded = await next(url, context);
  if (!url.startsWith(${JSON.stringify(new URL(".", source).href)}) || url.includes("/test/")) return loaded;
  return { ...loaded, source: "const { Date, setTimeout, clearTimeout } = globalThis.virtualClock; " + loaded.source };
}`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);

const { connect, SinewsError } = await import(source);

const emit = (event, fields = {}) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);
/** What the present step causes, without more input. */
const settle = async () => {
  for (let turn = 0; turn < 10; turn += 1) await new Promise((resolve) => setImmediate(resolve));
};
const plain = (data) => (data instanceof Uint8Array ? { b64: Buffer.from(data).toString("base64") } : data);
const bytes = ({ data, b64 }) => (b64 === undefined ? data : new Uint8Array(Buffer.from(b64, "base64")));
const failed = (name) => (error) => emit("failed", { name, code: error.code });
const answer = (name, request, value = (result) => result) =>
  void request.then((result) => emit("result", { name, value: value(result) ?? null }), (error) => emit("error", { name, code: error.code }));

let client;
const subscriptions = new Map();

/** A function that returns one of these tokens after the other, and then the last. */
function tokens(list) {
  let next = 0;
  return async () => {
    emit("token");
    const token = list[Math.min(next++, list.length - 1)];
    if (token?.error) throw new Error(token.error);
    if (token?.logged_out) throw new SinewsError(4401, token.logged_out);
    if (token?.hangs) return new Promise(() => {});
    return token;
  };
}

function message(name, { topic, data, epoch, seq, user, info, at }) {
  emit("message", { name, topic, data: plain(data), ...(seq === undefined ? {} : { position: { epoch, seq } }), user, info, at });
}

const commands = {
  connect({ url, token, tokens: list, min_delay: minDelay = 1000, max_delay: maxDelay = 8000, heartbeat = 30_000, response_timeout: responseTimeout = 10_000, assigned }) {
    client = connect(url, {
      token: list ? tokens(list) : token,
      minDelay,
      maxDelay,
      heartbeatInterval: heartbeat,
      responseTimeout,
      onstatus: ({ status, attempt, delay, code, reason }) => emit("status", { status, attempt, delay, code, reason }),
      ...(assigned ? { onmessage: (each) => message("", each), ongap: (gap) => emit("gap", { name: "", ...gap }) } : {}),
    });
  },
  subscribe({ name, topic, last, after, presence, members }) {
    const subscription = client.subscribe(topic, (each) => message(name, each), {
      last,
      from: after,
      presence: presence ? (subscribers) => emit("presence", { name, subscribers }) : undefined,
      members: members ? (map) => emit("members", { name, members: Object.fromEntries([...map].map(([id, info]) => [id, info ?? null])) }) : undefined,
      ongap: (gap) => emit("gap", { name, ...gap }),
      onerror: failed(name),
    });
    subscriptions.set(name, subscription);
    subscription.ready.then(() => emit("ready", { name }), () => {});
  },
  unsubscribe: ({ name }) => subscriptions.get(name).unsubscribe(),
  state({ name, topic, filter }) {
    const state = client.state(topic, (keys, changed) => {
      const values = Object.fromEntries([...keys].map(([key, value]) => [key, plain(value)]));
      emit("keys", { name, keys: values, changed: [...changed].sort() });
    }, { filter, ongap: (gap) => emit("gap", { name, ...gap }), onerror: failed(name) });
    subscriptions.set(name, state);
  },
  publish: ({ name, topic, idempotency_key: idempotencyKey, queue, ...data }) => answer(name, client.publish(topic, bytes(data), { idempotencyKey, queue })),
  set: ({ name, topic, key, ttl, if_new: ifNew, version, ...data }) => answer(name, client.set(topic, key, bytes(data), { ttl, ifNew, version })),
  delete: ({ name, topic, key }) => answer(name, client.delete(topic, key)),
  history: ({ name, topic, last, after, before, limit }) => answer(name, client.history(topic, { last, from: after, before, limit }), (page) => [...(page.messages ?? page)].map(({ data }) => plain(data))),
  presence: ({ name, topic }) => answer(name, client.presence(topic)),
  members: ({ name, topic }) => answer(name, client.members(topic), (list) => list.map(({ id }) => id)),
  join: ({ name, topic, id, info }) => answer(name, client.join(topic, { id, info }), () => null),
  leave: ({ name, topic }) => answer(name, client.leave(topic), () => null),
  call: ({ name, method, data, topic }) => answer(name, client.call(method, data, { topic })),
  retry: () => client.retry(),
  close: () => client.close(),
  async advance({ ms }) {
    const end = now + ms;
    for (;;) {
      await settle();
      const [next] = [...timers.values()].filter(({ at }) => at <= end).sort((one, other) => one.at - other.at || one.number - other.number);
      if (!next) break;
      timers.delete(next.number);
      now = Math.max(now, next.at);
      next.run();
    }
    now = end;
  },
  async sync({ number }) {
    await settle();
    emit("sync", { number });
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...command } = JSON.parse(line);
  await commands[name](command);
}
process.exit(0);
