/** Types of sinews.js, the client of the Sinews protocol `sinews.v1`. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/**
 * Data that JSON can represent, or bytes: interfaces, too. Other types, such as functions, are errors of the compiler.
 * A `Date`, or another object with `toJSON`, arrives as its JSON.
 */
export type Payload<T> = [T] extends [Json | ArrayBuffer | ArrayBufferView] ? T : T extends ((...values: never[]) => unknown) | symbol | bigint ? never
  : T extends { toJSON(): unknown } ? T
  : T extends object ? { [K in keyof T]: Payload<T[K]> } : T;

/** The type of payloads, unless the application names a narrower one. */
export type Data = Json | Uint8Array;

export interface Message<T = Data> {
  topic: string;
  /** The payload: JSON, or bytes. A text payload is a string. */
  data: T;
  /**
   * The user of the publisher's token (`sub`) and the token's claim `info`, if the namespace has `sender = true`. Clients cannot set
   * them.
   */
  user?: string;
  info?: Json;
  /** The server's time of the publication in milliseconds since 1970, if the topic has a history. */
  at?: number;
  /** Position in the topic, if the topic has a history. */
  epoch?: number;
  seq?: number;
}

/** Position of a message in a topic with a history. */
export interface Position {
  /** Number that changes when the topic restarts. */
  epoch: number;
  /** Number of the message; counts from 1 without a gap. */
  seq: number;
}

/** Positions in the topics of a pattern. */
export interface PatternPosition {
  positions: Record<string, Position>;
  /** Whether there are more topics than the limit. */
  isPartial?: boolean;
}

/** Messages that a subscription has not received, or may not have received. */
export interface Gap {
  /** The topic; undefined if the messages belong to several topics. */
  topic?: string;
  /**
   * `unretained`: the client has reconnected, and there is no history: a topic without one, such topics of a pattern, or topics of the
   * backend.
   * `dropped`: the client reads too slowly, or the messages expired first. `history`: the topic no longer retains messages
   * since the last position, or the position is of another node, or of an earlier start of the server. `reset`: the topic's
   * stream was deleted, and its numbers start anew.
   */
  reason: "unretained" | "dropped" | "history" | "reset";
  /** Number of dropped messages, for `dropped`. */
  messages?: number;
  /** Number of retained messages that follow, for `history`. The subscription may have received some of them before. */
  replayed?: number;
}

/** Changes of keys that a client has not received. The snapshot that follows has all present keys. */
export interface KeyGap {
  topic: string;
  /**
   * `reset`: the keys have begun anew, with the server, or at another node of the cluster: changes may be lost. `history`: the
   * server no longer knows the changes since the client's position.
   */
  reason: "history" | "reset";
}

/** Options of one request. */
export interface RequestOptions {
  /** Whether the request waits for a connection. Otherwise it is rejected with `offline` while disconnected. Default true. */
  queue?: boolean;
  /** Milliseconds until the request is rejected with `timeout`. One that waits for a connection is then not sent. */
  timeout?: number;
  /** Rejects the request with the signal's reason. One that waits for a connection is then not sent. */
  signal?: AbortSignal;
}

export interface PublishOptions extends RequestOptions {
  /**
   * A second publication with the same key has no effect, and the result of the first: the client repeats the publication
   * after a lost connection, for at most 240 s. With `true`, the client generates the key. Default: no key, and the code `lost`.
   */
  idempotencyKey?: string | true;
}

export interface HistoryRange extends RequestOptions {
  /** Number of messages, the newest ones. Default 100. */
  last?: number;
  /** With `last`: messages older than this position. */
  before?: Position;
  /** Messages after this position, instead of the newest ones. */
  from?: Position;
  /** With `from`: number of messages, the oldest ones. */
  limit?: number;
}

/** Retained messages, the oldest first. */
export interface History<T = Data> extends Array<Message<T>> {
  /** Whether more messages are retained in this direction: older ones, or with `from` later ones. */
  readonly more: boolean;
  /** False if the position is of another epoch, or if messages behind it are no longer retained. */
  readonly complete: boolean;
}

