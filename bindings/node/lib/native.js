'use strict';

const { existsSync } = require('fs');
const path = require('path');

/** Returns the system's name in the binaries' names: `linux-x64-gnu`. */
function systemName() {
  const { platform, arch } = process;
  if (platform !== 'linux') return `${platform}-${arch}`;
  const { header } = process.report.getReport();
  return `${platform}-${arch}-${header.glibcVersionRuntime ? 'gnu' : 'musl'}`;
}

/** Loads the native part. One binary serves all versions of Node.js (Node-API 8). */
function load() {
  const system = systemName();
  const file = path.join(__dirname, '..', `sinews.${system}.node`);
  if (!existsSync(file)) {
    throw new Error(`sinews has no binary for ${system}: ${file} does not exist`);
  }
  return require(file);
}

module.exports = load();
