// A Socket.IO server with rooms, as its documentation writes one: `node socket-io.mjs PORT`.

import { createServer } from 'node:http';
import { Server } from 'socket.io';

const http = createServer(async (request, response) => {
  if (request.url !== '/publish') { response.end('ok'); return; }
  let body = '';
  for await (const chunk of request) body += chunk;
  const { topic, data } = JSON.parse(body);
  io.to(topic).emit('message', data);
  response.setHeader('content-type', 'application/json');
  response.end('{}');
});
const io = new Server(http, { transports: ['websocket'], perMessageDeflate: false });
io.on('connection', (socket) => {
  socket.on('subscribe', (topic, answer) => { socket.join(topic); answer(); });
  socket.on('join', (topic, answer) => { socket.to(topic).emit('joined', socket.id); socket.join(topic); answer(); });
  socket.on('publish', (topic, data) => { io.to(topic).emit('message', data); });
});
http.listen(Number(process.argv[2]), '127.0.0.1');
