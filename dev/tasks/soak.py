"""All client behavior against the server on each backend, at once and for long, without leaks or wrong results."""

import argparse
import re
import subprocess
import time

import common
import servers
import tools

# The profile of programs under checks of speed and memory.
PROFILE = "checks"


def build(program, *arguments):
    common.run([common.CARGO, "build", "--profile", PROFILE, "--bin", program, *arguments], f"build-{program}")
    return common.TARGET / PROFILE / program


def binary(options):
    """The given program, or `sinews` for checks of speed and memory."""
    return options.binary.resolve(strict=True) if options.binary else build("sinews", "--features", "sinews-cli/http3")


def counts_in(line):
    """The counts in the last line of a program, `None` in other lines."""
    found = re.search(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?", line)
    return [int(count or 0) for count in found.groups()] if found else None


def show(command):
    """Runs a program that ends with its counts, and prints its output meanwhile."""
    counts = [0, 0, 0]
    with subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout:
            print(line, end="", flush=True)
            counts = counts_in(line) or counts
    common.add(counts)
    if program.returncode != 0 and not counts[1]:
        raise common.Fault(f"exit status {program.returncode}")


def run(options):
    seconds = options.minutes * 60 if options.seconds is None else options.seconds
    program, server = build("sinews-soak", "--package", "sinews-soak"), binary(options)
    for backend in servers.backends(options, server):
        command = [program, server, "--backend", backend, "--seconds", seconds, "--seed", options.seed]
        tools.attempt(backend, show, [*command, "--logs", common.TARGET / "xtask/soak"])


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask soak", description=__doc__)
    servers.add_options(parser)
    duration = parser.add_mutually_exclusive_group()
    duration.add_argument("--minutes", type=int, default=10, metavar="N", help="minutes of load on each backend [default: 10]")
    duration.add_argument("--seconds", type=int, metavar="N", help="seconds of load on each backend")
    parser.add_argument("--seed", type=int, default=int(time.time()), metavar="N", help="seed of all randomness [default: the clock]")
    tools.attempt("soak", run, parser.parse_args())
    common.finish()


assert counts_in("7 passed, 1 failed") == [7, 1, 0] and counts_in("all 7 passed") is None
assert counts_in("poll: 7 passed, 1 failed, 2 skipped") == [7, 1, 2]
if __name__ == "__main__":
    main()
