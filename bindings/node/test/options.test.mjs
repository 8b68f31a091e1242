import assert from 'node:assert';
import { test } from 'node:test';

import { connect, listen, sinews, stop } from './helpers.mjs';

const { WebSocket, WebSocketServer, extension } = sinews;

test('invalid options are named', () => {
  const server = (options) => () => new WebSocketServer({ noServer: true, ...options });
  assert.throws(server({ maxPayload: '1' }), { name: 'TypeError', message: /"maxPayload" option must be a number/ });
  assert.throws(server({ verifyClient: {} }), { name: 'TypeError', message: /"verifyClient" option must be a function/ });
  assert.throws(server({ closeTimeout: -1 }), { name: 'RangeError', message: /"closeTimeout" option/ });
  assert.throws(server({ perMessageDeflate: { clientMaxWindowBits: 7 } }), {
    name: 'RangeError',
    message: /"perMessageDeflate.clientMaxWindowBits" option/
  });
  assert.throws(server({ port: 1 }), { name: 'TypeError', message: /"port", "server", or "noServer"/ });
  const client = (options) => () => new WebSocket('ws://localhost', options);
  assert.throws(client({ handshakeTimeout: '1' }), { name: 'TypeError', message: /"handshakeTimeout" option/ });
  assert.throws(client({ perMessageDeflate: { threshold: -1 } }), {
    name: 'RangeError',
    message: /"perMessageDeflate.threshold" option/
  });
});

test('invalid arguments throw and leave the connection open', async () => {
  const server = await listen(sinews);
  const { client } = await connect(sinews, server);
  assert.throws(() => client.close(1005), { name: 'TypeError', message: /valid error code number/ });
  assert.throws(() => client.close(1000, 'a'.repeat(124)), { name: 'RangeError', message: /123 bytes/ });
  assert.throws(() => client.close(1000, [1]), { name: 'TypeError', message: /Second argument/ });
  assert.throws(() => client.ping('a'.repeat(126)), { name: 'RangeError', message: /125 bytes/ });
  assert.throws(() => client.send({}), { name: 'TypeError' });
  assert.throws(() => client.send(Symbol('a')), { name: 'TypeError' });
  assert.strictEqual(client.readyState, WebSocket.OPEN);
  await stop(server);
});

test('extension headers are parsed and written', () => {
  const header = 'permessage-deflate; client_max_window_bits; server_max_window_bits="10", x; a=b; a=c';
  const parsed = extension.parse(header);
  assert.deepStrictEqual({ ...parsed['permessage-deflate'][0] }, {
    client_max_window_bits: [true],
    server_max_window_bits: ['10']
  });
  assert.deepStrictEqual({ ...parsed.x[0] }, { a: ['b', 'c'] });
  assert.strictEqual(extension.format(parsed), header.replace('"10"', '10'));
  for (const invalid of ['', 'a;', 'a,', 'a b', 'a;b=', 'a;b="', 'a;b="c d"', '"a"', 'a;=b', ',a']) {
    assert.throws(() => extension.parse(invalid), SyntaxError, invalid);
  }
});
