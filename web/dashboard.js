// The dashboard at /dashboard: charts of the server's metrics, updated each second.
import { call, hasKey, keep, keyProtocol, link, onkey } from "./access.js";
import { openTopic } from "./details.js";

/** Time span of the charts, in seconds. */
const SPAN = 60;
/** Topics of which the server reports the number; of more, it reports this. */
const TOPICS_READ = 1_000;
const SVG = "http://www.w3.org/2000/svg";

const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1, notation: "compact" });
const bytes = (value) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** unit).toFixed(unit && value / 1024 ** unit < 100 ? 1 : 0)} ${units[unit]}`;
};
const count = (value) => number.format(value);
const rate = (value) => `${count(value)}/s`;
const byteRate = (value) => `${bytes(value)}/s`;
const ms = (value) => {
  if (value >= 1000) return `${(value / 1000).toFixed(1)} s`;
  return value > 0 && value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`;
};
const percent = (value) => `${Math.round(value * 100)} %`;

/** The least 1, 2 or 5 times a power of ten that is not below a value: the upper end of an axis. */
function axisOf(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((end) => end >= value * (1 - 1e-9));
}
/** The same in bytes: a power of two. */
const axisOfBytes = (value) => 2 ** Math.ceil(Math.log2(value) - 1e-9);
/** The least upper end of an axis. */
const LEAST = new Map([[ms, 1], [percent, 0.1]]);

/** [name, title, value, format, value of the second line, its label] */
const CHARTS = [
  ["connections", "Connections", (now) => now.connections, count, (now) => now.websockets, "WebSockets"],
  ["messages", "Messages sent", (now, d) => d("messages_sent"), rate, (_, d) => d("messages_received"), "received"],
  ["bytes", "Bytes sent", (now, d) => d("sent_bytes"), byteRate, (_, d) => d("received_bytes"), "received"],
  ["latency", "Round trip", (now) => now.latency, ms],
  ["busy", "Busiest worker", (now) => now.busy, percent],
  ["memory", "Memory", (now) => now.resident_bytes ?? 0, bytes, (now) => now.queued_bytes, "in queues"],
  ["keys", "Changes of keys", (now, d) => d("key_changes"), rate],
  ["dropped", "Messages dropped", (now, d) => d("dropped"), rate],
  ["refused", "Rejected", (now, d) => d("refused"), rate],
];

/** Charts and tiles that are shown once they have been more than zero. */
const RARE = new Set(["keys", "dropped", "refused", "members", "slow-clients"]);

