// The loads of measure.mjs. Each returns the CPU time of the server in microseconds for one operation; `n/a` is a load that a
// server has no equivalent of.

import { readFileSync } from 'node:fs';
import { Client, concurrently, post } from './client.mjs';

const TICK_US = 10_000;

/** Time in which all members of a room have learned of a join, longer than the interval of the updates. */
export const UPDATES_MS = 3_000;

/** CPU time of processes in microseconds, with all their threads. */
export function cpu(pids) {
  return pids.reduce((sum, pid) => {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
    return sum + (Number(fields[11]) + Number(fields[12])) * TICK_US;
  }, 0);
}

/** Written private memory of a process in bytes. Clean pages are those of the program's file: the kernel frees them and reads them again. */
function memory(pid) {
  const [, kib] = /^Private_Dirty: +(\d+) kB/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'));
  return Number(kib) * 1024;
}

/** CPU time for each of `count` operations of `work`. */
async function costOf(pids, count, work) {
  const before = cpu(pids);
  await work();
  return (cpu(pids) - before) / count;
}

export const closeAll = (clients) => Promise.all(clients.map((client) => client.close()));
export const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

async function openSubscribed(server, count, topic) {
  return concurrently(count, 50, async (i) => {
    const client = await Client.open(server);
    const name = typeof topic === 'function' ? topic(i) : topic;
    await client.ask(server.subscribe(name, 2), server.subscribed);
    return client;
  });
}

/** Subscribers of a topic at each of some nodes, and a publisher at one. */
async function openFan(nodes, publishAt, subscribers, topic) {
  const clients = (await Promise.all(nodes.map((node) => openSubscribed(node, subscribers, topic)))).flat();
  // A subscription reaches the other nodes a moment after its acknowledgement.
  if (!nodes.includes(publishAt)) await pause(1_000);
  return { clients, publisher: await Client.open(publishAt) };
}

/**
 * A delivery of messages of 64 bytes to the subscribers of a topic. A publisher sends a burst of messages; the next burst follows when all
 * subscribers have received the last one. Or it publishes one after another by HTTP.
 */
export async function fanOut(server, pids, {
  subscribers, topic = 'fan', burst = 1, seconds = 3, nodes = [server], publishAt = server, perPublication = false,
  byHttp = false,
}) {
  const { clients, publisher } = await openFan(nodes, publishAt, subscribers, topic);
  const payload = '^'.repeat(64);
  const counter = countPayloads(clients, payload);
  const messages = byHttp ? [server.publish(topic, payload)] : Array.from({ length: burst }, () => server.send(topic, payload));
  const turn = async () => {
    const all = counter.next(clients.length * burst);
    for (const message of messages) {
      if (byHttp) await post(publishAt, message);
      else publisher.send(message);
    }
    await all;
  };
  for (let i = 0; i < 20; i += 1) await turn();
  const before = cpu(pids);
  let count = 0;
  for (const end = Date.now() + seconds * 1_000; Date.now() < end; count += 1) await turn();
  const cost = (cpu(pids) - before) / (count * burst * (perPublication ? 1 : clients.length));
  await closeAll([...clients, publisher]);
  return cost;
}

/**
 * The time between a publication and its deliveries, at a rate of publications of 64 bytes, and the CPU time for each of them. The
 * load takes part in it: its process sends, and receives all deliveries.
 */
