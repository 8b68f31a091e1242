// Serves the page: `node server.js`.
import express from "express";
import { fileURLToPath } from "node:url";

const { REALTIME_URL = "http://127.0.0.1:8080", PORT = "3000" } = process.env;

const app = express();
app.get("/realtime", (request, response) => response.json({ url: `${REALTIME_URL.replace("http", "ws")}/ws` }));
app.get("/client.js", (request, response) => response.sendFile(fileURLToPath(import.meta.resolve("@sinews/client"))));
app.use(express.static(fileURLToPath(new URL("public", import.meta.url))));

const listener = app.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${listener.address().port}/`);
});
