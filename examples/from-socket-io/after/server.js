// The support desk with Sinews: the application answers the server, and holds no connection. `node after/server.js`
import express from "express";
import jwt from "jsonwebtoken";

const { SECRET, SINEWS_API_KEY, REALTIME_URL = "http://127.0.0.1:8080", PORT = "3000" } = process.env;

const app = express();
app.use(express.json());

// In the place of your login.
app.post("/login", (request, response) => {
  response.json({ token: jwt.sign({}, SECRET, { subject: request.body.user, expiresIn: "10m" }) });
});

app.post("/alert", async (request, response) => {
  const { user, text } = request.body;
  const answer = await fetch(`${REALTIME_URL}/api/v1/publish`, {
    method: "POST",
    headers: { authorization: `Bearer ${SINEWS_API_KEY}` },
    body: JSON.stringify({ topic: `user.${user}`, data: text }),
  });
  response.status(answer.ok ? 200 : 502).json({});
});

const names = new Map();

const hooks = {
  // io.use and socket.join: the server has checked the token, `user` is its `sub`.
  connect: ({ user }) => (user
    ? { claims: { sub: user, subscribe: "room.*", publish: "room.*" }, topics: [`user.${user}`] }
    : { reject: { code: 4401, reason: "log in first" } }),
  // socket.on("message")
  publish: ({ user, data }) => (typeof data?.text === "string" && data.text.trim()
    ? { data: { from: names.get(user) ?? user, text: data.text } }
    : { reject: { code: 422, reason: "a message has a text" } }),
  // socket.on("rename") with an acknowledgement
  rpc: ({ user, method, data }) => {
    if (method !== "rename") return { reject: { code: 404, reason: `no method ${method}` } };
    names.set(user, String(data).trim());
    return { data: { name: names.get(user) } };
  },
};

app.post("/hooks", (request, response) => response.json(hooks[request.body.hook](request.body)));

const listener = app.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${listener.address().port}/`);
});
