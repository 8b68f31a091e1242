'use strict';

const { createHash } = require('crypto');
const EventEmitter = require('events');
const http = require('http');

const { CLOSE_TIMEOUT, GUID, kWebSocket } = require('./constants');
const deflate = require('./deflate');
const extension = require('./extension');
const { createPoller } = require('./handle');
const { checkOptions } = require('./options');
const subprotocol = require('./subprotocol');
const WebSocket = require('./websocket');

const KEY = /^[+/0-9A-Za-z]{22}==$/;
const kServer = Symbol('server');
const [RUNNING, CLOSING, CLOSED] = [0, 1, 2];

const DEFAULTS = {
  allowSynchronousEvents: true,
  autoPong: true,
  maxFragments: 128 * 1024,
  maxPayload: 100 * 1024 * 1024,
  skipUTF8Validation: false,
  perMessageDeflate: false,
  handleProtocols: null,
  clientTracking: true,
  closeTimeout: CLOSE_TIMEOUT,
  verifyClient: null,
  noServer: false,
  backlog: null,
  server: null,
  host: null,
  path: null,
  port: null,
  WebSocket
};

/** A WebSocket server. */
class WebSocketServer extends EventEmitter {
  constructor(options, callback) {
    super();
    options = { ...DEFAULTS, ...options };
    const modes = [options.port != null, Boolean(options.server), Boolean(options.noServer)];
    if (modes.filter(Boolean).length !== 1) {
      throw new TypeError(
        'One and only one of the "port", "server", or "noServer" options must be specified'
      );
    }
    checkOptions(options);
    if (options.perMessageDeflate === true) options.perMessageDeflate = {};
    if (options.perMessageDeflate) deflate.checkOptions(options.perMessageDeflate);
    createPoller();
    this.options = options;
    this._state = RUNNING;
    this._server = null;
    this._removeListeners = null;
    this._shouldEmitClose = false;
    if (options.clientTracking) this.clients = new Set();
    if (options.port != null) {
      this._server = http.createServer(requireUpgrade);
      this._server.listen(options.port, options.host, options.backlog, callback);
    } else if (options.server) {
      this._server = options.server;
    }
    if (this._server !== null) this._listen();
  }

  _listen() {
    const emitConnection = (websocket, request) => this.emit('connection', websocket, request);
    const listeners = {
      listening: () => this.emit('listening'),
      error: (error) => this.emit('error', error),
      upgrade: (request, socket, head) => this.handleUpgrade(request, socket, head, emitConnection)
    };
    const server = this._server;
    for (const [event, listener] of Object.entries(listeners)) server.on(event, listener);
    this._removeListeners = () => {
      for (const [event, listener] of Object.entries(listeners)) server.removeListener(event, listener);
    };
  }

  address() {
    if (this.options.noServer) throw new Error('The server is operating in "noServer" mode');
    return this._server === null ? null : this._server.address();
  }

  close(callback) {
    if (this._state === CLOSED) {
      if (callback) this.once('close', () => callback(new Error('The server is not running')));
      process.nextTick(emitClose, this);
      return;
    }
    if (callback) this.once('close', callback);
    if (this._state === CLOSING) return;
    this._state = CLOSING;
    const server = this._server;
    if (server !== null) this._removeListeners();
    this._server = null;
    this._removeListeners = null;
    if (this.options.port != null) server.close(() => emitClose(this));
    else if (this.clients && this.clients.size > 0) this._shouldEmitClose = true;
    else process.nextTick(emitClose, this);
  }

  shouldHandle(request) {
    if (!this.options.path) return true;
    const [path] = request.url.split('?', 1);
    return path === this.options.path;
  }

  handleUpgrade(request, socket, head, callback) {
    socket.on('error', socketOnError);
    const { headers } = request;
    const version = Number(headers['sec-websocket-version']);
    const fault = requestFault(request, version);
    if (fault !== undefined) return reject(this, request, socket, fault);
    if (!this.shouldHandle(request)) return abortHandshake(socket, 400);
    const upgrade = { request, socket, head, callback, protocols: new Set(), deflate: null };
    try {
      const protocols = headers['sec-websocket-protocol'];
      if (protocols !== undefined) upgrade.protocols = subprotocol.parse(protocols);
    } catch {
      return reject(this, request, socket, { status: 400, message: 'Invalid Sec-WebSocket-Protocol header' });
    }
    try {
      upgrade.deflate = this._acceptDeflate(headers['sec-websocket-extensions']);
    } catch {
      const message = 'Invalid or unacceptable Sec-WebSocket-Extensions header';
      return reject(this, request, socket, { status: 400, message });
    }
    this._verify(upgrade, version);
  }

  _acceptDeflate(header) {
    const options = this.options.perMessageDeflate;
    if (!options || header === undefined) return null;
    const offers = extension.parse(header)[deflate.NAME];
    if (offers === undefined) return null;
    const params = deflate.acceptOffer(offers, options);
    return { params, native: deflate.nativeParams(params, options, true) };
  }

