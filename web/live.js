// The live view of the dashboard: what clients do, as it happens.
import { events, hasKey, link, make, onkey } from "./access.js";
import { openClient, openTopic } from "./details.js";

const at = (id) => document.getElementById(id);
/** Lines of the list; older ones are removed. */
const LINES_MAX = 300;
/** Milliseconds until a view that has ended starts again. */
const RETRY = 2_000;
const count = new Intl.NumberFormat();

const KINDS = {
  connections: "connect,close", subscriptions: "subscribe,unsubscribe,subscribe_keys,unsubscribe_keys",
  messages: "publish", keys: "set,delete", presence: "join,leave", rejections: "reject",
};
const VERBS = {
  connect: "connects", close: "closes", subscribe: "subscribes", unsubscribe: "unsubscribes",
  subscribe_keys: "follows keys", unsubscribe_keys: "leaves keys", publish: "publishes", set: "sets", delete: "deletes",
  join: "joins", leave: "leaves", reject: "rejected",
};

/** The text of a message, a value, a reason or a code. */
function detail({ kind, json, text, b64, cut, bytes, reason, code, key, member, op }) {
  const content = json ?? text ?? (b64 === undefined ? undefined : `${bytes} bytes in base64: ${b64}`);
  if (kind === "reject") return `${op ? `${op}: ` : ""}${reason}${code ? ` (${code})` : ""}`;
  if (kind === "close") return code ? `code ${code}` : "";
  return [key ?? member, content === undefined ? undefined : `${content}${cut ? " …" : ""}`].filter((part) => part !== undefined).join(" = ");
}

/** A line of a list of actions: time, client, action, topic, content. */
export function line(action, links = true) {
  const { kind, at: time, user, connection, path, topic } = action;
  const who = user ?? connection ?? (path === "backend" ? "backend" : action.address ?? path);
  const name = connection && links ? link(who, `Open the client ${who}`, () => openClient(connection)) : who;
  const where = topic && (links && !/[*>]/.test(topic) ? link(topic, `Open the topic ${topic}`, () => openTopic(topic)) : topic);
  const item = make("li", { dataset: { kind } }, make("time", { textContent: new Date(time).toLocaleTimeString() }),
    make("b", { title: [user, connection, action.address, path].filter(Boolean).join(" · ") }, name),
    make("span", { className: "verb", textContent: VERBS[kind] ?? kind }), make("span", {}, where),
    make("pre", { textContent: detail(action) }));
  return item;
}

/** Adds a line to a list that follows its end, unless the reader has scrolled back. */
export function append(list, item) {
  const box = list.parentElement;
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  list.querySelector(".empty")?.remove();
  list.append(item);
  while (list.children.length > LINES_MAX) list.firstElementChild.remove();
  if (follows) box.scrollTop = box.scrollHeight;
}

/** Follows actions until the signal aborts: calls `each` for an action, and `tell` with the state of the view. */
export async function follow(query, signal, each, tell) {
  while (!signal.aborted) {
    try {
      for await (const action of events(`/activity?${new URLSearchParams(query)}`, signal)) each(action);
    } catch (error) {
      if (signal.aborted) return;
      tell(error);
      if (error.code === 401 || error.code === 403) return;
    }
    await new Promise((resolve) => { setTimeout(resolve, RETRY); });
  }
}

let stop = null;
let isPaused = false;
/** Actions that are not shown while the list is paused. */
let missed = 0;

function tell(text, isFault = false) {
  at("live-note").textContent = text;
  at("live-note").classList.toggle("fault", isFault);
}

function pause(paused) {
  [isPaused, missed] = [paused, 0];
  at("live-pause").textContent = paused ? "Continue" : "Pause";
  at("live-pause").setAttribute("aria-pressed", String(paused));
}

function show(action) {
  if (action.kind === "start") {
    const others = action.nodes > 1 ? `, of ${action.nodes} nodes` : "";
    return tell(`Clients of node ${action.node}${others}. Above ${action.rate} actions of a kind a second, this is a sample.`);
  }
  if (action.kind === "omitted") {
    const counts = Object.entries(action.counts).map(([kind, number]) => `${count.format(number)} × ${kind}`);
    return tell(`A sample. Left out in the last second: ${counts.join(", ")}.`);
  }
  if (isPaused) {
    missed += 1;
    at("live-pause").textContent = `Continue (${count.format(missed)} not shown)`;
    return;
  }
  append(at("live"), line(action));
}

function start() {
  stop?.abort();
  at("live-section").hidden = !hasKey();
  if (!hasKey()) return at("live").replaceChildren();
  stop = new AbortController();
  const value = (id) => at(id).value.trim();
  const query = { topic: value("live-topic"), user: value("live-user"), connection: value("live-connection"), kinds: KINDS[value("live-kind")] ?? "" };
  const given = Object.fromEntries(Object.entries(query).filter(([, text]) => text));
  at("live").replaceChildren(make("li", { className: "empty", textContent: "Nothing has happened yet." }));
  tell("connecting");
  pause(false);
  follow(given, stop.signal, show, (error) => tell(`${error.message}.`, true));
}

at("live-filter").onsubmit = (event) => { event.preventDefault(); start(); };
at("live-kind").onchange = start;
at("live-pause").onclick = () => pause(!isPaused);
onkey(start);
start();
