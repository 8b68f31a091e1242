// The example page of 1,000 prices, of which 60 change in a second, through a link as slow as that of a phone.
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";

import { launch } from "../../examples/testing/programs.js";
import { eventually, expect } from "./page.js";
import { ROOT, findProgram } from "./world.js";

const PRICES = 1_000;
/** Milliseconds in which the page and all prices pass the link: they are some 100 KB. */
const LOADED = 120_000;
/** Milliseconds between the looks at the page, and for which it is watched. */
const [POLL, WATCHED] = [500, 30_000];
// Age in milliseconds from which a replaced price is outdated: the server passes 16 KiB to the system, and a message of
// 8 KiB, and the link takes some more. That is 3 to 5 s; the rest is for a busy machine, beside the time of its stalls.
const AGE_MAX = 15_000;
/** Age of the oldest price of a page that has caught up. A page that gets each change never reaches it. */
const CAUGHT_UP = 8_000;
/** Milliseconds from which a step has stalled: a look at the page, or the time between two changes of the market. */
const STALL = 1_000;
/** For how long a stall makes prices older: its own time, and that until the link has passed the queued changes. */
const STALL_AFTER = 30_000;

export async function prices(part) {
  if (!process.env.SINEWS_PRICES) return part.test.skip("no example of prices (cargo xtask browser builds it)");
  if (!findProgram("python3")) return part.test.skip("no python3 (apt-get install python3)");
  const example = launch(part.test, process.env.SINEWS_PRICES, ["127.0.0.1:0"]);
  await eventually(() => example.text).toMatch(/\/prices\n/);
  const market = await follow(part.test, example.text.trim());
  const link = launch(part.test, "python3", ["-u", join(ROOT, "dev/browser/link.py"), new URL(example.text).port]);
  await eventually(() => link.text).toMatch(/listening on \d+\n/);
  const page = await part.open(`http://127.0.0.1:${/\d+/.exec(link.text)[0]}/prices`);
  await part.check("a page with 1,000 keys on a phone's link shows no outdated price and stays connected", async () => {
    const [opened, looks, cells] = [Date.now(), stalls(), page.locator("#prices span")];
    // The prices of the snapshot are as old as its transfer; then the page catches up.
    for (let begin; !begin || Date.now() - begin < WATCHED; await pause(POLL)) {
      const shown = await cells.evaluateAll((all) => all.map((cell) => [cell.title, cell.textContent]));
      const { age, what } = await market.oldest(shown);
      looks.step(Date.now());
      const stalled = looks.recent() + market.stalls.recent();
      if (!begin && shown.length === PRICES && age <= CAUGHT_UP + stalled) begin = Date.now();
      if (!begin && Date.now() - opened < LOADED) continue;
      expect(shown).toHaveLength(PRICES);
      expect(age, `milliseconds since ${what} changed`).toBeLessThanOrEqual(stalled + (begin ? AGE_MAX : CAUGHT_UP));
    }
    // The market has made the changes that the page would have queued.
    expect(market.changes).toBeGreaterThan((20 * (WATCHED - market.stalls.recent())) / 1000);
    expect(link.text.match(/upgrade/g), "WebSockets that the page has opened").toHaveLength(1);
    await page.shows("#status", "open");
  });
  await part.examine("on the example page of keys", page);
}

/** Follows all changes of the prices, past the link. Returns when all prices are known. */
async function follow(test, page) {
  const end = new AbortController();
  test.after(() => end.abort());
  const url = new URL("/topics/prices/keys", page);
  const { body } = await fetch(url, { headers: { accept: "application/x-ndjson" }, signal: end.signal });
  /** The prices that each key has had, with the time of each. */
  const keys = new Map();
  const market = { changes: 0, stalls: stalls(), oldest };
  const atEnd = () => { /* The test has ended. */ };
  const lines = createInterface({ input: Readable.fromWeb(body).on("error", atEnd) }).on("error", atEnd);
  lines.on("line", (line) => {
    for (const { key, data } of JSON.parse(line).set ?? []) {
      keys.set(key, [...keys.get(key) ?? [], { at: data.at, price: data.price.toFixed(2) }]);
      market.changes += 1;
      market.stalls.step(data.at);
    }
  });
  /** How long ago another price has replaced this one: undefined if the key never had it. */
  const age = (key, price) => {
    const history = keys.get(key) ?? [];
    const index = history.findLastIndex((known) => known.price === price);
    return index < 0 ? undefined : Math.max(0, Date.now() - (history[index + 1]?.at ?? Infinity));
  };
  async function oldest(shown) {
    let oldest = { age: 0, what: "no price" };
    for (const [key, price] of shown) {
      if (age(key, price) === undefined) await eventually(() => age(key, price)).not.toBe(undefined);
      if (age(key, price) > oldest.age) oldest = { age: age(key, price), what: `the price ${price} of ${key}` };
    }
    return oldest;
  }
  await eventually(() => keys.size).toBe(PRICES);
  return market;
}

/** Times in which the machine has not run a process, in milliseconds. */
function stalls() {
  const found = [];
  let last = Infinity;
  return {
    step(at) {
      if (at - last > STALL) found.push({ end: at, length: at - last - POLL });
      last = at;
    },
    recent: () => found.reduce((sum, { end, length }) => sum + (Date.now() - end < STALL_AFTER ? length : 0), 0),
  };
}
