import assert from 'node:assert';
import { once } from 'node:events';
import http from 'node:http';
import { test } from 'node:test';

import { optional, sinews } from './helpers.mjs';

const socketio = optional('socket.io');
const client = optional('socket.io-client');

test('socket.io works with the option wsEngine', { skip: !socketio || !client }, async () => {
  const server = http.createServer();
  const io = new socketio.Server(server, { wsEngine: sinews.Server });
  io.on('connection', (socket) => {
    socket.on('ask', (data, answer) => answer({ data, transport: socket.conn.transport.name }));
    socket.on('all', (data) => io.emit('news', data));
  });
  server.listen(0);
  await once(server, 'listening');
  const url = `http://localhost:${server.address().port}`;
  const sockets = [client.io(url, { transports: ['websocket'] }), client.io(url, { forceNew: true })];
  await Promise.all(sockets.map((socket) => once(socket, 'connect')));
  const answer = await sockets[0].emitWithAck('ask', Buffer.from('binary'));
  assert.deepStrictEqual(answer, { data: Buffer.from('binary'), transport: 'websocket' });
  const news = Promise.all(sockets.map((socket) => once(socket, 'news')));
  sockets[1].emit('all', { text: 'hello' });
  assert.deepStrictEqual(await news, [[{ text: 'hello' }], [{ text: 'hello' }]]);
  for (const socket of sockets) socket.disconnect();
  await io.close();
});
