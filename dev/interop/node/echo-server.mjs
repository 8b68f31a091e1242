// An echo server on the `ws` package: node echo-server.mjs [FOLDER]
// With a folder, TLS by its certificate.pem and key.pem. Prints `listening on ADDRESS`.
import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { WebSocketServer } from 'ws';

const [folder] = process.argv.slice(2);
const pem = (name) => readFileSync(`${folder}/${name}.pem`);
const server = folder
  ? https.createServer({ cert: pem('certificate'), key: pem('key') })
  : http.createServer();
const sockets = new WebSocketServer({ server, perMessageDeflate: { threshold: 0 } });
sockets.on('connection', (socket) => {
  socket.on('message', (data, isBinary) => socket.send(data, { binary: isBinary }));
});
server.listen(0, '127.0.0.1', () => console.log(`listening on 127.0.0.1:${server.address().port}`));
