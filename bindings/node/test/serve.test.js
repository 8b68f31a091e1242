'use strict';

const assert = require('node:assert');
const { once } = require('node:events');
const { test } = require('node:test');
const { Worker } = require('node:worker_threads');
const { execFile } = require('node:child_process');
const path = require('node:path');
const WebSocket = require('ws');

const { serve } = require('..');

/** Serves for one test, and connects clients by `ws`. */
async function serving(t, options, count = 1) {
  const server = serve(options);
  const clients = [];
  for (let at = 0; at < count; at++) {
    const client = new WebSocket(`ws://127.0.0.1:${server.port}${options.websocket?.path ?? '/'}`, { headers: { 'x-number': at } });
    const messages = [];
    client.on('message', (data, isBinary) => {
      messages.push(isBinary ? data : data.toString());
      client.emit('received');
    });
    client.received = async (length) => {
      while (messages.length < length) await once(client, 'received');
      return messages.splice(0, length);
    };
    await once(client, 'open');
    clients.push(client);
  }
  t.after(() => {
    for (const client of clients) client.terminate();
    return server.stop();
  });
  return [server, ...clients];
}

test('messages are echoed in order, as strings and as bytes', async (t) => {
  const [, client] = await serving(t, { websocket: { message: (ws, data) => ws.send(data) } });
  for (let at = 0; at < 100; at++) client.send(`message ${at} ü`);
  client.send(Buffer.from([0, 255]));
  const received = await client.received(101);
  assert.deepStrictEqual(received.slice(0, 100), Array.from({ length: 100 }, (_, at) => `message ${at} ü`));
  assert.deepStrictEqual([...received[100]], [0, 255]);
});

test('large messages and bursts grow the memory', async (t) => {
  const [, client] = await serving(t, { websocket: { maxBackpressure: 64 << 20, message: (ws, data) => ws.send(data) } });
  client.send('x'.repeat(3 << 20));
  for (let at = 0; at < 5000; at++) client.send(String(at));
  const [large, ...small] = await client.received(5001);
  assert.strictEqual(large.length, 3 << 20);
  assert.deepStrictEqual(small, Array.from({ length: 5000 }, (_, at) => String(at)));
});

test('sends outside of a handler leave by themselves', async (t) => {
  let opened;
  const [, client] = await serving(t, { websocket: { open: (ws) => { opened = ws; } } });
  for (let at = 0; at < 3; at++) {
    setImmediate(() => opened.send(`later ${at}`));
    assert.deepStrictEqual(await client.received(1), [`later ${at}`]);
  }
});

test('a connection knows its request and its end', async (t) => {
  const ended = Promise.withResolvers?.() ?? deferred();
  const [, client] = await serving(t, {
    websocket: {
      path: '/chat',
      open(ws) {
        ws.data = 7;
        ws.send(JSON.stringify([ws.url, ws.headers['x-number'], ws.remoteAddress, ws.readyState]));
      },
      close: (ws, code, reason) => ended.resolve([ws.data, code, reason, ws.readyState, ws.send('late')]),
    },
  });
  assert.deepStrictEqual(JSON.parse(await client.received(1)), ['/chat', '0', '127.0.0.1', 1]);
  client.close(4000, 'bye');
  assert.deepStrictEqual(await ended.promise, [7, 4000, 'bye', 3, 0]);
});

test('publications reach subscribers of topics and of patterns', async (t) => {
  const [server, one, two] = await serving(t, {
    websocket: {
      message(ws, topic) {
        ws.subscribe(topic);
        ws.send('subscribed');
      },
    },
  }, 2);
  one.send('news.sport');
  two.send('news.>');
  await Promise.all([one.received(1), two.received(1)]);
  server.publish('news.sport', 'goal');
  server.publish('news.music', Buffer.from('song'));
  assert.deepStrictEqual(await one.received(1), ['goal']);
  const [goal, song] = await two.received(2);
  assert.deepStrictEqual([goal, String(song)], ['goal', 'song']);
  assert.throws(() => server.publish('a..b', ''), { name: 'TypeError', message: /topic/ });
});

