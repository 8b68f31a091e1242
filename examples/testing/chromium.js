// Windows of headless Chromium, driven by the DevTools protocol: the pages of the tutorials as their users see them.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

const PROGRAM = ["chromium", "chromium-browser", "google-chrome"].find((name) => !spawnSync(name, ["--version"]).error);
/** Milliseconds until an expectation of a page fails. */
const PATIENCE = 60_000;

/** The reason to skip tests of pages, or false. */
export const noChromium = !PROGRAM && "no chromium (apt-get install chromium)";

/** Starts Chromium for a test. Returns a function that opens a page, each in a profile of its own. */
export async function chromium(test) {
  const folder = mkdtempSync(join(tmpdir(), "sinews-chromium-"));
  const options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", `--user-data-dir=${folder}`];
  const child = spawn(PROGRAM, [...options, "about:blank"], { stdio: ["ignore", "ignore", "pipe"] });
  const exited = once(child, "exit");
  test.after(async () => {
    child.kill();
    await exited;
    // Its other processes exit a moment later.
    await rm(folder, { recursive: true, force: true, maxRetries: 20 });
  });
  let log = "";
  for await (const chunk of child.stderr) {
    log += chunk;
    if (log.includes("/devtools/browser/")) break;
  }
  const address = /ws:\/\/\S+/.exec(log)?.[0];
  if (!address) throw new Error(`chromium did not start: ${log}`);
  const socket = new WebSocket(address);
  await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
  const pending = new Map();
  socket.onmessage = ({ data }) => {
    const { id, result, error } = JSON.parse(data);
    const { resolve, reject } = pending.get(id) ?? {};
    if (error) reject?.(new Error(error.message));
    else resolve?.(result);
  };
  const call = (method, params, sessionId) => new Promise((resolve, reject) => {
    const id = pending.size + 1;
    pending.set(id, { resolve, reject });
    socket.send(JSON.stringify({ id, method, params, sessionId }));
  });
  return async (url) => {
    const { browserContextId } = await call("Target.createBrowserContext");
    const { targetId } = await call("Target.createTarget", { url, browserContextId });
    const { sessionId } = await call("Target.attachToTarget", { targetId, flatten: true });
    return {
      ...page((expression) => call("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true }, sessionId)),
      /** Calls a method of the DevTools protocol, such as `Input.dispatchMouseEvent`. */
      call: (method, params) => call(method, params, sessionId),
      /** Closes the page, as a user closes a tab. */
      close: () => call("Target.closeTarget", { targetId }),
    };
  };
}

function page(run) {
  /** The value of an expression in the page. */
  const evaluate = async (expression) => {
    const { result, exceptionDetails } = await run(expression);
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  };
  /** Waits until an expression is true. */
  const until = async (expression) => {
    for (const deadline = Date.now() + PATIENCE; Date.now() < deadline; await pause(50)) {
      if (await evaluate(expression).catch(() => false)) return;
    }
    throw new Error(`not true: ${expression}; the page: ${await evaluate("document.body.innerText")}`);
  };
  return {
    evaluate,
    until,
    /** Waits for a text in the page. */
    shows: (text) => until(`document.body.innerText.includes(${JSON.stringify(text)})`),
    /** Fills fields of a form, found by selectors, and submits it. */
    async submit(form, fields) {
      // Its script is loaded then.
      await until(`document.readyState === "complete" && document.querySelector(${JSON.stringify(form)}) !== null`);
      for (const [selector, value] of Object.entries(fields)) {
        await evaluate(`{
          const field = document.querySelector(${JSON.stringify(selector)});
          field.value = ${JSON.stringify(value)};
          field.dispatchEvent(new Event("input", { bubbles: true }));
        }`);
      }
      await evaluate(`document.querySelector(${JSON.stringify(form)}).requestSubmit()`);
    },
  };
}
