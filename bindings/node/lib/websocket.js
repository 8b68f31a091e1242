'use strict';

const EventEmitter = require('events');

const { BlobQueue } = require('./blobs');
const { abortHandshake, connect } = require('./client');
const {
  BINARY_TYPES,
  CLOSE_TIMEOUT,
  EMPTY_BUFFER,
  MAX_BUFFERED,
  NOOP,
  kWebSocket
} = require('./constants');
const { byteLength, isBlob, isValidCloseCode, toBuffer } = require('./data');
const deflate = require('./deflate');
const { EventTargetMethods, defineAttributes } = require('./events');
const { faultError } = require('./faults');
const { adopt, unwatch } = require('./handle');
const { Inbound } = require('./inbound');
const { attachInput, copyInput } = require('./input');
const native = require('./native');
const { MORE, Outbound, PLAIN } = require('./outbound');

const STATES = ['CONNECTING', 'OPEN', 'CLOSING', 'CLOSED'];
const [CONNECTING, OPEN, CLOSING, CLOSED] = STATES.keys();
const { BINARY, PING, PONG, TEXT } = native;
const CONTROL_MAX = 125;
const REASON_MAX = 123;
const ABORTED = 'WebSocket was closed before the connection was established';

/** A connection: a client's, or one that a server has accepted. */
class WebSocket extends EventEmitter {
  constructor(address, protocols, options) {
    super();
    this._binaryType = 'nodebuffer';
    this._closeCode = 1006;
    this._closeFrameReceived = false;
    this._closeFrameSent = false;
    this._closeMessage = EMPTY_BUFFER;
    this._closeTimer = null;
    this._errorEmitted = false;
    this._extensions = null;
    /** The peer is at fault: no more input. */
    this._failed = false;
    this._paused = false;
    this._protocol = '';
    this._readyState = CONNECTING;
    this._socket = null;
    this._inbound = null;
    this._outbound = null;
    this._blobs = null;
    /** Payload bytes that were sent too late. */
    this._unsent = 0;

    if (address === null) {
      this._autoPong = options.autoPong;
      this._closeTimeout = options.closeTimeout;
      this._isServer = true;
      return;
    }
    this._isServer = false;
    this._redirects = 0;
    this._req = null;
    if (protocols === undefined) {
      protocols = [];
    } else if (!Array.isArray(protocols)) {
      if (typeof protocols === 'object' && protocols !== null) {
        options = protocols;
        protocols = [];
      } else {
        protocols = [protocols];
      }
    }
    connect(this, address, protocols, options);
  }

  get binaryType() {
    return this._binaryType;
  }

  set binaryType(type) {
    if (BINARY_TYPES.includes(type)) this._binaryType = type;
  }

  get bufferedAmount() {
    let bytes = this._unsent;
    if (this._socket !== null) bytes += this._socket.writableLength + this._outbound.queued;
    if (this._blobs !== null) bytes += this._blobs.bytes;
    return bytes;
  }

  get extensions() {
    return this._extensions === null ? '' : deflate.NAME;
  }

  get isPaused() {
    return this._paused;
  }

  get protocol() {
    return this._protocol;
  }

  get readyState() {
    return this._readyState;
  }

  get url() {
    return this._url;
  }

  /** Starts messages on a socket whose handshake is complete. `head` is what the socket has received behind it. */
  setSocket(socket, head, options) {
    const limits = {
      maxPayload: Math.max(0, options.maxPayload | 0),
      maxFragments: Math.max(0, options.maxFragments | 0)
    };
    const id = native.open(this._isServer, limits, this._extensions?.native);
    this._socket = socket;
    this._inbound = new Inbound(id, this, options.allowSynchronousEvents !== false);
    const fd = adopt(socket, this._inbound);
    this._outbound = new Outbound(id, socket, fd, this, options.maxBufferedAmount ?? MAX_BUFFERED);
    socket[kWebSocket] = this;
    // A Duplex may lack these.
    if (socket.setTimeout) socket.setTimeout(0);
    if (socket.setNoDelay) socket.setNoDelay();
    if (head.length > 0) socket.unshift(head);
    socket.on('close', socketOnClose);
    socket.on('data', socketOnData);
    socket.on('end', socketOnEnd);
    socket.on('error', socketOnError);
    attachInput(socket, socketOnInput);
    this._readyState = OPEN;
    this.emit('open');
  }