  /** Asks the program whether it accepts the client. */
  _verify(upgrade, version) {
    const { verifyClient } = this.options;
    if (!verifyClient) return this._complete(upgrade);
    const { request, socket } = upgrade;
    const info = {
      origin: request.headers[version === 8 ? 'sec-websocket-origin' : 'origin'],
      secure: Boolean(request.socket.authorized || request.socket.encrypted),
      req: request
    };
    if (verifyClient.length === 2) {
      verifyClient(info, (isVerified, status, message, headers) => {
        if (isVerified) this._complete(upgrade);
        else abortHandshake(socket, status || 401, message, headers);
      });
    } else if (verifyClient(info)) {
      this._complete(upgrade);
    } else {
      abortHandshake(socket, 401);
    }
  }

  _complete({ request, socket, head, callback, protocols, deflate: accepted }) {
    // The client may have gone.
    if (!socket.readable || !socket.writable) return socket.destroy();
    if (socket[kWebSocket]) {
      throw new Error(
        'server.handleUpgrade() was called more than once with the same socket, possibly due to a misconfiguration'
      );
    }
    if (this._state > RUNNING) return abortHandshake(socket, 503);
    const digest = createHash('sha1')
      .update(request.headers['sec-websocket-key'] + GUID)
      .digest('base64');
    const headers = [
      'HTTP/1.1 101 Switching Protocols',
      'Upgrade: websocket',
      'Connection: Upgrade',
      `Sec-WebSocket-Accept: ${digest}`
    ];
    const websocket = new this.options.WebSocket(null, undefined, this.options);
    if (protocols.size > 0) {
      const { handleProtocols } = this.options;
      const protocol = handleProtocols ? handleProtocols(protocols, request) : protocols.values().next().value;
      if (protocol) {
        headers.push(`Sec-WebSocket-Protocol: ${protocol}`);
        websocket._protocol = protocol;
      }
    }
    if (accepted !== null) {
      headers.push(`Sec-WebSocket-Extensions: ${extension.format({ [deflate.NAME]: accepted.params })}`);
      websocket._extensions = accepted;
    }
    this.emit('headers', headers, request);
    socket.write(`${headers.join('\r\n')}\r\n\r\n`);
    socket.removeListener('error', socketOnError);
    websocket.setSocket(socket, head, this.options);
    if (this.clients) this._track(websocket);
    callback(websocket, request);
  }

  _track(websocket) {
    this.clients.add(websocket);
    websocket[kServer] = this;
    websocket.on('close', forgetClient);
  }
}

function requireUpgrade(request, response) {
  const body = http.STATUS_CODES[426];
  response.writeHead(426, { 'Content-Length': body.length, 'Content-Type': 'text/plain' });
  response.end(body);
}

function emitClose(server) {
  server._state = CLOSED;
  server.emit('close');
}

/** A listener for all connections: a closure for each would need memory. */
function forgetClient() {
  const server = this[kServer];
  server.clients.delete(this);
  if (server._shouldEmitClose && server.clients.size === 0) process.nextTick(emitClose, server);
}

function socketOnError() {
  this.destroy();
}

/** Returns what is wrong with an upgrade request, if anything. */
function requestFault(request, version) {
  const { upgrade, 'sec-websocket-key': key } = request.headers;
  if (request.method !== 'GET') return { status: 405, message: 'Invalid HTTP method' };
  if (upgrade === undefined || upgrade.toLowerCase() !== 'websocket') {
    return { status: 400, message: 'Invalid Upgrade header' };
  }
  if (key === undefined || !KEY.test(key)) {
    return { status: 400, message: 'Missing or invalid Sec-WebSocket-Key header' };
  }
  if (version !== 13 && version !== 8) {
    const message = 'Missing or invalid Sec-WebSocket-Version header';
    return { status: 400, message, headers: { 'Sec-WebSocket-Version': '13, 8' } };
  }
  return undefined;
}

/** Rejects a request, unless the program does. */
function reject(server, request, socket, { status, message, headers }) {
  if (server.listenerCount('wsClientError') === 0) return abortHandshake(socket, status, message, headers);
  const error = new Error(message);
  Error.captureStackTrace(error, reject);
  server.emit('wsClientError', error, socket, request);
}

/** Answers a request with an error. */
function abortHandshake(socket, status, message = http.STATUS_CODES[status], headers = {}) {
  const lines = Object.entries({
    Connection: 'close',
    'Content-Type': 'text/html',
    'Content-Length': Buffer.byteLength(message),
    ...headers
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.once('finish', socket.destroy);
  socket.end(`HTTP/1.1 ${status} ${http.STATUS_CODES[status]}\r\n${lines.join('')}\r\n${message}`);
}

module.exports = WebSocketServer;
