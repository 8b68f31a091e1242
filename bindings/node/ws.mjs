import WebSocket from './ws.js';

export const { createWebSocketStream, extension, Server, subprotocol, WebSocketServer } = WebSocket;
export { WebSocket };
export default WebSocket;
