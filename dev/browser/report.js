// The page that `sinews bench --report` writes, opened from the file.
import { join } from "node:path";

import { DESKTOP, PHONE, expect } from "./page.js";
import { PROGRAM, run } from "./world.js";

export async function report(part) {
  const server = await part.serve();
  const file = join(part.folder(), "report.html");
  // Three seconds of echoes are enough for points of each chart on a busy machine. A URL may contain any characters.
  const load = ["--connections", "4", "--duration", "3s", "--warm-up", "0s", "--rate", "500"];
  const output = ["--pid", String(server.running.pid), "--json", "--quiet", "--report", file];
  const { stdout } = await run(PROGRAM, ["bench", ...load, ...output, server.socket("echo?_<b>&_\"'")]);
  const page = await part.open(`file://${file}`);
  await part.check("the page of a measurement makes no request", async () => {
    expect(await page.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => name))).toEqual([]);
    await expect(page.locator("script, link, iframe")).toHaveCount(0);
    expect(await page.seen("h1").innerText()).toMatch(/\/echo\?_<b>&_"'$/);
  });
  await part.check("each chart is present, with its curve inside of it", async () => {
    const charts = await figures(page);
    const captions = ["Latency by percentile", "Rate over time", "The server's memory over time"];
    expect(charts.map(({ caption }) => caption)).toEqual(captions);
    for (const { width, height, curve, points, labels, outside, caption } of charts) {
      const found = `${caption}: ${width} × ${height}, ${curve}, ${points}, ${labels}`;
      expect([width >= 600, width < 800, height >= 200, height < 400], found).not.toContain(false);
      expect([curve > 0.5, points >= 3, labels >= 6], found).not.toContain(false);
      expect(outside, caption).toEqual([]);
    }
  });
  await part.check("its table has the numbers of its JSON", async () => {
    const json = JSON.parse(await page.locator("pre").textContent());
    expect(json).toEqual(JSON.parse(stdout));
    const table = Object.fromEntries((await page.rows("table")).map((row) => row.split("|")));
    const meant = {
      "echoes, verified": json.messages, "connections open": json.connections_open,
      "sent": json.bytes_sent, "received": json.bytes_received,
      "connected within": json.connect_us.p50 * 1e3, "server's memory": json.server.memory_bytes,
    };
    for (const key of ["p50", "p75", "p90", "p95", "p99", "p99_9", "p99_99", "max"]) {
      meant[`latency ${key.replace("_", ".")}`] = json.latency_us[key] * 1e3;
    }
    for (const [row, value] of Object.entries(meant)) {
      // Three digits are shown.
      const difference = Math.abs(number(table[row]) - value);
      expect(difference, `${row}: ${table[row]} for ${value}`).toBeLessThanOrEqual(Math.abs(value) * 0.006);
    }
  });
  await part.check("it fits a desk and a phone, and can be read on both", async () => {
    for (const size of [{ ...DESKTOP, width: 1920 }, DESKTOP, PHONE, { ...PHONE, width: 320 }]) {
      await page.device(size);
      await page.fitsWidth();
      for (const { caption, letters } of await figures(page)) {
        expect(letters, `pixels of letters at ${size.width}: ${caption}`).toBeGreaterThanOrEqual(9);
      }
    }
  });
  await part.check("in dark mode it is dark, and its curves are visible", () => page.onEach([DESKTOP], async (mode) => {
    const [paper, ...ink] = await page.evaluate(() => [
      ["body", "backgroundColor"], ["td", "color"], ["svg text", "fill"], ['polyline[stroke="var(--line)"]', "stroke"],
    ].map(([selector, property]) => {
      const color = getComputedStyle(document.querySelector(selector))[property];
      const [red, green, blue] = color.match(/\d+/g).map(Number);
      return 0.3 * red + 0.6 * green + 0.1 * blue;
    }));
    expect(paper > 128, `${mode}: ${paper}`).toBe(mode === "light");
    expect(ink).toHaveLength(3);
    for (const one of ink) expect(Math.abs(one - paper), `${mode}: ${ink} on ${paper}`).toBeGreaterThan(90);
  }));
  await part.check("the console holds no error", () => expect(page.errors).toEqual([]));
}

/** What the figures show: `outside` are the parts that lie outside of their drawing. */
const figures = (page) => page.locator("figure").evaluateAll((all) => all.map((figure) => {
  const chart = figure.querySelector("svg");
  const box = chart.getBoundingClientRect();
  const isInside = ({ left, right, top, bottom }) =>
    left >= box.left - 1 && right <= box.right + 1 && top >= box.top - 1 && bottom <= box.bottom + 1;
  const curve = chart.querySelector('polyline[stroke="var(--line)"]');
  const texts = [...chart.querySelectorAll("text")];
  const size = (text) => parseFloat(getComputedStyle(text).fontSize) * box.width / chart.viewBox.baseVal.width;
  const outside = [...chart.querySelectorAll("*")].filter((part) => !isInside(part.getBoundingClientRect()));
  return {
    caption: figure.querySelector("figcaption").textContent,
    width: box.width, height: box.height,
    curve: curve ? curve.getBoundingClientRect().width / box.width : 0,
    points: curve?.points.length ?? 0, labels: texts.length,
    letters: Math.min(...texts.map(size)),
    outside: outside.map((part) => part.outerHTML),
  };
}));

const UNITS = { KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, "µs": 1e3, ms: 1e6, s: 1e9 };

/** A formatted number: of bytes, of nanoseconds, or without a unit. */
const number = (text) => parseFloat(text) * (UNITS[text.split(/[ (,]/)[1]] ?? 1);
