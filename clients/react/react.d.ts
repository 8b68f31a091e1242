/** Types of react.js, the React hooks for the client of Sinews. */
import type { CoreClient, Client, Data, Gap, Json, KeyGap, Member, Message, SinewsError, StatusChange, StreamRecord } from "@sinews/client";
import type { ReactElement, ReactNode } from "react";

/**
 * Provides a client to the hooks below it. `connect` is called in the browser only, at the first use of a hook in an effect, and
 * its client is closed with the component. A `client` is not closed.
 */
export function Sinews(props: { connect: () => Client | CoreClient; client?: undefined; children?: ReactNode }
  | { client: Client | CoreClient; connect?: undefined; children?: ReactNode }): ReactElement;

/** A function that returns the client, for event handlers and effects. `C` is `CoreClient` with `@sinews/client/core`. */
export function useClient<C extends CoreClient = Client>(): () => C;

/** The last messages of a topic or a pattern. A topic in several components is one subscription. */
export function useTopic<T = Data>(topic: string, options?: {
  /** Number of messages to replay from the topic's history. */
  last?: number;
  /** Number of messages that the hook has at most. Default 100. */
  max?: number;
}): { messages: readonly Message<T>[]; isReady: boolean; gap: Gap | null; error: SinewsError | null };

/** The keys of a topic, in a new map for each change. */
export function useKeys<V = Data>(topic: string, options?: {
  /** Only keys that match this pattern. */
  filter?: string;
  /** At most one update in this number of milliseconds. */
  interval?: number;
}): { keys: ReadonlyMap<string, V>; isReady: boolean; gap: KeyGap | null; error: SinewsError | null };

/** The members of a topic by id. With `member`, the client is one while the component is shown. */
export function useMembers<I = Json | undefined>(topic: string, member?: Member<I> | null): {
  members: ReadonlyMap<string, I>;
  isReady: boolean;
  error: SinewsError | null;
};

/** The last records of a stream. */
export function useStream<T = Data>(name: string, options?: {
  from?: "earliest" | "latest" | { offset: number } | { time: number };
  partition?: number;
  /** Number of records that the hook has at most. Default 100. */
  max?: number;
}): { records: readonly StreamRecord<T>[]; isReady: boolean; error: SinewsError | null };

/** The status of the connection; `connecting` on a server. */
export function useStatus(): StatusChange;
