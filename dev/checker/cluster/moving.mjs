// Clients that move between three nodes while topics with a history get publications. Each client checks that it gets each message
// once and in order, or that the node says which topic has a gap.
//
//   node moving.mjs --program PROGRAM --cluster URL [--clients 10000] [--topics 2000] [--rate 2000] [--moves 500] [--seconds 60] [--kill]
//
// `rate` is publications, `moves` changes of the node in a second. `--kill` kills a node with SIGKILL every 10 seconds and starts it again.
// A payload has the number that its topic's only publisher gave it, so that the check does not depend on positions.

import { parseArgs } from 'node:util';
import { startNode } from './nodes.mjs';
import { Socket, concurrently, pause } from './socket.mjs';

const { values } = parseArgs({ options: {
  program: { type: 'string' }, cluster: { type: 'string' }, clients: { type: 'string', default: '10000' }, topics: { type: 'string', default: '2000' },
  rate: { type: 'string', default: '2000' }, moves: { type: 'string', default: '500' }, seconds: { type: 'string', default: '60' }, kill: { type: 'boolean' },
} });
if (!values.program || !values.cluster) { console.error('usage: node moving.mjs --program PROGRAM --cluster URL'); process.exit(2); }
const [clientCount, topicCount, rate, moveRate, seconds] = [values.clients, values.topics, values.rate, values.moves, values.seconds].map(Number);

const run = Date.now().toString(36);
const settings = ['--history', 'h.>=1000'];
const counts = { published: 0, failed: 0, delivered: 0, moves: 0, replayed: 0, gaps: 0, resets: 0, closed: 0, lost: 0, repeated: 0, disordered: 0 };
const faults = [];
const nodes = await Promise.all([0, 1, 2].map(() => startNode(values.program, values.cluster, settings)));
/** Nodes that accept connections. */
const up = new Set([0, 1, 2]);

/** A client of one topic: the number of its last message, and the position that it resumes from. */
class Mover {
  last = null;
  position = null;
  /** Whether the client may miss messages: it has been told so. */
  mayMiss = true;
  socket = null;
  node = 0;
  busy = false;

  constructor(index) { this.topic = `h.${run}.${index % topicCount}`; }

  fault(kind, text) {
    counts[kind] += 1;
    if (faults.length < 20) faults.push(`${kind} at ${this.topic}: ${text}`);
  }

  receive(message) {
    if (message.op === 'reset') { counts.resets += 1; this.mayMiss = true; return; }
    if (message.op === 'dropped') { this.fault('lost', JSON.stringify(message)); return; }
    if (message.op !== 'message') return;
    counts.delivered += 1;
    this.position = { epoch: message.epoch, seq: message.seq };
    const number = message.data;
    if (this.last !== null && number <= this.last) {
      if (number === this.last) this.fault('repeated', `${number}`);
      else if (!this.mayMiss) this.fault('disordered', `${number} after ${this.last}`);
    } else if (this.last !== null && number !== this.last + 1 && !this.mayMiss) {
      this.fault('lost', `${number} after ${this.last}`);
    }
    this.last = number;
    this.mayMiss = false;
  }

  async attach(node) {
    this.node = node;
    const early = [];
    let isOpen = false;
    this.socket = await Socket.open(nodes[node].port, (message) => { if (isOpen) this.receive(message); else early.push(message); });
    this.socket.onclose = () => { counts.closed += 1; this.socket = null; };
    const answer = await this.socket.ask({ op: 'subscribe', topic: this.topic, ...(this.position ? { from: this.position } : {}) });
    if (answer.op === 'error') throw new Error(JSON.stringify(answer));
    if (this.position && answer.complete !== true) { counts.gaps += 1; this.mayMiss = true; }
    counts.replayed += answer.replayed ?? 0;
    // The position of the acknowledgement is that of the last replayed message.
    if (!this.position && !(answer.replayed > 0)) { this.position = { epoch: answer.epoch, seq: answer.seq }; }
    isOpen = true;
    for (const message of early) this.receive(message);
  }

