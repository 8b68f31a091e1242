// Runs the tests of a folder, by default this one: `SINEWS=path/to/sinews npm test`. Node.js before 22 has the standard WebSocket behind a flag.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const [first, ...others] = process.argv.slice(2);
const [folder, options] = first?.startsWith("-") === false ? [resolve(first), others] : [fileURLToPath(new URL(".", import.meta.url)), process.argv.slice(2)];
const tests = readdirSync(folder).filter((name) => name.endsWith(".test.js")).map((name) => join(folder, name));
const flags = globalThis.WebSocket ? [] : ["--experimental-websocket"];
const { status } = spawnSync(process.execPath, [...flags, "--test", ...options, ...tests], { stdio: "inherit" });
process.exit(status ?? 1);
