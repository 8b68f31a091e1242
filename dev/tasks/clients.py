"""The clients in `clients/`: the cases for all of them, and the package for Python."""

import shutil
import sys

import common
import tools
from common import ROOT

PYTHON = ROOT / "clients/python"
# Versions of tools that build packages and check types. The package itself has no build of its own.
BUILD = ("build==1.6.1",)
CHECKERS = ("mypy==2.4.1",)
# Seconds of one command.
LIMIT = 20 * 60


def environment(folder, *packages):
    """An empty virtual environment with packages; returns its interpreter."""
    common.need("python3", "apt-get install python3 python3-venv")
    shutil.rmtree(folder, ignore_errors=True)
    common.run([sys.executable, "-m", "venv", folder], "clients-venv", LIMIT)
    interpreter = folder / "bin/python"
    if packages:
        tools.install(folder, "pip", [interpreter, "-m", "pip", "install", "--quiet", *packages], ROOT)
    return interpreter


def pack_python(folder):
    """Builds the archive and the wheel, and installs the wheel into an empty environment, as a user does."""
    source, work = common.TARGET / "xtask/dist-python", common.TARGET / "xtask/dist-python-venv"
    # The build writes into its folder.
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(PYTHON, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    for old in folder.glob("sinews_client-*"):
        old.unlink()
    builder = environment(work, *BUILD)
    common.run([builder, "-m", "build", "--outdir", folder, source], "dist-python-build", LIMIT)
    [wheel] = folder.glob("sinews_client-*-py3-none-any.whl")
    [_] = folder.glob("sinews_client-*.tar.gz")
    interpreter = environment(work, wheel, *CHECKERS)
    # A user's program is checked with the types of the installed package.
    program = source / "program.py"
    program.write_text((PYTHON / "README.md").read_text().split("```python\n")[1].split("```")[0])
    common.run([interpreter, "-m", "mypy", "--strict", program], "dist-python-types", LIMIT, cwd=work)


def check_python(program, backend, log):
    """The checks of the package against the program, from its installed wheel."""
    folder = common.TARGET / "xtask/client-python"
    interpreter = environment(folder, PYTHON, *CHECKERS)
    for built in ("build", "src/sinews_client.egg-info"):
        shutil.rmtree(PYTHON / built, ignore_errors=True)
    types = [interpreter, "-m", "mypy", "--strict", "--cache-dir", folder / "mypy", "src", "tests"]
    common.run(types, f"{log}/types", LIMIT, {"MYPYPATH": "src"}, PYTHON)
    check = tools.Command([interpreter, "-B", "tests/check.py"], PYTHON)
    check.run_checks("client-python", f"{log}/client", SINEWS=str(program), SINEWS_BACKEND=backend)


def check_cases():
    """The adapters of the clients for JavaScript and Python answer the cases."""
    driver = tools.python(ROOT / "clients/cases/run.py")
    node = [tools.need_node(), "--experimental-websocket", "--no-warnings"]
    packages = driver.env["PYTHONPATH"]
    adapters = {
        "js": ([*node, ROOT / "clients/js/test/adapter.js"], packages),
        "python": ([sys.executable, "-B", PYTHON / "tests/adapter.py"], f"{packages}:{PYTHON / 'src'}"),
    }
    for name, (adapter, path) in adapters.items():
        command = tools.Command([*driver.words, *adapter], ROOT, {"PYTHONPATH": path})
        command.run_checks(f"client-cases, {name}", f"interop/client-cases-{name}")
