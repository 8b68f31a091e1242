// The EventSource of undici, a client of its own, against the server: node undici-events.mjs BASE LIMITED
import { EventSource } from 'undici';
import { checkAll, expect } from './suite.mjs';

const [base] = process.argv.slice(2);
const url = base.replace('ws:', 'http:');

/** Opens a streaming response that has subscribed; `next()` is the next event: its type, data and id. */
async function open(path) {
  const source = new EventSource(url + path);
  const events = [];
  const waiting = [];
  const take = ({ type, data, lastEventId }) => {
    const event = { type, data, id: lastEventId };
    if (waiting.length > 0) waiting.shift()(event);
    else events.push(event);
  };
  for (const type of ['subscribed', 'message', 'binary', 'close']) source.addEventListener(type, take);
  const next = async () => events.shift() ?? new Promise((resolve) => waiting.push(resolve));
  const { data } = await next();
  return { source, next, ack: JSON.parse(data) };
}

async function publish(topic, body, type = 'text/plain') {
  const answer = await fetch(`${url}/topics/${topic}`, { method: 'POST', body, headers: { 'Content-Type': type } });
  expect(answer.status, 200, 'the status');
}

await checkAll({
  async 'payloads are events'() {
    const { source, next, ack } = await open('/topics/undici-events');
    expect(ack.topic, 'undici-events', 'the topic');
    for (const text of ['hello', '', ' spaces ', 'two\nlines', '\n\nevent: close\n\n', 'x'.repeat(200_000), 'ü€😀']) {
      await publish('undici-events', text);
      const { type, data } = await next();
      expect(type, 'message', 'the type');
      expect(data, text, 'the text');
    }
    await publish('undici-events', new Uint8Array([0, 255, 10]), 'application/octet-stream');
    const { type, data } = await next();
    expect(type, 'binary', 'the type');
    expect(data, 'AP8K', 'the bytes');
    source.close();
  },
  async 'many events arrive, each once'() {
    const { source, next } = await open('/topics/undici-many');
    // The requests take several connections, whose publications have no common order.
    for (let number = 0; number < 500; number += 1) await publish('undici-many', `${number}`);
    const numbers = new Set();
    for (let number = 0; number < 500; number += 1) numbers.add((await next()).data);
    expect(numbers.size, 500, 'the count');
    source.close();
  },
  async 'several topics in one stream'() {
    const { source, next } = await open('/topics?topic=undici-a&topic=undici-b.*');
    expect(JSON.parse((await next()).data).topic, 'undici-b.*', 'the second topic');
    await publish('undici-b.x', 'b');
    const message = JSON.parse((await next()).data);
    expect(message.topic, 'undici-b.x', 'the topic');
    expect(message.data, 'b', 'the data');
    source.close();
  },
  async 'a rejection ends the EventSource'() {
    const source = new EventSource(`${url}/topics/a..b`);
    await new Promise((resolve) => { source.onerror = resolve; });
    expect(source.readyState, EventSource.CLOSED, 'the state');
  },
});
process.exit();
