// Unmodified libraries of the Pusher protocol against the server: pusher.mjs BASE LIMITED
//
// `pusher-js` is the client, `pusher` the server library, and `laravel-echo` the client of Laravel. The app is that of
// dev/interop/pusher/sinews.toml.
import { createServer } from 'node:http';
import Echo from 'laravel-echo';
import Server from 'pusher';
import Pusher from 'pusher-js';
import { checkAll, expect } from './suite.mjs';

const { hostname, port } = new URL(process.argv[2]);
/** The server by HTTP. */
const web = `http://${hostname}:${port}`;
const [key, secret] = ['278d425bdf160c739803', '7ad3773142a6692b25b8'];
const server = new Server({
  appId: '3', key, secret, host: hostname, port, useTLS: false,
  encryptionMasterKeyBase64: Buffer.alloc(32, 7).toString('base64'),
});
const clients = [];

/** A client; `user` signs in, and is the member of its presence channels. */
function connect(user, { app = key, watchlist } = {}) {
  const client = new Pusher(app, {
    wsHost: hostname, wsPort: Number(port), forceTLS: false, enabledTransports: ['ws'], disableStats: true, cluster: '',
    channelAuthorization: {
      customHandler({ socketId, channelName }, done) {
        const member = user && { user_id: user, user_info: { name: `name of ${user}` } };
        done(null, server.authorizeChannel(socketId, channelName, channelName.startsWith('presence-') ? member : undefined));
      },
    },
    userAuthentication: {
      customHandler: ({ socketId }, done) => done(null, server.authenticateUser(socketId, { id: user, watchlist })),
    },
  });
  clients.push(client);
  return client;
}

/** The data of the next event with a name. */
const event = (target, name) => eventWithMetadata(target, name).then(({ data }) => data);
const eventWithMetadata = (target, name) => new Promise((resolve) => target.bind(name, (data, metadata) => {
  target.unbind(name);
  resolve({ data, metadata });
}));
const subscribed = async (client, name) => {
  const channel = client.subscribe(name);
  if (!channel.subscribed) await event(channel, 'pusher:subscription_succeeded');
  return channel;
};
const json = async (response) => (await response).json();
/** Collects the events of a channel. */
const collect = (channel, name) => {
  const all = [];
  channel.bind(name, (data) => all.push(data));
  return all;
};

