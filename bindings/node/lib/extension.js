'use strict';

/** A token (RFC 9110 section 5.6.2), or a quoted string. */
const TOKEN = /[!#$%&'*+\-.0-9A-Z^_`a-z|~]+/y;
const QUOTED = /"((?:[^"\\]|\\.)*)"/y;
const SPACE = /[ \t]*/y;

/** Reads a header's text from left to right. */
class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found !== null) this.at = pattern.lastIndex;
    return found;
  }

  fail() {
    const { text, at } = this;
    const what = at < text.length ? `Unexpected character at index ${at}` : 'Unexpected end of input';
    throw new SyntaxError(what);
  }

  token() {
    this.match(SPACE);
    const found = this.match(TOKEN) ?? this.fail();
    this.match(SPACE);
    return found[0];
  }

  /** Skips a separator. Returns whether it was there. */
  skip(separator) {
    if (this.text[this.at] !== separator) return false;
    this.at++;
    return true;
  }

  value() {
    this.match(SPACE);
    const quoted = this.match(QUOTED);
    if (quoted === null) return this.token();
    this.match(SPACE);
    const value = quoted[1].replace(/\\(.)/g, '$1');
    TOKEN.lastIndex = 0;
    if (TOKEN.exec(value)?.[0].length !== value.length) this.fail();
    return value;
  }
}

/**
 * Parses `Sec-WebSocket-Extensions`. Returns an object with a list of offers for each extension; an offer has a list of values for
 * each parameter.
 */
function parse(header) {
  const offers = Object.create(null);
  const reader = new Reader(header);
  do {
    const name = reader.token();
    const params = Object.create(null);
    while (reader.skip(';')) {
      const param = reader.token();
      (params[param] ??= []).push(reader.skip('=') ? reader.value() : true);
    }
    (offers[name] ??= []).push(params);
  } while (reader.skip(','));
  if (reader.at !== header.length) reader.fail();
  return offers;
}

/** Writes the header that {@link parse} reads. */
function format(extensions) {
  const texts = [];
  for (const [name, offers] of Object.entries(extensions)) {
    for (const params of [offers].flat()) {
      let text = name;
      for (const [param, values] of Object.entries(params)) {
        for (const value of [values].flat()) text += value === true ? `; ${param}` : `; ${param}=${value}`;
      }
      texts.push(text);
    }
  }
  return texts.join(', ');
}

module.exports = { format, parse };
