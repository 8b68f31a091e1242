// Random input for this package and for ws: both must emit the same events and write the same bytes.

import assert from 'node:assert';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';

import { native, optional, sinews } from './helpers.mjs';

const ws = optional('ws');
const ROUNDS = 500;

/** A socket without a network. */
class FakeSocket extends EventEmitter {
  written = [];
  writableLength = 0;
  readableLength = 0;
  readableEnded = false;
  // Those of ws.
  _writableState = { length: 0 };
  _readableState = { endEmitted: false, length: 0 };

  write(chunk, callback) {
    this.written.push(Buffer.from(chunk));
    if (callback) process.nextTick(callback);
    return true;
  }
}
for (const name of ['cork', 'uncork', 'end', 'destroy', 'pause', 'resume', 'unshift', 'setTimeout', 'setNoDelay']) {
  FakeSocket.prototype[name] = () => {};
}

/** Random numbers that repeat. */
function random(seed) {
  let state = seed;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
}

function frame(pick, first, payload, isMasked = true) {
  const { length } = payload;
  const mask = isMasked ? [pick(256), pick(256), pick(256), pick(256)] : [];
  const flag = isMasked ? 0x80 : 0;
  const head = [first];
  if (length < 126) head.push(flag | length);
  else if (length < 65_536) head.push(flag | 126, length >> 8, length & 0xff);
  else head.push(flag | 127, 0, 0, 0, 0, 0, length >> 16, (length >> 8) & 0xff, length & 0xff);
  const masked = isMasked ? payload.map((byte, at) => byte ^ mask[at & 3]) : payload;
  return Buffer.concat([Buffer.from([...head, ...mask]), masked]);
}

function text(pick, length) {
  return Buffer.from(Array.from({ length }, () => 97 + pick(26)));
}

/** Frames as a peer in order sends them: messages in fragments, with control frames between. */
function validFrames(pick) {
  const frames = [];
  for (let left = 1 + pick(10); left > 0; left--) {
    const fragments = pick(4) === 0 ? 1 + pick(4) : 1;
    for (let at = 0; at < fragments; at++) {
      const opcode = at === 0 ? 1 + pick(2) : 0;
      const length = pick(20) === 0 ? pick(70_000) : pick(200);
      frames.push(frame(pick, opcode | (at === fragments - 1 ? 0x80 : 0), text(pick, length)));
      if (pick(5) === 0) frames.push(frame(pick, 0x89 + pick(2), text(pick, pick(126))));
    }
  }
  return frames;
}

/** Last frames: Closes, and single faults. */
function lastFrame(pick, code) {
  const ends = [
    () => Buffer.alloc(0),
    () => frame(pick, 0x88, Buffer.alloc(0)),
    () => frame(pick, 0x88, Buffer.concat([Buffer.from([code >> 8, code & 0xff]), text(pick, pick(124))])),
    () => frame(pick, 0x88, Buffer.from([0x03, 0xed])),
    () => frame(pick, 0x88, Buffer.from([3])),
    () => frame(pick, 0x88, Buffer.from([0x03, 0xe8, 0xff])),
    () => frame(pick, 0x83, text(pick, 3)),
    () => frame(pick, 0x8b, text(pick, 3)),
    () => frame(pick, 0x80, text(pick, 3)),
    () => frame(pick, 0xc1, text(pick, 3)),
    () => frame(pick, 0x09, text(pick, 3)),
    () => frame(pick, 0x89, text(pick, 126)),
    () => frame(pick, 0x81, text(pick, 3), false),
    () => frame(pick, 0x81, Buffer.from([0x61, 0xff])),
    () => frame(pick, 0x82, text(pick, 100_001))
  ];
  return ends[pick(ends.length)]();
}

async function run({ WebSocket }, chunks) {
  const events = [];
  const websocket = new WebSocket(null, undefined, { autoPong: true, closeTimeout: 1000 });
  const socket = new FakeSocket();
  websocket.setSocket(socket, Buffer.alloc(0), { maxPayload: 100_000, maxFragments: 50, allowSynchronousEvents: true });
  websocket.on('message', (data, isBinary) => {
    events.push(['message', isBinary, Buffer.from(data).toString()]);
    websocket.send(data, { binary: isBinary });
  });
  websocket.on('ping', (data) => events.push(['ping', data.toString()]));
  websocket.on('pong', (data) => events.push(['pong', data.toString()]));
  websocket.on('error', ({ code, constructor }) => events.push(['error', code, constructor.name]));
  websocket.on('close', (code, reason) => events.push(['close', code, reason.toString()]));
  for (const chunk of chunks) {
    socket.emit('data', Buffer.from(chunk));
    await null;
  }
  await new Promise(setImmediate);
  events.push(['state', websocket.readyState]);
  socket.emit('close');
  await new Promise(setImmediate);
  return { events, written: Buffer.concat(socket.written).toString('hex') };
}

test('random input has the same effects as with ws', { skip: !ws }, async () => {
  const pick = random(20_261_130);
  for (let round = 0; round < ROUNDS; round++) {
    const input = Buffer.concat([...validFrames(pick), lastFrame(pick, 1000)]);
    const chunks = [];
    for (let at = 0; at < input.length; ) {
      const length = 1 + pick(pick(3) === 0 ? input.length : 300);
      chunks.push(input.subarray(at, at + length));
      at += length;
    }
    const [expected, actual] = [await run(ws, chunks), await run(sinews, chunks)];
    for (const [at, event] of expected.events.entries()) {
      assert.deepStrictEqual(actual.events[at], event, `round ${round}, event ${at}`);
    }
    assert.strictEqual(actual.events.length, expected.events.length);
    assert.ok(actual.written === expected.written, `round ${round}: other bytes`);
  }
  assert.strictEqual(native.count(), 0);
});