  /** Emits `close`. */
  emitClose() {
    this._readyState = CLOSED;
    this.emit('close', this._closeCode, this._closeMessage);
  }

  close(code, reason) {
    if (this._readyState === CLOSED) return;
    if (this._readyState === CONNECTING) {
      abortHandshake(this, this._req, ABORTED);
    } else if (this._readyState === CLOSING) {
      this._endIfClosed();
    } else {
      const text = checkClose(code, reason);
      this._readyState = CLOSING;
      const run = () => {
        this._outbound.close(code, text, (error) => {
          // The socket's listener reports it.
          if (error) return;
          this._closeFrameSent = true;
          this._endIfClosed();
        });
      };
      if (this._blobs === null) run();
      else this._blobs.push({ run, size: 0 });
      setCloseTimer(this);
    }
  }

  /** Ends the socket once both Closes are exchanged, or the peer is at fault. */
  _endIfClosed() {
    if (this._closeFrameSent && (this._closeFrameReceived || this._failed)) this._socket.end();
  }

  pause() {
    if (this._readyState === CONNECTING || this._readyState === CLOSED) return;
    this._paused = true;
    this._socket.pause();
  }

  resume() {
    if (this._readyState === CONNECTING || this._readyState === CLOSED) return;
    this._paused = false;
    if (this._inbound.bursts === null) this._socket.resume();
  }

  ping(data, mask, callback) {
    this._control(PING, data, mask, callback);
  }

  pong(data, mask, callback) {
    this._control(PONG, data, mask, callback);
  }

  _control(kind, data, mask, callback) {
    if (this._readyState === CONNECTING) throw notOpen(this);
    if (typeof data === 'function') {
      callback = data;
      data = undefined;
    } else if (typeof mask === 'function') {
      callback = mask;
    }
    if (typeof data === 'number') data = data.toString();
    if (this._readyState !== OPEN) return this._sendLate(data, callback);
    data ||= EMPTY_BUFFER;
    if (byteLength(data) > CONTROL_MAX) {
      throw new RangeError('The data size must not be greater than 125 bytes');
    }
    this._enqueue(kind, data, callback);
  }

  send(data, options, callback) {
    if (this._readyState === CONNECTING) throw notOpen(this);
    if (typeof options === 'function') {
      callback = options;
      options = undefined;
    }
    if (typeof data === 'number') data = data.toString();
    if (this._readyState !== OPEN) return this._sendLate(data, callback);
    let how = typeof data === 'string' ? TEXT : BINARY;
    if (options !== undefined && options !== null) {
      if ('binary' in options) how = options.binary ? BINARY : TEXT;
      if ('compress' in options && !options.compress) how |= PLAIN;
      if ('fin' in options && !options.fin) how |= MORE;
    }
    this._enqueue(how, data || EMPTY_BUFFER, callback);
  }

  _enqueue(how, data, callback) {
    if (typeof callback !== 'function') callback = undefined;
    if (typeof data !== 'string') {
      if (isBlob(data)) {
        this._blobs ??= new BlobQueue(this);
        const run = (read) => this._outbound.send(how, read, callback);
        this._blobs.push({ blob: data, size: data.size, run, callback });
        return;
      }
      data = toBuffer(data);
    }
    if (this._blobs === null) return this._outbound.send(how, data, callback);
    const run = () => this._outbound.send(how, data, callback);
    this._blobs.push({ size: byteLength(data), run, callback });
  }

  /** Handles a send after the connection has begun to close. */
  _sendLate(data, callback) {
    if (data) this._unsent += byteLength(data);
    if (typeof callback === 'function') process.nextTick(callback, notOpen(this));
  }

  terminate() {
    if (this._readyState === CLOSED) return;
    if (this._readyState === CONNECTING) {
      abortHandshake(this, this._req, ABORTED);
    } else if (this._socket !== null) {
      this._readyState = CLOSING;
      this._outbound.flush();
      this._socket.destroy();
    }
  }

