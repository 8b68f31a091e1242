import { once } from 'node:events';
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);

export const sinews = require('../ws.js');
export const native = require('../lib/native.js');

/** Returns a development dependency, or undefined if it is not installed. */
export function optional(name) {
  try {
    return require(name);
  } catch {
    return undefined;
  }
}

/** Starts a server of an implementation. */
export async function listen({ WebSocketServer }, options = {}) {
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1', ...options });
  await once(server, 'listening');
  server.url = `ws://127.0.0.1:${server.address().port}`;
  return server;
}

/** Opens a client of an implementation. Returns both ends. */
export async function connect({ WebSocket }, server, options) {
  const accepted = once(server, 'connection');
  const client = new WebSocket(server.url, options);
  await once(client, 'open');
  const [peer] = await accepted;
  return { client, peer };
}

/** Answers each message. */
export function echo(server) {
  server.on('connection', (websocket) => {
    websocket.on('message', (data, isBinary) => websocket.send(data, { binary: isBinary }));
  });
}

/** Closes a server and waits. */
export function stop(server) {
  for (const client of server.clients) client.terminate();
  return new Promise((resolve) => server.close(resolve));
}

/** Collects a number of messages. */
export function messages(websocket, count) {
  return new Promise((resolve) => {
    const received = [];
    websocket.on('message', (data, isBinary) => {
      received.push(isBinary ? Buffer.from(data) : data.toString());
      if (received.length === count) resolve(received);
    });
  });
}
