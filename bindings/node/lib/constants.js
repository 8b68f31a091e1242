'use strict';

const BINARY_TYPES = ['nodebuffer', 'arraybuffer', 'fragments'];
if (typeof Blob !== 'undefined') BINARY_TYPES.push('blob');

module.exports = {
  BINARY_TYPES,
  /** Milliseconds that the peer has to finish the closing handshake. */
  CLOSE_TIMEOUT: 30_000,
  EMPTY_BUFFER: Buffer.alloc(0),
  /** Constructs views that are Buffers. */
  FastBuffer: Buffer[Symbol.species],
  /** The key's suffix in the handshake (RFC 6455 section 1.3). */
  GUID: '258EAFA5-E914-47DA-95CA-C5AB0DC85B11',
  /** Bun ends the process when an addon asks its loop to wait for a descriptor. */
  LOOP_CANNOT_WAIT: process.versions.bun !== undefined || process.versions.deno !== undefined,
  /** Default limit for `bufferedAmount`. */
  MAX_BUFFERED: 1024 * 1024 * 1024,
  NOOP() {},
  hasBlob: typeof Blob !== 'undefined',
  kForOnEventAttribute: Symbol('kIsForOnEventAttribute'),
  kListener: Symbol('kListener'),
  kWebSocket: Symbol('websocket')
};
