// The page of a user: shows the events that pusher-js receives, and sends the actions of the user.
const $ = (id) => document.getElementById(id);
/** Milliseconds between two positions: the server accepts ten client events a second. */
const PERIOD = 125;
/** Milliseconds for which a user is shown as typing. */
const TYPING_FOR = 3_000;
const LINES = 50;

const states = {
  connecting: "connecting …", connected: "connected", unavailable: "no connection, trying again", failed: "not supported",
  disconnected: "offline",
};

/** A request to the application. Shows the error of an answer, and returns nothing then. */
async function request(method, path, body) {
  $("error").textContent = "";
  try {
    const headers = { "content-type": "application/json" };
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    const answer = await response.json();
    if (response.ok) return answer;
    if (response.status !== 401 || method !== "GET") $("error").textContent = answer.error;
  } catch {
    $("error").textContent = "the application does not answer";
  }
}

/** Adds a line to a list. Always as text, never as HTML: it is of another user. */
function show(list, text) {
  const line = document.createElement("li");
  line.textContent = text;
  list.prepend(line);
  while (list.children.length > LINES) list.lastChild.remove();
}

/** The color of a user, the same on all pages. */
function color(id) {
  const number = [...id].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 1_000_003, 7);
  return `hsl(${(number * 137) % 360} 65% 50%)`; // steps by the golden angle differ most
}

