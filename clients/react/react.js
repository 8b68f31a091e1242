/**
 * React hooks for the client of Sinews.
 *
 *   <Sinews connect={() => connect("wss://example.com/ws")}><Room /></Sinews>
 *   const { messages } = useTopic("chat.room", { last: 20 });
 *
 * Types: react.d.ts.
 */
import { createContext, createElement, useContext, useEffect, useMemo, useSyncExternalStore } from "react";

/** Messages and records that a hook has, unless its option `max` says otherwise. */
const MAX = 100;
const CONNECTING = Object.freeze({ status: "connecting", attempt: 0 });

const Connection = createContext(null);

/** Provides a client: `client`, or the function `connect`, which is called in the browser only, at first use. */
export function Sinews({ client, connect, children }) {
  // Not the function: an application writes a new one for each render.
  const connection = useMemo(() => new Lazy(client ?? null, connect), [client]);
  useEffect(() => () => connection.close(), [connection]);
  return createElement(Connection.Provider, { value: connection }, children);
}

class Lazy {
  #client;
  #connect;

  constructor(client, connect) {
    this.#client = client;
    this.#connect = client ? null : connect;
  }

  get client() {
    return (this.#client ??= this.#connect());
  }

  /** Ends a client that it has made. After it, as in StrictMode, the next use makes another one. */
  close() {
    if (!this.#connect) return;
    this.#client?.close();
    this.#client = null;
  }
}

function useConnection() {
  const connection = useContext(Connection);
  if (!connection) throw new Error("@sinews/react: there is no <Sinews> around this component");
  return connection;
}

/** A function that returns the client, for event handlers and effects. */
export function useClient() {
  const connection = useConnection();
  return useMemo(() => () => connection.client, [connection]);
}

/**
 * What `start(client, set)` makes of `initial` by `set`, while the component is shown. `start` returns the end of it. It runs again
 * if the connection or a value of `inputs` changes; on a server it does not run.
 */
function useStarted(initial, start, inputs) {
  const connection = useConnection();
  const store = useMemo(() => {
    let value = initial;
    return {
      subscribe(onchange) {
        value = initial;
        return start(connection.client, (change) => {
          value = { ...value, ...(typeof change === "function" ? change(value) : change) };
          onchange();
        });
      },
      read: () => value,
    };
  }, [connection, ...inputs]);
  return useSyncExternalStore(store.subscribe, store.read, () => initial);
}

const text = (value) => JSON.stringify(value ?? null);
const appended = (list, one, max = MAX) => [...list, one].slice(-max);

const NO_MESSAGES = Object.freeze({ messages: [], isReady: false, gap: null, error: null });

/** The last messages of a topic or a pattern: `{ messages, isReady, gap, error }`. `gap` is the last loss, if there was one. */
export function useTopic(topic, { last, max } = {}) {
  return useStarted(NO_MESSAGES, (client, set) => {
    const subscription = client.subscribe(topic, (message) => set(({ messages }) => ({ messages: appended(messages, message, max) })), {
      last,
      ongap: (gap) => set({ gap }),
      onerror: (error) => set({ error }),
      onsubscribed: () => set({ isReady: true }),
    });
    return () => subscription.unsubscribe();
  }, [topic, last, max]);
}

const NO_KEYS = Object.freeze({ keys: new Map(), isReady: false, gap: null, error: null });

/** The keys of a topic: `{ keys, isReady, gap, error }`, with a new map for each change. */
export function useKeys(topic, { filter, interval } = {}) {
  return useStarted(NO_KEYS, (client, set) => {
    const state = client.state(topic, (keys) => set({ keys, isReady: true }), {
      filter,
      interval,
      ongap: (gap) => set({ gap }),
      onerror: (error) => set({ error }),
    });
    return () => state.unsubscribe();
  }, [topic, filter, interval]);
}

const NO_MEMBERS = Object.freeze({ members: new Map(), isReady: false, error: null });

/** The members of a topic by id: `{ members, isReady, error }`. With `member`, the client is one while the component is shown. */
export function useMembers(topic, member) {
  return useStarted(NO_MEMBERS, (client, set) => {
    const onerror = (error) => set({ error });
    const subscription = client.subscribe(topic, () => {}, { members: (members) => set({ members, isReady: true }), onerror });
    const joined = member && client.join(topic, member);
    joined?.catch((error) => error.code !== "stopped" && onerror(error));
    return () => {
      subscription.unsubscribe();
      joined?.leave();
    };
  }, [topic, text(member)]);
}

const NO_RECORDS = Object.freeze({ records: [], isReady: false, error: null });

/** The last records of a stream: `{ records, isReady, error }`. Options as of `consume`, without those of groups. */
export function useStream(name, { from, partition, max } = {}) {
  return useStarted(NO_RECORDS, (client, set) => {
    const onrecord = (record) => set(({ records }) => ({ records: appended(records, record, max) }));
    const consumption = client.stream(name).consume(onrecord, { from, partition, onerror: (error) => set({ error }) });
    consumption.ready.then(() => set({ isReady: true }), () => {});
    return () => consumption.stop();
  }, [name, text(from), partition, max]);
}

/** The status of the connection: `{ status, attempt, delay, code, reason }`. */
export function useStatus() {
  return useStarted(CONNECTING, (client, set) => {
    const onstatus = ({ type: _, target: __, ...change }) => set({ delay: undefined, code: undefined, reason: undefined, ...change });
    client.addEventListener("status", onstatus);
    set({ status: client.status });
    return () => client.removeEventListener("status", onstatus);
  }, []);
}
