// Servers of the Pusher protocol that measure.mjs starts with `--pusher`, and the messages that they all expect.

import { createHash, createHmac } from 'node:crypto';
import { join } from 'node:path';
import { startIn } from './servers.mjs';

const [ID, KEY, SECRET] = ['1', 'bench-key', 'bench-secret'];
const sign = (text) => createHmac('sha256', SECRET).update(text).digest('hex');

/** A signed request of the HTTP API, valid for ten minutes. */
function signed(path, body) {
  const text = JSON.stringify(body);
  const query = [
    `auth_key=${KEY}`, `auth_timestamp=${Math.floor(Date.now() / 1_000)}`, 'auth_version=1.0',
    `body_md5=${createHash('md5').update(text).digest('hex')}`,
  ].join('&');
  return { path: `${path}?${query}&auth_signature=${sign(`POST\n${path}\n${query}`)}`, body: text, headers: {} };
}

const subscription = (data) => JSON.stringify({ event: 'pusher:subscribe', data });

/** What clients and the application send, the same to each server. */
const protocol = (url) => ({
  http: url,
  socket: `ws://${url}/app/${KEY}?protocol=7&client=bench&version=8.4.0`,
  login: null,
  loggedIn: 'pusher:connection_established',
  ping: ['{"event":"pusher:ping","data":{}}', '{"event":"pusher:pong","data":{}}'],
  subscribe: (channel) => subscription({ channel }),
  subscribed: 'subscription_succeeded',
  delivery: '"news-event"',
  /** One private and one presence channel. */
  join: (room, user, client) => {
    const socketId = JSON.parse(JSON.parse(client.welcome).data).socket_id;
    const privateChannel = `private-${user}`;
    const [presence, member] = [`presence-${room}`, JSON.stringify({ user_id: user, user_info: { name: user } })];
    return [
      subscription({ channel: privateChannel, auth: `${KEY}:${sign(`${socketId}:${privateChannel}`)}` }),
      subscription({ channel: presence, auth: `${KEY}:${sign(`${socketId}:${presence}:${member}`)}`, channel_data: member }),
    ];
  },
  joined: '\\"presence\\":',
  publish: (channel, data) => signed(`/apps/${ID}/events`, { name: 'news-event', channel, data: text(data) }),
  batch: (channel, data, count) => signed(`/apps/${ID}/batch_events`,
    { batch: Array.from({ length: count }, () => ({ name: 'news-event', channel, data: text(data) })) }),
  broadcast: (channels, data) => signed(`/apps/${ID}/events`, { name: 'news-event', channels, data: text(data) }),
});

const text = (data) => (typeof data === 'string' ? data : JSON.stringify(data));

/** `sinews serve` with an app. */
export function sinewsPusher({ program, port }) {
  const url = `127.0.0.1:${port}`;
  const config = `[[pusher.app]]\nid = "${ID}"\nkey = "${KEY}"\nsecret = "${SECRET}"\norigins = "any"\n`;
  return {
    ...protocol(url),
    name: 'sinews',
    start: () => startIn({ 'sinews.toml': config }, program, (directory) =>
      ['serve', '--config', join(directory, 'sinews.toml'), '--listen', url, '--threads', '1', '--log', 'error'], { url: `http://${url}/healthz` }),
  };
}

/** The server of Sockudo, without metrics and rate limits. */
export function sockudo({ program, port }) {
  const url = `127.0.0.1:${port}`;
  const config = {
    host: '127.0.0.1', port, mode: 'production', activity_timeout: 120, shutdown_grace_period: 1,
    adapter: { driver: 'local' }, cache: { driver: 'memory' }, queue: { driver: 'memory' },
    metrics: { enabled: false }, rate_limiter: { enabled: false },
    app_manager: { driver: 'memory', array: { apps: [{
      id: ID, key: KEY, secret: SECRET, enabled: true,
      policy: { limits: { max_connections: 100_000, max_client_events_per_second: 1_000 }, features: { enable_client_messages: true } },
    }] } },
  };
  return {
    ...protocol(url),
    name: 'sockudo',
    start: () => startIn({ 'config.json': JSON.stringify(config) }, program, (directory) => ['--config', join(directory, 'config.json')],
      { url: `http://${url}/up`, env: { RUST_LOG: 'error', TOKIO_WORKER_THREADS: '1' } }),
  };
}

/** Soketi, whose folder has its package installed. */
export function soketi({ directory, port }) {
  const url = `127.0.0.1:${port}`;
  const main = join(directory, 'node_modules/@soketi/soketi/bin/server.js');
  const env = {
    SOKETI_HOST: '127.0.0.1', SOKETI_PORT: String(port), SOKETI_METRICS_ENABLED: '0',
    SOKETI_DEFAULT_APP_ID: ID, SOKETI_DEFAULT_APP_KEY: KEY, SOKETI_DEFAULT_APP_SECRET: SECRET,
  };
  return {
    ...protocol(url),
    name: 'soketi',
    start: () => startIn({}, process.execPath, () => [main, 'start'], { url: `http://${url}/`, env }),
  };
}
