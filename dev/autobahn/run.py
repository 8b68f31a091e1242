"""The Autobahn suite against a server or a client of WebSocket: installation, runs in shards, and stricter verdicts than its own.

Prints a table of the sections, each fault, and `N passed, M failed, K skipped`. `cargo xtask conformance` calls it.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import glob
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

# All cases of the frozen version: a run with fewer cases is incomplete.
ALL_CASES = 517
# Seconds of an installation from nothing, 33 packages, one of them compiled; and until the suite listens.
INSTALL_LIMIT, START_LIMIT = 600, 60
# Seconds of one section with few messages in each case of sections 12 and 13; and with the suite's own 1,000 messages, up to 480 s
# in each of 18 cases.
SECTION_LIMIT, SECTION_LIMIT_FULL = 600, 3600
# Name of the subject in the reports. Otherwise the suite's client would ask the server for it.
AGENT = "sinews"
# The three cases that the suite records without a verdict: a peer may do either thing.
INFORMATIONAL = ("7.1.6", "7.13.1", "7.13.2")
VERDICTS = ("OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED")
SECTIONS = {1: "Framing", 2: "Pings and pongs", 3: "Reserved bits", 4: "Opcodes", 5: "Fragmentation", 6: "UTF-8", 7: "Close handshake",
            9: "Limits, speed", 10: "Auto-fragmentation", 12: "Deflate, payloads", 13: "Deflate, parameters"}
# Held from the search for a port until the suite listens there.
PORTS = threading.Lock()
HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(HERE, "../../.cache/autobahn")

# Result of one case. `error_codes` are the right ones, in a case where the peer has to fail the connection.
Case = collections.namedtuple("Case", "behavior behavior_close code seconds error_codes")


def find_python():
    """Returns the interpreter in `AB_PY27`, pyenv's, or the system's."""
    if "AB_PY27" in os.environ:
        return os.environ["AB_PY27"] if os.path.isfile(os.environ["AB_PY27"]) else None
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    installed = glob.glob(pyenv + "/versions/*/bin/python2.7")
    usual = ["/usr/bin/python2.7", "/usr/local/bin/python2.7"]
    return next((path for path in installed + usual if os.path.isfile(path)), None)


def read(path):
    """The text of a file; empty if there is none."""
    return Path(path).read_text("utf-8", "replace") if os.path.isfile(path) else ""


def run(command, log, limit, **options):
    """Runs a command that must succeed; its output goes to a log."""
    with open(log, "w") as output:
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=limit, **options
            ).returncode
        except subprocess.TimeoutExpired:
            status = "not done within %d s" % limit
    if status != 0:
        raise RuntimeError("%s, see %s\n%s" % (status, log, "\n".join(read(log).splitlines()[-40:])))


def install(interpreter):
    """Installs the frozen set of packages. A finished installation of the same set is used as it is."""
    requirements = os.path.join(HERE, "requirements-py27.txt")
    wanted, stamp = interpreter + "\n" + read(requirements), CACHE + "/installed"
    python = CACHE + "/venv/bin/python"
    if os.path.isfile(python) and read(stamp) == wanted:
        return python
    print("installing the suite into", CACHE, flush=True)
    shutil.rmtree(CACHE, ignore_errors=True)
    os.makedirs(CACHE)
    pip = ["-m", "pip", "--disable-pip-version-check", "install"]
    # This interpreter has no venv module; the last virtualenv with support for it is pinned.
    boot = CACHE + "/boot"
    packages = [interpreter] + pip + ["--target", boot, "virtualenv==20.15.1"]
    run(packages, CACHE + "/virtualenv.log", INSTALL_LIMIT)
    venv = [interpreter, "-m", "virtualenv", "--no-download", CACHE + "/venv"]
    run(venv, CACHE + "/venv.log", INSTALL_LIMIT, env=dict(os.environ, PYTHONPATH=boot))
    run([python] + pip + ["--requirement", requirements], CACHE + "/packages.log", INSTALL_LIMIT)
    Path(stamp).write_text(wanted)
    return python


def numbers(case):
    return [int(part) for part in case.split(".")]


def shards(cases):
    """A shard for each section, or subsection of the long sections 12 and 13: a crash costs one shard, as the suite writes its report
    at its end. The last sections come first: they take longest."""
    found = collections.defaultdict(list)
    for case in cases:
        parts = numbers(case)
        found[tuple(parts[: 2 if parts[0] >= 12 else 1])].append(case)
    return [(".".join(map(str, key)), found[key]) for key in sorted(found, reverse=True)]


def free_address():
    # Not a port that the system chooses: an attempt to connect could get the same port, and reach itself.
    for number in range(7000):
        address = ("127.0.0.1", 5000 + (os.getpid() * 61 + number) % 7000)
        with socket.socket() as listener:
            try:
                listener.bind(address)
                return address
            except OSError:
                pass
    raise RuntimeError("no port is free")


def run_shard(python, name, cases, options):
    """Runs a shard; its reports go to a folder with its name. Returns the cases."""
    path = os.path.join(options.out, name)
    spec = {"outdir": path, "options": {}, "cases": cases, "exclude-cases": [], "exclude-agent-cases": {}}
    limit = SECTION_LIMIT_FULL if options.full else SECTION_LIMIT
    few = [] if options.full else ["--count", str(options.count)]
    suite = [python, "-B", os.path.join(HERE, "suite.py")]
    if options.url:
        spec["servers"] = [{"agent": AGENT, "url": options.url}]
        Path(path + ".json").write_text(json.dumps(spec))
        run(suite + ["client", path + ".json"] + few, path + ".log", limit)
        return read_reports(path)
    with PORTS:
        address = free_address()
        spec["url"] = "ws://%s:%d" % address
        Path(path + ".json").write_text(json.dumps(spec))
        server = start(suite + ["server", path + ".json"] + few, path + "-suite.log", address)
    try:
        # The program connects for each case, and requests the reports at its end.
        run(options.program + [spec["url"]], path + ".log", limit)
        if server.poll() is not None:
            raise RuntimeError("the suite has ended: %s" % server.returncode)
    finally:
        server.kill()
        server.wait()
    # The suite's exit status is always 0. It writes its report at the very end.
    return read_reports(path)


def start(command, log, address):
    """Starts a program, and waits until it listens."""
    with open(log, "w") as output:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    deadline = time.monotonic() + START_LIMIT
    while program.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(address, START_LIMIT).close()
            return program
        except OSError:
            time.sleep(0.02)
    program.kill()
    raise RuntimeError("the suite does not listen, see %s\n%s" % (log, read(log)))


def read_reports(folder):
    """Reads `index.json`, by agent and then by case, and the report of each case."""
    index = json.loads(read(folder + "/index.json") or "{}")
    if not index:
        raise RuntimeError("no report in %s" % folder)
    found = {}
    for entries in index.values():
        for name, entry in entries.items():
            close = json.loads(read(os.path.join(folder, entry["reportfile"]))).get("expectedClose")
            code, seconds = entry.get("remoteCloseCode"), entry["duration"] / 1000
            found[name] = Case(entry["behavior"], entry["behaviorClose"], code, seconds, error_codes(close))
    return found


def error_codes(close):
    """The right codes, if the connection must be failed: the suite then requires no clean close and a code other than 1000."""
    is_error = close and not close["requireClean"] and 1000 not in close["closeCode"]
    return close["closeCode"] if is_error else None


def fault(name, case, non_strict=()):
    """The fault of a case, `None` if it is correct. The verdict NON-STRICT is correct in the listed cases only.

    The suite's own verdict is not sufficient. `behavior` is OK for a peer that drops the connection without a Close frame after a
    fatal error. RFC 6455 section 7.1.7 discourages this, since the other side gets no reason. A protocol violation during the
    closing handshake shows up in `behaviorClose` only."""
    allowed = ("OK", "INFORMATIONAL") if name in INFORMATIONAL else ("OK",)
    if case.behavior not in allowed and (case.behavior, name in non_strict) != ("NON-STRICT", True):
        return "behavior " + case.behavior
    if case.behavior_close not in allowed:
        return "closing behavior " + case.behavior_close
    if case.error_codes and case.code not in case.error_codes:
        code = "no Close" if case.code is None else "Close %d" % case.code
        return "%s in place of %s" % (code, case.error_codes)
    return None


def judge(found, expected, non_strict=()):
    """Prints the table of the sections and each fault; `expected` lists all cases that had to run. Returns passes and failures."""
    heads = ("section", "cases") + VERDICTS + ("other", "right Close", "seconds")
    row = "{:<24} {:>6} {:>6} {:>10} {:>13} {:>13} {:>7} {:>12} {:>9}"
    print(row.format(*heads))
    for section, title in list(SECTIONS.items()) + [(None, "all")]:
        cases = [case for name, case in found.items() if section in (None, numbers(name)[0])]
        counts = [sum(case.behavior == verdict for case in cases) for verdict in VERDICTS]
        errors = [case for case in cases if case.error_codes]
        right = "%d/%d" % (sum(case.code in case.error_codes for case in errors), len(errors))
        name = title if section is None else "%d %s" % (section, title)
        seconds = int(sum(case.seconds for case in cases))
        if cases:
            rest = (len(cases) - sum(counts), right if errors else "-", seconds)
            print(row.format(name, len(cases), *counts, *rest))
    missing = [name for name in expected if name not in found]
    faults = {name: fault(name, found[name], non_strict) for name in expected if name in found}
    faults = {name: why for name, why in faults.items() if why}
    for name, why in faults.items():
        print("  %s: %s" % (name, why))
    if missing:
        print("  %d cases did not run, %s to %s" % (len(missing), missing[0], missing[-1]))
    failed = len(missing) + len(faults)
    return len(expected) - failed, failed


def check_judge():
    """The verdicts of made-up cases: each run shows that it can fail."""
    right = Case("OK", "OK", 1000, 1, None)
    assert fault("1.1.1", right) is None
    assert fault("7.1.6", right._replace(behavior="INFORMATIONAL", behavior_close="INFORMATIONAL")) is None
    assert fault("7.1.5", right._replace(behavior="INFORMATIONAL"))
    assert fault("3.2", right._replace(behavior="NON-STRICT"), ["3.2"]) is None
    assert fault("3.2", right._replace(behavior="FAILED"), ["3.2"])
    assert fault("3.2", right._replace(behavior_close="NON-STRICT"), ["3.2"])
    for verdict in VERDICTS[1:] + ("FAILED", "UNCLEAN", "missing"):
        assert fault("1.1.1", right._replace(behavior=verdict)), verdict
        assert fault("1.1.1", right._replace(behavior_close=verdict)), verdict
    assert fault("6.3.1", right._replace(error_codes=[1007])) == "Close 1000 in place of [1007]"
    assert fault("6.3.1", right._replace(code=None, error_codes=[1007])) == "no Close in place of [1007]"
    assert fault("6.3.1", right._replace(code=1007, error_codes=[1007])) is None
    assert error_codes({"requireClean": False, "closeCode": [1002]}) == [1002]
    assert error_codes({"requireClean": True, "closeCode": [1002]}) is None
    assert error_codes({"requireClean": False, "closeCode": [1000, 1002]}) is None
    with contextlib.redirect_stdout(io.StringIO()):
        assert judge({"1.1.1": right}, ["1.1.1", "1.1.2"]) == (1, 1)
    split = shards(["1.1.1", "1.2.8", "12.1.1", "12.1.2", "12.2.1"])
    assert [name for name, _ in split] == ["12.2", "12.1", "1"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="*")
    parser.add_argument("--count", type=int, help="messages in each case of sections 12 and 13")
    parser.add_argument("--non-strict", default="", help="cases in which the verdict NON-STRICT is correct, too")
    parser.add_argument("--jobs", type=int, default=2, help="sections run at the same time")
    parser.add_argument("--out", help="folder of the reports")
    parser.add_argument("--url", help="server to test")
    parser.add_argument("--program", nargs="+", help="client to test, which connects to the URL in its last argument")
    options = parser.parse_args()
    options.full = options.count is None
    check_judge()
    interpreter = find_python()
    why = "no CPython 2.7 (pyenv install 2.7.18, or set AB_PY27); the suite runs on nothing newer"
    try:
        python = interpreter and install(interpreter)
    except RuntimeError as error:
        python, why = None, "the suite could not be installed from PyPI: %s" % error
    if not python:
        return print("skipped: %s\n0 passed, 0 failed, 1 skipped" % why)
    listed = [python, "-B", os.path.join(HERE, "suite.py"), "list"] + options.cases.split(",")
    listed = subprocess.run(listed, stdout=subprocess.PIPE, encoding="utf-8")
    expected = listed.stdout.split()
    if listed.returncode or not expected:
        sys.exit("no such cases: " + options.cases)
    if options.cases == "*" and len(expected) != ALL_CASES:
        sys.exit("the suite has %d cases in place of %d" % (len(expected), ALL_CASES))
    if options.out is None:
        return print("%d passed, 0 failed, 0 skipped" % len(expected))
    shutil.rmtree(options.out, ignore_errors=True)
    os.makedirs(options.out)
    print("%d cases, %s" % (len(expected), options.url or " ".join(options.program)), flush=True)
    started, found, faults = time.monotonic(), {}, []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        work = [(name, pool.submit(run_shard, python, name, cases, options)) for name, cases in shards(expected)]
        for name, future in work:
            try:
                found.update(future.result())
            except Exception as error:
                # Its cases count as not run.
                faults.append("section %s: %s" % (name, error))
    passed, failed = judge(found, expected, options.non_strict.split(","))
    for why in faults:
        print("  " + why)
        failed = max(failed, 1)
    print("wall %.1f s; reports in %s" % (time.monotonic() - started, options.out))
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
