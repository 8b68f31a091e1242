// A line for each test without subtests, as `cargo xtask` counts them: `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.
export default async function* report(events) {
  // The nesting of the test before. A test is reported after its subtests.
  let former = 0;
  for await (const { type, data } of events) {
    if (type !== "test:pass" && type !== "test:fail") continue;
    const { name, nesting, skip, details: { error, duration_ms: duration } } = data;
    const hasSubtests = former > nesting;
    former = nesting;
    // Files are tests, too, and those that pass check nothing themselves.
    const isFile = name.endsWith(".test.js");
    if (type === "test:fail" && error.failureType !== "subtestsFailed") yield `FAIL ${name}: ${reason(error)}\n`;
    else if (skip !== undefined) yield `skipped ${name}: ${skip}\n`;
    else if (type === "test:pass" && !hasSubtests && !isFile) yield `ok ${name} (${Math.round(duration)} ms)\n`;
  }
}

/** The message without colors, in one paragraph, and where it was thrown. */
function reason({ message, cause }) {
  const lines = String(cause?.stack ?? cause?.message ?? message).replace(/\x1b\[\d*m/g, "").split("\n");
  return lines.filter((line) => !line.includes("node:internal") && !line.includes("node_modules")).join("\n  ");
}
