// The integration cases of the package `pusher-js` (spec/javascripts/integration), unmodified, with the client of the
// package in Node, and in a page of Chromium: pusher-js-tests.mjs BASE LIMITED
//
// The cases name modules of the library's build and hosts of the hosted service. Here, these names lead to the published
// build, to this server, and for TLS to a proxy in front of it. The cases wait 5 and 10 seconds to see that nothing happens;
// here, a tenth of it. Cases of the HTTP fallbacks, and those whose server is a mock in the library itself, are left out.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import tls from 'node:tls';
import Server from 'pusher';
import Pusher from 'pusher-js';

const { port } = new URL(process.argv[2]);
const require = createRequire(import.meta.url);

/** Runs this script again, with a certificate that Node trusts from its start. */
function runWithCertificate() {
  const directory = mkdtempSync(join(tmpdir(), 'pusher-js-'));
  const [key, certificate] = [join(directory, 'key.pem'), join(directory, 'certificate.pem')];
  const made = spawnSync('openssl', [
    'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
    '-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost', '-keyout', key, '-out', certificate,
  ]);
  if (made.status !== 0) {
    console.log(`FAIL the certificate: ${made.error ?? made.stderr}`.slice(0, 400));
    process.exit(1);
  }
  const { status } = spawnSync(process.execPath, process.argv.slice(1), {
    stdio: 'inherit',
    env: { ...process.env, NODE_EXTRA_CA_CERTS: certificate, PUSHER_JS_TLS: directory },
  });
  rmSync(directory, { recursive: true });
  process.exit(status ?? 1);
}

if (!process.env.PUSHER_JS_TLS) runWithCertificate();

/** The apps of the cases; their keys are those of dev/interop/pusher/sinews.toml. */
const apps = [['5', 'c49a449b916bb4246729'], ['6', 'cb7d5e50f5669e5c9ae6']].map(
  ([appId, key]) => new Server({ appId, key, secret: 'integration', host: '127.0.0.1', port, useTLS: false }),
);

const listening = (server) => new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server.address().port)));

/** As the server of the cases: it signs data of a member for each channel, also for private ones. */
const signer = (app) => listening(http.createServer(async (request, response) => {
  let text = '';
  for await (const chunk of request) text += chunk;
  const body = new URLSearchParams(text);
  const [socketId, channel] = [body.get('socket_id'), body.get('channel_name')];
  const member = {
    user_id: socketId,
    user_info: { name: `Integration ${socketId}`, email: `integration-${socketId}@example.com` },
  };
  response.setHeader('Content-Type', 'application/json');
  // The page of Chromium has another origin.
  response.setHeader('Access-Control-Allow-Origin', '*');
  response.end(JSON.stringify(app.authorizeChannel(socketId, channel, member)));
}));

/** A proxy that terminates TLS. */
const tlsPort = await listening(tls.createServer({
  key: readFileSync(join(process.env.PUSHER_JS_TLS, 'key.pem')),
  cert: readFileSync(join(process.env.PUSHER_JS_TLS, 'certificate.pem')),
}, (socket) => {
  const server = net.connect(Number(port), '127.0.0.1');
  for (const [one, other] of [[socket, server], [server, socket]]) {
    one.pipe(other);
    one.on('error', () => other.destroy());
  }
}));
const urls = await Promise.all(apps.map(async (app) => `http://127.0.0.1:${await signer(app)}`));

const spec = join(dirname(require.resolve('pusher-js/package.json')), 'spec/javascripts');
const sources = Object.fromEntries([
  'integration/core/pusher_spec/test_builder.js', 'integration/core/cluster_config_spec.js', 'helpers/waitsFor.js',
].map((path) => [path, readFileSync(join(spec, path), 'utf8')]));

