// The browser client /sinews.js in Node.js, with the class of the package `ws`: node sinews-js.mjs BASE LIMITED
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import WebSocket from 'ws';
import { checkAll, expect, octets } from './suite.mjs';

const [base] = process.argv.slice(2);
const url = `${base}/ws`;
const { connect, SinewsError } = await load(base.replace('ws:', 'http:'));

await checkAll({
  async 'without a WebSocket class the error names the option'() {
    const known = globalThis.WebSocket;
    globalThis.WebSocket = undefined;
    try {
      connect(url);
      throw new Error('connected');
    } catch (error) {
      expect(error instanceof SinewsError && error.code, 'no-websocket', 'the code');
      expect(error.message.includes('{ WebSocket }'), true, 'the option in the message');
    } finally {
      globalThis.WebSocket = known;
    }
  },
  async 'publish and subscribe'() {
    const client = connect(url, { WebSocket });
    const messages = [];
    let arrived;
    const both = new Promise((resolve) => { arrived = resolve; });
    const subscription = client.subscribe('sinews-js', ({ data }) => messages.push(data) === 2 && arrived());
    await subscription.ready;
    await client.publish('sinews-js', { text: 'hello' });
    await client.publish('sinews-js', octets(1000));
    await both;
    expect(messages[0].text, 'hello', 'the JSON');
    expect(messages[1], octets(1000), 'the bytes');
    client.close();
  },
  async 'reconnects and subscribes again'() {
    const [Recorded, sockets] = recorded();
    const client = connect(url, { WebSocket: Recorded, minDelay: 1 });
    const next = [];
    const message = () => new Promise((resolve) => next.push(resolve));
    await client.subscribe('sinews-js-again', ({ data }) => next.shift()(data)).ready;
    const opened = new Promise((resolve) => { client.onstatus = ({ status }) => status === 'open' && resolve(); });
    sockets[0].terminate();
    await opened;
    const first = message();
    await client.publish('sinews-js-again', 'after');
    expect(await first, 'after', 'the message');
    client.close();
  },
  async 'joins, joins again after a reconnect, and follows the members'() {
    const topic = 'sinews-js-members';
    const [Recorded, sockets] = recorded();
    // It connects again when the test says so: one update could contain both the leave and the return.
    const delay = 600_000;
    const [anna, ben] = [connect(url, { WebSocket }), connect(url, { WebSocket: Recorded, minDelay: delay, maxDelay: delay })];
    const [ofAnna, ofBen] = [follow(anna, topic), follow(ben, topic)];
    // More than one page: the members are listed in several requests.
    const crowd = Array.from({ length: 300 }, () => connect(url, { WebSocket }));
    await Promise.all(crowd.map((one, number) => one.join(topic, { id: `crowd ${number}` })));
    await Promise.all([anna.join(topic, { id: 'anna', info: { name: 'Anna' } }), ben.join(topic, { id: 'ben' })]);
    const isComplete = (members) => members.size === 302 && members.get('anna').name === 'Anna';
    // Each connection gets its updates at times of its own.
    await Promise.all([ofAnna(isComplete), ofBen(isComplete)]);

    const waits = new Promise((resolve) => { ben.onstatus = ({ status }) => status === 'waiting' && resolve(); });
    sockets[0].terminate();
    await Promise.all([waits, ofAnna((members) => !members.has('ben'))]);
    ben.retry();
    await ofAnna((members) => members.has('ben'));
    const listed = await anna.members(topic);
    expect(listed.length, 302, 'the number of members');
    expect(listed.slice(0, 3).map(({ id }) => id).join(), 'anna,ben,crowd 0', 'the first members');
    await anna.join(topic, { id: 'anna', info: 'renamed' });
    await ofBen((members) => members.size === 302 && members.get('anna') === 'renamed');
    await ben.leave(topic);
    await ofAnna((members) => members.size === 301 && !members.has('ben'));
    const rejection = await ben.join(topic, { id: '' }).catch((error) => error.code);
    expect(rejection, 422, 'the code');
    for (const client of [anna, ...crowd]) client.close();
    await ofBen((members) => members.size === 0);
    ben.close();
  },
});

/** A class of sockets, and the list of its sockets. */
function recorded() {
  const sockets = [];
  class Recorded extends WebSocket {
    constructor(...parts) {
      super(...parts);
      sockets.push(this);
    }
  }
  return [Recorded, sockets];
}

/** Subscribes to the members of a topic. Returns a function that waits until they fit. */
function follow(client, topic) {
  let current = new Map();
  let check = () => {};
  client.subscribe(topic, () => {}, { members: (members) => { current = members; check(); } });
  return (fits) => new Promise((resolve) => {
    check = () => fits(current) && resolve();
    check();
  });
}

/** The module as the server serves it. */
async function load(server) {
  const directory = await mkdtemp(join(tmpdir(), 'sinews-js-'));
  const file = join(directory, 'sinews.mjs');
  await writeFile(file, await (await fetch(`${server}/sinews.js`)).text());
  const module = await import(pathToFileURL(file));
  await rm(directory, { recursive: true });
  return module;
}
