"""The library with the oldest version of each dependency that its manifest allows: it must compile.

The library's crates are copied without their dev-dependencies, which would raise the versions, into a workspace of their own.
Cargo resolves it with `-Z direct-minimal-versions`, which `RUSTC_BOOTSTRAP` allows on a stable toolchain; the crates themselves
are compiled as usual.
"""

import re
import shutil
import sys

import common

# The library and the crates below it.
CRATES = ("simd", "http", "proto", "session", "sinews")
FOLDER = common.TARGET / "xtask/floors"


def sections(manifest, is_wanted):
    """The sections of a manifest with matching headings."""
    parts = re.split(r"^(?=\[)", manifest, flags=re.MULTILINE)
    return "".join(part for part in parts if part.startswith("[") and is_wanted(part))


def without_tests(manifest):
    return sections(manifest, lambda part: not re.match(r"\[dev-dependencies|\[\[(bench|test|example)", part))


def workspace(manifest):
    """The workspace's manifest for the copied crates: its package, dependencies and lints."""
    kept = sections(manifest, lambda part: part.startswith("[workspace."))
    others = re.compile(r'^.*path = "(?!crates/(?:%s)").*\n' % "|".join(CRATES), re.MULTILINE)
    members = ", ".join(f'"crates/{name}"' for name in CRATES)
    return f'[workspace]\nresolver = "3"\nmembers = [{members}]\n\n{others.sub("", kept)}'


def copy():
    """Creates the workspace; compiled files of an earlier run stay."""
    for name in CRATES:
        source, copied = common.ROOT / "crates" / name, FOLDER / "crates" / name
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(source / "src", copied / "src")
        for file in filter(lambda file: file.exists(), [source / "README.md"]):
            shutil.copy(file, copied)
        (copied / "Cargo.toml").write_text(without_tests((source / "Cargo.toml").read_text()))
    (FOLDER / "Cargo.toml").write_text(workspace((common.ROOT / "Cargo.toml").read_text()))


def compile_oldest(features):
    copy()
    resolve = [common.CARGO, "-Zdirect-minimal-versions", "generate-lockfile"]
    common.run(resolve, "floors-resolve", cwd=FOLDER, env={"RUSTC_BOOTSTRAP": "1"})
    check = [common.CARGO, "check", "--locked", "--package", "sinews", *features]
    common.run(check, "floors", cwd=FOLDER, env={"CARGO_TARGET_DIR": str(FOLDER / "target")})


manifest = '[package]\nname = "a"\n[dev-dependencies]\nb = "1"\n[features]\nc = []\n'
assert without_tests(manifest) == '[package]\nname = "a"\n[features]\nc = []\n'
manifest = '[workspace]\nmembers = []\n[workspace.dependencies]\ne = { path = "crates/engine" }\n' \
    's = { path = "crates/simd" }\nd = "1"\n[profile.dev]\ndebug = 1\n'
kept = workspace(manifest)
assert kept.endswith('[workspace.dependencies]\ns = { path = "crates/simd" }\nd = "1"\n'), kept
# The arguments name the features that can be built here.
common.check("the oldest versions that the manifest allows", compile_oldest, sys.argv[1:])
common.finish()
