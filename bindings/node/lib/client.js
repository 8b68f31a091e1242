'use strict';

const { createHash, randomBytes } = require('crypto');
const http = require('http');
const https = require('https');
const net = require('net');
const tls = require('tls');

const { CLOSE_TIMEOUT, GUID } = require('./constants');
const deflate = require('./deflate');
const extension = require('./extension');
const { checkOptions } = require('./options');
const subprotocol = require('./subprotocol');

const VERSIONS = [8, 13];
const kAborted = Symbol('aborted');
const CONNECTING = 0;
const CLOSING = 2;

const DEFAULTS = {
  allowSynchronousEvents: true,
  autoPong: true,
  closeTimeout: CLOSE_TIMEOUT,
  protocolVersion: 13,
  maxFragments: 128 * 1024,
  maxPayload: 100 * 1024 * 1024,
  skipUTF8Validation: false,
  perMessageDeflate: true,
  followRedirects: false,
  maxRedirects: 10
};

/** Parses the address. Throws a SyntaxError for an invalid one. */
function parseAddress(address) {
  let url;
  try {
    url = address instanceof URL ? address : new URL(address);
  } catch {
    throw new SyntaxError(`Invalid URL: ${address}`);
  }
  if (url.protocol === 'http:') url.protocol = 'ws:';
  else if (url.protocol === 'https:') url.protocol = 'wss:';
  return url;
}

/** Returns what is wrong with an address, if anything. */
function addressFault(url) {
  const isIpc = url.protocol === 'ws+unix:';
  if (url.protocol !== 'ws:' && url.protocol !== 'wss:' && !isIpc) {
    return 'The URL\'s protocol must be one of "ws:", "wss:", "http:", "https:", or "ws+unix:"';
  }
  if (isIpc && !url.pathname) return "The URL's pathname is empty";
  if (url.hash) return 'The URL contains a fragment identifier';
  return undefined;
}

function connectPlain(options) {
  options.path = options.socketPath;
  return net.connect(options);
}

function connectTls(options) {
  options.path = undefined;
  if (!options.servername && options.servername !== '') {
    options.servername = net.isIP(options.host) ? '' : options.host;
  }
  return tls.connect(options);
}

/** Starts a client's handshake. */
function connect(websocket, address, protocols, options) {
  const settings = {
    ...DEFAULTS,
    ...options,
    // The address decides.
    socketPath: undefined,
    hostname: undefined,
    protocol: undefined,
    timeout: undefined,
    method: 'GET',
    host: undefined,
    path: undefined,
    port: undefined
  };
  checkOptions(settings);
  websocket._autoPong = settings.autoPong;
  websocket._closeTimeout = settings.closeTimeout;
  if (!VERSIONS.includes(settings.protocolVersion)) {
    throw new RangeError(
      `Unsupported protocol version: ${settings.protocolVersion} (supported versions: ${VERSIONS.join(', ')})`
    );
  }
  const url = parseAddress(address);
  websocket._url = url.href;
  const fault = addressFault(url);
  if (fault !== undefined) {
    const error = new SyntaxError(fault);
    if (websocket._redirects === 0) throw error;
    emitErrorAndClose(websocket, error);
    return;
  }
  new Handshake(websocket, url, protocols, settings, options).start();
}

/** One request of a client's handshake. A redirect starts another one. */
class Handshake {
  constructor(websocket, url, protocols, settings, options) {
    this.websocket = websocket;
    this.url = url;
    this.protocols = protocols;
    this.settings = settings;
    /** The program's own options, for a redirect. */
    this.options = options;
    this.isSecure = url.protocol === 'wss:';
    this.isIpc = url.protocol === 'ws+unix:';
    this.key = randomBytes(16).toString('base64');
    this.offered = new Set();
    this.deflate = null;
    this.request = null;
  }

