"""The packages for Node.js and Python in `bindings`: compiles them, and runs their tests, the Autobahn suite against each server and
client, and the test suites of the packages that they replace. An interpreter that is missing is skipped."""

import argparse
import os
import pathlib
import re
import shutil
import sys

import autobahn
import common
import tools
from servers import Server

BINDINGS = common.ROOT / "bindings"
# A workspace of its own has its own folder: other profiles and features would compile all again.
FOLDER = common.TARGET / "bindings"
ENVIRONMENT = {"CARGO_TARGET_DIR": str(FOLDER)}
# Compiles sooner than the profile of published packages.
PROFILE = "checks"
# Seconds of a compilation with all optimizations, on a busy machine.
LIMIT = 30 * 60
# The oldest glibc of the packages' binaries, that of manylinux2014, and the linker for it.
GLIBC, LINKER = "2.17", ["ziglang>=0.13", "cargo-zigbuild>=0.20"]
# Packages of the Python tests, beside the wheel. The second list is for peers and loops that some systems have no wheels of.
PYTHON_TESTS = ["pytest>=8,<10"]
PYTHON_PEERS = ["websockets>=14", "picows>=1.12", "uvloop>=0.19", "mypy>=1.18"]
# Other programs with Node-API, and the oldest and the newest Node.js, from the npm registry.
RUNTIMES = ["bun@1", "deno@2"]
NODE_VERSIONS = ["node@18", "node@25"]
# Test suites of the packages with the same API: the repository and its tag, and the variable with the path of a checkout.
WS = ("https://github.com/websockets/ws", "8.21.0", "WS_CHECKOUT")
WEBSOCKETS = ("https://github.com/python-websockets/websockets", "17.0.1", "WEBSOCKETS_CHECKOUT")
# Messages in each case of Autobahn's sections 12 and 13: the first cover all of the code.
AUTOBAHN_COUNT = 5
# In these cases a violation follows a message at once. If it arrives with the handshake's response, or in a later chunk than the message
# while the machine stalls, it may be answered before the message is: the suite permits this, and prefers an echo.
NON_STRICT = ["3.2", "3.3", "3.4", "4.1.3", "4.1.4", "4.1.5", "4.2.3", "4.2.4", "4.2.5", "5.15"]


def run(command, name, **options):
    return common.run(command, f"bindings/{name}", LIMIT, env=ENVIRONMENT | options.pop("env", {}), **options)


def core():
    cargo = [common.CARGO, "test", "--locked", "--package", "sinews-bindings", "--features", "server"]
    common.add(common.tests_in(run(cargo, "core", cwd=BINDINGS)))
    run([common.CARGO, "fmt", "--check"], "fmt", cwd=BINDINGS)
    run([common.CARGO, "clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"], "clippy", cwd=BINDINGS)


def node():
    program, folder = tools.need_node(), BINDINGS / "node"
    tools.npm_install(folder, tools.CACHE / "bindings/node", folder / "package-lock.json")
    zig = linker()
    portable = ["--glibc", GLIBC] if zig else []
    run([program, "build.mjs", *portable, "--profile", PROFILE], "node-build", cwd=folder, env=zig)
    if zig:
        binary, = folder.glob("sinews.linux-*-gnu.node")
        newest = max(map(int, re.findall(rb"GLIBC_2\.(\d+)", binary.read_bytes())))
        if newest > int(GLIBC[2:]):
            raise common.Fault(f"{binary.name} needs glibc 2.{newest}, later than {GLIBC}")
    tests = sorted(str(path.relative_to(folder)) for path in (folder / "test").glob("*.test.*"))
    found = [str(place) for place in map(runtime, RUNTIMES) if place]
    path = os.pathsep.join([*found, os.environ["PATH"]])
    others = [(f"node-{name[5:]}", place / "node") for name in NODE_VERSIONS if (place := runtime(name))]
    for name, program in [("node", program), *others]:
        text = run([program, "--test", "--test-reporter=tap", *tests], f"{name}-tests", cwd=folder, env={"PATH": path})
        common.add([int(re.search(rf"^# {kind} (\d+)$", text, re.MULTILINE)[1]) for kind in ("pass", "fail", "skipped")])
    suites(tools.need_node(), folder)


