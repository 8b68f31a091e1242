// The dialogs of the dashboard for a topic and for a client.
import { call, link, make, queue, request, since } from "./access.js";
import { append, follow, line } from "./live.js";

const at = (id) => document.getElementById(id);
/** Messages, members and keys that a topic shows. */
const SHOWN_MAX = 20;

/** Ends what an open dialog follows. */
let stop = null;

/** Opens the dialog with a title, and returns its body. */
function open(title) {
  stop?.abort();
  stop = new AbortController();
  at("details-title").textContent = title;
  const body = at("details-body");
  body.replaceChildren();
  if (!at("details").open) at("details").showModal();
  at("details").scrollTop = 0;
  return body;
}
at("details").onclose = () => stop?.abort();
at("details-close").onclick = () => at("details").close();

const pretty = (value) => JSON.stringify(value);
const contentOf = ({ data, b64 }) => (b64 === undefined ? pretty(data) : `base64: ${b64}`);
const none = (text) => make("p", { className: "about", textContent: text });

function section(body, title, ...children) {
  const part = make("section", {}, make("h3", { textContent: title }), ...children);
  body.append(part);
  return part;
}

/** A list of terms and values. */
const facts = (entries) => make("dl", { className: "lines" }, ...entries.filter(([, value]) => value !== undefined && value !== "")
  .flatMap(([term, value]) => [make("dt", { textContent: term }), make("dd", {}, value)]));

/** Fills a section with what a call returns, or with the reason of its failure. */
async function fill(part, title, promise, show) {
  const heading = make("h3", { textContent: title });
  try {
    part.replaceChildren(heading, ...[show(await promise)].flat());
  } catch (error) {
    if (!stop.signal.aborted) part.replaceChildren(heading, make("p", { className: "fault", textContent: `${error.message}.` }));
  }
}

/** A list of actions that is followed while the dialog is open, without the column that is the same in each line. */
function tail(part, query) {
  const same = query.topic ? 3 : 1;
  const list = make("ol", {}, make("li", { className: "empty", textContent: "Nothing has happened since this was opened." }));
  const box = make("div", { className: "log live", tabIndex: 0 }, list);
  box.setAttribute("role", "log");
  box.setAttribute("aria-live", "off");
  box.setAttribute("aria-label", "Actions");
  const problem = make("p", { className: "fault", hidden: true });
  part.append(box, problem);
  const show = (action) => {
    if (action.kind === "start" || action.kind === "omitted") return;
    const item = line(action, false);
    item.children[same].remove();
    append(list, item);
  };
  follow(query, stop.signal, show, (error) => Object.assign(problem, { hidden: false, textContent: `${error.message}.` }));
}

const RIGHTS = { anonymous: "every client", authenticated: "every client with a token", token: "clients whose token grants it", nobody: "no client" };
const time = (ms) => (ms === undefined ? undefined : `${ms / 1000} s`);

function optionsOf(options) {
  const rate = (number) => (number === undefined ? undefined : `${number} a second`);
  return facts([
    ["Publish", RIGHTS[options.publish]], ["Subscribe", RIGHTS[options.subscribe]],
    ["Write keys", options.keyed ? RIGHTS[options.write_keys] : "no client: keys are off"],
    ["Presence", options.presence ? "clients that may subscribe" : "off"],
    ["Hooks decide", options.hooks.join(", ")], ["Namespaces", options.namespaces.join(", ") || "none: the defaults"],
    ["History", options.durable ? "durable: in a stream" : options.history ? `${options.history} messages` : "none"],
    ["History age", time(options.history_age)], ["Durable keys", options.durable_keys ? "yes" : undefined],
    ["Most keys", options.max_keys?.toString()], ["Keys expire after", time(options.key_ttl)], ["Key updates", time(options.key_interval)],
    ["Largest message", options.max_message && `${options.max_message} bytes`],
    ["A connection publishes", rate(options.publishes_per_second)], ["A user publishes", rate(options.user_publishes_per_second)],
    ["A connection subscribes", rate(options.subscribes_per_second)], ["A connection calls", rate(options.calls_per_second)],
  ]);
}

/** Data of the form: JSON if it is JSON, else a text. */
function dataOf(text) {
  try { return JSON.parse(text); } catch { return text; }
}

function publishForm(topic) {
  const input = make("textarea", { id: "publish-data", required: true, spellcheck: false, value: '{"text": "hello"}' });
  const result = make("p", { className: "about", id: "publish-result" });
  result.setAttribute("role", "status");
  const form = make("form", { className: "publish" }, make("label", {}, "Message: JSON, or text ", input),
    make("button", { textContent: "Publish" }), result);
  form.onsubmit = async (event) => {
    event.preventDefault();
    try {
      const answer = await call("/publish", { topic, data: dataOf(input.value) });
      const { subscribers, seq } = answer;
      const words = seq === undefined ? `Delivered to ${subscribers} ${subscribers === 1 ? "subscription" : "subscriptions"}.` : `Stored as message ${seq}.`;
      result.replaceChildren(`${words} `, make("code", { textContent: pretty(answer) }));
    } catch (error) {
      result.replaceChildren(make("span", { className: "fault", textContent: `${error.message}.` }));
    }
  };
  return form;
}

