"""Shared by the tasks of this folder, which `cargo xtask` calls: commands with logs and time limits, and counts of checks."""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
# The cargo that runs the task, so that one toolchain does everything.
CARGO = os.environ.get("CARGO", "cargo")
# Seconds of any one command. The longest need nine minutes beside other steps; a hanging command is killed.
COMMAND_LIMIT = 40 * 60
# Lines of a failed command's output that are printed.
TAIL_LINES = 40
# Ports of servers that do not choose their own; tests of the program use those above.
PORTS = range(5_000, 12_000)
NEXT_PORT = itertools.islice(itertools.cycle(PORTS), os.getpid() * 61 % len(PORTS), None)
COUNTS = {"passed": 0, "failed": 0, "skipped": 0}


class Fault(Exception):
    """A check has failed; the status and the output of the command, if it was one."""

    def __init__(self, why, status=None, output=""):
        super().__init__(why)
        self.status, self.output = status, output


class Missing(Exception):
    """A tool is missing: no fault of this repository."""


def need(tool, remedy):
    """The path of a program, or of the first that is found."""
    names = [tool] if isinstance(tool, str) else tool
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise Missing(f"no {names[0]} ({remedy})")
    return found


def log(name):
    return TARGET / "xtask" / f"{name}.log"


def run(command, name, limit=COMMAND_LIMIT, env=None, cwd=ROOT):
    """Runs a command whose output goes to a log, and returns the output. A fault names the last lines."""
    path, started = log(name), time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as output:
        program = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd,
            env={**os.environ, **(env or {})}, start_new_session=True,
        )
        try:
            how = f"exit status {program.wait(limit)}"
        except subprocess.TimeoutExpired:
            how = f"not done within {limit} s"
        finally:
            # Also at an interrupt: nothing outlives the task.
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
    text = path.read_text("utf-8", "replace")
    record(pathlib.Path(name).name, time.monotonic() - started, text)
    if program.returncode != 0:
        tail = "\n".join(text.splitlines()[-TAIL_LINES:])
        raise Fault(f"{name}: {how}, see {path}\n{tail}", program.returncode, text)
    return text


def record(name, seconds, text):
    """Adds the time of a command, and of its compilation, to those of the step."""
    step = os.environ.get("XTASK_STEP")
    if step is None or seconds < 1:
        return
    compiled = re.search(r"^ *Finished .* in (?:(\d+)m )?([\d.]+)s$", text, re.MULTILINE)
    with open(TARGET / "xtask/times.tsv", "a") as file:
        if compiled:
            duration = int(compiled[1] or 0) * 60 + float(compiled[2])
            file.write(f"{step}\tcompile {name}\t{duration:.1f}\t-\n" if duration >= 1 else "")
        file.write(f"{step}\t{name}\t{seconds:.1f}\t-\n")


def output_of(*command, cwd=ROOT):
    """The output of a command, without the end of its last line; `None` if the command fails."""
    try:
        done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, cwd=cwd)
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace").rstrip() if done.returncode == 0 else None


def free_port():
    """A port that was free a moment ago. It is not one of those that the system chooses: a connection that tries whether a server
    listens could otherwise get this port, and connect to itself."""
    for _ in PORTS:
        port = next(NEXT_PORT)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise Fault(f"no port from {PORTS.start} to {PORTS.stop} is free")


def count(kind, line):
    COUNTS[kind] += 1
    print(line, flush=True)


def check(name, function, *arguments):
    """Runs a check, and prints and counts its end. Returns whether it has passed."""
    try:
        function(*arguments)
    except Missing as missing:
        count("skipped", f"skipped: {name}: {missing}")
    except (Fault, OSError, AssertionError) as fault:
        count("failed", f"FAIL {name}: {fault}")
    else:
        count("passed", f"ok {name}")
        return True
    return False


def tests_in(text):
    """Passed, failed and ignored tests in the output of cargo."""
    results = re.findall(r"^test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored", text, re.MULTILINE)
    return [sum(map(int, column)) for column in zip(*results)] or [0, 0, 0]


def add(counts):
    for kind, number in zip(COUNTS, counts):
        COUNTS[kind] += number


def finish():
    """Prints the counts, and ends the task."""
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**COUNTS))
    sys.exit(1 if COUNTS["failed"] else 0)