class Chart {
  constructor([name, title, first, write, second, key]) {
    Object.assign(this, { first, write, second, values: [], seconds: [] });
    this.figure = document.createElement("figure");
    this.figure.className = "chart";
    this.figure.dataset.testid = name;
    this.name = name;
    this.figure.hidden = RARE.has(name);
    const caption = document.createElement("figcaption");
    const part = (tag, of, text) => Object.assign(document.createElement(tag), { className: of, textContent: text });
    this.output = part("output", "", "–");
    // Always present, so that the card has a constant height.
    this.small = part("small", "key", "\u00a0");
    this.key = key;
    this.most = part("small", "most", "");
    caption.append(part("span", "", title), this.output, this.small);
    const axis = part("div", "axis", "");
    axis.append(...[`${SPAN} s ago`, `${SPAN / 2} s`, "now"].map((text) => part("span", "", text)));
    this.ticks = [1, 0.5, 0].map(() => part("span", "", "\u00a0"));
    const ticks = part("div", "ticks", "");
    ticks.append(...this.ticks);
    const plot = part("div", "plot", "");
    plot.setAttribute("aria-hidden", "true");
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${SPAN} 100`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("aria-hidden", "true");
    const shape = (kind, of) => {
      const made = document.createElementNS(SVG, kind);
      made.setAttribute("class", of);
      this.svg.append(made);
      return made;
    };
    for (const [at, of] of [[0, "rule grid"], [50, "rule grid"], [100, "rule"]]) {
      const rule = shape("line", of);
      for (const [key, value] of [["x1", 0], ["x2", SPAN], ["y1", at], ["y2", at]]) rule.setAttribute(key, value);
    }
    [this.area, this.line] = [shape("path", "area"), shape("path", "line")];
    this.other = second && shape("path", "line second");
    plot.append(ticks, this.svg, axis);
    this.figure.append(caption, this.most, plot);
  }

  add(now, difference) {
    const value = this.first(now, difference);
    if (value > 0) RARE.delete(this.name);
    this.figure.hidden = RARE.has(this.name);
    const push = (list, value) => list.push(value) > SPAN && list.shift();
    push(this.values, value);
    if (this.second) {
      const second = this.second(now, difference);
      push(this.seconds, second);
      this.small.textContent = `${this.key} ${this.write(second)}`;
    }
    this.output.textContent = this.write(value);
    this.draw();
  }

  draw() {
    const greatest = Math.max(...this.values, ...this.seconds);
    this.most.textContent = `max ${this.write(greatest)}`;
    const most = (this.write === bytes || this.write === byteRate ? axisOfBytes : axisOf)(Math.max(greatest, LEAST.get(this.write) ?? 1));
    for (const [at, tick] of this.ticks.entries()) tick.textContent = this.write(most * (1 - at / 2));
    const path = (values) => values.map((value, at) =>
      `${at ? "L" : "M"}${SPAN - values.length + at + 1} ${(100 - (value / most) * 100).toFixed(2)}`).join("");
    const line = path(this.values);
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", `${line}L${SPAN} 100L${SPAN - this.values.length + 1} 100Z`);
    this.other?.setAttribute("d", path(this.seconds));
  }
}

const charts = CHARTS.map((chart) => new Chart(chart));
document.getElementById("charts").append(...charts.map((chart) => chart.figure));

/** The rows of topics by their names: a row stays, and with it the focus within. */
const rows = new Map();

function rateRow(topic) {
  const row = document.createElement("tr");
  const meter = document.createElement("meter");
  meter.setAttribute("aria-hidden", "true");
  for (const title of ["Topic", "Messages", "Subscribers", "Keys"]) row.insertCell().dataset.title = title;
  const open = link(topic, `Open the topic ${topic}`, () => openTopic(topic));
  row.cells[0].append(open);
  row.cells[1].append(meter, "");
  return row;
}

function rates(topics, count) {
  const most = Math.max(...topics.map(([, messages]) => messages), 1);
  const body = document.getElementById("rates");
  const listed = topics.map(([topic, messages, subscribers, keys]) => {
    const row = rows.get(topic) ?? rateRow(topic);
    rows.set(topic, row);
    const [meter, text] = row.cells[1].childNodes;
    [meter.max, meter.value] = [most, messages];
    text.textContent = rate(messages);
    row.cells[0].firstChild.disabled = !hasKey();
    row.cells[2].textContent = plain.format(subscribers);
    row.cells[3].textContent = plain.format(keys);
    return row;
  });
  const names = new Set(topics.map(([topic]) => topic));
  for (const topic of rows.keys()) if (!names.has(topic)) rows.delete(topic);
  if (listed.length !== body.rows.length || listed.some((row, at) => row !== body.rows[at])) {
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    body.replaceChildren(...listed);
    focused?.focus();
  }
  document.getElementById("rates-none").hidden = topics.length > 0;
  const more = document.getElementById("rates-more");
  more.hidden = count <= topics.length;
  const words = count >= TOPICS_READ ? "topics or more" : count === 1 ? "topic" : "topics";
  more.textContent = `${plain.format(count)} ${words} in all`;
}

const nameOf = (title) => title.toLowerCase().replace(" ", "-");

/** Numbers without a chart. */
function tiles(now) {
  const numbers = [
    ["Users", now.users, now.cluster ? "named by a token; summed over the nodes" : "named by a token"],
    ["Members", now.members, "present in topics"],
    ["Topics", now.subscribed_topics, now.cluster ? "with subscribers, on this node" : "with subscribers"],
    ["Keys", now.keys, `in ${plural(now.keyed_topics, "topic", "topics")}, ${bytes(now.keyed_bytes)}`],
    ["Slow clients", now.overflowed, `disconnected; ${plural(now.dropped, "message", "messages")} dropped`],
  ];
  const shown = numbers.filter(([title, value]) => {
    const name = nameOf(title);
    if (value > 0) RARE.delete(name);
    return !RARE.has(name);
  });
  document.getElementById("tiles").replaceChildren(...shown.map(([title, value, words]) => {
    const tile = document.createElement("div");
    tile.dataset.testid = nameOf(title);
    const part = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
    tile.append(part("dt", title), part("dd", count(value)), Object.assign(part("dd", words), { className: "key" }));
    return tile;
  }));
}

/** A row of a table; each further column is [title, text, small text]. The head may have a small text, too. */
function tableRow(head, columns, smallHead) {
  const small = (text) => Object.assign(document.createElement("small"), { textContent: text });
  const row = document.createElement("tr");
  row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: head }));
  if (smallHead) row.firstChild.append(small(smallHead));
  for (const [title, text, below] of columns) {
    const cell = row.insertCell();
    cell.dataset.title = title;
    cell.append(text);
    if (below) cell.append(small(below));
  }
  return row;
}

/** The hooks of the application, if there are any. */
function hooks(now, before, seconds) {
  document.getElementById("hooks-section").hidden = !now;
  if (!now) return;
  const known = new Map((before?.hooks ?? []).map((hook) => [hook.hook, hook]));
  const per = (hook, key) => Math.max(0, hook[key] - (known.get(hook.hook)?.[key] ?? 0));
  document.getElementById("hooks").replaceChildren(...now.hooks.map((hook) => {
    const failures = [["failed", "failed"], ["timed_out", "timed out"], ["queue_full", "queue full"], ["circuit_open", "not asked"],
      ["rate_exceeded", "beyond a rate"]]
      .filter(([key]) => hook[key]).map(([key, words]) => `${plain.format(hook[key])} ${words}`);
    const timed = per(hook, "timed");
    const requests = known.has(hook.hook) && seconds > 0 ? timed / seconds : 0;
    return tableRow(hook.hook, [
      ["Requests", rate(requests)], ["Time", timed ? ms(per(hook, "us") / timed / 1000) : "–"],
      ["Accepted", plain.format(hook.accepted)], ["Rejected", plain.format(hook.rejected)], ["Failed", failures.join(", ") || "0"],
    ]);
  }));
  document.getElementById("hooks-none").hidden = now.hooks.length > 0;
  const open = document.getElementById("hooks-open");
  open.hidden = !now.open_circuits;
  const waiting = `${plural(now.pending, "request", "requests")} in progress`;
  const text = `${plural(now.open_circuits, "address", "addresses")} of hooks failed and ${now.open_circuits === 1 ? "is" : "are"} not asked for a while; ${waiting}.`;
  if (open.textContent !== text) open.textContent = text;
}

/** The apps of the Pusher protocol, if there are any. */
function apps(now) {
  document.getElementById("apps-section").hidden = !now;
  if (!now) return;
  document.getElementById("apps").replaceChildren(...now.apps.map(({ id, name, connections, channels, rejected, webhooks: { queued, failed, dropped } }) =>
    tableRow(name ?? id, [
      ["Connections", plain.format(connections)], ["Channels", plain.format(channels)], ["Rejected", plain.format(rejected)],
      ["Webhook queue", plural(queued, "event", "events")], ["Failed events", plain.format(failed)], ["Dropped events", plain.format(dropped)],
    ], name && id)));
  const rest = now.count - now.apps.length;
  const more = document.getElementById("apps-more");
  [more.hidden, more.textContent] = [rest <= 0, `${plural(rest, "more app", "more apps")} not shown.`];
}

/** The webhooks, if there are any. */
function webhooks(now, before, seconds) {
  document.getElementById("webhooks-section").hidden = !now;
  if (!now) return;
  const known = new Map((before ?? []).map((webhook) => [webhook.webhook, webhook]));
  document.getElementById("webhooks").replaceChildren(...now.map((webhook) => {
    const delivered = known.has(webhook.webhook) && seconds > 0
      ? Math.max(0, webhook.delivered - known.get(webhook.webhook).delivered) / seconds : 0;
    return tableRow(webhook.webhook, [
      ["Delivered", plural(webhook.delivered, "event", "events"), rate(delivered)],
      ["Queue", plural(webhook.queued, "event", "events")], ["Failed", plain.format(webhook.failed)],
      ["Dropped", plain.format(webhook.dropped)], ["Retries", plain.format(webhook.retries)],
    ]);
  }));
}

const plain = new Intl.NumberFormat();
const plural = (count, one, many) => `${plain.format(count)} ${count === 1 ? one : many}`;

/** One row of the table of streams; `before` is the previous report of the stream. */
function streamRow(now, before, seconds) {
  const per = (key) => (before && seconds > 0 ? Math.max(0, now[key] - before[key]) / seconds : 0);
  const row = document.createElement("tr");
  const cell = (title, main, ...small) => {
    const made = row.insertCell();
    made.dataset.title = title;
    made.append(main);
    for (const words of small) made.append(Object.assign(document.createElement("small"), { textContent: words }));
    return made;
  };
  const name = cell("Stream", now.stream, ...(now.partitions > 1 ? [plural(now.partitions, "partition", "partitions")] : []));
  if (now.failure) {
    const fault = document.createElement("small");
    fault.className = "fault";
    fault.textContent = `appends fail: ${now.failure}`;
    name.append(fault);
  }
  cell("Records in", rate(per("records")), `${bytes(per("bytes"))}/s`);
  cell("Records out", rate(per("read_records")), `${bytes(per("read_bytes"))}/s`);
  const waiting = now.pending_bytes ? [`${bytes(now.pending_bytes)} waiting`] : [];
  cell("On disk", bytes(now.disk_bytes), plural(now.segments, "file", "files"), ...waiting);
  const offsets = "next" in now && now.kept ? [`offsets ${plain.format(now.earliest)} to ${plain.format(now.next - 1)}`] : [];
  cell("Records", plain.format(now.kept), ...offsets);
  const syncs = before ? now.syncs - before.syncs : 0;
  if (syncs > 0) cell("Disk sync", ms((now.sync_us - before.sync_us) / syncs / 1000), `${number.format(per("syncs"))} syncs/s`);
  else cell("Disk sync", "–");
  const groups = cell("Groups", now.groups.length ? "" : "–");
  const rest = now.group_count - now.groups.length;
  const lines = now.groups.map(([group, lag]) => `${group}: ${lag ? `${plain.format(lag)} behind` : "up to date"}`);
  for (const line of rest > 0 ? [...lines, `and ${plain.format(rest)} more`] : lines) {
    groups.append(Object.assign(document.createElement("div"), { textContent: line }));
  }
  return row;
}

function streams(now, before, seconds) {
  document.getElementById("streams-section").hidden = !now;
  if (!now) return;
  const known = new Map((before?.shown ?? []).map((stream) => [stream.stream, stream]));
  document.getElementById("streams").replaceChildren(
    ...now.shown.map((stream) => streamRow(stream, known.get(stream.stream), seconds)));
  document.getElementById("streams-none").hidden = now.count > 0;
  const more = document.getElementById("streams-more");
  more.hidden = now.count <= now.shown.length;
  more.textContent = `and ${plural(now.count - now.shown.length, "stream", "streams")} with less traffic`;
}

/** "3 d 4 h", "12 min 5 s": the two largest units. */
function duration(seconds) {
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const from = Math.max(0, units.findIndex(([, size]) => seconds >= size));
  const shown = seconds < 1 ? [["s", 1]] : units.slice(from, from + 2);
  return shown.map(([unit, size], at) => {
    const value = Math.floor((at ? seconds % shown[0][1] : seconds) / size);
    return `${value} ${unit}`;
  }).join(" ");
}

/** The nodes of the cluster, if there is one. */
function cluster(now) {
  document.getElementById("nodes-section").hidden = !now;
  if (!now) return;
  document.getElementById("nodes-away").hidden = now.connected;
  document.getElementById("nodes").replaceChildren(...now.nodes.map((node) => {
    const row = tableRow(node.name, [["Version", node.version], ["Up", duration(node.uptime)],
      ["Connections", plain.format(node.connections)], ["Users", plain.format(node.users)], ["Topics", plain.format(node.topics)]]);
    row.firstChild.title = node.id;
    return row;
  }));
}

/** Version, uptime and node of the server. */
function server({ version, commit, node, threads, backend, store, uptime }) {
  const facts = [`Sinews ${version} (${commit})`, `up ${duration(uptime)}`, `node ${node}`,
    `${plural(threads, "thread", "threads")} on ${backend}`, ...(store ? [`streams in ${store}`] : [])];
  document.getElementById("server").textContent = facts.join(" · ");
}

const state = document.getElementById("state");
const form = document.getElementById("auth");
let token = new URLSearchParams(location.hash.slice(1)).get("token");
let attempts = 0;
let lastReport = null;
/** The WebSocket of the feed. */
let feed = null;

/** Close codes after which a retry would be rejected again. */
const FINAL = new Set([4400, 4401, 4403, 4404]);

/** The credentials that the feed has not rejected, the first one first. */
let credentials = [];
/** Why the feed has rejected the first one. */
let refusal = "";

const tokenProtocol = () => (token ? `sinews.bearer.${token}` : null);

/** Starts the feed with the first of the credentials: the token or none, behind the key. */
function connect() {
  credentials = [...(hasKey() ? [keyProtocol()] : []), tokenProtocol() ?? ""];
  refusal = "";
  open();
}

/** A key is kept if it has one of the rights that the page uses. */
async function admit(key) {
  const checked = await Promise.allSettled(["/connections?limit=1", "/info"].map((path) => call(path, undefined, key)));
  if (checked.some(({ status }) => status === "fulfilled")) return keep(key);
  const { reason: { code, message } } = checked[0];
  throw new Error(`${code ? "Rejected" : "Failed"}: ${message}.`);
}

function problem(text) {
  document.getElementById("auth-problem").hidden = !text;
  document.getElementById("auth-problem").textContent = text;
}

form.onsubmit = async (event) => {
  event.preventDefault();
  const input = document.getElementById("key");
  const value = input.value.trim();
  if (isJwt(value)) token = value;
  else {
    try {
      await admit(value);
    } catch (error) {
      return problem(error.message);
    }
  }
  input.value = "";
  problem("");
  if (state.dataset.status === "open") return;
  locked(false);
  [state.textContent, state.dataset.status] = ["connecting", "connecting"];
  connect();
};

/** The field takes a token, too, which sees the numbers only. */
const isJwt = (text) => /^eyJ[\w-]*\.[\w-]+\.[\w-]*$/.test(text);

document.getElementById("forget").onclick = () => {
  const isUsed = hasKey() && credentials[0] === keyProtocol();
  keep("");
  if (isUsed) {
    // The feed starts again with what is left.
    credentials = [tokenProtocol() ?? ""];
    feed.close();
  }
  document.getElementById("key").focus();
};

/** The form stays until there is a key; without rights to see anything, it is all that is shown. */
function offerKey() {
  const isLocked = document.body.classList.contains("locked");
  form.hidden = !isLocked && hasKey();
  document.getElementById("key-in-use").hidden = !hasKey() || isLocked;
}
onkey(offerKey);

/** A token is sent as a subprotocol, which limits its characters (RFC 6455 section 4.1). */
const isToken = (text) => /^[\w.~+-]+$/.test(text);

/** Says why the numbers are old; nothing if they are not. */
function outage(cause) {
  const box = document.getElementById("outage");
  const since = lastReport ? ` The numbers are of ${lastReport.toLocaleTimeString()}.` : "";
  const text = cause && `${cause}. The page tries again.${since}`;
  box.hidden = !cause;
  document.body.classList.toggle("stale", Boolean(cause));
  if (box.textContent !== text) box.textContent = text;
  if (!cause) lastReport = new Date();
}

/** Shows the form in the place of everything else, since nothing is known; or the other way round. */
function locked(isLocked) {
  document.body.classList.toggle("locked", isLocked);
  offerKey();
}

/** Tries the next credential, or shows the reason of the rejection and the form. */
function rejected(code, reason) {
  refusal ||= reason || `code ${code}`;
  if (credentials.length > 1) {
    credentials.shift();
    return open();
  }
  [state.textContent, state.dataset.status] = ["rejected", "waiting"];
  locked(true);
  problem(`Rejected: ${refusal}.`);
}

function open() {
  const [credential] = credentials;
  if (credential === tokenProtocol() && !isToken(token)) return rejected(4401, "the token is not a JWT");
  const url = new URL("/dashboard/feed", location.href.replace(/^http/, "ws"));
  const socket = new WebSocket(url, credential ? ["sinews.raw", credential] : ["sinews.raw"]);
  feed = socket;
  let last = null;
  let asked = 0;
  let latency = 0;
  socket.onopen = () => {
    attempts = 0;
  };
  socket.onmessage = ({ data }) => {
    [state.textContent, state.dataset.status] = ["live", "open"];
    if (data === "pong") {
      latency = performance.now() - asked;
      return;
    }
    const now = { ...JSON.parse(data), latency };
    const seconds = last ? (now.at - last.at) / 1000 : 0;
    const difference = (key) => (last && seconds > 0 ? Math.max(0, now[key] - last[key]) / seconds : 0);
    server(now.server);
    cluster(now.cluster);
    tiles(now);
    apps(now.apps);
    outage("");
    if (last) {
      for (const chart of charts) chart.add(now, difference);
      rates(now.topics, now.topic_count);
      hooks(now.hooks, last.hooks, seconds);
      webhooks(now.webhooks, last.webhooks, seconds);
      streams(now.streams, last.streams, seconds);
    }
    last = now;
    asked = performance.now();
    socket.send("ping");
  };
  socket.onclose = ({ code, reason }) => {
    state.dataset.status = "waiting";
    if (FINAL.has(code)) return rejected(code, reason);
    state.textContent = "no connection";
    outage(reason || "The server cannot be reached");
    attempts += 1;
    const most = Math.min(30_000, 500 * 2 ** Math.min(attempts, 10));
    setTimeout(open, most / 2 + (Math.random() * most) / 2);
  };
}

offerKey();
connect();
