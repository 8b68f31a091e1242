// The console at /console: a form for each call of the server, and the same call as a program to copy.
import { call as callApi, events, hasKey, keep, request } from "./access.js";
import { backendCalls, requestOf } from "./backend.js";
import { CALLS, dataOf } from "./calls.js";
import { connect } from "./sinews.js";

/** Limit of log entries; the oldest entries are removed. */
const LOG_MAX = 500;
/** Limit of entries that one answer adds to the log. */
const ANSWER_MAX = 100;
/** Characters of JSON that are shown in one line. */
const LINE_MAX = 80;

const LANGUAGES = { curl: "curl", javascript: "JavaScript", python: "Python", rust: "Rust" };
/** What a program needs beside its text. */
const NEEDS = {
  curl: "A shell.", javascript: "The JavaScript client, from a checkout of Sinews; Node.js 22 or later, Deno, Bun or a bundler.",
  python: "Python 3.", rust: "The crate sinews, from a checkout, and tokio.",
};

const at = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

let token = "";
let client = null;
let call = CALLS[0];
let language = "curl";
/** Values of fields by name: a topic that was entered once stays for the next call. */
const values = new Map();
/** What lasts until it is ended: subscriptions, watched keys, presence. Name -> {text, label, end}. */
const active = new Map();

// ---- Connection ------------------------------------------------------------------------------------------------------

function open(given) {
  token = given ?? "";
  client?.close();
  active.clear();
  showActive();
  const mine = client = connect("/ws", { token: token || undefined });
  client.onstatus = ({ status, delay, code, reason }) => {
    if (mine !== client) return;
    const words = { open: "connected", connecting: "connecting", closed: reason || "closed" };
    // Without a token, the server has perhaps said already that it wants one.
    if (status === "open" && token) needToken("");
    if (code === 4401 || code === 4403) needToken(reason || "the token has expired");
    at("state").textContent = words[status] ?? `trying again in ${Math.ceil(delay / 1000)} s`;
    at("state").dataset.status = status;
  };
  showCode();
}

/** Shows at the token form why a token is required. */
function needToken(problem) {
  if (problem) at("auth").hidden = false;
  at("auth-problem").hidden = !problem;
  at("auth-problem").textContent = problem && `Rejected: ${problem}. Give a token that allows it.`;
}

/** Asks for a token at once if the server wants one for the topic of the form. */
async function probe() {
  const response = await fetch(`/topics/${encodeURIComponent(entered().topic || "lobby")}/members`).catch(() => null);
  if (response?.status === 401) needToken((await response.json()).error);
}

/** Shows at the form of the key why a key is required. */
function needKey(problem) {
  at("key-form").hidden = hasKey() && !problem;
  at("key-problem").hidden = !problem;
  at("key-problem").textContent = problem && `Rejected: ${problem}.`;
}

// ---- Log -------------------------------------------------------------------------------------------------------------

/** Adds an entry: a sentence, and the JSON behind it. */
function note(name, text, { isFault = false, json } = {}) {
  const log = at("log");
  const box = log.parentElement;
  log.querySelector(".empty")?.remove();
  const words = make("pre", { textContent: text });
  words.classList.toggle("fault", isFault);
  const shown = make("div", {}, words);
  if (json !== undefined) shown.append(make("code", { className: "json", textContent: JSON.stringify(json) }));
  const item = make("li", {}, make("time", { textContent: new Date().toLocaleTimeString() }), make("b", { textContent: name, title: name }), shown);
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  log.append(item);
  while (log.children.length > LOG_MAX) log.firstElementChild.remove();
  if (follows) box.scrollTop = box.scrollHeight;
}

function fault(name, error) {
  if (error.code === "closed") return; // the state says why
  const { code, needs } = error;
  note(name, error.message, { isFault: true, json: error.answer ?? { code, error: error.message, ...(needs && { needs }) } });
  if (error.code !== 401 && error.code !== 403) return;
  if (call.operation) needKey(error.message);
  else needToken(error.message);
}

