// Plain sockets, whose bytes pass the stream of Node.js: what the stream reports and does must stay the same.

import assert from 'node:assert';
import { once } from 'node:events';
import net from 'node:net';
import { afterEach, beforeEach, test } from 'node:test';

import { connect, echo, listen, messages, sinews, stop } from './helpers.mjs';

const MASKED_HELLO = Buffer.from('818500000000' + Buffer.from('hello').toString('hex'), 'hex');

let server;
beforeEach(async () => {
  server = await listen(sinews);
  echo(server);
});
afterEach(() => stop(server));

/** Sends a message and waits for its answer: from then on the server reads the socket directly. */
async function roundTrip(client, text = 'first') {
  const answer = once(client, 'message');
  client.send(text);
  const [data] = await answer;
  assert.strictEqual(data.toString(), text);
}

/** Opens a connection without a client's code behind it. */
async function openRaw() {
  const accepted = once(server, 'connection');
  const socket = net.connect(server.address().port, '127.0.0.1');
  socket.write(
    'GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
      'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n'
  );
  const [peer] = await accepted;
  await once(socket, 'data');
  socket.write(MASKED_HELLO);
  await once(socket, 'data');
  return { socket, peer };
}

test('bytes of the socket are counted', async () => {
  const { client, peer } = await connect(sinews, server);
  await roundTrip(client);
  const { bytesRead, bytesWritten } = peer._socket;
  for (let at = 0; at < 3; at++) await roundTrip(client, 'hello');
  assert.strictEqual(peer._socket.bytesRead - bytesRead, 3 * 11);
  assert.strictEqual(peer._socket.bytesWritten - bytesWritten, 3 * 7);
  const total = peer._socket.bytesWritten;
  const closed = once(peer._socket, 'close');
  client.terminate();
  await closed;
  assert.strictEqual(peer._socket.bytesWritten, total);
});

test('a paused connection receives nothing until it resumes', async () => {
  const { client, peer } = await connect(sinews, server);
  await roundTrip(client);
  const received = [];
  peer.on('message', (data) => received.push(data.toString()));
  peer.pause();
  const pong = once(client, 'pong');
  client.send('second');
  client.ping();
  assert.strictEqual(await Promise.race([pong, roundTrip((await connect(sinews, server)).client).then(() => 'none')]), 'none');
  assert.deepStrictEqual(received, []);
  peer.resume();
  await pong;
  assert.deepStrictEqual(received, ['second']);
  await roundTrip(client, 'third');
});

test('the program may listen to data of the socket, too', async () => {
  const { client, peer } = await connect(sinews, server);
  await roundTrip(client);
  const chunks = [];
  peer._socket.on('data', (chunk) => chunks.push(chunk));
  await roundTrip(client, 'hello');
  assert.strictEqual(Buffer.concat(chunks).length, 11);
});

test('a message with the end behind it is received, and the socket ends', async () => {
  const { socket, peer } = await openRaw();
  const message = once(peer, 'message');
  const ended = once(peer._socket, 'end');
  const closed = once(peer, 'close');
  socket.end(MASKED_HELLO);
  assert.strictEqual((await message)[0].toString(), 'hello');
  await ended;
  assert.strictEqual((await closed)[0], 1006);
});

test('a reset is the error of the socket', async () => {
  const { socket, peer } = await openRaw();
  const error = once(peer._socket, 'error').catch((fault) => [fault]);
  socket.resetAndDestroy();
  assert.strictEqual((await error)[0].code, 'ECONNRESET');
});

test('what the socket does not accept is written later, in order, and callbacks wait for it', async () => {
  const { client, peer } = await connect(sinews, server);
  await roundTrip(client);
  client.pause();
  const SIZE = 20_000;
  let sent = 0;
  let completed = 0;
  const count = () => completed++;
  while (peer._socket.writableLength === 0) {
    peer.send(Buffer.alloc(SIZE, sent++ & 255), count);
    await new Promise((resolve) => setImmediate(resolve));
  }
  for (let at = 0; at < 10; at++) peer.send(Buffer.alloc(SIZE, sent++ & 255), count);
  await new Promise((resolve) => setImmediate(resolve));
  assert.ok(completed < sent, `${completed} of ${sent}`);
  // Those that follow as soon as the client reads must not overtake.
  const LATER = 100;
  const received = messages(client, sent + LATER);
  const last = sent + LATER;
  let at = 0;
  client.on('message', () => {
    if (++at % 3 === 0 && sent < last) peer.send(Buffer.alloc(SIZE, sent++ & 255), count);
  });
  client.resume();
  for (const [at, data] of (await received).entries()) {
    assert.ok(data.length === SIZE && data.every((byte) => byte === (at & 255)), `message ${at}`);
  }
  assert.strictEqual(completed, sent);
});

test('activity restarts the timeout of the socket', async () => {
  const { client, peer } = await connect(sinews, server);
  await roundTrip(client);
  peer._socket.setTimeout(60_000);
  const timer = Object.getOwnPropertySymbols(peer._socket).map((symbol) => peer._socket[symbol]).find((value) => value?._idleTimeout === 60_000);
  for (const [sender, receiver, event] of [[client, peer, 'pong'], [peer, client, 'message']]) {
    const before = timer._idleStart;
    do {
      const received = once(receiver, event);
      if (event === 'pong') sender.pong();
      else sender.send('hello');
      await received;
    } while (timer._idleStart === before);
  }
});

test('a connection that is closed by another one of the same turn is not read', async () => {
  const { client: first, peer: one } = await connect(sinews, server);
  const { client: second, peer: other } = await connect(sinews, server);
  await roundTrip(first);
  await roundTrip(second);
  one.on('message', () => other.terminate());
  other.on('message', () => one.terminate());
  const closed = Promise.race([once(first, 'close'), once(second, 'close')]);
  first.send('a');
  second.send('b');
  await closed;
});
