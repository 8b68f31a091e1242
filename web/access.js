// The API key of a reader, and the calls of the HTTP API with it. A tab keeps the key until it is closed.

const STORED = "sinews.api-key";

let key = "";
try { key = sessionStorage.getItem(STORED) ?? ""; } catch { /* storage throws where cookies are blocked */ }

/** Functions that are called after the key has changed. */
const watchers = [];
export const onkey = (watch) => watchers.push(watch);
export const hasKey = () => key !== "";

/** Keeps the key for this tab, or forgets it if it is empty. */
export function keep(value) {
  key = value;
  try {
    if (key) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
  } catch { /* a reload asks again */ }
  for (const watch of watchers) watch();
}

/** The subprotocol of the dashboard's feed that has the key: a key may have characters that no subprotocol has. */
export function keyProtocol() {
  const text = Array.from(new TextEncoder().encode(key), (byte) => String.fromCharCode(byte)).join("");
  return `sinews.key.${btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** Sends a request to the HTTP API. Errors have the text of the server, and the status as their code. */
export async function request(path, { method = "GET", body, headers = {}, accept = "application/json", signal, as = key } = {}) {
  const response = await fetch(`/api/v1${path}`, {
    method, body, signal, cache: "no-store", headers: { ...headers, Accept: accept, Authorization: `Bearer ${as}` },
  })
    .catch((error) => { throw signal?.aborted ? error : new Error("the server cannot be reached"); });
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw Object.assign(new Error(answer.error ?? `status ${response.status}`), { code: response.status, answer });
}

/** Calls the HTTP API; with a body, by POST. */
export async function call(path, body, as) {
  const options = body === undefined ? { as } : { method: "POST", body: JSON.stringify(body), as };
  return (await request(path, options)).json();
}

/** The data of Server-Sent Events from the HTTP API, as JSON; ends with the response, or throws the reason of a Close. */
export async function* events(path, signal) {
  const response = await request(path, { accept: "text/event-stream", signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const field = (name) => part.split("\n").filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join("\n");
      if (field("event") === "close") throw new Error(field("data").replace(/^\d+ /, ""));
      if (field("data")) yield JSON.parse(field("data"));
    }
  }
}

/** Makes an element. Texts stay text. */
export function make(tag, properties = {}, ...children) {
  const { dataset, ...others } = properties;
  const element = Object.assign(document.createElement(tag), others);
  Object.assign(element.dataset, dataset);
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** A button that looks like a link. */
export const link = (text, label, onclick) => {
  const button = make("button", { type: "button", className: "plain link", textContent: text, onclick });
  button.setAttribute("aria-label", label);
  return button;
};

/** "3 d", "12 min": how long ago a time in milliseconds was. */
export function since(time) {
  const seconds = Math.max(0, Math.round((Date.now() - time) / 1000));
  const [unit, size] = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]].find(([, size]) => seconds >= size) ?? ["s", 1];
  return `${Math.floor(seconds / size)} ${unit}`;
}

/** Bytes in a queue: the server counts from 16 KiB on. */
export function queue(bytes) {
  if (!bytes) return "–";
  return bytes < 1 << 20 ? `${Math.round(bytes / 1024)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}