test('routes answer with strings, objects and promises', async (t) => {
  const [server] = await serving(t, {
    routes: {
      '/text': 'fixed',
      '/json/{id}': async (request) => ({
        status: 201,
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify([request.method, request.url, request.headers['x-a'], request.body.toString()]),
      }),
    },
  }, 0);
  const base = `http://127.0.0.1:${server.port}`;
  const text = await fetch(`${base}/text`);
  assert.deepStrictEqual([text.status, await text.text()], [200, 'fixed']);
  const json = await fetch(`${base}/json/5?x=1`, { method: 'POST', body: 'a\n\nb', headers: { 'x-a': '1' } });
  assert.strictEqual(json.status, 201);
  assert.deepStrictEqual(await json.json(), ['POST', '/json/5?x=1', '1', 'a\n\nb']);
  assert.strictEqual((await fetch(`${base}/none`)).status, 404);
});

test('handlers that throw close their connection with 1011, and the error is the program\'s', async (t) => {
  const errors = [];
  const [server, client] = await serving(t, {
    error: (error, ws) => errors.push([error.message, ws?.readyState]),
    routes: { '/throws': () => { throw new Error('route'); }, '/rejects': () => Promise.reject(new Error('promise')), '/number': () => 5 },
    websocket: { message() { throw new Error('message'); } },
  });
  client.send('x');
  const [code, reason] = await once(client, 'close');
  assert.deepStrictEqual([code, reason.toString()], [1011, 'handler failed']);
  for (const route of ['throws', 'rejects', 'number']) {
    assert.strictEqual((await fetch(`http://127.0.0.1:${server.port}/${route}`)).status, 500);
  }
  assert.deepStrictEqual(errors.slice(0, 3), [['message', 1], ['route', undefined], ['promise', undefined]]);
  assert.match(errors[3][0], /a handler must return/);
});

test('a slow client is backpressure, and drain follows', async (t) => {
  let opened;
  const drained = deferred();
  const drain = (ws) => { if (ws.bufferedAmount < 64 << 10 && !client.isPaused) drained.resolve(); };
  const options = { maxBackpressure: 64 << 20, open: (ws) => { opened = ws; }, drain };
  const [, client] = await serving(t, { websocket: options });
  client.pause();
  const chunk = Buffer.alloc(256 << 10);
  let result = 1;
  // The kernel takes some megabytes.
  while (opened.bufferedAmount < 4 << 20) {
    result = opened.send(chunk);
    await new Promise(setImmediate);
  }
  assert.strictEqual(result, -1);
  client.resume();
  await drained.promise;
  assert.strictEqual(opened.send('short'), 5);
});

test('invalid options and arguments are errors that name them', async (t) => {
  const invalid = (options, name, message) => assert.throws(() => serve(options), { name, message });
  invalid(undefined, 'TypeError', /options must be an object/);
  invalid({ prot: 1 }, 'TypeError', /unknown option prot/);
  invalid({ port: 70000 }, 'RangeError', /port must be an integer from 0 to 65535/);
  invalid({ port: '1' }, 'TypeError', /port must be a number, not string/);
  invalid({ hostname: 'example' }, 'TypeError', /hostname/);
  invalid({ websocket: { mesage() {} } }, 'TypeError', /unknown option mesage/);
  invalid({ websocket: { message: 1 } }, 'TypeError', /websocket.message must be a function/);
  invalid({ websocket: { path: 'chat' } }, 'TypeError', /routes: "chat"/);
  invalid({ websocket: { maxMessage: 0 } }, 'RangeError', /websocket.maxMessage/);
  invalid({ routes: { '/': 1 } }, 'TypeError', /routes\["\/"\]/);
  const faults = [];
  const [server, client] = await serving(t, {
    error: () => {},
    websocket: {
      message(ws) {
        for (const call of [() => ws.send(5), () => ws.close(1005), () => ws.close(1000, 'x'.repeat(124)), () => ws.subscribe('a..b')]) {
          try { call(); } catch (error) { faults.push(`${error.name} ${error.code}`); }
        }
        ws.send('done');
      },
    },
  });
  client.send('x');
  await client.received(1);
  assert.deepStrictEqual(faults, ['TypeError ERR_INVALID_ARG_TYPE', 'RangeError ERR_OUT_OF_RANGE', 'RangeError ERR_OUT_OF_RANGE', 'TypeError ERR_INVALID_ARG_VALUE']);
  assert.throws(() => serve({ port: server.port }), { code: 'ERR_SINEWS_BIND', message: new RegExp(`:${server.port}`) });
});

