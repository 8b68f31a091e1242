// The clients on the dashboard: their list and the actions on them, by the HTTP API with a key that the reader enters.

const at = (id) => document.getElementById(id);
const STORED = "sinews.api-key";
/** Connections of one page of the list. */
const PAGE = 50;

let key = "";
try { key = sessionStorage.getItem(STORED) ?? ""; } catch { /* storage throws where cookies are blocked */ }

/** Connections shown, and the position after them. */
let shown = [];
let next = null;

/** Keeps the key for this tab, or forgets it. */
function keep(value) {
  key = value;
  try {
    if (key) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
  } catch { /* a reload asks again */ }
}

/** Calls the HTTP API. Errors have the text of the server, and the status as their code. */
async function call(path, body) {
  const options = { headers: { Accept: "application/json", Authorization: `Bearer ${key}` }, cache: "no-store" };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const response = await fetch(`/api/v1${path}`, options)
    .catch(() => { throw new Error("the server cannot be reached"); });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(answer.error ?? `status ${response.status}`), { code: response.status });
  return answer;
}

/** The actions are offered only while the server accepts the key. */
function offer(isAllowed, problem = "") {
  at("clients").hidden = !isAllowed;
  at("key-form").hidden = isAllowed;
  at("key-problem").hidden = !problem;
  at("key-problem").textContent = problem;
}

function tell(text, isFault = false) {
  at("clients-result").textContent = text;
  at("clients-result").classList.toggle("fault", isFault);
}

/** An error that the key causes takes the actions away. */
function failed(error) {
  if (error.code === 401 || error.code === 403) {
    keep("");
    return offer(false, `Rejected: ${error.message}.`);
  }
  if (at("clients").hidden) offer(false, `Failed: ${error.message}.`);
  else tell(`Failed: ${error.message}.`, true);
}

async function list(isMore = false) {
  const user = at("find-user").value.trim();
  const slow = at("find-slow").checked;
  const query = new URLSearchParams({ limit: PAGE, ...(slow && { slow }), ...(user && { user }), ...(isMore && next && { after: next }) });
  const answer = await call(`/connections?${query}`);
  shown = isMore ? [...shown, ...answer.connections] : answer.connections;
  next = answer.next;
  at("connections-none").textContent = slow ? "No client is slow." : "No connection is open.";
  offer(true);
  draw(answer.missing_nodes ?? []);
}

const minutes = (since) => {
  const seconds = Math.max(0, Math.round((Date.now() - since) / 1000));
  const [unit, size] = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]].find(([, size]) => seconds >= size) ?? ["s", 1];
  return `${Math.floor(seconds / size)} ${unit}`;
};

/** Bytes in a queue: the server counts from 16 KiB on. */
function queue(bytes) {
  if (!bytes) return "–";
  return bytes < 1 << 20 ? `${Math.round(bytes / 1024)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

function draw(missing) {
  at("connections").replaceChildren(...shown.map((connection) => {
    const { connection: id, user, address, path, opened, queued } = connection;
    const row = document.createElement("tr");
    row.dataset.connection = id;
    row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: user ?? "no user" }));
    for (const [title, text] of [["Connection", id], ["Address", address ?? "–"], ["Path", path], ["Open for", minutes(opened)], ["Queue", queue(queued)]]) {
      const cell = row.insertCell();
      cell.dataset.title = title;
      cell.textContent = text;
      if (title === "Queue" && queued) cell.className = "fault";
    }
    const actions = row.insertCell();
    const action = (text, label, run) => {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "plain danger", textContent: text, onclick: run });
      button.setAttribute("aria-label", label);
      actions.append(button);
    };
    action("Disconnect", `Disconnect ${id}`, () => act(`Disconnect the connection ${id}? Its client may connect again.`, "Disconnect", "/disconnect", { connection: id }));
    if (user) {
      action("Disconnect user", `Disconnect user ${user}`, () => act(`Disconnect all connections of ${user}? The clients may connect again.`, "Disconnect", "/disconnect", { user }));
      action("Revoke tokens", `Revoke tokens of ${user}`, () => act(`Revoke all tokens of ${user} that were issued until now, and disconnect their connections?`, "Revoke", "/revoke", { user }));
    }
    return row;
  }));
  at("connections-none").hidden = shown.length > 0;
  at("connections-more").hidden = !next;
  if (missing.length) tell(`These nodes have not answered: ${missing.join(", ")}.`, true);
}

/** Asks in a dialog; true if the reader agrees. */
function isSure(text, verb) {
  const dialog = at("sure");
  at("sure-text").textContent = text;
  at("sure-yes").textContent = verb;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
}

async function act(text, verb, path, body) {
  if (!await isSure(text, verb)) return;
  try {
    const { connections } = await call(path, body);
    const done = path === "/revoke" ? "Revoked" : "Done";
    tell(`${done}: ${connections} ${connections === 1 ? "connection" : "connections"} closed.`);
    await list();
  } catch (error) {
    failed(error);
  }
}

at("key-form").onsubmit = (event) => {
  event.preventDefault();
  keep(at("key").value.trim());
  at("key").value = "";
  list().then(() => tell(""), failed);
};
at("find").onsubmit = (event) => {
  event.preventDefault();
  list().then(() => tell(""), failed);
};
at("find-slow").onchange = () => list().then(() => tell(""), failed);
at("connections-more").onclick = () => list(true).catch(failed);
at("revoke").onsubmit = (event) => {
  event.preventDefault();
  const token = at("revoke-token").value.trim();
  act(`Revoke the token ${token}, and disconnect its connections?`, "Revoke", "/revoke", { token });
};
at("forget").onclick = () => {
  keep("");
  shown = [];
  at("connections").replaceChildren();
  offer(false);
  at("key").focus();
};

if (key) list().catch(failed);