export async function latency(server, pids, { subscribers, topic = 'fan', perSecond = 1_000, seconds = 5, nodes = [server], publishAt = server }) {
  const { clients, publisher } = await openFan(nodes, publishAt, subscribers, topic);
  const times = [];
  for (const client of clients) timeDeliveries(client, times);
  const sendFor = async (duration) => {
    const begin = performance.now();
    let sent = 0;
    await new Promise((resolve) => {
      // A late timer is followed by more publications at once, each with its own time.
      const timer = setInterval(() => {
        for (const due = (performance.now() - begin) * perSecond / 1_000; sent < due; sent += 1) {
          publisher.send(server.send(topic, `^${performance.now().toFixed(3).padStart(TIME_LENGTH, '0').padEnd(63, '~')}`));
        }
        if (performance.now() - begin >= duration * 1_000) { clearInterval(timer); resolve(); }
      }, 1);
    });
    await pause(200);
    return sent;
  };
  await sendFor(2);
  times.length = 0;
  const before = cpu(pids);
  const sent = await sendFor(seconds);
  const cost = (cpu(pids) - before) / sent;
  const missing = sent * clients.length - times.length;
  if (missing > sent / 100) throw new Error(`${missing} of ${sent * clients.length} deliveries are missing`);
  times.sort((a, b) => a - b);
  const at = (share) => times[Math.floor(times.length * share)] * 1_000;
  await closeAll([...clients, publisher]);
  return { p50: at(0.5), p99: at(0.99), CPU: cost };
}

/** Digits of a time in a payload. */
const TIME_LENGTH = 16;

/** Collects the times of the deliveries to a client, without reading frames. A time that two chunks share is left out. */
function timeDeliveries(client, times) {
  const { _socket: socket } = client.socket;
  socket.removeAllListeners('data');
  socket.on('data', (chunk) => {
    const now = performance.now();
    for (let at = chunk.indexOf(0x5e); at >= 0; at = chunk.indexOf(0x5e, at + 1)) {
      if (at + TIME_LENGTH < chunk.length) times.push(now - Number(chunk.latin1Slice(at + 1, at + 1 + TIME_LENGTH)));
    }
  });
  socket.resume();
}

/** Counts the payloads that arrive at all clients, without reading frames: the load must not be slower than the server. */
function countPayloads(clients, payload) {
  let missing = 0;
  let done = () => {};
  let timer;
  // A byte that no frame head has: the payload is text, and lengths of these messages are other numbers.
  const mark = payload.charCodeAt(0);
  for (const client of clients) {
    // The length of the part of a payload that the last chunk ended with.
    let length = 0;
    const { _socket: socket } = client.socket;
    socket.removeAllListeners('data');
    socket.on('data', (chunk) => {
      let at = 0;
      while (at < chunk.length) {
        if (length === 0) {
          at = chunk.indexOf(mark, at);
          if (at < 0) return;
        }
        const taken = Math.min(payload.length - length, chunk.length - at);
        length += taken;
        at += taken;
        if (length === payload.length) {
          length = 0;
          missing -= 1;
          if (missing === 0) { clearTimeout(timer); done(); }
        }
      }
    });
    socket.resume();
  }
  return {
    next: (count) => new Promise((resolve, reject) => {
      missing = count;
      done = resolve;
      timer = setTimeout(() => { reject(new Error(`${missing} of ${count} deliveries are missing`)); }, 20_000);
    }),
  };
}

/** A connection, and its subscription to a topic of its own. */
export async function connect(server, pids, { count = 6_000 }) {
  let clients;
  const cost = await costOf(pids, count, async () => { clients = await openSubscribed(server, count, (i) => `own.${i}`); });
  await closeAll(clients);
  return cost;
}

/** A publication by HTTP to a topic with one subscriber, over `width` connections. */
export async function publish(server, pids, { count = 8_000, width = 16 }) {
  if (!server.publish) return null;
  const [subscriber] = await openSubscribed(server, 1, 'news');
  const request = server.publish('news', { text: 'x'.repeat(64) });
  await concurrently(100, 16, () => post(server, request));
  const cost = await costOf(pids, count, async () => {
    await concurrently(count, width, () => post(server, request));
    await subscriber.delivered(count + 100);
  });
  await closeAll([subscriber]);
  return cost;
}

/** A message of a batch, for a topic with one subscriber. */
export async function batch(server, pids, { count = 400, messages = 100 }) {
  if (!server.batch) return null;
  const [subscriber] = await openSubscribed(server, 1, 'news');
  const request = server.batch('news', { text: 'x'.repeat(64) }, messages);
  const cost = await costOf(pids, count * messages, async () => {
    await concurrently(count, 4, () => post(server, request));
    await subscriber.delivered(count * messages);
  });
  await closeAll([subscriber]);
  return cost;
}

