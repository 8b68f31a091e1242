'use strict';

const TOKEN = /^[!#$%&'*+\-.0-9A-Z^_`a-z|~]+$/;

/** Whether a text may name a subprotocol. */
function isToken(text) {
  return typeof text === 'string' && TOKEN.test(text);
}

/** Parses `Sec-WebSocket-Protocol` into a set. */
function parse(header) {
  const protocols = new Set();
  for (const item of header.split(',')) {
    const protocol = item.replace(/^[ \t]+|[ \t]+$/g, '');
    if (!isToken(protocol)) throw new SyntaxError(`Invalid subprotocol: ${protocol}`);
    if (protocols.has(protocol)) throw new SyntaxError(`The "${protocol}" subprotocol is duplicated`);
    protocols.add(protocol);
  }
  return protocols;
}

module.exports = { isToken, parse };
