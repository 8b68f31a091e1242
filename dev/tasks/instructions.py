"""Instructions of the server for a message, delivery or request, counted by callgrind and compared with the recorded counts.

Counts do not depend on the load of the machine. Two runs of different lengths give the count of a round without the start. The
program runs on readiness: valgrind knows io_uring only in part. Both backends share all code above the loop.
"""

import argparse
import os
import platform
import re
import shutil

import common

# The profile of the workspace. Its options do not depend on the environment, but these variables change code in spite of it.
PROFILE = "instructions"
VARIABLES = ("RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS", "CARGO_INCREMENTAL")
RECORD = common.ROOT / "dev/xtask/instructions.txt"
HEAD = """# Instructions of the server: architecture, compiler, path, instructions for a message (echo, burst),
# a delivery (fan-out, wildcard, json, single) or a request (http, publish, event). Written by
# `cargo xtask instructions --bless`.
"""
# Code paths of the program, with the messages, deliveries or requests of one round.
PATHS = {"echo": 1, "burst": 16, "fan-out": 200, "wildcard": 800, "json": 200, "single": 1, "http": 16, "publish": 1, "event": 1}
# Rounds of the two runs.
SHORT, LONG = 100, 300
# The permitted growth, in percent.
GROWTH_MAX = 3
# Seconds of one run, which needs two to four, and on a busy machine minutes.
RUN_LIMIT = 600


def instructions(program, path, rounds):
    """Runs the program under callgrind. Returns the instructions of all threads but the first, which is the client."""
    name = f"instructions/{path}-{rounds}"
    folder = common.TARGET / "xtask" / name
    # Files of an earlier run, which may have had more threads.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    callgrind = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={folder}/out"]
    common.run(callgrind + [program, path, "poll", rounds], name, RUN_LIMIT)
    totals = [total(file.read_text()) for file in folder.iterdir() if is_server(file.name)]
    if not totals:
        raise common.Fault(f"{name}: callgrind wrote no totals")
    return sum(totals)


def is_server(name):
    """Callgrind numbers the threads, which end the names of its files."""
    return "-" in name and not name.endswith("-01")


def total(text):
    found = re.search(r"^totals: *(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def verdict(before, now):
    """The kind of count, and what is said of it."""
    if before is None:
        return "skipped", "skipped: no count of this architecture and compiler:"
    growth = (now / before - 1) * 100
    if growth > GROWTH_MAX:
        return "failed", "FAIL"
    is_less = growth < -GROWTH_MAX
    return "passed", "ok, record it with `cargo xtask instructions --bless`:" if is_less else "ok"


def check_verdicts():
    """Made-up counts: each run shows that it can fail."""
    assert [verdict(before, now)[0] for before, now in ((1000, 1029), (1000, 1031), (1000, 960), (None, 960))] \
        == ["passed", "failed", "passed", "skipped"]
    assert "--bless" in verdict(1000, 960)[1]
    assert is_server("out-02") and not is_server("out-01") and not is_server("out")
    assert total("events: Ir\nfn=(1)\ntotals: 4135\n") == 4135 and total("events: Ir\n") == 0


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask instructions", description=__doc__)
    parser.add_argument("--bless", action="store_true", help="write the counts of this machine's architecture and "
                        "compiler anew, after an intended change")
    options = parser.parse_args()
    check_verdicts()
    if not shutil.which("valgrind"):
        common.count("skipped", "skipped: no valgrind (apt-get install valgrind)")
        common.finish()
    machine, compiler = platform.machine(), common.output_of("rustc", "--version").split()[1]
    for name in VARIABLES:
        os.environ.pop(name, None)
    build = [common.CARGO, "build", "--package", "sinews-instructions", "--profile", PROFILE]
    common.run(build, "instructions-build")
    program = common.TARGET / PROFILE / "sinews-instructions"
    measured = {}
    for path, items in PATHS.items():
        rounds = instructions(program, path, LONG) - instructions(program, path, SHORT)
        measured[path] = rounds / ((LONG - SHORT) * items)
    lines = [line.split() for line in RECORD.read_text().splitlines() if not line.startswith("#")]
    record = {(arch, version, path): float(now) for arch, version, path, now in lines}
    if options.bless:
        # Counts of an earlier compiler are of no use.
        record = {key: now for key, now in record.items() if key[0] != machine}
        record.update({(machine, compiler, path): now for path, now in measured.items()})
        RECORD.write_text(HEAD + "".join(f"{' '.join(key)} {now:.1f}\n" for key, now in sorted(record.items())))
    for path, now in measured.items():
        before = record.get((machine, compiler, path))
        kind, words = verdict(before, now)
        change = f", {before:.1f} recorded, {(now / before - 1) * 100:+.1f} %" if before else ""
        common.count(kind, f"{words} {path}: {now:.1f} instructions{change}")
    common.finish()


main()
