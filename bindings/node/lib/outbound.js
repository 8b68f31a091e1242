'use strict';

const { Buffer } = require('buffer');
const net = require('net');
const process = require('process');

const { EMPTY_BUFFER, FastBuffer } = require('./constants');
const { NO_FD } = require('./handle');
const { events } = require('./inbound');
const { input } = require('./input');
const native = require('./native');

/** Bytes of collected payloads. Also the queued bytes after which a connection writes within a burst. */
const COLLECTED_BYTES = 64 * 1024;
/** Collected messages. */
const COLLECTED_MESSAGES = 1024;
/** Numbers for each message: kind and flags, first byte, length. */
const WORDS = 3;
/** The native part's flags beside a message's kind. */
const MORE = 16;
const PLAIN = 32;

/*
 * Messages to send are collected here, for one connection at a time, and enter the native part in one call: at the end of a
 * burst or tick, or when another connection sends.
 */
const payloads = Buffer.allocUnsafeSlow(COLLECTED_BYTES);
const words = new Uint32Array(COLLECTED_MESSAGES * WORDS);
native.share(Buffer.from(events.buffer), payloads, Buffer.from(words.buffer), input);
let owner = null;
let used = 0;
let count = 0;

/* Memory for frames. A socket that has passed them to the kernel at once frees it. */
const SLAB_BYTES = 64 * 1024;
let slab = Buffer.allocUnsafeSlow(SLAB_BYTES);
let position = 0;
/** The latest view. */
let view = EMPTY_BUFFER;
native.shareSlab(slab);

const { write } = net.Socket.prototype;

/** The number of a connection that is freed. */
const NONE = -1;

/** Connections to flush at the end of the tick. */
let scheduled = [];

function flushScheduled() {
  const flushed = scheduled;
  scheduled = [];
  for (const outbound of flushed) {
    outbound.isScheduled = false;
    outbound.flush();
  }
}

/** Passes the collected messages to the native part. */
function passCollected() {
  const { id } = owner;
  const messages = count;
  owner = null;
  used = 0;
  count = 0;
  if (messages > 0 && id !== NONE) native.queue(id, messages);
}

/** Returns frames in the slab. Answers have often the same length, and then the same view. */
function viewSlab(length) {
  if (view.length !== length || view.byteOffset !== position || view.buffer !== slab.buffer) {
    view = new FastBuffer(slab.buffer, position, length);
  }
  return view;
}

let isExitHandled = false;

/** Frames that wait for the tick's end are not lost if the process exits before. */
function flushAtExit() {
  if (isExitHandled) return;
  isExitHandled = true;
  process.on('exit', flushScheduled);
}

/** The sending side of a connection: collects messages and writes them once for each burst or tick. */
class Outbound {
  constructor(id, socket, fd, websocket, maxBuffered) {
    /** The connection's number in the native part. */
    this.id = id;
    /** The socket's descriptor, if it is plain. */
    this.fd = fd;
    this.socket = socket;
    this.websocket = websocket;
    this.maxBuffered = maxBuffered;
    /** Payload bytes since the last write. */
    this.queued = 0;
    /** Something was queued since the last write. */
    this.isDirty = false;
    /** A flush is due without further calls: at the end of the burst or tick. */
    this.isScheduled = false;
    this.callbacks = null;
    // Such a socket either passes a chunk to the kernel at once, or counts it in writableLength.
    this.isReusing = socket.constructor === net.Socket;
    flushAtExit();
  }

  /** Queues a message or control frame. */
  send(how, data, callback) {
    if (owner !== this) {
      if (owner !== null) passCollected();
      owner = this;
    }
    const free = COLLECTED_BYTES - used;
    let length;
    if (typeof data === 'string') {
      if (data.length * 3 > free) return this.#sendLarge(how, Buffer.from(data), callback);
      length = payloads.utf8Write(data, used);
    } else {
      length = data.length;
      if (length > free) return this.#sendLarge(how, data, callback);
      payloads.set(data, used);
    }
    const at = count * WORDS;
    words[at] = how;
    words[at + 1] = used;
    words[at + 2] = length;
    used += length;
    if (++count === COLLECTED_MESSAGES) passCollected();
    this.#queue(length, callback);
  }

