'use strict';

const { LOOP_CANNOT_WAIT } = require('./constants.js');
const { ANSWER, BINARY, CLOSE, DRAIN, NativeServer, OPEN, PONG, REQUEST, SLOW, TEXT } = require('./native.js');

/** Numbers for each event and command: kind, id, payload's start and length. */
const WORDS = 4;
/** Events and commands of one turn, at first. */
const EVENTS = 1024;
/** Payload bytes of one turn, at first. */
const BYTES = 256 * 1024;
/** Larger memory goes after a turn. */
const BYTES_KEPT = 4 * 1024 * 1024;
/** Milliseconds of turns in a row, until other work of the process gets its time. */
const TURNS_MS = 5;

const WEBSOCKET_OPTIONS = {
  compression: { type: 'boolean', value: false },
  maxMessage: { type: 'number', value: 16 << 20, min: 1, max: 0xffffffff },
  maxBackpressure: { type: 'number', value: 1 << 20, min: 1, max: 0xffffffff },
  highWater: { type: 'number', value: 64 << 10, min: 1, max: 0xffffffff },
  idleTimeout: { type: 'number', value: 120, min: 0, max: 0xffffffff },
  pingInterval: { type: 'number', value: 25, min: 0, max: 0xffffffff },
};
const WEBSOCKET_HANDLERS = ['open', 'message', 'drain', 'pong', 'close'];
const SERVER_OPTIONS = ['port', 'hostname', 'config', 'routes', 'websocket', 'error'];
/** Messages of a history, at most. */
const HISTORY_MAX = 1000;

function fault(ErrorType, code, message) {
  return Object.assign(new ErrorType(message), { code });
}

function checkOption(name, value, { type, value: byDefault, min, max }) {
  if (value === undefined) return byDefault;
  if (typeof value !== type) {
    throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', `${name} must be a ${type}, not ${typeof value}`);
  }
  if (type === 'number' && !(Number.isInteger(value) && value >= min && value <= max)) {
    throw fault(RangeError, 'ERR_OUT_OF_RANGE', `${name} must be an integer from ${min} to ${max}, not ${value}`);
  }
  return value;
}

function checkList(name, value) {
  if (value === undefined) return [];
  if (!Array.isArray(value) || value.some((item) => typeof item !== 'string')) {
    throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', `${name} must be an array of strings`);
  }
  return value;
}

function checkFunction(name, value) {
  if (value !== undefined && typeof value !== 'function') {
    throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', `${name} must be a function, not ${typeof value}`);
  }
}

/** Options of a call. */
function checkObject(name, value, names) {
  if (value === undefined) return {};
  if (value === null || typeof value !== 'object') {
    throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', `${name} must be an object, not ${value === null ? 'null' : typeof value}`);
  }
  checkNames(name, value, names);
  return value;
}

/** The native options for `config`: a path, or an object with the keys of the file. */
function configOptions(config) {
  if (config === undefined) return {};
  if (typeof config === 'string') return { configFile: config };
  if (config === null || typeof config !== 'object' || Array.isArray(config)) {
    throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', 'config must be the path of a file or an object with its settings');
  }
  return { configJson: JSON.stringify(config) };
}

/** A message of a history: from JSON, where bytes are in base64. */
function historyMessage({ epoch, seq, data, b64 }) {
  return { epoch, seq, data: b64 === undefined ? data : Buffer.from(b64, 'base64') };
}

function checkNames(place, value, names) {
  for (const name of Object.keys(value)) {
    if (!names.includes(name)) {
      throw fault(TypeError, 'ERR_INVALID_ARG_VALUE', `${place}: unknown option ${name}; known: ${names.join(', ')}`);
    }
  }
}