export type Status = "connecting" | "open" | "waiting" | "closed";

export interface StatusChange {
  status: Status;
  /** Attempts since the last connection that lasted 5 seconds. */
  attempt: number;
  /** Milliseconds until the next attempt, while waiting. */
  delay?: number;
  /**
   * The close code and reason of the last connection; 0 if this client dropped it, or could not begin it. "closed" with 0: the
   * URL is invalid, or the page may not connect to it (mixed content, CSP). "closed" with 4400, 4401, 4403 or 4404:
   * the server rejects the path, the token, the origin or a missing right, and the reason says which. 1008: the client
   * exceeded a limit, or read too slowly.
   */
  code?: number;
  reason?: string;
}

/** The event `status`. */
export interface StatusEvent extends StatusChange {
  readonly type: "status";
  readonly target: CoreClient;
}

/** Options of `@sinews/client/core`. */
export interface CoreOptions {
  /**
   * The WebSocket class, which gets the URL as a string. Default: the global WebSocket. Runtimes without it, such as Node.js
   * before 22, pass the class of the package `ws`.
   */
  WebSocket?: new (url: string, protocols?: string[]) => unknown;
  /**
   * A token, or a function that returns a token. The function is called before the current token expires, when a fifth of its life
   * is left (at most a minute): the new token then replaces it without a reconnect. Until then, the client reconnects
   * with the token that it has. A rejected token is not sent again: with a constant token, or a function that returns
   * the same token, the client ends ("closed", code 4401). A function that throws a `SinewsError` with the code 4401 ends
   * the client, too: the user has logged out. One that throws another error, does not answer within `responseTimeout`, or returns
   * no token text, is called again after a delay ("waiting").
   */
  token?: string | (() => string | Promise<string>);
  /** Called on each change of state. */
  onstatus?: (change: StatusChange) => void;
  /**
   * Called with messages of topics that no subscription of this client matches: the server has subscribed the client
   * by its token, as a personal topic, by the HTTP API or in the answer to a hook.
   */
  onmessage?: (message: Message) => void;
  /** Called if messages for `onmessage` may be lost: after every reconnect, without a topic, and if messages were dropped. */
  ongap?: (gap: Gap) => void;
  /** Milliseconds before the second attempt, doubled before each further attempt. Default 250. */
  minDelay?: number;
  /** Longest delay between attempts, in milliseconds. Default 30,000. */
  maxDelay?: number;
  /** Milliseconds without a message after which a ping is sent. Default 30,000. */
  heartbeatInterval?: number;
  /** Timeout of the answer to a ping, of the server's welcome, and of the function `token`, in milliseconds. Default 10,000. */
  responseTimeout?: number;
  /** Prints states, delays and frames by `console.debug`. Default: whether localStorage.sinews is "debug". */
  debug?: boolean;
}

export interface Options extends CoreOptions {
  /**
   * Uses plain HTTP after two failed attempts, where a network blocks WebSockets, and tries a WebSocket again at each later
   * connection. HTTP rejects four kinds of requests with the code 501: consumer groups of streams, a `version` of
   * a key without its `epoch`, a history with `before` or `limit`, and subscriptions, consumed streams and joins beyond five
   * responses. Default false.
   */
  fallback?: boolean;
}

export interface SubscribeOptions<I = Json | undefined> {
  /** Number of messages to replay from the topic's history. Not for patterns. */
  last?: number;
  /** Replays messages after this position, such as the `position` of an earlier subscription. Not with `last`. */
  from?: Position | PatternPosition;
  /** For patterns: whether the server tells the positions of the topics, so that a reconnect resumes. Default true. */
  recover?: boolean;
  /** Called with the number of subscribers on each change. Not for patterns. */
  presence?: (subscribers: number) => void;
  /**
   * Called with the members of the topic, the info of each by its id, on each change, and with all present members after a
   * reconnect: a member that left and came back meanwhile is not reported. Not for patterns.
   */
  members?: (members: Map<string, I>) => void;
  /**
   * Called on each acknowledgement of the subscription: the first, and after each reconnect. `publish` is false if the
   * client may not publish to the topic.
   */
  onsubscribed?: (ack: SubscriptionAck<I>) => void;
  /**
   * Called if messages were lost, or may be: evicted from the history before a reconnect, dropped for a slow client, and after
   * every reconnect if the topic has no history, or is a pattern with such topics.
   */
  ongap?: (gap: Gap) => void;
  /** Called if the server rejects the subscription, at first or after a reconnect, or if the backend ends it. */
  onerror?: (error: SinewsError) => void;
}

