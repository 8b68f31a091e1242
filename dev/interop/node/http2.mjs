// The HTTP/2 client of Node, and undici's fetch over HTTP/2: node http2.mjs HTTP_BASE HTTPS_BASE CERTIFICATE
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import http2 from 'node:http2';
import { Agent, fetch } from 'undici';
import { checkAll, expect, letters, octets } from './suite.mjs';

const [plain, tls, certificate] = process.argv.slice(2);
const ca = readFileSync(certificate);
const HTTP_1_1_REQUIRED = http2.constants.NGHTTP2_HTTP_1_1_REQUIRED;
const REQUESTS = 100;

async function connect(base) {
  const session = http2.connect(base, { ca });
  await once(session, 'connect');
  return session;
}

/** Sends a request; returns its status, headers and body. */
async function send(session, headers, body) {
  const stream = session.request(headers, { endStream: body === undefined });
  if (body !== undefined) stream.end(body);
  const [answer] = await once(stream, 'response');
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return { status: answer[':status'], headers: answer, body: Buffer.concat(pieces) };
}

const post = (topic) => ({ ':method': 'POST', ':path': `/topics/${topic}`, 'content-type': 'application/octet-stream' });

const checks = {};
for (const [transport, base] of [['clear text', plain], ['TLS', tls]]) {
  Object.assign(checks, {
    async [`${transport}: pages, HEAD and missing pages`]() {
      const session = await connect(base);
      const page = await send(session, { ':path': '/' });
      expect(page.status, 200, 'the status');
      const head = await send(session, { ':path': '/', ':method': 'HEAD' });
      expect(head.body.length, 0, 'the length of the body of HEAD');
      expect(head.headers['content-length'], String(page.body.length), 'the length of the page');
      expect((await send(session, { ':path': '/nowhere' })).status, 404, 'the status');
      session.close();
      await once(session, 'close');
    },
    async [`${transport}: many requests at once`]() {
      const session = await connect(base);
      const answers = await Promise.all(
        Array.from({ length: REQUESTS }, (_, number) =>
          number % 2 === 0 ? send(session, { ':path': '/sinews.js' }) : send(session, post('http2'), octets(number))),
      );
      const scripts = answers.filter((_, number) => number % 2 === 0).map(({ body }) => body.toString('hex'));
      expect(new Set(scripts).size, 1, 'the number of different answers');
      for (const { status } of answers) expect(status, 200, 'the status');
      session.close();
    },
    async [`${transport}: uploads beyond the windows`]() {
      const session = await connect(base);
      const bodies = [65_535, 65_536, 1 << 20, 5 << 20].map((size) => Buffer.from(letters(size)));
      const answers = await Promise.all(bodies.map((body) => send(session, post('http2-large'), body)));
      for (const { status } of answers) expect(status, 200, 'the status');
      session.close();
    },
    async [`${transport}: an upload over the limit`]() {
      const session = await connect(base);
      const stream = session.request(post('http2-large'));
      stream.on('error', () => {});
      stream.end(Buffer.alloc(17 << 20));
      const [answer] = await once(stream, 'response');
      expect(answer[':status'], 413, 'the status');
      stream.resume();
      await once(stream, 'close');
      expect((await send(session, { ':path': '/healthz' })).status, 200, 'the status of the next request');
      session.close();
    },
    async [`${transport}: event streams are reset for HTTP/1.1`]() {
      const session = await connect(base);
      const stream = session.request({ ':path': '/topics/http2', accept: 'text/event-stream' });
      await once(stream, 'error');
      expect(stream.rstCode, HTTP_1_1_REQUIRED, 'the code');
      expect((await send(session, { ':path': '/healthz' })).status, 200, 'the status of the next request');
      session.close();
    },
  });
}

checks['undici chooses HTTP/2 by ALPN'] = async () => {
  const agent = new Agent({ allowH2: true, connect: { ca } });
  for (const path of ['/', '/sinews.js']) {
    const answer = await fetch(tls + path, { dispatcher: agent });
    expect(answer.status, 200, 'the status');
    expect((await answer.text()).length > 0, true, 'a body');
  }
  const metrics = await (await fetch(`${tls}/metrics`, { dispatcher: agent })).text();
  const before = metrics.match(/^sinews_http2_connections_total (\d+)/m)[1];
  const other = await (await fetch(`${tls}/metrics`, { dispatcher: new Agent({ connect: { ca } }) })).text();
  expect(other.match(/^sinews_http2_connections_total (\d+)/m)[1], before, 'the connections after one of HTTP/1.1');
  // Five of the checks above, and one of undici.
  expect(Number(before), 6, 'the connections that spoke HTTP/2');
  await agent.close();
};

await checkAll(checks);
process.exit();
