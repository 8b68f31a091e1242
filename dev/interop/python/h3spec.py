"""The cases of h3spec against a server: h3spec.py JARS HOST:PORT

JARS is the folder with the jar that has h3spec as a program for Linux on x86-64. Prints `ok NAME`, `skipped NAME: why` or
`FAIL NAME: why` for each case.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

PROGRAM = "h3spec/h3spec-linux-x86_64"
LIMIT_SECONDS = 120
# The client needs a ticket with early data, which the server does not give.
EARLY_DATA = "CRYPTO in 0-RTT"
# The number of the cases: a run that ends early has fewer.
CASES = 45
# A case ends with a timeout after 2 s, which no option changes, and sometimes at once on a busy machine. A fault of the
# server fails each time.
ATTEMPTS = 3
CASE = re.compile(r"^  (MUST .*?)( FAILED \[\d+\])?$", re.MULTILINE)


def passes_alone(command, name):
    """Whether a case passes in one of the further attempts."""
    for _ in range(ATTEMPTS - 1):
        run = subprocess.run([*command, "--match", name], capture_output=True, text=True, timeout=LIMIT_SECONDS)
        if CASE.findall(run.stdout) == [(name, "")]:
            return True
    return False


def main(jars, address):
    jar = next(pathlib.Path(jars).glob("netty-incubator-h3spec-*.jar"))
    host, _, port = address.rpartition(":")
    with tempfile.TemporaryDirectory() as directory:
        program = zipfile.ZipFile(jar).extract(PROGRAM, directory)
        pathlib.Path(program).chmod(0o755)
        command = [program, host, port]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        except OSError as error:
            print(f"skipped h3spec: the program does not run here: {error}")
            return 0
        cases = CASE.findall(run.stdout)
        failed = [
            name for name, failure in cases if failure and EARLY_DATA not in name and not passes_alone(command, name)
        ]
    if "error while loading shared libraries" in run.stderr:
        print(f"skipped h3spec: {run.stderr.strip()}")
        return 0
    for name, _ in cases:
        if EARLY_DATA in name:
            print(f"skipped {name}: the server accepts no early data")
        else:
            print(f"FAIL {name}: see h3spec --match" if name in failed else f"ok {name}")
    if len(cases) != CASES:
        print(f"FAIL cases: {len(cases)} of {CASES}: {run.stdout[-300:]} {run.stderr[-300:]}")
    return 1 if failed or len(cases) != CASES else 0


sys.exit(main(*sys.argv[1:]))
