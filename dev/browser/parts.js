// The parts, each with a world of its own: a server, windows, files. Its checks run in order: a later one depends on
// what the earlier ones have done. The first failure may cause others. `npm test` runs them. Optional variables:
//
//   SINEWS               the program, by default that of the path
//   SINEWS_PARTS         the parts, separated by commas, by default all but the pictures
//   SINEWS_CERTIFICATE   folder with `certificate.pem` and `key.pem` for 127.0.0.1: the part http2
//   SINEWS_PRICES        the example `keys` of the hub: the part prices
//   SINEWS_PICTURES      folder for the part pictures
import { test } from "node:test";

import { chromium } from "playwright";

import { Part, findProgram } from "./world.js";

/** The longest ones first. */
const PARTS = [
  "prices", "guests", "chat", "console", "client", "streams", "dashboard", "live", "operations", "rooms", "events", "report",
  "http2",
];
/** The files of those parts that have another name. */
const FILES = { operations: "dashboard", rooms: "chat" };

const known = [...PARTS, "pictures"];
const chosen = process.env.SINEWS_PARTS?.split(",") ?? PARTS;

// Two parts run side by side: some of them mostly wait.
test("browser", { concurrency: 2 }, async (test) => {
  const unknown = chosen.filter((name) => !known.includes(name));
  if (unknown.length > 0) throw new Error(`no part ${unknown}; parts are ${known.join(", ")}`);
  const executablePath = findProgram("chromium", "chromium-browser", "google-chrome");
  if (!executablePath) return test.skip("no chromium (apt-get install chromium)");
  // In containers shared memory is scarce. Chromium's own sandbox does not run as root, which is the usual user there.
  const args = ["--disable-gpu", "--disable-dev-shm-usage"];
  const browser = await chromium.launch({ executablePath, args, chromiumSandbox: process.getuid() !== 0 });
  test.after(() => browser.close());
  await Promise.all(chosen.map((name) => test.test(name, { concurrency: 1 }, async (test) => {
    const { [name]: run } = await import(`./${FILES[name] ?? name}.js`);
    await run(new Part(test, browser));
  })));
});
