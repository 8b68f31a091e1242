// Runs the tests: `SINEWS=path/to/sinews npm test`. Node.js before 22 has the standard WebSocket behind a flag.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";

const folder = new URL(".", import.meta.url);
const tests = readdirSync(folder).filter((name) => name.endsWith(".test.js")).map((name) => new URL(name, folder).pathname);
const flags = globalThis.WebSocket ? [] : ["--experimental-websocket"];
const { status } = spawnSync(process.execPath, [...flags, "--test", ...process.argv.slice(2), ...tests], { stdio: "inherit" });
process.exit(status ?? 1);
