'use strict';

// The whole server behind `serve({ config })`.

const assert = require('node:assert');
const { createHmac } = require('node:crypto');
const { execFile } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { test } = require('node:test');
const WebSocket = require('ws');

const { serve } = require('..');

const SECRET = 'a-secret-of-at-least-32-bytes-for-tests';
const API_KEY = 'an-api-key-of-at-least-32-bytes-for-tests';

/** A token with these claims, signed with HS256 (RFC 7515). */
function token(claims) {
  const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const content = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode({ exp: 4000000000, ...claims })}`;
  return `${content}.${createHmac('sha256', SECRET).update(content).digest('base64url')}`;
}

const ends = new WeakMap();

/** Ends something after a test, what was started last first. */
function after(t, end) {
  if (!ends.has(t)) {
    ends.set(t, []);
    t.after(async () => {
      for (const one of ends.get(t).reverse()) await one();
    });
  }
  ends.get(t).push(end);
}

/** Serves for one test. */
function serving(t, options) {
  const server = serve({ port: 0, ...options });
  after(t, () => server.stop());
  return server;
}

/** A client that reads messages one after the other. */
async function connect(t, server, target) {
  const client = new WebSocket(`ws://127.0.0.1:${server.port}${target}`);
  after(t, () => client.terminate());
  const messages = [];
  client.on('message', (data, isBinary) => {
    messages.push(isBinary ? data : data.toString());
    client.emit('received');
  });
  client.next = async () => {
    while (messages.length === 0) await once(client, 'received');
    return messages.shift();
  };
  client.json = async () => JSON.parse(await client.next());
  client.ask = async (request) => {
    client.send(JSON.stringify(request));
    return client.json();
  };
  await once(client, 'open');
  return client;
}

/** A client of `/ws` after `welcome`. */
async function connectJson(t, server, query = '') {
  const client = await connect(t, server, `/ws${query}`);
  assert.strictEqual((await client.json()).op, 'welcome');
  return client;
}

function get(server, target, headers = {}) {
  return fetch(`http://127.0.0.1:${server.port}${target}`, { headers });
}

function directory(t) {
  const name = fs.mkdtempSync(path.join(os.tmpdir(), 'sinews-'));
  after(t, () => fs.rmSync(name, { recursive: true }));
  return name;
}

test('topics are those of the clients of /ws: publications, history and presence', async (t) => {
  const server = serving(t, { config: { history: ['chat.>=3'], log: 'warn' } });
  const client = await connectJson(t, server);
  const subscribed = await client.ask({ op: 'subscribe', id: 1, topic: 'chat.a', presence: true });
  assert.deepStrictEqual([subscribed.op, subscribed.subscribers], ['ack', 1]);
  const seen = [];
  for (const [data, options] of [['text', undefined], ['{"a":[1]}', { json: true }], [Buffer.from([0, 255]), {}]]) {
    assert.strictEqual(server.publish('chat.a', data, options), true);
    const message = await client.json();
    assert.strictEqual(message.op, 'message');
    seen.push(message.data ?? message.b64);
  }
  assert.deepStrictEqual(seen, ['text', { a: [1] }, 'AP8=']);
  const history = await server.history('chat.a');
  assert.deepStrictEqual(history.map(({ seq, data }) => [seq, data]), [[1, 'text'], [2, { a: [1] }], [3, Buffer.from([0, 255])]]);
  assert.deepStrictEqual(await server.history('chat.a', { last: 1 }), history.slice(2));
  const { epoch, seq } = history[0];
  assert.deepStrictEqual(await server.history('chat.a', { after: { epoch, seq } }), history.slice(1));
  assert.deepStrictEqual(await server.history('chat.empty'), []);
  await assert.rejects(server.history('other'), { code: 'ERR_SINEWS_TOPIC', status: 410, message: /other has no history/ });

  assert.deepStrictEqual(server.presence('chat.a'), { subscribers: 1, members: [], more: false });
  const member = { id: 'anna', info: { name: 'Anna' } };
  assert.strictEqual((await client.ask({ op: 'join', id: 2, topic: 'room', member })).op, 'ack');
  assert.deepStrictEqual(server.presence('room'), { subscribers: 1, members: [{ ...member, connections: 1 }], more: false });
  assert.deepStrictEqual(server.presence('room', { after: 'anna' }).members, []);
});

