'use strict';

const { toBuffer } = require('./data');

/** Sends that wait, in order, for a Blob before them to be read. */
class BlobQueue {
  constructor(websocket) {
    this.websocket = websocket;
    this.waiting = [];
    this.bytes = 0;
    this.isReading = false;
  }

  /** Queues a Blob, or data behind one. */
  push(entry) {
    this.waiting.push(entry);
    this.bytes += entry.size;
    if (!this.isReading) this.#next();
  }

  #next() {
    while (this.waiting.length > 0) {
      const [entry] = this.waiting;
      if (entry.blob !== undefined) {
        this.isReading = true;
        entry.blob.arrayBuffer().then(
          (data) => process.nextTick(() => this.#finish(entry, data)),
          (error) => process.nextTick(() => this.#fail(error))
        );
        return;
      }
      this.#shift();
      entry.run();
    }
    this.websocket._blobs = null;
  }

  #shift() {
    this.bytes -= this.waiting.shift().size;
  }

  #finish(entry, data) {
    if (this.websocket._blobs !== this) return;
    this.isReading = false;
    if (this.websocket._socket.destroyed) {
      this.abort(new Error('The socket was closed while the blob was being read'));
      return;
    }
    this.#shift();
    entry.run(toBuffer(data));
    this.#next();
  }

  #fail(error) {
    if (this.websocket._blobs !== this) return;
    this.abort(error);
    this.websocket._failSending(error);
  }

  /** Calls all callbacks with an error. */
  abort(error) {
    this.websocket._blobs = null;
    for (const { callback } of this.waiting) if (typeof callback === 'function') callback(error);
  }
}

module.exports = { BlobQueue };
