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
    const sockets = [];
    class Recorded extends WebSocket {
      constructor(...parts) {
        super(...parts);
        sockets.push(this);
      }
    }
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
});

/** The module as the server serves it. */
async function load(server) {
  const directory = await mkdtemp(join(tmpdir(), 'sinews-js-'));
  const file = join(directory, 'sinews.mjs');
  await writeFile(file, await (await fetch(`${server}/sinews.js`)).text());
  const module = await import(pathToFileURL(file));
  await rm(directory, { recursive: true });
  return module;
}