function textOf(data) {
  if (data instanceof Uint8Array) {
    const shown = [...data.subarray(0, 64)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    return `${data.length} bytes: ${shown}${data.length > 64 ? " …" : ""}`;
  }
  if (typeof data === "string") return data;
  const line = JSON.stringify(data);
  return line.length > LINE_MAX ? JSON.stringify(data, null, 1) : line;
}

function noteAll(name, items, describe, none, jsonOf = (item) => item) {
  if (!items.length) return note(name, none, { json: [] });
  for (const item of items.slice(0, ANSWER_MAX)) note(name, describe(item), { json: jsonOf(item) });
  if (items.length > ANSWER_MAX) note(name, `and ${items.length - ANSWER_MAX} more`);
}

// ---- Subscriptions and presence ----------------------------------------------------------------------------------------

function showActive() {
  at("chips").replaceChildren(...[...active].map(([key, { text, label, end }]) => {
    const button = make("button", { type: "button", className: "plain", textContent: "×" });
    button.setAttribute("aria-label", label);
    button.onclick = () => { finish(key); end(); at("run").focus(); };
    return make("li", {}, text, button);
  }));
}

function begin(key, entry) {
  active.set(key, entry);
  showActive();
}

function finish(key) {
  active.delete(key);
  showActive();
}

// ---- Calls -------------------------------------------------------------------------------------------------------------

/** Executes each call by the client. */
const RUN = {
  subscribe({ topic, last }) {
    const key = `topic ${topic}`;
    if (active.has(key)) return note(topic, "is subscribed already");
    const subscription = client.subscribe(topic, (message) => note(message.topic, textOf(message.data), { json: message }), {
      ...(last && { last: Number(last) }),
      onerror: (error) => { finish(key); fault(topic, error); },
      ongap: ({ reason, messages }) => note(topic, `messages may be missing: ${reason}${messages ? `, ${messages}` : ""}`, { isFault: true, json: { reason, messages } }),
    });
    subscription.ready.then(() => note(topic, "subscribed"), () => { /* onerror says why */ });
    begin(key, { text: topic, label: `Unsubscribe from ${topic}`, end: () => subscription.unsubscribe() });
  },
  async publish({ topic, data }) {
    const answer = await client.publish(topic, dataOf(data));
    const { reached, seq } = answer;
    const words = reached === undefined ? `published as message ${seq}` : `published to ${reached} ${reached === 1 ? "subscriber" : "subscribers"}`;
    note(topic, words, { json: answer });
  },
  async history({ topic, last }) {
    noteAll(topic, await client.history(topic, Number(last)), ({ seq, data }) => `${seq}: ${textOf(data)}`, "no message is retained");
  },
  async join({ topic, id, info }) {
    await client.join(topic, info.trim() ? { id, info: dataOf(info) } : { id });
    note(topic, `${id} is present`);
    const end = () => client.leave(topic).then(() => note(topic, "left"), (error) => fault(topic, error));
    begin(`member ${topic}`, { text: `${id} in ${topic}`, label: `Leave ${topic}`, end });
  },
  async leave({ topic }) {
    await client.leave(topic);
    finish(`member ${topic}`);
    note(topic, "left");
  },
  async members({ topic }) {
    noteAll(topic, await client.members(topic), ({ id, info }) => `${id}${info === undefined ? "" : ` ${textOf(info)}`}`, "no member is present");
  },
  watch({ topic }) {
    const key = `keys ${topic}`;
    if (active.has(key)) return note(topic, "is watched already");
    const state = client.state(topic, (keys, changed) => {
      noteAll(`keys of ${topic}`, [...changed], (name) => (keys.has(name) ? `${name} = ${textOf(keys.get(name))}` : `${name} deleted`), "no keys",
        (name) => (keys.has(name) ? { key: name, data: keys.get(name) } : { key: name, deleted: true }));
    }, { onerror: (error) => { finish(key); fault(topic, error); } });
    state.ready.then(() => { if (!state.keys.size) note(topic, "has no keys"); }, () => { /* onerror says why */ });
    begin(key, { text: `keys of ${topic}`, label: `Unsubscribe from the keys of ${topic}`, end: () => state.unsubscribe() });
  },
  async set({ topic, key, data, ttl }) {
    const answer = await client.set(topic, key, dataOf(data), ttl ? { ttl: Number(ttl) } : {});
    note(topic, `${key} is set, change ${answer.seq}`, { json: answer });
  },
  async delete({ topic, key }) {
    const answer = await client.delete(topic, key);
    note(topic, answer.changed === false ? `${key} does not exist` : `${key} is deleted`, { json: answer });
  },
  async append({ stream, key, data }) {
    const answer = await client.stream(stream).append(dataOf(data), key ? { key } : {});
    note(stream, `appended at offset ${answer.offset} of partition ${answer.partition}`, { json: answer });
  },
  async read({ stream, offset }) {
    const { records } = await client.stream(stream).read(Number(offset));
    noteAll(stream, records, ({ offset, key, data }) => `${offset}: ${key === undefined ? "" : `${key} = `}${textOf(data)}`, "no records from this offset on");
  },
};

/** Calls the application. */
RUN.rpc = async ({ method, topic, data }) => {
  const answer = await client.call(method, data.trim() ? dataOf(data) : null, topic ? { topic } : {});
  note(method, `answered ${textOf(answer)}`, { json: answer });
};

/** Executes an operation of the HTTP API with the key of the backend. */
async function runBackend({ operation, id, title }, values) {
  if (!hasKey()) {
    needKey("");
    return at("key").focus();
  }
  const { path, ...options } = requestOf(operation, values);
  const below = path.replace(/^\/api\/v1/, "");
  if (operation.isStream) {
    const stop = new AbortController();
    begin(id, { text: path, label: `Stop ${title}`, end: () => stop.abort() });
    try {
      for await (const event of events(below, stop.signal)) note(id, event.kind ?? "event", { json: event });
    } finally {
      finish(id);
    }
    return;
  }
  const response = await request(below, options);
  const text = await response.text();
  note(id, `${operation.method} ${path}: ${response.status}`, { json: JSON.parse(text) });
}

// ---- The form ----------------------------------------------------------------------------------------------------------

const entered = () => Object.fromEntries(call.fields.map(({ name }) => {
  const { value } = at(`field-${name}`);
  return [name, ["data", "info", "body"].includes(name) ? value : value.trim()];
}));

function showCode() {
  const where = { origin: location.origin, ws: new URL("/ws", location.href.replace(/^http/, "ws")).href, token: Boolean(token) };
  const programs = call.code(entered(), where);
  // The HTTP API needs no crate.
  for (const id of Object.keys(LANGUAGES)) at(`language-${id}`).disabled = !(id in programs);
  const shown = language in programs ? language : "curl";
  at(`language-${shown}`).checked = true;
  at("code").textContent = programs[shown];
  const isSocket = language === "python" && (call.id === "join" || call.id === "leave");
  at("note").textContent = isSocket ? "Python 3 and its package websockets." : call.operation && shown === "javascript" ? "Node.js 22 or later." : NEEDS[shown];
}

function select(chosen) {
  call = chosen;
  at("key-form").hidden = !call.operation || hasKey();
  if (!call.operation) at("operation").value = "";
  at("call-title").textContent = `${call.group}: ${call.title}`;
  at("about").textContent = call.about;
  at("run").textContent = call.run;
  at("fields").replaceChildren(...call.fields.map(({ name, label, value, kind, required }) => {
    const input = make(kind === "text" ? "textarea" : "input", { id: `field-${name}`, name, spellcheck: false, required: Boolean(required) });
    if (kind === "number") Object.assign(input, { type: "number", min: 0, step: 1 });
    else input.setAttribute("autocapitalize", "none");
    if (name === "body") input.rows = Math.min(14, value.split("\n").length + 1);
    // Characters; the server counts bytes, and says so.
    if (name === "topic" || name === "stream") input.maxLength = 250;
    const stored = values.get(`${call.id} ${name}`) ?? (name === "topic" ? values.get(`${call.group} ${name}`) : undefined);
    input.value = stored ?? value ?? "";
    return make("label", {}, label, " ", input);
  }));
  showCode();
}

function radios(box, group, entries, current, onpick) {
  for (const [id, title] of entries) {
    const input = make("input", { type: "radio", name: group, id: `${group}-${id}`, value: id, checked: id === current });
    input.onchange = () => onpick(id);
    box.append(input, make("label", { htmlFor: input.id, textContent: title }));
  }
}

for (const group of new Set(CALLS.map((each) => each.group))) {
  const box = make("fieldset", { className: "group" }, make("legend", { textContent: group }));
  const calls = CALLS.filter((each) => each.group === group).map(({ id, title }) => [id, title]);
  radios(box, "call", calls, call.id, (id) => select(CALLS.find((each) => each.id === id)));
  at("picker").append(box);
}
/** The operations of the HTTP API are many: a list in place of buttons. */
const operation = make("select", { id: "operation" }, make("option", { value: "", textContent: "choose a call of the HTTP API" }));
at("picker").append(make("fieldset", { className: "group" }, make("legend", { textContent: "Backend" }), make("label", { className: "sr", htmlFor: "operation", textContent: "Call of the HTTP API" }), operation));
const backend = new Map();
backendCalls().then((calls) => {
  for (const each of calls) {
    backend.set(each.id, each);
    operation.append(make("option", { value: each.id, textContent: each.title }));
  }
}, () => { /* without the document there are no operations */ });
operation.onchange = () => {
  const chosen = backend.get(operation.value);
  if (!chosen) return;
  for (const radio of at("picker").querySelectorAll("input[type=radio]")) radio.checked = false;
  select(chosen);
};

radios(at("languages"), "language", Object.entries(LANGUAGES), language, (id) => { language = id; showCode(); });

at("fields").oninput = ({ target }) => {
  values.set(`${call.id} ${target.name}`, target.value);
  if (target.name === "topic") for (const { id } of CALLS.filter(({ group }) => group === call.group)) values.set(`${id} topic`, target.value);
  showCode();
};

at("call").onsubmit = async (event) => {
  event.preventDefault();
  const given = entered();
  try {
    await (call.operation ? runBackend(call, given) : RUN[call.id](given));
  } catch (error) {
    if (error.name !== "AbortError") fault(call.operation ? call.id : given.topic || given.stream || given.method, error);
  }
};
at("call").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("call").requestSubmit();
};

at("auth").onsubmit = (event) => {
  event.preventDefault();
  open(at("token").value.trim());
};

at("key-form").onsubmit = async (event) => {
  event.preventDefault();
  const key = at("key").value.trim();
  try {
    await callApi("/connections?limit=1", undefined, key);
  } catch (error) {
    // Another right of the key may be enough for the call.
    if (error.code !== 403) return needKey(error.message);
  }
  keep(key);
  at("key").value = "";
  needKey("");
};

at("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText(at("code").textContent);
  } catch { // no clipboard on insecure origins (a LAN address): copy by selection
    getSelection().selectAllChildren(at("code"));
    document.execCommand("copy");
  }
  at("copy").textContent = "Copied";
  setTimeout(() => { at("copy").textContent = "Copy"; }, 1500);
};

select(call);
open(new URLSearchParams(location.hash.slice(1)).get("token"));
if (!token) probe();
