// The client of the support desk with Socket.IO, for a page or for Node.js.
import { io } from "socket.io-client";

export function open({ url, token }, { onmessage, onalert }) {
  const socket = io(url, { auth: { token } });
  socket.on("message", ({ room, from, text }) => onmessage({ room, from, text }));
  socket.on("alert", (text) => onalert(text));
  const request = async (...message) => {
    const { error, ...answer } = await socket.timeout(10_000).emitWithAck(...message);
    if (error) throw new Error(error);
    return answer;
  };
  return {
    enter: (room) => request("enter", room),
    send: (room, text) => request("message", room, text),
    rename: (name) => request("rename", name),
    close: () => socket.disconnect(),
  };
}
