import { connect } from "/client.js";
import { enter } from "/room.js";

const $ = (id) => document.getElementById(id);

/** The address of the server, the user and a token, from the application. */
async function access() {
  const response = await fetch("/realtime");
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

function show(text) {
  const line = document.createElement("li");
  line.textContent = text; // never as HTML: the text is of another user
  $("log").append(line);
  line.scrollIntoView();
}

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { user: name, room: roomName } = Object.fromEntries(new FormData(event.target));
  const response = await fetch("/login", {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ user: name }),
  });
  if (!response.ok) return alert((await response.json()).error);
  const { url, user } = await access();
  const client = connect(url, {
    token: async () => (await access()).token, // called before each connection, and before the token expires
    onstatus: ({ status, reason }) => { $("status").textContent = reason || status; },
  });
  const room = enter(client, roomName, user, {
    onmessage: ({ from, text }) => show(`${from}: ${text}`),
    onmembers: (names) => { $("members").textContent = names.join(", "); },
    ontyping: (names) => { $("typing").textContent = names.length > 0 ? `typing: ${names.join(", ")}` : "\u00a0"; },
    ongap: () => show("(some messages are missing)"),
  });
  $("login").hidden = true;
  $("room").hidden = false;
  $("text").addEventListener("input", () => room.type().catch(() => {}));
  $("send").addEventListener("submit", async (submit) => {
    submit.preventDefault();
    $("error").textContent = "";
    try {
      await room.send($("text").value);
      $("text").value = "";
    } catch (error) {
      $("error").textContent = error.message;
    }
  });
});
