// The `ws` package against the server: node ws.mjs BASE LIMITED
import { once } from 'node:events';
import WebSocket from 'ws';
import { expect, run } from './suite.mjs';

await run('ws', WebSocket, {
  async 'fragments'(open) {
    const socket = await open('/echo');
    socket.raw.send('one ', { fin: false });
    socket.raw.send('', { fin: false });
    socket.raw.send('two ', { fin: false });
    socket.raw.send('three', { fin: true });
    expect(await socket.next(), 'one two three', 'the echo');
    await socket.close(1000);
  },
  async 'ping within fragments'(open) {
    const socket = await open('/echo');
    const pong = once(socket.raw, 'pong');
    socket.raw.send('a', { fin: false });
    socket.raw.ping('beat');
    const [payload] = await pong;
    expect(payload, Buffer.from('beat'), 'the pong');
    socket.raw.send('b', { fin: true });
    expect(await socket.next(), 'ab', 'the echo');
    await socket.close(1000);
  },
  async 'ping of 125'(open) {
    const socket = await open('/echo');
    const pong = once(socket.raw, 'pong');
    socket.raw.ping(Buffer.alloc(125, 7));
    const [payload] = await pong;
    expect(payload, Buffer.alloc(125, 7), 'the pong');
    await socket.close(1000);
  },
  async 'without deflate'() {
    const socket = new WebSocket(`${process.argv[2]}/echo`, { perMessageDeflate: false });
    await once(socket, 'open');
    expect(socket.extensions, '', 'the extensions');
    socket.send('plain');
    const [data] = await once(socket, 'message');
    expect(data.toString(), 'plain', 'the echo');
    socket.close(1000);
    await once(socket, 'close');
  },
  async 'deflate with a small window and no memory'() {
    const socket = new WebSocket(`${process.argv[2]}/echo`, {
      perMessageDeflate: { serverMaxWindowBits: 10, serverNoContextTakeover: true, threshold: 0 },
    });
    const opened = once(socket, 'open');
    const [answer] = await once(socket, 'upgrade');
    const extensions = answer.headers['sec-websocket-extensions'] ?? '';
    expect(/server_max_window_bits=(9|10)\b/.test(extensions), true, `a small window in '${extensions}'`);
    expect(/server_no_context_takeover/.test(extensions), true, `no memory in '${extensions}'`);
    await opened;
    for (const text of ['abc'.repeat(10_000), 'abc'.repeat(10_000)]) {
      socket.send(text);
      const [data] = await once(socket, 'message');
      expect(data.toString(), text, 'the echo');
    }
    socket.close(1000);
    await once(socket, 'close');
  },
});
