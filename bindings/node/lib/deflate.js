'use strict';

const NAME = 'permessage-deflate';
const BITS_MAX = 15;
/** The smallest window that deflate libraries compress with; all inflate what it yields, also if 8 was negotiated. */
const BITS_MIN = 9;
const LEVEL_DEFAULT = 2;
const THRESHOLD_DEFAULT = 1024;
const FLAGS = ['server_no_context_takeover', 'client_no_context_takeover'];
const BITS = ['server_max_window_bits', 'client_max_window_bits'];

/** Checks an offer's or answer's parameters, and returns them with single values. */
function normalize(params, isServer) {
  const normalized = {};
  for (const [name, values] of Object.entries(params)) {
    if (values.length > 1) throw new Error(`Parameter "${name}" must have only a single value`);
    const [value] = values;
    if (FLAGS.includes(name)) {
      if (value !== true) throw new TypeError(`Invalid value for parameter "${name}": ${value}`);
      normalized[name] = true;
    } else if (BITS.includes(name)) {
      normalized[name] = parseBits(name, value, isServer);
    } else {
      throw new Error(`Unknown parameter "${name}"`);
    }
  }
  return normalized;
}

function parseBits(name, value, isServer) {
  // A client announces that it supports a limit.
  if (value === true && isServer && name === 'client_max_window_bits') return true;
  const bits = value === true ? NaN : Number(value);
  if (!Number.isInteger(bits) || bits < 8 || bits > BITS_MAX) {
    throw new TypeError(`Invalid value for parameter "${name}": ${value}`);
  }
  return bits;
}

/** Checks the option `perMessageDeflate`. */
function checkOptions(options) {
  for (const name of ['serverMaxWindowBits', 'clientMaxWindowBits']) {
    const bits = options[name];
    if (typeof bits === 'number' && (!Number.isInteger(bits) || bits < 8 || bits > BITS_MAX)) {
      throw new RangeError(`The "perMessageDeflate.${name}" option must be an integer between 8 and ${BITS_MAX}`);
    }
  }
  const { threshold } = options;
  if (threshold != null && (typeof threshold !== 'number' || !(threshold >= 0))) {
    throw new RangeError('The "perMessageDeflate.threshold" option must be a number that is not negative');
  }
}

/** Returns a client's offer. */
function offer(options) {
  const params = {};
  if (options.serverNoContextTakeover) params.server_no_context_takeover = true;
  if (options.clientNoContextTakeover) params.client_no_context_takeover = true;
  if (options.serverMaxWindowBits) params.server_max_window_bits = options.serverMaxWindowBits;
  if (options.clientMaxWindowBits) params.client_max_window_bits = options.clientMaxWindowBits;
  else if (options.clientMaxWindowBits == null) params.client_max_window_bits = true;
  return params;
}

/** Whether a server with these options accepts an offer. */
function isAcceptable(params, { serverNoContextTakeover, serverMaxWindowBits, clientMaxWindowBits }) {
  const { server_max_window_bits: serverBits, client_max_window_bits: clientBits } = params;
  if (serverNoContextTakeover === false && params.server_no_context_takeover) return false;
  if (serverBits !== undefined) {
    if (serverMaxWindowBits === false) return false;
    if (typeof serverMaxWindowBits === 'number' && serverMaxWindowBits > serverBits) return false;
  }
  return typeof clientMaxWindowBits !== 'number' || clientBits !== undefined;
}

/** Returns a server's answer to a client's offers. */
function acceptOffer(offers, options) {
  const normalized = offers.map((params) => normalize(params, true));
  const params = normalized.find((offered) => isAcceptable(offered, options));
  if (params === undefined) throw new Error('None of the extension offers can be accepted');
  if (options.serverNoContextTakeover) params.server_no_context_takeover = true;
  if (options.clientNoContextTakeover) params.client_no_context_takeover = true;
  if (typeof options.serverMaxWindowBits === 'number') params.server_max_window_bits = options.serverMaxWindowBits;
  if (typeof options.clientMaxWindowBits === 'number') {
    params.client_max_window_bits = options.clientMaxWindowBits;
  } else if (params.client_max_window_bits === true || options.clientMaxWindowBits === false) {
    delete params.client_max_window_bits;
  }
  return params;
}

/** Checks a server's answer, and returns its parameters. */
function acceptAnswer(answers, options) {
  const params = normalize(answers[0], false);
  const { clientMaxWindowBits, clientNoContextTakeover } = options;
  if (clientNoContextTakeover === false && params.client_no_context_takeover) {
    throw new Error('Unexpected parameter "client_no_context_takeover"');
  }
  const bits = params.client_max_window_bits;
  if (bits === undefined) {
    if (typeof clientMaxWindowBits === 'number') params.client_max_window_bits = clientMaxWindowBits;
  } else if (
    clientMaxWindowBits === false ||
    (typeof clientMaxWindowBits === 'number' && bits > clientMaxWindowBits)
  ) {
    throw new Error('Unexpected or invalid parameter "client_max_window_bits"');
  }
  return params;
}

/** Returns the native part's parameters. */
function nativeParams(params, options, isServer) {
  const bits = (value) => Math.max(BITS_MIN, value ?? BITS_MAX);
  const isReset = isServer ? params.server_no_context_takeover : params.client_no_context_takeover;
  const level = options.zlibDeflateOptions?.level;
  return {
    serverNoContextTakeover: Boolean(params.server_no_context_takeover),
    clientNoContextTakeover: Boolean(params.client_no_context_takeover),
    serverMaxWindowBits: bits(params.server_max_window_bits),
    clientMaxWindowBits: bits(params.client_max_window_bits),
    level: Number.isInteger(level) && level >= 1 && level <= 9 ? level : LEVEL_DEFAULT,
    // A window that persists makes short messages worth compressing.
    threshold: isReset ? Math.min(options.threshold ?? THRESHOLD_DEFAULT, 0xffffffff) : 0
  };
}

module.exports = { NAME, acceptAnswer, acceptOffer, checkOptions, nativeParams, offer };