  start() {
    const { settings, url, isSecure } = this;
    const port = isSecure ? 443 : 80;
    settings.createConnection ||= isSecure ? connectTls : connectPlain;
    settings.defaultPort ||= port;
    settings.port = url.port || port;
    settings.host = url.hostname.startsWith('[') ? url.hostname.slice(1, -1) : url.hostname;
    settings.path = url.pathname + url.search;
    settings.timeout = settings.handshakeTimeout;
    this.setHeaders();
    if (url.username || url.password) settings.auth = `${url.username}:${url.password}`;
    if (this.isIpc) [settings.socketPath, settings.path] = settings.path.split(':');
    if (settings.followRedirects) this.prepareRedirects();
    this.send();
  }

  setHeaders() {
    const { settings, protocols } = this;
    settings.headers = {
      ...settings.headers,
      'Sec-WebSocket-Version': settings.protocolVersion,
      'Sec-WebSocket-Key': this.key,
      Connection: 'Upgrade',
      Upgrade: 'websocket'
    };
    if (settings.perMessageDeflate) {
      this.deflate = settings.perMessageDeflate === true ? {} : settings.perMessageDeflate;
      deflate.checkOptions(this.deflate);
      settings.headers['Sec-WebSocket-Extensions'] = extension.format({
        [deflate.NAME]: deflate.offer(this.deflate)
      });
    }
    for (const protocol of protocols) {
      if (!subprotocol.isToken(protocol) || this.offered.has(protocol)) {
        throw new SyntaxError('An invalid or duplicated subprotocol was specified');
      }
      this.offered.add(protocol);
    }
    if (protocols.length > 0) settings.headers['Sec-WebSocket-Protocol'] = protocols.join(',');
    if (settings.origin) {
      const name = settings.protocolVersion < 13 ? 'Sec-WebSocket-Origin' : 'Origin';
      settings.headers[name] = settings.origin;
    }
  }

  /** Keeps credentials from another host, as curl does. */
  prepareRedirects() {
    const { websocket, settings, url } = this;
    const host = this.isIpc ? settings.socketPath : url.host;
    if (websocket._redirects === 0) {
      websocket._original = { host, isIpc: this.isIpc, isSecure: this.isSecure };
      const headers = Object.entries(this.options?.headers ?? {});
      this.options = { ...this.options, headers: {} };
      for (const [name, value] of headers) this.options.headers[name.toLowerCase()] = value;
    } else if (websocket.listenerCount('redirect') === 0) {
      const original = websocket._original;
      const isSameHost = original.isIpc === this.isIpc && original.host === host;
      if (!isSameHost || (original.isSecure && !this.isSecure)) {
        delete settings.headers.authorization;
        delete settings.headers.cookie;
        if (!isSameHost) delete settings.headers.host;
        settings.auth = undefined;
      }
    }
    // The first credentials are those for later requests.
    if (settings.auth && !this.options.headers.authorization) {
      this.options.headers.authorization = `Basic ${Buffer.from(settings.auth).toString('base64')}`;
    }
  }

  send() {
    const { websocket, settings } = this;
    const request = (this.isSecure ? https : http).request(settings);
    this.request = request;
    websocket._req = request;
    if (settings.followRedirects && websocket._redirects > 0) {
      websocket.emit('redirect', websocket.url, request);
    }
    if (settings.timeout) {
      request.on('timeout', () => {
        abortHandshake(websocket, request, 'Opening handshake has timed out');
      });
    }
    request.on('error', (error) => {
      if (this.request === null || request[kAborted]) return;
      this.forgetRequest();
      emitErrorAndClose(websocket, error);
    });
    request.on('response', (response) => this.handleResponse(response));
    request.on('upgrade', (response, socket, head) => this.handleUpgrade(response, socket, head));
    if (settings.finishRequest) settings.finishRequest(request, websocket);
    else request.end();
  }

  forgetRequest() {
    this.request = null;
    this.websocket._req = null;
  }

