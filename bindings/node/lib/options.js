'use strict';

/** Types of options; an option that is absent or null has its default. */
const TYPES = {
  backlog: 'number',
  closeTimeout: 'number',
  finishRequest: 'function',
  generateMask: 'function',
  handleProtocols: 'function',
  handshakeTimeout: 'number',
  maxBufferedAmount: 'number',
  maxFragments: 'number',
  maxPayload: 'number',
  maxRedirects: 'number',
  path: 'string',
  verifyClient: 'function',
  WebSocket: 'function'
};

/** Options that must not be negative. */
const NOT_NEGATIVE = ['closeTimeout', 'handshakeTimeout', 'maxBufferedAmount'];

/** Throws a TypeError or RangeError that names an invalid option. */
function checkOptions(options) {
  for (const [name, type] of Object.entries(TYPES)) {
    const value = options[name];
    if (value !== undefined && value !== null && typeof value !== type) {
      throw new TypeError(`The "${name}" option must be a ${type}, not ${typeof value}`);
    }
  }
  for (const name of NOT_NEGATIVE) {
    const value = options[name];
    if (typeof value === 'number' && !(value >= 0)) {
      throw new RangeError(`The "${name}" option must not be negative: ${value}`);
    }
  }
}

module.exports = { checkOptions };
