import assert from 'node:assert';
import { once } from 'node:events';
import { describe, test } from 'node:test';

import { connect, echo, listen, messages, optional, sinews, stop } from './helpers.mjs';

const ws = optional('ws');
const pairs = [['sinews', sinews, 'sinews', sinews]];
if (ws) pairs.push(['ws', ws, 'sinews', sinews], ['sinews', sinews, 'ws', ws]);
const deflates = [false, true, { serverNoContextTakeover: true, clientNoContextTakeover: true, threshold: 10 }];

for (const [clientName, clients, serverName, servers] of pairs) {
  for (const perMessageDeflate of deflates) {
    describe(`client ${clientName}, server ${serverName}, ${JSON.stringify(perMessageDeflate)}`, () => {
      test('messages of all sizes return in order', async () => {
        const server = await listen(servers, { perMessageDeflate });
        echo(server);
        const { client } = await connect(clients, server, { perMessageDeflate });
        const sent = [];
        for (const size of [0, 1, 125, 126, 65_535, 65_536, 1_000_000]) {
          sent.push('ä'.repeat(size / 2), Buffer.alloc(size, 'binary'));
        }
        const received = messages(client, sent.length);
        for (const data of sent) client.send(data);
        assert.deepStrictEqual(await received, sent);
        assert.strictEqual(client.extensions, perMessageDeflate ? 'permessage-deflate' : '');
        await stop(server);
      });

      test('fragments, pings and uncompressed messages arrive', async () => {
        const server = await listen(servers, { perMessageDeflate });
        const { client, peer } = await connect(clients, server, { perMessageDeflate });
        const received = messages(peer, 3);
        const ping = once(peer, 'ping');
        const pong = once(client, 'pong');
        client.send('one ', { fin: false });
        client.ping('between');
        client.send('two ', { fin: false });
        client.send('three');
        client.send('plain'.repeat(100), { compress: false });
        client.send(new Uint8Array([1, 2, 3]).buffer);
        assert.deepStrictEqual(await received, ['one two three', 'plain'.repeat(100), Buffer.from([1, 2, 3])]);
        assert.strictEqual((await ping)[0].toString(), 'between');
        assert.strictEqual((await pong)[0].toString(), 'between');
        await stop(server);
      });

      test('both ends see code and reason', async () => {
        const server = await listen(servers, { perMessageDeflate });
        const { client, peer } = await connect(clients, server, { perMessageDeflate });
        const ends = Promise.all([once(client, 'close'), once(peer, 'close')]);
        client.close(4000, 'enough');
        for (const [code, reason] of await ends) {
          assert.deepStrictEqual([code, reason.toString()], [4000, 'enough']);
        }
        await stop(server);
      });
    });
  }
}

test('a burst is answered with one write', async () => {
  const server = await listen(sinews);
  echo(server);
  const { client, peer } = await connect(sinews, server);
  let writes = 0;
  const { write } = peer._socket;
  peer._socket.write = function (...args) {
    writes++;
    return write.apply(this, args);
  };
  const received = messages(client, 100);
  for (let at = 0; at < 100; at++) client.send(`message ${at}`);
  await received;
  assert.ok(writes <= 2, `${writes} writes`);
  await stop(server);
});

test('bufferedAmount counts messages until they are written', async () => {
  const server = await listen(sinews);
  const { client } = await connect(sinews, server);
  client.send('a'.repeat(100));
  assert.strictEqual(client.bufferedAmount, 100);
  await new Promise((resolve) => client.send('b', resolve));
  assert.strictEqual(client.bufferedAmount, 0);
  await stop(server);
});

test('a program that ignores bufferedAmount loses the connection, not the memory', async () => {
  const server = await listen(sinews, { maxBufferedAmount: 1 << 20 });
  const { client, peer } = await connect(sinews, server);
  client.pause();
  const error = once(peer, 'error');
  const closed = new Promise((resolve) => peer.once('close', resolve));
  const data = Buffer.alloc(1 << 20);
  for (let at = 0; at < 64 && peer.readyState === sinews.OPEN; at++) peer.send(data);
  assert.strictEqual((await error)[0].code, 'WS_ERR_TOO_MUCH_BUFFERED');
  assert.strictEqual(await closed, 1006);
  await stop(server);
});

test('events of a burst are delivered in turns without allowSynchronousEvents', async () => {
  const server = await listen(sinews, { allowSynchronousEvents: false });
  const { client, peer } = await connect(sinews, server);
  const order = [];
  const done = new Promise((resolve) => {
    peer.on('message', (data) => {
      order.push(data.toString());
      Promise.resolve().then(() => order.push('microtask'));
      if (data.toString() === '3') setImmediate(resolve);
    });
  });
  for (const text of ['1', '2', '3']) client.send(text);
  await done;
  assert.deepStrictEqual(order, ['1', 'microtask', '2', 'microtask', '3', 'microtask']);
  await stop(server);
});

test('a listener may feed a chunk to another connection within a burst', async () => {
  const server = await listen(sinews);
  const first = await connect(sinews, server);
  const second = await connect(sinews, server);
  const received = [];
  second.client.on('message', (data) => received.push(data.toString()));
  const done = new Promise((resolve) => {
    first.client.on('message', (data) => {
      received.push(data.toString());
      if (data.toString() === '1') {
        second.client._socket.emit('data', Buffer.from('810161810162810163', 'hex'));
      }
      if (data.toString() === '3') resolve();
    });
  });
  first.peer.send('1');
  first.peer.send('2');
  first.peer.send('3');
  await done;
  assert.deepStrictEqual(received, ['1', 'a', 'b', 'c', '2', '3']);
  await stop(server);
});

test('messages that inflate to much memory are delivered in several bursts', async () => {
  const server = await listen(sinews, { perMessageDeflate: true });
  const { client, peer } = await connect(sinews, server);
  const size = 40 << 20;
  const lengths = new Promise((resolve) => {
    const list = [];
    peer.on('message', (data) => {
      if (list.push(data.length) === 4) resolve(list);
    });
  });
  for (let at = 0; at < 3; at++) client.send(Buffer.alloc(size));
  client.send('end');
  assert.deepStrictEqual(await lengths, [size, size, size, 3]);
  await stop(server);
});