/** The lines of an event: the first line, the client's address, the headers. */
function parseHead(text) {
  const lines = text.split('\n');
  const headers = Object.create(null);
  let at = 2;
  for (; lines[at]; at++) {
    const colon = lines[at].indexOf(':');
    const name = lines[at].slice(0, colon).toLowerCase();
    const value = lines[at].slice(colon + 2);
    // RFC 6265 section 5.4, RFC 9110 section 5.3.
    const separator = name === 'cookie' ? '; ' : ', ';
    headers[name] = name in headers ? headers[name] + separator + value : value;
  }
  const address = lines[1].slice(0, lines[1].lastIndexOf(':'));
  return { first: lines[0], remoteAddress: address.replace(/^\[|\]$/g, ''), headers };
}

/** A connection of a client. */
class ServerWebSocket {
  #server;
  #head;
  #text;

  constructor(server, id, head) {
    this.#server = server;
    this.#text = head;
    /** Anything that the program wants to keep with the connection. */
    this.data = undefined;
    this._id = id;
    this._isOpen = true;
    this._isSlow = false;
    /** Bytes since the last turn. */
    this._queued = 0;
  }

  #request() {
    this.#head ??= parseHead(this.#text);
    this.#text = undefined;
    return this.#head;
  }

  /** The request's path and query. */
  get url() {
    return this.#request().first;
  }

  /** The request's headers, by their names in lower case. */
  get headers() {
    return this.#request().headers;
  }

  /** The client's IP address. */
  get remoteAddress() {
    return this.#request().remoteAddress;
  }

  /** 1 while the connection is open, 3 after its end. */
  get readyState() {
    return this._isOpen ? 1 : 3;
  }

  /** Bytes that wait: of sends since the last turn, and, from 16 KiB on, what the socket has not taken. */
  get bufferedAmount() {
    return this._isOpen ? this._queued + this.#server._native.buffered(this._id) : 0;
  }

  /**
   * Sends a message: a string as text, bytes as binary. Returns the bytes that were queued (1 for an empty message), -1
   * if they were queued and the queue is long (wait for `drain`), 0 if the message was dropped: the connection is closed,
   * or its queue is full.
   */
  send(data) {
    return this.#server._send(this, data);
  }

  /** Starts the closing handshake behind the queued messages. */
  close(code = 1000, reason = '') {
    if (!Number.isInteger(code) || !(code === 1000 || (code >= 1001 && code <= 1014 && ![1004, 1005, 1006].includes(code)) || (code >= 3000 && code <= 4999))) {
      throw fault(RangeError, 'ERR_OUT_OF_RANGE', `code must be a close code such as 1000 or 3000 to 4999, not ${code}`);
    }
    if (typeof reason !== 'string' || Buffer.byteLength(reason) > 123) {
      throw fault(RangeError, 'ERR_OUT_OF_RANGE', 'reason must be a string of at most 123 bytes');
    }
    const payload = Buffer.alloc(2 + Buffer.byteLength(reason));
    payload.writeUInt16BE(code);
    payload.write(reason, 2);
    if (this._isOpen) this.#server._command(CLOSE, this._id, payload);
  }

  /** Subscribes to a topic, or to all topics that match a pattern with `*` and `>`. */
  subscribe(topic) {
    return this._isOpen && this.#server._topic('subscribe', this._id, topic);
  }

  unsubscribe(topic) {
    return this._isOpen && this.#server._topic('unsubscribe', this._id, topic);
  }
}

/** A request that waits for its response. */
class ServerRequest {
  #text;
  #head;

  constructor(text, body) {
    this.#text = text;
    /** The body's bytes. */
    this.body = body;
  }

  #parse() {
    this.#head ??= parseHead(this.#text);
    return this.#head;
  }

  get method() {
    return this.#parse().first.split(' ', 1)[0];
  }

  get url() {
    const { first } = this.#parse();
    return first.slice(first.indexOf(' ') + 1);
  }

  get headers() {
    return this.#parse().headers;
  }

  get remoteAddress() {
    return this.#parse().remoteAddress;
  }
}

