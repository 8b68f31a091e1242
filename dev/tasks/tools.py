"""Third-party programs: found or installed, with the scripts of `dev/interop` that drive them."""

import dataclasses
import os
import pathlib
import platform
import shutil
import time

import common
from common import ROOT, need

# Seconds of one installation from a package registry.
INSTALL_LIMIT = 10 * 60
# Seconds of one program's checks, which need up to a minute; each check has a shorter limit of its own.
CHECKS_LIMIT = 15 * 60
INTEROP, CACHE = ROOT / "dev/interop", ROOT / ".cache"
# Names of the browser, as `dev/browser/parts.js` looks for them.
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Copies the dependencies of a Maven project.
MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


@dataclasses.dataclass
class Command:
    """A program that is ready to run."""

    words: list
    folder: pathlib.Path = ROOT
    env: dict = dataclasses.field(default_factory=dict)

    def run_checks(self, name, log, *arguments, **env):
        """Runs a program that prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why` for each of its checks, and counts
        them."""
        started, fault = time.monotonic(), None
        try:
            output = common.run(self.words + list(arguments), log, CHECKS_LIMIT, {**self.env, **env}, self.folder)
        except common.Fault as error:
            fault, output = error, error.output
        lines = output.splitlines()
        counts = [sum(line.startswith(kind) for line in lines) for kind in ("ok ", "FAIL ", "skipped ")]
        if fault and not counts[1] or not any(counts):
            counts[1] += 1
            print(f"FAIL {fault or name + ' checked nothing'}")
        common.add(counts)
        words = "{} passed, {} failed, {} skipped".format(*counts)
        print(f"{name}: {words} in {time.monotonic() - started:.1f} s")
        print("".join(f"    {line}\n" for line in lines if line.startswith(("FAIL ", "skipped "))), end="", flush=True)


def attempt(name, function, *arguments):
    """Makes checks, or prints and counts why they cannot be made."""
    try:
        function(*arguments)
    except common.Missing as missing:
        common.count("skipped", f"skipped: {name}: {missing}")
    except (common.Fault, OSError) as fault:
        common.count("failed", f"FAIL {name}: {fault}")


def bash(script, tool):
    """A script of `dev/interop`, which needs a further program."""
    need(tool, f"apt-get install {tool}")
    return Command([need("bash", "apt-get install bash"), INTEROP / script])


def need_node():
    need("npm", "apt-get install npm")
    return need("node", "apt-get install nodejs npm")


def node(script):
    """A script of `dev/interop/node`, with the packages of all."""
    program, folder = need_node(), CACHE / "interop/node"
    # Node resolves modules beside the script, so the scripts are copied beside the modules.
    copy_files(INTEROP / "node", folder)
    copy_files(ROOT / "clients/pusher-recovery", folder / "pusher-recovery")
    npm_install(folder, folder, INTEROP / "node/package-lock.json")
    return Command([program, folder / script])


def client_js():
    """The tests of the package in `clients/js`. They need the variable `SINEWS`, the path of the program."""
    program, folder, package = need_node(), CACHE / "interop/client-js", ROOT / "clients/js"
    # A test that no longer exists would run.
    shutil.rmtree(folder / "test", ignore_errors=True)
    copy_files(package, folder)
    copy_files(package / "test", folder / "test")
    npm_install(folder, folder, package / "package-lock.json")
    words = [program, "test/run.js", "--test-reporter=./test/reporter.js"]
    return Command(words, folder, {"SINEWS_BOOK": str(ROOT / "docs/book/src")})


def client_react():
    """The tests of the package in `clients/react`, with its packages installed beside it."""
    program, folder = need_node(), ROOT / "clients/react"
    npm_install(folder, CACHE / "interop/client-react", folder / "package-lock.json")
    return Command([program, "../js/test/run.js", "test", "--test-reporter=../js/test/reporter.js"], folder)


def tutorial(folder):
    """The test of a tutorial: `test.js` for Node.js with the packages of all tutorials beside it, `test.py` for Python with those
    of its `requirements.txt`, or `test.sh` for curl."""
    if (folder / "test.js").is_file():
        program = need_node()
        npm_install(folder.parent, CACHE / "tutorials", folder.parent / "package-lock.json")
        return Command([program, "../testing/run.js", "test.js"], folder)
    if (folder / "test.py").is_file():
        packages = pip_install(CACHE / "tutorials" / folder.name, folder / "requirements.txt")
        return Command(["python3", "-B", "test.py"], folder, {"PYTHONPATH": packages})
    need("curl", "apt-get install curl")
    return Command([need("bash", "apt-get install bash"), "test.sh"], folder)


def browser():
    """The checks of the pages in `dev/browser`, with their packages installed beside them: Playwright drives the browser of the
    machine, and fetches none."""
    need(CHROMIUM, "apt-get install chromium")
    program, folder = need_node(), ROOT / "dev/browser"
    npm_install(folder, CACHE / "browser", folder / "package-lock.json")
    return Command([program, "../../examples/testing/run.js", "parts.js"], folder)


