// The tests of the package `pusher` for real servers (tests/remote), unmodified: pusher-remote.mjs BASE LIMITED
//
// Its test of a proxy is left out: it needs a proxy, and the server sees an ordinary request.
import { spawnSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

const { host } = new URL(process.argv[2]);
const require = createRequire(import.meta.url);
const mocha = join(dirname(require.resolve('mocha/package.json')), 'bin/mocha');
const directory = dirname(require.resolve('pusher/package.json'));
const { stdout, stderr } = spawnSync(
  process.execPath,
  [mocha, '--timeout', '60000', '--reporter', 'json', '--exclude', '**/proxy.js', 'tests/remote/**/*.js'],
  {
    cwd: directory, encoding: 'utf8', timeout: 600_000,
    env: { ...process.env, PUSHER_URL: `http://278d425bdf160c739803:7ad3773142a6692b25b8@${host}/apps/3` },
  },
);
let result;
try {
  result = JSON.parse(stdout);
} catch {
  console.log(`FAIL the tests run: ${(stderr || stdout).slice(0, 400)}`);
  process.exit(1);
}
for (const { fullTitle, err } of result.tests) {
  console.log(err.message ? `FAIL ${fullTitle}: ${err.message}` : `ok ${fullTitle}`);
}
if (result.tests.length === 0) console.log('FAIL the tests run: there are none');
process.exit(result.tests.length > 0 && result.stats.failures === 0 ? 0 : 1);
