// `sinews connect` against the `ws` package, as a client and as a server: node connect.mjs PROGRAM FOLDER
// The folder has certificate.pem and key.pem for localhost. Each check prints `ok NAME` or `FAIL NAME: why`.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Server as Proxy } from 'proxy-chain';
import WebSocket, { WebSocketServer } from 'ws';
import { checkAll, expect, repeat } from './suite.mjs';

const [program, folder] = process.argv.slice(2);
const pem = (name) => readFileSync(`${folder}/${name}.pem`);
const scratch = mkdtempSync(join(tmpdir(), 'sinews-connect-'));
process.on('exit', () => rmSync(scratch, { recursive: true }));

// The environment must not affect the checks.
const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^SINEWS_|_proxy$/i.test(name)));

/** Runs the program to its end: exit code, output, error output. */
async function run(args, input = '') {
  const child = spawn(program, ['connect', ...args], { env });
  const all = { stdout: [], stderr: [] };
  for (const name of ['stdout', 'stderr']) child[name].on('data', (data) => all[name].push(data));
  child.stdin.on('error', () => {});
  child.stdin.end(input);
  const [code] = await once(child, 'close');
  const bytes = Buffer.concat(all.stdout);
  return { code, bytes, out: bytes.toString(), err: Buffer.concat(all.stderr).toString() };
}

const fine = async (args, input) => {
  const ran = await run(args, input);
  if (ran.code !== 0) throw new Error(`exit code ${ran.code}: ${ran.err}`);
  return ran;
};
const has = (text, part) => {
  if (!text.includes(part)) throw new Error(`${JSON.stringify(part)} is not in ${JSON.stringify(text.slice(-400))}`);
};

/** An echo server; special paths have other reactions. */
function listen(server, where, options = {}) {
  const chosen = (offered) => [...offered].find((name) => name === 'v1') ?? false;
  const sockets = new WebSocketServer({ server, perMessageDeflate: { threshold: 0 }, handleProtocols: chosen, ...options });
  sockets.on('connection', (socket, request) => {
    socket.on('error', () => {});
    const path = request.url;
    if (path === '/headers') socket.send(JSON.stringify(request.headers));
    if (path === '/extensions') socket.send(socket.extensions);
    if (path === '/three') ['1', '2', '3'].forEach((text) => socket.send(text));
    if (path === '/large') socket.send('x'.repeat(2000));
    if (path === '/leave') socket.close(4000, 'because');
    if (path === '/drop') socket.terminate();
    if (path === '/certificate') socket.send(request.socket.getPeerCertificate().subjectaltname ?? 'none');
    socket.on('message', (data, isBinary) => {
      if (path !== '/quiet') socket.send(data, { binary: isBinary });
    });
    socket.on('close', (code, reason) => server.emit(`left ${path}`, code, reason.toString()));
  });
  server.on('request', (request, response) => {
    response.writeHead(request.url === '/moved' ? 302 : 403, { location: '/' });
    response.end('no');
  });
  return new Promise((resolve) => server.listen(...where, () => resolve(server.address().port)));
}

const plain = http.createServer();
const port = await listen(plain, [0, '127.0.0.1']);
const secure = https.createServer({ cert: pem('certificate'), key: pem('key'), ca: pem('certificate'), requestCert: true, rejectUnauthorized: false });
const securePort = await listen(secure, [0, '127.0.0.1']);
const unix = join(scratch, 'socket');
await listen(http.createServer(), [unix]);
const numb = http.createServer();
const numbPort = await listen(numb, [0, '127.0.0.1'], { autoPong: false });
const mute = net.createServer((socket) => socket.on('error', () => {}));
await new Promise((resolve) => mute.listen(0, '127.0.0.1', resolve));

const url = `ws://127.0.0.1:${port}`;
const wss = `wss://localhost:${securePort}`;
const recording = join(scratch, 'session.jsonl');
const headers = async (...args) => JSON.parse((await fine([...args, '--count', '1', `${url}/headers`])).out);

