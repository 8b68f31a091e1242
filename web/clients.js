// The clients on the dashboard: their list and the actions on them, by the HTTP API with the key of the reader.
import { call, hasKey, keep, link, onkey, queue, since } from "./access.js";
import { openClient } from "./details.js";

const at = (id) => document.getElementById(id);
/** Connections of one page of the list. */
const PAGE = 50;

/** Connections shown, and the position after them. */
let shown = [];
let next = null;

function tell(text, isFault = false) {
  at("clients-result").textContent = text;
  at("clients-result").classList.toggle("fault", isFault);
}

/** A key that is not valid any more is forgotten; without the right, the clients are not shown. */
function failed(error) {
  if (error.code === 401) return keep("");
  at("clients").classList.toggle("denied", error.code === 403);
  tell(`Failed: ${error.message}.`, true);
}

async function list(isMore = false) {
  const user = at("find-user").value.trim();
  const slow = at("find-slow").checked;
  const query = new URLSearchParams({ limit: PAGE, ...(slow && { slow }), ...(user && { user }), ...(isMore && next && { after: next }) });
  const answer = await call(`/connections?${query}`);
  shown = isMore ? [...shown, ...answer.connections] : answer.connections;
  next = answer.next;
  at("connections-none").textContent = slow ? "No client is slow." : "No connection is open.";
  at("clients").classList.remove("denied");
  draw(answer.missing_nodes ?? []);
}

function draw(missing) {
  at("connections").replaceChildren(...shown.map((connection) => {
    const { connection: id, user, address, path, opened, queued } = connection;
    const row = document.createElement("tr");
    row.dataset.connection = id;
    row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: user ?? "anonymous", className: user ? "" : "anonymous" }));
    const opener = link(id, `Open the client ${id}`, () => openClient(id));
    for (const [title, text] of [["Connection", opener], ["Address", address ?? "–"], ["Path", path], ["Open for", since(opened)], ["Queue", queue(queued)]]) {
      const cell = row.insertCell();
      cell.dataset.title = title;
      cell.append(text);
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

function start() {
  at("clients-section").hidden = !hasKey();
  if (hasKey()) return list().then(() => tell(""), failed);
  shown = [];
  at("connections").replaceChildren();
}
onkey(start);
start();
