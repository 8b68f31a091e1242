// The common checks of all clients with the browser's WebSocket interface.
// Each prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.
import net from 'node:net';

const SIZES = [0, 1, 125, 126, 65535, 65536, 1 << 20];
const LIMIT_MS = 120_000;
/** Attempts of a check with a bound on a time. */
const ATTEMPTS = 5;
/** Ports of programs that a check starts later, below those that the system gives to connections. */
const PORTS = [4_800, 4_900];

export const letters = (size) => 'abcdefghijklmnopqrstuvwxyz 0123456789 '.repeat(size / 38 + 1).slice(0, size);
export const octets = (size) => Uint8Array.from({ length: size }, (_, i) => (i * 31 + (i >> 8)) & 255);

/** A socket with awaitable messages and end. */
export class Socket {
  #messages = [];
  #waiting = [];

  static open(WebSocket, url) {
    return new Promise((resolve, reject) => {
      const socket = new Socket(new WebSocket(url));
      socket.raw.addEventListener('open', () => resolve(socket));
      socket.raw.addEventListener('error', (event) => reject(event.error ?? new Error(event.message)));
    });
  }

  constructor(raw) {
    this.raw = raw;
    raw.binaryType = 'arraybuffer';
    raw.addEventListener('message', ({ data }) => this.#settle({ data }));
    this.closed = new Promise((resolve) => {
      raw.addEventListener('close', ({ code, reason, wasClean }) => {
        this.#settle({ ended: code });
        resolve({ code, reason, wasClean });
      });
    });
  }

  #settle(event) {
    const waiting = this.#waiting.shift();
    if (waiting) waiting(event);
    else this.#messages.push(event);
  }

  async next() {
    const event = this.#messages.shift() ?? (await new Promise((resolve) => this.#waiting.push(resolve)));
    if ('ended' in event) throw new Error(`closed with ${event.ended} in place of a message`);
    return typeof event.data === 'string' ? event.data : new Uint8Array(event.data);
  }

  async close(code, reason) {
    this.raw.close(code, reason);
    return this.closed;
  }
}

export function expect(actual, wanted, what) {
  const [a, b] = [actual, wanted].map((value) => (value instanceof Uint8Array ? Buffer.from(value) : value));
  const equal = Buffer.isBuffer(a) && Buffer.isBuffer(b) ? a.equals(b) : a === b;
  if (!equal) throw new Error(`${what} is ${brief(a)}, not ${brief(b)}`);
}

const brief = (value) => {
  const text = Buffer.isBuffer(value) ? `0x${value.toString('hex', 0, 20)}` : JSON.stringify(value) ?? 'undefined';
  return `${text.slice(0, 60)} (length ${value?.length ?? '-'})`;
};

/** Runs the common checks and the client's own; `extra` maps names to functions. */
export async function run(client, WebSocket, extra = {}) {
  const [base, limited] = process.argv.slice(2);
  const open = (path, root = base) => Socket.open(WebSocket, root + path);
  // A topic for each check: a late leave must not count in the next check.
  const topic = (name) => `/topics/${client}-${name}`;
  const checks = {
    ...Object.fromEntries(SIZES.map((size) => [`text of ${size}`, () => echo(open, letters(size))])),
    ...Object.fromEntries(SIZES.map((size) => [`binary of ${size}`, () => echo(open, octets(size))])),
    'text beyond ASCII': () => echo(open, 'κόσμε 世界 🌍'),
    'many in flight': () => inFlight(open),
    'close 1000': () => close(open, 1000, ''),
    'close 4001 with a reason': () => close(open, 4001, 'because'),
    'deflate': () => deflate(open),
    'topic reaches all': () => topicReachesAll(open, topic('all')),
    'topic without self': () => topicWithoutSelf(open, topic('self')),
    'topic by POST': () => topicByPost(open, topic('post'), base.replace('ws:', 'http:')),
    'largest message': () => echo((path) => open(path, limited), octets(2_000_000)),
    'message over the limit': () => overLimit((path) => open(path, limited)),
    ...Object.fromEntries(Object.entries(extra).map(([name, check]) => [name, () => check(open)])),
  };
  await checkAll(checks);
}

/**
 * Makes checks with a bound on a time again if they fail: a machine that stalls exceeds the bound once, and a fault exceeds it
 * each time.
 */
