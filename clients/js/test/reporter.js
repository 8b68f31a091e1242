// A line for each test, as `cargo xtask interop` counts them: `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.
export default async function* report(events) {
  for await (const { type, data } of events) {
    // Files are tests, too, and those that pass check nothing themselves.
    const isFile = data?.name?.endsWith(".test.js");
    if (type === "test:pass" && data.skip !== undefined) yield `skipped ${data.name}: ${data.skip}\n`;
    else if (type === "test:pass" && !isFile) yield `ok ${data.name}\n`;
    else if (type === "test:fail") yield `FAIL ${data.name}: ${data.details.error.cause?.stack ?? data.details.error.message}\n`;
  }
}
