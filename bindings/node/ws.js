'use strict';

const extension = require('./lib/extension');
const createWebSocketStream = require('./lib/stream');
const subprotocol = require('./lib/subprotocol');
const WebSocketServer = require('./lib/server');
const WebSocket = require('./lib/websocket');

Object.assign(WebSocket, {
  createWebSocketStream,
  extension,
  Server: WebSocketServer,
  subprotocol,
  WebSocket,
  WebSocketServer
});

module.exports = WebSocket;
