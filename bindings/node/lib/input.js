'use strict';

const { Buffer } = require('buffer');
const net = require('net');

/*
 * A socket allocates 64 KiB for each read. Its option `onread` reads into the program's memory instead, but exists only for sockets
 * that the program creates. A server's sockets get the same settings here, if this version of Node.js has them; otherwise they emit
 * `data`.
 */

const INPUT_BYTES = 64 * 1024;
/** Bytes that a socket has just received. */
const input = Buffer.allocUnsafeSlow(INPUT_BYTES);

/** The settings' keys in a socket, or null. */
const keys = findKeys();

function findKeys() {
  const socket = new net.Socket({ onread: { buffer: input, callback: findKeys } });
  const symbols = Object.getOwnPropertySymbols(socket);
  const key = (value) => symbols.filter((symbol) => socket[symbol] === value);
  const [buffers, callbacks] = [key(input), key(findKeys)];
  socket.destroy();
  return buffers.length === 1 && callbacks.length === 1 ? { buffer: buffers[0], callback: callbacks[0] } : null;
}

/** Lets a socket read into the shared memory, and call a function with the number of bytes. */
function attachInput(socket, callback) {
  const { _handle: handle } = socket;
  if (keys === null || socket.constructor !== net.Socket || typeof handle?.useUserBuffer !== 'function') return;
  if (socket[keys.buffer]) return;
  socket[keys.buffer] = input;
  socket[keys.callback] = callback;
  handle.useUserBuffer(input);
}

/** Returns a copy of the latest bytes, or of a part. */
function copyInput(length, start = 0) {
  const chunk = Buffer.allocUnsafe(length);
  input.copy(chunk, 0, start, start + length);
  return chunk;
}

module.exports = { INPUT_BYTES, attachInput, copyInput, input };