def npm_install(folder, stamp, lock):
    """Installs the packages of a lock file in a folder. `stamp` is the folder of the log."""
    if not (folder / "node_modules").is_dir():
        (stamp / "installed").unlink(missing_ok=True)
    once(stamp, lock, ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)


def python(*arguments):
    """The interpreter with the installed packages, and arguments: a script of ours, or a third-party module."""
    packages = pip_install(CACHE / "interop/python", INTEROP / "python/requirements.txt")
    return Command(["python3", "-B", *arguments], INTEROP / "python", {"PYTHONPATH": packages})


def pip_install(folder, requirements):
    need("python3", "apt-get install python3 python3-pip")
    packages = str(folder / "packages")
    install = ["python3", "-m", "pip", "install", "--quiet", "--upgrade", "--target", packages]
    once(folder, requirements, install + ["--requirement", requirements])
    return packages


def go(program, module="go", package=None):
    """A program of a module of Go in `dev/interop`."""
    need("go", "https://go.dev/dl")
    folder, source = CACHE / "interop" / module, INTEROP / module
    binary = folder / program
    # Does nothing when Go's own cache has the modules.
    install(folder, "download", ["go", "mod", "download"], source)
    build = ["go", "build", "-mod=readonly", "-o", binary, package or f"./{program}"]
    common.run(build, f"{folder.name}-{program}", INSTALL_LIMIT, cwd=source)
    return Command([binary])


def helm():
    """Helm, which reads the chart: the program on the path, or one that is built from its module."""
    found, folder, module = shutil.which("helm"), CACHE / "interop/helm", INTEROP / "helm"
    if found:
        return found
    need("go", "https://go.dev/dl")
    build = ["go", "build", "-mod=readonly", "-o", folder / "helm", "helm.sh/helm/v3/cmd/helm"]
    once(folder, module / "go.sum", build, module)
    return folder / "helm"


def java(program):
    """A program of `dev/interop/java`, with the libraries of its `pom.xml`."""
    need("javac", "apt-get install openjdk-17-jdk-headless")
    libraries, classes = f"{jars('java')}/*", CACHE / "interop/java/classes"
    sources = sorted((INTEROP / "java").glob("*.java"))
    common.run(["javac", "-d", classes, "-cp", libraries, *sources], "interop-javac", INSTALL_LIMIT)
    return Command(["java", "-cp", f"{classes}:{libraries}", program])


def h3spec():
    """The script that runs h3spec from its jar."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise common.Missing("h3spec is published for Linux on x86-64 only")
    return python("h3spec.py", jars("h3spec"))


def jars(name):
    """The folder with the jars of a `pom.xml` in a folder of `dev/interop`."""
    folder, versions = CACHE / "interop" / name, INTEROP / name / "pom.xml"
    if not is_installed(folder, versions):
        need("mvn", "apt-get install maven")
        # A class path is all of the folder: jars of other versions must not remain.
        shutil.rmtree(folder / "jars", ignore_errors=True)
    fetch = ["mvn", "--quiet", "--batch-mode", "--file", versions, f"-Dmaven.repo.local={folder}/repository", MAVEN_COPY]
    once(folder, versions, fetch + ["-DincludeScope=runtime", f"-DoutputDirectory={folder}/jars"])
    return folder / "jars"


def php(script, copy):
    """A program of `dev/interop/php` with the sources of a library: a copy in the folder that a variable names, or the package of
    `composer.json`, which Composer installs."""
    need("php", "apt-get install php-cli php-curl php-guzzlehttp-guzzle php-psr-log")
    sources = os.environ.get(copy)
    if sources is None:
        need("composer", f"apt-get install composer, or set {copy} to a folder with a copy of the library")
        sources = CACHE / "interop/php"
        copy_files(INTEROP / "php", sources)
        update = ["composer", "update", "--no-interaction", "--no-progress", "--no-scripts", "--prefer-dist"]
        once(sources, INTEROP / "php/composer.json", update, sources)
    return Command(["php", INTEROP / "php" / script, sources])


def copy_files(source, target):
    target.mkdir(parents=True, exist_ok=True)
    for file in filter(pathlib.Path.is_file, source.iterdir()):
        shutil.copy(file, target)


def is_installed(folder, versions):
    stamp = folder / "installed"
    return stamp.is_file() and stamp.read_bytes() == versions.read_bytes()


def once(folder, versions, command, cwd=ROOT):
    """Runs the installation unless it has completed for the same list of versions."""
    if not is_installed(folder, versions):
        install(folder, "install", command, cwd)
        (folder / "installed").write_bytes(versions.read_bytes())


def install(folder, name, command, cwd):
    """An installation that fails, without a network for example, is a missing tool."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        common.run(command, f"{folder.name}-{name}", INSTALL_LIMIT, cwd=cwd)
    except common.Fault as fault:
        raise common.Missing(str(fault)) from fault
