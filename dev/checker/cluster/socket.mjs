// A WebSocket client for tens of thousands of connections in one process: text messages, no extensions, no reconnection.

import { connect } from 'node:net';

/** Addresses of the loopback interface that connections begin from: each has about 28,000 ports. */
const SOURCES = 8;
const TIMEOUT_MS = 60_000;

let next = 0;

/** One connection to `/ws` of a node. `onmessage` gets each message that answers no request. */
export class Socket {
  onmessage = () => {};
  onclose = () => {};
  #rest = Buffer.alloc(0);
  #upgraded = false;
  #answers = new Map();
  #id = 0;

  /** Connects. Resolves when the node has sent `welcome`. */
  static open(port, onmessage) {
    const socket = new Socket();
    if (onmessage) socket.onmessage = onmessage;
    return socket.#connect(port).then(() => socket);
  }

  #connect(port) {
    return new Promise((resolve, reject) => {
      this.#answers.set('welcome', { resolve, reject });
      next += 1;
      this.tcp = connect({ port, host: '127.0.0.1', localAddress: `127.0.0.${2 + (next % SOURCES)}`, noDelay: true });
      this.tcp.on('connect', () => {
        this.tcp.write(`GET /ws HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n`
          + 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n');
      });
      this.tcp.on('data', (chunk) => { this.#receive(chunk); });
      this.tcp.on('error', (error) => { this.#end(error); });
      this.tcp.on('close', () => { this.#end(new Error(`port ${port}: the connection is closed`)); });
    });
  }

  #end(error) {
    for (const { reject } of this.#answers.values()) reject(error);
    this.#answers.clear();
    this.onclose();
    this.onclose = () => {};
  }

  #receive(chunk) {
    let data = this.#rest.length > 0 ? Buffer.concat([this.#rest, chunk]) : chunk;
    if (!this.#upgraded) {
      const end = data.indexOf('\r\n\r\n');
      if (end < 0) { this.#rest = data; return; }
      this.#upgraded = true;
      data = data.subarray(end + 4);
    }
    for (;;) {
      const head = frameHead(data);
      if (!head || data.length < head.start + head.length) break;
      const payload = data.subarray(head.start, head.start + head.length);
      data = data.subarray(head.start + head.length);
      if (head.opcode === 1) this.#message(JSON.parse(payload.toString()));
      else if (head.opcode === 9) this.#write(10, payload);
      else if (head.opcode === 8) this.tcp.end();
    }
    this.#rest = data.length > 0 ? Buffer.from(data) : data;
  }

  #message(message) {
    const key = message.op === 'welcome' ? 'welcome' : message.id;
    const waiting = key === undefined ? undefined : this.#answers.get(key);
    if (!waiting) { this.onmessage(message); return; }
    this.#answers.delete(key);
    waiting.resolve(message);
  }

  /** Writes a frame with a mask of zeros, which leaves the payload as it is. */
  #write(opcode, payload) {
    const length = payload.length;
    const extended = length < 126 ? 0 : length < 65_536 ? 2 : 8;
    const head = Buffer.alloc(2 + extended + 4);
    head[0] = 0x80 | opcode;
    head[1] = 0x80 | (extended === 0 ? length : extended === 2 ? 126 : 127);
    if (extended === 2) head.writeUInt16BE(length, 2);
    if (extended === 8) head.writeBigUInt64BE(BigInt(length), 2);
    this.tcp.write(Buffer.concat([head, payload]));
  }

  send(message) { this.#write(1, Buffer.from(JSON.stringify(message))); }

  /** Sends a request, and resolves with its answer. */
  ask(message) {
    this.#id += 1;
    const id = this.#id;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => { reject(new Error(`no answer to ${JSON.stringify(message)}`)); }, TIMEOUT_MS);
      this.#answers.set(id, {
        resolve: (answer) => { clearTimeout(timer); resolve(answer); },
        reject: (error) => { clearTimeout(timer); reject(error); },
      });
      this.send({ ...message, id });
    });
  }

  close() { this.onclose = () => {}; this.tcp.destroy(); }
}

/** The head of the first frame in `data` (RFC 6455, section 5.2), or null if it is incomplete. Servers do not mask. */
function frameHead(data) {
  if (data.length < 2) return null;
  const opcode = data[0] & 0x0f;
  const short = data[1] & 0x7f;
  if (short < 126) return { opcode, start: 2, length: short };
  if (short === 126) return data.length < 4 ? null : { opcode, start: 4, length: data.readUInt16BE(2) };
  return data.length < 10 ? null : { opcode, start: 10, length: Number(data.readBigUInt64BE(2)) };
}

/** Runs `work(i)` for each number below `count`, `width` at a time. */
export async function concurrently(count, width, work) {
  let index = 0;
  await Promise.all(Array.from({ length: width }, async () => {
    while (index < count) {
      const i = index;
      index += 1;
      await work(i);
    }
  }));
}

export const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
