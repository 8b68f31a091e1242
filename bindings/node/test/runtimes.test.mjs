import assert from 'node:assert';
import { execFile } from 'node:child_process';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const PROGRAM = path.join(path.dirname(fileURLToPath(import.meta.url)), 'program.cjs');
const EXPECTED = [
  'fixed', 201, 'body', ['hello'], 101, 'm99', 'last', 1011, ['as asked'], 'permessage-deflate', 100_000, 4000, 'bye',
];

/** Commands of runtimes with Node-API, and how to install them. */
const RUNTIMES = [
  [[process.execPath], ''],
  [['bun'], 'npm install --global bun'],
  [['deno', 'run', '--allow-all'], 'npm install --global deno'],
];

for (const [[command, ...options], install] of RUNTIMES) {
  test(`${path.basename(command)} runs both faces, and ends`, async (t) => {
    try {
      const { stdout } = await promisify(execFile)(command, [...options, PROGRAM], { timeout: 60_000 });
      assert.deepStrictEqual(JSON.parse(stdout), EXPECTED);
    } catch (error) {
      if (error.code !== 'ENOENT') throw error;
      t.skip(`no ${command}: ${install}`);
    }
  });
}
