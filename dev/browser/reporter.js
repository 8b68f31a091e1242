// A line for each check, as `cargo xtask browser` counts them: `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.
const isCheck = ({ nesting }) => nesting === 2;

export default async function* report(events) {
  for await (const { type, data } of events) {
    const name = data?.name;
    if (type === "test:pass" && data.skip !== undefined) yield `skipped ${name}: ${data.skip}\n`;
    else if (type === "test:pass" && isCheck(data)) yield `ok ${name} (${Math.round(data.details.duration_ms)} ms)\n`;
    else if (type === "test:fail") {
      const error = data.details.error;
      // A part fails with its checks, which have lines of their own.
      if (isCheck(data) || error.failureType !== "subtestsFailed") yield `FAIL ${name}: ${reason(error)}\n`;
    }
  }
}

/** The message without colors, in one paragraph, and where it was thrown. */
function reason({ message, cause }) {
  const text = String(cause?.stack ?? cause?.message ?? message).replace(/\x1b\[\d*m/g, "");
  return text.split("\n").filter((line) => !line.includes("node:internal") && !line.includes("node_modules")).join("\n  ");
}
