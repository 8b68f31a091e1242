'use strict';

const net = require('net');

const { LOOP_CANNOT_WAIT } = require('./constants');
const native = require('./native');

/*
 * Bytes of a plain socket pass libuv's stream: the engine receives and sends them itself, and readable sockets of all a server's
 * connections are one call. The stream stays in charge of all else. It reads again, for good, once it is paused or unreferenced, has other
 * readers, ends or fails.
 */

const READY = 256;
const ready = new Uint32Array(READY);
const readyBytes = Buffer.from(ready.buffer);
const kInbound = Symbol('inbound');
/** No descriptor. */
const NO_FD = -1;
/* How the socket of a connection is read. */
const [UNWATCHED, WATCHED, STREAM] = [0, 1, 2];

/** By the prototypes of handles: those with the methods below. */
const derived = new Map();
/** The connections whose sockets are watched, by their numbers. */
const watched = [];
let count = 0;
let poller = null;

/** Creates the thread's poller, in the asynchronous context of the caller: that of the handlers. */
function createPoller() {
  if (!LOOP_CANNOT_WAIT) poller ??= new native.Poller(tick);
}

function tick() {
  const found = poller.ready(readyBytes);
  // If a listener throws, the others are ready again.
  for (let at = 0; at < found; at++) {
    const number = ready[at];
    const hasFailed = number >= native.FAILED;
    watched[hasFailed ? number - native.FAILED : number]?.readSocket(hasFailed);
  }
}

function derive(prototype) {
  const own = {
    get bytesRead() {
      return Reflect.get(prototype, 'bytesRead', this) + native.receivedBytes(this[kInbound].id);
    },
    get bytesWritten() {
      return Reflect.get(prototype, 'bytesWritten', this) + native.sentBytes(this[kInbound].id);
    },
    unref() {
      unwatch(this[kInbound]);
      return prototype.unref.call(this);
    }
  };
  return Object.create(prototype, Object.getOwnPropertyDescriptors(own));
}

/** Prepares a plain socket for direct calls. Returns its descriptor, or NO_FD for another socket. */
function adopt(socket, inbound) {
  const { _handle: handle } = socket;
  if (LOOP_CANNOT_WAIT) return NO_FD;
  if (socket.constructor !== net.Socket || !(handle?.fd >= 0) || typeof handle.readStop !== 'function') return NO_FD;
  if (handle[kInbound] !== undefined) return NO_FD;
  const prototype = Object.getPrototypeOf(handle);
  if (!derived.has(prototype)) derived.set(prototype, derive(prototype));
  handle[kInbound] = inbound;
  Object.setPrototypeOf(handle, derived.get(prototype));
  return handle.fd;
}

/** Reads a server's socket directly from now on. */
function watch(inbound) {
  const { websocket, id } = inbound;
  const { _socket: socket } = websocket;
  const { _handle: handle } = socket;
  inbound.reading = STREAM;
  if (poller === null || !websocket._isServer || !inbound.isSynchronous) return;
  if (handle?.[kInbound] !== inbound || socket.destroyed || !handle.reading || !handle.hasRef()) return;
  if (!poller.watch(handle.fd, id)) return;
  handle.readStop();
  inbound.reading = WATCHED;
  watched[id] = inbound;
  if (++count === 1) poller.setRef(true);
}

/** Lets the stream read again. */
function unwatch(inbound) {
  if (inbound.reading !== WATCHED) return;
  const { _socket: socket } = inbound.websocket;
  forget(inbound);
  const { _handle: handle } = socket;
  if (socket.destroyed || handle === null) return;
  poller.unwatch(handle.fd);
  if (handle.reading) handle.readStart();
}

/** The socket is closed. */
function forget(inbound) {
  if (inbound.reading !== WATCHED) return;
  inbound.reading = STREAM;
  watched[inbound.id] = undefined;
  if (--count === 0) poller.setRef(false);
}

module.exports = { NO_FD, UNWATCHED, adopt, createPoller, forget, unwatch, watch };