/** An acknowledgement of a subscription. */
export interface SubscriptionAck<I = Json | undefined> {
  topic: string;
  publish?: false;
  subscribers?: number;
  members?: ListedMember<I>[];
  epoch?: number;
  seq?: number;
  replayed?: number;
  complete?: boolean;
  positions?: Record<string, Position>;
  incomplete?: string[];
}

/** A member of a topic: a user or a device with one or more connections. */
export interface Member<I = Json | undefined> {
  /** 1 to 128 characters. If the token has a `sub`, that. */
  id: string;
  /** What other clients learn of the member: at most 1,024 bytes of JSON. */
  info?: I;
}

/** A member in a list. */
export interface ListedMember<I = Json | undefined> extends Member<I> {
  /** Number of its connections, over all nodes. */
  connections: number;
}

/** A join of a topic: a promise that resolves when the server acknowledges, and rejects if it rejects the member. */
export interface Membership extends PromiseLike<void> {
  readonly topic: string;
  catch<R = never>(onrejected?: ((error: SinewsError) => R | PromiseLike<R>) | null): Promise<void | R>;
  finally(onfinally?: (() => void) | null): Promise<void>;
  /** Ends this join. After the last one, the client is no member any more. */
  leave(): Promise<void>;
}

export interface Subscription {
  readonly client: CoreClient;
  readonly topic: string;
  /** Resolves on the first acknowledgement; rejects on an error, or with the code `stopped` if it is ended before. */
  readonly ready: Promise<unknown>;
  /**
   * Position of the last message, if the topic has a history; of a pattern the positions of its topics. Stored, it is the option
   * `from` of a later subscription.
   */
  readonly position: Position | PatternPosition | null;
  unsubscribe(): void;
}

export interface StateOptions {
  /** Only keys that match this pattern. */
  filter?: string;
  /** At most one update in this number of milliseconds. The states of a topic share the shortest interval. */
  interval?: number;
  /** Called on each acknowledgement: the first, and after each reconnect. */
  onsubscribed?: (ack: { topic: string; epoch: number; seq: number; recovered: boolean }) => void;
  /** Called if changes were missed that the server does not know any more, before `onchange` gets the new snapshot. */
  ongap?: (gap: KeyGap) => void;
  /** Called for the reason `reset` in place of `ongap`: what only the server had is gone, and the keys have begun anew. */
  onreset?: (gap: KeyGap) => void;
  /** Called if the server rejects the subscription, at first or after a reconnect. */
  onerror?: (error: SinewsError) => void;
}

/** The keys of a topic. */
export interface State<T = Data> {
  readonly topic: string;
  /** Resolves with the first snapshot; rejects on an error, or with the code `stopped` if it is ended before. */
  readonly ready: Promise<State<T>>;
  /** The values by key: a new map after each change. */
  readonly keys: ReadonlyMap<string, T>;
  /** Position of the view; null before the first snapshot. */
  readonly position: Position | null;
  /** The version of a key, for the option `version` of a write. */
  version(key: string): number | undefined;
  unsubscribe(): void;
}

/** Conditions of a write of a key. At most one of `ifNew`, `ifExists` and `version`. */
export interface KeyConditions extends RequestOptions {
  ifNew?: boolean;
  ifExists?: boolean;
  version?: number;
  /** With `version`: the epoch of it. */
  epoch?: number;
  /** A second write of the key with the same name has no effect, and the result of the first. As of `publish`. */
  idempotencyKey?: string | true;
}

/** Position of a write; `changed` is false if a deleted key did not exist. */
export interface KeyWritten extends Position {
  changed?: boolean;
  repeated?: boolean;
}

