// Cases in the suite of ws that fail, with their reasons.

const INTERNAL = 'reads the state of classes inside ws (`_receiver`, `_sender`), which do not exist here';
const SYNCHRONOUS =
  'expects a pause while zlib works in its thread pool; here a message is compressed or inflated within the call';

export const KNOWN = new Map([
  ['WebSocket #ctor options accepts the receiver limit options', INTERNAL],
  [
    'WebSocket #ctor options honors the `generateMask` option',
    'the engine makes the masking keys; the option is accepted and unused'
  ],
  [
    'WebSocket Attributes `bufferedAmount` takes into account the data in the socket queue',
    'expects that all bytes are with the socket after a send; here they are written at the end of the tick, and ' +
      '`bufferedAmount` counts them until then'
  ],
  ["WebSocket Events emits the 'error' event only once (2/2)", SYNCHRONOUS],
  ['WebSocket #send honors the `mask` option', 'a client always masks (RFC 6455 section 5.1)'],
  ['WebSocket permessage-deflate consumes all received data when connection is closed (1/2)', INTERNAL],
  ['WebSocket permessage-deflate consumes all received data when connection is closed (2/2)', INTERNAL],
  ['WebSocket permessage-deflate handles a close frame received while compressing data', INTERNAL],
  ['WebSocket permessage-deflate #close can be used while data is being decompressed', INTERNAL],
  ['WebSocket permessage-deflate #send calls the callback if the socket is closed prematurely', SYNCHRONOUS],
  ['WebSocket permessage-deflate #terminate can be used while data is being compressed', SYNCHRONOUS],
  ['WebSocket permessage-deflate #terminate can be used while data is being decompressed', INTERNAL],
  ['WebSocketServer #ctor options accepts the receiver limit options', INTERNAL],
  ['createWebSocketStream The returned stream errors if a write occurs when `readyState` is `CLOSING`', INTERNAL],
  ['createWebSocketStream The returned stream handles backpressure (2/3)', INTERNAL],
  ['createWebSocketStream The returned stream handles backpressure (3/3)', INTERNAL]
]);
