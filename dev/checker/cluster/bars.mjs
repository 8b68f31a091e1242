// Figures of a cluster with a topic store at Redis, which `--redis-process` names for its CPU time.
//
//   node bars.mjs --program PROGRAM --cluster redis://127.0.0.1:PORT --redis-process PID [--only writes,lock,join,reconnects] [--nodes 6]
//
// writes: keys that clients at three nodes set at once, and the CPU time of Redis for each
// lock: one key that writers at three nodes change with the condition `version`
// join: a new node sends 100,000 keys of ten topics to its first subscribers
// reconnects: 100,000 clients of 100 topics lose their connections and resume at another node; reads at Redis

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { commandStatistics, cpu, startNode } from './nodes.mjs';
import { Socket, concurrently, pause } from './socket.mjs';

const CLIENTS = 100_000;
const TOPICS = 100;
const round = (number) => Math.round(number * 10) / 10;
/** The clients of a process. */
const held = [];

if (process.send) process.on('message', (task) => { void subscribers(task); });
else await main();

async function main() {
  const { values } = parseArgs({ options: {
    program: { type: 'string' }, cluster: { type: 'string' }, 'redis-process': { type: 'string' }, only: { type: 'string' },
    nodes: { type: 'string', default: '6' },
  } });
  if (!values.program || !values.cluster || !values['redis-process']) {
    console.error('usage: node bars.mjs --program PROGRAM --cluster URL --redis-process PID');
    process.exit(2);
  }
  const figures = { writes, lock, join, reconnects };
  for (const name of values.only?.split(',') ?? Object.keys(figures)) {
    const prefix = `${name}-${Date.now().toString(36)}`;
    const count = name === 'reconnects' ? Number(values.nodes) : 3;
    const start = () => startNode(values.program, `${values.cluster}?prefix=${prefix}`, ['--history', 'h.>=100', '--limits-max-keyed-memory', '1g']);
    const nodes = await Promise.all(Array.from({ length: count }, start));
    try {
      console.log(name, JSON.stringify(await figures[name]({ nodes, start, redis: Number(values['redis-process']), cluster: values.cluster })));
    } finally {
      await Promise.all(nodes.map((node) => node.stop()));
    }
  }
}

async function writes({ nodes, redis }) {
  const sockets = await Promise.all(Array.from({ length: 12 }, (_, index) => Socket.open(nodes[index % 3].port)));
  const [count, width] = [100_000, 1_000];
  const write = (index) => sockets[index % 12].ask({ op: 'set', topic: `k.${index % 100}`, key: `key-${index % 5_000}`, data: { n: index } });
  await concurrently(5_000, width, write);
  const [before, begin] = [cpu(redis), performance.now()];
  await concurrently(count, width, async (index) => { const answer = await write(index); if (answer.op === 'error') throw new Error(JSON.stringify(answer)); });
  const elapsed = (performance.now() - begin) / 1_000;
  for (const socket of sockets) socket.close();
  const cost = (cpu(redis) - before) / count;
  return { 'writes a second': round(count / elapsed), 'CPU of Redis, µs': round(cost), 'writes a second of one core of Redis': round(1e6 / cost) };
}

async function lock({ nodes }) {
  const sockets = await Promise.all(nodes.map(({ port }) => Socket.open(port)));
  const end = performance.now() + 5_000;
  let [won, lost] = [0, 0];
  const first = await sockets[0].ask({ op: 'set', topic: 'k', key: 'hot', data: 0 });
  await Promise.all(sockets.map(async (socket) => {
    let version = first.seq;
    while (performance.now() < end) {
      const answer = await socket.ask({ op: 'set', topic: 'k', key: 'hot', data: 1, version });
      if (answer.op === 'ack') { won += 1; } else if (answer.code === 412) lost += 1; else throw new Error(JSON.stringify(answer));
      version = answer.seq ?? answer.version;
    }
  }));
  for (const socket of sockets) socket.close();
  return { 'changes a second': round(won / 5), 'rejected a second': round(lost / 5) };
}

async function join({ nodes, start }) {
  const writers = await Promise.all(nodes.map(({ port }) => Socket.open(port)));
  await concurrently(100_000, 500, async (index) => {
    const answer = await writers[index % 3].ask({ op: 'set', topic: `k.${index % 10}`, key: `key-${Math.floor(index / 10)}`, data: { n: index } });
    if (answer.op === 'error') throw new Error(JSON.stringify(answer));
  });
  const node = await start();
  const begin = performance.now();
  let keys = 0;
  await Promise.all(Array.from({ length: 10 }, (_, index) => new Promise((resolve, reject) => {
    Socket.open(node.port, (message) => {
      if (message.op !== 'keys') return;
      keys += message.set?.length ?? 0;
      if (message.more === false) resolve();
    }).then((socket) => socket.ask({ op: 'subscribe', topic: `k.${index}`, keys: true })).catch(reject);
  })));
  const elapsed = performance.now() - begin;
  await node.stop();
  for (const writer of writers) writer.close();
  return { keys, milliseconds: Math.round(elapsed) };
}

async function reconnects({ nodes, cluster }) {
  for (let topic = 0; topic < TOPICS; topic += 1) {
    for (let message = 0; message < 10; message += 1) await nodes[0].api('/api/v1/publish', { topic: `h.${topic}`, data: message });
  }
  const ports = nodes.map(({ port }) => port);
  const workers = ports.map(() => fork(fileURLToPath(import.meta.url)));
  const each = async (task) => (await Promise.all(workers.map(async (worker, index) => {
    worker.send({ ...task, ports, index, count: Math.ceil(CLIENTS / workers.length) });
    return (await once(worker, 'message'))[0];
  }))).reduce((sum, { exact, other }) => ({ exact: sum.exact + exact, other: sum.other + other }));
  await each({ offset: 0 });
  await pause(2_000);
  const calls = async () => {
    const all = await commandStatistics(cluster);
    return Object.fromEntries(Object.entries(all).map(([name, { calls: n }]) => [name, n]));
  };
  const before = await calls();
  const begin = performance.now();
  const { exact, other } = await each({ offset: 1 });
  const elapsed = (performance.now() - begin) / 1_000;
  const after = await calls();
  for (const worker of workers) worker.kill();
  const reads = (after.lrange ?? 0) - (before.lrange ?? 0);
  return { clients: exact + other, exact, seconds: round(elapsed), topics: TOPICS, nodes: nodes.length, reads,
    commands: Object.fromEntries(Object.entries(after).map(([name, n]) => [name, n - (before[name] ?? 0)]).filter(([, n]) => n > 0)) };
}

/** In a process of its own: connects its part of the clients; the second time, each resumes at another node. */
async function subscribers({ ports, index, count, offset }) {
  const result = { exact: 0, other: 0 };
  for (const client of held) client.socket.close();
  await pause(offset * 1_000);
  await concurrently(count, 50, async (number) => {
    const client = held[number] ?? (held[number] = { topic: `h.${number % TOPICS}` });
    for (client.socket = null; !client.socket;) {
      client.socket = await Socket.open(ports[(index + offset) % ports.length]).catch(() => pause(500));
    }
    const answer = await client.socket.ask({ op: 'subscribe', topic: client.topic, ...(client.position ? { from: client.position } : {}) });
    if (client.position && answer.complete === true && answer.replayed === 0) result.exact += 1; else result.other += 1;
    client.position = { epoch: answer.epoch, seq: answer.seq };
  });
  process.send(result);
}