/** A record of a stream. */
export interface StreamRecord<T = Data> {
  partition: number;
  offset: number;
  /** The producer's clock, in microseconds since 1970. */
  at: number;
  key?: string;
  /** A key that is not UTF-8, in base64. */
  key_b64?: string;
  data: T;
}

export interface AppendOptions extends RequestOptions {
  /** Records of one key go to one partition. */
  key?: string;
  partition?: number;
  /** Required durability of the acknowledgement. Default "disk". */
  ack?: "memory" | "disk" | "broker";
}

export interface ConsumeOptions {
  /** Start position. Default "latest"; for a group without a committed offset "earliest". */
  from?: "earliest" | "latest" | { offset: number } | { time: number };
  /** Consumer group: shares the partitions with its members, and starts at its committed offset. */
  group?: string;
  partition?: number;
  /** Called with the partitions assigned to this member of a group. */
  onassigned?: (partitions: number[]) => void;
  /**
   * Called if the group's committed offset may be lost, or cannot be read from, or if the stream has fewer records than were
   * read, since it was deleted and created again: reading starts at `offset`.
   */
  onreset?: (reset: { partition: number; offset: number }) => void;
  /** Called if records do not exist any more. */
  ongap?: (gap: { partition: number; from: number; to: number }) => void;
  /** Called if the server rejects the consumption, at first or after a reconnect. */
  onerror?: (error: SinewsError) => void;
}

export interface Consumption {
  readonly stream: string;
  /** Resolves on the first acknowledgement; rejects on an error, or with the code `stopped` if it is ended before. */
  readonly ready: Promise<unknown>;
  /** Commits the group's offset after the records delivered so far. */
  commit(): Promise<unknown>;
  stop(): void;
}

export interface Stream {
  readonly name: string;
  /** Appends JSON or bytes; resolves when the record is on disk, or has the durability of `ack`. */
  append<T>(data: T & Payload<T>, options?: AppendOptions): Promise<{ partition: number; offset: number; count: number }>;
  /** Delivers each record once, in the order of its partition, across reconnects. */
  consume<T = Data>(onrecord: (record: StreamRecord<T>) => void, options?: ConsumeOptions): Consumption;
  /** Reads records once from an offset on, about `max` bytes. */
  read<T = Data>(offset: number, options?: { partition?: number; max?: number }): Promise<{ records: Omit<StreamRecord<T>, "partition">[]; next: number; end: number }>;
  /** Deletes the stream with its records. A token must grant the right `delete`. */
  delete(): Promise<void>;
  /** The first and end offsets of the partitions, and the committed offsets of the groups. */
  info(): Promise<{
    partitions: { partition: number; earliest: number; end: number; bytes: number }[];
    groups: { group: string; partitions: { partition: number; offset: number }[] }[];
  }>;
}

/**
 * An error of the server with a number of the protocol as its code, or of this client: `lost` (the connection ended before
 * the answer), `offline` (there is no connection, with `queue: false`), `timeout`, `aborted`, `replaced` (a later `set` of the key took
 * its place while disconnected), `full` (too many requests wait), `invalid` (no JSON), `closed`, `stopped` (by `unsubscribe`
 * or `stop`), `unsubscribed` (by the backend), `no-websocket` and `no-url` (thrown by `connect`).
 */
export class SinewsError extends Error {
  constructor(code: SinewsError["code"], message: string);
  readonly code: number | "lost" | "offline" | "timeout" | "aborted" | "replaced" | "full" | "invalid" | "closed" | "stopped" | "unsubscribed" | "no-websocket" | "no-url";
  /** Of a request that this client has ended: false if it was not sent, true if the server may have executed it. */
  readonly sent?: boolean;
  /** The rights that a token would have to grant. */
  readonly needs?: { publish?: string[]; subscribe?: string[]; keys?: string[] };
}

