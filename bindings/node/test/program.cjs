'use strict';

// A program for other runtimes than Node.js: both faces of the package. It prints what has arrived, and ends by itself.

const { once } = require('events');
const { serve } = require('..');
const { WebSocket, WebSocketServer } = require('../ws.js');

/** Returns the next `count` messages of a client. */
async function messages(client, count) {
  const found = [];
  const received = (data) => found.push(data.toString());
  client.on('message', received);
  while (found.length < count) await once(client, 'message');
  client.off('message', received);
  return found;
}

async function main() {
  const faults = [];
  const server = serve({
    routes: { '/text': 'fixed', '/later': async (request) => ({ status: 201, body: request.body }) },
    websocket: {
      open(ws) {
        ws.subscribe('news');
        ws.send('hello');
      },
      message(ws, data) {
        if (data === 'fail') throw new Error('as asked');
        for (let at = 0; at < 100; at++) ws.send(data + at);
        server.publish('news', 'last');
      },
    },
    error: (error) => faults.push(error.message),
  });
  const base = `127.0.0.1:${server.port}`;
  const text = await (await fetch(`http://${base}/text`)).text();
  const later = await fetch(`http://${base}/later`, { method: 'POST', body: 'body' });
  const client = new WebSocket(`ws://${base}/`);
  const hello = await messages(client, 1);
  client.send('m');
  const burst = await messages(client, 101);
  client.send('fail');
  const [code] = await once(client, 'close');
  // Nothing keeps the process alive from here on.
  await server.stop();

  const drop = new WebSocketServer({ port: 0, perMessageDeflate: true });
  drop.on('connection', (ws) => ws.on('message', (data, isBinary) => ws.send(data, { binary: isBinary })));
  await once(drop, 'listening');
  const peer = new WebSocket(`ws://127.0.0.1:${drop.address().port}`);
  await once(peer, 'open');
  peer.send('x'.repeat(100_000));
  const [large] = await messages(peer, 1);
  peer.close(4000, 'bye');
  const [end, reason] = await once(peer, 'close');
  drop.close();
  console.log(JSON.stringify([
    text, later.status, await later.text(), hello, burst.length, burst[99], burst[100], code, faults,
    peer.extensions, large.length, end, reason.toString(),
  ]));
}

main();
