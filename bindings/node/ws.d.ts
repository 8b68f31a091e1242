/// <reference types="node" />

import { EventEmitter } from 'events';
import { Agent, ClientRequest, ClientRequestArgs, IncomingMessage, OutgoingHttpHeaders, Server as HttpServer } from 'http';
import { Server as HttpsServer } from 'https';
import { AddressInfo } from 'net';
import { Duplex, DuplexOptions } from 'stream';
import { SecureContextOptions } from 'tls';
import { ZlibOptions } from 'zlib';

declare class WebSocket extends EventEmitter {
  static readonly CONNECTING: 0;
  static readonly OPEN: 1;
  static readonly CLOSING: 2;
  static readonly CLOSED: 3;

  constructor(address: null);
  constructor(address: string | URL, options?: WebSocket.ClientOptions | ClientRequestArgs);
  constructor(
    address: string | URL,
    protocols?: string | string[],
    options?: WebSocket.ClientOptions | ClientRequestArgs
  );

  readonly CONNECTING: 0;
  readonly OPEN: 1;
  readonly CLOSING: 2;
  readonly CLOSED: 3;

  /** Type of received binary messages. Default `nodebuffer`. */
  binaryType: 'nodebuffer' | 'arraybuffer' | 'fragments' | 'blob';
  /** Bytes that are queued in the connection and its socket. */
  readonly bufferedAmount: number;
  readonly extensions: string;
  readonly isPaused: boolean;
  readonly protocol: string;
  readonly readyState: 0 | 1 | 2 | 3;
  readonly url: string;

  onopen: ((event: WebSocket.Event) => void) | null;
  onerror: ((event: WebSocket.ErrorEvent) => void) | null;
  onclose: ((event: WebSocket.CloseEvent) => void) | null;
  onmessage: ((event: WebSocket.MessageEvent) => void) | null;

  close(code?: number, data?: string | Buffer): void;
  ping(data?: any, mask?: boolean, callback?: (error: Error) => void): void;
  pong(data?: any, mask?: boolean, callback?: (error: Error) => void): void;
  /** Queues a message. It is written at the end of the burst or tick. */
  send(data: WebSocket.BufferLike | Blob, callback?: (error?: Error) => void): void;
  send(
    data: WebSocket.BufferLike | Blob,
    options: WebSocket.SendOptions,
    callback?: (error?: Error) => void
  ): void;
  terminate(): void;
  /** Pauses reads. */
  pause(): void;
  resume(): void;

  addEventListener<K extends keyof WebSocket.WebSocketEventMap>(
    type: K,
    listener:
      | ((event: WebSocket.WebSocketEventMap[K]) => void)
      | { handleEvent(event: WebSocket.WebSocketEventMap[K]): void },
    options?: WebSocket.EventListenerOptions
  ): void;
  removeEventListener<K extends keyof WebSocket.WebSocketEventMap>(
    type: K,
    listener:
      | ((event: WebSocket.WebSocketEventMap[K]) => void)
      | { handleEvent(event: WebSocket.WebSocketEventMap[K]): void }
  ): void;

  on<K extends keyof WebSocket.Listeners>(event: K, listener: WebSocket.Listener<WebSocket, K>): this;
  on(event: string | symbol, listener: (this: WebSocket, ...args: any[]) => void): this;
  once<K extends keyof WebSocket.Listeners>(event: K, listener: WebSocket.Listener<WebSocket, K>): this;
  once(event: string | symbol, listener: (this: WebSocket, ...args: any[]) => void): this;
  off<K extends keyof WebSocket.Listeners>(event: K, listener: WebSocket.Listener<WebSocket, K>): this;
  off(event: string | symbol, listener: (this: WebSocket, ...args: any[]) => void): this;
  addListener<K extends keyof WebSocket.Listeners>(event: K, listener: WebSocket.Listener<WebSocket, K>): this;
  addListener(event: string | symbol, listener: (...args: any[]) => void): this;
  removeListener<K extends keyof WebSocket.Listeners>(event: K, listener: WebSocket.Listener<WebSocket, K>): this;
  removeListener(event: string | symbol, listener: (...args: any[]) => void): this;
}