/** A running server. */
class SinewsServer {
  #sockets = [];
  #handlers;
  /** By the index of the route in the native settings. */
  #routes;
  #onError;
  #limit;
  #words;
  #wordBytes;
  #bytes;
  #commands;
  #commandBytes;
  #payloads;
  #count = 0;
  #used = 0;
  /** Connections with sends since the last turn. */
  #sending = [];
  #isTurning = false;
  #isScheduled = false;
  /** Commands have left in this iteration of the event loop: further ones wait for the next, or sockets would be read. */
  #hasLeft = false;
  #isEnded = false;
  /** Promises of histories, by id. */
  #histories = new Map();
  #ended;
  #end;

  constructor(options) {
    if (options === null || typeof options !== 'object') {
      throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', 'options must be an object');
    }
    checkNames('options', options, SERVER_OPTIONS);
    const config = configOptions(options.config);
    const port = checkOption('port', options.port, { type: 'number', value: 0, min: 0, max: 65535 });
    const hostname = checkOption('hostname', options.hostname, { type: 'string', value: '127.0.0.1' });
    const { websocket, routes = {} } = options;
    checkFunction('error', options.error);
    const values = {};
    if (websocket !== undefined) {
      const names = [...WEBSOCKET_HANDLERS, ...Object.keys(WEBSOCKET_OPTIONS), 'path', 'subprotocols', 'origins'];
      checkNames('websocket', websocket, names);
      for (const name of WEBSOCKET_HANDLERS) checkFunction(`websocket.${name}`, websocket[name]);
    }
    for (const [name, check] of Object.entries(WEBSOCKET_OPTIONS)) {
      values[name] = checkOption(`websocket.${name}`, websocket?.[name], check);
    }
    for (const [path, handler] of Object.entries(routes)) {
      if (typeof handler !== 'function' && typeof handler !== 'string') {
        throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', `routes[${JSON.stringify(path)}] must be a function or a string`);
      }
    }
    this.#handlers = websocket ?? {};
    this.#routes = Object.values(routes);
    this.#onError = options.error;
    this.#limit = values.maxBackpressure;
    this.#allocate(EVENTS, BYTES);
    this.#commandBytes = Buffer.allocUnsafeSlow(EVENTS * WORDS * 4);
    this.#commands = new Uint32Array(this.#commandBytes.buffer);
    this.#payloads = Buffer.allocUnsafeSlow(BYTES);
    this.#ended = new Promise((resolve) => { this.#end = resolve; });
    const path = checkOption('websocket.path', websocket?.path, { type: 'string', value: '/' });
    const native = {
      ...config,
      websockets: websocket === undefined ? [] : [path],
      requests: Object.keys(routes),
      subprotocols: checkList('websocket.subprotocols', websocket?.subprotocols),
      origins: checkList('websocket.origins', websocket?.origins),
      compression: values.compression,
      maxMessage: values.maxMessage,
      maxOutbound: values.maxBackpressure,
      highWater: values.highWater,
      idleTimeout: values.idleTimeout,
      pingInterval: values.pingInterval,
      hasThread: LOOP_CANNOT_WAIT,
    };
    // Otherwise the configuration has the addresses.
    if (options.config === undefined || options.port !== undefined || options.hostname !== undefined) {
      native.address = hostname.includes(':') ? `[${hostname}]:${port}` : `${hostname}:${port}`;
    }
    try {
      this._native = new NativeServer(native, () => this.#tick());
    } catch (error) {
      throw error.code === 'InvalidArg' ? fault(TypeError, 'ERR_INVALID_ARG_VALUE', error.message) : fault(Error, 'ERR_SINEWS_BIND', error.message);
    }
  }

  /** The bound port. */
  get port() {
    return this._native.port;
  }

  /** The bound IP address. */
  get hostname() {
    return this._native.hostname;
  }

  /**
   * Publishes a message to all subscribers of a topic, after the sends and subscriptions so far. Returns whether it was
   * queued.
   */
  publish(topic, data, options) {
    checkOption('topic', topic, { type: 'string' });
    const { json } = checkObject('options', options, ['json']);
    const isJson = checkOption('options.json', json, { type: 'boolean', value: false });
    if (isJson) checkOption('data', data, { type: 'string' });
    const bytes = typeof data === 'string' ? data : toBuffer(data);
    return this.#topics(() => this._native.publish(topic, bytes, isJson));
  }

  /** Reads the retained messages of a topic: see the types. */
  async history(topic, options) {
    checkOption('topic', topic, { type: 'string' });
    const { last, after } = checkObject('options', options, ['last', 'after']);
    const count = checkOption('options.last', last, { type: 'number', value: HISTORY_MAX, min: 1, max: HISTORY_MAX });
    const position = after === undefined ? [] : ['epoch', 'seq'].map((name) => {
      const { [name]: number } = checkObject('options.after', after, ['epoch', 'seq']);
      const range = { type: 'number', min: 0, max: Number.MAX_SAFE_INTEGER };
      return checkOption(`options.after.${name}`, number ?? null, range);
    });
    const id = this.#topics(() => this._native.history(topic, count, ...position));
    if (id === null) throw fault(Error, 'ERR_SINEWS_STOPPED', 'the server has stopped, or too many histories are being read');
    return new Promise((resolve, reject) => this.#histories.set(id, { resolve, reject }));
  }

  /** Reads who is present in a topic: see the types. */
  presence(topic, options) {
    checkOption('topic', topic, { type: 'string' });
    const { after } = checkObject('options', options, ['after']);
    const text = this.#topics(() => this._native.presence(topic, checkOption('options.after', after, { type: 'string' })));
    if (text === null) throw fault(Error, 'ERR_SINEWS_STOPPED', 'the server has stopped');
    const { subscribers, members, more } = JSON.parse(text);
    return { subscribers, members, more };
  }

  #topics(call) {
    try {
      const result = call();
      this.#schedule();
      return result;
    } catch (error) {
      throw fault(TypeError, 'ERR_INVALID_ARG_VALUE', error.message);
    }
  }

  /** Stops: WebSockets are closed with 1001. Resolves once all connections have ended. */
  stop() {
    this._native.stop();
    return this.#ended;
  }

  /** The server keeps the process alive: the default. */
  ref() {
    this._native.setRef(true);
  }

  /** The server lets the process end. */
  unref() {
    this._native.setRef(false);
  }

  _topic(method, id, topic) {
    checkOption('topic', topic, { type: 'string' });
    return this.#topics(() => this._native[method](id, topic));
  }

  _send(ws, data) {
    if (!ws._isOpen) return 0;
    const isText = typeof data === 'string';
    const bytes = isText ? data : toBuffer(data);
    // A character has at most three bytes of UTF-8 for each unit of UTF-16.
    const most = isText ? data.length * 3 : bytes.length;
    this.#reserve(most);
    const length = isText ? this.#payloads.utf8Write(data, this.#used) : bytes.copy(this.#payloads, this.#used);
    if (ws._queued > 0 && ws._queued + length > this.#limit) {
      // The drain is reported.
      this.#push(SLOW, ws._id, 0);
      ws._isSlow = true;
      return 0;
    }
    if (ws._queued === 0) this.#sending.push(ws);
    ws._queued += length;
    this.#push(isText ? TEXT : BINARY, ws._id, length);
    return ws._isSlow ? -1 : length || 1;
  }

  _command(kind, id, payload) {
    this.#reserve(payload.length);
    this.#push(kind, id, payload.copy(this.#payloads, this.#used));
  }

  #push(kind, id, length) {
    const at = this.#count * WORDS;
    this.#commands[at] = kind;
    this.#commands[at + 1] = id;
    this.#commands[at + 2] = this.#used;
    this.#commands[at + 3] = length;
    this.#count += 1;
    this.#used += length;
    this.#schedule();
  }

