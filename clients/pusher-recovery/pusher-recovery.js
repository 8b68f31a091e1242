// Recovery for pusher-js 8: after a reconnect, channels with a history receive the events that they have missed.

const SUBSCRIBED = 'pusher_internal:subscription_succeeded';

/**
 * Makes the channels of a client recover. Call it before the first subscription.
 *
 * After a channel is subscribed again, it emits `sinews:recovered` (missed events follow) or `sinews:gap` (events are lost:
 * load the state anew).
 */
export function recover(pusher) {
  const { connection } = pusher ?? {};
  if (typeof pusher?.send_event !== 'function' || typeof connection?.bind !== 'function') {
    throw new TypeError('recover: the argument is not a client of pusher-js 8');
  }
  // The last event of each channel, and the connection that has received it.
  const positions = new Map();
  // Channels whose pending subscription has passed a position.
  const pending = new Set();
  let transport = null;

  const sendEvent = pusher.send_event;
  pusher.send_event = function send(name, data, channel) {
    if (name === 'pusher:subscribe') {
      const known = positions.get(data.channel);
      if (known) pending.add(data.channel);
      else pending.delete(data.channel);
      return sendEvent.call(this, name, { ...data, recover: known ?? true }, channel);
    }
    if (name === 'pusher:unsubscribe') {
      positions.delete(data.channel);
      pending.delete(data.channel);
    }
    return sendEvent.call(this, name, data, channel);
  };

  const note = (message) => {
    const { event, channel, position, recovered } = message;
    const passed = event === SUBSCRIBED && typeof recovered === 'boolean' && pending.delete(channel);
    if (typeof position === 'string') positions.set(channel, { position, socket_id: connection.socket_id });
    else if (passed) positions.delete(channel);
    if (passed) pusher.channel(channel)?.emit(recovered ? 'sinews:recovered' : 'sinews:gap', { position });
  };
  // pusher-js has handled the message, and passes on no fields that it does not know.
  const receive = ({ data }) => {
    if (typeof data !== 'string' || !(data.includes('"position"') || data.includes('"recovered"'))) return;
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      return; // pusher-js has reported it.
    }
    // The client has unsubscribed meanwhile.
    if (message && pusher.channel(message.channel)) note(message);
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
    position: (channel) => positions.get(channel)?.position,
    /** Ends the add-on: later subscriptions are plain ones. */
    stop() {
      connection.unbind('connected', attach);
      transport?.unbind('message', receive);
      transport = null;
      pusher.send_event = sendEvent;
      positions.clear();
      pending.clear();
    },
  };
}
