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
  /** The close code and reason of the last connection; 0 if it was given up here. */
  code?: number;
  reason?: string;
}

export interface Options {
  /** A token, or a function that answers one, asked before each attempt. */
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
  publish(topic: string, data: Json | ArrayBuffer | ArrayBufferView): Promise<{ reached: number }>;
  /** What the server keeps of a topic: the last so many messages, 100 if that is not told. */
  history(topic: string, last?: number): Promise<Message[]>;
  /** How many are subscribed to a topic by its name. */
  presence(topic: string): Promise<number>;
  /** Ends the connection, for good. */
  close(): void;
}

/** Connects, and stays connected until `close`. Default: `/ws` of the page's own server. */
export function connect(url?: string | URL, options?: Options): Client;