def linker():
    """The environment with a linker for older versions of glibc; empty, with a line that says so, without a network."""
    folder = tools.CACHE / "bindings/zig"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", folder / "packages", *LINKER]
    try:
        tools.once(folder, common.ROOT / "dev/tasks/bindings.py", install)
    except common.Missing:
        print(f"skipped: binaries for glibc {GLIBC}: pip cannot install {' and '.join(LINKER)}")
        return {}
    packages = folder / "packages"
    return {"PATH": f"{packages / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(packages)}


def runtime(package):
    """The folder with a program of the npm registry; `None`, with a line that says why, without a network."""
    folder = tools.CACHE / "bindings" / package
    install = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", package]
    try:
        tools.once(folder, common.ROOT / "dev/tasks/bindings.py", install)
    except common.Missing:
        print(f"skipped: tests with {package}: npm cannot install it")
        return None
    return folder / "node_modules/.bin"


def suites(program, folder):
    """The suites of others against the Node.js package."""
    common.check("suite of ws", lambda: replaced("node-suite", [program, folder / "suite.mjs", checkout(*WS)]))
    echo = [program, folder / "test/autobahn.mjs"]
    common.check("Autobahn, sinews/ws, server", server, "node-ws", [*echo, "ws"])
    common.check("Autobahn, sinews/ws, client", client, "node-ws-client", [*echo, "ws"])
    common.check("Autobahn, serve", server, "node-serve", [*echo, "serve"], NON_STRICT)


def checkout(url, tag, variable):
    """The folder of a repository at a tag: that of the variable, or a clone."""
    if variable in os.environ:
        return pathlib.Path(os.environ[variable])
    common.need("git", f"apt-get install git, or set {variable} to a checkout of {url}")
    folder = tools.CACHE / "bindings" / f"{url.rsplit('/', 1)[1]}-{tag}"
    if not (folder / "checkout").is_dir():
        clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, url, folder / "checkout"]
        tools.install(folder, "clone", clone, common.ROOT)
    return folder / "checkout"


def replaced(name, command):
    """Runs the test suite of a package with the same API, and counts its tests. Those that are known to fail are skipped."""
    counts = re.search(r"^passed (\d+), failed (\d+), skipped (\d+)$", run(command, name), re.MULTILINE)
    passed, known, skipped = map(int, counts.groups())
    common.add([passed, 0, known + skipped])


def server(name, command, non_strict=()):
    """Runs the Autobahn suite against an echo server."""
    with Server(command, f"bindings/{name}-server") as echo:
        autobahn.against(name, "--url", f"ws://{echo.address}", count=AUTOBAHN_COUNT, non_strict=non_strict)


def client(name, command, non_strict=()):
    """Runs the Autobahn suite against a client."""
    autobahn.against(name, "--program", *command, count=AUTOBAHN_COUNT, non_strict=non_strict)


def python():
    """Two environments: one compiles the wheel, and the wheel alone is installed into the other."""
    common.need("python3", "apt-get install python3 python3-venv")
    folder, builder = FOLDER / "python", tools.CACHE / "bindings/maturin"
    tools.once(builder, BINDINGS / "python/pyproject.toml", [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade",
               "--target", builder / "packages", "maturin>=1.9,<2"])
    shutil.rmtree(folder, ignore_errors=True)
    maturin, zig = [builder / "packages/bin/maturin", "build", "--profile", PROFILE, "--locked", "--out", folder / "wheels"], linker()
    portable = ["--zig", "--compatibility", "manylinux2014"] if zig else []
    run([*maturin, *portable], "python-build", cwd=BINDINGS / "python", env=zig)
    wheel, = (folder / "wheels").glob("*.whl")
    run([sys.executable, "-m", "venv", folder / "venv"], "python-venv")
    interpreter = folder / "venv/bin/python"
    install = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*install, wheel], "python-wheel")
    # Alone in an empty environment.
    run([interpreter, "-c", "import sinews, sinews.listener, sinews.websockets"], "python-import", cwd=folder)
    # Without a network, this and the next packages are missing tools.
    tools.install(folder, "pytest", [*install, *PYTHON_TESTS], common.ROOT)
    for peer in PYTHON_PEERS:
        try:
            tools.install(folder, "peer", [*install, "--only-binary", ":all:", peer], common.ROOT)
        except common.Missing:
            print(f"skipped: tests with {peer}: no wheel for this system")
    # Beside the checkout's modules, the installed wheel would not be tested.
    tests = shutil.copytree(BINDINGS / "python/tests", folder / "tests")
    pytest = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    text = run(pytest, "python-tests", cwd=folder, env={"SINEWS_WHEEL": str(wheel)})
    found = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped)", text.splitlines()[-1])}
    common.add([found.get(kind, 0) for kind in ("passed", "failed", "skipped")])
    for script in ("suite.py", "suite_known.py"):
        shutil.copy(BINDINGS / "python" / script, folder)
    common.check("suite of websockets", websockets_suite, interpreter, folder / "suite.py")
    echo = [interpreter, tests / "autobahn.py"]
    for face in ("websockets", "listener"):
        common.check(f"Autobahn, sinews.{face}, server", server, f"python-{face}", [*echo, face])
        allowed = NON_STRICT if face == "websockets" else []
        common.check(f"Autobahn, sinews.{face}, client", client, f"python-{face}-client", [*echo, face], allowed)
    common.check("Autobahn, sinews.Server", server, "python-server", [*echo, "server"], NON_STRICT)


def websockets_suite(interpreter, script):
    if sys.version_info < (3, 11):
        raise common.Missing("the suite needs Python 3.11")
    replaced("python-suite", [interpreter, script, checkout(*WEBSOCKETS)])


PARTS = {"core": core, "node": node, "python": python}


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask bindings", description=__doc__)
    parser.add_argument("--only", help=f"parts to check, of {', '.join(PARTS)} [default: all]")
    options = parser.parse_args()
    for name in options.only.split(",") if options.only else PARTS:
        common.check(name, PARTS[name])
    common.finish()


main()