test("connections of the program's route subscribe to the same topics, and are present", async (t) => {
  const closed = [];
  const server = serving(t, {
    config: { history: ['chat.>=3'], log: 'warn' },
    routes: { '/hello': 'hello', '/': (request) => `start of ${request.method}` },
    websocket: {
      path: '/own',
      message: (ws, topic) => (topic.startsWith('-') ? ws.unsubscribe(topic.slice(1)) : ws.subscribe(topic)),
      close: () => closed.push(true),
    },
  });
  const [own, client] = [await connect(t, server, '/own'), await connectJson(t, server)];
  const watched = await client.ask({ op: 'subscribe', id: 1, topic: 'chat.a', presence: true });
  assert.strictEqual(watched.subscribers, 1);
  own.send('chat.a');
  own.send('chat.a');
  assert.strictEqual((await client.json()).subscribers, 2);
  // The client hears its own message, too.
  client.send(JSON.stringify({ op: 'publish', topic: 'chat.a', data: 'from /ws' }));
  assert.strictEqual(await own.next(), 'from /ws');
  assert.strictEqual((await client.json()).data, 'from /ws');
  server.publish('chat.a', 'from the program');
  assert.strictEqual(await own.next(), 'from the program');
  assert.strictEqual((await client.json()).data, 'from the program');
  own.send('-chat.a');
  assert.strictEqual((await client.json()).subscribers, 1);
  own.send('chat.*');
  own.send('chat.a');
  assert.strictEqual((await client.json()).subscribers, 2);
  server.publish('chat.a', 'once');
  assert.strictEqual(await own.next(), 'once');
  assert.strictEqual((await client.json()).data, 'once');
  own.close();
  assert.strictEqual((await client.json()).subscribers, 1);
  assert.deepStrictEqual(closed, [true]);
  // Routes of both, and one in the place of the server's.
  assert.strictEqual(await (await get(server, '/hello')).text(), 'hello');
  assert.strictEqual(await (await get(server, '/')).text(), 'start of GET');
  assert.strictEqual((await get(server, '/healthz')).status, 200);
  assert.match(await (await get(server, '/metrics')).text(), /sinews_/);
});

test('tokens are required, rejected and accepted', async (t) => {
  const server = serving(t, { config: { auth: { secret: SECRET }, log: 'error' } });
  const status = async (query) => {
    const client = new WebSocket(`ws://127.0.0.1:${server.port}/ws${query}`);
    const [request, response] = await once(client, 'unexpected-response');
    request.destroy();
    return response.statusCode;
  };
  assert.strictEqual(await status('?token=no'), 401);
  const anonymous = await connectJson(t, server);
  assert.strictEqual((await anonymous.ask({ op: 'subscribe', id: 1, topic: 'news' })).code, 401);
  const client = await connectJson(t, server, `?token=${token({ sub: 'anna', subscribe: 'news' })}`);
  assert.strictEqual((await client.ask({ op: 'subscribe', id: 1, topic: 'news' })).op, 'ack');
  assert.strictEqual((await client.ask({ op: 'publish', id: 2, topic: 'news', data: 1 })).code, 403);
  // The program has all rights.
  server.publish('news', 'for anna');
  assert.strictEqual((await client.json()).data, 'for anna');
});

test('the HTTP API publishes to a subscriber of the program', async (t) => {
  const server = serving(t, {
    config: { api: { key: API_KEY }, log: 'warn' },
    websocket: { path: '/own', open: (ws) => { ws.subscribe('news'); ws.send('open'); } },
  });
  const client = await connect(t, server, '/own');
  assert.strictEqual(await client.next(), 'open');
  const publish = (key) => fetch(`http://127.0.0.1:${server.port}/api/v1/publish`, {
    method: 'POST', headers: { authorization: `Bearer ${key}` }, body: JSON.stringify({ topic: 'news', data: { a: 1 } }),
  });
  assert.strictEqual((await publish('another')).status, 401);
  assert.deepStrictEqual(await (await publish(API_KEY)).json(), { subscribers: 1, topic: 'news' });
  assert.strictEqual(await client.next(), '{"a":1}');
});

test('clients of the Pusher protocol connect, subscribe, and get JSON of the program', async (t) => {
  const server = serving(t, { config: { pusher: { app: [{ id: '1', key: 'key', secret: 'secret', topics: 'shop' }] }, log: 'warn' } });
  const client = await connect(t, server, '/app/key?protocol=7');
  assert.strictEqual((await client.json()).event, 'pusher:connection_established');
  const subscribed = await client.ask({ event: 'pusher:subscribe', data: { channel: 'news' } });
  assert.strictEqual(subscribed.event, 'pusher_internal:subscription_succeeded');
  server.publish('shop.news', '{"event":"hello","data":"world"}', { json: true });
  assert.deepStrictEqual(await client.json(), { event: 'hello', channel: 'news', data: 'world' });
  const unknown = await connect(t, server, '/app/other?protocol=7');
  assert.strictEqual((await unknown.json()).data.code, 4001);
});

test('durable topics are stored in streams, and are there after a restart', async (t) => {
  const config = { streams: { directory: directory(t), durable_topics: ['orders.>'] }, log: 'warn' };
  const first = serve({ config, port: 0, websocket: { path: '/own', open: (ws) => ws.subscribe('orders.a') } });
  const client = await connect(t, first, '/own');
  for (let at = 0; at < 100; at++) assert.strictEqual(first.publish('orders.a', `order ${at}`), true);
  for (let at = 0; at < 100; at++) assert.strictEqual(await client.next(), `order ${at}`);
  assert.deepStrictEqual((await first.history('orders.a', { last: 2 })).map(({ data }) => data), ['order 98', 'order 99']);
  // The end waits for records and answers.
  assert.strictEqual(first.publish('orders.a', 'order 100'), true);
  const reading = first.history('orders.a', { last: 1 });
  await first.stop();
  assert.match((await reading)[0].data, /^order (99|100)$/);
  await assert.rejects(first.history('orders.a'), { code: 'ERR_SINEWS_STOPPED' });
  assert.strictEqual(first.publish('orders.a', 'late'), false);

  const second = serving(t, { config });
  const history = await second.history('orders.a');
  assert.deepStrictEqual(history.map(({ data }) => data), Array.from({ length: 101 }, (_, at) => `order ${at}`));
  const records = await (await get(second, '/streams/orders.a/records')).json();
  assert.strictEqual(records.records.length, 101);
});

