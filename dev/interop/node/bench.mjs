// `sinews bench` against servers on the `ws` package and on Node's own http and net: node bench.mjs PROGRAM FOLDER
// The folder has certificate.pem and key.pem for localhost. The servers count what they see, and the figures of the
// program are compared with these counts. Each check prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import tls from 'node:tls';
import { fileURLToPath } from 'node:url';
import { WebSocketServer } from 'ws';
import { Skip, checkAll, expect, freePort, repeat } from './suite.mjs';

const [program, folder] = process.argv.slice(2);
const pem = (name) => readFileSync(`${folder}/${name}.pem`);
const scratch = mkdtempSync(join(tmpdir(), 'sinews-bench-'));
process.on('exit', () => rmSync(scratch, { recursive: true }));
const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^SINEWS_/.test(name)));

/** Runs the program to its end: exit code, output, error output. `watch` is called with it meanwhile. */
async function run(args, watch = () => {}) {
  const child = spawn(program, ['bench', ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  const all = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr']) child[name].on('data', (data) => (all[name] += data));
  const ended = once(child, 'close');
  await watch(child.pid);
  const [code] = await ended;
  return { code, out: all.stdout, err: all.stderr };
}

/** A run in JSON. Loads are short and begin at once unless the arguments say otherwise. */
async function bench(args, watch) {
  const further = args.includes('--warm-up') || args.includes('-n') ? [] : ['--warm-up', '0s'];
  const ran = await run([...args, ...further, '--json', '--quiet'], watch);
  try {
    return { ...ran, result: JSON.parse(ran.out) };
  } catch {
    throw new Error(`exit code ${ran.code}, no JSON: ${ran.out}${ran.err}`);
  }
}

/** A run in which nothing fails. */
async function sound(args, watch) {
  const { code, err, result } = await bench(args, watch);
  if (code !== 0) throw new Error(`exit code ${code}: ${err}`);
  expect(JSON.stringify(result.errors), '{}', 'the errors');
  return result;
}

/** A run in which something fails: how often, by kind. */
async function errors(args) {
  const { code, result } = await bench(args);
  expect(code, 1, 'the exit code');
  return result.errors;
}

const has = (text, part) => {
  if (!text.includes(part)) throw new Error(`${JSON.stringify(part)} is not in ${JSON.stringify(text.slice(-400))}`);
};
const within = (value, least, most, what) => {
  if (!(value >= least && value <= most)) throw new Error(`${what} is ${value}, and not from ${least} to ${most}`);
};

/** Counts of the servers since `reset`. */
let seen;
const clear = () => {
  seen = { opened: [], open: 0, openMost: 0, messages: 0, text: 0, bytes: 0, wire: 0, waiting: 0, all: [], sources: new Map(), nodes: new Map(), codes: new Map(), extensions: new Set(), protocols: new Set(), headers: new Set(), requests: 0 };
};
clear();
const count = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);

const rooms = new Map();
const join_ = (room, socket) => rooms.set(room, [...(rooms.get(room) ?? []), socket]);
const tell = (room, text) => (rooms.get(room) ?? []).forEach((socket) => socket.send(text));

/** Reactions of a server to a message, by the path. */
const BEHAVIOUR = {
  echo: (socket, data, isBinary) => socket.send(data, { binary: isBinary }),
  // The second half of a batch shows how many messages were in flight.
  batch: (socket, data, isBinary, url) => {
    socket.batch = [...(socket.batch ?? []), data];
    seen.waiting = Math.max(seen.waiting, socket.batch.length);
    if (socket.batch.length < Number(url.searchParams.get('n'))) return;
    socket.batch.forEach((each) => socket.send(each, { binary: isBinary }));
    socket.batch = [];
  },
  late: (socket, data, isBinary) => setTimeout(() => socket.send(data, { binary: isBinary }), 20),
  // After its tenth message, the server pauses its answers for a second.
  stall: (socket, data, isBinary) => {
    socket.count = (socket.count ?? 0) + 1;
    if (socket.count === 10) socket.stalled = new Promise((resolve) => setTimeout(resolve, 1000));
    if (!socket.stalled) return socket.send(data, { binary: isBinary });
    return socket.stalled.then(() => socket.send(data, { binary: isBinary }));
  },
  silent: () => {},
  wrong: (socket, data, isBinary) => {
    socket.count = (socket.count ?? 0) + 1;
    if (socket.count === 5) data[data.length - 1] ^= 1;
    socket.send(data, { binary: isBinary });
  },
  swapped: (socket, data) => socket.send(data, { binary: true }),
  twice: (socket, data, isBinary) => [1, 2].forEach(() => socket.send(data, { binary: isBinary })),
  drop: (socket, data, isBinary) => {
    socket.count = (socket.count ?? 0) + 1;
    return socket.count > 3 ? socket.terminate() : socket.send(data, { binary: isBinary });
  },
  leave: (socket, data, isBinary) => {
    socket.count = (socket.count ?? 0) + 1;
    return socket.count > 3 ? socket.close(1012) : socket.send(data, { binary: isBinary });
  },
  garbage: (socket) => socket._socket.write(Buffer.from([0xff, 0xff, 0xff])),
  // A protocol of its own for rooms.
  room: (socket, data) => {
    const { op, room, text } = JSON.parse(data);
    if (op === 'join') join_(room, socket);
    else tell(room, JSON.stringify({ from: 'somebody', text }));
  },
  forgetful: (socket, data) => {
    const { op, room, text } = JSON.parse(data);
    if (op === 'join') return join_(`forgetful ${room}`, socket);
    seen.said = (seen.said ?? 0) + 1;
    return seen.said % 2 ? tell(`forgetful ${room}`, text) : undefined;
  },
  topics: (_, data, __, url) => tell(url.pathname, data.toString()),
};

/** The HTTP servers, and how to connect to them. */
const listening = [];

/** Starts new counts once the servers have seen the end of all connections of former runs. */
async function reset() {
  for (const [server, options] of listening) {
    // Connections are accepted in order: all earlier ones were accepted when this one has its answer.
    const last = (server instanceof https.Server ? tls : net).connect({ ...options, rejectUnauthorized: false });
    last.end('GET / HTTP/1.0\r\n\r\n');
    last.resume();
    await once(last, 'close');
    const open = () => new Promise((resolve, reject) => server.getConnections((error, number) => (error ? reject(error) : resolve(number))));
    while ((await open()) > 0) await new Promise((resolve) => setTimeout(resolve, 1));
  }
  clear();
}

function listen(server, where) {
  const chosen = (offered) => [...offered].find((name) => name === 'v1') ?? false;
  const sockets = new WebSocketServer({ server, perMessageDeflate: { threshold: 0 }, handleProtocols: chosen, verifyClient: ({ req }) => req.url !== '/forbidden' });
  sockets.on('connection', (socket, request) => {
    const url = new URL(request.url, 'ws://localhost');
    const kind = url.pathname.split('/')[1];
    const { bytesRead } = request.socket;
    seen.opened.push(performance.now());
    seen.openMost = Math.max(seen.openMost, ++seen.open);
    count(seen.sources, request.socket.remoteAddress);
    count(seen.nodes, url.searchParams.get('node'));
    seen.extensions.add(socket.extensions);
    seen.protocols.add(socket.protocol);
    seen.headers.add(request.headers['x-test']);
    if (kind === 'topics' && request.headers['x-test'] !== 'deaf') join_(url.pathname, socket);
    socket.on('error', () => {});
    socket.on('message', (data, isBinary) => {
      seen.messages += 1;
      seen.bytes += data.length;
      seen.text += isBinary ? 0 : 1;
      if (seen.all.length < 100) seen.all.push(data.toString());
      BEHAVIOUR[kind](socket, data, isBinary, url);
    });
    socket.on('close', (code) => {
      seen.open -= 1;
      seen.wire += request.socket.bytesRead - bytesRead;
      count(seen.codes, code);
      for (const [room, all] of rooms) rooms.set(room, all.filter((one) => one !== socket));
    });
  });
  server.on('request', answer);
  return new Promise((resolve) => server.listen(...where, () => {
    const { port } = server.address();
    listening.push([server, port ? { port, host: '127.0.0.1' } : { path: where[0] }]);
    resolve(port);
  }));
}

function answer(request, response) {
  seen.requests += 1;
  seen.headers.add(request.headers['x-test']);
  const path = request.url;
  if (path === '/echo' && request.method !== 'GET') {
    request.on('data', (data) => (seen.bytes += data.length));
    return request.pipe(response);
  }
  if (path === '/missing') response.writeHead(404);
  if (path === '/close') response.shouldKeepAlive = false;
  if (path === '/chunked') ['hel', 'lo'].forEach((part) => response.write(part));
  return response.end(path === '/chunked' ? '' : 'hello');
}

const port = await listen(http.createServer(), [0, '127.0.0.1']);
const secure = await listen(https.createServer({ cert: pem('certificate'), key: pem('key') }), [0, '127.0.0.1']);
const unix = join(scratch, 'socket');
await listen(http.createServer(), [unix]);
const mute = net.createServer((socket) => socket.on('error', () => {}));
await new Promise((resolve) => mute.listen(0, '127.0.0.1', resolve));
const tcp = net.createServer((socket) => {
  socket.on('error', () => {});
  socket.on('data', (data) => (seen.bytes += data.length));
  socket.pipe(socket);
});
await new Promise((resolve) => tcp.listen(0, '127.0.0.1', resolve));
const unused = await freePort();

const url = (path) => `ws://127.0.0.1:${port}/${path}`;
const web = (path) => `http://127.0.0.1:${port}/${path}`;

/** Waits until all connections of the run are closed at the servers. */
const left = async () => {
  while (seen.open > 0) await new Promise((resolve) => setTimeout(resolve, 5));
};

/** A run of echoes, after which the counts of the server and the program agree. */
async function counted(number, ...args) {
  await reset();
  const result = await sound(['-n', String(number), ...args]);
  await left();
  expect(result.messages, number, 'messages');
  expect(result.latency_us.count, number, 'latencies');
  expect(seen.messages, number, 'messages that the server has seen');
  expect(result.bytes_sent, seen.bytes, 'bytes sent, as the server has seen them');
  expect(result.bytes_received, seen.bytes, 'bytes received');
  return result;
}

const ms = (value) => value / 1000;

const checks = {
  '--connections, --count': async () => {
    for (const connections of [1, 7, 50]) {
      const result = await counted(500, '-c', String(connections), url('echo'));
      expect(seen.openMost, connections, 'connections at a time');
      expect(seen.opened.length, connections, 'connections in all');
      expect(result.connections_open, connections, 'connections open');
      expect(result.connect_us.count, connections, 'connections measured');
      expect(seen.codes.get(1000), connections, 'connections closed with 1000');
    }
  },
  '--threads': async () => {
    const named = (pid) => readdirSync(`/proc/${pid}/task`).map((task) => readFileSync(`/proc/${pid}/task/${task}/comm`, 'utf8').trim()).filter((name) => name.startsWith('load '));
    let most = 0;
    const watch = async (pid) => {
      while (most < 3) {
        try {
          most = Math.max(most, named(pid).length);
        } catch {
          break;
        }
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    };
    await reset();
    const result = await sound(['-t', '3', '-c', '10', '-d', '400ms', url('echo')], watch);
    expect(result.threads, 3, 'threads');
    if (process.platform === 'linux') expect(most, 3, 'threads that load');
    expect(seen.opened.length, 10, 'connections');
    await counted(301, '-t', '3', '-c', '10', url('echo'));
  },
  '--in-flight': async () => {
    await counted(40, '-c', '2', '-i', '4', url('batch?n=4'));
    expect(seen.waiting, 4, 'messages on their way');
    await reset();
    const lost = await errors(['-c', '2', '-i', '3', '-d', '100ms', '--timeout', '300ms', url('batch?n=4')]);
    expect(lost.no_answer, 6, 'messages without an answer');
    expect(seen.messages, 6, 'messages that the server has seen');
  },
  '--duration, --warm-up': async () => {
    await reset();
    const started = performance.now();
    const result = await sound(['-c', '4', '-d', '300ms', '--warm-up', '400ms', url('echo')]);
    expect(result.seconds, 0.3, 'seconds');
    within(performance.now() - started, 700, 20_000, 'the time of all');
    within(result.rate * 0.3, result.messages - 1, result.messages + 1, 'the rate times the time');
    // Messages of the warm-up are not counted.
    within(seen.messages, result.messages + 4, Infinity, 'messages that the server has seen');
    await reset();
    const cold = await sound(['-c', '4', '-d', '300ms', '--warm-up', '0s', url('echo')]);
    // Messages in flight at the end are answered, and not counted.
    within(seen.messages - cold.messages, 0, 4, 'messages beyond the counted messages');
  },
  "latency and rate match the server's": async () => {
    const result = await sound(['-c', '5', '-i', '2', '-d', '2s', url('late')]);
    within(ms(result.latency_us.min), 19, 400, 'the least latency in ms');
    // Little's law: the messages in flight are the rate times the latency. Answers that a busy machine delays beyond the
    // end add to the latency, and not to the time; twice the messages would be 20.
    within((result.rate * result.latency_us.mean) / 1e6, 8.5, 14, 'messages on their way');
  },
  '--rate': async () => {
    await reset();
    const result = await sound(['-c', '10', '-r', '200', '-d', '1s', url('echo')]);
    expect(result.offered_rate, 200, 'the rate that was offered');
    expect(result.latency_us.count, 200, 'latencies');
    within(result.messages, 190, 200, 'messages');
    expect(seen.messages, 200, 'messages that the server has seen');
    expect(result.late_us.count, 200, 'how late they left');
    const faster = await sound(['-c', '10', '-r', '1k', '-d', '200ms', url('echo')]);
    expect(faster.latency_us.count, 200, 'latencies at 1k');
  },
  'a server that stalls shows in the percentiles of an open loop': async () => {
    const open = await sound(['-c', '1', '-r', '100', '-d', '1500ms', url('stall')]);
    expect(open.latency_us.count, 150, 'every message that was due counts');
    within(ms(open.latency_us.max), 990, 5000, 'the longest in ms');
    // A hundred were due while it stalled, and half of them in its first half.
    within(ms(open.latency_us.p75), 400, 5000, '75 % in ms');
    within(ms(open.latency_us.p50), 50, 5000, '50 % in ms');
    // A closed loop has one waiting message, which does not show in its percentiles.
    const closed = await sound(['-c', '1', '-n', '300', url('stall')]);
    within(ms(closed.latency_us.max), 990, 5000, 'the longest of a closed loop in ms');
    within(ms(closed.latency_us.p99), 0, 900, '99 % of a closed loop in ms');
  },
  '--ramp-up': async () => {
    await reset();
    await sound(['-c', '10', '--ramp-up', '400ms', '-n', '20', url('echo')]);
    expect(seen.opened.length, 10, 'connections');
    within(Math.max(...seen.opened) - Math.min(...seen.opened), 100, 20_000, 'from the first connection to the last');
  },
  '--timeout': async () => {
    const found = await errors(['-c', '3', '-n', '3', '--timeout', '300ms', `ws://127.0.0.1:${mute.address().port}/`]);
    expect(found.connect_timeout, 3, 'connections that were not made');
    const silent = await bench(['-c', '3', '-d', '100ms', '--timeout', '300ms', url('silent')]);
    expect(JSON.stringify([silent.code, silent.result.errors, silent.result.messages]), '[1,{"no_answer":3},0]', 'the end');
    // An unanswered message counts with the whole waiting time.
    within(ms(silent.result.latency_us.min), 300, 20_000, 'the least latency in ms');
  },
  '--size': async () => {
    for (const size of ['0', '1', '125', '126', '65535', '65536', '1m']) {
      const result = await counted(6, '-c', '2', '-s', size, url('echo'));
      expect(result.bytes_sent, 6 * Number(size.replace('1m', 1 << 20)), 'bytes');
    }
    await counted(400, '-c', '2', '-s', '10-20', url('echo'));
    const lengths = new Set(seen.all.map((text) => text.length));
    within(lengths.size, 6, 11, 'sizes of the range');
    within(Math.min(...lengths), 10, 20, 'the smallest');
    within(Math.max(...lengths), 10, 20, 'the largest');
    await counted(400, '-c', '2', '-s', '64:9,1k:1', url('echo'));
    expect([...new Set(seen.all.map((text) => text.length))].sort().join(), '1024,64', 'sizes of the mix');
    within(seen.bytes / 400, 64 + 960 * 0.05, 64 + 960 * 0.15, 'the mean size');
  },
  '--file': async () => {
    const file = join(scratch, 'lines');
    writeFileSync(file, '{"a":1}\n\nκόσμε\r\nthird');
    await counted(6, '-c', '1', '--file', file, url('echo'));
    expect(seen.all.join('|'), '{"a":1}|κόσμε|third|{"a":1}|κόσμε|third', 'sent messages');
    writeFileSync(file, Buffer.from('a\n\xff\xfe\n', 'latin1'));
    has((await run(['--file', file, '-n', '1', url('echo')])).err, 'message 2 is not valid UTF-8');
    await counted(2, '-c', '1', '--binary', '--file', file, url('echo'));
  },
  '--text, --binary': async () => {
    for (const [kind, text] of [[[], 50], [['--text'], 50], [['--binary'], 0]]) {
      await counted(50, '-c', '2', ...kind, url('echo'));
      expect(seen.text, text, 'text messages that the server has seen');
    }
    const found = await errors(['-c', '1', '-n', '5', url('swapped'), '--timeout', '1s']);
    within(found.wrong_bytes, 1, 1, 'answers of the other kind');
  },
  '--deflate': async () => {
    const file = join(scratch, 'again');
    writeFileSync(file, `${'again and '.repeat(300)}\n`);
    await counted(20, '-c', '2', '--deflate', '--file', file, url('echo'));
    has([...seen.extensions].join(), 'permessage-deflate');
    within(seen.wire, 1, seen.bytes / 5, 'bytes on the wire');
    await counted(20, '-c', '2', '--file', file, url('echo'));
    expect([...seen.extensions].join(), '', 'extensions without it');
    within(seen.wire, seen.bytes, seen.bytes * 1.1, 'bytes on the wire without it');
    await counted(20, '-c', '2', '--deflate', '-s', '0-5k', '-i', '4', '--binary', url('echo'));
  },
  '--header, --subprotocol': async () => {
    await counted(4, '-c', '2', '-H', 'X-Test: 7', '--subprotocol', 'v2', '--subprotocol', 'v1', url('echo'));
    expect([...seen.headers].join(), '7', 'the header');
    expect([...seen.protocols].join(), 'v1', 'the subprotocol');
  },
  'wss: --ca, --insecure': async () => {
    const wss = `wss://localhost:${secure}/echo`;
    for (const trust of [['--insecure'], ['--ca', `${folder}/certificate.pem`]]) {
      await counted(100, '-c', '4', '-i', '4', ...trust, wss);
      await counted(4, '-c', '2', '-s', '300k', ...trust, wss);
    }
    const { code, err, result } = await bench(['-c', '2', '-n', '2', '--timeout', '2s', wss]);
    expect(code, 1, 'the code without trust');
    within(result.errors.tls, 2, 2, 'errors of TLS');
    has(err, '--ca FILE');
  },
  'https': async () => {
    await reset();
    const result = await sound(['-c', '2', '-n', '50', '-i', '4', '--insecure', '--expect', 'hello', `https://localhost:${secure}/`]);
    expect(result.messages, seen.requests, 'requests that the server has seen');
  },
  '--unix': async () => {
    await counted(40, '-c', '2', '--unix', unix, 'ws://localhost/echo');
    await reset();
    await sound(['-c', '2', '-n', '40', '--unix', unix, '--expect', 'hello', 'http://localhost/']);
    expect(seen.requests, 40, 'requests');
  },
  '--backend': async () => {
    expect((await counted(40, '-c', '2', '--backend', 'poll', url('echo'))).backend, 'poll', 'the backend');
    const { code, err, result } = await bench(['-c', '2', '-n', '40', '--backend', 'uring', url('echo')]).catch((error) => ({ err: error.message }));
    if (code !== 0 && /not permitted|not supported|EPERM|ENOSYS/i.test(err)) throw new Skip(err);
    expect(result.backend, 'uring', 'the backend');
    expect(result.messages, 40, 'messages');
  },
  'http: --method, --expect': async () => {
    for (const path of ['', 'chunked', 'close']) {
      await reset();
      const result = await sound(['-c', '4', '-n', '100', '-H', 'X-Test: 8', '--expect', 'hello', web(path)]);
      expect(result.messages, 100, `answers of /${path}`);
      expect(seen.requests, 100, `requests of /${path}`);
      expect([...seen.headers].join(), '8', 'the header');
    }
    await reset();
    await sound(['-c', '2', '-n', '100', '-i', '10', '--expect', 'hello', web('')]);
    expect(seen.requests, 100, 'pipelined requests');
    for (const method of ['POST', 'PUT', 'PATCH']) {
      await reset();
      await sound(['-c', '2', '-n', '30', '-s', '10-3k', '--method', method, '--expect', 'echo', web('echo')]);
      expect(seen.requests, 30, method);
      within(seen.bytes, 30 * 10, 30 * 3072, 'bytes of the bodies');
    }
    await sound(['-c', '2', '-n', '10', '--method', 'HEAD', web('')]);
    const file = join(scratch, 'body');
    writeFileSync(file, 'hello');
    await sound(['-c', '2', '-n', '10', '--expect', `@${file}`, web('')]);
    for (const further of [[], ['-i', '5']]) {
      const wrong = await errors(['-c', '2', '-n', '10', ...further, '--expect', 'other', web('')]);
      expect(JSON.stringify(wrong), '{"wrong_bytes":10}', 'the errors of wrong bodies');
    }
    expect(JSON.stringify(await errors(['-c', '2', '-n', '10', web('missing')])), '{"http_status":10}', 'the errors of a wrong status');
  },
  'tcp': async () => {
    for (const more of [[], ['-i', '8'], ['-s', '1-20k', '-t', '2']]) {
      await reset();
      const result = await sound(['-c', '4', '-n', '200', ...more, `tcp://127.0.0.1:${tcp.address().port}`]);
      expect(result.messages, 200, 'messages');
      expect(result.bytes_sent, seen.bytes, 'bytes, as the server has seen them');
    }
  },
  '--mode fan-out, --publishers, --topics': async () => {
    await reset();
    const result = await sound(['-m', 'fan-out', '-c', '9', '--publishers', '2', '--topics', '2', '-r', '100', '-d', '500ms', url('')]);
    expect(result.published, 50, 'published');
    expect(seen.messages, 50, 'publications that the server has seen');
    // Two topics with four and three subscribers, published to by turns.
    expect(result.latency_us.count, 25 * 4 + 25 * 3, 'deliveries');
  },
  '--login, --subscribe, --publish': async () => {
    await reset();
    const protocol = ['--subscribe', '{"op":"join","room":"{topic}"}', '--publish', '{"op":"say","room":"{topic}","text":"{payload}"}'];
    const room = ['-m', 'fan-out', '-c', '6', '-r', '100', '-d', '400ms', ...protocol];
    const result = await sound([...room, '-s', '100', url('room')]);
    expect(result.published, 40, 'published');
    expect(seen.messages, 40 + 5, 'messages that the server has seen');
    expect(result.latency_us.count, 40 * 5, 'deliveries');
    has(seen.all[0], '{"op":"join","room":"bench-0"}');
    expect(JSON.parse(seen.all[10]).text.length, 100, 'the size of a publication');
    await reset();
    await sound([...room, '--login', '{"op":"join","room":"lobby"}', url('room')]);
    expect(seen.all.filter((text) => text.includes('lobby')).length, 6, 'logins, of subscribers and publishers');
    expect(seen.messages, 40 + 5 + 6, 'messages, with those of logins');
    await reset();
    const lost = await errors([...room, '--timeout', '500ms', url('forgetful')]);
    expect(lost.not_delivered, 20 * 5, 'deliveries that have not come');
  },
  '--publish-url': async () => {
    await reset();
    // The other node delivers to the topics of this one: both are one server, which tells them apart by the query.
    const fanOut = ['-m', 'fan-out', '-c', '6', '-r', '100', '-d', '400ms'];
    const result = await sound([...fanOut, '--publish-url', url('topics/{topic}?node=2'), url('')]);
    expect(result.published, 40, 'published');
    expect(result.latency_us.count, 40 * 5, 'deliveries');
    expect(seen.nodes.get('2'), 1, 'publishers at the other URL');
    has((await run([...fanOut, '--publish-url', 'wss://127.0.0.1:1', url('')])).err, 'expected the scheme of');
    has((await run(['--publish-url', url(''), url('echo')])).err, 'is for --mode fan-out');
    has((await run(['--login', 'a', '--publish', 'b', url('echo')])).err, 'is for --mode fan-out');
  },
  '--mode storm': async () => {
    await reset();
    const result = await sound(['-m', 'storm', '-c', '4', '-d', '400ms', url('echo')]);
    await left();
    expect(result.latency_us.count, result.messages, 'connections measured');
    // Connections during the ramp-up, and connections in flight at the end, do not count.
    within(seen.opened.length - result.messages, 0, 40, 'connections beyond the counted connections');
    within(seen.openMost, 1, 8, 'connections at a time');
    expect(seen.messages, 0, 'messages');
    await reset();
    expect((await sound(['-m', 'storm', '-c', '4', '-n', '50', url('echo')])).messages, 50, 'a count of connections');
    within((await errors(['-m', 'storm', '-c', '2', '-d', '100ms', url('forbidden')])).handshake_refused, 1, 1e6, 'refused');
  },
  '--mode idle, --source, --pid': async () => {
    await reset();
    const pid = ['--pid', String(process.pid)];
    const from = ['--source', '127.0.0.1-3,127.0.0.9'];
    const result = await sound(['-m', 'idle', '-c', '40', '-d', '300ms', ...from, ...pid, url('echo')]);
    expect([...seen.sources.entries()].map(([address, times]) => `${address} ${times}`).sort().join(), '127.0.0.1 10,127.0.0.2 10,127.0.0.3 10,127.0.0.9 10', 'where they came from');
    expect(result.connections_open, 40, 'connections open');
    expect(seen.messages, 0, 'messages');
    const { server } = result;
    const rss = process.memoryUsage.rss();
    within(server.memory_bytes, rss / 2, rss * 2, "the server's memory");
    const each = (Math.max(server.memory_bytes) - server.memory_before_bytes) / 40;
    within(server.memory_per_connection_bytes, each - 1, Infinity, 'memory for a connection');
  },
  '--pid, --children': async () => {
    const before = process.cpuUsage();
    // A number of messages, which takes its time on any machine.
    const args = ['-c', '4', '-n', '5000', '--pid', String(process.pid), url('echo')];
    const { server, messages } = await sound(args);
    const after = process.cpuUsage(before);
    const spent = (after.user + after.system) / 1e6;
    within(server.cpu_seconds, 0.02, spent * 1.02 + 0.01, "processor time, compared with the server's own count");
    within((server.cpu_us_per_message * messages) / 1e6, server.cpu_seconds * 0.999, server.cpu_seconds * 1.001, 'processor time by the message');
    within(server.threads, 2, 100, 'threads');
    // The program itself is a child of this process.
    const family = await sound([...args, '--children']);
    within(family.server.threads, server.threads + 1, 100, 'threads including the children');
    within(family.server.memory_bytes, server.memory_bytes, Infinity, 'memory with that of the children');
  },
  '--trace': async () => {
    const args = ['-c', '2', '-d', '200ms', '--pid', String(process.pid), '--trace', url('echo')];
    const { code, err, result } = await bench(args);
    if (code !== 0) throw new Error(err);
    const calls = result.server.system_calls_per_message;
    if (calls === null) {
      has(err, 'system calls were not counted: ');
      throw new Skip(err.trim());
    }
    // A read and a write each, and the wakeup.
    within(calls, 1, 100, 'system calls for a message');
  },
  '--csv': async () => {
    const ran = await run(['-c', '2', '-n', '20', '--csv', '--quiet', url('echo')]);
    const [names, values] = ran.out.trim().split('\n').map((line) => line.split(','));
    expect(names.length, values.length, 'columns');
    const value = (name) => values[names.indexOf(name)];
    expect([value('messages'), value('errors'), value('connections'), value('url')].join(' '), `20 0 2 ${url('echo')}`, 'the values');
  },
  'the table, and --quiet': async () => {
    // Longer than the interval between two lines: connecting may have had one.
    const ran = await run(['-c', '2', '-d', '3s', '--warm-up', '0s', url('echo')]);
    for (const part of ['echoes, verified', 'p99.99', 'connections open']) has(ran.out, part);
    has(ran.err, 'sinews bench: measuring');
    expect((await run(['-c', '2', '-n', '10', '--quiet', url('echo')])).err, '', 'error output with --quiet');
  },
  '--report': async () => {
    const page = join(scratch, 'report.html');
    // Many samples: a chart needs two.
    const result = await sound(['-c', '2', '-d', '3s', '--pid', String(process.pid), '--report', page, url('echo')]);
    const html = readFileSync(page, 'utf8');
    expect(html.match(/<svg/g).length, 3, 'charts');
    has(html, `&quot;messages&quot;: ${result.messages}`);
  },
  'errors have kinds': async () => {
    const short = ['-c', '2', '-n', '40', '--timeout', '500ms'];
    await reset();
    const wrong = await errors([...short, url('wrong')]);
    expect(JSON.stringify(wrong), '{"wrong_bytes":2}', 'the errors, one for each connection');
    const dropped = await errors([...short, url('drop')]);
    expect((dropped.reset_by_server ?? 0) + (dropped.closed_by_server ?? 0), 2, 'connections dropped');
    // A deliberate Close of the server is distinguished from a drop.
    expect((await errors([...short, url('leave')])).closed_by_server, 2, 'connections closed');
    expect((await errors([...short, url('garbage')])).protocol_violation, 2, 'violations');
    within((await errors([...short, '-i', '4', url('twice')])).wrong_bytes, 1, 2, 'echoes too many');
    expect((await errors([...short, url('forbidden')])).handshake_refused, 2, 'handshakes refused');
    expect((await errors([...short, `ws://127.0.0.1:${unused}/`])).connection_refused, 2, 'connections refused');
  },
  'compare': async () => {
    const late = fileURLToPath(new URL('late-server.mjs', import.meta.url));
    const command = (name, at, delay) => `${name}=ws://127.0.0.1:${at}/=node ${late} ${at} ${delay}`;
    const args = ['compare', '--rounds', '8', '-c', '2', '-n', '10', '--json'];
    const ran = await run([...args, command('early', unused, 1), command('late', unused, 30)]);
    if (ran.code !== 0) throw new Error(ran.err);
    const [early, later] = JSON.parse(ran.out).servers;
    expect([early.name, later.name, early.rounds, later.rounds].join(), 'early,late,8,8', 'compared servers');
    expect(later.rate.differs, true, 'whether their rates differ');
    within(later.median_latency.ratio, 2, 40, 'the ratio of the latencies');
    within(later.median_latency.median / 1e6, 29, 200, 'the latency of the late one in ms');
    within(early.server_s_CPU.median, 1, 1e6, 'processor time for a message');
    expect(ran.err.match(/round \d of 8: (early|late) /g).length, 16, 'lines');
    const same = await run(['compare', '--rounds', '3', '-c', '1', '-n', '20', '--quiet', url('echo'), url('echo')]);
    has(same.out, 'undecided with 3 rounds, 8 can decide');
    expect(same.err, '', 'error output with --quiet');
  },
  'compare: --server-core, --load-core': async () => {
    const allowed = (pid) => {
      try {
        return /Cpus_allowed_list:\s*(\S+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1];
      } catch {
        return null;
      }
    };
    if (process.platform !== 'linux') throw new Skip('cores are chosen on Linux');
    const core = /\d+/.exec(allowed('self'))[0];
    const late = fileURLToPath(new URL('late-server.mjs', import.meta.url));
    const server = `a=http://127.0.0.1:${unused}/=node ${late} ${unused} 0`;
    const pinned = [];
    const watch = async (pid) => {
      // The program has ended when there is nothing to read.
      for (let now = allowed(pid); now; now = allowed(pid)) {
        pinned.push(now);
        if (now === core) break;
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    };
    const args = ['compare', '--rounds', '3', '-c', '1', '-n', '5', '--quiet', '--server-core', core, '--load-core', core];
    const ran = await run([...args, '--expect', core, server, server], watch);
    expect(ran.code, 0, `the exit code (${ran.err})`);
    expect(pinned.at(-1), core, 'the processor of the load');
  },
};

repeat(checks, [
  '--threads', '--in-flight', '--duration, --warm-up', "latency and rate match the server's", '--rate',
  'a server that stalls shows in the percentiles of an open loop', '--ramp-up', '--timeout', '--text, --binary',
  'wss: --ca, --insecure', '--login, --subscribe, --publish', '--mode storm', '--pid, --children', 'errors have kinds', 'compare',
  'compare: --server-core, --load-core',
]);
await checkAll(checks);
