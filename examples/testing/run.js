// Runs a test file of a tutorial: `SINEWS=path/to/sinews npm test`. Prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

import { FLAGS } from "./programs.js";

const reporter = fileURLToPath(new URL("../../clients/js/test/reporter.js", import.meta.url));
const options = [...FLAGS, "--test", `--test-reporter=${reporter}`];
const { status } = spawnSync(process.execPath, [...options, ...process.argv.slice(2)], { stdio: "inherit" });
process.exit(status ?? 1);
