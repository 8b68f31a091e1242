// Measures `sinews serve` beside other real-time servers, in turns: CPU time of the server for each operation in a closed loop, and the
// time of an operation at a fixed rate.
//
//   npm install
//   node measure.mjs --sinews PROGRAM [--centrifugo PROGRAM] [--nats PROGRAM] [--socket-io] [--rounds 5] [--loads fan-out,connect,…]
//   node measure.mjs --sinews PROGRAM --centrifugo PROGRAM --cluster nats://127.0.0.1:4222 | redis://127.0.0.1:6379
//   node measure.mjs --sinews PROGRAM --pusher [--sockudo PROGRAM] [--soketi DIRECTORY] [--rounds 5]
//
// Servers have one thread, on processor 0; the load runs on processor 1. The machine must have nothing else to do. With
// `--cluster`, two or three nodes of each server are connected by the broker, which must run: the publisher is at one node, subscribers
// at the others. CPU time is that of all nodes, without the broker's.

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { parseArgs } from 'node:util';
import * as loads from './loads.mjs';
import * as members from './members.mjs';
import { sinewsPusher, sockudo, soketi } from './pusher-servers.mjs';
import { centrifugo, nats, sinews, socketIo } from './servers.mjs';

const { values: options } = parseArgs({ options: {
  sinews: { type: 'string' }, centrifugo: { type: 'string' }, nats: { type: 'string' }, 'socket-io': { type: 'boolean' },
  pusher: { type: 'boolean' }, sockudo: { type: 'string' }, soketi: { type: 'string' },
  rounds: { type: 'string', default: '5' }, loads: { type: 'string' }, cluster: { type: 'string' }, json: { type: 'boolean' },
} });
if (!options.sinews) { console.error('usage: node measure.mjs --sinews PROGRAM [--centrifugo PROGRAM] …'); process.exit(2); }
execFileSync('taskset', ['-a', '-p', '-c', '1', String(process.pid)], { stdio: 'ignore' });

const SINGLE = {
  'fan-out': ['delivery to 1,000 subscribers, one publication after another', (server, pids) => loads.fanOut(server, pids, { subscribers: 1_000 })],
  'fan-out-16': ['the same, bursts of 16', (server, pids) => loads.fanOut(server, pids, { subscribers: 1_000, burst: 16 })],
  connect: ['connect and subscribe', (server, pids) => loads.connect(server, pids, {})],
  publish: ['HTTP publish with one delivery, one request after another', (server, pids) => loads.publish(server, pids, { width: 1 })],
  'publish-16': ['the same over 16 connections', (server, pids) => loads.publish(server, pids, {})],
  batch: ['message of an HTTP batch of 100, one delivery', (server, pids) => loads.batch(server, pids, {})],
  broadcast: ['HTTP broadcast to 100 topics, one delivery each', (server, pids) => loads.broadcast(server, pids, {})],
  resume: ['resume with 10 missed messages', (server, pids) => loads.resume(server, pids, {})],
  join: ['connection and join among 2,000 members', (server, pids) => loads.join(server, pids, {})],
  'join-burst': ['the same', (server, pids) => loads.join(server, pids, { perSecond: 100 })],
  turns: ['join or leave of an open connection among 2,000 members', (server, pids) => members.turns(server, pids, {})],
  'turns-burst': ['the same', (server, pids) => members.turns(server, pids, { perSecond: 100 })],
  'turns-ping': ['a ping on these connections', (server, pids) => members.turns({ ...server, enter: null, ...server.pings }, pids, {})],
  'at-once-2500': ['2,500 subscribers of a room join at once', (server, pids) => members.joinAtOnce(server, pids, { members: 2_500 })],
  'at-once-5000': ['5,000 subscribers of a room join at once', (server, pids) => members.joinAtOnce(server, pids, {})],
  idle: ['memory of an idle member, bytes', (server, pids) => loads.idle(server, pids, {})],
};

/** Publications of the last node, and subscribers at the others. */
const acrossNodes = (more) => (server, pids, nodes) => loads.fanOut(server, pids, {
  nodes: nodes.slice(0, -1), publishAt: nodes.at(-1), perPublication: true, ...more,
});
const latencyOf = (topic) => (server, pids, nodes) => loads.latency(server, pids, {
  nodes: nodes.slice(0, -1), publishAt: nodes.at(-1), subscribers: 10, topic,
});
const latencyAcrossNodes = latencyOf('fan');
const CLUSTER = {
  'nodes-10': ['publication at one node, 10 subscribers at the other', acrossNodes({ subscribers: 10 })],
  'nodes-1000': ['publication at one node, 1,000 subscribers at the other', acrossNodes({ subscribers: 1_000 })],
  'three-nodes-10': ['publication at one of three nodes, 10 subscribers at each of the others', acrossNodes({ subscribers: 10 })],
  'three-nodes-1000': ['publication at one of three nodes, 1,000 subscribers at each of the others', acrossNodes({ subscribers: 1_000 })],
  'nodes-latency': ['1,000 publications a second at one node, 10 subscribers at the other', latencyAcrossNodes],
  'three-nodes-latency': ['1,000 publications a second at one of three nodes, 10 subscribers at each of the others', latencyAcrossNodes],
  'history-10': ['publication with a history, 10 subscribers at the other node', acrossNodes({ subscribers: 10, topic: 'kept.fan' })],
  'history-latency': ['1,000 publications a second with a history, 10 subscribers at the other node', latencyOf('kept.fan')],
  'durable-10': ['publication to a durable topic, 10 subscribers at the other node', acrossNodes({ subscribers: 10, topic: 'durable.fan' })],
};

