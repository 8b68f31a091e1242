/// <reference types="node" />

/** Anything that is sent as a binary message or a body. */
export type Bytes = Buffer | NodeJS.ArrayBufferView | ArrayBuffer;

/** A connection of a client. `T`: what the program keeps with it. */
export interface ServerWebSocket<T = unknown> {
  /** Anything that the program wants to keep with the connection. */
  data: T;
  /** The request's path and query. */
  readonly url: string;
  /** The request's headers, by their names in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** The client's IP address. */
  readonly remoteAddress: string;
  /** 1 while the connection is open, 3 after its end. */
  readonly readyState: 1 | 3;
  /** Bytes that wait: sent since the last turn, and, from 16 KiB on, not taken by the socket. */
  readonly bufferedAmount: number;
  /**
   * Sends a message: a string as text, bytes as binary. The messages of a burst leave in one write.
   *
   * Returns the bytes that were queued, 1 for an empty message; -1 if they were queued and the queue is longer than `highWater` (wait for
   * `drain`); 0 if the message was dropped: the connection is closed, or its queue is full.
   * @throws TypeError `data` is neither a string nor bytes.
   */
  send(data: string | Bytes): number;
  /**
   * Starts the closing handshake behind the queued messages.
   * @param code 1000 (the default), another code that may be sent, or 3000 to 4999
   * @param reason at most 123 bytes
   * @throws RangeError for another code or a longer reason.
   */
  close(code?: number, reason?: string): void;
  /**
   * Subscribes to a topic, or to all topics that match a pattern: `*` is one part of the name, `>` all further ones.
   * Returns whether the connection is open.
   * @throws TypeError The name is invalid.
   */
  subscribe(topic: string): boolean;
  /** Ends a subscription. Returns whether the connection is open. */
  unsubscribe(topic: string): boolean;
}

/** A request to one of the `routes`. */
export interface ServerRequest {
  readonly method: string;
  /** Path and query. */
  readonly url: string;
  /** By their names in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** The client's IP address. */
  readonly remoteAddress: string;
  readonly body: Buffer;
}

/** A response; a string or bytes alone are the body of a 200. */
export type ServerResponse =
  | string
  | Bytes
  | {
      /** 200 to 599. Default: 200. */
      status?: number;
      headers?: Record<string, string | number>;
      body?: string | Bytes;
    };

/** Handlers and limits of WebSockets. */
export interface WebSocketOptions<T = unknown> {
  /** Path of the WebSocket. Default: `/`. */
  path?: string;
  /** Subprotocols, the preferred one first. Default: none. */
  subprotocols?: string[];
  /** Origins of pages that may connect, or `*`. Default: those of the server's own name. */
  origins?: string[];
  /** Compress messages (permessage-deflate). Default: false, since it costs more time than it saves for small messages. */
  compression?: boolean;
  /** Bytes of a message, at most; a longer one closes the connection with 1009. Default: 16 MiB. */
  maxMessage?: number;
  /** Bytes that wait for a connection, at most; beyond, `send` returns 0, and publications close it with 1008. Default: 1 MiB. */
  maxBackpressure?: number;
  /** Bytes that wait for a connection, from which on `send` returns -1. Default: 64 KiB. */
  highWater?: number;
  /** Seconds without any byte from the client, after which a connection ends; 0: never. Default: 120. */
  idleTimeout?: number;
  /** Seconds between pings; 0: none. Default: 25. */
  pingInterval?: number;
  open?(ws: ServerWebSocket<T>): void;
  /** A message: text as a string, binary as a Buffer of its own. */
  message?(ws: ServerWebSocket<T>, data: string | Buffer): void;
  /** The queue is short again after `send` has returned -1. */
  drain?(ws: ServerWebSocket<T>): void;
  pong?(ws: ServerWebSocket<T>, data: Buffer): void;
  /** The end: the close code (1006 without a Close) and the reason. */
  close?(ws: ServerWebSocket<T>, code: number, reason: string): void;
}

/** A value of a configuration file. */
export type ConfigValue = string | number | boolean | ConfigValue[] | { [key: string]: ConfigValue | undefined };