  async move() {
    if (this.busy) return;
    this.busy = true;
    this.socket?.close();
    this.socket = null;
    for (;;) {
      const others = [...up].filter((node) => node !== this.node || !up.has(this.node));
      const node = others[Math.floor(Math.random() * others.length)];
      try { await this.attach(node); break; } catch { this.socket?.close(); this.socket = null; await pause(200); }
    }
    counts.moves += 1;
    this.busy = false;
  }
}

/** Publishes at a node, each topic by one publisher, which repeats a publication until it is acknowledged. */
class Publisher {
  numbers = new Map();
  waiting = new Set();

  constructor(index) { this.index = index; this.topics = []; for (let topic = index; topic < topicCount; topic += 3) this.topics.push(`h.${run}.${topic}`); }

  /** A topic whose last publication is acknowledged gets the next. */
  async publish() {
    const topic = this.topics[Math.floor(Math.random() * this.topics.length)];
    if (this.waiting.has(topic)) return;
    this.waiting.add(topic);
    const number = (this.numbers.get(topic) ?? 0) + 1;
    for (let attempt = 0; ; attempt += 1) {
      const live = [...up];
      const node = nodes[live[(this.index + attempt) % live.length]];
      const answer = await node.api('/api/v1/publish', { topic, data: number, idempotency_key: `${topic}-${number}` }).catch(() => ({ status: 0 }));
      if (answer.status === 200) break;
      counts.failed += 1;
      await pause(100);
    }
    this.numbers.set(topic, number);
    counts.published += 1;
    this.waiting.delete(topic);
  }
}

/** Calls `work` at a rate until `end`. */
async function atRate(perSecond, end, work) {
  const begin = performance.now();
  for (let done = 0; performance.now() < end;) {
    for (const due = (performance.now() - begin) * perSecond / 1_000; done < due; done += 1) work();
    await pause(5);
  }
}

async function killNodes(end) {
  for (let index = 0; performance.now() < end - 12_000; index = (index + 1) % 3) {
    await pause(10_000);
    up.delete(index);
    nodes[index].child.kill('SIGKILL');
    await pause(1_000);
    nodes[index] = await startNode(values.program, values.cluster, settings);
    up.add(index);
  }
}

const movers = Array.from({ length: clientCount }, (_, index) => new Mover(index));
const opened = performance.now();
await concurrently(clientCount, 100, (index) => movers[index].attach(index % 3));
console.log(`${clientCount} clients connected in ${((performance.now() - opened) / 1_000).toFixed(1)} s`);
const publishers = [0, 1, 2].map((index) => new Publisher(index));
const end = performance.now() + seconds * 1_000;
let turn = 0;
await Promise.all([
  atRate(rate, end, () => { turn += 1; void publishers[turn % 3].publish(); }),
  atRate(moveRate, end, () => { void movers[Math.floor(Math.random() * clientCount)].move(); }),
  // A client whose node died moves to another.
  atRate(2, end, () => { for (const mover of movers) if (!mover.socket && !mover.busy) void mover.move(); }),
  values.kill ? killNodes(end) : undefined,
]);
for (let wait = 0; wait < 300 && (publishers.some(({ waiting }) => waiting.size > 0) || movers.some(({ busy }) => busy)); wait += 1) await pause(100);
for (const mover of movers) if (!mover.socket && !mover.busy) await mover.move();
const last = (mover) => publishers[Number(mover.topic.split('.').at(-1)) % 3].numbers.get(mover.topic) ?? null;
const late = () => movers.filter((mover) => !mover.mayMiss && mover.last !== last(mover));
for (let wait = 0; wait < 300 && late().length > 0; wait += 1) await pause(100);
for (const mover of late()) mover.fault('lost', `the last message is ${mover.last}, published were ${last(mover)}`);
console.log(JSON.stringify(counts));
for (const fault of faults) console.log(fault);
for (const mover of movers) mover.socket?.close();
await Promise.all(nodes.map((node) => node.stop()));
process.exit(counts.lost + counts.repeated + counts.disordered > 0 ? 1 : 0);
