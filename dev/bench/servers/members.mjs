// The loads of measure.mjs in which members of a large room come and go on connections that are open already.

import { Client, concurrently } from './client.mjs';
import { atRate, closeAll, cpu, pause, UPDATES_MS } from './loads.mjs';

const ROOM = 'room.a';

/** Begins the id of a member; no other byte of a message has this value. */
const MARK = '^';
const memberId = (i) => `${MARK}member-${String(i).padStart(5, '0')}`;

/** Longest wait for a complete list of members. */
const COMPLETE_MS = 60_000;

/** As `sinews.js`: after an update without changes, clients list the members at random times, so many ms for each subscriber. */
const [LIST_DELAY_MS, LIST_DELAY_MAX_MS] = [5, 30_000];

/** Receives without reading frames: the load must not be slower than the server. */
function discard(client) {
  const { _socket: socket } = client.socket;
  socket.removeAllListeners('data');
  socket.on('data', () => {});
  socket.resume();
}

/**
 * Joins and leaves in a room of members, who are all told: connections that are open, and subscribed where the server has
 * joins apart from subscriptions, join one after another, then leave one after another, and so on. The CPU time is for one
 * join or leave, while `perSecond` start in a second.
 */
export async function turns(server, pids, { present = 2_000, movers = 400, perSecond = 20, seconds = 10 }) {
  if (!server.enter) return null;
  const members = await concurrently(present, 50, async (i) => {
    const client = await Client.open(server);
    const answer = client.answer(server.joined);
    for (const message of server.join(ROOM, memberId(i))) client.send(message);
    await answer;
    discard(client);
    return client;
  });
  const moving = await concurrently(movers, 50, async () => {
    const client = await Client.open(server);
    if (server.watches) await client.ask(server.subscribe(ROOM, 2), server.subscribed);
    return client;
  });
  await pause(UPDATES_MS);
  const last = new Array(movers).fill(Promise.resolve());
  const times = [];
  const begin = performance.now();
  let before = null;
  // The first updates are not of the rate.
  const [from, until] = [UPDATES_MS, UPDATES_MS + seconds * 1_000];
  for (let k = 0; ; k += 1) {
    const late = performance.now() - begin - k * 1_000 / perSecond;
    if (late < 0) await pause(-late);
    await last[k % movers];
    const now = performance.now() - begin;
    if (before === null && now >= from) {
      before = cpu(pids);
      times.length = 0;
    }
    if (now >= until) break;
    const [client, joins] = [moving[k % movers], Math.floor(k / movers) % 2 === 0];
    const asked = joins ? client.ask(server.enter(ROOM, memberId(present + k % movers)), server.joined)
      : client.ask(server.leave(ROOM), server.left);
    const start = performance.now();
    last[k % movers] = asked.then(() => { times.push(performance.now() - start); });
  }
  const figures = atRate(perSecond, times.slice(), (cpu(pids) - before) / times.length);
  await Promise.all(last);
  await closeAll([...members, ...moving]);
  return figures;
}

/** Counts the members that a client knows; lists them again after an update without changes. */
function follow(client, count, done) {
  let [known, listing] = [0, false];
  const mark = MARK.charCodeAt(0);
  client.socket.removeAllListeners('message');
  client.socket.on('message', (data) => {
    const head = data.latin1Slice(0, Math.min(256, data.length));
    const isPage = head.includes('"op":"members"');
    if (!isPage && listing) return;
    if (head.includes('"complete":false')) {
      listing = true;
      setTimeout(() => {
        known = 0;
        client.send(`{"op":"members","id":7,"topic":"${ROOM}"}`);
      }, Math.random() * Math.min(LIST_DELAY_MAX_MS, count * LIST_DELAY_MS));
      return;
    }
    let at = data.indexOf(mark);
    let end = at;
    for (; at >= 0; at = data.indexOf(mark, at + 1)) [known, end] = [known + 1, at];
    if (isPage && data.includes('"more":true')) {
      client.send(`{"op":"members","id":7,"topic":"${ROOM}","after":"${data.latin1Slice(end, data.indexOf(0x22, end))}"}`);
    } else if (isPage) listing = false;
    if (known >= count && !listing) done();
  });
}

/**
 * Joins of all subscribers of a room at once: each has to know all. The time is until the last one does, and takes part of the
 * load's.
 */
export async function joinAtOnce(server, pids, { members = 5_000 }) {
  if (!server.watches) return null;
  const clients = await concurrently(members, 50, async () => {
    const client = await Client.open(server);
    for (const message of server.watch(ROOM)) await client.ask(message, server.subscribed);
    return client;
  });
  await pause(2 * UPDATES_MS);
  const complete = new Array(members).fill(0);
  const [before, begin] = [cpu(pids), performance.now()];
  const all = Promise.all(clients.map((client, i) => new Promise((resolve, reject) => {
    const timer = setTimeout(() => { reject(new Error(`a member has no complete list within ${COMPLETE_MS} ms`)); }, COMPLETE_MS);
    follow(client, members, () => { clearTimeout(timer); complete[i] = performance.now() - begin; resolve(); });
    client.socket.on('close', (code) => { reject(new Error(`${server.name} closed the connection with ${code}`)); });
    client.send(server.enter(ROOM, memberId(i)));
  })));
  await all;
  const cost = (cpu(pids) - before) / members;
  complete.sort((a, b) => a - b);
  for (const client of clients) client.socket.removeAllListeners('close');
  await closeAll(clients);
  return { 'CPU of a join': cost, 'ms until half of the members know all': complete[members >> 1], 'ms until all do': complete.at(-1) };
}
