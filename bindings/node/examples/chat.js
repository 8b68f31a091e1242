'use strict';
// A chat in 40 lines: `node chat.js`, then open the address in two windows.
const { serve } = require('..');

const page = `<!doctype html><meta charset="utf-8"><title>Chat</title>
<ul id="list"></ul><form><input id="text" aria-label="Message" autofocus autocomplete="off"></form>
<script>
  const socket = new WebSocket(location.href.replace('http', 'ws') + 'chat');
  socket.onmessage = ({ data }) => {
    const item = document.createElement('li');
    item.textContent = data;
    list.append(item);
  };
  document.forms[0].onsubmit = (event) => {
    event.preventDefault();
    socket.send(text.value);
    text.value = '';
  };
</script>`;

let guests = 0;
const server = serve({
  port: Number(process.env.PORT ?? 8000),
  routes: { '/': () => ({ headers: { 'content-type': 'text/html; charset=utf-8' }, body: page }) },
  websocket: {
    path: '/chat',
    open(ws) {
      ws.data = `guest ${++guests}`;
      ws.subscribe('room');
      server.publish('room', `${ws.data} has entered`);
    },
    message(ws, text) {
      server.publish('room', `${ws.data}: ${text}`);
    },
    close(ws) {
      server.publish('room', `${ws.data} has left`);
    },
  },
});
console.log(`http://${server.hostname}:${server.port}/`);