export function repeat(checks, names) {
  for (const name of names) {
    const check = checks[name];
    checks[name] = async () => {
      for (let left = ATTEMPTS; ; left -= 1) {
        try {
          return await check();
        } catch (error) {
          if (left === 1 || error instanceof Skip) throw error;
        }
      }
    };
  }
}

/** A port that nothing listens on, and that no connection takes before a program listens there. */
export async function freePort() {
  for (let port = PORTS[0]; port < PORTS[1]; port += 1) {
    const server = net.createServer();
    const isFree = await new Promise((resolve) => server.once('error', () => resolve(false)).listen(port, '127.0.0.1', () => resolve(true)));
    if (isFree) return new Promise((resolve) => server.close(() => resolve(port)));
  }
  throw new Error(`no port from ${PORTS[0]} to ${PORTS[1]} is free`);
}

/** Thrown by a check with a missing prerequisite. */
export class Skip extends Error {}

/** Runs the checks, which map names to functions, and ends the process. */
export async function checkAll(checks) {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`not done within ${LIMIT_MS} ms`)), LIMIT_MS);
    });
    try {
      await Promise.race([check(), late]);
      console.log(`ok ${name}`);
    } catch (error) {
      const skipped = error instanceof Skip;
      failed += skipped ? 0 : 1;
      console.log(`${skipped ? 'skipped' : 'FAIL'} ${name}: ${error.message}`);
    }
    clearTimeout(timer);
  }
  process.exit(failed ? 1 : 0);
}

async function echo(open, message) {
  const socket = await open('/echo');
  socket.raw.send(message);
  expect(await socket.next(), message, 'the echo');
  expect((await socket.close(1000)).code, 1000, 'the code');
}

async function inFlight(open) {
  const socket = await open('/echo');
  for (let i = 0; i < 1000; i += 1) socket.raw.send(`message ${i}`);
  for (let i = 0; i < 1000; i += 1) expect(await socket.next(), `message ${i}`, 'the echo');
  await socket.close(1000);
}

async function close(open, code, reason) {
  const socket = await open('/echo');
  const end = await socket.close(code, reason);
  expect(end.code, code, 'the code');
  expect(end.wasClean, true, 'clean');
}

async function deflate(open) {
  const socket = await open('/echo');
  expect(socket.raw.extensions.split(';')[0], 'permessage-deflate', 'the extension');
  // Twice: the second uses the window of the first.
  for (const message of [letters(100_000), letters(100_000), 'short', octets(70_000)]) {
    socket.raw.send(message);
    expect(await socket.next(), message, 'the echo');
  }
  await socket.close(1000);
}

async function topicReachesAll(open, path) {
  const [one, two] = [await open(path), await open(path)];
  one.raw.send('news');
  expect(await one.next(), 'news', 'message to the sender');
  expect(await two.next(), 'news', 'message to the other client');
  two.raw.send(octets(1000));
  expect(await one.next(), octets(1000), 'message to the other client');
  await Promise.all([one.close(1000), two.close(1000)]);
}

async function topicWithoutSelf(open, path) {
  const [quiet, other] = [await open(`${path}?self=false`), await open(path)];
  quiet.raw.send('from quiet');
  expect(await other.next(), 'from quiet', 'message to the other client');
  // An echo of the first would arrive before this message.
  other.raw.send('from other');
  expect(await quiet.next(), 'from other', 'message to the quiet client');
  await Promise.all([quiet.close(1000), other.close(1000)]);
}

async function topicByPost(open, path, base) {
  const [one, two] = [await open(path), await open(path)];
  const answer = await fetch(base + path, { method: 'POST', body: 'posted' });
  expect(answer.status, 200, 'the status');
  expect((await answer.json()).subscribers, 2, 'subscribers');
  expect(await one.next(), 'posted', 'message to the first client');
  expect(await two.next(), 'posted', 'message to the second client');
  await Promise.all([one.close(1000), two.close(1000)]);
}

async function overLimit(open) {
  const socket = await open('/echo');
  // Octets that do not compress, so that the limit is passed on the wire too.
  socket.raw.send(Uint8Array.from(noise(2_000_001)));
  expect((await socket.closed).code, 1009, 'the code');
}

function* noise(size) {
  let state = 1;
  for (let i = 0; i < size; i += 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state >>> 24;
  }
}
