// The `ws` package against an echo server with TLS: node tls-client.mjs PORT FOLDER
// The folder has the certificate of the server. Each check prints `ok NAME` or `FAIL NAME: why`.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import WebSocket from 'ws';
import { Socket, checkAll, expect, letters, octets } from './suite.mjs';

const [port, folder] = process.argv.slice(2);
const ca = readFileSync(`${folder}/certificate.pem`);
const SIZES = [0, 1, 125, 126, 16_384, 65_535, 65_536, 1 << 20];

const checks = {};
for (const version of ['TLSv1.2', 'TLSv1.3']) {
  const options = { ca, minVersion: version, maxVersion: version };
  // The suite passes only the URL to the class; TLS needs options.
  class Tls extends WebSocket {
    constructor(url) {
      super(url, options);
    }
  }
  const open = (host = 'localhost') => Socket.open(Tls, `wss://${host}:${port}/`);
  Object.assign(checks, {
    [`${version}: version`]: async () => {
      const socket = await open();
      expect(socket.raw._socket.getProtocol(), version, 'the version');
      await socket.close(1000);
    },
    [`${version}: sizes`]: async () => {
      const socket = await open();
      for (const message of SIZES.flatMap((size) => [letters(size), octets(size)])) {
        socket.raw.send(message);
        expect(await socket.next(), message, 'the echo');
      }
      expect((await socket.close(1000)).code, 1000, 'the code');
    },
    [`${version}: many in flight`]: async () => {
      const socket = await open();
      for (let i = 0; i < 1000; i += 1) socket.raw.send(`message ${i}`);
      for (let i = 0; i < 1000; i += 1) expect(await socket.next(), `message ${i}`, 'the echo');
      await socket.close(1000);
    },
    [`${version}: ping within fragments`]: async () => {
      const socket = await open();
      const pong = once(socket.raw, 'pong');
      socket.raw.send('a', { fin: false });
      socket.raw.ping('beat');
      expect((await pong)[0], Buffer.from('beat'), 'the pong');
      socket.raw.send('b', { fin: true });
      expect(await socket.next(), 'ab', 'the echo');
      await socket.close(1000);
    },
    [`${version}: deflate`]: async () => {
      const socket = await open();
      expect(socket.raw.extensions.split(';')[0], 'permessage-deflate', 'the extension');
      for (const message of [letters(100_000), letters(100_000), 'short']) {
        socket.raw.send(message);
        expect(await socket.next(), message, 'the echo');
      }
      await socket.close(1000);
    },
    [`${version}: an address as name`]: async () => {
      const socket = await open('127.0.0.1');
      await socket.close(1000);
    },
    [`${version}: close 4001 with a reason`]: async () => {
      const end = await (await open()).close(4001, 'because');
      expect(end.code, 4001, 'the code');
      expect(end.wasClean, true, 'clean');
    },
  });
}
await checkAll(checks);
