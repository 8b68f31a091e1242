// The servers that measure.mjs starts, and the messages that each expects. A server has one thread, on processor 0.
//
// A message to a server is what `frames` sends; `has` finds an answer by a part of its text, so that the load does not
// parse each delivery.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const KEY = 'k'.repeat(40);

/** Messages retained of topics whose name begins with `kept.`. */
const HISTORY = 100;

/**
 * Starts a program on processor 0. Resolves once `url` answers; the program ends by `stop`, or after ten minutes.
 */
async function start(command, args, { url, env = {} }) {
  const child = spawn('timeout', ['600', 'taskset', '-c', '0', command, ...args], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let errors = '';
  child.stderr.on('data', (text) => { errors = (errors + text).slice(-4_000); });
  const ended = new Promise((resolve) => { child.once('exit', resolve); });
  for (let attempt = 0; attempt < 200; attempt += 1) {
    if (child.exitCode !== null) throw new Error(`${command} ended: ${errors}`);
    try {
      await fetch(url);
      break;
    } catch {
      await new Promise((resolve) => { setTimeout(resolve, 50); });
    }
  }
  // `timeout` and `taskset` are one process more: the server is the child of `timeout`.
  const { readFileSync } = await import('node:fs');
  const pid = Number(readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim().split(' ')[0]);
  // A server that waits for its clients at the end is killed.
  const stop = async () => {
    child.kill('SIGTERM');
    const timer = setTimeout(() => { process.kill(pid, 'SIGKILL'); }, 5_000);
    await ended;
    clearTimeout(timer);
  };
  return { pid, stop };
}

/** Starts a program with these files in a directory of its own, which is removed at its end. */
export async function startIn(files, command, args, options) {
  const directory = mkdtempSync(join(tmpdir(), 'servers-bench-'));
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content);
  const server = await start(command, args(directory), options);
  return { ...server, stop: async () => { await server.stop(); rmSync(directory, { recursive: true, force: true }); } };
}

const post = (path, body, headers = {}) => ({ path, body: JSON.stringify(body), headers });

/** `sinews serve`. */
export function sinews({ program, port, broker, store }) {
  const url = `127.0.0.1:${port}`;
  const auth = { authorization: `Bearer ${KEY}` };
  return {
    name: 'sinews',
    http: url,
    async start() {
      const args = ['serve', '--listen', url, '--threads', '1', '--log', 'error', '--api-key', KEY, '--history', `kept.>=${HISTORY}`];
      let directory;
      if (broker) args.push('--cluster', broker, '--cluster-node-name', `node-${port}`);
      if (store) {
        directory = mkdtempSync(join(tmpdir(), 'sinews-bench-'));
        args.push('--streams-directory', directory, '--streams-store', store, '--streams-durable-topics', 'durable.>');
      }
      const server = await start(program, args, { url: `http://${url}/healthz` });
      const stop = async () => { await server.stop(); if (directory) rmSync(directory, { recursive: true, force: true }); };
      return { ...server, stop };
    },
    socket: `ws://${url}/ws`,
    login: null,
    loggedIn: '"op":"welcome"',
    subscribe: (topic, id) => `{"op":"subscribe","id":${id},"topic":"${topic}"}`,
    subscribed: '"op":"ack"',
    delivery: '"op":"message"',
    position: (text) => { const ack = JSON.parse(text); return { epoch: ack.epoch, seq: ack.seq }; },
    retained: (topic) => `{"op":"subscribe","id":7,"topic":"${topic}","last":1}`,
    resume: (topic, { epoch, seq }) => `{"op":"subscribe","id":8,"topic":"${topic}","from":{"epoch":${epoch},"seq":${seq}}}`,
    unsubscribe: (topic) => `{"op":"unsubscribe","id":9,"topic":"${topic}"}`,
    watch: (topic) => [`{"op":"subscribe","id":2,"topic":"${topic}","members":true}`],
    join: (topic, user) => [
      `{"op":"subscribe","id":2,"topic":"${topic}","members":true}`,
      `{"op":"join","id":3,"topic":"${topic}","member":{"id":"${user}","info":{"name":"${user}"}}}`,
    ],
    enter: (topic, user) => `{"op":"join","id":3,"topic":"${topic}","member":{"id":"${user}","info":{"name":"${user.slice(1)}"}}}`,
    joined: '"id":3',
    leave: (topic) => `{"op":"leave","id":9,"topic":"${topic}"}`,
    left: '"id":9',
    watches: true,
    // In place of joins and leaves: the cost of a request.
    pings: { enter: () => '{"op":"ping","id":3}', leave: () => '{"op":"ping","id":9}' },
    publish: (topic, data) => post('/api/v1/publish', { topic, data }, auth),
    batch: (topic, data, count) => post('/api/v1/batch', { messages: Array.from({ length: count }, () => ({ topic, data })) }, auth),
    broadcast: (topics, data) => post('/api/v1/broadcast', { topics, data }, auth),
    send: (topic, payload) => `{"op":"publish","topic":"${topic}","data":"${payload}"}`,
  };
}

