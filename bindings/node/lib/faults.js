'use strict';

const { constants } = require('zlib');

const PREFIX = 'Invalid WebSocket frame: ';

/** Messages of the package `ws` for its error codes; other faults have the engine's description. */
const MESSAGES = {
  WS_ERR_EXPECTED_FIN: () => `${PREFIX}FIN must be set`,
  WS_ERR_EXPECTED_MASK: () => `${PREFIX}MASK must be set`,
  WS_ERR_INVALID_CLOSE_CODE: ({ value }) => `${PREFIX}invalid status code ${value}`,
  WS_ERR_INVALID_CONTROL_PAYLOAD_LENGTH: ({ value, detail }) =>
    value === undefined || value === null ? `${PREFIX}${detail}` : `${PREFIX}invalid payload length ${value}`,
  WS_ERR_INVALID_OPCODE: ({ value, detail }) =>
    value === undefined || value === null ? `${PREFIX}${detail}` : `${PREFIX}invalid opcode ${value}`,
  WS_ERR_INVALID_UTF8: () => `${PREFIX}invalid UTF-8 sequence`,
  WS_ERR_TOO_MANY_BUFFERED_PARTS: () => 'Too many message fragments',
  WS_ERR_UNEXPECTED_MASK: () => `${PREFIX}MASK must be clear`,
  WS_ERR_UNEXPECTED_RSV_1: () => `${PREFIX}RSV1 must be clear`,
  WS_ERR_UNEXPECTED_RSV_2_3: () => `${PREFIX}RSV2 and RSV3 must be clear`,
  WS_ERR_UNSUPPORTED_DATA_PAYLOAD_LENGTH: () => 'Unsupported WebSocket frame: payload length > 2^53 - 1',
  WS_ERR_UNSUPPORTED_MESSAGE_LENGTH: () => 'Max payload size exceeded',
  Z_DATA_ERROR: ({ detail }) => detail
};

/** Creates the error for a peer's fault. */
function faultError(closed, isCompressing) {
  let { fault } = closed;
  // Without an extension, a peer that compresses is the likely cause.
  if (fault === 'WS_ERR_UNEXPECTED_RSV_2_3' && !isCompressing) fault = 'WS_ERR_UNEXPECTED_RSV_1';
  const message = Object.hasOwn(MESSAGES, fault) ? MESSAGES[fault](closed) : `${PREFIX}${closed.detail}`;
  const isPlain = fault === 'WS_ERR_INVALID_UTF8' || fault === 'Z_DATA_ERROR';
  const error = isPlain ? new Error(message) : new RangeError(message);
  error.code = fault;
  if (fault === 'Z_DATA_ERROR') error.errno = constants.Z_DATA_ERROR;
  return error;
}

module.exports = { faultError };
