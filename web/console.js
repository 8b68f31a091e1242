// The console at /console: subscribe and publish by hand.
import { connect } from "/sinews.js";

/** Limit of log entries; the oldest entries are removed. */
const LOG_MAX = 500;

const at = (id) => document.getElementById(id);
const subscriptions = new Map();
let client = null;

function open(token) {
  client?.close();
  client = connect("/ws", { token: token || undefined });
  client.onstatus = ({ status, delay, code, reason }) => {
    const words = { open: "connected", connecting: "connecting", closed: reason || "closed" };
    if (status === "open") needToken("");
    if (code === 4401 || code === 4403) needToken(reason || "the token has expired");
    at("state").textContent = words[status] ?? `trying again in ${Math.ceil(delay / 1000)} s`;
    at("state").dataset.status = status;
  };
  for (const topic of subscriptions.keys()) subscribe(topic);
}

/** Shows at the token form why a token is required. */
function needToken(problem) {
  at("auth-problem").hidden = !problem;
  at("auth-problem").textContent = problem && `Rejected: ${problem}. Give a token that allows it.`;
}

function subscribe(topic) {
  const subscription = client.subscribe(topic, hear, { onerror: (error) => refused(topic, error) });
  subscriptions.set(topic, subscription);
  show();
}

function refused(topic, error) {
  if (error.code === "closed") return;
  subscriptions.delete(topic);
  show();
  fault(topic, error);
}

function fault(topic, error) {
  note(topic, error.message, true);
  if (error.code === 401 || error.code === 403) needToken(error.message);
}

function show() {
  at("chips").replaceChildren(...[...subscriptions].map(([topic, subscription]) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.className = "plain";
    button.textContent = "×";
    button.setAttribute("aria-label", `Unsubscribe from ${topic}`);
    button.onclick = () => {
      subscription.unsubscribe();
      subscriptions.delete(topic);
      show();
    };
    item.append(topic, button);
    return item;
  }));
}

function hear({ topic, data }) {
  const bytes = data instanceof Uint8Array;
  note(topic, bytes ? `${data.length} bytes: ${[...data.subarray(0, 64)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}`
    : typeof data === "string" ? data : JSON.stringify(data, null, 1));
}

function note(topic, text, isFault = false) {
  const log = at("log");
  log.querySelector(".empty")?.remove();
  const [item, time, name, words] = ["li", "time", "b", "pre"].map((kind) => document.createElement(kind));
  time.textContent = new Date().toLocaleTimeString();
  name.textContent = topic;
  words.textContent = text;
  words.classList.toggle("fault", isFault);
  item.append(time, name, words);
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(item);
  while (log.children.length > LOG_MAX) log.firstElementChild.remove();
  if (follows) log.scrollTop = log.scrollHeight;
}

at("hear").onsubmit = (event) => {
  event.preventDefault();
  const topic = at("hear-topic").value.trim();
  if (topic && !subscriptions.has(topic)) subscribe(topic);
  at("hear-topic").value = "";
};

at("say").onsubmit = async (event) => {
  event.preventDefault();
  const [topic, text] = [at("say-topic").value.trim(), at("say-text").value];
  let data = text;
  // Only objects and lists are parsed as JSON: a number or a word is more likely text.
  try { if (/^\s*[[{]/.test(text)) data = JSON.parse(text); } catch { /* The message is text. */ }
  try {
    const { reached } = await client.publish(topic, data);
    if (reached === 0) note(topic, "published to 0 subscribers");
  } catch (error) {
    fault(topic, error);
  }
};

at("auth").onsubmit = (event) => {
  event.preventDefault();
  open(at("token").value.trim());
};

open(new URLSearchParams(location.hash.slice(1)).get("token"));
