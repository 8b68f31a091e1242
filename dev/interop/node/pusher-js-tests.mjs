// The integration cases of the package `pusher-js` (spec/javascripts/integration), unmodified, with the client of the
// package: pusher-js-tests.mjs BASE LIMITED
//
// The cases name modules of the library's build and hosts of the hosted service. Here, these names lead to the published
// build, to this server, and for TLS to a proxy in front of it. The cases wait 5 and 10 seconds to see that nothing happens;
// here, a tenth of it. Cases whose server is a mock in the library itself are left out.
import { spawnSync } from 'node:child_process';
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

class RedirectedPusher extends Pusher {
  constructor(key, options) {
    super(key, {
      authEndpoint: `${urls[0]}/auth`, ...options,
      wsHost: 'localhost', wsPort: Number(port), wssPort: tlsPort, disableStats: true,
    });
  }
}

const directory = join(dirname(require.resolve('pusher-js/package.json')), 'spec/javascripts');
const modules = {
  testenv: 'node',
  pusher_integration: RedirectedPusher,
  runtime: { default: Pusher.Runtime },
  integration: {
    API_URL: urls[0],
    API_EU_URL: urls[1],
    describe: (name, body) => globalThis.describe(name, body),
    getRandomName: (prefix) => `${prefix}_${Date.now()}_${Math.floor(Math.random() * 1_000_000)}`,
    sendAPIMessage: ({ url, channel, event, data }) => apps[urls.findIndex((known) => url.startsWith(known))].trigger(channel, event, data),
  },
  'core/utils/collections': {
    objectApply: (object, apply) => Object.entries(object).forEach(([name, value]) => apply(value, name)),
  },
  'core/defaults': { default: {} },
  'dom/dependencies': {},
  'dom/dependency_loader': {},
};

/** Runs a file of the package, with these modules and a clock whose waits are a tenth. */
function load(file) {
  const module = { exports: {} };
  const find = (name) => (name.startsWith('.') ? require(join(dirname(file), name)) : modules[name]);
  const soon = (callback, ms) => setTimeout(callback, ms / 10);
  new Function('require', 'module', 'exports', 'setTimeout', readFileSync(file, 'utf8'))(find, module, module.exports, soon);
  return module.exports;
}

const Jasmine = require('jasmine');
const jasmine = new Jasmine();
jasmine.exitOnCompletion = false;
jasmine.env.configure({ random: false });
jasmine.clearReporters();
let passed = 0;
jasmine.addReporter({
  specDone({ fullName, status, failedExpectations }) {
    if (status === 'passed') {
      passed += 1;
      console.log(`ok ${fullName}`);
    } else {
      console.log(`FAIL ${fullName}: ${failedExpectations.map(({ message }) => message).join('; ') || status}`.slice(0, 400));
    }
  },
});
const transports = [{ transport: 'ws', forceTLS: true }, { transport: 'ws', forceTLS: false }];
const core = join(directory, 'integration/core');
describe('Pusher', () => transports.forEach(load(join(core, 'pusher_spec/test_builder.js')).build));
load(join(core, 'cluster_config_spec.js'))(transports);
const { overallStatus } = await jasmine.execute();
if (passed === 0) console.log('FAIL the cases run: there are none');
process.exit(overallStatus === 'passed' && passed > 0 ? 0 : 1);
