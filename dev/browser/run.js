// Runs the checks: `SINEWS=path/to/sinews node run.js [PART]...`, by default all but the pictures. Prints `ok NAME`,
// `skipped NAME: why` or `FAIL NAME: why`. These variables are optional, and without the first two their parts are skipped:
//
//   SINEWS_CERTIFICATE   folder with `certificate.pem` and `key.pem` for 127.0.0.1: the part http2
//   SINEWS_PRICES        the example `keys` of the hub: the part prices, and a check of axe
//   SINEWS_PICTURES      folder for the part pictures
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

import { FLAGS } from "../../examples/testing/programs.js";

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const options = [...FLAGS, "--test", `--test-reporter=${here("reporter.js")}`];
const env = { ...process.env, SINEWS_PARTS: process.argv.slice(2).join(",") };
const { status } = spawnSync(process.execPath, [...options, here("parts.js")], { env, stdio: "inherit" });
process.exit(status ?? 1);