test('a publication that a stream rejects is an error of the program', async (t) => {
  let failed;
  const failure = new Promise((resolve) => { failed = resolve; });
  const config = { streams: { directory: directory(t), durable_topics: ['orders.>'], max_streams: 1 }, log: 'off' };
  const server = serving(t, { config, error: failed });
  server.publish('orders.a', 'first');
  server.publish('orders.b', 'second');
  const error = await failure;
  assert.strictEqual(error.code, 'ERR_SINEWS_TOPIC');
  assert.deepStrictEqual([error.status, /streams/.test(error.message)], [429, true], error.message);
});

test('a configuration file has the same settings, and its listen address', async (t) => {
  const file = path.join(directory(t), 'sinews.toml');
  fs.writeFileSync(file, 'listen = "127.0.0.1:0"\nlog = "warn"\nhistory = ["a=1"]\n');
  const server = serve({ config: file });
  after(t, () => server.stop());
  server.publish('a', 'x');
  assert.strictEqual((await server.history('a'))[0].data, 'x');
  assert.strictEqual(server.hostname, '127.0.0.1');
  fs.writeFileSync(file, 'log = "warn"\n\nmax_message = "no"\n');
  assert.throws(() => serve({ config: file }), { name: 'TypeError', message: /sinews\.toml:3: max_message must be .*, not "no"/ });
});

test('invalid settings and arguments are errors that name them', async (t) => {
  const invalid = (config, message, options) => {
    assert.throws(() => serve({ config, port: 0, ...options }), { name: 'TypeError', code: /ERR_INVALID_ARG/, message });
  };
  invalid(7, 'config must be the path of a file or an object with its settings');
  invalid('/nowhere/sinews.toml', /^\/nowhere\/sinews\.toml: No such file/);
  invalid({ histroy: [] }, 'config: unknown key histroy; did you mean history?');
  invalid({ max_message: 'large' }, /^config: max_message must be .*, not "large"/);
  invalid({ limits: { max_connections: null } }, 'config: limits.max_connections is null');
  invalid({ auth: { secret: 'short' } }, /^config: auth\.secret: /);
  invalid({ threads: 2 }, /^config: threads: 2 threads are not possible: /);
  invalid({ backend: 'uring' }, /^config: backend: uring is not possible: /);
  invalid({ log_format: 'json' }, /^config: log_format: json, but this process logs as text/, undefined);
  invalid({ log: 'warn' }, /^routes: "\/topics\/\{other\}": /, { routes: { '/topics/{other}': '' } });
  const server = serving(t, { config: { log: 'warn' } });
  for (const topic of ['a.*', '', '$pusher.a', 'a..b']) {
    assert.throws(() => server.publish(topic, ''), { name: 'TypeError', message: /^topic: / }, topic);
  }
  assert.throws(() => server.publish('a', 'x', { json: true }), { name: 'TypeError', message: /^data: the message is not valid JSON/ });
  assert.throws(() => server.publish('a', 'x', { jsn: true }), /unknown option jsn/);
  assert.throws(() => server.presence('a', { after: 1 }), /options\.after must be a string/);
  await assert.rejects(server.history('a', { last: 0 }), /options\.last must be an integer from 1 to 1000/);
  await assert.rejects(server.history('a', { after: { epoch: 1 } }), /options\.after\.seq must be a number/);
  const plain = serve({});
  after(t, () => plain.stop());
  await assert.rejects(plain.history('a'), { name: 'TypeError', message: /without config/ });
  assert.throws(() => plain.presence('a'), /without config/);
  assert.throws(() => plain.publish('a', '1', { json: true }), /without config/);
});

test('the process ends after the server has stopped', async (t) => {
  const config = {
    streams: { directory: directory(t), durable_topics: ['a'] }, api: { key: API_KEY }, log: 'warn', origin: undefined,
  };
  const script = `
    const { serve } = require(${JSON.stringify(path.join(__dirname, '..'))});
    const server = serve({ config: ${JSON.stringify(config)}, port: 0 });
    server.publish('a', 'x');
    server.history('a').finally(() => server.stop()).then(() => console.log('stopped'));
    process.on('exit', () => console.log('ended'));`;
  const output = await new Promise((resolve, reject) => {
    execFile(process.execPath, ['-e', script], { timeout: 60_000 }, (error, stdout) => (error ? reject(error) : resolve(stdout)));
  });
  assert.strictEqual(output, 'stopped\nended\n');
});