const checks = {
  'a line is a message': async () => expect((await fine([url], 'hi\nκόσμε\n')).out, 'hi\nκόσμε\n', 'the echo'),
  'many lines': async () => {
    const lines = Array.from({ length: 20_000 }, (_, i) => `message ${i}\n`).join('');
    expect((await fine([url], lines)).out, lines, 'the echo');
  },
  '--binary, --delimiter, --length-prefixed': async () => {
    const zeros = Buffer.from('a\n\0\xff\0', 'latin1');
    expect((await fine(['--binary', '--delimiter', '\\0', url], zeros)).bytes, zeros, 'the echo');
    const prefixed = Buffer.from('\0\0\0\x03a\nb\0\0\0\0', 'latin1');
    expect((await fine(['--binary', '--length-prefixed', url], prefixed)).bytes, prefixed, 'the echo');
  },
  '--show': async () => {
    expect((await fine(['--binary', '--show', 'hex', url], 'AB\n')).out, '41 42\n', 'hex');
    expect((await fine(['--binary', '--show', 'size', url], 'AB\n')).out, '2 bytes\n', 'the size');
    expect((await fine(['--binary', '--show', 'base64', url], 'AB\n')).out, 'QUI=\n', 'base64');
    has((await fine(['--binary', '--show', 'dump', url], 'AB\n')).out, '|AB|');
  },
  '--commands, --verbose': async () => {
    // On a separate path: earlier clients may still be connected.
    const left = once(plain, 'left /commands');
    const ran = await fine(['--commands', '--verbose', `${url}/commands`], '/ping x\n//a\n/hex 41\n/close 4001 bye\n');
    expect(ran.out, '/a\nA\n', 'the echo');
    has(ran.err, 'pong "x" after ');
    const [code, reason] = await left;
    expect(`${code} ${reason}`, '4001 bye', 'Close at the server');
  },
  '--header, --origin': async () => {
    const seen = await headers('-H', 'Cookie: a=b', '--header', 'X-A: 1', '--origin', 'https://a.example');
    expect(`${seen.cookie} ${seen['x-a']} ${seen.origin}`, 'a=b 1 https://a.example', 'the headers');
  },
  '--bearer': async () => expect((await headers('--bearer', 'abc')).authorization, 'Bearer abc', 'the header'),
  '--user': async () => expect((await headers('--user', 'a:b')).authorization, 'Basic YTpi', 'the header'),
  '--subprotocol': async () => {
    has((await fine(['-v', '--subprotocol', 'v2,v1', url])).err, 'subprotocol v1');
  },
  '--deflate': async () => {
    has((await fine(['--deflate', '--count', '1', `${url}/extensions`])).out, 'permessage-deflate');
    expect((await fine(['--count', '1', `${url}/extensions`])).out, '\n', 'without');
    const text = `${'again and '.repeat(5000)}\n`;
    expect((await fine(['--deflate', url], text.repeat(3))).out, text.repeat(3), 'the echo');
  },
  '--jsonl': async () => {
    const lines = (await fine(['--jsonl', url], 'hi\n')).out.trim().split('\n').map((line) => JSON.parse(line));
    expect(lines.map(({ kind }) => kind).join(' '), 'open text text close close end', 'the kinds');
    expect(lines[2].text, 'hi', 'the text');
    expect(lines[4].code, 1000, 'the code');
  },
  '--record, --replay, --speed, --check': async () => {
    await fine(['--record', recording, url], 'one\ntwo\n');
    expect((await fine(['--replay', recording, '--speed', 'max', '--check', url])).out, 'one\ntwo\n', 'the echo');
    expect((await run(['--replay', recording, '--check', '--wait', '200ms', `${url}/quiet`])).code, 7, 'the code');
  },
  '--wait, --count': async () => {
    expect((await fine(['--wait', '300ms', `${url}/three`])).out, '1\n2\n3\n', 'the messages');
    expect((await fine(['--count', '3', `${url}/three`])).out, '1\n2\n3\n', 'the messages');
    expect((await run(['--count', '4', '--wait', '200ms', `${url}/three`])).code, 6, 'the code');
  },
  '--timeout': async () => expect((await run(['--timeout', '200ms', '--wait', '1h', url])).code, 6, 'the code'),
  '--connect-timeout': async () => {
    expect((await run(['--connect-timeout', '200ms', `ws://127.0.0.1:${mute.address().port}`])).code, 6, 'the code');
  },
  '--ping-interval, --pong-timeout, --close-timeout': async () => {
    const waits = ['--ping-interval', '100ms', '--pong-timeout', '100ms', '--close-timeout', '200ms'];
    expect((await run([...waits, '--wait', '1h', `ws://127.0.0.1:${numbPort}`])).code, 6, 'the code');
    const ran = await fine(['--ping-interval', '100ms', '--wait', '500ms', '--jsonl', url]);
    has(ran.out, '"pong"');
  },
  '--idle-timeout': async () => {
    const ran = await run(['--idle-timeout', '200ms', '--ping-interval', 'off', '--wait', '1h', url]);
    expect(ran.code, 6, 'the code');
  },
  '--max-message': async () => {
    expect((await run(['--max-message', '1k', '--count', '1', `${url}/large`])).code, 5, 'the code');
    await fine(['--max-message', '2000', '--count', '1', `${url}/large`]);
  },
  'the codes of a refusal, a Close and an end': async () => {
    expect((await run([`ws://127.0.0.1:${port}/moved`, '--timeout', '60s'])).code, 0, 'upgraded all the same');
    const ran = await run(['--count', '1', `${url}/leave`]);
    expect(ran.code, 4, 'the code');
    has(ran.err, '4000: because');
    expect((await run(['--count', '1', `${url}/drop`])).code, 4, 'the code');
  },
  '--redirects': async () => {
    const first = http.createServer();
    first.on('upgrade', (_, socket) => socket.end(`HTTP/1.1 302 Found\r\nLocation: ${url}/\r\nContent-Length: 0\r\n\r\n`));
    await new Promise((resolve) => first.listen(0, '127.0.0.1', resolve));
    const from = `ws://127.0.0.1:${first.address().port}`;
    expect((await fine(['--redirects', '1', from], 'hi\n')).out, 'hi\n', 'the echo');
    expect((await run([from], 'hi\n')).code, 3, 'the code');
    first.close();
  },
  '--resolve, --connect-to': async () => {
    expect((await fine(['--resolve', `chat.example:${port}:127.0.0.1`, `ws://chat.example:${port}`], 'hi\n')).out, 'hi\n', 'the echo');
    expect((await fine(['--connect-to', `::127.0.0.1:${port}`, 'ws://chat.example'], 'hi\n')).out, 'hi\n', 'the echo');
  },
  '--unix': async () => expect((await fine(['--unix', unix, 'ws://localhost'], 'hi\n')).out, 'hi\n', 'the echo'),
  '--proxy, --no-proxy': async () => {
    const proxy = new Proxy({ host: '127.0.0.1', port: 0 });
    await proxy.listen();
    const through = ['--proxy', `http://127.0.0.1:${proxy.port}`];
    expect((await fine([...through, url], 'hi\n')).out, 'hi\n', 'the echo');
    expect((await fine([...through, '--ca', `${folder}/certificate.pem`, wss], 'hi\n')).out, 'hi\n', 'the echo');
    expect((await fine(['--no-proxy', url], 'hi\n')).out, 'hi\n', 'the echo');
    await proxy.close(true);
  },
  '--ca, --insecure': async () => {
    expect((await run([wss], 'hi\n')).code, 1, 'the code');
    const ran = await fine(['--insecure', wss], 'hi\n');
    expect(ran.out, 'hi\n', 'the echo');
    has(ran.err, 'WARNING: --insecure');
    expect((await fine(['--ca', `${folder}/certificate.pem`, wss], 'hi\n')).err, '', 'error output');
  },
  '--server-name': async () => {
    const trust = ['--ca', `${folder}/certificate.pem`, '--connect-to', `::127.0.0.1:${securePort}`];
    expect((await run([...trust, 'wss://chat.example'], 'hi\n')).code, 1, 'the code');
    expect((await fine([...trust, '--server-name', 'localhost', 'wss://chat.example'], 'hi\n')).out, 'hi\n', 'the echo');
  },
  '--cert, --key': async () => {
    const trust = ['--ca', `${folder}/certificate.pem`, '--count', '1'];
    expect((await fine([...trust, `${wss}/certificate`])).out, 'none\n', 'without');
    const shown = ['--cert', `${folder}/certificate.pem`, '--key', `${folder}/key.pem`];
    has((await fine([...trust, ...shown, `${wss}/certificate`])).out, 'DNS:localhost');
  },
  '--inspect, --excerpt': async () => {
    const ran = await fine(['--inspect', '--deflate', '--excerpt', '4', url], '0123456789\n');
    for (const part of ['> GET / HTTP/1.1', '< HTTP/1.1 101 ', 'rsv1 text', '"0123" … 10 bytes in all']) has(ran.out, part);
    if (ran.out.includes('! RFC')) throw new Error(`a fault in ${ran.out}`);
    const wrong = await run(['--inspect', '--commands', url], '/frame text nomask hi\n');
    has(wrong.out, '(ours) RFC 6455 section 5.1');
    has(wrong.out, '1002');
  },
  '--probe, --probe-wait': async () => {
    const ran = await run(['--probe', '--probe-wait', '1s', '--deflate', url]);
    has(ran.out, 'ok    unmasked-frame');
    has(ran.out, ' faults sent, ');
    expect((await fine(['--probe=unmasked-frame,close-1012', url])).out.split('\n').length, 4, 'the lines');
  },
  '--listen': async () => {
    const own = spawn(program, ['connect', '--listen', '127.0.0.1:0', '--echo', '--deflate', '--subprotocol', 'v1', '--max-clients', '1'], { env });
    const [said] = await once(own.stderr, 'data');
    const where = said.toString().trim().split(' ').pop();
    const client = new WebSocket(where, ['v2', 'v1']);
    await once(client, 'open');
    expect(client.protocol, 'v1', 'the subprotocol');
    expect(client.extensions.split(';')[0], 'permessage-deflate', 'the extension');
    client.send('hi');
    expect((await once(client, 'message'))[0].toString(), 'hi', 'the echo');
    const [error] = await once(new WebSocket(where), 'error');
    has(error.message, '503');
    client.close(1000);
    await once(client, 'close');
    own.kill();
  },
  '--listen --once': async () => {
    const own = spawn(program, ['connect', '--listen', '127.0.0.1:0', '--once'], { env });
    const [said] = await once(own.stderr, 'data');
    own.stdin.write('welcome\n');
    const client = new WebSocket(said.toString().trim().split(' ').pop());
    expect((await once(client, 'message'))[0].toString(), 'welcome', 'the message');
    client.close(1000);
    expect((await once(own, 'close'))[0], 0, 'the code');
  },
};

// The program waits a second for an answer unless an option says otherwise.
repeat(checks, Object.keys(checks));
await checkAll(checks);
