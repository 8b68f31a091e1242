// Measures a server's CPU time for each message, for this package and ws, in alternating rounds.
//
//   node bench.mjs --load <program sinews> [--ws <directory with ws in node_modules>] [--rounds 5] [--seconds 3]
//                  [--connections 64] [--size 64] [--in-flight 1,16]
//   node bench.mjs --idle 2000 [--ws ...]
//
// The load generator is a program, so that only the server is a JavaScript process. The server answers each message, and counts
// messages and its own CPU time within the load's time.

import { fork, spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const SELF = fileURLToPath(import.meta.url);

const { values: args } = parseArgs({
  options: {
    load: { type: 'string' },
    ws: { type: 'string', default: path.dirname(SELF) },
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '3' },
    connections: { type: 'string', default: '64' },
    size: { type: 'string', default: '64' },
    'in-flight': { type: 'string', default: '1,16' },
    idle: { type: 'string' },
    server: { type: 'string' }
  }
});

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function load(name) {
  const require = createRequire(name === 'ws' ? path.join(args.ws, 'bench.js') : SELF);
  return require(name === 'ws' ? 'ws' : './ws.js');
}

function serve(name) {
  const { WebSocketServer } = load(name);
  let messages = 0;
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1' }, () => {
    process.send({ port: server.address().port });
  });
  server.on('connection', (websocket) => {
    websocket.on('message', (data, isBinary) => {
      messages++;
      websocket.send(data, { binary: isBinary });
    });
  });
  process.on('message', () => {
    global.gc?.();
    const { user, system } = process.cpuUsage();
    const { rss, heapUsed, external } = process.memoryUsage();
    process.send({ messages, user, system, rss, heapUsed, external });
  });
}

function start(name) {
  const child = fork(SELF, ['--server', name, '--ws', args.ws], { execArgv: ['--expose-gc'] });
  const next = () => new Promise((resolve) => child.once('message', resolve));
  const sample = () => {
    child.send('sample');
    return next();
  };
  return next().then(({ port }) => ({ child, port, sample }));
}

/** Returns microseconds of the server's CPU for a message. */
async function round(name, inFlight) {
  const { child, port, sample } = await start(name);
  const seconds = Number(args.seconds);
  const load = spawn(
    args.load,
    ['bench', '-c', args.connections, '-i', inFlight, '-s', args.size, '-d', `${seconds + 1}s`, `ws://127.0.0.1:${port}/`],
    { stdio: 'ignore' }
  );
  const ended = new Promise((resolve) => load.once('exit', resolve));
  await wait(1300);
  const first = await sample();
  await wait(seconds * 1000);
  const last = await sample();
  await ended;
  child.kill();
  const messages = last.messages - first.messages;
  const [user, system] = ['user', 'system'].map((key) => (last[key] - first[key]) / messages);
  return { micros: user + system, user, system, rate: messages / seconds };
}

function median(numbers) {
  return numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];
}

async function compareEcho() {
  for (const inFlight of args['in-flight'].split(',')) {
    const results = { ws: [], sinews: [] };
    for (let at = 0; at < Number(args.rounds); at++) {
      for (const name of at % 2 ? ['sinews', 'ws'] : ['ws', 'sinews']) results[name].push(await round(name, inFlight));
    }
    const of = (name, key) => median(results[name].map((result) => result[key]));
    const ratio = of('sinews', 'micros') / of('ws', 'micros');
    for (const name of ['ws', 'sinews']) {
      console.log(
        `${inFlight} in flight, ${name}: ${of(name, 'micros').toFixed(2)} µs CPU per message ` +
          `(user ${of(name, 'user').toFixed(2)}, system ${of(name, 'system').toFixed(2)}), ` +
          `${Math.round(of(name, 'rate'))} messages/s`
      );
    }
    const userRatio = of('sinews', 'user') / of('ws', 'user');
    console.log(`${inFlight} in flight: sinews / ws = ${ratio.toFixed(2)}, user time ${userRatio.toFixed(2)}`);
  }
}

/** Measures the memory for an idle connection. */
async function compareIdle() {
  const count = Number(args.idle);
  for (const name of ['ws', 'sinews', 'ws', 'sinews']) {
    const { child, port, sample } = await start(name);
    const { WebSocket } = load('ws');
    const clients = [];
    const open = async () => {
      const client = new WebSocket(`ws://127.0.0.1:${port}/`, { perMessageDeflate: false });
      clients.push(client);
      await new Promise((resolve) => client.once('open', resolve));
      client.send('warm');
      await new Promise((resolve) => client.once('message', resolve));
    };
    for (let at = 0; at < 200; at++) await open();
    await sample();
    await wait(500);
    const first = await sample();
    for (let at = 0; at < count; at++) await open();
    await sample();
    await wait(500);
    const last = await sample();
    const bytes = (key) => Math.round((last[key] - first[key]) / count);
    console.log(`${name}: ${bytes('rss')} bytes RSS, ${bytes('heapUsed')} heap, ${bytes('external')} external per connection`);
    for (const client of clients) client.terminate();
    child.kill();
  }
}

if (args.server) serve(args.server);
else if (args.idle) await compareIdle();
else await compareEcho();
