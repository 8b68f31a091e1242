'use strict';

const { Buffer } = require('buffer');

const { FastBuffer, hasBlob } = require('./constants');

/** Whether a value is a Blob, of this or another implementation. */
function isBlob(value) {
  return (
    hasBlob &&
    typeof value === 'object' &&
    value !== null &&
    typeof value.arrayBuffer === 'function' &&
    typeof value.stream === 'function' &&
    (value[Symbol.toStringTag] === 'Blob' || value[Symbol.toStringTag] === 'File')
  );
}

/** Returns binary data as a Buffer, without a copy where possible. */
function toBuffer(data) {
  if (Buffer.isBuffer(data)) return data;
  if (data instanceof ArrayBuffer) return new FastBuffer(data);
  if (ArrayBuffer.isView(data)) return new FastBuffer(data.buffer, data.byteOffset, data.byteLength);
  return Buffer.from(data);
}

/** Returns the payload's length in bytes. */
function byteLength(data) {
  if (typeof data === 'string') return Buffer.byteLength(data);
  return isBlob(data) ? data.size : toBuffer(data).length;
}

/** Returns a received binary payload as `binaryType` asks. */
function toBinaryType(data, binaryType) {
  switch (binaryType) {
    case 'arraybuffer':
      if (data.byteLength === data.buffer.byteLength) return data.buffer;
      return data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
    case 'blob':
      return new Blob([data]);
    case 'fragments':
      return [data];
    default:
      return data;
  }
}

/** Whether a close code may appear in a Close frame (RFC 6455 section 7.4). */
function isValidCloseCode(code) {
  return (
    (code >= 1000 && code <= 1014 && code !== 1004 && code !== 1005 && code !== 1006) ||
    (code >= 3000 && code <= 4999)
  );
}

module.exports = { byteLength, isBlob, isValidCloseCode, toBinaryType, toBuffer };
