// Recovery for pusher-js 8: after a reconnect, channels with a history receive the events that they have missed, and all other channels report a gap.

const SUBSCRIBED = 'pusher_internal:subscription_succeeded';
const USER = '#server-to-user-';

/**
 * Makes the channels of a client recover. Call it before the first subscription.
 *
 * After a channel is subscribed again, it emits `sinews:recovered` (missed events follow) or `sinews:gap` (events are lost, or may
 * be: load the state anew).
 */
export function recover(pusher) {
  const { connection } = pusher ?? {};
  if (typeof pusher?.send_event !== 'function' || typeof connection?.bind !== 'function') {
    throw new TypeError('recover: the argument is not a client of pusher-js 8');
  }
  // By channel, which is another object after it was unsubscribed: its last event, and the connection that has received it.
  let positions = new WeakMap();
  // The connection that has subscribed it last.
  let connections = new WeakMap();
  // Channels whose pending subscription has passed a position.
  let pending = new WeakSet();
  let transport = null;

  const sendEvent = pusher.send_event;
  pusher.send_event = function send(name, data, channel) {
    const target = name === 'pusher:subscribe' && pusher.channel(data.channel);
    if (!target) return sendEvent.call(this, name, data, channel);
    const last = positions.get(target);
    if (last) pending.add(target);
    else pending.delete(target);
    return sendEvent.call(this, name, { ...data, recover: last ?? true }, channel);
  };

  const note = (channel, { event, position, recovered }) => {
    const { socket_id } = connection;
    const isSubscribed = event === SUBSCRIBED;
    const passed = isSubscribed && pending.delete(channel);
    const isAgain = isSubscribed && (connections.get(channel) ?? socket_id) !== socket_id;
    if (isSubscribed) connections.set(channel, socket_id);
    if (typeof position === 'string') positions.set(channel, { position, socket_id });
    else if (passed) positions.delete(channel);
    if (!isAgain) return;
    if (passed && recovered === true) channel.emit('sinews:recovered', { position });
    else channel.emit('sinews:gap', { position, reason: typeof position === 'string' ? 'history' : 'unretained' });
  };
  // pusher-js has handled the message, and passes on no fields that it does not know.
  const receive = ({ data }) => {
    if (typeof data !== 'string' || !(data.includes('"position"') || data.includes(SUBSCRIBED))) return;
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      return; // pusher-js has reported it.
    }
    const name = message?.channel;
    // The events of the user that has signed in, or of a channel, from which the client may have unsubscribed meanwhile.
    const channel = typeof name === 'string' && name.startsWith(USER) ? pusher.user : pusher.channel(name);
    if (channel) note(channel, message);
  };

  const attach = () => {
    transport?.unbind('message', receive);
    transport = connection.connection?.transport;
    if (typeof transport?.bind === 'function') {
      transport.bind('message', receive);
      return;
    }
    transport = null;
    const error = new Error('recover: this version of pusher-js has no access to its messages');
    connection.emit('error', { type: 'RecoveryError', error });
  };
  connection.bind('connected', attach);
  if (connection.state === 'connected') attach();

  return {
    /** The position of the last event of a channel. */
    position: (channel) => positions.get(pusher.channel(channel))?.position,
    /** Ends the add-on: later subscriptions are plain ones. */
    stop() {
      connection.unbind('connected', attach);
      transport?.unbind('message', receive);
      transport = null;
      pusher.send_event = sendEvent;
      [positions, connections, pending] = [new WeakMap(), new WeakMap(), new WeakSet()];
    },
  };
}
