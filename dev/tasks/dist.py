"""Archives of static programs, the packages for npm and Python, and a trial of publishing the crates.

A target whose tools are missing is skipped with a line that says how to get them.
"""

import argparse
import json
import pathlib
import platform
import shutil
import struct
import subprocess
import tarfile
import time
import urllib.request

import clients
import common

# Targets of archives, with the compilers for the C code of a dependency, and their package. The C library is linked statically.
# Rust has its own linker and startup code for these targets.
TARGETS = {
    "x86_64-unknown-linux-musl": (["musl-gcc"], "musl-tools"),
    "aarch64-unknown-linux-musl": (
        ["aarch64-linux-musl-gcc", "aarch64-linux-gnu-gcc"], "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
}
# Seconds of one command. An optimized build from nothing takes ten minutes on two idle cores.
LIMIT = 60 * 60
# Seconds until the program of an archive answers.
START_LIMIT = 60
SHELLS = ("bash", "fish", "zsh")
# Files of the repository in each archive.
FILES = ("README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "deploy/sinews.service")
# Files that a user expects in an archive.
EXPECTED = ("sinews", "README.md", "LICENSE-APACHE", "LICENSE-MIT", "sinews.service", "man/sinews.1", "man/sinews-serve.1",
            *(f"completions/sinews.{shell}" for shell in SHELLS))
PT_INTERP = 3


def run(command, name, **options):
    return common.run(command, f"dist-{name}", LIMIT, **options)


def sysroot():
    return pathlib.Path(common.output_of("rustc", "--print", "sysroot") or "/")


def metadata():
    return json.loads(common.output_of(common.CARGO, "metadata", "--no-deps", "--format-version", "1"))["packages"]


def archive(target, options, folder):
    compilers, packages = TARGETS[target]
    if not (sysroot() / "lib/rustlib" / target / "lib").is_dir():
        raise common.Missing(f"no standard library ({'rustup target add ' + target})")
    compiler = common.need(compilers, f"apt-get install {packages}")
    version = next(package["version"] for package in metadata() if package["name"] == "sinews-cli")
    name = f"sinews-{version}-{target}"
    program = split_debug(build(target, compiler, options), folder, name)
    fault = fault_of(program.read_bytes())
    if fault:
        raise common.Fault(fault)
    content = folder / name
    shutil.rmtree(content, ignore_errors=True)
    fill(content, program)
    # The archive depends on the content only: the time is that of the commit, and names are sorted.
    commit = common.output_of("git", "log", "-1", "--format=%ct") or "0"
    tar = ["tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go+r-w", f"--mtime=@{commit}"]
    run(tar + ["--use-compress-program", "gzip -n9", "-cf", f"{name}.tar.gz", name], "tar", cwd=folder)
    print(f"{name}.tar.gz, program of {program.stat().st_size / 2**20:.1f} MiB")
    program.unlink()
    shutil.rmtree(content)
    common.check(f"the program of {name}.tar.gz serves", try_archive, folder, name, target)


def try_archive(folder, name, target):
    """Unpacks an archive as a user does, looks for its files, and asks the program whether it is alive."""
    unpacked = common.TARGET / "xtask/dist-unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir(parents=True)
    run(["tar", "-xzf", folder / f"{name}.tar.gz"], "unpack", cwd=unpacked)
    missing = [file for file in EXPECTED if not (unpacked / name / file).is_file()]
    if missing:
        raise common.Fault(f"{name}.tar.gz does not contain {', '.join(missing)}")
    program = unpacked / name / "sinews"
    version = common.output_of(program, "--version")
    if version is None:
        raise common.Missing("this machine cannot run it")
    if target not in version:
        raise common.Fault(f"it is of another target: {version}")
    address = f"127.0.0.1:{common.free_port()}"
    with open(common.log("dist-server"), "wb") as log:
        server = subprocess.Popen([program, "serve", "--threads", "1", "--listen", address], stdout=log, stderr=log)
    try:
        wait_for(f"http://{address}/healthz", server)
    finally:
        server.kill()
        server.wait()


def wait_for(url, server):
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            # Other answers than 200 are errors.
            return urllib.request.urlopen(url, timeout=START_LIMIT).close()
        except OSError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise common.Fault(f"GET {url}: {error}, see {common.log('dist-server')}") from error
            time.sleep(0.02)


def build(target, compiler, options):
    profile, subfolder = ("dev", "debug") if options.trial else ("dist", "dist")
    variable = target.replace("-", "_")
    env = {f"CC_{variable}": compiler}
    if not target.startswith(platform.machine()):
        env[f"CARGO_TARGET_{variable.upper()}_LINKER"] = "rust-lld"
    command = [common.CARGO, "build", "--profile", profile, "--locked", "--package", "sinews-cli", "--bin", "sinews"]
    run(command + ["--target", target, "--features", options.features], target, env=env)
    return common.TARGET / target / subfolder / "sinews"


def split_debug(built, folder, name):
    """Copies the program without debug information, which would triple its size, and writes this to a file of its own. Symbols
    stay for backtraces. `split-debuginfo` of cargo leaves most of it in the program on Linux."""
    host = next(line[6:] for line in common.output_of("rustc", "-vV").splitlines() if line.startswith("host: "))
    # It knows all targets; that of the system only this machine's.
    tool = sysroot() / "lib/rustlib" / host / "bin/rust-objcopy"
    tool = tool if tool.is_file() else "objcopy"
    # Its own libraries are not found otherwise.
    env = {"LD_LIBRARY_PATH": str(sysroot() / "lib")}
    program, debug = folder / f"{name}.program", folder / f"{name}.debug"
    run([tool, "--only-keep-debug", built, debug], "objcopy-debug", env=env)
    # The link is the name of the file, which a debugger looks for beside the program. It is read for a checksum.
    run([tool, "--strip-debug", f"--add-gnu-debuglink={debug}", built, program], "objcopy-strip", env=env)
    run(["gzip", "-nf9", debug], "gzip")
    return program


def fault_of(file):
    """Why a 64-bit little-endian ELF file is not distributed: it names an interpreter, or has debug information."""
    if file[:6] != b"\x7fELF\x02\x01":
        return "the program is no ELF file"
    programs, sections = struct.unpack_from("<QQ", file, 32)
    size, number, section_size, _, names = struct.unpack_from("<5H", file, 54)
    kinds = [struct.unpack_from("<I", file, programs + size * index)[0] for index in range(number)]
    if not kinds or PT_INTERP in kinds:
        return "the program needs a dynamic linker"
    # The section with the names of sections: its header has its place.
    start, length = struct.unpack_from("<QQ", file, sections + names * section_size + 24)
    if b".debug_info\0" in file[start : start + length]:
        return "the program has debug information"
    return None


def fill(content, program):
    """The program and files of the repository; completions and manual pages, which the program writes, or its build for this
    machine."""
    (content / "man").mkdir(parents=True)
    (content / "completions").mkdir()
    shutil.copy(program, content / "sinews")
    for file in FILES:
        shutil.copy(common.ROOT / file, content)
    if common.output_of(program, "--version") is None:
        run([common.CARGO, "build", "--profile", "checks", "--package", "sinews-cli", "--bin", "sinews"], "host")
        program = common.TARGET / "checks/sinews"
    run([program, "man", content / "man"], "man")
    for shell in SHELLS:
        (content / f"completions/sinews.{shell}").write_text(run([program, "completions", shell], "completions"))


def pack_client(folder):
    npm = common.need("npm", "apt-get install npm")
    project = common.TARGET / "xtask/dist-npm-project"
    for package in ("clients/js", "clients/react", "clients/pusher-recovery"):
        run([npm, "pack", "--pack-destination", folder], "npm", cwd=common.ROOT / package)
        manifest = json.loads((common.ROOT / package / "package.json").read_text())
        file = folder / f"{manifest['name'].removeprefix('@').replace('/', '-')}-{manifest['version']}.tgz"
        with tarfile.open(file) as packed:
            missing = missing_files(manifest, {name.removeprefix("package/") for name in packed.getnames()})
        if missing:
            raise common.Fault(f"{file.name} does not contain {', '.join(missing)}")
        if "peerDependencies" in manifest:
            # They are not here. Its own tests import it.
            continue
        # As in a user's new project, without the repository's tools.
        shutil.rmtree(project, ignore_errors=True)
        project.mkdir(parents=True)
        (project / "package.json").write_text("{}")
        run([npm, "install", "--offline", "--no-audit", "--no-fund", file], "npm-install", cwd=project)
        run(["node", "--input-type=module", "--eval", f"await import({manifest['name']!r})"], "npm-import", cwd=project)


def missing_files(manifest, packed):
    """The files that a package's manifest names, or that each package has, without those that it contains."""
    def named(value):
        values = value.values() if isinstance(value, dict) else []
        return [value] if isinstance(value, str) else [name for inner in values for name in named(inner)]

    expected = named(manifest.get("exports")) + named(manifest.get("types")) + named(manifest.get("main"))
    expected += ["README.md", "LICENSE-APACHE", "LICENSE-MIT", "package.json"]
    return sorted({name.removeprefix("./") for name in expected} - packed)


def published():
    return [package for package in metadata() if package["publish"] is None]


def publish(no_verify):
    """Publishes the crates to nowhere: cargo packages them, and compiles each from its package."""
    names = [package["name"] for package in published()]
    command = [common.CARGO, "publish", "--dry-run", "--locked", "--allow-dirty"]
    packages = [word for name in names for word in ("--package", name)]
    run(command + packages + ["--no-verify"] * no_verify, "crates")


def check_packages():
    """Published crates are those of the product, describe themselves and contain their licenses."""
    packages = published()
    names = {package["name"] for package in packages}
    assert names >= {"sinews", "sinews-cli", "sinews-hub"} and not names & {"xtask", "sinews-testkit"}, names
    for package in packages:
        name, folder = package["name"], pathlib.Path(package["manifest_path"]).parent
        assert len(package["description"] or "") > 20, f"{name} has no description"
        for key in ("keywords", "categories"):
            assert 1 <= len(package[key]) <= 5, f"{name} has {len(package[key])} {key}"
        assert package["license"] == "MIT OR Apache-2.0", name
        for file in ("README.md", "LICENSE-APACHE", "LICENSE-MIT"):
            assert (folder / file).is_file(), f"{name} has no {file}"


def check_faults():
    """Made-up ELF files and a made-up package: each run shows that the check can fail."""

    def elf(kinds, names=b""):
        sections = 64 + 56 * len(kinds)
        head = b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<QQIH5H", 64, sections, 0, 64, 56, len(kinds), 64, 1, 0)
        programs = b"".join(struct.pack("<I", kind) + bytes(52) for kind in kinds)
        return head + programs + bytes(24) + struct.pack("<QQ", sections + 64, len(names)) + bytes(24) + names

    assert fault_of(elf([6, 1, 2])) is None
    assert "dynamic linker" in fault_of(elf([6, PT_INTERP, 1])) and "dynamic linker" in fault_of(elf([]))
    assert "debug information" in fault_of(elf([1], b"\0.debug_info\0"))
    assert fault_of(b"#!/bin/sh\n") == "the program is no ELF file"
    manifest = {"exports": {".": {"types": "./a.d.ts", "default": "./a.js"}}, "types": "./b.d.ts"}
    files = {"a.js", "README.md", "LICENSE-APACHE", "LICENSE-MIT", "package.json"}
    assert missing_files(manifest, files) == ["a.d.ts", "b.d.ts"] and not missing_files(manifest, files | {"a.d.ts", "b.d.ts"})


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask dist", description=__doc__)
    parts = ("programs", "client", "crates")
    parser.add_argument("--only", default=",".join(parts), help="parts to make, with commas between them [default: all]")
    parser.add_argument("--target", default=",".join(TARGETS), help="targets of the programs [default: all]")
    parser.add_argument("--features", default="http3,nats,redis",
                        help="features of the programs: HTTP/3, and brokers that can store the streams [default: %(default)s]")
    parser.add_argument("--trial", action="store_true", help="compile the programs without optimization, into "
                        "target/archives-trial: enough to try the archives")
    parser.add_argument("--no-verify", action="store_true", help="package the crates without compiling them")
    options = parser.parse_args()
    only, targets = options.only.split(","), options.target.split(",")
    for unknown in [name for name in only if name not in parts] + [name for name in targets if name not in TARGETS]:
        parser.error(f"no such part or target: {unknown}")
    check_faults()
    folder = common.TARGET / ("archives-trial" if options.trial else "archives")
    folder.mkdir(parents=True, exist_ok=True)
    # The other parts are made all the same when one fails.
    for target in targets if "programs" in only else []:
        common.check(f"the archive for {target}", archive, target, options, folder)
    if "client" in only:
        common.check("the npm packages", pack_client, folder)
        common.check("the package for Python", clients.pack_python, folder)
    if "crates" in only:
        common.check("crates describe themselves", check_packages)
        common.check(f"{len(published())} crates can be published", publish, options.no_verify)
    archives = sorted(file.name for file in folder.iterdir() if file.suffix in (".gz", ".tgz", ".whl"))
    if archives:
        (folder / "SHA256SUMS").write_text(common.output_of("sha256sum", *archives, cwd=folder) + "\n")
    print(folder)
    common.finish()


main()
