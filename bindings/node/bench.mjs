// Compares servers: CPU time for each message, latency, fan-out, and memory, by the load generator `sinews bench`.
//
//   node bench.mjs MODE --load <program sinews> [--servers ws,sinews-ws,serve] [-- options of the load]
//
// Rounds of the servers alternate. Each server is a process on core 0, and the load generator is on core 1. MODE is `echo` (64
// connections, 64 bytes, with 1 and with 16 messages in flight), `latency` (20,000 messages a second), `fan-out` (one publisher and
// 1,000 subscribers: bursts of 16 publications, and 10 a second) or `idle`. `plain` is a floor: for fan-out a program
// that writes the bytes to all sockets, and does nothing else (Python's standard library), for idle connections sockets of Node.js after
// an upgrade.

import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import { createRequire } from 'node:module';
import net from 'node:net';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const SELF = fileURLToPath(import.meta.url);
const PLAIN = fileURLToPath(new URL('../python/bench.py', import.meta.url));
const FAN_OUT = '-m fan-out -c 1001 --publishers 1 --subscribe subscribe --publish {payload}'.split(' ');
/** Runs of each mode: options of the load. */
const MODES = {
  echo: [['-i', '1'], ['-i', '16']],
  latency: [['-r', '20000']],
  'fan-out': [[...FAN_OUT, '--burst', '-i', '16'], [...FAN_OUT, '-r', '10']],
  idle: []
};
/** Connections between which memory is measured. */
const IDLE = '1000,4000';

const { values: args, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    load: { type: 'string', default: 'sinews' },
    servers: { type: 'string' },
    rounds: { type: 'string', default: '3' },
    serve: { type: 'string' },
    port: { type: 'string', default: '18401' }
  }
});
const [mode, ...rest] = positionals;

/** Completes handshakes, without WebSockets behind them. */
function listenPlain(port) {
  const server = http.createServer();
  server.on('upgrade', (request, socket) => {
    const key = `${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
    const lines = ['HTTP/1.1 101 Ok', 'Upgrade: websocket', 'Connection: Upgrade'];
    lines.push(`Sec-WebSocket-Accept: ${createHash('sha1').update(key).digest('base64')}`);
    socket.write(`${lines.join('\r\n')}\r\n\r\n`);
    socket.resume();
  });
  server.listen(port, '127.0.0.1');
}

function listen(name, port) {
  // Memory is what objects need, without garbage.
  if (mode === 'idle') setInterval(gc, 1000);
  if (name === 'plain') return listenPlain(port);
  const isFanOut = mode === 'fan-out';
  const require = createRequire(SELF);
  if (name === 'serve') {
    const message = (websocket, data) => {
      if (!isFanOut) websocket.send(data);
      else if (data === 'subscribe') websocket.subscribe('topic');
      else server.publish('topic', data);
    };
    const server = require('./index.js').serve({ port, websocket: { idleTimeout: 0, pingInterval: 0, message } });
    return;
  }
  const { WebSocketServer } = require(name === 'ws' ? 'ws' : './ws.js');
  const server = new WebSocketServer({ port, host: '127.0.0.1', backlog: 2048 });
  const subscribers = new Set();
  const handle = (websocket, data, isBinary) => {
    if (!isFanOut) websocket.send(data, { binary: isBinary });
    else if (data.toString() === 'subscribe') subscribers.add(websocket);
    else for (const subscriber of subscribers) subscriber.send(data, { binary: isBinary });
  };
  server.on('connection', (websocket) => {
    websocket.on('message', (data, isBinary) => handle(websocket, data, isBinary));
    websocket.on('close', () => subscribers.delete(websocket));
  });
}

function command(name, port) {
  if (name === 'plain' && mode === 'fan-out') return ['python3', PLAIN, mode, '--serve', name, '--port', `${port}`];
  return [process.execPath, '--expose-gc', SELF, mode, '--serve', name, '--port', `${port}`];
}

function compare() {
  const names = (args.servers ?? `ws,sinews-ws,serve${mode === 'fan-out' ? ',plain' : ''}`).split(',');
  const servers = names.map((name, at) => {
    const port = Number(args.port) + at;
    return `${name}=ws://127.0.0.1:${port}/=exec ${command(name, port).join(' ')}`;
  });
  for (const run of MODES[mode]) {
    console.log(mode, ...run);
    const options = ['bench', 'compare', '-q', '--server-core', '0', '--load-core', '1', ...run, ...rest];
    const { status } = spawnSync(args.load, [...options, ...servers], { stdio: 'inherit' });
    if (status !== 0) process.exit(1);
  }
}

async function waitForPort(port) {
  for (;;) {
    const socket = net.connect(port, '127.0.0.1');
    const isOpen = await once(socket, 'connect').then(() => true, () => false);
    socket.destroy();
    if (isOpen) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Prints the growth of the resident memory for a connection. */
async function measureIdle() {
  const names = (args.servers ?? 'ws,sinews-ws,serve,plain').split(',');
  const results = new Map(names.map((name) => [name, []]));
  for (let at = 0; at < Number(args.rounds) * names.length; at++) {
    const name = names[at % names.length];
    const port = Number(args.port) + at;
    const [program, ...options] = command(name, port);
    const server = spawn(program, options, { stdio: 'inherit' });
    await waitForPort(port);
    const load = ['bench', 'idle', '-q', '--json', '--settle', '3s', '-c', IDLE, '--pid', `${server.pid}`, ...rest];
    const output = execFileSync(args.load, [...load, `ws://127.0.0.1:${port}/`]);
    results.get(name).push(JSON.parse(output).fit.user.slope);
    server.kill();
    await once(server, 'exit');
  }
  for (const [name, values] of results) {
    const median = values.toSorted((a, b) => a - b)[values.length >> 1];
    console.log(`${name}: ${Math.round(median)} bytes for an idle connection`);
  }
}

if (!Object.hasOwn(MODES, mode ?? '')) throw new TypeError(`MODE must be one of ${Object.keys(MODES).join(', ')}`);
if (args.serve !== undefined) listen(args.serve, Number(args.port));
else if (mode === 'idle') await measureIdle();
else compare();
