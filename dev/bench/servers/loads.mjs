// The loads of measure.mjs. Each returns its figures by name, or null if the server has no equivalent. `CPU` is the CPU time of the
// server for one operation of a closed loop, in which the server is busy all the time. The figures of an open loop follow: the median
// and the 99th percentile of the time of an operation, and the CPU time, at a fixed rate. All times are in microseconds.

import { readFileSync, readdirSync } from 'node:fs';
import { Client, concurrently, post } from './client.mjs';

/** Time in which all members of a room have learned of a join, longer than the interval of the updates. */
export const UPDATES_MS = 3_000;

/** CPU time of processes in microseconds, by the scheduler: that of all their threads, none of which may end in between. */
export function cpu(pids) {
  const tasks = pids.flatMap((pid) => readdirSync(`/proc/${pid}/task`).map((task) => `/proc/${pid}/task/${task}/schedstat`));
  return tasks.reduce((sum, file) => sum + Number(readFileSync(file, 'utf8').split(' ')[0]) / 1_000, 0);
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

/**
 * Runs `operation(i)` at a fixed rate, `perSecond` times a second. Operations overlap if the server is late. A time begins when the
 * operation does: a late timer of the load is followed by more operations at once. The CPU time is that of one of the `parts` of an
 * operation.
 */
export async function paced(pids, perSecond, operation, parts = 1) {
  const [times, running] = [[], []];
  const before = cpu(pids);
  const begin = performance.now();
  for (let i = 0; i < perSecond * PACED_SECONDS; ) {
    for (const due = (performance.now() - begin) * perSecond / 1_000; i < due; i += 1) {
      const start = performance.now();
      running.push(operation(i).then(() => { times.push(performance.now() - start); }));
    }
    await pause(1);
  }
  await Promise.all(running);
  return atRate(perSecond, times, (cpu(pids) - before) / (times.length * parts));
}

/** The figures of an open loop. */
export function atRate(perSecond, times, cost) {
  times.sort((a, b) => a - b);
  const at = (share) => times[Math.floor(times.length * share)] * 1_000;
  return { [`p50 at ${perSecond}/s`]: at(0.5), [`p99 at ${perSecond}/s`]: at(0.99), [`CPU at ${perSecond}/s`]: cost };
}

const PACED_SECONDS = 4;

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
  byHttp = false, perSecond = 20,
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
  const deliveries = perPublication ? 1 : clients.length;
  const cost = (cpu(pids) - before) / (count * burst * deliveries);
  const timed = await timedFan(pids, clients, {
    perSecond, burst, deliveries, send: async (text) => {
      if (byHttp) await post(publishAt, server.publish(topic, text));
      else publisher.send(server.send(topic, text));
    },
  });
  await closeAll([...clients, publisher]);
  return { CPU: cost, ...timed };
}

/** The time between a publication and its deliveries, at a fixed rate of bursts. The load takes part in it: its process sends, and receives. */
async function timedFan(pids, clients, { perSecond, burst, deliveries, send, seconds = PACED_SECONDS }) {
  const times = [];
  for (const client of clients) timeDeliveries(client, times);
  const publishFor = async (duration) => {
    const begin = performance.now();
    let sent = 0;
    while (performance.now() - begin < duration * 1_000) {
      // A late timer is followed by more publications at once, each with its own time.
      for (const due = (performance.now() - begin) * perSecond / 1_000; sent < due; sent += 1) {
        const texts = Array.from({ length: burst }, () => `^${performance.now().toFixed(3).padStart(TIME_LENGTH, '0').padEnd(63, '~')}`);
        await Promise.all(texts.map(send));
      }
      await pause(1);
    }
    await pause(200);
    return sent * burst;
  };
  await publishFor(1);
  times.length = 0;
  const before = cpu(pids);
  const sent = await publishFor(seconds);
  const cost = (cpu(pids) - before) / (sent * deliveries);
  const missing = sent * clients.length - times.length;
  if (missing > sent * clients.length / 100) throw new Error(`${missing} of ${sent * clients.length} deliveries are missing`);
  return atRate(perSecond, times, cost);
}

/** Publications at a high rate to few subscribers: the open loop of `fanOut` alone. */
export async function latency(server, pids, { subscribers, topic = 'fan', perSecond = 1_000, nodes = [server], publishAt = server }) {
  const { clients, publisher } = await openFan(nodes, publishAt, subscribers, topic);
  const timed = await timedFan(pids, clients, {
    perSecond, burst: 1, deliveries: 1, send: async (text) => { publisher.send(server.send(topic, text)); },
  });
  await closeAll([...clients, publisher]);
  return timed;
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
  const opened = [];
  const timed = await paced(pids, 200, async (i) => { opened.push(...await openSubscribed(server, 1, `own.${count + i}`)); });
  await closeAll(opened);
  return { CPU: cost, ...timed };
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
  const timed = await paced(pids, 500, () => post(server, request));
  await closeAll([subscriber]);
  return { CPU: cost, ...timed };
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
  const timed = await paced(pids, 20, () => post(server, request), messages);
  await closeAll([subscriber]);
  return { CPU: cost, ...timed };
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
  const timed = await paced(pids, 50, () => post(server, request));
  await closeAll(clients);
  return { CPU: cost, ...timed };
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
  const resumes = new Map(clients.map((client) => [client, 0]));
  const resumeOnce = async (client) => {
    const n = resumes.get(client) + 1;
    resumes.set(client, n);
    const answer = await client.ask(server.resume(topic, position), '"id":8');
    // Centrifugo answers with the messages, Sinews sends them afterwards.
    if (!server.resumed) await client.delivered(n * 10);
    else if (server.resumed(answer) < 10) throw new Error(`${server.name} resumed with ${answer}`);
    await client.ask(server.unsubscribe(topic), '"id":9');
  };
  const cost = await costOf(pids, count, async () => {
    await Promise.all(clients.map(async (client) => { for (let n = 0; n < count / 50; n += 1) await resumeOnce(client); }));
  });
  // A connection has the next turn after a quarter of a second.
  const timed = await paced(pids, 200, (i) => resumeOnce(clients[i % clients.length]));
  await closeAll(clients);
  return { CPU: cost, ...timed };
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
  const timed = await paced(pids, 200, async (i) => { clients.push(await enter(server, count + i)); });
  await closeAll(clients);
  return { CPU: cost, ...timed };
}

/** A member that connects and joins a room of 2,000 members, who are all told, at a fixed rate. */
export async function join(server, pids, { present = 2_000, perSecond = 20 }) {
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
  const before = cpu(pids);
  let joined = 0;
  const timed = await paced(pids, perSecond, async (i) => { members.push(await arrive(present + i)); joined += 1; });
  await pause(UPDATES_MS);
  const cost = (cpu(pids) - before) / joined;
  await closeAll(members);
  return { ...timed, [`CPU at ${perSecond}/s`]: cost };
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