export interface ServeOptions<T = unknown> {
  /** Default: 0, a free port; with `config`, and neither this nor `hostname`, its setting `listen`. */
  port?: number;
  /** IP address. Default: `127.0.0.1`; `0.0.0.0` and `::` are all addresses. */
  hostname?: string;
  /**
   * Serves all of `sinews serve` beside `routes` and `websocket`: `/ws` with its protocol, tokens, the HTTP API, streams, the Pusher
   * protocol and the others, with the settings of this file, or of an object with the file's tables and keys. The server has one thread,
   * Node.js's; the stream store and others have threads of their own. Environment variables are not read.
   */
  config?: string | { [key: string]: ConfigValue | undefined };
  /** By path; `{name}` is any segment, `{*rest}` all further ones. */
  routes?: Record<string, string | ((request: ServerRequest) => ServerResponse | Promise<ServerResponse>)>;
  websocket?: WebSocketOptions<T>;
  /**
   * A handler has thrown, or its promise was rejected. A WebSocket was closed with 1011, a request answered with 500. Without this function, the
   * error is the process's `uncaughtException`.
   */
  error?(error: unknown, ws?: ServerWebSocket<T>): void;
}

/** Options of a publication. */
export interface PublishOptions {
  /** The message is JSON, which clients of `/ws` and of the Pusher protocol get as it is. With `config` only. */
  json?: boolean;
}

/** A message of a topic's history. */
export interface HistoryMessage {
  /** Run of the topic: with `seq`, the message's position. */
  epoch: number;
  seq: number;
  /** JSON's value, a string of a text message, bytes of a binary one. */
  data: unknown;
}

/** Who is present in a topic. */
export interface Presence {
  /** Connections that are present, or subscribed by the topic's name. */
  subscribers: number;
  /** At most 256, ordered by id. */
  members: { id: string; connections: number; info?: unknown }[];
  /** Whether further members follow: pass the last one's id as `after`. */
  more: boolean;
}

export interface SinewsServer {
  /** The bound port. */
  readonly port: number;
  /** The bound IP address. */
  readonly hostname: string;
  /**
   * Publishes a message to all subscribers of a topic, after the sends and subscriptions of the running callback.
   * Encoded once, in one call. Returns whether the message was queued: at most 64 MiB wait for the callback's end.
   * With `config`, also to the topic's history and to clients of all protocols; to a durable topic's stream, whose failure is reported to
   * `error` with the code `ERR_SINEWS_TOPIC`.
   * @throws TypeError The name is invalid, or a pattern.
   */
  publish(topic: string, data: string | Bytes, options?: PublishOptions): boolean;
  /**
   * Reads a topic's retained messages, at most 1,000 and 1 MiB: the `last` ones, or those `after` a position. Those of a durable topic
   * are the records that are on disk. With `config` only.
   * @throws Error `ERR_SINEWS_TOPIC`, with a `status` as in the HTTP API: 410 if the topic has no history. `ERR_SINEWS_STOPPED`.
   */
  history(topic: string, options?: { last?: number; after?: { epoch: number; seq: number } }): Promise<HistoryMessage[]>;
  /**
   * Reads who is present in a topic, on all nodes of a cluster. Subscriptions count from the end of the running callback on. With
   * `config` only.
   * @throws TypeError The name is invalid. `ERR_SINEWS_STOPPED`: the server has stopped.
   */
  presence(topic: string, options?: { after?: string }): Presence;
  /** Stops: WebSockets are closed with 1001. Resolves once all connections have ended. */
  stop(): Promise<void>;
  /** The server keeps the process alive: the default. */
  ref(): void;
  /** The server lets the process end. */
  unref(): void;
}

/**
 * Binds a port, and serves inside of Node.js's event loop: no thread, and one call for a burst in each direction.
 * @throws TypeError, RangeError The message names the option. `ERR_SINEWS_BIND`: the port is in use, for example.
 */
export function serve<T = unknown>(options: ServeOptions<T>): SinewsServer;
