// The parts, each with a world of its own: a server, windows, files. Its checks run in order, as one depends on what the
// earlier ones have done. Two parts run side by side: some of them mostly wait.
import { test } from "node:test";

import { chromium } from "playwright";

import { accessibility } from "./accessibility.js";
import { chat, rooms } from "./chat.js";
import { client } from "./client.js";
import { consolePage } from "./console.js";
import { dashboard, operations } from "./dashboard.js";
import { events } from "./events.js";
import { guests } from "./guests.js";
import { http2 } from "./http2.js";
import { pictures } from "./pictures.js";
import { prices } from "./prices.js";
import { report } from "./report.js";
import { streams } from "./streams.js";
import { Part, browserPath } from "./world.js";

/** The longest ones first. */
const PARTS = {
  prices, guests, chat, axe: accessibility, console: consolePage, streams, client, dashboard, operations, events, report, rooms, http2,
};
const WITHOUT_CHECKS = { pictures };

const ARGUMENTS = [
  "--disable-gpu",
  // Shared memory is scarce in containers.
  "--disable-dev-shm-usage",
];

const chosen = process.env.SINEWS_PARTS ? process.env.SINEWS_PARTS.split(",") : Object.keys(PARTS);
const known = { ...PARTS, ...WITHOUT_CHECKS };

test("browser", { concurrency: 2 }, async (test) => {
  const unknown = chosen.filter((name) => !known[name]);
  if (unknown.length > 0) throw new Error(`no part ${unknown}; parts are ${Object.keys(known).join(", ")}`);
  const executablePath = browserPath();
  if (!executablePath) return test.skip("no chromium (apt-get install chromium)");
  // Chromium's own sandbox does not run as root, which is the usual user in containers.
  const browser = await chromium.launch({ executablePath, args: ARGUMENTS, chromiumSandbox: process.getuid() !== 0 });
  test.after(() => browser.close());
  const run = (name) => test.test(name, { concurrency: 1 }, (test) => known[name](new Part(test, browser)));
  await Promise.all(chosen.map(run));
});
