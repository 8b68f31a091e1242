// The HTTP API for backends, through a generated client: node openapi.mjs BASE SECRET KEY RESTRICTED-KEY
//
// The served document is validated, `openapi-typescript` generates types from it, and `tsc` compiles the calls against these
// types. Each answer is checked against the schema of its operation, and no operation may be left out.
import { execFileSync } from 'node:child_process';
import { createHmac } from 'node:crypto';
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import SwaggerParser from '@apidevtools/swagger-parser';
import Ajv from 'ajv/dist/2020.js';
import openapi, { astToString } from 'openapi-typescript';
import WebSocket from 'ws';
import { checkAll, expect } from './suite.mjs';

const [base, secret, key, restricted] = process.argv.slice(2);
const origin = base.replace('ws:', 'http:');
const here = dirname(fileURLToPath(import.meta.url));
// Beside the packages, which Node finds from there.
const folder = mkdtempSync(join(here, 'openapi-'));
process.on('exit', () => rmSync(folder, { recursive: true }));

const document = await (await fetch(`${origin}/api/v1/openapi.json`)).json();
const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({ route: `${method.toUpperCase()} ${path}`, operation })),
);
/** Operations with a successful answer, and operations with a failed one. */
const called = { succeeded: new Set(), failed: new Set() };

/** Checks each answer against the document, and notes its operation. */
const ajv = new Ajv({ strict: true, allowUnionTypes: true });
ajv.addVocabulary(['components']);
ajv.addSchema({ $id: 'document', components: document.components }, 'document');
const observer = {
  async onResponse({ request, response, schemaPath }) {
    const route = `${request.method} ${schemaPath}`;
    const operation = operations.find((listed) => listed.route === route)?.operation;
    if (operation === undefined) throw new Error(`${route} is not in the document`);
    const answer = operation.responses[response.status] ?? operation.responses.default;
    const [type, description] = Object.entries(answer.content)[0];
    expect(response.headers.get('Content-Type')?.split(';')[0], type, `the type of ${route}`);
    const body = await response.clone().json();
    const reference = description.schema.$ref;
    const schema = reference ? { $ref: `document${reference}` } : description.schema;
    if (!ajv.validate(schema, body)) {
      throw new Error(`${route}: ${ajv.errorsText()} in ${JSON.stringify(body).slice(0, 200)}`);
    }
    called[response.ok ? 'succeeded' : 'failed'].add(route);
  },
};

const encoded = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
function tokenOf(user) {
  const exp = Math.floor(Date.now() / 1000) + 3600;
  const content = `${encoded({ alg: 'HS256', typ: 'JWT' })}.${encoded({ sub: user, publish: '>', subscribe: '>', exp })}`;
  return `${content}.${createHmac('sha256', secret).update(content).digest('base64url')}`;
}

async function connectUser(user) {
  const socket = new WebSocket(`${base}/ws?token=${tokenOf(user)}`);
  const closed = new Promise((resolve) => socket.on('close', resolve));
  const waiting = [];
  const next = () => new Promise((resolve) => waiting.push(resolve));
  socket.on('message', (text) => waiting.shift()?.(JSON.parse(text)));
  socket.on('error', (error) => waiting.shift()?.({ op: error.message }));
  const welcome = await next();
  expect(welcome.op, 'welcome', 'the first message');
  for (const request of [
    { op: 'subscribe', id: 1, topic: 'chat.room' },
    { op: 'join', id: 2, topic: 'chat.room', member: { id: user, info: { n: 1 } } },
  ]) {
    const acknowledged = next();
    socket.send(JSON.stringify(request));
    expect((await acknowledged).op, 'ack', `the answer to ${request.op}`);
  }
  return { id: welcome.connection, closed };
}

/** Generates the types, compiles the calls with them, and loads the calls. */
async function compiled() {
  const sources = { 'openapi-schema.d.ts': astToString(await openapi(document)), 'package.json': '{"type":"module"}' };
  for (const [name, text] of Object.entries(sources)) writeFileSync(join(folder, name), text);
  copyFileSync(join(here, 'openapi-calls.ts'), join(folder, 'openapi-calls.ts'));
  const options = '--strict --noUncheckedIndexedAccess --skipLibCheck --target es2022 --module nodenext --lib es2022,dom';
  const tsc = [join(here, 'node_modules/typescript/bin/tsc'), ...options.split(' '), 'openapi-calls.ts'];
  try {
    execFileSync(process.execPath, tsc, { cwd: folder, encoding: 'utf8' });
  } catch (error) {
    throw new Error(error.stdout.trim().split('\n').slice(0, 5).join('; '));
  }
  return import(pathToFileURL(join(folder, 'openapi-calls.js')));
}

let calls;
try {
  calls = await compiled();
  console.log('ok the calls compile with the generated types');
} catch (error) {
  console.log(`FAIL the calls compile with the generated types: ${error.message}`);
  process.exit(1);
}

const api = calls.clientOf(origin, key, observer);
const all = new Set(operations.map(({ route }) => route));
const withKey = operations.filter(({ operation }) => operation.security === undefined);
const missing = (expected, found) => [...expected].filter((route) => !found.has(route)).join(', ');

await checkAll({
  async 'the document is valid'() {
    await SwaggerParser.validate(structuredClone(document));
  },
  ...Object.fromEntries(Object.entries(calls.calls).map(([name, call]) => [name, () => call({ api, connectUser })])),
  async 'rights of a key'() {
    await calls.checkRights(calls.clientOf(origin, restricted, observer));
  },
  async 'every operation without a valid key is rejected with 401'() {
    const stranger = calls.clientOf(origin, 'f'.repeat(32), observer);
    for (const { route, operation } of withKey) {
      const [method, path] = route.split(' ');
      const examples = operation.parameters.filter((parameter) => parameter.in === 'path');
      const parameters = Object.fromEntries(examples.map(({ name, example }) => [name, example]));
      const body = operation.requestBody?.content['application/json'].example;
      const { response } = await stranger.request(method.toLowerCase(), path, { params: { path: parameters }, body });
      expect(response.status, 401, `the status of ${route}`);
    }
  },
  async 'no operation of the document is left out'() {
    expect(missing(all, called.succeeded), '', 'operations without a successful call');
    expect(missing(withKey.map(({ route }) => route), called.failed), '', 'operations without a failed call');
    expect(all.size >= 20, true, 'enough operations');
  },
});
