// Runs the test suite of the npm package ws against this package.
//
//   node suite.mjs <checkout of github.com/websockets/ws> [filter]
//
// Tests for classes inside ws (Receiver, Sender, PerMessageDeflate, ...) do not apply. The suite's own helper for raw frames,
// lib/sender, stays that of ws.

import Module from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import Mocha from 'mocha';

import { KNOWN } from './suite-known.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const checkout = path.resolve(process.argv[2] ?? '.');
const filter = process.argv[3];
const FILES = ['websocket.test.js', 'websocket-server.test.js', 'create-websocket-stream.test.js', 'event-target.test.js'];
const OURS = {
  '..': 'ws.js',
  '../': 'ws.js',
  '../lib/constants': 'lib/constants.js',
  '../lib/event-target': 'lib/events.js',
  '../lib/stream': 'lib/stream.js'
};

const resolve = Module._resolveFilename;
Module._resolveFilename = function (request, parent, ...rest) {
  const isTest = parent?.filename?.startsWith(path.join(checkout, 'test'));
  if (isTest && Object.hasOwn(OURS, request)) return path.join(here, OURS[request]);
  return resolve.call(this, request, parent, ...rest);
};

process.chdir(checkout);
const mocha = new Mocha({ timeout: 5000, grep: filter, reporter: class {} });
for (const file of FILES) mocha.addFile(path.join(checkout, 'test', file));

const passed = new Set();
let skipped = 0;
const failures = new Map();
const runner = mocha.run(() => {
  const unknown = [...failures.keys()].filter((title) => !KNOWN.has(title));
  const fixed = filter ? [] : [...KNOWN.keys()].filter((title) => !failures.has(title));
  // A case that ends twice has passed and failed.
  for (const title of failures.keys()) passed.delete(title);
  console.log(`passed ${passed.size}, failed ${failures.size}, skipped ${skipped}`);
  for (const title of unknown) console.log(`unexpected failure: ${title}\n  ${failures.get(title)}`);
  for (const title of fixed) console.log(`expected to fail, but passed: ${title}`);
  process.exit(unknown.length + fixed.length > 0 ? 1 : 0);
});
runner.on('pass', (test) => passed.add(test.fullTitle()));
runner.on('pending', () => skipped++);
runner.on('fail', (test, error) => {
  failures.set(test.fullTitle(), error.stack.split('\n').slice(0, 3).join('\n  '));
});
