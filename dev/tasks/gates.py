"""Checks with other compilers and targets, an audit of dependencies, and a sanitizer. A missing tool skips a check with a line that
says how to get it."""

import argparse
import contextlib
import io
import os
import pathlib
import platform
import re
import shutil
import unittest.mock

import common

# Other targets on which the library and the server must compile.
TARGETS = ("aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64-unknown-freebsd")
# Tests of the crates with unsafe code of their own that handles memory of other code. The tests of `sinews-simd` are files beside
# its library.
SANITIZED = {"--lib": ("sinews-engine", "sinews-file"), "--tests": ("sinews-simd",)}


def check(name, command, env=None):
    common.check(name, common.run, command, name, common.COMMAND_LIMIT, env)


def skip(why):
    common.count("skipped", f"skipped: {why}")


def msrv():
    """The library and the hub with the oldest compiler that their manifests promise."""
    version = re.search(r'^rust-version = "(.*)"', (common.ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    # The cargo that runs this task would choose its own compiler.
    for variable in ("RUSTC", "RUSTUP_TOOLCHAIN", "CARGO"):
        os.environ.pop(variable, None)
    if common.output_of("cargo", f"+{version}", "--version") is None:
        return skip(f"no Rust {version} (rustup toolchain install {version}); clippy's incompatible_msrv ran")
    command = ["cargo", f"+{version}", "check", "--locked", "--package", "sinews", "--package", "sinews-hub", "--features"]
    check("msrv-check", [*command, "sinews-hub/http3", "--target-dir", common.TARGET / "oldest"])


def targets():
    """The library and the server on targets that this machine may lack, as far as their standard libraries are installed."""
    libraries = pathlib.Path(common.output_of("rustc", "--print", "sysroot") or "") / "lib/rustlib"
    for target in TARGETS:
        if not (libraries / target / "lib").is_dir():
            skip(f"no standard library for {target} (rustup target add {target})")
            continue
        command = [common.CARGO, "check", "--package", "sinews", "--package", "sinews-server", "--target", target]
        # A check links nothing, so that the C code of a dependency needs no compiler for the target.
        variables = {f"{tool}_{target.replace('-', '_')}": "true" for tool in ("CC", "AR")}
        check(f"targets-{target}", [*command, "--features", "sinews-server/http3"], {**variables, **os.environ})


def deny():
    """Licenses, sources and versions of all dependencies, by `deny.toml`; advisories where their list can be fetched."""
    command = [common.CARGO, "deny"]
    if common.output_of(*command, "--version") is None:
        return skip("no cargo-deny (cargo install --locked cargo-deny)")
    # Not offline: the licenses of other systems' dependencies count, too.
    check("deny-check", [*command, "--locked", "check", "licenses", "bans", "sources"])
    if common.output_of(*command, "--locked", "fetch", "db") is None:
        return skip("the list of advisories cannot be fetched")
    check("deny-advisories", [*command, "--locked", "check", "--disable-fetch", "advisories"])


def sanitizer():
    """Tests under the address sanitizer, whose flags are not stable: the compiler is."""
    # The ring leaves memory to a kernel that does not let go of it, which its tests provoke.
    env = {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": "-Zsanitizer=address", "ASAN_OPTIONS": "detect_leaks=0"}
    for tests, packages in SANITIZED.items():
        command = [common.CARGO, "test", tests, "--target", "x86_64-unknown-linux-gnu"]
        command += [word for package in packages for word in ("--package", package)]
        fault = None
        try:
            output = common.run([*command, "--target-dir", common.TARGET / "asan"], f"sanitizer{tests}", env=env)
        except common.Fault as error:
            fault, output = error, error.output
        passed, failed, ignored = common.tests_in(output)
        # A program that ends early leaves no result of its tests, and a run without tests has not passed.
        if failed or fault or not passed:
            print(f"FAIL {fault or f'sanitizer{tests}: no test has run'}", flush=True)
            failed = failed or 1
        common.add([passed, failed, ignored])


GATES = {gate.__name__: gate for gate in (msrv, targets, deny, sanitizer)}
# Stand-ins for cargo.
FAULTY = "case \"$*\" in *--version*) echo 1.0;; *) echo 'error: fault'; exit 101;; esac"
SOUND = "exit 0"
ADVISORY = "case \"$*\" in *advisories) echo 'error: fault'; exit 1;; esac"
OFFLINE = 'case "$*" in *fetch*) exit 1;; esac'
TESTED = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'"
OVERFLOW = f"case \"$*\" in *--lib*) {TESTED};; *) {TESTED}; echo 'fault: heap-use-after-free'; exit 1;; esac"
NO_CARGO = None
# Passed and skipped checks with a stand-in, `None` if the gate must fail.
CASES = [
    (msrv, FAULTY, None), (msrv, SOUND, (1, 0)), (msrv, NO_CARGO, (0, 1)), (targets, FAULTY, None), (targets, SOUND, (1, 2)),
    (deny, FAULTY, None), (deny, ADVISORY, None), (deny, SOUND, (2, 0)), (deny, OFFLINE, (1, 1)), (deny, NO_CARGO, (0, 1)),
    (sanitizer, FAULTY, None), (sanitizer, OVERFLOW, None), (sanitizer, TESTED, (6, 0)), (sanitizer, SOUND, None),
]


def check_gates():
    """Faults fail the gates and missing tools skip them. The stand-in for rustc has the standard library of one target."""
    folder = common.TARGET / "xtask/gates-self-check"
    for gate, script, expected in CASES:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "lib/rustlib" / TARGETS[1] / "lib").mkdir(parents=True)
        for name, text in (("cargo", script), ("rustc", 'echo "${0%/*}"')):
            if text is not None:
                (folder / name).write_text(f"#!/bin/sh\n{text}\n")
                (folder / name).chmod(0o755)
        counts = dict.fromkeys(common.COUNTS, 0)
        cargo = unittest.mock.patch.multiple(common, CARGO=str(folder / "cargo"), COUNTS=counts, TARGET=folder)
        with cargo, unittest.mock.patch.dict(os.environ, PATH=str(folder)), contextlib.redirect_stdout(io.StringIO()):
            gate()
        found = None if counts["failed"] else (counts["passed"], counts["skipped"])
        assert found == expected, f"{gate.__name__} with {script}: {counts}"


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask gates", description=__doc__)
    parser.add_argument("gate", choices=GATES)
    options = parser.parse_args()
    check_gates()
    os.environ["CARGO_TERM_COLOR"] = "never"
    if options.gate == "sanitizer" and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        skip("the address sanitizer runs on x86-64 Linux here")
    else:
        GATES[options.gate]()
    common.finish()


main()