declare namespace WebSocket {
  type Data = string | Buffer | ArrayBuffer | Buffer[];
  /** A received message. */
  type RawData = Buffer | ArrayBuffer | Buffer[];
  type BufferLike =
    | string
    | Buffer
    | DataView
    | number
    | ArrayBufferView
    | Uint8Array
    | ArrayBuffer
    | SharedArrayBuffer
    | readonly number[];

  interface SendOptions {
    /** Default: whether the data is not a string. */
    binary?: boolean;
    /** Default true. Without effect if compression was not negotiated. */
    compress?: boolean;
    /** Whether this is the message's last fragment. Default true. */
    fin?: boolean;
    /** Accepted and unused: a client always masks, a server never does. */
    mask?: boolean;
  }

  /** Events and their arguments. */
  interface Listeners {
    open: [];
    message: [data: RawData, isBinary: boolean];
    ping: [data: Buffer];
    pong: [data: Buffer];
    close: [code: number, reason: Buffer];
    error: [error: Error];
    upgrade: [response: IncomingMessage];
    redirect: [url: string, request: ClientRequest];
    'unexpected-response': [request: ClientRequest, response: IncomingMessage];
  }
  type Listener<T, K extends keyof Listeners> = (this: T, ...args: Listeners[K]) => void;

  interface PerMessageDeflateOptions {
    serverNoContextTakeover?: boolean;
    clientNoContextTakeover?: boolean;
    serverMaxWindowBits?: number;
    clientMaxWindowBits?: number;
    /** `level` is used, from 1 to 9. Default 2. */
    zlibDeflateOptions?: ZlibOptions;
    /** Accepted and unused. */
    zlibInflateOptions?: ZlibOptions;
    /** Bytes below which messages are not compressed if the window does not persist. Default 1024. */
    threshold?: number;
    /** Accepted and unused: no thread pool is involved. */
    concurrencyLimit?: number;
  }

  /** Settings for a connection, on both ends. */
  interface ConnectionOptions {
    /** Delivers several events in one tick. Default true. */
    allowSynchronousEvents?: boolean;
    /** Answers pings. Default true. */
    autoPong?: boolean;
    /** Milliseconds for the closing handshake. Default 30,000. */
    closeTimeout?: number;
    /** Bytes in `bufferedAmount` at which the connection is destroyed. Default 1 GiB. */
    maxBufferedAmount?: number;
    /** Accepted and unused: memory does not depend on the number of chunks. */
    maxBufferedChunks?: number;
    /** Fragments of a message. Default 131,072; 0 means no limit. */
    maxFragments?: number;
    /** Bytes of a message, after inflating. Default 100 MiB; 0 means 4 GiB. */
    maxPayload?: number;
    perMessageDeflate?: boolean | PerMessageDeflateOptions;
    /** Accepted and unused: text is always validated. */
    skipUTF8Validation?: boolean;
  }

  interface ClientOptions extends ConnectionOptions, SecureContextOptions {
    agent?: Agent;
    auth?: string;
    ca?: SecureContextOptions['ca'];
    checkServerIdentity?(servername: string, cert: any): boolean | Error | undefined;
    createConnection?: any;
    family?: number;
    finishRequest?(request: ClientRequest, websocket: WebSocket): void;
    followRedirects?: boolean;
    /** Accepted and unused: the engine makes the masking keys. */
    generateMask?(mask: Buffer): void;
    /** Milliseconds. Default: none. */
    handshakeTimeout?: number;
    headers?: { [name: string]: string };
    localAddress?: string;
    maxRedirects?: number;
    origin?: string;
    protocolVersion?: 8 | 13;
    rejectUnauthorized?: boolean;
    servername?: string;
  }