function enter({ user, key, host, port, useTLS }) {
  const pusher = new Pusher(key, {
    wsHost: host, wsPort: port, wssPort: port, forceTLS: useTLS, enabledTransports: ["ws", "wss"], disableStats: true, cluster: "",
    channelAuthorization: { endpoint: "auth" }, // server.js signs
  });
  pusher.connection.bind("state_change", ({ current }) => showState(current));
  showState(pusher.connection.state);

  // Presence: the members, with each change.
  const team = pusher.subscribe("presence-team");
  const cursors = new Map();
  const typing = new Map();
  const showMembers = () => {
    const members = [];
    team.members.each(({ id, info }) => {
      const line = document.createElement("li");
      line.textContent = id === user ? `${info.name} (you)` : info.name;
      line.style.setProperty("--color", color(id));
      members.push(line);
    });
    $("members").replaceChildren(...members.sort((a, b) => a.textContent.localeCompare(b.textContent)));
  };
  const remove = (id) => {
    cursors.get(id)?.remove();
    cursors.delete(id);
    stopTyping(id);
  };
  team.bind("pusher:subscription_succeeded", () => {
    for (const id of [...cursors.keys()]) if (id !== user && !team.members.get(id)) remove(id);
    showMembers();
  });
  team.bind("pusher:member_added", showMembers);
  team.bind("pusher:member_removed", ({ id }) => {
    remove(id);
    showMembers();
  });

  // Client events go from page to page. `user_id` is set by the server: a client cannot send as another member.
  team.bind("client-cursor", ({ x, y }, { user_id: id }) => moveCursor(id, x, y));
  team.bind("client-typing", (data, { user_id: id }) => {
    clearTimeout(typing.get(id));
    typing.set(id, setTimeout(() => stopTyping(id), TYPING_FOR));
    showTyping();
  });
  team.bind("client-note", ({ text }, { user_id: id }) => {
    stopTyping(id);
    show($("notes"), `${id}: ${text}`);
  });

  // A private channel, for the pages of one user, and a public one.
  const channel = `private-user-${user}`;
  pusher.subscribe(channel).bind("shipped", ({ text }) => show($("orders"), text));
  pusher.subscribe("news").bind("published", ({ from, text }) => show($("news"), `${from}: ${text}`));
  pusher.bind("pusher:subscription_error", ({ error, status }) => {
    $("error").textContent = `not authorized (${status}): ${error}`;
  });
  pusher.connection.bind("error", ({ error, data = error?.data }) => {
    // For example 4301: too many client events.
    if (data?.message) $("error").textContent = data.message;
  });

  function stopTyping(id) {
    clearTimeout(typing.get(id));
    typing.delete(id);
    showTyping();
  }
  function showTyping() {
    $("typing").textContent = typing.size > 0 ? `typing: ${[...typing.keys()].sort().join(", ")}` : "\u00a0";
  }
  function moveCursor(id, x, y) {
    let cursor = cursors.get(id);
    if (!cursor) {
      cursor = document.createElement("div");
      cursor.className = "cursor";
      cursor.dataset.user = id;
      cursor.ariaHidden = "true";
      cursor.style.setProperty("--color", color(id));
      cursor.append(document.createElement("span"));
      cursor.firstChild.textContent = id === user ? "you" : id;
      cursors.set(id, cursor);
      $("board").append(cursor);
    }
    const percent = (part) => `${Math.min(Math.max(Number(part) || 0, 0), 1) * 100}%`;
    Object.assign(cursor.style, { left: percent(x), top: percent(y) });
    cursor.classList.toggle("before", x > 0.7);
    cursor.classList.toggle("above", y > 0.8);
  }

  // The own position: at most one event in each period, the last position always.
  const position = { x: 0.5, y: 0.5 };
  let timer;
  const move = (x, y) => {
    Object.assign(position, { x: Math.min(Math.max(x, 0), 1), y: Math.min(Math.max(y, 0), 1) });
    moveCursor(user, position.x, position.y);
    timer ??= setTimeout(() => {
      timer = undefined;
      team.trigger("client-cursor", position);
    }, PERIOD);
  };
  const actions = new AbortController();
  const on = (id, event, action) => $(id).addEventListener(event, action, { signal: actions.signal });
  on("board", "pointermove", ({ clientX, clientY }) => {
    const { left, top, width, height } = $("board").getBoundingClientRect();
    move((clientX - left) / width, (clientY - top) / height);
  });
  on("board", "keydown", (event) => {
    const step = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, -0.05], ArrowDown: [0, 0.05] }[event.key];
    if (!step) return;
    event.preventDefault();
    move(position.x + step[0], position.y + step[1]);
  });
  let typedAt = 0;
  on("note", "input", () => {
    if (Date.now() - typedAt < TYPING_FOR / 2) return;
    if (team.trigger("client-typing", {})) typedAt = Date.now();
  });
  on("send", "submit", (event) => {
    event.preventDefault();
    const text = $("note").value.trim();
    if (!text) return;
    // False without a connection: a client event is not queued.
    if (!team.subscribed || !team.trigger("client-note", { text })) {
      $("error").textContent = "not sent: no connection";
      return;
    }
    show($("notes"), `you: ${text}`);
    $("note").value = "";
    $("error").textContent = "";
    typedAt = 0;
  });
  on("ship", "click", () => request("POST", `orders/${1000 + Math.floor(Math.random() * 9000)}/ship`, {}));
  on("publish", "submit", async (event) => {
    event.preventDefault();
    if (await request("POST", "news", { text: $("text").value })) $("text").value = "";
  });
  on("leave", "click", async () => {
    actions.abort();
    clearTimeout(timer);
    pusher.disconnect();
    for (const id of [...cursors.keys(), ...typing.keys()]) remove(id);
    for (const id of ["members", "notes", "orders", "news"]) $(id).replaceChildren();
    await request("POST", "logout", {});
    showEntrance(true);
  });

  $("private").textContent = channel;
  showEntrance(false);
}

function showState(state) {
  $("status").textContent = states[state] ?? state;
  $("status").dataset.state = state;
}

function showEntrance(isShown) {
  $("entrance").hidden = !isShown;
  $("team").hidden = isShown;
  if (isShown) $("user").focus();
}

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!await request("POST", "login", { user: $("user").value })) return;
  const session = await request("GET", "session");
  if (session) enter(session);
});

// After a reload the user is still logged in.
const session = await request("GET", "session");
if (session) enter(session);
