import { connect } from "/client.js";

const list = document.getElementById("list");
const status = document.getElementById("status");

/** The address of the server, the user and a token, from the application. */
async function access() {
  const response = await fetch("/realtime");
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

async function listen() {
  const { url, user } = await access();
  const client = connect(url, {
    token: async () => (await access()).token, // called before each connection, and before the token expires
    onstatus: (change) => { status.textContent = change.reason || change.status; },
  });
  client.subscribe(`notifications.${user}`, ({ data }) => {
    const item = document.createElement("li");
    item.textContent = `${data.title}: ${data.text}`;
    list.prepend(item);
  }, { last: 10 }); // begins with the last 10 notifications
}

document.getElementById("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const user = new FormData(event.target).get("user");
  const response = await fetch("/login", {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ user }),
  });
  if (!response.ok) return status.textContent = (await response.json()).error;
  event.target.remove();
  await listen();
});
