// The parts, each with a world of its own: a server, windows, files. Its checks run in order, as one depends on what the
// earlier ones have done: the first failure may cause the later ones. `npm test` runs them. The variables are optional:
//
//   SINEWS               the program, by default that of the path
//   SINEWS_PARTS         the parts, separated by commas, by default all but the pictures
//   SINEWS_CERTIFICATE   folder with `certificate.pem` and `key.pem` for 127.0.0.1: the part http2
//   SINEWS_PRICES        the example `keys` of the hub: the part prices, and a check of axe
//   SINEWS_PICTURES      folder for the part pictures
import { test } from "node:test";

import { chromium } from "playwright";

import { Part, findProgram } from "./world.js";

/** The longest ones first. */
const PARTS = [
  "prices", "guests", "chat", "axe", "console", "streams", "client", "dashboard", "operations", "events", "report", "rooms",
  "http2",
];
/** The files of those parts that have another name. */
const FILES = { operations: "dashboard", rooms: "chat" };

// Shared memory is scarce in containers.
const ARGUMENTS = ["--disable-gpu", "--disable-dev-shm-usage"];

const known = [...PARTS, "pictures"];
const chosen = process.env.SINEWS_PARTS?.split(",") ?? PARTS;

// Two parts run side by side: some of them mostly wait.
test("browser", { concurrency: 2 }, async (test) => {
  const unknown = chosen.filter((name) => !known.includes(name));
  if (unknown.length > 0) throw new Error(`no part ${unknown}; parts are ${known.join(", ")}`);
  const executablePath = findProgram("chromium", "chromium-browser", "google-chrome");
  if (!executablePath) return test.skip("no chromium (apt-get install chromium)");
  // Chromium's own sandbox does not run as root, which is the usual user in containers.
  const browser = await chromium.launch({ executablePath, args: ARGUMENTS, chromiumSandbox: process.getuid() !== 0 });
  test.after(() => browser.close());
  await Promise.all(chosen.map((name) => test.test(name, { concurrency: 1 }, async (test) => {
    const { [name]: run } = await import(`./${FILES[name] ?? name}.js`);
    await run(new Part(test, browser));
  })));
});
