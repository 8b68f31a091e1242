// Starts the server and the programs of a tutorial for its test, and stops them after it.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";

import { folder, serve } from "../../clients/js/test/server.js";

export { channel, folder, proxy, serve, tokens } from "../../clients/js/test/server.js";

/** Options of Node.js: versions before 22 have the standard WebSocket behind a flag. */
export const FLAGS = Number(process.versions.node.split(".")[0]) < 22 ? ["--experimental-websocket"] : [];

/** Options of a test: far more time than it needs, also on a machine that stalls. */
export const limit = { timeout: 180_000 };

export const API_KEY = "an API key of the tests, 32 bytes long".replaceAll(" ", "-");
export const AUTH_SECRET = "a secret for tokens of the tests, 32 bytes long";

// Files of tests that run side by side start at different ports.
let nextPort = process.pid * 61;
// Below and in between are ports that `fetch` and browsers do not connect to, such as 4045 and 4190.
const [FIRST_PORT, PORTS] = [4_200, 300];

/**
 * A port that nothing listens on, and that no other call has got. It is below the ports that the system gives to
 * connections (from 32,768 on Linux): no connection takes it before a program listens there.
 */
export async function freePort() {
  for (;;) {
    const listener = net.createServer();
    try {
      listener.listen(FIRST_PORT + (nextPort++ % PORTS), "127.0.0.1");
      await once(listener, "listening");
      return listener.address().port;
    } catch (error) {
      if (error.code !== "EADDRINUSE") throw error;
    } finally {
      listener.close();
    }
  }
}

/**
 * Starts `sinews serve` with the file `sinews.toml` of a tutorial, in which `ports` replaces the ports of the
 * application. `listen` is the port of the server, by default a free one.
 */
export async function serveTutorial(test, path, { ports = {}, options = [], listen } = {}) {
  let text = readFileSync(path, "utf8");
  for (const [port, other] of Object.entries(ports)) text = text.replaceAll(`:${port}`, `:${other}`);
  const config = join(folder(test), "sinews.toml");
  writeFileSync(config, text);
  // An application that stalls answers its hooks late.
  if (/hook/.test(text)) options = ["--hooks-timeout", "30s", ...options];
  return serve(test, ["--config", config, "--api-key", API_KEY, ...options], { listen });
}

/** Starts a program that runs until the end of the test, or until `stop`. `text` is what it has printed. */
export function launch(test, command, parameters, { signal = "SIGKILL", ...options } = {}) {
  const child = spawn(command, parameters, { ...options, stdio: ["ignore", "pipe", "pipe"] });
  const program = { child, text: "", stop: () => stop(child, signal) };
  const read = (chunk) => { program.text += chunk; };
  child.stdout.setEncoding("utf8").on("data", read);
  child.stderr.setEncoding("utf8").on("data", read);
  child.on("error", read);
  test.after(program.stop);
  return program;
}

/** Starts a program, and waits until it prints `ready`. `signal` stops it after the test. */
export async function start(test, command, parameters, { env = {}, ready = "listening", signal } = {}) {
  const program = launch(test, command, parameters, { env: { ...process.env, ...env }, signal });
  await new Promise((resolve, reject) => {
    const look = () => program.text.includes(ready) && resolve();
    program.child.stdout.on("data", look);
    program.child.stderr.on("data", look);
    program.child.on("error", reject);
    program.child.on("exit", (code) => reject(new Error(`${command} ${parameters[0]} exited with ${code}: ${program.text}`)));
  });
}

/** Starts a program of Node.js. */
export function startNode(test, file, options) {
  return start(test, process.execPath, [...FLAGS, file], options);
}

async function stop(child, signal) {
  if (child.exitCode === null && child.signalCode === null && child.kill(signal)) await once(child, "exit");
}

/** A browser as far as `fetch` goes: keeps the cookies of one site. */
export function browser(site) {
  let cookies = "";
  const request = async (path, options = {}) => {
    const headers = { ...options.headers, ...(cookies && { cookie: cookies }) };
    const response = await fetch(site + path, { ...options, headers, redirect: "manual" });
    const set = response.headers.getSetCookie().map((cookie) => cookie.split(";")[0]);
    if (set.length > 0) cookies = set.join("; ");
    return response;
  };
  return {
    get cookies() { return cookies; },
    get: (path) => request(path),
    post: (path, body) => request(path, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    }),
  };
}
