// The types as programs use them: `types.test.mjs` checks this file with TypeScript, and nothing runs it. A line behind
// `@ts-expect-error` must be an error.

import { once } from 'node:events';
import { createServer } from 'node:http';

import { serve, type ServerWebSocket, type SinewsServer } from 'sinews';
import WebSocket, { WebSocketServer, createWebSocketStream, type RawData } from 'sinews/ws';

interface User {
  name: string;
}

const server: SinewsServer = serve<User>({
  port: 0,
  routes: {
    '/': 'fixed',
    '/users/{id}': async (request) => ({ status: 201, headers: { 'x-url': request.url }, body: request.body }),
  },
  websocket: {
    path: '/chat',
    compression: true,
    maxBackpressure: 1 << 20,
    open(ws) {
      ws.data = { name: ws.headers['x-name'] };
      const isOpen: boolean = ws.subscribe('room');
      return void isOpen;
    },
    async message(ws, data) {
      const text: string = typeof data === 'string' ? data : data.toString('hex');
      if (ws.send(`${ws.data.name}: ${text}`) < 0) ws.close(1008, 'slow');
    },
    close: (ws: ServerWebSocket<User>, code: number, reason: string) => console.log(ws.data.name, code, reason),
  },
  error: (error, ws) => console.error(error, ws?.remoteAddress),
});
const isQueued: boolean = server.publish('room', new Uint8Array(1));
server.stop().then(() => console.log(isQueued));
// @ts-expect-error An unknown option.
serve({ prot: 1 });
// @ts-expect-error A port is a number.
serve({ port: '1' });
// @ts-expect-error A message is a string or bytes.
serve({ websocket: { message: (ws) => ws.send(5) } });
// @ts-expect-error A handler must return a response.
serve({ routes: { '/': () => 5 } });

const http = createServer();
const accepting = new WebSocketServer({ noServer: true, maxPayload: 1024, verifyClient: (info: { origin: string }) => info.origin === 'a' });
http.on('upgrade', (request, socket, head) => {
  accepting.handleUpgrade(request, socket, head, (websocket) => accepting.emit('connection', websocket, request));
});
accepting.on('connection', (websocket: WebSocket, request) => {
  websocket.on('message', (data: RawData, isBinary: boolean) => {
    websocket.send(data as Buffer, { binary: isBinary, compress: false }, (error) => console.log(error?.message));
  });
  websocket.on('close', (code, reason) => console.log(code + reason.length, request.url));
});
const client = new WebSocket('ws://localhost', ['chat'], { handshakeTimeout: 3, perMessageDeflate: { threshold: 1 } });
client.onmessage = (event) => console.log(event.data);
client.addEventListener('close', (event) => console.log(event.wasClean));
createWebSocketStream(client, { encoding: 'utf8' }).pipe(process.stdout);
if (client.readyState === WebSocket.OPEN) client.terminate();
void once(client, 'open');
// @ts-expect-error No such option.
new WebSocketServer({ noServer: true, maxPayloads: 1 });
// @ts-expect-error A close code is a number.
client.close('1000');
// @ts-expect-error The attribute is read-only.
client.bufferedAmount = 1;
