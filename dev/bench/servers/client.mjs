// Connections of the load: WebSockets that wait for answers by a part of their text, and HTTP requests.

import { Agent, request as httpRequest } from 'node:http';
import { WebSocket } from 'ws';

const TIMEOUT_MS = 20_000;

/** One connection to a server of servers.mjs. */
export class Client {
  deliveries = 0;
  /** The first message of a server that needs no login. */
  welcome = null;
  #waits = [];

  constructor(server) {
    this.server = server;
    this.socket = new WebSocket(server.socket, { perMessageDeflate: false, skipUTF8Validation: true });
    this.socket.on('message', (data) => { this.#receive(data.toString()); });
    this.socket.on('error', (error) => { this.#fail(error); });
    this.socket.on('close', (code) => { this.#fail(new Error(`${server.name} closed the connection with ${code}`)); });
  }

  /** Connects and logs in. */
  static async open(server) {
    const client = new Client(server);
    const welcome = server.login ? null : client.answer(server.loggedIn);
    await new Promise((resolve, reject) => {
      client.socket.once('open', resolve);
      client.socket.once('error', reject);
    });
    if (server.login) await client.ask(server.login, server.loggedIn);
    else client.welcome = await welcome;
    return client;
  }

  send(text) { this.socket.send(this.server.binary ? Buffer.from(text) : text); }

  /** The message that contains `part`. */
  answer(part) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => { reject(new Error(`${this.server.name}: no message with ${part}`)); }, TIMEOUT_MS);
      this.#waits.push({ part, resolve: (text) => { clearTimeout(timer); resolve(text); }, reject });
    });
  }

  ask(text, part) {
    const answer = this.answer(part);
    this.send(text);
    return answer;
  }

  /** Resolves once this connection has received so many deliveries. */
  delivered(count) {
    if (this.deliveries >= count) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => { reject(new Error(`${this.server.name}: ${this.deliveries} of ${count} deliveries`)); }, TIMEOUT_MS);
      this.#waits.push({ count, resolve: () => { clearTimeout(timer); resolve(); }, reject });
    });
  }

  async close() {
    this.#waits = [];
    this.socket.removeAllListeners('close');
    this.socket.terminate();
  }

  #receive(text) {
    const { delivery, ping } = this.server;
    if (ping && text === ping[0]) { this.send(ping[1]); return; }
    for (let at = text.indexOf(delivery); at >= 0; at = text.indexOf(delivery, at + delivery.length)) this.deliveries += 1;
    if (this.#waits.length === 0) return;
    this.#waits = this.#waits.filter((wait) => {
      const done = wait.part === undefined ? this.deliveries >= wait.count : text.includes(wait.part);
      if (done) wait.resolve(text);
      return !done;
    });
  }

  #fail(error) {
    for (const wait of this.#waits) wait.reject(error);
    this.#waits = [];
  }
}

/** Runs `task(i)` for each i below `count`, `width` at a time; resolves with the results. */
export async function concurrently(count, width, task) {
  const results = new Array(count);
  let next = 0;
  const run = async () => { while (next < count) { const i = next; next += 1; results[i] = await task(i); } };
  await Promise.all(Array.from({ length: Math.min(width, count) }, run));
  return results;
}

const agent = new Agent({ keepAlive: true, maxSockets: 16 });

/** Sends a POST; the status must be 200. */
export function post(server, { path, body, headers }) {
  const [host, port] = server.http.split(':');
  return new Promise((resolve, reject) => {
    const request = httpRequest({ agent, host, port, path, method: 'POST', headers: {
      'content-type': 'application/json', 'content-length': Buffer.byteLength(body), ...headers } }, (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (part) => { text += part; });
      response.on('end', () => {
        if (response.statusCode === 200 && !text.includes('"error"')) resolve(text);
        else reject(new Error(`${server.name}: POST ${path}: ${response.statusCode} ${text.slice(0, 300)}`));
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}