  handleResponse(response) {
    const { websocket, request, settings } = this;
    const { statusCode, headers } = response;
    const isRedirect = statusCode >= 300 && statusCode < 400 && headers.location;
    if (!isRedirect || !settings.followRedirects) {
      if (!websocket.emit('unexpected-response', request, response)) {
        abortHandshake(websocket, request, `Unexpected server response: ${statusCode}`);
      }
      return;
    }
    if (++websocket._redirects > settings.maxRedirects) {
      abortHandshake(websocket, request, 'Maximum redirects exceeded');
      return;
    }
    request.abort();
    let address;
    try {
      address = new URL(headers.location, this.url);
    } catch {
      emitErrorAndClose(websocket, new SyntaxError(`Invalid URL: ${headers.location}`));
      return;
    }
    connect(websocket, address, this.protocols, this.options);
  }

  handleUpgrade(response, socket, head) {
    const { websocket } = this;
    websocket.emit('upgrade', response);
    // A listener may have closed it.
    if (websocket.readyState !== CONNECTING) return;
    this.forgetRequest();
    const fault = this.responseFault(response.headers) ?? this.acceptExtensions(response.headers);
    if (fault !== undefined) abortHandshake(websocket, socket, fault);
    else websocket.setSocket(socket, head, this.settings);
  }

  /** Returns what is wrong with the response, if anything. */
  responseFault(headers) {
    if (headers.upgrade === undefined || headers.upgrade.toLowerCase() !== 'websocket') {
      return 'Invalid Upgrade header';
    }
    const digest = createHash('sha1').update(this.key + GUID).digest('base64');
    if (headers['sec-websocket-accept'] !== digest) return 'Invalid Sec-WebSocket-Accept header';
    const protocol = headers['sec-websocket-protocol'];
    if (protocol === undefined) return this.offered.size > 0 ? 'Server sent no subprotocol' : undefined;
    if (this.offered.size === 0) return 'Server sent a subprotocol but none was requested';
    if (!this.offered.has(protocol)) return 'Server sent an invalid subprotocol';
    this.websocket._protocol = protocol;
    return undefined;
  }

  acceptExtensions(headers) {
    const header = headers['sec-websocket-extensions'];
    if (header === undefined) return undefined;
    if (this.deflate === null) {
      return 'Server sent a Sec-WebSocket-Extensions header but no extension was requested';
    }
    let answers;
    try {
      answers = extension.parse(header);
    } catch {
      return 'Invalid Sec-WebSocket-Extensions header';
    }
    const names = Object.keys(answers);
    if (names.length !== 1 || names[0] !== deflate.NAME) {
      return 'Server indicated an extension that was not requested';
    }
    try {
      const params = deflate.acceptAnswer(answers[deflate.NAME], this.deflate);
      this.websocket._extensions = { params, native: deflate.nativeParams(params, this.deflate, false) };
    } catch {
      return 'Invalid Sec-WebSocket-Extensions header';
    }
    return undefined;
  }
}

function emitErrorAndClose(websocket, error) {
  websocket._readyState = CLOSING;
  websocket._errorEmitted = true;
  websocket.emit('error', error);
  websocket.emitClose();
}

/** Ends a handshake with an error. `stream` is the request, or the socket after an upgrade. */
function abortHandshake(websocket, stream, message) {
  websocket._readyState = CLOSING;
  const error = new Error(message);
  Error.captureStackTrace(error, abortHandshake);
  if (stream.setHeader) {
    stream[kAborted] = true;
    stream.abort();
    // A completed request leaves its socket.
    if (stream.socket && !stream.socket.destroyed) stream.socket.destroy();
    process.nextTick(emitErrorAndClose, websocket, error);
  } else {
    stream.destroy(error);
    stream.once('error', (failure) => websocket.emit('error', failure));
    stream.once('close', () => websocket.emitClose());
  }
}

module.exports = { abortHandshake, connect };
