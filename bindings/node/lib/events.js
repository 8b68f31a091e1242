'use strict';

const { kForOnEventAttribute, kListener } = require('./constants');

const kTarget = Symbol('target');
const kFields = Symbol('fields');

/** Defines enumerable getters for a class's fields. */
function defineFields(type, names) {
  for (const name of names) {
    Object.defineProperty(type.prototype, name, {
      configurable: true,
      enumerable: true,
      get() {
        return this[kFields][name];
      }
    });
  }
}

/** An event for listeners in the manner of browsers. */
class Event {
  constructor(type) {
    if (type === undefined) throw new TypeError('The "type" argument must be specified');
    this[kTarget] = null;
    this[kFields] = { type };
  }

  get target() {
    return this[kTarget];
  }
}
Object.defineProperty(Event.prototype, 'target', { enumerable: true });
defineFields(Event, ['type']);

class CloseEvent extends Event {
  constructor(type, { code = 0, reason = '', wasClean = false } = {}) {
    super(type);
    Object.assign(this[kFields], { code, reason, wasClean });
  }
}
defineFields(CloseEvent, ['code', 'reason', 'wasClean']);

class ErrorEvent extends Event {
  constructor(type, { error = null, message = '' } = {}) {
    super(type);
    Object.assign(this[kFields], { error, message });
  }
}
defineFields(ErrorEvent, ['error', 'message']);

class MessageEvent extends Event {
  constructor(type, { data = null } = {}) {
    super(type);
    Object.assign(this[kFields], { data });
  }
}
defineFields(MessageEvent, ['data']);

/** Creates the event for an emitter's arguments. */
const CREATE = {
  open: () => new Event('open'),
  message: (_, data, isBinary) => new MessageEvent('message', { data: isBinary ? data : data.toString() }),
  error: (_, error) => new ErrorEvent('error', { error, message: error.message }),
  close: (websocket, code, reason) =>
    new CloseEvent('close', {
      code,
      reason: reason.toString(),
      wasClean: websocket._closeFrameReceived && websocket._closeFrameSent
    })
};

function call(handler, target, event) {
  if (typeof handler === 'object' && handler.handleEvent) handler.handleEvent.call(handler, event);
  else handler.call(target, event);
}

/** Finds the listener that calls a handler. */
function find(emitter, type, predicate) {
  return emitter.listeners(type).find((listener) => listener[kListener] && predicate(listener));
}

/** Methods and attributes of browsers' WebSocket. */
const EventTargetMethods = {
  addEventListener(type, handler, options = {}) {
    const create = Object.hasOwn(CREATE, type) ? CREATE[type] : undefined;
    if (create === undefined) return;
    const isAttribute = Boolean(options[kForOnEventAttribute]);
    const isSame = (listener) => listener[kListener] === handler && !listener[kForOnEventAttribute];
    if (!isAttribute && find(this, type, isSame)) return;

    function listener(...args) {
      const event = create(this, ...args);
      event[kTarget] = this;
      call(handler, this, event);
    }
    listener[kForOnEventAttribute] = isAttribute;
    listener[kListener] = handler;
    if (options.once) this.once(type, listener);
    else this.on(type, listener);
  },

  removeEventListener(type, handler) {
    const listener = find(this, type, (found) => found[kListener] === handler && !found[kForOnEventAttribute]);
    if (listener) this.removeListener(type, listener);
  }
};

/** Defines `onopen`, `onmessage`, `onerror` and `onclose`. */
function defineAttributes(prototype) {
  for (const type of Object.keys(CREATE)) {
    Object.defineProperty(prototype, `on${type}`, {
      configurable: true,
      enumerable: true,
      get() {
        const listener = find(this, type, (found) => found[kForOnEventAttribute]);
        return listener ? listener[kListener] : null;
      },
      set(handler) {
        const listener = find(this, type, (found) => found[kForOnEventAttribute]);
        if (listener) this.removeListener(type, listener);
        if (typeof handler !== 'function') return;
        this.addEventListener(type, handler, { [kForOnEventAttribute]: true });
      }
    });
  }
}

module.exports = { CloseEvent, ErrorEvent, Event, EventTargetMethods, MessageEvent, defineAttributes };