/** A client without streams and HTTP: the class `Client` of `@sinews/client/core`. */
export class CoreClient {
  constructor(url?: string | URL, options?: CoreOptions);
  readonly status: Status;
  /** "http" with the option `fallback`, where WebSockets fail. */
  readonly transport: "websocket" | "http";
  /**
   * Ids of the open connections, by which a backend addresses this client: one of a WebSocket, or one for each response
   * over HTTP.
   */
  readonly connections: string[];
  /** Bytes that the socket has not yet sent. */
  readonly bufferedAmount: number;
  /** Number of requests that wait for a connection. */
  readonly queued: number;
  onstatus: ((change: StatusChange) => void) | null;
  /** As of an `EventTarget`, for several listeners. */
  addEventListener(type: "status", listener: StatusListener | null, options?: { once?: boolean; signal?: AbortSignal }): void;
  removeEventListener(type: "status", listener: StatusListener | null): void;
  /**
   * Subscribes to a topic or a pattern, and again after every reconnect. `T` is the type of the payloads, which nothing
   * checks at run time: `subscribe<{ text: string }>("chat.room", ({ data }) => data.text)`. `I` is the type of a member's info.
   */
  subscribe<T = Data, I = Json | undefined>(topic: string, onmessage: (message: Message<T>) => void, options?: SubscribeOptions<I>): Subscription;
  /** Publishes JSON or bytes; resolves when the server acknowledges. */
  publish<T>(topic: string, data: T & Payload<T>, options?: PublishOptions): Promise<{ reached?: number; epoch?: number; seq?: number; repeated?: boolean }>;
  /**
   * Fetches retained messages of a topic, the oldest first: the last ones (default 100), with `before` and `last` older ones, or
   * with `from` and `limit` those after a position. One answer has at most 1,000 messages and 1 MiB.
   */
  history<T = Data>(topic: string, range?: number | HistoryRange): Promise<History<T>>;
  /**
   * Follows the keys of a topic, and again after every reconnect. `onchange` gets the values by key, and the keys that have
   * changed. States of one topic share a subscription.
   */
  state<V = Data>(topic: string, onchange: (keys: ReadonlyMap<string, V>, changed: Set<string>) => void, options?: StateOptions): State<V>;
  /** Sets a key of a topic; rejects with the code 412 if the condition is not met. `ttl` is in milliseconds. */
  set<T>(topic: string, key: string, data: T & Payload<T>, options?: KeyConditions & { ttl?: number }): Promise<KeyWritten>;
  /** Deletes a key of a topic. */
  delete(topic: string, key: string, options?: KeyConditions): Promise<KeyWritten>;
  /**
   * Calls a method of the application behind the server (hook `rpc`), and resolves with its result, whose type nothing checks
   * at run time. Rejects with the code and the reason of the application, with 404 without a hook, and with 503 if the
   * application does not answer.
   */
  call<T = Json>(method: string, data?: unknown, options?: RequestOptions & { topic?: string }): Promise<T>;
  /** The number of subscribers of a topic by its name. */
  presence(topic: string, options?: RequestOptions): Promise<number>;
  /**
   * Makes this client present in a topic as a member, and again after every reconnect, until all joins of the topic have ended: each
   * by `leave` of its result. Joining again replaces the member.
   */
  join<I>(topic: string, member: { id: string; info?: I & Payload<I> }): Membership;
  /** Ends the presence of this client in a topic, with all its joins. */
  leave(topic: string): Promise<void>;
  /** The members of a topic, in order of their ids. */
  members<I = Json | undefined>(topic: string, options?: RequestOptions): Promise<ListedMember<I>[]>;
  /** Connects now, if the client waits for its next attempt; otherwise tests the connection, which takes at most 3 s. */
  retry(): void;
  /** Closes the connection permanently. */
  close(): void;
}

export type StatusListener = ((event: StatusEvent) => void) | { handleEvent(event: StatusEvent): void };

/** A client with streams, and with HTTP where a network blocks WebSockets. */
export class Client extends CoreClient {
  constructor(url?: string | URL, options?: Options);
  /** A durable stream of the server. */
  stream(name: string): Stream;
}

/** Connects, and reconnects until `close`. The URL has the scheme ws, wss, http or https; default: `/ws` of the page's own server. */
export function connect(url?: string | URL, options?: Options): Client;
