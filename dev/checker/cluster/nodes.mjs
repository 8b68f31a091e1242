// Starts nodes of a cluster, and reads their figures and those of their broker.

import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer, connect } from 'node:net';
import { once } from 'node:events';
import { pause } from './socket.mjs';

export const API_KEY = 'k'.repeat(40);

/** A port that no program listens on. */
async function freePort() {
  const listener = createServer();
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address();
  listener.close();
  await once(listener, 'close');
  return port;
}

/** Starts `sinews serve` as a node of a cluster, and waits until it is ready. */
export async function startNode(program, cluster, settings = []) {
  const port = await freePort();
  const child = spawn(program, ['serve', '--listen', `127.0.0.1:${port}`, '--cluster', cluster, '--cluster-node-name', `node-${port}`,
    '--threads', '1', '--log', 'error', '--api-key', API_KEY, ...settings], { stdio: ['ignore', 'ignore', 'inherit'] });
  const node = {
    port,
    pid: child.pid,
    child,
    stop: async () => { child.kill('SIGTERM'); if (child.exitCode === null) await once(child, 'exit'); },
    /** A counter or gauge of the node, summed over its labels. */
    metric: async (name) => {
      const text = await (await fetch(`http://127.0.0.1:${port}/metrics`, { headers: { authorization: `Bearer ${API_KEY}` } })).text();
      return text.split('\n').filter((line) => line.startsWith(name) && /[ {]/.test(line[name.length]))
        .reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
    },
    api: async (path, body) => {
      const response = await fetch(`http://127.0.0.1:${port}${path}`, {
        method: 'POST', body: JSON.stringify(body), headers: { authorization: `Bearer ${API_KEY}`, 'content-type': 'application/json' },
      });
      return { status: response.status, ...(await response.json()) };
    },
  };
  for (let attempt = 0; attempt < 600; attempt += 1) {
    if (child.exitCode !== null) throw new Error('a node ended at its start');
    const ready = await fetch(`http://127.0.0.1:${port}/readyz`).then((response) => response.ok, () => false);
    if (ready) return node;
    await pause(50);
  }
  throw new Error('a node is not ready after 30 s');
}

/** CPU time of a process in microseconds. */
export function cpu(pid) {
  const [, user, system] = /^(?:\S+ ){13}(\d+) (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/\(.*\)/, 'x'));
  return (Number(user) + Number(system)) * 10_000;
}

/** Sends one command to Redis and returns its answer as text. */
export async function redis(cluster, ...command) {
  const { hostname, port } = new URL(cluster);
  const socket = connect(Number(port || 6379), hostname);
  socket.write(`*${command.length}\r\n${command.map((part) => `$${Buffer.byteLength(part)}\r\n${part}\r\n`).join('')}`);
  let text = '';
  for await (const chunk of socket) {
    text += chunk;
    const [, length] = /^\$(\d+)\r\n/.exec(text) ?? [];
    if (!length ? text.includes('\r\n') : text.length >= length.length + 5 + Number(length)) break;
  }
  socket.destroy();
  return text;
}

/** Calls and microseconds of each command at Redis, since the last reset of its statistics. */
export async function commandStatistics(cluster) {
  const text = await redis(cluster, 'INFO', 'commandstats');
  return Object.fromEntries([...text.matchAll(/cmdstat_([^:]+):calls=(\d+),usec=(\d+)/g)]
    .map(([, name, calls, microseconds]) => [name, { calls: Number(calls), microseconds: Number(microseconds) }]));
}
