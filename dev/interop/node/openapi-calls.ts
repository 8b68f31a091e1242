// Calls of the HTTP API for backends, through a client whose types `openapi-typescript` generates from the served document.
import createClient from 'openapi-fetch';
import type { Middleware } from 'openapi-fetch';
import type { paths } from './openapi-schema.js';

export type Api = ReturnType<typeof createClient<paths>>;

/** What a call needs: the client, and a user with open connections. */
export interface Environment {
  api: Api;
  /** A user with an open connection that is subscribed to `chat.room`, and a member there. */
  connectUser(user: string): Promise<UserConnection>;
}

export interface UserConnection {
  id: string;
  /** The close code. */
  closed: Promise<number>;
}

export function clientOf(baseUrl: string, key: string, middleware: Middleware): Api {
  const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });
  client.use(middleware);
  return client;
}

/** JSON with the fields of objects in order. */
function sorted(value: unknown): string {
  const order = (_: string, field: unknown) =>
    field instanceof Object && !Array.isArray(field) ? Object.fromEntries(Object.entries(field).sort()) : field;
  return JSON.stringify(value, order);
}

function equal(actual: unknown, wanted: unknown, what: string): void {
  const [a, b] = [actual, wanted].map(sorted);
  if (a !== b) throw new Error(`${what} is ${a}, not ${b}`);
}

/** The body of a successful answer. */
async function done<T>(call: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await call;
  if (data === undefined) throw new Error(`status ${response.status}: ${JSON.stringify(error)}`);
  return data;
}

interface Failure {
  code: number;
  error: string;
  needs?: unknown;
}

/** The body of a failed answer with this status. */
async function failed(call: Promise<{ data?: unknown; error?: Failure; response: Response }>, status: number): Promise<Failure> {
  const { data, error, response } = await call;
  if (error === undefined) throw new Error(`status ${response.status}: ${JSON.stringify(data)}`);
  equal([response.status, error.code], [status, status], 'the status');
  return error;
}

