import { connect, SinewsError } from "@sinews/client";
import { Sinews, useClient, useKeys, useMembers, useStatus, useTopic } from "@sinews/react";
import { type FormEvent, StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { type Bid, FIRST_BID, LOT, type Session } from "./bid.js";

async function token() {
  const response = await fetch("/token");
  if (response.status === 401) throw new SinewsError(4401, "You are logged out.");
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.text();
}

const post = (path: string, body?: unknown) =>
  fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

const field = (event: FormEvent<HTMLFormElement>, name: string) => {
  event.preventDefault();
  return String(new FormData(event.currentTarget).get(name));
};

function Login({ onlogin }: { onlogin: () => void }) {
  return (
    <form id="login" onSubmit={(event) => void post("/login", { user: field(event, "user") }).then(onlogin)}>
      <label>Your name <input name="user" pattern="[a-z]+" required /></label> <button>Log in</button>
    </form>
  );
}

function Connection() {
  const { status, delay = 0, reason } = useStatus();
  if (status === "waiting") return <p id="status" role="status">Waiting for the network: next attempt in {(delay / 1000).toFixed(1)} s</p>;
  return <p id="status" role="status">{status === "closed" ? reason : status}</p>;
}

function Members({ user }: { user: string }) {
  const { members } = useMembers<{ name: string }>(LOT, { id: user, info: { name: user } });
  return <p id="members">In the room: {[...members.values()].map(({ name }) => name).sort().join(", ")}</p>;
}

function Price() {
  const { keys, isReady } = useKeys<Bid>(LOT);
  const { amount, by } = keys.get("bid") ?? FIRST_BID;
  return <p id="price"><strong>{isReady ? `${amount} €` : "…"}</strong> {by && `by ${by}`}</p>;
}

function Bids() {
  const { messages, gap } = useTopic<Bid>(LOT, { last: 20, max: 20 });
  return (
    <>
      <ol id="bids">{messages.map(({ seq, data: { amount, by } }) => <li key={seq}>{amount} € by {by}</li>)}</ol>
      {gap && <p id="gap" role="alert">Bids may be missing: {gap.reason}</p>}
    </>
  );
}

function Form() {
  const client = useClient();
  const [error, setError] = useState("");
  // A bid is for now: it does not wait for a connection.
  const bid = (amount: number) =>
    client().call("bid", { amount }, { topic: LOT, queue: false, timeout: 5_000 }).then(() => setError(""), ({ message }: Error) => setError(message));
  return (
    <form id="bid" onSubmit={(event) => void bid(Number(field(event, "amount")))}>
      <label>Your bid <input name="amount" type="number" required /></label> <button>Bid</button>
      <p id="error" role="alert">{error}</p>
    </form>
  );
}

function App() {
  const [session, setSession] = useState<Session | null>();
  const load = async () => {
    const response = await fetch("/session");
    setSession(response.ok ? ((await response.json()) as Session) : null);
  };
  useEffect(() => void load(), []);
  if (!session) return session === null && <Login onlogin={load} />;
  return (
    <Sinews connect={() => connect(session.url, { token })}>
      <button id="logout" onClick={() => void post("/logout").then(load)}>Log out {session.user}</button>
      <Connection />
      <Members user={session.user} />
      <Price />
      <Form />
      <Bids />
    </Sinews>
  );
}

createRoot(document.getElementById("app")!).render(<StrictMode><h1>A brass lamp, about 1900</h1><App /></StrictMode>);
