// The client of the support desk with Sinews, for a page or for Node.js.
import { connect } from "@sinews/client";

export function open({ url, token }, { onmessage, onalert }) {
  // The application subscribes each client to the topic of its user: these messages come to the client's `onmessage`.
  const client = connect(url, { token, onmessage: ({ data }) => onalert(data) });
  return {
    enter: (room) => client.subscribe(`room.${room}`, ({ data: { from, text } }) => onmessage({ room, from, text })).ready,
    send: (room, text) => client.publish(`room.${room}`, { text }),
    rename: (name) => client.call("rename", name),
    close: () => client.close(),
  };
}
