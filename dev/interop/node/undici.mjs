// The WebSocket of `undici`, which is Node's own, against the server: node undici.mjs BASE LIMITED
import diagnostics from 'node:diagnostics_channel';
import { WebSocket, ping } from 'undici';
import { expect, run } from './suite.mjs';

await run('undici', WebSocket, {
  async 'ping'(open) {
    const socket = await open('/echo');
    const pong = new Promise((resolve) => {
      diagnostics.subscribe('undici:websocket:pong', ({ payload }) => resolve(payload));
    });
    ping(socket.raw, Buffer.from('beat'));
    expect(Buffer.from(await pong), Buffer.from('beat'), 'the pong');
    await socket.close(1000);
  },
});
