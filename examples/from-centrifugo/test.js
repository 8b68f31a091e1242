// One scenario against the program before and after the move. Before: needs the program `centrifugo`, on PATH or at $CENTRIFUGO.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import test from "node:test";

import { API_KEY as apiKey, AUTH_SECRET as secret, channel, freePort, limit, serveTutorial, start } from "../testing/programs.js";
import * as afterBackend from "./after/backend.js";
import * as afterClient from "./after/client.js";
import * as beforeBackend from "./before/backend.js";
import * as beforeClient from "./before/client.js";

const file = (name) => new URL(name, import.meta.url).pathname;
const CENTRIFUGO = process.env.CENTRIFUGO ?? "centrifugo";
const noCentrifugo = spawnSync(CENTRIFUGO, ["version"]).error && "no centrifugo (https://centrifugal.dev/docs/getting-started/installation)";

async function startBefore(t) {
  const port = await freePort();
  const env = {
    CENTRIFUGO_HTTP_SERVER_PORT: String(port), CENTRIFUGO_HTTP_SERVER_ADDRESS: "127.0.0.1",
    CENTRIFUGO_HTTP_API_KEY: apiKey, CENTRIFUGO_CLIENT_TOKEN_HMAC_SECRET_KEY: secret,
  };
  await start(t, CENTRIFUGO, ["--config", file("before/config.json")], { env, ready: "serving websocket" });
  const url = `http://127.0.0.1:${port}`;
  while (!(await fetch(`${url}/api/info`, { method: "POST", body: "{}" }).catch(() => null))); // it listens a moment later
  return url;
}

async function startAfter(t) {
  const server = await serveTutorial(t, file("after/sinews.toml"), { options: ["--auth-secret", secret] });
  return server.http;
}

const PROGRAMS = [
  ["before, with Centrifugo", startBefore, beforeBackend, beforeClient, noCentrifugo],
  ["after, with Sinews", startAfter, afterBackend, afterClient, false],
];
for (const [name, startServer, { backend }, { open }, skip] of PROGRAMS) {
  test(`from-centrifugo: ${name}: publications, history, presence and disconnect`, { ...limit, skip }, async (t) => {
    const url = await startServer(t);
    const application = backend({ url, apiKey, secret });
    const enter = async (user, topic = "sports") => {
      const [messages, closed] = [channel(), channel()];
      const getToken = async () => application.token(user);
      const page = await open({ url, user, getToken }, topic, { onmessage: messages.push, onclose: closed.push });
      t.after(() => page.close());
      return { page, messages, closed };
    };
    const [anna, ben] = [await enter("anna"), await enter("ben")];

    await application.publish("sports", { title: "one" }, "news-1");
    await application.publish("sports", { title: "one" }, "news-1"); // a retry
    await application.broadcast(["sports", "music"], { title: "two" });
    for (const { messages } of [anna, ben]) {
      assert.deepEqual([await messages.next(), await messages.next()], [{ title: "one" }, { title: "two" }]);
    }

    const carl = await enter("carl");
    assert.deepEqual(await carl.page.last(10), [{ title: "one" }, { title: "two" }]);
    assert.deepEqual(await carl.page.last(1), [{ title: "two" }]);
    assert.deepEqual(await application.users("sports"), ["anna", "ben", "carl"]);

    await assert.rejects(carl.page.publish({ title: "forged" }), ({ code }) => [103, 403].includes(code));

    await application.disconnect("ben");
    assert.equal(await ben.closed.next(), "account closed");
    while ((await application.users("sports")).includes("ben"));
    assert.equal(anna.messages.size + anna.closed.size, 0);
  });
}
