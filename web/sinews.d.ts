/** Types of /sinews.js, the browser's side of the protocol at /ws. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface Message {
  topic: string;
  /** What was published: JSON, or bytes. Text that was published as such is a string. */
  data: Json | Uint8Array;
  /** Where it stands in its topic, if the server keeps that. */
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
   * The close code and reason of the last connection; 0 if it was given up here. "closed" with 4400, 4401, 4403 or 4404:
   * the server rejects the path, the token, the origin or a missing right, and the reason says which.
   */
  code?: number;
  reason?: string;
}

export interface Options {
  /**
   * The class of WebSockets; the global one by default. Runtimes without it, such as Node.js before 22, pass that of the
   * package `ws`.
   */
  WebSocket?: new (url: string | URL, protocols?: string | string[]) => unknown;
  /**
   * A token, or a function that answers one. It is asked before each attempt, and before the token of the connection
   * expires: the next one then takes its place without a reconnect. A token that the server has rejected is not sent
   * again: with a constant one, or a function that answers the same one, the client ends ("closed", code 4401).
   */
  token?: string | (() => string | Promise<string>);
  /** Called with each change of state. */
  onstatus?: (change: StatusChange) => void;
  /** Milliseconds before the second attempt; twice as much before each further one. Default 250. */
  minDelay?: number;
  /** Milliseconds between attempts at most. Default 30,000. */
  maxDelay?: number;
  /** Milliseconds without a message after which a ping is sent. Default 30,000. */
  silence?: number;
  /** Milliseconds for the answer to a ping, and for the server's welcome. Default 10,000. */
  patience?: number;
}

export interface SubscribeOptions {
  /** The last so many messages too, of a topic that the server keeps. */
  last?: number;
  /** Called with the number of subscribers, whenever it changes. Not for patterns. */
  presence?: (subscribers: number) => void;
  /** Called if messages were lost: forgotten before a reconnect, or dropped since this page is too slow. */
  ongap?: () => void;
  /** Called if the server refuses the subscription, at first or after a reconnect. */
  onerror?: (error: SinewsError) => void;
}

export interface Subscription {
  readonly client: Client;
  readonly topic: string;
  /** Resolves when the server has it for the first time; rejects if it refuses. */
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
  /** What is waited for; "disk" unless told. */
  ack?: "memory" | "disk" | "broker";
}

export interface ConsumeOptions {
  /** Where to begin; "latest" unless told, for a group that has stored nothing "earliest". */
  from?: "earliest" | "latest" | { offset: number } | { time: number };
  /** Shares the partitions with the group's other members, and begins where it has committed. */
  group?: string;
  partition?: number;
  /** Called with the partitions that this member of a group reads now. */
  onassigned?: (partitions: number[]) => void;
  /** Called if the group's committed offset may be lost, or cannot be read from: reading begins at `offset`. */
  onreset?: (reset: { partition: number; offset: number }) => void;
  /** Called if records are not there any more. */
  ongap?: (gap: { partition: number; from: number; to: number }) => void;
  /** Called if the server refuses it, at first or after a reconnect. */
  onerror?: (error: SinewsError) => void;
}

export interface Consumption {
  readonly stream: string;
  /** Resolves when the server has it for the first time; rejects if it refuses. */
  readonly ready: Promise<unknown>;
  /** Stores that the group goes on behind the records that were heard so far. */
  commit(): Promise<unknown>;
  stop(): void;
}

export interface Stream {
  readonly name: string;
  /** Appends JSON or bytes; resolves when it is on disk, or as safe as `ack` says. */
  append(data: Json | ArrayBuffer | ArrayBufferView, options?: AppendOptions): Promise<{ partition: number; offset: number; count: number }>;
  /** Hears each record once, in the order of its partition, over reconnects. */
  consume(onrecord: (record: StreamRecord) => void, options?: ConsumeOptions): Consumption;
  /** Records once, from an offset on, about `max` bytes. */
  read(offset: number, options?: { partition?: number; max?: number }): Promise<{ records: Omit<StreamRecord, "partition">[]; next: number; end: number }>;
  info(): Promise<{
    partitions: { partition: number; earliest: number; end: number; bytes: number }[];
    groups: { group: string; partitions: { partition: number; offset: number }[] }[];
  }>;
}

/** What the server says went wrong: a code of docs/protocol.md; or this client: "lost", "full" or "closed". */
export class SinewsError extends Error {
  readonly code: number | "lost" | "full" | "closed";
  /** What a token would have to hold. */
  readonly needs?: { publish?: string[]; subscribe?: string[] };
}

export class Client {
  constructor(url?: string | URL, options?: Options);
  readonly status: Status;
  onstatus: ((change: StatusChange) => void) | null;
  /** Hears a topic, or all that match a pattern, from now on and after every reconnect. */
  subscribe(topic: string, onmessage: (message: Message) => void, options?: SubscribeOptions): Subscription;
  /** Publishes JSON or bytes; resolves when the server has it. */
  publish(topic: string, data: Json | ArrayBuffer | ArrayBufferView): Promise<{ reached?: number; epoch?: number; seq?: number }>;
  /** A stream that the server keeps on disk (docs/streams.md). */
  stream(name: string): Stream;
  /** What the server keeps of a topic: the last so many messages, 100 if that is not told. */
  history(topic: string, last?: number): Promise<Message[]>;
  /** How many are subscribed to a topic by its name. */
  presence(topic: string): Promise<number>;
  /** Ends the connection, for good. */
  close(): void;
}

/** Connects, and stays connected until `close`. Default: `/ws` of the page's own server. */
export function connect(url?: string | URL, options?: Options): Client;
