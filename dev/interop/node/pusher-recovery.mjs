// pusher-js with the add-on of clients/pusher-recovery, and without it: pusher-recovery.mjs BASE LIMITED
//
// A proxy ends connections without a Close. The app is the second one of dev/interop/pusher/sinews.toml.
import net from 'node:net';
import Server from 'pusher';
import Pusher from 'pusher-js';
import { recover } from './pusher-recovery/pusher-recovery.js';
import { checkAll, expect } from './suite.mjs';

const { hostname, port } = new URL(process.argv[2]);
const [key, secret] = ['recovery-key', 'recovery-secret'];
const [plainKey, plainSecret] = ['278d425bdf160c739803', '7ad3773142a6692b25b8'];
const server = new Server({
  appId: '4', key, secret, host: hostname, port, useTLS: false,
  encryptionMasterKeyBase64: Buffer.alloc(32, 7).toString('base64'),
});

/** A proxy whose connections can be ended, and which can wait with new ones. */
class Proxy {
  #sockets = new Set();
  #waiting = [];
  #isOpen = true;

  static async start() {
    const proxy = new Proxy();
    proxy.server = net.createServer((socket) => (proxy.#isOpen ? proxy.#join(socket) : proxy.#waiting.push(socket)));
    await new Promise((resolve) => proxy.server.listen(0, '127.0.0.1', resolve));
    proxy.port = proxy.server.address().port;
    return proxy;
  }

  #join(socket) {
    const other = net.connect(Number(port), hostname);
    for (const [from, to] of [[socket, other], [other, socket]]) {
      this.#sockets.add(from);
      from.on('error', () => {}).on('close', () => to.destroy());
      from.pipe(to);
    }
  }

  /** Ends all connections; new ones wait. */
  cut() {
    this.#isOpen = false;
    for (const socket of this.#sockets) socket.destroy();
    this.#sockets.clear();
  }

  resume() {
    this.#isOpen = true;
    for (const socket of this.#waiting.splice(0)) this.#join(socket);
  }
}

const proxy = await Proxy.start();
function connect(hasRecovery, app = key) {
  const client = new Pusher(app, {
    wsHost: '127.0.0.1', wsPort: proxy.port, forceTLS: false, enabledTransports: ['ws'], disableStats: true, cluster: '',
    userAuthentication: { customHandler: ({ socketId }, done) => done(null, server.authenticateUser(socketId, { id: '1' })) },
    channelAuthorization: {
      customHandler({ socketId, channelName }, done) {
        const member = channelName.startsWith('presence-') ? { user_id: '1' } : undefined;
        done(null, server.authorizeChannel(socketId, channelName, member));
      },
    },
  });
  const recovery = hasRecovery ? recover(client) : undefined;
  return { client, recovery };
}

const event = (target, name) => new Promise((resolve) => target.bind(name, function once(data) {
  target.unbind(name, once);
  resolve(data);
}));
const subscribed = async (client, name) => {
  const channel = client.subscribe(name);
  if (!channel.subscribed) await event(channel, 'pusher:subscription_succeeded');
  return channel;
};
/** The names and the data of all events of a channel but those of members. */
const record = (channel) => {
  const all = [];
  channel.bind_global((name, data) => {
    if (!name.startsWith('pusher')) all.push(name === 'e' ? data : name);
  });
  return all;
};
let run = 0;
const fresh = (prefix) => `${prefix}recovery-${process.pid}-${run += 1}`;

/** A check of each kind of channel. */
const kinds = ['', 'private-', 'presence-', 'private-encrypted-', 'private-cache-'].map((prefix) => [
  `${prefix || 'public'} channel: missed events come once, in order, before new ones`,
  async () => {
    const name = fresh(prefix);
    const { client } = connect(true);
    const channel = await subscribed(client, name);
    const all = record(channel);
    const first = event(channel, 'e');
    await server.trigger(name, 'e', 1);
    await first;
    for (const numbers of [[2, 3], [4]]) {
      const again = event(channel, 'pusher:subscription_succeeded');
      proxy.cut();
      for (const number of numbers) await server.trigger(name, 'e', number);
      proxy.resume();
      await again;
    }
    const last = event(channel, 'end');
    await server.trigger(name, 'end', {});
    await last;
    expect(all.join(), '1,sinews:recovered,2,3,sinews:recovered,4,end', 'the events');
    client.disconnect();
  },
]);

await checkAll({
  ...Object.fromEntries(kinds),
  async 'without the add-on: plain Pusher'() {
    const name = fresh('');
    const { client } = connect(false);
    const channel = await subscribed(client, name);
    const all = record(channel);
    const again = event(channel, 'pusher:subscription_succeeded');
    proxy.cut();
    await server.trigger(name, 'e', 1);
    proxy.resume();
    await again;
    const last = event(channel, 'end');
    await server.trigger(name, 'end', {});
    await last;
    expect(all.join(), 'end', 'the events');
    client.disconnect();
  },
  async 'a history that is too short is reported as a gap, and then recovers'() {
    const name = fresh('');
    const { client, recovery } = connect(true);
    const channel = await subscribed(client, name);
    const all = record(channel);
    const start = recovery.position(name);
    const gap = event(channel, 'sinews:gap');
    proxy.cut();
    for (let number = 0; number < 21; number += 1) await server.trigger(name, 'e', number);
    proxy.resume();
    const { position, reason } = await gap;
    expect(position, recovery.position(name), 'the position');
    expect(reason, 'history', 'the reason');
    expect(recovery.position(name) === start, false, 'whether the position stays');
    const recovered = event(channel, 'sinews:recovered');
    proxy.cut();
    await server.trigger(name, 'end', {});
    proxy.resume();
    await recovered;
    if (!all.includes('end')) await event(channel, 'end');
    expect(all.join(), 'sinews:gap,sinews:recovered,end', 'the events');
    client.disconnect();
  },
  async 'without a history, each reconnect is reported as a gap'() {
    // The app without topics.
    const [name, plain] = [fresh(''), new Server({ appId: '3', key: plainKey, secret: plainSecret, host: hostname, port, useTLS: false })];
    const { client } = connect(true, plainKey);
    const all = record(await subscribed(client, name));
    for (const expected of ['sinews:gap,1', 'sinews:gap,1,sinews:gap,1']) {
      const gap = event(client.channel(name), 'sinews:gap');
      proxy.cut();
      await plain.trigger(name, 'e', 'lost');
      proxy.resume();
      expect(JSON.stringify(await gap), '{"reason":"unretained"}', 'the gap');
      const received = event(client.channel(name), 'e');
      await plain.trigger(name, 'e', 1);
      await received;
      expect(all.join(), expected, 'the events');
    }
    // A later subscription begins anew, also if the connection was lost when the application unsubscribed.
    const connected = event(client.connection, 'connected');
    const lost = event(client.connection, 'connecting');
    proxy.cut();
    await lost;
    client.unsubscribe(name);
    const again = record(client.subscribe(name));
    proxy.resume();
    await connected;
    const received = event(client.channel(name), 'e');
    await subscribed(client, name);
    await plain.trigger(name, 'e', 1);
    await received;
    expect(again.join(), '1', 'the events of the later subscription');
    client.disconnect();
  },
  async 'the events of a user have no history, and each reconnect is reported as a gap'() {
    const { client } = connect(true);
    client.signin();
    await client.user.signinDonePromise;
    await new Promise((resolve) => client.connection.bind('message', ({ event: name, channel }) =>
      name === 'pusher_internal:subscription_succeeded' && channel?.startsWith('#server-to-user-') && resolve()));
    const gap = event(client.user, 'sinews:gap');
    proxy.cut();
    proxy.resume();
    expect((await gap).reason, 'unretained', 'the reason');
    client.disconnect();
  },
  async 'own client events are not replayed'() {
    const name = fresh('private-');
    const { client } = connect(true);
    const { client: other } = connect(true);
    const [channel, second] = await Promise.all([client, other].map((each) => subscribed(each, name)));
    const [all, ofOther] = [record(channel), record(second)];
    const received = event(second, 'client-e');
    channel.trigger('client-e', { a: 1 });
    await received;
    const recovered = [channel, second].map((each) => event(each, 'sinews:recovered'));
    proxy.cut();
    proxy.resume();
    await Promise.all(recovered);
    const ends = [channel, second].map((each) => event(each, 'end'));
    await server.trigger(name, 'end', {});
    await Promise.all(ends);
    expect(all.join(), 'sinews:recovered,end', 'the events of the sender');
    expect(ofOther.join(), 'client-e,sinews:recovered,end', 'the events of the other client');
    client.disconnect();
    other.disconnect();
  },
  async 'unsubscription forgets the position, and stop ends the add-on'() {
    const name = fresh('');
    const { client, recovery } = connect(true);
    await subscribed(client, name);
    expect(typeof recovery.position(name), 'string', 'the position');
    client.unsubscribe(name);
    expect(recovery.position(name), undefined, 'the position after the unsubscription');
    await server.trigger(name, 'e', 1);
    const all = record(await subscribed(client, name));
    recovery.stop();
    const last = event(client.channel(name), 'end');
    await server.trigger(name, 'end', {});
    await last;
    expect(all.join(), 'end', 'the events');
    expect(recovery.position(name), undefined, 'the position after the end');
    client.disconnect();
  },
  async 'other arguments are rejected'() {
    for (const bad of [undefined, null, {}, { connection: {} }]) {
      let error;
      try {
        recover(bad);
      } catch (thrown) {
        error = thrown;
      }
      expect(error instanceof TypeError, true, 'the error');
    }
  },
});