await checkAll({
  async 'public channel: event with data of every kind'() {
    const channel = await subscribed(connect(), 'public');
    for (const data of [{ text: 'ü€😀', list: [1, null] }, 'text', 7, [], {}]) {
      const received = event(channel, 'news');
      await server.trigger('public', 'news', data);
      expect(JSON.stringify(await received), JSON.stringify(data), 'the data');
    }
  },
  async 'private channel: authorization, and its refusal'() {
    const channel = await subscribed(connect(), 'private-a');
    const received = event(channel, 'news');
    await server.trigger(['private-a', 'other'], 'news', { a: 1 });
    expect((await received).a, 1, 'the data');
    const wrong = new Pusher(key, {
      wsHost: hostname, wsPort: Number(port), forceTLS: false, enabledTransports: ['ws'], disableStats: true, cluster: '',
      channelAuthorization: { customHandler: (_, done) => done(null, { auth: `${key}:0000` }) },
    });
    clients.push(wrong);
    const refused = await event(wrong.subscribe('private-a'), 'pusher:subscription_error');
    expect(refused.status, 401, 'the status');
  },
  async 'presence channel: own data, added, removed, counts'() {
    const [one, two] = [connect('1'), connect('2')];
    const first = await subscribed(one, 'presence-a');
    expect(first.members.me.id, '1', 'the own id');
    expect(first.members.me.info.name, 'name of 1', 'the own info');
    const added = event(first, 'pusher:member_added');
    const own = collect(first, 'pusher:member_added');
    const second = await subscribed(two, 'presence-a');
    expect((await added).info.name, 'name of 2', 'the added member');
    expect([first.members.count, second.members.count, second.members.get('1').info.name].join(), '2,2,name of 1', 'the members');
    const removed = event(first, 'pusher:member_removed');
    two.unsubscribe('presence-a');
    expect((await removed).id, '2', 'the removed member');
    expect(first.members.count, 1, 'the count');
    const back = event(first, 'pusher:member_added');
    await subscribed(two, 'presence-a');
    await back;
    const gone = event(first, 'pusher:member_removed');
    two.disconnect();
    expect((await gone).id, '2', 'the member without connection');
    expect(own.length <= 2, true, 'no further members');
  },
  async 'client events reach others with the sender, and not the sender'() {
    const channels = await Promise.all(['1', '2'].map((user) => subscribed(connect(user), 'presence-events')));
    const received = eventWithMetadata(channels[1], 'client-typing');
    const own = collect(channels[0], 'client-typing');
    channels[0].trigger('client-typing', { on: true });
    const { data, metadata } = await received;
    expect([data.on, metadata.user_id].join(), 'true,1', 'the event');
    const done = channels.map((channel) => event(channel, 'done'));
    await server.trigger('presence-events', 'done', {});
    await Promise.all(done);
    expect(own.length, 0, 'the events of the sender');
  },
  async 'encrypted channel'() {
    const channel = await subscribed(connect('1'), 'private-encrypted-a');
    const received = event(channel, 'secret');
    await server.trigger('private-encrypted-a', 'secret', { text: 'hidden' });
    expect((await received).text, 'hidden', 'the decrypted text');
  },
  async 'cache channel: miss, then the last event'() {
    // The server may retain the event of an earlier run.
    const name = `cache-${process.pid}`;
    const client = connect();
    await event(client.subscribe(name), 'pusher:cache_miss');
    const received = event(client.channel(name), 'news');
    await server.trigger(name, 'news', { number: 1 });
    await received;
    expect((await event(connect().subscribe(name), 'news')).number, 1, 'the cached event');
    const answer = await json(server.get({ path: `/channels/${name}`, params: { info: 'cache' } }));
    expect(JSON.parse(answer.cache.data).number, 1, 'the cache in the API');
  },
  async 'user: sign-in, event, watchlist, termination'() {
    const watcher = connect('watcher', { watchlist: ['anna'] });
    watcher.signin();
    await watcher.user.signinDonePromise;
    const online = event(watcher.user.watchlist, 'online');
    const client = connect('anna');
    client.signin();
    expect((await online).user_ids.join(), 'anna', 'the user online');
    await client.user.signinDonePromise;
    await subscribed(client, 'barrier');
    const received = event(client.user, 'news');
    await server.sendToUser('anna', 'news', { a: 1 });
    expect((await received).a, 1, 'the event of the user');
    const offline = event(watcher.user.watchlist, 'offline');
    const failed = new Promise((resolve) => client.connection.bind('state_change', ({ current }) => current !== 'connected' && resolve()));
    await server.terminateUserConnections('anna');
    await failed;
    expect((await offline).user_ids.join(), 'anna', 'the user offline');
  },
  async 'number of subscribers'() {
    const first = connect().subscribe('counted');
    expect((await event(first, 'pusher:subscription_count')).subscription_count, 1, 'the first count');
    const second = event(first, 'pusher:subscription_count');
    connect().subscribe('counted');
    expect((await second).subscription_count, 2, 'the second count');
  },
  async 'an event excludes a socket'() {
    const [one, two] = [connect(), connect()];
    const channels = await Promise.all([one, two].map((client) => subscribed(client, 'excluded')));
    const events = channels.map((channel) => collect(channel, 'news'));
    await server.trigger('excluded', 'news', {}, { socket_id: one.connection.socket_id });
    const done = channels.map((channel) => event(channel, 'done'));
    await server.trigger('excluded', 'done', {});
    await Promise.all(done);
    expect(events.map((list) => list.length).join(), '0,1', 'the events of both clients');
  },
  async 'batch, channels, attributes and users'() {
    const client = connect('7');
    const presence = await subscribed(client, 'presence-api');
    const received = ['one', 'two'].map((name) => event(presence, name));
    await server.triggerBatch(['one', 'two'].map((name) => ({ channel: 'presence-api', name, data: { name } })));
    expect((await Promise.all(received)).map(({ name }) => name).join(), 'one,two', 'the events of the batch');
    const list = await json(server.get({ path: '/channels', params: { filter_by_prefix: 'presence-api', info: 'user_count' } }));
    expect(list.channels['presence-api'].user_count, 1, 'the members in the list');
    const one = await json(server.get({ path: '/channels/presence-api', params: { info: 'user_count' } }));
    expect([one.occupied, one.user_count].join(), 'true,1', 'the attributes');
    expect((await json(server.get({ path: '/channels/presence-api/users' }))).users[0].id, '7', 'the user');
    const infos = await json(server.trigger('presence-api', 'three', {}, { info: 'user_count' }));
    expect(infos.channels['presence-api'].user_count, 1, 'the attributes of a trigger');
  },
  async 'transports (1.10): WebSocket by default, and with ws and wss'() {
    const at = { wsHost: hostname, wsPort: Number(port), httpHost: hostname, httpPort: Number(port) };
    for (const transports of [{}, { enabledTransports: ['ws', 'wss'] }]) {
      const client = new Pusher(key, { ...at, ...transports, forceTLS: false, disableStats: true, cluster: '' });
      clients.push(client);
      await event(client.connection, 'connected');
      expect(client.connection.connection.transport.name, 'ws', `the transport with ${JSON.stringify(transports)}`);
    }
    const path = `/pusher/app/${key}/123/session/xhr_streaming?protocol=7&client=js&version=8.6.0`;
    const answer = await fetch(new URL(path, web), { method: 'POST' });
    expect([answer.status, (await answer.text()).includes('connect by WebSocket')].join(), '404,true', 'the answer to a fallback');
  },
  async 'statistics (1.11): not served, and the client stays connected'() {
    let asked;
    const statuses = new Promise((resolve) => { asked = resolve; });
    const stats = createServer(async ({ url }, response) => {
      const { status } = await fetch(new URL(url, web));
      response.writeHead(status).end();
      asked(status);
    });
    await new Promise((resolve) => { stats.listen(0, '127.0.0.1', resolve); });
    const client = new Pusher(key, {
      wsHost: hostname, wsPort: Number(port), forceTLS: false, enabledTransports: ['ws'], cluster: '',
      enableStats: true, statsHost: `127.0.0.1:${stats.address().port}`,
    });
    clients.push(client);
    const channel = await subscribed(client, 'statistics');
    expect(await statuses, 404, 'the status of statistics');
    const received = event(channel, 'news');
    await server.trigger('statistics', 'news', { a: 1 });
    expect((await received).a, 1, 'the data');
    stats.close();
  },
  async 'failed sign-in (7.8): an event of the client where its endpoint fails, otherwise 4009'() {
    const signIn = (answer) => {
      const client = new Pusher(key, {
        wsHost: hostname, wsPort: Number(port), forceTLS: false, enabledTransports: ['ws'], disableStats: true, cluster: '',
        userAuthentication: { customHandler: (_, done) => answer(done) },
      });
      clients.push(client);
      client.signin();
      return client;
    };
    const without = signIn((done) => done(new Error('no answer'), null));
    await event(without.user, 'pusher:signin_error');
    await subscribed(without, 'still-connected');
    const forged = signIn((done) => done(null, { auth: `${key}:0000`, user_data: '{"id":"1"}' }));
    const error = await event(forged.connection, 'error');
    expect(error.data?.code ?? error.error?.data?.code, 4009, 'the code');
  },
  async 'unknown app: refused, and not tried again'() {
    const client = connect('1', { app: 'unknown' });
    const error = await event(client.connection, 'error');
    expect(error.data?.code ?? error.error?.data?.code, 4001, 'the code');
    if (client.connection.state !== 'failed' && client.connection.state !== 'disconnected') {
      await new Promise((resolve) => client.connection.bind('state_change', resolve));
    }
    expect(['failed', 'disconnected'].includes(client.connection.state), true, `the state ${client.connection.state}`);
  },
  async 'Laravel Echo: here, joining, whisper, leaving'() {
    const echoes = ['1', '2'].map((user) => new Echo({ broadcaster: 'pusher', client: connect(user), key }));
    const here = await new Promise((resolve) => { echoes[0].join('echo').here(resolve); });
    expect(here.length, 1, 'the members');
    const joining = new Promise((resolve) => { echoes[0].join('echo').joining(resolve); });
    const leaving = new Promise((resolve) => { echoes[0].join('echo').leaving(resolve); });
    const whisper = new Promise((resolve) => { echoes[0].join('echo').listenForWhisper('typing', resolve); });
    const listened = new Promise((resolve) => { echoes[0].join('echo').listen('.order', resolve); });
    await new Promise((resolve) => { echoes[1].join('echo').here(resolve); });
    expect((await joining).name, 'name of 2', 'the joining member');
    echoes[1].join('echo').whisper('typing', { text: 'a' });
    expect((await whisper).text, 'a', 'the whisper');
    await server.trigger('presence-echo', 'order', { id: 5 });
    expect((await listened).id, 5, 'the event');
    echoes[1].leave('echo');
    expect((await leaving).name, 'name of 2', 'the leaving member');
  },
});
for (const client of clients) client.disconnect();
