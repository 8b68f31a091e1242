"""Calls `dev/autobahn/run.py`: the cases of the Autobahn suite against one server or client."""

import re
import sys

import common

LOGS = "autobahn"
# Seconds of all cases against one subject; each section has a limit in the script. With the suite's own 1,000 messages.
LIMIT, LIMIT_FULL = common.COMMAND_LIMIT, 12 * 60 * 60


def suite(log, *subject, cases="*", jobs=2, count=None, non_strict=()):
    """Calls the suite's script. Returns its output, and the counts in the last line. `count` limits the messages in each case of
    sections 12 and 13. The verdict NON-STRICT is correct in the cases of `non_strict`."""
    command = [sys.executable, "-B", common.ROOT / "dev/autobahn/run.py", "--cases", cases, "--jobs", jobs]
    command += ["--non-strict", ",".join(non_strict)]
    if count is not None:
        command += ["--count", count]
    try:
        output = common.run([*command, *subject], log, LIMIT_FULL if count is None else LIMIT)
    except common.Fault as fault:
        output = fault.output
        if not re.search(r"[1-9]\d* failed", output):
            raise
    counts = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", output, re.MULTILINE)
    return output, list(map(int, counts[-1])) if counts else [0, 1, 0]


def against(name, *subject, **settings):
    """Runs the cases against `--url URL` or `--program COMMAND`, prints the tables, and counts the cases."""
    reports = common.TARGET / "xtask" / LOGS / f"{name}-reports"
    output, counts = suite(f"{LOGS}/{name}", "--out", reports, *subject, **settings)
    common.add(counts)
    print(output, end="", flush=True)