  /** Handles the end of input: the peer's Close, or its fault. */
  _conclude(closed) {
    const socket = this._socket;
    const isAttached = socket[kWebSocket] !== undefined;
    unwatch(this._inbound);
    if (isAttached) {
      socket.removeListener('data', socketOnData);
      // Input behind it is discarded, until the socket ends.
      process.nextTick(() => socket.resume());
    }
    if (closed.fault) {
      this._failed = true;
      if (isAttached) this.close(closed.code);
      this._emitError(faultError(closed, this._extensions !== null));
      return;
    }
    const { code, reason } = closed;
    this._closeFrameReceived = true;
    this._closeCode = code;
    this._closeMessage = reason === '' ? EMPTY_BUFFER : Buffer.from(reason);
    if (!isAttached) return;
    if (code === 1005) this.close();
    else this.close(code, reason);
  }

  /** Emits `error`, once. */
  _emitError(error) {
    if (this._errorEmitted) return;
    this._errorEmitted = true;
    this.emit('error', error);
  }

  /** Ends the connection after data could not be sent. */
  _failSending(error) {
    if (this._readyState === CLOSED) return;
    if (this._readyState === OPEN) {
      this._readyState = CLOSING;
      setCloseTimer(this);
    }
    this._outbound.flush();
    this._socket.end();
    this._emitError(error);
  }
}

for (const [state, name] of STATES.entries()) {
  const constant = { enumerable: true, value: state };
  Object.defineProperty(WebSocket, name, constant);
  Object.defineProperty(WebSocket.prototype, name, constant);
}
for (const name of ['binaryType', 'bufferedAmount', 'extensions', 'isPaused', 'protocol', 'readyState', 'url']) {
  Object.defineProperty(WebSocket.prototype, name, { enumerable: true });
}
Object.assign(WebSocket.prototype, EventTargetMethods);
defineAttributes(WebSocket.prototype);

function notOpen({ readyState }) {
  return new Error(`WebSocket is not open: readyState ${readyState} (${STATES[readyState]})`);
}

/** Checks the arguments for a Close. Returns the reason as text. */
function checkClose(code, reason) {
  if (code === undefined) return '';
  if (typeof code !== 'number' || !isValidCloseCode(code)) {
    throw new TypeError('First argument must be a valid error code number');
  }
  if (reason === undefined || !reason.length) return '';
  if (typeof reason !== 'string' && !(reason instanceof Uint8Array)) {
    throw new TypeError('Second argument must be a string or a Uint8Array');
  }
  if (Buffer.byteLength(reason) > REASON_MAX) {
    throw new RangeError('The message must not be greater than 123 bytes');
  }
  return typeof reason === 'string' ? reason : Buffer.from(reason).toString();
}

/** Destroys the socket unless the peer finishes the closing handshake in time. */
function setCloseTimer(websocket) {
  const { _socket: socket, _closeTimeout: timeout } = websocket;
  websocket._closeTimer = setTimeout(() => socket.destroy(), timeout ?? CLOSE_TIMEOUT);
  websocket._closeTimer.unref();
}

function socketOnData(chunk) {
  this[kWebSocket]._inbound.receive(chunk);
}

/** Handles bytes in the shared input: the socket's way around a stream's buffers. */
function socketOnInput(length) {
  const websocket = this[kWebSocket];
  // Others read as well, or earlier bytes wait.
  if (websocket === undefined || this.listenerCount('data') !== 1 || this.readableLength !== 0 || !this.readableFlowing) {
    return this.push(copyInput(length));
  }
  websocket._inbound.receiveInput(length);
  return true;
}

function socketOnEnd() {
  const websocket = this[kWebSocket];
  websocket._readyState = CLOSING;
  websocket._outbound.flush();
  this.end();
}

function socketOnError() {
  const websocket = this[kWebSocket];
  this.removeListener('error', socketOnError);
  this.on('error', NOOP);
  if (websocket === undefined) return;
  websocket._readyState = CLOSING;
  this.destroy();
}

function socketOnClose() {
  const websocket = this[kWebSocket];
  this.removeListener('close', socketOnClose);
  this.removeListener('data', socketOnData);
  this.removeListener('end', socketOnEnd);
  websocket._readyState = CLOSING;
  // A paused socket may have received more.
  const isReadable = !this.readableEnded && !websocket._closeFrameReceived && !websocket._failed;
  const rest = isReadable && this.readableLength > 0 ? this.read() : null;
  if (rest !== null) websocket._inbound.receive(rest);
  this[kWebSocket] = undefined;
  clearTimeout(websocket._closeTimer);
  websocket._inbound.end(() => {
    websocket._outbound.free();
    websocket.emitClose();
  });
}

module.exports = WebSocket;