  #sendLarge(how, data, callback) {
    passCollected();
    native.send(this.id, how, data);
    this.#queue(data.length, callback);
  }

  #queue(length, callback) {
    this.queued += length;
    if (callback !== undefined) (this.callbacks ??= []).push(callback);
    if (this.queued >= COLLECTED_BYTES) {
      this.isDirty = true;
      this.flush();
    } else if (!this.isDirty) {
      this.schedule();
    }
  }

  /** Queues the Close behind the messages. The callback runs after its write. */
  close(code, reason, callback) {
    if (owner === this) passCollected();
    native.close(this.id, code, reason);
    (this.callbacks ??= []).push(callback);
    this.schedule();
  }

  /** Requests a flush at the end of the burst or tick. */
  schedule() {
    this.isDirty = true;
    if (this.isScheduled) return;
    this.isScheduled = true;
    if (scheduled.push(this) === 1) process.nextTick(flushScheduled);
  }

  /** Writes all that is queued. */
  flush() {
    if (!this.isDirty) return;
    this.isDirty = false;
    this.queued = 0;
    let messages = 0;
    if (owner === this) {
      messages = count;
      owner = null;
      used = 0;
      count = 0;
    }
    const fd = this.#direct();
    const length = this.id === NONE ? 0 : native.flush(this.id, messages, position, fd);
    if (length < 0) return this.#writeLarge(-length);
    if (length === 0 && fd !== NO_FD) return this.#complete();
    this.#write(length === 0 ? EMPTY_BUFFER : viewSlab(length));
    if (!this.isReusing || this.socket.writableLength !== 0) position += length;
  }

  /** Returns the descriptor if nothing waits in the stream, and its method is its own. */
  #direct() {
    const { socket, fd } = this;
    if (fd === NO_FD || socket.destroyed || socket.write !== write) return NO_FD;
    if (socket.writableLength !== 0 || socket.writableCorked !== 0 || socket.writableEnded) return NO_FD;
    if (socket.timeout) socket._unrefTimer();
    return fd;
  }

  /** The socket has accepted all bytes. */
  #complete() {
    const { callbacks } = this;
    if (callbacks === null) return;
    this.callbacks = null;
    for (const callback of callbacks) process.nextTick(callback);
  }

  /** Writes frames that do not fit into the slab's rest. */
  #writeLarge(length) {
    if (length <= SLAB_BYTES / 2) {
      slab = Buffer.allocUnsafeSlow(SLAB_BYTES);
      native.shareSlab(slab);
      position = length;
      native.flush(this.id, 0, 0, NO_FD);
      this.#write(new FastBuffer(slab.buffer, 0, length));
    } else {
      const chunk = Buffer.allocUnsafeSlow(length);
      native.write(this.id, chunk);
      this.#write(chunk);
    }
  }

  #write(chunk) {
    const { socket } = this;
    if (this.callbacks !== null) this.#writeWithCallbacks(chunk);
    else if (chunk.length > 0) socket.write(chunk);
    if (socket.writableLength > this.maxBuffered) this.#overflow();
  }

  #writeWithCallbacks(chunk) {
    const { callbacks } = this;
    this.callbacks = null;
    if (callbacks.length === 1) {
      this.socket.write(chunk, callbacks[0]);
    } else {
      this.socket.write(chunk, (error) => {
        for (const callback of callbacks) process.nextTick(callback, error);
      });
    }
  }

  /** Frees the connection in the native part. Callbacks that wait get the socket's error. */
  free() {
    if (owner === this) passCollected();
    this.flush();
    if (this.id !== NONE) native.free(this.id);
    this.id = NONE;
  }

  /** The peer does not read what the program sends without regard to `bufferedAmount`. */
  #overflow() {
    const buffered = this.socket.writableLength;
    const message = `bufferedAmount ${buffered} exceeds the "maxBufferedAmount" option (${this.maxBuffered})`;
    const error = new RangeError(message);
    error.code = 'WS_ERR_TOO_MUCH_BUFFERED';
    this.socket.destroy();
    process.nextTick(() => this.websocket._emitError(error));
  }
}

module.exports = { MORE, Outbound, PLAIN };
