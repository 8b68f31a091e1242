// A room of the chat, without a page: the page and the test use it.

const TYPING_FOR = 3_000; // milliseconds, unless the user types on

/**
 * Enters a room with a client of @sinews/client, as the user of its token. Calls `onmessage({ from, text, at })` for the last
 * 50 messages and each new one, and `onmembers(names)` and `ontyping(names)` after each change.
 */
export function enter(client, room, user, { onmessage, onmembers, ontyping, ongap }) {
  const topic = `chat.${room}`;
  const typing = `typing.${room}`;
  let typedAt = 0;

  const messages = client.subscribe(topic, ({ data }) => onmessage(data), {
    last: 50,
    members: (members) => onmembers([...members.keys()].sort()),
    ongap, // after a long absence: messages were lost
  });
  const typists = client.state(typing, (keys) => ontyping([...keys.keys()].filter((name) => name !== user).sort()));
  const joined = client.join(topic, { id: user });

  return {
    ready: Promise.all([messages.ready, typists.ready, joined]),
    /** Rejects with the reason of the application if it does not accept the message. */
    async send(text) {
      await client.publish(topic, { text });
      typedAt = 0;
      await client.delete(typing, user);
    },
    /** Call it for each key press. */
    async type() {
      if (Date.now() - typedAt < TYPING_FOR / 2) return;
      typedAt = Date.now();
      await client.set(typing, user, true, { ttl: TYPING_FOR });
    },
    async leave() {
      messages.unsubscribe();
      typists.unsubscribe();
      await client.leave(topic);
    },
  };
}