  /** Makes room for a command with this payload. */
  #reserve(length) {
    if (this.#used + length > this.#payloads.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(this.#payloads.length * 2, this.#used + length));
      this.#payloads.copy(larger, 0, 0, this.#used);
      this.#payloads = larger;
    }
    if ((this.#count + 1) * WORDS > this.#commands.length) {
      const larger = Buffer.allocUnsafeSlow(this.#commandBytes.length * 2);
      this.#commandBytes.copy(larger);
      this.#commandBytes = larger;
      this.#commands = new Uint32Array(larger.buffer);
    }
  }

  #allocate(events, bytes) {
    this.#wordBytes = Buffer.allocUnsafeSlow(events * WORDS * 4);
    this.#words = new Uint32Array(this.#wordBytes.buffer);
    this.#bytes = Buffer.allocUnsafeSlow(bytes);
  }

  /** Commands outside of a turn leave together, after the running callback. */
  #schedule() {
    if (this.#isTurning || this.#isScheduled || this.#isEnded) return;
    this.#isScheduled = true;
    const leave = () => {
      this.#isScheduled = false;
      this.#tick();
    };
    if (this.#hasLeft) {
      setImmediate(leave);
      return;
    }
    process.nextTick(leave);
    this.#hasLeft = true;
    setImmediate(() => { this.#hasLeft = false; });
  }

  #tick() {
    if (this.#isTurning || this.#isEnded) return;
    this.#isTurning = true;
    try {
      const end = performance.now() + TURNS_MS;
      do {
        const found = this.#turn();
        if (found === 0) return;
        if (found < 0) {
          this.#isEnded = true;
          const stopped = fault(Error, 'ERR_SINEWS_STOPPED', 'the server has stopped');
          for (const { reject } of this.#histories.values()) reject(stopped);
          this.#end();
          return;
        }
        this.#dispatch(found);
      } while (performance.now() < end);
    } finally {
      this.#isTurning = false;
    }
    setImmediate(() => this.#tick());
  }

  /** One call: commands in, events out. */
  #turn() {
    for (const ws of this.#sending) ws._queued = 0;
    this.#sending.length = 0;
    let count = this.#count;
    this.#count = 0;
    this.#used = 0;
    for (;;) {
      const found = this._native.turn(this.#wordBytes, this.#bytes, this.#commandBytes, this.#payloads, count);
      if (found !== -2) {
        if (this.#payloads.length > BYTES_KEPT) this.#payloads = Buffer.allocUnsafeSlow(BYTES);
        return found;
      }
      count = 0;
      this.#allocate((this.#words.length / WORDS) * 2, this.#bytes.length * 2);
    }
  }

  #dispatch(count) {
    const words = this.#words;
    const bytes = this.#bytes;
    for (let at = 0; at < count * WORDS; at += WORDS) {
      const id = words[at + 1];
      const start = words[at + 2];
      const end = start + words[at + 3];
      try {
        this.#handle(words[at], id, bytes, start, end);
      } catch (error) {
        this.#fail(error, this.#socketOf(words[at], id));
      }
    }
    if (bytes.length > BYTES_KEPT) this.#allocate(EVENTS, BYTES);
  }

  /** The connection of an event. Requests and answers have other ids. */
  #socketOf(kind, id) {
    return [REQUEST, ANSWER].includes(kind & 0xff) ? undefined : this.#sockets[id];
  }

  #handle(kind, id, bytes, start, end) {
    const ws = this.#socketOf(kind, id);
    const handlers = this.#handlers;
    let result;
    switch (kind & 0xff) {
      case TEXT:
        result = handlers.message?.(ws, bytes.utf8Slice(start, end));
        break;
      case BINARY:
        result = handlers.message?.(ws, Buffer.from(bytes.subarray(start, end)));
        break;
      case OPEN: {
        const opened = new ServerWebSocket(this, id, bytes.latin1Slice(start, end));
        this.#sockets[id] = opened;
        result = handlers.open?.(opened);
        result?.catch?.((error) => this.#fail(error, opened));
        return;
      }
      case DRAIN:
        ws._isSlow = false;
        result = handlers.drain?.(ws);
        break;
      case SLOW:
        if (ws !== undefined) ws._isSlow = true;
        break;
      case CLOSE:
        ws._isOpen = false;
        this.#sockets[id] = undefined;
        result = handlers.close?.(ws, bytes.readUInt16BE(start), bytes.utf8Slice(start + 2, end));
        break;
      case PONG:
        result = handlers.pong?.(ws, Buffer.from(bytes.subarray(start, end)));
        break;
      case REQUEST:
        this.#request(this.#routes[kind >>> 8], id, bytes, start, end);
        break;
      case ANSWER:
        this.#answer(id, kind >>> 8, bytes.utf8Slice(start, end));
        break;
      default:
    }
    // A handler may be asynchronous.
    result?.catch?.((error) => this.#fail(error, ws));
  }

  #answer(id, status, text) {
    const promise = this.#histories.get(id);
    this.#histories.delete(id);
    if (status === 0) {
      promise.resolve(JSON.parse(text).map(historyMessage));
      return;
    }
    const error = Object.assign(fault(Error, 'ERR_SINEWS_TOPIC', text), { status });
    // A publication to a stream has no promise.
    if (promise === undefined) throw error;
    promise.reject(error);
  }

  #request(handler, id, bytes, start, end) {
    const bodyStart = bytes.indexOf('\n\n', start, 'latin1') + 2;
    const head = bytes.latin1Slice(start, bodyStart - 1);
    const request = new ServerRequest(head, Buffer.from(bytes.subarray(bodyStart, end)));
    const respond = (response) => this.#respond(id, response);
    const fail = (error) => {
      this._native.respond(id, 500, [], 'the handler has failed\n');
      this.#schedule();
      this.#fail(error);
    };
    try {
      const response = typeof handler === 'function' ? handler(request) : handler;
      if (typeof response?.then === 'function') response.then(respond).catch(fail);
      else respond(response);
    } catch (error) {
      fail(error);
    }
  }

  #respond(id, response) {
    if (typeof response === 'string' || ArrayBuffer.isView(response)) return this.#respond(id, { body: response });
    if (response === null || typeof response !== 'object') {
      throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', 'a handler must return a string, bytes, or { status, headers, body }');
    }
    const { status = 200, headers = {}, body = '' } = response;
    const list = Object.entries(headers).map(([name, value]) => [name, String(value)]);
    if (!list.some(([name]) => name.toLowerCase() === 'content-type') && typeof body === 'string') {
      list.push(['content-type', 'text/plain; charset=utf-8']);
    }
    try {
      this._native.respond(id, checkOption('status', status, { type: 'number', value: 200, min: 200, max: 599 }), list, typeof body === 'string' ? body : toBuffer(body));
    } finally {
      this.#schedule();
    }
  }

  /** A handler has thrown: its connection ends with 1011. */
  #fail(error, ws) {
    if (ws?._isOpen) ws.close(1011, 'handler failed');
    // `uncaughtException`, without ending the turn.
    const raise = (fault) => process.nextTick(() => { throw fault; });
    if (this.#onError === undefined) {
      raise(error);
      return;
    }
    try {
      this.#onError(error, ws);
    } catch (second) {
      raise(second);
    }
  }
}

function toBuffer(data) {
  if (Buffer.isBuffer(data)) return data;
  if (ArrayBuffer.isView(data)) return Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  if (data instanceof ArrayBuffer || data instanceof SharedArrayBuffer) return Buffer.from(data);
  throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', `data must be a string, a Buffer, a typed array or an ArrayBuffer, not ${typeof data}`);
}

/** Binds a port and serves: see the types. */
function serve(options) {
  return new SinewsServer(options);
}

module.exports = { serve };