const byHttp = (more) => (server, pids) => loads.fanOut(server, pids, { byHttp: true, ...more });
const PUSHER = {
  'fan-out-100': ['delivery to 100 subscribers of a channel', byHttp({ subscribers: 100 })],
  'fan-out-1000': ['delivery to 1,000 subscribers', byHttp({ subscribers: 1_000 })],
  'fan-out-10000': ['delivery to 10,000 subscribers', byHttp({ subscribers: 10_000, seconds: 5 })],
  'connect-member': ['connect, one private channel, one presence channel of five', (server, pids) => loads.connectMember(server, pids, {})],
  publish: ['event by HTTP, one delivery, over 16 connections', (server, pids) => loads.publish(server, pids, { count: 40_000 })],
  broadcast: ['event for 100 channels, one delivery each', (server, pids) => loads.broadcast(server, pids, {})],
  batch: ['message of an HTTP batch of 10, one delivery', (server, pids) => loads.batch(server, pids, { messages: 10, count: 8_000 })],
  idle: ['memory of an idle connection, one private and one presence channel, bytes', (server, pids) => loads.idle(server, pids, {})],
};

let port = 18_100;
/** A port that no program listens on, below the ports of outgoing connections. */
async function freePort() {
  for (;;) {
    const listener = createServer();
    try {
      listener.listen(port += 1, '127.0.0.1');
      await once(listener, 'listening');
      return port;
    } catch (error) {
      if (error.code !== 'EADDRINUSE') throw error;
    } finally {
      listener.close();
    }
  }
}

/** Servers of the Pusher protocol; and a topic of Sinews without it. */
async function pusherServers() {
  const list = [[sinewsPusher({ program: options.sinews, port: await freePort() })]];
  list.push([{ ...sinews({ program: options.sinews, port: await freePort() }), name: 'topic', join: null, batch: null }]);
  if (options.sockudo) list.push([sockudo({ program: options.sockudo, port: await freePort() })]);
  if (options.soketi) list.push([soketi({ directory: options.soketi, port: await freePort() })]);
  return list;
}

/** Each server as a list of nodes: subscribers connect to all but the last. */
async function servers(load) {
  const { cluster, centrifugo: other } = options;
  if (options.pusher) return pusherServers();
  if (cluster) {
    const isRedis = cluster.startsWith('redis:');
    const count = load.startsWith('three-') ? 3 : 2;
    const several = async (build, settings) => {
      const nodes = [];
      while (nodes.length < count) nodes.push(build({ port: await freePort(), ...settings }));
      return nodes;
    };
    const store = load.startsWith('durable-') ? { store: cluster } : {};
    const list = [await several(sinews, { program: options.sinews, broker: cluster, ...store })];
    if (other) list.push(await several(centrifugo, { program: other, ...(isRedis ? { engine: cluster } : { broker: cluster }) }));
    return list;
  }
  const list = [[sinews({ program: options.sinews, port: await freePort() })]];
  if (other) list.push([centrifugo({ program: other, port: await freePort() })]);
  if (options.nats) list.push([nats({ program: options.nats, ports: [await freePort(), await freePort(), await freePort()] })]);
  if (options['socket-io']) list.push([socketIo({ port: await freePort() })]);
  return list;
}

const median = (numbers) => [...numbers].sort((a, b) => a - b)[numbers.length >> 1];

const table = options.pusher ? PUSHER : options.cluster ? CLUSTER : SINGLE;
const names = options.loads?.split(',') ?? Object.keys(table).filter((name) => !/^(durable|history)-/.test(name) || options.cluster.startsWith('redis:'));
const figures = {};
for (let round = 0; round < Number(options.rounds); round += 1) {
  for (const name of names) {
    for (const nodes of await servers(name)) {
      const running = [];
      try {
        for (const node of nodes) running.push(await node.start());
        const value = await table[name][1](nodes[0], running.map(({ pid }) => pid), nodes);
        // One figure, or several with their names.
        const parts = typeof value === 'number' ? { '': value } : value ?? {};
        for (const [part, number] of Object.entries(parts)) {
          const title = [table[name][0], part].filter(Boolean).join(', ');
          ((figures[title] ??= {})[nodes[0].name] ??= []).push(number);
        }
      } catch (error) {
        console.error(`${name}, ${nodes[0].name}: ${error.stack}`);
      } finally {
        for (const server of running) await server.stop();
      }
    }
  }
}

// One row for each figure: the median of the rounds, the smallest and the largest value, and our median as a part of the other's.
for (const [title, row] of Object.entries(figures)) {
  const ours = median(row.sinews ?? [NaN]);
  const cells = Object.entries(row).map(([server, values]) => {
    const range = `${Math.min(...values).toFixed(2)}-${Math.max(...values).toFixed(2)}`;
    const ratio = server === 'sinews' ? '' : `, ratio ${(ours / median(values)).toFixed(2)}`;
    return `${server} ${median(values).toFixed(2)} (${range})${ratio}`;
  });
  console.log(`${title}: ${cells.join('; ')}`);
}
process.exit(0);