/** A request that publishes one message to 100 topics, each with one subscriber. */
export async function broadcast(server, pids, { count = 1_000 }) {
  if (!server.broadcast) return null;
  const clients = await openSubscribed(server, 100, (i) => `each.${i}`);
  const request = server.broadcast(Array.from({ length: 100 }, (_, i) => `each.${i}`), { text: 'x'.repeat(64) });
  const cost = await costOf(pids, count, async () => {
    await concurrently(count, 4, () => post(server, request));
    await Promise.all(clients.map((client) => client.delivered(count)));
  });
  await closeAll(clients);
  return cost;
}

/** A subscription that continues behind a position and receives ten missed messages, and its end. */
export async function resume(server, pids, { count = 4_000 }) {
  if (!server.resume) return null;
  const topic = 'kept.room';
  const client = await Client.open(server);
  await post(server, server.publish(topic, { text: 'first' }));
  const position = server.position(await client.ask(server.retained(topic), server.subscribed));
  client.send(server.unsubscribe(topic));
  for (let i = 0; i < 10; i += 1) await post(server, server.publish(topic, { text: 'x'.repeat(64) }));
  await client.close();
  const clients = await concurrently(50, 50, () => Client.open(server));
  const cost = await costOf(pids, count, async () => {
    await Promise.all(clients.map(async (client) => {
      for (let n = 1; n <= count / 50; n += 1) {
        const answer = await client.ask(server.resume(topic, position), '"id":8');
        // Centrifugo answers with the messages, Sinews sends them afterwards.
        if (!server.resumed) await client.delivered(n * 10);
        else if (server.resumed(answer) < 10) throw new Error(`${server.name} resumed with ${answer}`);
        await client.ask(server.unsubscribe(topic), '"id":9');
      }
    }));
  });
  await closeAll(clients);
  return cost;
}

/** Connects and joins, as a member of a room of five: those of a document. */
async function enter(server, i) {
  const client = await Client.open(server);
  const answer = client.answer(server.joined);
  for (const message of server.join(`room.${Math.floor(i / 5)}`, `member-${i}`, client)) client.send(message);
  await answer;
  return client;
}

/** A connection that becomes a member of a room of five. */
export async function connectMember(server, pids, { count = 4_000 }) {
  if (!server.join) return null;
  let clients;
  const cost = await costOf(pids, count, async () => { clients = await concurrently(count, 50, (i) => enter(server, i)); });
  await closeAll(clients);
  return cost;
}

/** A member that connects and joins a room of 2,000 members, who are all told; `perSecond` joins start in a second. */
export async function join(server, pids, { present = 2_000, count = 400, perSecond = 100 }) {
  if (!server.join) return null;
  const arrive = async (i) => {
    const client = await Client.open(server);
    const answer = client.answer(server.joined);
    for (const message of server.join('room.a', `member-${i}`, client)) client.send(message);
    await answer;
    return client;
  };
  const members = await concurrently(present, 50, arrive);
  // Members learn of the last joins within some seconds, here and below.
  await pause(UPDATES_MS);
  let joined;
  const cost = await costOf(pids, count, async () => {
    joined = await concurrently(count, count, async (i) => { await pause(i * 1_000 / perSecond); return arrive(present + i); });
    await pause(UPDATES_MS);
  });
  await closeAll([...members, ...joined]);
  return cost;
}

/** Written private memory of an idle subscribed connection in a room with presence, in bytes. */
export async function idle(server, [pid], { count = 5_000 }) {
  if (!server.join) return null;
  const first = await concurrently(200, 50, (i) => enter(server, i));
  await pause(5_000);
  const before = memory(pid);
  const members = await concurrently(count, 50, (i) => enter(server, i + 200));
  await pause(5_000);
  const cost = (memory(pid) - before) / count;
  await closeAll([...first, ...members]);
  return cost;
}
