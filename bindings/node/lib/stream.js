'use strict';

const { Duplex } = require('stream');

/** A connection as a stream. */
class WebSocketStream extends Duplex {
  constructor(websocket, options) {
    super({
      ...options,
      autoDestroy: false,
      emitClose: false,
      objectMode: false,
      writableObjectMode: false
    });
    this._websocket = websocket;
    /** Destruction terminates the connection, unless an error lets it close in order. */
    this._terminates = true;
    this._listen();
  }

  _listen() {
    const websocket = this._websocket;
    websocket.on('message', (data, isBinary) => {
      const isText = !isBinary && this.readableObjectMode;
      if (!this.push(isText ? data.toString() : data)) websocket.pause();
    });
    websocket.once('error', (error) => {
      if (this.destroyed) return;
      this._terminates = false;
      this.destroy(error);
    });
    websocket.once('close', () => {
      if (!this.destroyed) this.push(null);
    });
    this.on('end', () => {
      if (!this.destroyed && this.writableFinished) this.destroy();
    });
    const onError = (error) => {
      this.removeListener('error', onError);
      this.destroy();
      // Without another listener, the error is thrown as usual.
      if (this.listenerCount('error') === 0) this.emit('error', error);
    };
    this.on('error', onError);
  }
}

function destroy(stream, error, callback) {
  const websocket = stream._websocket;
  const emitClose = () => process.nextTick(() => stream.emit('close'));
  if (websocket.readyState === websocket.CLOSED) {
    callback(error);
    emitClose();
    return;
  }
  let isCalled = false;
  websocket.once('error', (failure) => {
    isCalled = true;
    callback(failure);
  });
  websocket.once('close', () => {
    if (!isCalled) callback(error);
    emitClose();
  });
  if (stream._terminates) websocket.terminate();
}

function final(stream, callback) {
  const websocket = stream._websocket;
  if (websocket.readyState === websocket.CONNECTING) {
    websocket.once('open', () => stream._final(callback));
    return;
  }
  const { _socket: socket } = websocket;
  // The handshake has failed: an error follows.
  if (socket === null) return;
  if (socket.writableFinished) {
    callback();
    if (stream.readableEnded) stream.destroy();
    return;
  }
  socket.once('finish', () => callback());
  websocket.close();
}

function write(stream, chunk, callback) {
  const websocket = stream._websocket;
  if (websocket.readyState === websocket.CONNECTING) {
    websocket.once('open', () => stream._write(chunk, undefined, callback));
    return;
  }
  websocket.send(chunk, callback);
}

/** Wraps a connection in a Duplex stream. */
function createWebSocketStream(websocket, options) {
  const stream = new WebSocketStream(websocket, options);
  // Functions of their own, since programs replace and call them.
  stream._destroy = (error, callback) => destroy(stream, error, callback);
  stream._final = (callback) => final(stream, callback);
  stream._write = (chunk, encoding, callback) => write(stream, chunk, callback);
  stream._read = () => {
    if (websocket.isPaused) websocket.resume();
  };
  return stream;
}

module.exports = createWebSocketStream;
