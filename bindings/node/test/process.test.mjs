import assert from 'node:assert';
import { execFile, execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { sinews } from './helpers.mjs';

const { WebSocket } = sinews;

const here = path.dirname(fileURLToPath(import.meta.url));
const PACKAGE = JSON.stringify(path.join(here, '..', 'ws.js'));
const TIMEOUT = 60_000;
const run = promisify(execFile);

/** Runs a program in a process of its own, which must end by itself. Returns its output. */
async function node(source, ...options) {
  const { stdout } = await run(process.execPath, [...options, '-e', source], { timeout: TIMEOUT });
  return stdout.trim();
}

const ECHO = `
  const { WebSocket, WebSocketServer } = require(${PACKAGE});
  const native = require(${PACKAGE.replace('ws.js', 'lib/native.js')});
  function roundTrip(done) {
    const server = new WebSocketServer({ port: 0 }, () => {
      const client = new WebSocket('ws://localhost:' + server.address().port);
      client.on('open', () => client.send('hello'));
      client.on('message', (data) => {
        client.close();
        client.on('close', () => server.close(() => done(data.toString())));
      });
    });
    server.on('connection', (websocket) => {
      websocket.on('message', (data) => websocket.send(data, { binary: false }));
    });
  }`;

test('the process ends once all is closed', async () => {
  assert.strictEqual(await node(`${ECHO} roundTrip((text) => console.log(text, native.count()));`), 'hello 0');
});

/** Starts a server in a process of its own, and one connection to it. */
async function withServer(onMessage, use) {
  const child = execFile(process.execPath, ['-e', `${ECHO}
    const server = new WebSocketServer({ port: 0 }, () => console.log(server.address().port));
    server.on('connection', (websocket) => websocket.on('message', (data) => {
      websocket.send(data);
      (${onMessage})(websocket, data.toString(), server);
    }));`]);
  const ended = once(child, 'exit');
  const [port] = await once(child.stdout, 'data');
  const client = new WebSocket(`ws://127.0.0.1:${port.trim()}`);
  await once(client, 'open');
  try {
    await use(client, ended);
  } finally {
    client.terminate();
    await ended;
  }
}

const closeServer = '(websocket, text, server) => { if (text === "close") server.close(); }';

test('an open connection keeps the process alive', async () => {
  await withServer(closeServer, async (client) => {
    for (const text of ['first', 'close', 'second', 'third']) {
      client.send(text);
      assert.strictEqual((await once(client, 'message'))[0].toString(), text);
    }
  });
});

test('a connection whose socket is unreferenced lets the process end', async () => {
  const unref = '(websocket, text, server) => { if (text === "close") { server.close(); websocket._socket.unref(); } }';
  await withServer(unref, async (client, ended) => {
    client.send('first');
    await once(client, 'message');
    client.send('close');
    assert.deepStrictEqual(await ended, [0, null]);
  });
});

test('a message that was sent just before the process exits is written', async () => {
  const client = `
    const { WebSocket } = require(${PACKAGE});
    const client = new WebSocket('ws://localhost:' + process.env.PORT);
    client.on('open', () => { client.send('last'); process.exit(); });`;
  const output = await node(`${ECHO}
    const server = new WebSocketServer({ port: 0 }, () => {
      const env = { ...process.env, PORT: server.address().port };
      require('child_process').execFile(process.execPath, ['-e', ${JSON.stringify(client)}], { env });
    });
    server.on('connection', (websocket) => {
      websocket.on('error', () => {});
      websocket.on('message', (data) => { console.log(data.toString()); server.close(); websocket.terminate(); });
    });`);
  assert.strictEqual(output, 'last');
});

test('worker threads have connections of their own', async () => {
  const output = await node(`
    const { Worker, isMainThread } = require('worker_threads');
    const source = ${JSON.stringify(`${ECHO}
      roundTrip((text) => require('worker_threads').parentPort.postMessage(text + native.count()));`)};
    let left = 4;
    ${ECHO}
    for (let at = 0; at < 4; at++) {
      const worker = new Worker(source, { eval: true });
      worker.on('message', (text) => console.log(text));
      worker.on('exit', () => { if (--left === 0) roundTrip((text) => console.log('main', text)); });
    }`);
  assert.strictEqual(output, 'hello0\nhello0\nhello0\nhello0\nmain hello');
});

test('a worker may be terminated while connections are open', async () => {
  const output = await node(`
    const { Worker } = require('worker_threads');
    const worker = new Worker(${JSON.stringify(`
      const { WebSocket, WebSocketServer } = require(${PACKAGE});
      const server = new WebSocketServer({ port: 0 }, () => {
        const client = new WebSocket('ws://localhost:' + server.address().port);
        client.on('open', () => { client.send('hello'); require('worker_threads').parentPort.postMessage('open'); });
      });`)}, { eval: true });
    worker.on('message', () => worker.terminate().then(() => console.log('terminated')));`);
  assert.strictEqual(output, 'terminated');
});

test('a listener that throws raises an uncaught exception; later messages arrive', async () => {
  const output = await node(`${ECHO}
    process.on('uncaughtException', (error) => console.log('uncaught', error.message));
    const server = new WebSocketServer({ port: 0 }, () => {
      const client = new WebSocket('ws://localhost:' + server.address().port);
      client.on('open', () => { for (const text of ['1', '2', '3']) client.send(text); });
    });
    server.on('connection', (websocket) => {
      websocket.on('message', (data) => {
        if (data.toString() === '3') { websocket.close(); server.close(); return; }
        throw new Error(data.toString());
      });
    });`);
  assert.strictEqual(output, 'uncaught 1\nuncaught 2');
});

test('connections that have closed leave no memory, also after errors', async () => {
  const output = await node(
    `${ECHO}
    process.on('uncaughtException', () => {});
    const server = new WebSocketServer({ port: 0, perMessageDeflate: true, clientTracking: false });
    server.on('connection', (websocket) => {
      websocket.on('error', () => {});
      websocket.on('message', (data) => { websocket.send(data); if (data[0] === 0x74) throw new Error('thrown'); });
    });
    const once = (emitter, event) => new Promise((resolve) => emitter.once(event, resolve));
    async function round(at) {
      const client = new WebSocket('ws://localhost:' + server.address().port);
      client.on('error', () => {});
      await once(client, 'open');
      client.send(at % 3 === 0 ? 'throws' : Buffer.alloc(2000, 1));
      await once(client, 'message');
      if (at % 3 === 1) client._socket.write(Buffer.from([0xff, 0xff]));
      else if (at % 3 === 2) client.terminate();
      else client.close();
      await once(client, 'close');
    }
    async function settle() {
      for (let at = 0; at < 5; at++) { gc(); await new Promise(setImmediate); }
      return process.memoryUsage();
    }
    (async () => {
      await once(server, 'listening');
      for (let at = 0; at < 150; at++) await round(at);
      const before = await settle();
      for (let at = 0; at < 900; at++) await round(at);
      const after = await settle();
      const grown = (key) => Math.round((after[key] - before[key]) / 900);
      console.log(JSON.stringify({ count: native.count(), heap: grown('heapUsed'), external: grown('external') }));
      server.close();
    })();`,
    '--expose-gc'
  );
  const { count, heap, external } = JSON.parse(output);
  assert.strictEqual(count, 0);
  assert.ok(heap < 1500, `${heap} bytes of heap for a connection`);
  assert.ok(external < 1000, `${external} external bytes for a connection`);
});

test('the packed package works in an empty project without a compiler', async () => {
  const directory = mkdtempSync(path.join(tmpdir(), 'sinews-'));
  try {
    execFileSync('npm', ['pack', '--pack-destination', directory], { cwd: path.join(here, '..'), stdio: 'ignore' });
    const [tarball] = readdirSync(directory);
    writeFileSync(path.join(directory, 'package.json'), '{"private": true}');
    const env = { ...process.env, PATH: path.dirname(process.execPath) + ':/bin:/usr/bin', CC: 'false', CXX: 'false' };
    const options = ['install', '--offline', '--no-audit', '--no-fund', `./${tarball}`];
    execFileSync('npm', options, { cwd: directory, env, stdio: 'ignore' });
    writeFileSync(path.join(directory, 'cjs.js'), ECHO.replace(PACKAGE, "'sinews/ws'").replace(/const native.*/, '') +
      "roundTrip((text) => console.log(text));");
    writeFileSync(path.join(directory, 'esm.mjs'),
      "import WebSocket, { WebSocketServer } from 'sinews/ws'; console.log(WebSocket.Server === WebSocketServer);");
    for (const [file, expected] of [['cjs.js', 'hello'], ['esm.mjs', 'true']]) {
      const { stdout } = await run(process.execPath, [file], { cwd: directory, timeout: TIMEOUT });
      assert.strictEqual(stdout.trim(), expected);
    }
  } finally {
    rmSync(directory, { recursive: true });
  }
});
