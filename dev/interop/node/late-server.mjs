// An echo server with a delay: node late-server.mjs PORT DELAY_MS
// Over HTTP it answers with the processors that it may use.
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { WebSocketServer } from 'ws';

const [port, delay] = process.argv.slice(2).map(Number);
const allowed = () => /Cpus_allowed_list:\s*(\S+)/.exec(readFileSync('/proc/self/status', 'utf8'))[1];
const server = http.createServer((_, response) => response.end(allowed()));
new WebSocketServer({ server }).on('connection', (socket) => {
  socket.on('message', (data, isBinary) => setTimeout(() => socket.send(data, { binary: isBinary }), delay));
});
server.listen(port, '127.0.0.1');
