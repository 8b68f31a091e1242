// The page that `sinews bench --report` writes, opened from the file.
import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { PROGRAM, device, expect, fitsWidth, run, seen } from "./world.js";

export async function report(part) {
  const server = await part.serve();
  const file = join(part.folder(), "report.html");
  // Three seconds of echoes are enough for points of each chart on a busy machine. A URL may contain any characters.
  const load = ["--connections", "4", "--duration", "3s", "--warm-up", "0s", "--rate", "500", "--pid", String(server.pid)];
  const bench = ["bench", ...load, "--json", "--quiet", "--report", file, server.socket("echo?_<b>&_\"'")];
  const { stdout } = await run(PROGRAM, bench);
  const printed = JSON.parse(stdout);
  const page = await part.open(pathToFileURL(file).href);
  await part.check("the page of a measurement makes no request", async () => {
    expect(await page.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => name))).toEqual([]);
    await expect(page.locator("script, link, iframe")).toHaveCount(0);
    expect(await seen(page, "h1").innerText()).toMatch(/\/echo\?_<b>&_"'$/);
  });
  await part.check("each chart is present, with its curve inside of it", async () => {
    const charts = await figures(page);
    expect(charts.map(({ caption }) => caption)).toEqual(["Latency by percentile", "Rate over time", "The server's memory over time"]);
    for (const { width, height, curve, points, labels, outside, caption } of charts) {
      expect([width >= 600, width < 800, height >= 200, height < 400], `${caption}: ${width} × ${height}`).not.toContain(false);
      expect([curve > 0.5, points >= 3, labels >= 6], `${caption}: ${curve}, ${points}, ${labels}`).not.toContain(false);
      expect(outside, caption).toEqual([]);
    }
  });
  await part.check("its table has the numbers of its JSON", async () => {
    const json = JSON.parse(await page.locator("pre").textContent());
    expect(json).toEqual(printed);
    const table = Object.fromEntries(await page.locator("tr").evaluateAll((all) =>
      all.map((row) => [row.querySelector("th").textContent, row.querySelector("td").textContent])));
    const latency = json.latency_us;
    const rows = {
      "echoes, verified": json.messages, "connections open": json.connections_open,
      "sent": json.bytes_sent, "received": json.bytes_received,
      "connected within": json.connect_us.p50 * 1e3, "server's memory": json.server.memory_bytes,
      "latency p50": latency.p50 * 1e3, "latency p75": latency.p75 * 1e3, "latency p90": latency.p90 * 1e3,
      "latency p95": latency.p95 * 1e3, "latency p99": latency.p99 * 1e3, "latency p99.9": latency.p99_9 * 1e3,
      "latency p99.99": latency.p99_99 * 1e3, "latency max": latency.max * 1e3,
    };
    for (const [row, meant] of Object.entries(rows)) {
      // Three digits are shown.
      expect(Math.abs(number(table[row]) - meant), `${row}: ${table[row]} for ${meant}`).toBeLessThanOrEqual(Math.abs(meant) * 0.006);
    }
  });
  await part.check("it fits a desk and a phone, and can be read on both", async () => {
    for (const [width, mobile] of [[1920, false], [1180, false], [390, true], [320, true]]) {
      await device(page, { width, height: 844, mobile });
      await fitsWidth(page);
      for (const { caption, letters } of await figures(page)) {
        expect(letters, `pixels of letters at ${width}: ${caption}`).toBeGreaterThanOrEqual(9);
      }
    }
    await device(page, { width: 1180, height: 760 });
  });
  await part.check("in dark mode it is dark, and its curves are visible", async () => {
    for (const colorScheme of ["dark", "light"]) {
      await page.emulateMedia({ colorScheme });
      const [paper, ...ink] = await page.evaluate(() => {
        /** From 0 to 255. */
        const brightness = (selector, property) => {
          const [red, green, blue] = getComputedStyle(document.querySelector(selector))[property].match(/\d+/g).map(Number);
          return 0.3 * red + 0.6 * green + 0.1 * blue;
        };
        return [
          brightness("body", "backgroundColor"), brightness("td", "color"), brightness("svg text", "fill"),
          brightness('svg polyline[stroke="var(--line)"]', "stroke"),
        ];
      });
      expect(paper > 128, `${colorScheme}: ${paper}`).toBe(colorScheme === "light");
      expect(ink).toHaveLength(3);
      for (const one of ink) expect(Math.abs(one - paper), `${colorScheme}: ${ink} on ${paper}`).toBeGreaterThan(90);
    }
  });
  await part.check("the console holds no error", () => expect(page.errors).toEqual([]));
}

/** What the figures show: `outside` are the parts that lie outside of their drawing. */
const figures = (page) => page.locator("figure").evaluateAll((all) => all.map((figure) => {
  const chart = figure.querySelector("svg");
  const box = chart.getBoundingClientRect();
  const isInside = ({ left, right, top, bottom }) =>
    left >= box.left - 1 && right <= box.right + 1 && top >= box.top - 1 && bottom <= box.bottom + 1;
  const curve = [...chart.querySelectorAll("polyline")].find((line) => line.getAttribute("stroke") === "var(--line)");
  const texts = [...chart.querySelectorAll("text")];
  const size = (text) => parseFloat(getComputedStyle(text).fontSize) * box.width / chart.viewBox.baseVal.width;
  return {
    caption: figure.querySelector("figcaption").textContent,
    width: box.width,
    height: box.height,
    curve: curve ? curve.getBoundingClientRect().width / box.width : 0,
    points: curve?.points.length ?? 0,
    labels: texts.length,
    letters: Math.min(...texts.map(size)),
    outside: [...chart.querySelectorAll("*")].filter((part) => !isInside(part.getBoundingClientRect())).map((part) => part.outerHTML),
  };
}));

const UNITS = { KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, "µs": 1e3, ms: 1e6, s: 1e9 };

/** A formatted number: of bytes, of nanoseconds, or without a unit. */
function number(text) {
  const [value, unit] = text.split(/[ (,]/);
  return parseFloat(value) * (UNITS[unit] ?? 1);
}
