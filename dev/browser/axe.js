// The pages with axe-core: no violation of WCAG 2.2 A and AA, or of its best practices. None is wider than its device.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import { DESKTOP, PHONE, expect } from "./page.js";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Examines a state of a page on devices, light and dark, each after a preparation. */
export async function examine(page, prepare = () => {}, devices = [DESKTOP, PHONE]) {
  await page.onEach(devices, async (colorScheme, { width }) => {
    await prepare();
    const place = `${page.url()}, ${colorScheme}, ${width} px wide`;
    if (!await page.evaluate(() => "axe" in window)) await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
    const found = violations.map(({ id, impact, help, nodes }) =>
      `${id} (${impact}): ${help}: ${nodes.map(({ html }) => html).join(" | ")}`);
    expect(found, place).toEqual([]);
    await page.fitsWidth();
  });
}
