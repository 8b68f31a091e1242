'use strict';
// An echo for measurements: `node echo.js PORT`; with `ws` as a second word, the same by the package ws.
const port = Number(process.argv[2] ?? 8000);
if (process.argv[3] === 'ws') {
  const { WebSocketServer } = require('ws');
  const server = new WebSocketServer({ port, host: '127.0.0.1' });
  server.on('connection', (socket) => {
    socket.on('message', (data, isBinary) => socket.send(data, { binary: isBinary }));
  });
} else {
  const { serve } = require('..');
  serve({ port, websocket: { idleTimeout: 0, pingInterval: 0, message: (ws, data) => ws.send(data) } });
}
