"""The packages for Node.js and Python in `bindings`: compiles them, and runs their tests. An interpreter that is missing is skipped."""

import argparse
import os
import re
import shutil
import sys

import common
import tools

BINDINGS = common.ROOT / "bindings"
# A workspace of its own has its own folder: other profiles and features would compile all again.
FOLDER = common.TARGET / "bindings"
ENVIRONMENT = {"CARGO_TARGET_DIR": str(FOLDER)}
# Seconds of a compilation with all optimizations, on a busy machine.
LIMIT = 30 * 60
# The oldest glibc of the packages' binaries, that of manylinux2014, and the linker for it.
GLIBC, LINKER = "2.17", ["ziglang>=0.13", "cargo-zigbuild>=0.20"]
# Packages of the Python tests, beside the wheel. The second list is for peers and loops that some systems have no wheels of.
PYTHON_TESTS = ["pytest>=8,<10"]
PYTHON_PEERS = ["websockets>=14", "picows>=1.12", "uvloop>=0.19"]
# Other programs with Node-API, and the oldest and the newest Node.js, from the npm registry.
RUNTIMES = ["bun@1", "deno@2"]
NODE_VERSIONS = ["node@18", "node@25"]


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
    run([program, "build.mjs", *(["--glibc", GLIBC] if zig else [])], "node-build", cwd=folder, env=zig)
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


def python():
    """Two environments: one compiles the wheel, and the wheel alone is installed into the other."""
    common.need("python3", "apt-get install python3 python3-venv")
    folder, builder = FOLDER / "python", tools.CACHE / "bindings/maturin"
    tools.once(builder, BINDINGS / "python/pyproject.toml", [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade",
               "--target", builder / "packages", "maturin>=1.9,<2"])
    shutil.rmtree(folder, ignore_errors=True)
    maturin, zig = [builder / "packages/bin/maturin", "build", "--release", "--locked", "--out", folder / "wheels"], linker()
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


PARTS = {"core": core, "node": node, "python": python}


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask bindings", description=__doc__)
    parser.add_argument("--only", help=f"parts to check, of {', '.join(PARTS)} [default: all]")
    options = parser.parse_args()
    for name in options.only.split(",") if options.only else PARTS:
        common.check(name, PARTS[name])
    common.finish()


main()