/** One check or several for each operation, in an order in which each finds its prerequisites. */
export const calls: Record<string, (environment: Environment) => Promise<void>> = {
  async getDocument({ api }) {
    const document = await done(api.GET('/api/v1/openapi.json'));
    equal((document as { openapi: string }).openapi, '3.1.0', 'the version');
  },
  async publish({ api }) {
    const topic = 'chat.room';
    const delivered = await done(api.POST('/api/v1/publish', { body: { topic, data: { text: 'hello' } } }));
    equal(delivered, { topic, subscribers: 0 }, 'the answer');
    const body = { topic: 'stored.a', b64: 'AP8=', idempotency_key: 'one' };
    const stored = await done(api.POST('/api/v1/publish', { body }));
    equal(stored.seq, 1, 'the sequence');
    const repeated = await done(api.POST('/api/v1/publish', { body }));
    equal([repeated.seq, repeated.epoch, repeated.repeated], [1, stored.epoch, true], 'the repeated answer');
  },
  async publishBatch({ api }) {
    const messages = [{ topic: 'chat.room', data: 1 }, { topic: 'chat.*', data: 2 }, { topic: 'stored.a', data: 3 }];
    const { results } = await done(api.POST('/api/v1/batch', { body: { messages } }));
    equal(results.map(({ code, seq }) => code ?? seq ?? 200), [200, 422, 2], 'the results');
  },
  async broadcast({ api }) {
    const body = { topics: ['chat.room', 'chat.hall'], data: 'noon' };
    const { results } = await done(api.POST('/api/v1/broadcast', { body }));
    equal(results.map(({ topic }) => topic), body.topics, 'the topics');
    const matched = await done(api.POST('/api/v1/broadcast', { body: { pattern: 'chat.*', data: 'all' } }));
    equal(matched.results.map(({ topic }) => topic), ['chat.hall', 'chat.room'], 'the topics of the pattern');
  },
  async listTopics({ api }) {
    const page = await done(api.GET('/api/v1/topics', { params: { query: { filter: 'chat.*', limit: 1 } } }));
    equal([page.topics, page.next], [[{ topic: 'chat.hall', subscribers: 0, keys: 0, key_subscribers: 0 }], 'chat.hall'], 'the page');
    const rest = await done(api.GET('/api/v1/topics', { params: { query: { filter: 'chat.*', after: page.next } } }));
    equal(rest, { topics: [{ topic: 'chat.room', subscribers: 0, keys: 0, key_subscribers: 0 }] }, 'the last page');
  },
  async getHistory({ api }) {
    const path = { topic: 'chat.room' };
    const all = await done(api.GET('/api/v1/topics/{topic}/history', { params: { path } }));
    equal(all.messages.map(({ data }) => data), [{ text: 'hello' }, 1, 'noon', 'all'], 'the messages');
    const { epoch, seq } = all.messages[2]!;
    const query = { epoch, seq };
    const after = await done(api.GET('/api/v1/topics/{topic}/history', { params: { path, query } }));
    equal(after.messages, all.messages.slice(3), 'the messages after a position');
  },
  async setKey({ api }) {
    const params = { path: { topic: 'game', key: 'anna' } };
    const body = { data: { x: 10 }, ttl: 60_000 };
    const header = { 'If-None-Match': '*', 'Idempotency-Key': 'first' };
    const set = await done(api.PUT('/api/v1/topics/{topic}/keys/{key}', { params: { ...params, header }, body }));
    equal([set.topic, set.key, set.seq, set.repeated], ['game', 'anna', 1, undefined], 'the answer');
    const again = await done(api.PUT('/api/v1/topics/{topic}/keys/{key}', { params: { ...params, header }, body }));
    equal([again.seq, again.repeated], [1, true], 'the repeated answer');
    const condition = { 'If-Match': '"1-1"' };
    await failed(api.PUT('/api/v1/topics/{topic}/keys/{key}', { params: { ...params, header: condition }, body }), 412);
  },
  async listKeys({ api }) {
    const params = { path: { topic: 'game' }, query: { filter: 'anna', limit: 5 } };
    const { keys, more } = await done(api.GET('/api/v1/topics/{topic}/keys', { params }));
    equal([keys, more], [[{ key: 'anna', version: 1, data: { x: 10 } }], false], 'the keys');
  },
  async getKey({ api }) {
    const params = { path: { topic: 'game', key: 'anna' } };
    const { version, data } = await done(api.GET('/api/v1/topics/{topic}/keys/{key}', { params }));
    equal([version, data], [1, { x: 10 }], 'the key');
  },
  async writeKeys({ api }) {
    const params = { path: { topic: 'prices' } };
    const set = [{ key: 'a', data: 1 }, { key: 'b', b64: 'AP8=', ttl: 60_000 }, { key: 'a', data: 2, if_new: true }];
    const { results } = await done(api.POST('/api/v1/topics/{topic}/keys', { params, body: { writes: set } }));
    equal(results.map(({ key, seq, code }) => [key, seq ?? code]), [['a', 1], ['b', 2], ['a', 412]], 'the results');
    const body = { writes: [{ key: 'a', delete: true, version: 1 }, { key: 'c', delete: true }] };
    const deleted = await done(api.POST('/api/v1/topics/{topic}/keys', { params, body }));
    equal(deleted.results.map(({ seq, changed }) => [seq, changed]), [[3, undefined], [3, false]], 'the deletions');
    const { keys } = await done(api.GET('/api/v1/topics/{topic}/keys', { params }));
    equal(keys.map(({ key }) => key), ['b'], 'the keys');
    const writes = Array.from({ length: 1_001 }, () => ({ key: 'a', data: 1 }));
    await failed(api.POST('/api/v1/topics/{topic}/keys', { params, body: { writes } }), 413);
  },
  async deleteKey({ api }) {
    const params = { path: { topic: 'game', key: 'anna' } };
    equal((await done(api.DELETE('/api/v1/topics/{topic}/keys/{key}', { params }))).seq, 2, 'the sequence');
    equal((await done(api.DELETE('/api/v1/topics/{topic}/keys/{key}', { params }))).changed, false, 'changed');
    await failed(api.GET('/api/v1/topics/{topic}/keys/{key}', { params }), 404);
  },
  async 'getPresence, listMembers, listConnections, subscribe, unsubscribe'({ api, connectUser }) {
    const { id } = await connectUser('anna');
    const path = { topic: 'chat.room' };
    const presence = await done(api.GET('/api/v1/topics/{topic}/presence', { params: { path } }));
    equal([presence.subscribers, presence.members], [1, 1], 'presence');
    const { members } = await done(api.GET('/api/v1/topics/{topic}/members', { params: { path, query: { limit: 9 } } }));
    equal(members, [{ id: 'anna', connections: 1, info: { n: 1 } }], 'the members');
    const listed = await done(api.GET('/api/v1/connections', { params: { query: { user: 'anna' } } }));
    equal(listed.connections.map(({ connection, path, user }) => [connection, path, user]), [[id, '/ws', 'anna']], 'the list');
    const body = { topic: 'orders.7', user: 'anna' };
    equal(await done(api.POST('/api/v1/subscribe', { body })), { results: [{ connection: id }] }, 'the subscribed');
    const one = { topic: 'orders.7', connection: id };
    equal(await done(api.POST('/api/v1/unsubscribe', { body: one })), { results: [{ connection: id }] }, 'the unsubscribed');
    const { results } = await done(api.POST('/api/v1/unsubscribe', { body }));
    equal(results.map(({ connection, code }) => [connection, code]), [[id, 409]], 'without a subscription');
  },
  async disconnect({ api, connectUser }) {
    const { closed } = await connectUser('ben');
    const body = { user: 'ben', code: 4001, reason: 'closed' };
    equal(await done(api.POST('/api/v1/disconnect', { body })), { connections: 1 }, 'the answer');
    equal(await closed, 4001, 'the close code');
  },
  async refresh({ api, connectUser }) {
    const { id } = await connectUser('dora');
    const claims = { sub: 'dora', subscribe: 'news.>' };
    equal(await done(api.POST('/api/v1/refresh', { body: { user: 'dora', claims } })), { connections: 1 }, 'the claims');
    const exp = Math.floor(Date.now() / 1000) + 60;
    equal(await done(api.POST('/api/v1/refresh', { body: { connection: id, exp } })), { connections: 1 }, 'the expiry');
    await failed(api.POST('/api/v1/refresh', { body: { connection: id, exp: 1 } }), 422);
  },
  async revoke({ api, connectUser }) {
    const { closed } = await connectUser('carl');
    const { connections, until } = await done(api.POST('/api/v1/revoke', { body: { user: 'carl' } }));
    equal([connections, until > Date.now() / 1000], [1, true], 'the answer');
    equal(await closed, 4401, 'the close code');
  },
  async getInfo({ api }) {
    const info = await done(api.GET('/api/v1/info'));
    equal([info.streams, info.threads > 0, info.version.length > 0], [true, true, true], 'the information');
  },
  async listNodes({ api }) {
    const { nodes } = await done(api.GET('/api/v1/nodes'));
    equal(nodes.map((node) => node.self), [true], 'the nodes');
  },
  async listStreams({ api }) {
    const { streams } = await done(api.GET('/api/v1/streams'));
    equal(streams.map(({ stream, partitions }) => [stream, partitions[0]?.end]), [['stored.a', 2]], 'the streams');
  },
  async putStream({ api }) {
    const params = { path: { stream: 'made' } };
    const body = { partitions: 2, retain_seconds: 60, retain_bytes: null };
    const made = await done(api.PUT('/api/v1/streams/{stream}', { params, body }));
    equal([made.partitions.length, made.retain_seconds, made.retain_bytes], [2, 60, null], 'the stream');
    await failed(api.PUT('/api/v1/streams/{stream}', { params, body: { partitions: 1 } }), 422);
  },
  async getStream({ api }) {
    const stream = await done(api.GET('/api/v1/streams/{stream}', { params: { path: { stream: 'made' } } }));
    equal([stream.stream, stream.compact, stream.partitions.length], ['made', false, 2], 'the stream');
    await failed(api.GET('/api/v1/streams/{stream}', { params: { path: { stream: 'none' } } }), 404);
  },
  async setGroupOffset({ api }) {
    const params = { path: { stream: 'stored.a', group: 'billing' } };
    const set = await done(api.PUT('/api/v1/streams/{stream}/groups/{group}', { params, body: { to: 'earliest' } }));
    equal(set.partitions, [{ partition: 0, offset: 0, lag: 2 }], 'the offsets');
    await failed(api.PUT('/api/v1/streams/{stream}/groups/{group}', { params, body: { offset: 9 } }), 422);
  },
  async listGroups({ api }) {
    const params = { path: { stream: 'stored.a' } };
    const { groups } = await done(api.GET('/api/v1/streams/{stream}/groups', { params }));
    equal(groups, [{ group: 'billing', partitions: [{ partition: 0, offset: 0, lag: 2 }] }], 'the groups');
  },
  async deleteGroup({ api }) {
    const params = { path: { stream: 'stored.a', group: 'billing' } };
    equal((await done(api.DELETE('/api/v1/streams/{stream}/groups/{group}', { params }))).deleted, true, 'the answer');
    await failed(api.DELETE('/api/v1/streams/{stream}/groups/{group}', { params }), 404);
    await done(api.DELETE('/api/v1/streams/{stream}', { params: { path: { stream: 'made' } } }));
  },
  async deleteStream({ api }) {
    const params = { path: { stream: 'stored.a' } };
    equal(await done(api.DELETE('/api/v1/streams/{stream}', { params })), { stream: 'stored.a', deleted: true }, 'the answer');
    await failed(api.DELETE('/api/v1/streams/{stream}', { params }), 404);
  },
  async 'errors of bodies and parameters'({ api }) {
    const wildcard = await failed(api.POST('/api/v1/publish', { body: { topic: 'chat.*', data: 1 } }), 422);
    equal(wildcard.error.includes('wildcards'), true, 'the text');
    await failed(api.POST('/api/v1/publish', { body: { topic: 'chat.room', b64: '?' } }), 400);
    await failed(api.POST('/api/v1/publish', { body: { topic: 'chat.room', data: 1, b64: 'AP8=' } }), 400);
    await failed(api.POST('/api/v1/publish', { body: { topic: 'chat.room', data: 1, colour: 'red' } }), 400);
    // @ts-expect-error The document requires a topic.
    await failed(api.POST('/api/v1/publish', { body: { data: 1 } }), 400);
    await failed(api.GET('/api/v1/topics', { params: { query: { limit: 0 } } }), 400);
    // @ts-expect-error The document has a number there.
    await failed(api.GET('/api/v1/topics', { params: { query: { limit: 'many' } } }), 400);
    const messages = Array.from({ length: 1_001 }, () => ({ topic: 'chat.room', data: 1 }));
    await failed(api.POST('/api/v1/batch', { body: { messages } }), 413);
    await failed(api.GET('/api/v1/topics/{topic}/history', { params: { path: { topic: 'none' } } }), 410);
    await failed(api.POST('/api/v1/disconnect', { body: { user: 'anna', code: 1000 } }), 422);
  },
};

/** Calls with a key that lacks rights. */
export async function checkRights(api: Api): Promise<void> {
  await done(api.POST('/api/v1/publish', { body: { topic: 'chat.room', data: 1 } }));
  const topic = await failed(api.POST('/api/v1/publish', { body: { topic: 'game', data: 1 } }), 403);
  equal(typeof topic.needs, 'object', 'needs');
  await failed(api.GET('/api/v1/info'), 403);
  const { results } = await done(api.POST('/api/v1/broadcast', { body: { topics: ['chat.room', 'game'], data: 1 } }));
  equal(results.map(({ code }) => code), [undefined, 403], 'the results');
}
