// Echo servers and a client for the Autobahn suite.
//
//   node test/autobahn.mjs ws          the server of sinews/ws; it prints `listening on ADDRESS`
//   node test/autobahn.mjs ws URL      its client, which runs the cases of the suite at URL
//   node test/autobahn.mjs serve       serve()

import { once } from 'node:events';

import { serve } from '../index.mjs';
import { WebSocket, WebSocketServer } from '../ws.mjs';

const AGENT = 'sinews';
const [face, url] = process.argv.slice(2);

function echo(websocket) {
  websocket.on('error', () => {});
  websocket.on('message', (data, isBinary) => websocket.send(data, { binary: isBinary }));
}

/** Opens a connection of the suite, and waits for its end. */
async function run(path, prepare) {
  const websocket = new WebSocket(url + path, { perMessageDeflate: true });
  // The suite violates the protocol on purpose.
  websocket.on('error', () => {});
  prepare(websocket);
  await new Promise((resolve) => websocket.once('close', resolve));
}

if (url !== undefined) {
  let count = 0;
  await run('/getCaseCount', (websocket) => websocket.on('message', (data) => { count = Number(data); }));
  for (let number = 1; number <= count; number++) await run(`/runCase?case=${number}&agent=${AGENT}`, echo);
  await run(`/updateReports?agent=${AGENT}`, () => {});
} else if (face === 'ws') {
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1', perMessageDeflate: true });
  server.on('connection', echo);
  await once(server, 'listening');
  console.log(`listening on 127.0.0.1:${server.address().port}`);
} else {
  const { port } = serve({ websocket: { compression: true, message: (ws, data) => ws.send(data) } });
  console.log(`listening on 127.0.0.1:${port}`);
}
