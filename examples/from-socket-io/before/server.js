// A support desk with Socket.IO: rooms, alerts to one user, a call with an answer. `node before/server.js`
import express from "express";
import jwt from "jsonwebtoken";
import { createServer } from "node:http";
import { Server } from "socket.io";

const { SECRET, PORT = "3000" } = process.env;

const app = express();
app.use(express.json());
const server = createServer(app);
const io = new Server(server, { connectionStateRecovery: {} });

// In the place of your login.
app.post("/login", (request, response) => {
  response.json({ token: jwt.sign({}, SECRET, { subject: request.body.user, expiresIn: "10m" }) });
});

app.post("/alert", (request, response) => {
  io.to(`user:${request.body.user}`).emit("alert", request.body.text);
  response.json({});
});

io.use((socket, next) => {
  try {
    socket.data.user = jwt.verify(socket.handshake.auth.token, SECRET).sub;
    next();
  } catch {
    next(new Error("log in first"));
  }
});

const names = new Map();

io.on("connection", (socket) => {
  const { user } = socket.data;
  socket.join(`user:${user}`);
  socket.on("enter", (room, answer) => {
    socket.join(`room:${room}`);
    answer({});
  });
  socket.on("message", (room, text, answer) => {
    if (!text.trim()) return answer({ error: "a message has a text" });
    io.to(`room:${room}`).emit("message", { room, from: names.get(user) ?? user, text });
    answer({});
  });
  socket.on("rename", (name, answer) => {
    names.set(user, name.trim());
    answer({ name: name.trim() });
  });
});

server.listen(Number(PORT), "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${server.address().port}/`));