  interface VerifyClientInfo<R extends typeof IncomingMessage = typeof IncomingMessage> {
    origin: string;
    secure: boolean;
    req: InstanceType<R>;
  }
  type VerifyClientCallbackSync<R extends typeof IncomingMessage = typeof IncomingMessage> = (
    info: VerifyClientInfo<R>
  ) => boolean;
  type VerifyClientCallbackAsync<R extends typeof IncomingMessage = typeof IncomingMessage> = (
    info: VerifyClientInfo<R>,
    callback: (isVerified: boolean, code?: number, message?: string, headers?: OutgoingHttpHeaders) => void
  ) => void;

  interface ServerOptions<
    T extends typeof WebSocket = typeof WebSocket,
    R extends typeof IncomingMessage = typeof IncomingMessage
  > extends ConnectionOptions {
    backlog?: number;
    clientTracking?: boolean;
    handleProtocols?: (protocols: Set<string>, request: InstanceType<R>) => string | false;
    host?: string;
    noServer?: boolean;
    path?: string;
    port?: number;
    server?: HttpServer | HttpsServer;
    verifyClient?: VerifyClientCallbackSync<R> | VerifyClientCallbackAsync<R>;
    WebSocket?: T;
  }

  interface Event {
    type: string;
    target: WebSocket;
  }
  interface ErrorEvent extends Event {
    error: any;
    message: string;
  }
  interface CloseEvent extends Event {
    wasClean: boolean;
    code: number;
    reason: string;
  }
  interface MessageEvent extends Event {
    data: Data;
  }
  interface WebSocketEventMap {
    open: Event;
    error: ErrorEvent;
    close: CloseEvent;
    message: MessageEvent;
  }
  interface EventListenerOptions {
    once?: boolean;
  }

  /** Events of a server and their arguments. */
  interface ServerListeners<T extends typeof WebSocket, R extends typeof IncomingMessage> {
    connection: [websocket: InstanceType<T>, request: InstanceType<R>];
    headers: [headers: string[], request: InstanceType<R>];
    wsClientError: [error: Error, socket: Duplex, request: InstanceType<R>];
    error: [error: Error];
    close: [];
    listening: [];
  }

  class Server<
    T extends typeof WebSocket = typeof WebSocket,
    R extends typeof IncomingMessage = typeof IncomingMessage
  > extends EventEmitter {
    options: ServerOptions<T, R>;
    path: string;
    clients: Set<InstanceType<T>>;

    constructor(options?: ServerOptions<T, R>, callback?: () => void);

    address(): AddressInfo | string | null;
    close(callback?: (error?: Error) => void): void;
    handleUpgrade(
      request: InstanceType<R>,
      socket: Duplex,
      head: Buffer,
      callback: (client: InstanceType<T>, request: InstanceType<R>) => void
    ): void;
    shouldHandle(request: InstanceType<R>): boolean | Promise<boolean>;

    on<K extends keyof ServerListeners<T, R>>(
      event: K,
      listener: (this: Server<T, R>, ...args: ServerListeners<T, R>[K]) => void
    ): this;
    on(event: string | symbol, listener: (this: Server<T, R>, ...args: any[]) => void): this;
    once<K extends keyof ServerListeners<T, R>>(
      event: K,
      listener: (this: Server<T, R>, ...args: ServerListeners<T, R>[K]) => void
    ): this;
    once(event: string | symbol, listener: (this: Server<T, R>, ...args: any[]) => void): this;
    off(event: string | symbol, listener: (this: Server<T, R>, ...args: any[]) => void): this;
  }

  const WebSocketServer: typeof Server;
  interface WebSocketServer extends Server {}
  const WebSocket: typeof WebSocketAlias;
  interface WebSocket extends WebSocketAlias {}

  function createWebSocketStream(websocket: WebSocket, options?: DuplexOptions): Duplex;
}

type WebSocketAlias = WebSocket;
declare const WebSocketAlias: typeof WebSocket;

export = WebSocket;