/** Centrifugo. Clients need no token. */
export function centrifugo({ program, port, engine, broker }) {
  const url = `127.0.0.1:${port}`;
  const auth = { 'x-api-key': KEY };
  const permissions = {
    allow_subscribe_for_client: true, allow_subscribe_for_anonymous: true,
    allow_publish_for_client: true, allow_publish_for_anonymous: true,
  };
  const retained = { history_size: HISTORY, history_ttl: '600s', allow_recovery: true, force_recovery: true, force_positioning: true };
  const config = {
    http_server: { address: '127.0.0.1', port: String(port) },
    log: { level: 'error' },
    // The load answers no pings, and logs in late while members are told of thousands.
    client: {
      allowed_origins: ['*'], allow_anonymous_connect_without_token: true, insecure: false,
      ping_interval: '600s', pong_timeout: '60s', stale_close_delay: '60s',
    },
    http_api: { key: KEY },
    channel: {
      without_namespace: permissions,
      // Over NATS, Centrifugo has neither history nor recovery.
      namespaces: broker ? [] : [
        { name: 'kept', ...permissions, ...retained },
        { name: 'durable', ...permissions, ...retained },
        { name: 'room', ...permissions, presence: true, join_leave: true, force_push_join_leave: true },
      ],
    },
    ...(engine ? { engine: { type: 'redis', redis: { address: [engine] } } } : {}),
    ...(broker ? { broker: { enabled: true, type: 'nats', nats: { url: broker } } } : {}),
  };
  const channel = (topic) => topic.replace(/^(kept|durable|room)\./, '$1:');
  const subscribe = (topic, id) => `{"id":${id},"subscribe":{"channel":"${channel(topic)}"}}`;
  return {
    name: 'centrifugo',
    http: url,
    start: () => startIn({ 'config.json': JSON.stringify(config) }, program, (directory) => ['-c', join(directory, 'config.json')],
      { url: `http://${url}/health`, env: { GOMAXPROCS: '1' } }),
    socket: `ws://${url}/connection/websocket`,
    login: '{"id":1,"connect":{}}',
    loggedIn: '"connect":{',
    subscribe,
    subscribed: '"subscribe":{',
    delivery: '"pub":{',
    position: (text) => { const { subscribe: { epoch, offset } } = JSON.parse(text.split('\n')[0]); return { epoch, offset: offset ?? 0 }; },
    retained: (topic) => subscribe(topic, 7),
    resume: (topic, { epoch, offset }) => `{"id":8,"subscribe":{"channel":"${channel(topic)}","recover":true,"epoch":"${epoch}","offset":${offset}}}`,
    unsubscribe: (topic) => `{"id":9,"unsubscribe":{"channel":"${channel(topic)}"}}`,
    watch: (topic) => [subscribe(topic, 2)],
    join: (topic) => [subscribe(topic, 3)],
    // A client joins by its subscription.
    enter: (topic) => subscribe(topic, 3),
    joined: '"id":3',
    leave: (topic) => `{"id":9,"unsubscribe":{"channel":"${channel(topic)}"}}`,
    left: '"id":9',
    publish: (topic, data) => post('/api/publish', { channel: channel(topic), data }, auth),
    batch: (topic, data, count) => post('/api/batch', { commands: Array.from({ length: count }, () => ({ publish: { channel: channel(topic), data } })) }, auth),
    broadcast: (topics, data) => post('/api/broadcast', { channels: topics.map(channel), data }, auth),
    send: (topic, payload) => `{"id":4,"publish":{"channel":"${channel(topic)}","data":"${payload}"}}`,
    resumed: (text) => text.split('"offset":').length - 2,
  };
}

/** NATS with WebSocket: no history, no presence, no HTTP. */
export function nats({ program, ports: [port, clients, monitor] }) {
  const config = `port: ${clients}\nhttp: 127.0.0.1:${monitor}\nwebsocket { host: 127.0.0.1, port: ${port}, no_tls: true }\n`;
  return {
    name: 'nats',
    start: () => startIn({ 'nats.conf': config }, program, (directory) => ['-c', join(directory, 'nats.conf')],
      { url: `http://127.0.0.1:${monitor}/healthz`, env: { GOMAXPROCS: '1' } }),
    socket: `ws://127.0.0.1:${port}/`,
    binary: true,
    login: 'CONNECT {"verbose":false}\r\nPING\r\n',
    loggedIn: 'PONG',
    subscribe: (topic, id) => `SUB ${topic} ${id}\r\nPING\r\n`,
    subscribed: 'PONG',
    delivery: 'MSG ',
    send: (topic, payload) => `PUB ${topic} ${payload.length}\r\n${payload}\r\n`,
  };
}

/** Socket.IO, a program of this folder. */
export function socketIo({ port }) {
  const url = `127.0.0.1:${port}`;
  return {
    name: 'socket.io',
    http: url,
    start: () => start(process.execPath, [join(here, 'socket-io.mjs'), String(port)], { url: `http://${url}/healthz` }),
    socket: `ws://${url}/socket.io/?EIO=4&transport=websocket`,
    login: '40',
    loggedIn: '40{',
    subscribe: (topic, id) => `42${id}["subscribe","${topic}"]`,
    subscribed: '43',
    delivery: '42["message"',
    ping: ['2', '3'],
    watch: (topic) => [`422["join","${topic}"]`],
    join: (topic) => [`423["join","${topic}"]`],
    joined: '433[',
    publish: (topic, data) => post('/publish', { topic, data }),
    send: (topic, payload) => `42["publish","${topic}","${payload}"]`,
  };
}