test('a stopped server lets the process end, and so does unref', async () => {
  const entry = JSON.stringify(path.join(__dirname, '..'));
  for (const call of ['s.stop().then(() => console.log("ended"))', 's.unref(); console.log("ended")']) {
    const script = `const s = require(${entry}).serve({ websocket: {} }); setImmediate(() => { ${call} });`;
    const output = await new Promise((resolve, reject) => {
      execFile(process.execPath, ['-e', script], { timeout: 60_000 }, (error, stdout) => (error ? reject(error) : resolve(stdout)));
    });
    assert.strictEqual(output, 'ended\n');
  }
});

test('a worker thread has a server of its own, which ends with it', async () => {
  const worker = new Worker(`
    const { parentPort } = require('node:worker_threads');
    const { serve } = require(${JSON.stringify(path.join(__dirname, '..'))});
    parentPort.postMessage(serve({ websocket: { message: (ws, data) => ws.send(data) } }).port);
  `, { eval: true });
  const [port] = await once(worker, 'message');
  const client = new WebSocket(`ws://127.0.0.1:${port}`);
  await once(client, 'open');
  client.send('hi');
  const [data] = await once(client, 'message');
  assert.strictEqual(data.toString(), 'hi');
  await worker.terminate();
  client.terminate();
});

test('sends of a callback precede its publications, at every client', async (t) => {
  const sockets = [];
  const [server, ...clients] = await serving(t, { websocket: { open(ws) { ws.subscribe('room'); sockets.push(ws); } } }, 40);
  for (const ws of sockets) ws.send('send');
  assert.strictEqual(server.publish('room', 'publication'), true);
  for (const client of clients) assert.deepStrictEqual(await client.received(2), ['send', 'publication']);
});

test('the most specific route answers, and faults of requests close no connection', async (t) => {
  const [server, client] = await serving(t, {
    error: () => { throw new Error('second'); },
    routes: { '/{*rest}': () => { throw new Error('first'); }, '/users/{id}': 'user', '/pre{x}': 'prefix' },
    websocket: { path: '/socket', message: (ws, data) => ws.send(data) },
  });
  const raised = [];
  const listeners = process.listeners('uncaughtException');
  process.removeAllListeners('uncaughtException');
  process.on('uncaughtException', (error) => raised.push(error.message));
  const get = async (path) => {
    const response = await fetch(`http://127.0.0.1:${server.port}${path}`);
    return [response.status, await response.text()];
  };
  assert.deepStrictEqual(await get('/users/5'), [200, 'user']);
  assert.deepStrictEqual(await get('/prefix'), [200, 'prefix']);
  for (let at = 0; at < 3; at++) assert.strictEqual((await get('/other'))[0], 500);
  process.removeAllListeners('uncaughtException');
  for (const listener of listeners) process.on('uncaughtException', listener);
  assert.deepStrictEqual(raised, ['second', 'second', 'second']);
  client.send('still open');
  assert.deepStrictEqual(await client.received(1), ['still open']);
  assert.throws(() => serve({ routes: { '/{a}': '', '/{b}': '' } }), { name: 'TypeError', message: /routes: "\/\{b\}"/ });
});

test('an asynchronous handler that fails closes its connection, and an error of `error` loses no message', async (t) => {
  const received = [];
  const [, client, other] = await serving(t, {
    error: () => {},
    websocket: {
      async message(ws, data) {
        received.push(data);
        if (data === 'fail') throw new Error('later');
        ws.send(data);
      },
    },
  }, 2);
  for (const text of ['one', 'fail', 'two']) client.send(text);
  other.send('other');
  const [code] = await once(client, 'close');
  assert.strictEqual(code, 1011);
  assert.deepStrictEqual(await other.received(1), ['other']);
  assert.ok(received.includes('two'));
});

test('drain follows a large message that compression makes short', async (t) => {
  const drained = deferred();
  const websocket = { compression: true, open: (ws) => drained.result = ws.send('x'.repeat(200_000)), drain: (ws) => drained.resolve(ws.send('y')) };
  const [, client] = await serving(t, { websocket });
  assert.strictEqual(await drained.promise, 1);
  assert.deepStrictEqual((await client.received(2)).map((text) => text.length), [200_000, 1]);
});

function deferred() {
  const result = {};
  result.promise = new Promise((resolve, reject) => Object.assign(result, { resolve, reject }));
  return result;
}