/** Opens a topic: messages as they come, the form to publish, retained messages, members, keys and options. */
export function openTopic(topic) {
  const body = open(topic);
  const name = encodeURIComponent(topic);
  const counts = make("p", { className: "about", textContent: "…" });
  counts.setAttribute("role", "status");
  body.append(counts);
  const [options, presence] = [call(`/topics/${name}`), call(`/topics/${name}/presence`)];
  presence.then(({ subscribers, members }) => { counts.textContent = `${subscribers} present, ${members} of them members.`; },
    (error) => { counts.textContent = `${error.message}.`; });
  tail(section(body, "Now"), { topic });
  section(body, "Publish", publishForm(topic));
  fill(section(body, "Last messages"), "Last messages", options.then(({ history, durable }) => (history || durable
    ? call(`/topics/${name}/history?last=${SHOWN_MAX}`) : null)), (answer) => {
    if (!answer) return none("The topic has no history.");
    if (!answer.messages.length) return none("No message is retained.");
    return make("ol", { className: "entries" }, ...answer.messages.reverse().map((message) =>
      make("li", {}, make("b", { textContent: message.seq }), make("code", { textContent: contentOf(message) }))));
  });
  fill(section(body, "Members"), "Members", call(`/topics/${name}/members?limit=${SHOWN_MAX}`), ({ members, next }) => {
    if (!members.length) return none("No member is present.");
    const items = members.map(({ id, info, connections }) => make("li", {}, make("b", { textContent: id }),
      make("code", { textContent: `${info === undefined ? "" : pretty(info)}${connections > 1 ? ` × ${connections}` : ""}` })));
    return [make("ul", { className: "entries" }, ...items), ...(next ? [none("and more members")] : [])];
  });
  fill(section(body, "Keys"), "Keys", call(`/topics/${name}/keys?limit=${SHOWN_MAX}`), ({ keys, more }) => {
    if (!keys.length) return none("The topic has no keys.");
    const items = keys.map((entry) => make("li", {}, make("b", { textContent: entry.key }), make("code", { textContent: contentOf(entry) })));
    return [make("ul", { className: "entries" }, ...items), ...(more ? [none("and more keys")] : [])];
  });
  fill(section(body, "Options and rights"), "Options and rights", options, optionsOf);
}

function claimsOf(claims) {
  if (!claims) return none("All rights: the server requires no tokens.");
  const texts = (list) => list.join(", ") || "none";
  const left = claims.expires_in === undefined ? undefined : `${claims.expires_in} s`;
  return facts([
    ["User (sub)", claims.sub], ["Token id (jti)", claims.jti], ["Issued (iat)", claims.iat && new Date(claims.iat * 1000).toLocaleString()],
    ["Expires in", left], ["Subscribe", texts(claims.subscribe)], ["Publish", texts(claims.publish)], ["Keys", texts(claims.keys)],
    ["Delete streams", texts(claims.delete)], ["Topics of the server", texts(claims.topics)],
  ]);
}

/** Opens a client: its connection, subscriptions, rights and actions. */
export function openClient(id) {
  const body = open(`Client ${id}`);
  const head = section(body, "Connection");
  const described = request(`/connections/${encodeURIComponent(id)}`).then((response) => response.json());
  fill(head, "Connection", described, ({ user, address, path, opened, queued }) => {
    const disconnect = make("button", { type: "button", className: "danger", textContent: "Disconnect" });
    const result = make("span", { className: "about" });
    result.setAttribute("role", "status");
    disconnect.onclick = async () => {
      try {
        const { connections } = await call("/disconnect", { connection: id });
        result.textContent = connections ? "Disconnected. The client may connect again." : "The connection has closed already.";
      } catch (error) {
        result.textContent = `${error.message}.`;
      }
    };
    return [facts([["User", user ?? "anonymous"], ["Address", address], ["Path", path], ["Open for", since(opened)], ["Queue", queue(queued)]]),
      make("p", { className: "actions" }, disconnect, result)];
  });
  const listed = section(body, "Subscriptions");
  fill(listed, "Subscriptions", described, ({ subscriptions = [], joined = [] }) => {
    const known = [...subscriptions.map(({ topic, keys, presence, by_server }) =>
      [topic, [keys && "keys", presence && "presence", by_server && "by the backend"].filter(Boolean).join(", ")]),
    ...joined.map(({ topic, id }) => [topic, `member ${id}`])];
    if (!known.length) return none("The client has no subscription.");
    return make("ul", { className: "entries" }, ...known.map(([topic, words]) => make("li", {},
      make("b", {}, /[*>]/.test(topic) ? topic : link(topic, `Open the topic ${topic}`, () => openTopic(topic))), make("span", { textContent: words }))));
  });
  fill(section(body, "Rights"), "Rights", described, ({ claims }) => claimsOf(claims));
  tail(section(body, "Now"), { connection: id });
}
