/** Types of /sinews.js, the browser client of the protocol at /ws. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface Message {
  topic: string;
  /** The payload: JSON, or bytes. A text payload is a string. */
  data: Json | Uint8Array;
  /** Position in the topic, if the topic has a history. */
  epoch?: number;
  seq?: number;
}

export type Status = "connecting" | "open" | "waiting" | "closed";

export interface StatusChange {
  status: Status;
  /** Attempts since the last connection. */
  attempt: number;
  /** Milliseconds until the next attempt, while waiting. */
  delay?: number;
  /**
   * The close code and reason of the last connection; 0 if this client dropped it. "closed" with 4400, 4401, 4403 or 4404:
   * the server rejects the path, the token, the origin or a missing right, and the reason says which.
   */
  code?: number;
  reason?: string;
}

export interface Options {
  /**
   * The WebSocket class. Default: the global WebSocket. Runtimes without it, such as Node.js before 22, pass the class of
   * the package `ws`.
   */
  WebSocket?: new (url: string | URL, protocols?: string | string[]) => unknown;
  /**
   * A token, or a function that returns a token. The function is called before each attempt, and before the current
   * token expires: the new token then replaces it without a reconnect. A rejected token is not sent again: with a
   * constant token, or a function that returns the same token, the client ends ("closed", code 4401).
   */
  token?: string | (() => string | Promise<string>);
  /** Called on each change of state. */
  onstatus?: (change: StatusChange) => void;
  /** Milliseconds before the second attempt, doubled before each further attempt. Default 250. */
  minDelay?: number;
  /** Longest delay between attempts, in milliseconds. Default 30,000. */
  maxDelay?: number;
  /** Milliseconds without a message after which a ping is sent. Default 30,000. */
  silence?: number;
  /** Timeout of the answer to a ping, and of the server's welcome, in milliseconds. Default 10,000. */
  patience?: number;
}

export interface SubscribeOptions {
  /** Number of messages to replay from the topic's history. */
  last?: number;
  /** Called with the number of subscribers on each change. Not for patterns. */
  presence?: (subscribers: number) => void;
  /** Called if messages were lost: evicted from the history before a reconnect, or dropped for a slow client. */
  ongap?: () => void;
  /** Called if the server rejects the subscription, at first or after a reconnect. */
  onerror?: (error: SinewsError) => void;
}

export interface Subscription {
  readonly client: Client;
  readonly topic: string;
  /** Resolves on the first acknowledgement; rejects on an error. */
  readonly ready: Promise<unknown>;
  unsubscribe(): void;
}

/** A record of a stream. */
export interface StreamRecord {
  partition: number;
  offset: number;
  /** The producer's clock, in microseconds since 1970. */
  at: number;
  key?: string;
  /** A key that is not UTF-8, in base64. */
  key_b64?: string;
  data: Json | Uint8Array;
}

export interface AppendOptions {
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
  /** Called if the group's committed offset may be lost, or cannot be read from: reading starts at `offset`. */
  onreset?: (reset: { partition: number; offset: number }) => void;
  /** Called if records do not exist any more. */
  ongap?: (gap: { partition: number; from: number; to: number }) => void;
  /** Called if the server rejects the consumption, at first or after a reconnect. */
  onerror?: (error: SinewsError) => void;
}

export interface Consumption {
  readonly stream: string;
  /** Resolves on the first acknowledgement; rejects on an error. */
  readonly ready: Promise<unknown>;
  /** Commits the group's offset after the records delivered so far. */
  commit(): Promise<unknown>;
  stop(): void;
}

export interface Stream {
  readonly name: string;
  /** Appends JSON or bytes; resolves when the record is on disk, or has the durability of `ack`. */
  append(data: Json | ArrayBuffer | ArrayBufferView, options?: AppendOptions): Promise<{ partition: number; offset: number; count: number }>;
  /** Delivers each record once, in the order of its partition, across reconnects. */
  consume(onrecord: (record: StreamRecord) => void, options?: ConsumeOptions): Consumption;
  /** Reads records once from an offset on, about `max` bytes. */
  read(offset: number, options?: { partition?: number; max?: number }): Promise<{ records: Omit<StreamRecord, "partition">[]; next: number; end: number }>;
  info(): Promise<{
    partitions: { partition: number; earliest: number; end: number; bytes: number }[];
    groups: { group: string; partitions: { partition: number; offset: number }[] }[];
  }>;
}

/** An error of the server with a code of docs/book/src/server/protocol.md, or of this client: "lost", "full" or "closed". */
export class SinewsError extends Error {
  readonly code: number | "lost" | "full" | "closed";
  /** The rights that a token would have to grant. */
  readonly needs?: { publish?: string[]; subscribe?: string[] };
}

export class Client {
  constructor(url?: string | URL, options?: Options);
  readonly status: Status;
  onstatus: ((change: StatusChange) => void) | null;
  /** Subscribes to a topic or a pattern, and again after every reconnect. */
  subscribe(topic: string, onmessage: (message: Message) => void, options?: SubscribeOptions): Subscription;
  /** Publishes JSON or bytes; resolves when the server acknowledges. */
  publish(topic: string, data: Json | ArrayBuffer | ArrayBufferView): Promise<{ reached?: number; epoch?: number; seq?: number }>;
  /** A durable stream of the server (docs/book/src/server/streams.md). */
  stream(name: string): Stream;
  /** Fetches the last messages of a topic's history. Default of `last`: 100. */
  history(topic: string, last?: number): Promise<Message[]>;
  /** The number of subscribers of a topic by its name. */
  presence(topic: string): Promise<number>;
  /** Closes the connection permanently. */
  close(): void;
}

/** Connects, and reconnects until `close`. Default URL: `/ws` of the page's own server. */
export function connect(url?: string | URL, options?: Options): Client;
