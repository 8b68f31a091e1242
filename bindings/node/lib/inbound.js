'use strict';

const process = require('process');

const { EMPTY_BUFFER, FastBuffer } = require('./constants');
const { toBinaryType } = require('./data');
const { NO_FD, UNWATCHED, forget, unwatch, watch } = require('./handle');
const { INPUT_BYTES, copyInput } = require('./input');
const native = require('./native');

/** Numbers for each event: kind, 1 if the payload was copied, start, length. */
const WORDS = 4;
const EVENTS = 512;
/* The native part's flags; the number of events is above. */
const CLOSED = 1;
const WAITS = 2;
const COPIED = 4;
const TOO_MANY = 8;
const ENDED = 16;
const COUNT_SHIFT = 8;
const { BINARY, PING, TEXT } = native;

/** The thread's events, which the native part writes. Behind them is the number of bytes that a socket has received. */
const events = new Uint32Array(EVENTS * WORDS + 1);
const RECEIVED = EVENTS * WORDS;
/** Events that are being delivered from there. */
let delivering = 0;

/** A burst's events that have not been delivered yet. */
class Burst {
  constructor(numbers, chunk, copied, at, count, state) {
    this.numbers = numbers;
    this.chunk = chunk;
    this.copied = copied;
    this.at = at;
    this.count = count;
    this.state = state;
  }
}

/** The receiving side of a connection: delivers a burst's events. */
class Inbound {
  constructor(id, websocket, isSynchronous) {
    this.id = id;
    this.websocket = websocket;
    /** All events of a burst are delivered in the same tick. */
    this.isSynchronous = isSynchronous;
    /** Bursts that are being delivered later, in order. */
    this.bursts = null;
    this.onDrained = null;
    this.reading = UNWATCHED;
  }

  /** Receives a chunk. */
  receive(chunk) {
    if (this.bursts !== null) {
      this.bursts.push(chunk);
      this.websocket._socket.pause();
      return;
    }
    this.#receive(chunk, 0, NO_FD);
  }

  /** Receives the shared input's first bytes. */
  receiveInput(length) {
    if (this.bursts !== null) return this.receive(copyInput(length));
    this.#receive(null, length, NO_FD);
    if (this.reading === UNWATCHED) watch(this);
  }

  /** Receives from the socket, which is readable or has failed. */
  readSocket(hasFailed) {
    const { _socket: socket } = this.websocket;
    if (socket.destroyed) return;
    const isPlain = socket.readableFlowing && socket.readableLength === 0 && socket.listenerCount('data') === 1;
    if (hasFailed || !isPlain || this.bursts !== null) return unwatch(this);
    if (socket.timeout) socket._unrefTimer();
    this.#receive(null, 0, socket._handle.fd);
  }

