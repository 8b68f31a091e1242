// The program of `memory.test.mjs`: `node --expose-gc memory.mjs serve|ws`. It prints by how much its memory has grown.

import { once } from 'node:events';

import { serve } from '../index.mjs';
import { native, sinews } from './helpers.mjs';

const BURST = 1000;
const WARM_UP = 500;
const CONNECTIONS = 1000;
/** Connections between collections: garbage is no growth. */
const COLLECT = 50;

let errors = 0;
const codes = new Set();

function answer(send, text) {
  if (text === 'fail') throw new Error('fail');
  send(text);
}

async function listen(face) {
  if (face === 'serve') {
    const websocket = { compression: true, message: (ws, text) => answer((data) => ws.send(data), text) };
    const server = serve({ websocket, error: () => { errors += 1; } });
    return { port: server.port, stop: () => server.stop() };
  }
  // As with ws, an exception of a listener is the process's.
  process.on('uncaughtException', () => { errors += 1; });
  const server = new sinews.WebSocketServer({ port: 0, host: '127.0.0.1', perMessageDeflate: false });
  server.on('connection', (websocket) => {
    websocket.on('message', (data) => {
      if (data.toString() === 'fail') websocket.close(1000);
      answer((text) => websocket.send(text), data.toString());
    });
  });
  await once(server, 'listening');
  return { port: server.address().port, stop: () => new Promise((resolve) => server.close(resolve)) };
}

/** Sends a burst, and behind its echoes the message that the handler fails at. Resolves with the close code. */
function run(port) {
  return new Promise((resolve, reject) => {
    const client = new sinews.WebSocket(`ws://127.0.0.1:${port}/`);
    let missing = BURST - 1;
    client.on('open', () => {
      for (let at = 0; at < missing; at++) client.send(`message ${at} of a burst`);
    });
    client.on('message', () => {
      missing -= 1;
      if (missing === 0) client.send('fail');
    });
    client.on('close', resolve);
    client.on('error', reject);
  });
}

async function usage() {
  for (let at = 0; at < 5; at++) {
    gc();
    await new Promise(setImmediate);
  }
  const { heapUsed, external, rss } = process.memoryUsage();
  return { heap: heapUsed, external, resident: rss };
}

async function runAll(count) {
  for (let at = 0; at < count; at++) {
    codes.add(await run(port));
    if (at % COLLECT === 0) gc();
  }
}

const { port, stop } = await listen(process.argv[2]);
await runAll(WARM_UP);
const before = await usage();
errors = 0;
await runAll(CONNECTIONS);
const after = await usage();
const grown = Object.fromEntries(Object.entries(after).map(([name, bytes]) => [name, bytes - before[name]]));
await stop();
console.log(JSON.stringify({ codes: [...codes], errors, open: native.count(), ...grown }));
process.exit();