/** Defines the cases with the globals of Jasmine, in Node or in a page. Calls the server's API by `trigger`. */
function defineCases(Pusher, { sources, urls, port, tlsPort }, trigger) {
  class RedirectedPusher extends Pusher {
    constructor(key, options) {
      super(key, {
        authEndpoint: `${urls[0]}/auth`, ...options,
        wsHost: 'localhost', wsPort: Number(port), wssPort: tlsPort, disableStats: true,
      });
    }
  }
  const modules = {
    testenv: 'worker', // neither JSONP nor a script of a CDN
    pusher_integration: RedirectedPusher,
    runtime: { default: Pusher.Runtime },
    integration: {
      API_URL: urls[0],
      API_EU_URL: urls[1],
      describe: (name, body) => globalThis.describe(name, body),
      getRandomName: (prefix) => `${prefix}_${Date.now()}_${Math.floor(Math.random() * 1_000_000)}`,
      sendAPIMessage: ({ url, channel, event, data }) => trigger(urls.findIndex((known) => url.startsWith(known)), channel, event, data),
    },
    'core/utils/collections': {
      objectApply: (object, apply) => Object.entries(object).forEach(([name, value]) => apply(value, name)),
    },
    'core/defaults': { default: {} },
    'dom/dependencies': {},
    'dom/dependency_loader': {},
  };
  /** Runs a file of the package, with these modules; the clock of a case has waits of a tenth. */
  const load = (path) => {
    const module = { exports: {} };
    const find = (name) => (name.startsWith('.') ? load(`${new URL(name, `file:///${path}`).pathname.slice(1)}.js`) : modules[name]);
    const soon = (callback, ms) => setTimeout(callback, ms / 10);
    const clock = path.startsWith('helpers/') ? setTimeout : soon;
    new Function('require', 'module', 'exports', 'setTimeout', sources[path])(find, module, module.exports, clock);
    return module.exports;
  };
  // The default of 5 s is less than a machine stalls.
  globalThis.jasmine.DEFAULT_TIMEOUT_INTERVAL = 60_000;
  const transports = [{ transport: 'ws', forceTLS: true }, { transport: 'ws', forceTLS: false }];
  describe('Pusher', () => transports.forEach(load('integration/core/pusher_spec/test_builder.js').build));
  load('integration/core/cluster_config_spec.js')(transports);
}

const settings = { sources, urls, port, tlsPort };
let [passed, failed] = [0, 0];
function report(where, { fullName, status, failures }) {
  if (status === 'passed') passed += 1;
  else failed += 1;
  const name = `${where}: ${fullName}`;
  console.log(status === 'passed' ? `ok ${name}` : `FAIL ${name}: ${failures.join('; ') || status}`.slice(0, 400));
}

async function runInNode() {
  const Jasmine = require('jasmine');
  const jasmine = new Jasmine();
  jasmine.exitOnCompletion = false;
  jasmine.env.configure({ random: false });
  jasmine.clearReporters();
  jasmine.addReporter({
    specDone: ({ fullName, status, failedExpectations }) => report('Node', {
      fullName, status, failures: failedExpectations.map(({ message }) => message),
    }),
  });
  defineCases(Pusher, settings, (app, ...event) => apps[app].trigger(...event));
  await jasmine.execute();
}

/** Runs the cases in the page, and posts their results. */
async function runInPage(defineCases, settings) {
  const post = (path, value) => fetch(path, { method: 'POST', body: JSON.stringify(value) });
  const jasmine = jasmineRequire.core(jasmineRequire);
  const env = jasmine.getEnv();
  Object.assign(window, { jasmine }, jasmineRequire.interface(jasmine, env));
  env.configure({ random: false });
  env.addReporter({
    specDone: ({ fullName, status, failedExpectations }) => post('/result', {
      fullName, status, failures: failedExpectations.map(({ message }) => message),
    }),
  });
  defineCases(Pusher, settings, (...event) => post('/trigger', event));
  await env.execute();
  await post('/end', {});
}

async function runInChromium() {
  const program = ['chromium', 'chromium-browser', 'google-chrome'].find((name) => !spawnSync(name, ['--version']).error);
  if (!program) return console.log('skipped cases in Chromium: no chromium (apt-get install chromium)');
  const scripts = {
    '/jasmine.js': join(dirname(require.resolve('jasmine-core/package.json')), 'lib/jasmine-core/jasmine.js'),
    '/pusher.js': join(dirname(require.resolve('pusher-js/package.json')), 'dist/web/pusher.js'),
  };
  const page = `<!doctype html><title>pusher-js</title>
    <script src="/jasmine.js"></script><script src="/pusher.js"></script>
    <script>${defineCases}(${runInPage})(defineCases, ${JSON.stringify(settings).replaceAll('<', '\\u003c')})</script>`;
  let end;
  const ended = new Promise((resolve) => { end = resolve; });
  const server = http.createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request) text += chunk;
    const value = text && JSON.parse(text);
    if (request.url === '/') return response.setHeader('Content-Type', 'text/html; charset=utf-8').end(page);
    if (request.url in scripts) return response.setHeader('Content-Type', 'text/javascript; charset=utf-8').end(readFileSync(scripts[request.url]));
    if (request.url === '/result') report('Chromium', value);
    if (request.url === '/trigger') await apps[value[0]].trigger(...value.slice(1));
    if (request.url === '/end') end('end');
    return response.end('{}');
  });
  const profile = mkdtempSync(join(tmpdir(), 'pusher-js-chromium-'));
  const chromium = spawn(program, [
    '--headless=new', '--no-sandbox', '--disable-gpu', '--ignore-certificate-errors', '--remote-debugging-port=0',
    `--user-data-dir=${profile}`, `http://127.0.0.1:${await listening(server)}/`,
  ], { stdio: 'ignore' });
  const exited = new Promise((resolve) => chromium.on('exit', () => resolve('exit')));
  const late = new Promise((resolve) => setTimeout(resolve, 600_000, 'late').unref());
  const how = await Promise.race([ended, exited, late]);
  if (how !== 'end') report('Chromium', { fullName: 'the cases run', status: how, failures: [] });
  chromium.kill();
  await exited;
  // Its other processes exit a moment later.
  rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
}

await runInNode();
const inNode = passed;
await runInChromium();
if (inNode === 0) console.log('FAIL the cases run: there are none');
process.exit(failed === 0 && inNode > 0 ? 0 : 1);