  #receive(chunk, length, fd) {
    // A listener may receive another chunk: a burst within the burst.
    const outer = delivering;
    const saved = outer === 0 ? null : events.slice(0, outer * WORDS);
    const state = this.#parse(chunk, length, fd);
    if (state === ENDED) return unwatch(this);
    // Payloads are views of the chunk, so it must be their own. A single payload is copied alone.
    if (chunk === null && state >>> COUNT_SHIFT > 1) chunk = copyInput(fd === NO_FD ? length : events[RECEIVED]);
    if (saved === null) return this.#deliver(chunk, state);
    try {
      this.#deliver(chunk, state);
    } finally {
      events.set(saved);
      delivering = outer;
    }
  }

  #parse(chunk, length, fd) {
    if (fd !== NO_FD) return native.receiveSocket(this.id, fd);
    return chunk === null ? native.receiveShared(this.id, length) : native.receive(this.id, chunk);
  }

  #deliver(chunk, state) {
    const { websocket } = this;
    const outbound = websocket._outbound;
    const copied = (state & COPIED) === 0 ? EMPTY_BUFFER : native.takeBytes();
    const count = state >>> COUNT_SHIFT;
    const isLong = (state & TOO_MANY) !== 0;
    const numbers = isLong ? takeEvents(count) : events;
    let at = 0;
    // The burst's answers are written at its end.
    const isFirst = !outbound.isScheduled;
    outbound.isScheduled = true;
    if (!isLong) delivering = count;
    if (chunk === null && !this.isSynchronous) chunk = copyInput(INPUT_BYTES);
    try {
      if (this.isSynchronous) {
        while (at < count) this.#emit(numbers, at++, chunk, copied);
      }
    } finally {
      delivering = 0;
      if (isFirst) outbound.isScheduled = false;
      if (at < count || (state & WAITS) !== 0) {
        this.#postpone(new Burst(numbers.slice(0, count * WORDS), chunk, copied, at, count, state));
      } else if ((state & CLOSED) !== 0) {
        websocket._conclude(native.takeClosed(this.id));
      }
      if (isFirst) outbound.flush();
    }
  }

  #emit(numbers, index, chunk, copied) {
    const at = index * WORDS;
    const kind = numbers[at];
    const length = numbers[at + 3];
    let data = EMPTY_BUFFER;
    if (length !== 0) {
      const source = numbers[at + 1] === 0 ? chunk : copied;
      if (source === null) data = copyInput(length, numbers[at + 2]);
      else data = new FastBuffer(source.buffer, source.byteOffset + numbers[at + 2], length);
    }
    const { websocket } = this;
    if (kind === TEXT) {
      websocket.emit('message', data, false);
    } else if (kind === BINARY) {
      const { _binaryType: type } = websocket;
      websocket.emit('message', type === 'nodebuffer' ? data : toBinaryType(data, type), true);
    } else if (kind === PING) {
      if (websocket._autoPong) websocket.pong(data, !websocket._isServer);
      websocket.emit('ping', data);
    } else {
      websocket.emit('pong', data);
    }
  }

  /** Delivers a burst's rest later: an event for each turn of the event loop, or all after a listener has thrown. */
  #postpone(burst) {
    this.bursts = [burst];
    if (this.isSynchronous) process.nextTick(() => this.#deliverPostponed());
    else setImmediate(() => this.#deliverPostponed());
  }

  #deliverPostponed() {
    const [burst] = this.bursts;
    if (burst instanceof Burst) {
      if (burst.at < burst.count) {
        const index = burst.at++;
        try {
          this.#emit(burst.numbers, index, burst.chunk, burst.copied);
        } finally {
          this.#continue();
        }
        return;
      }
      if ((burst.state & WAITS) !== 0) {
        this.bursts[0] = this.#burst(EMPTY_BUFFER, native.resume(this.id));
        return this.#continue();
      }
      this.bursts.shift();
      if ((burst.state & CLOSED) !== 0) this.websocket._conclude(native.takeClosed(this.id));
    } else {
      this.bursts[0] = this.#burst(burst, native.receive(this.id, burst));
    }
    this.#continue();
  }

  #burst(chunk, state) {
    const copied = (state & COPIED) === 0 ? EMPTY_BUFFER : native.takeBytes();
    const count = state >>> COUNT_SHIFT;
    return new Burst(takeEvents(count), chunk, copied, 0, count, state);
  }

  #continue() {
    const [burst] = this.bursts;
    if (burst === undefined) {
      this.bursts = null;
      const { websocket, onDrained } = this;
      if (!websocket.isPaused) websocket._socket.resume();
      if (onDrained !== null) onDrained();
      return;
    }
    const isEvent = burst instanceof Burst && burst.at < burst.count;
    if (isEvent && !this.isSynchronous) setImmediate(() => this.#deliverPostponed());
    else process.nextTick(() => this.#deliverPostponed());
  }

  /** Calls a function once all events are delivered. */
  end(onDrained) {
    forget(this);
    if (this.bursts === null) onDrained();
    else this.onDrained = onDrained;
  }
}

/** Returns the latest burst's events in memory of its own. */
function takeEvents(count) {
  const numbers = new Uint32Array(count * WORDS);
  native.takeEvents(Buffer.from(numbers.buffer));
  return numbers;
}

module.exports = { Inbound, events };
