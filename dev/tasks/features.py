"""Compiles the library with every sensible choice of features, and the server, the hub and the program with some: each must compile
without a warning.

A feature enables other features, so that many choices are the same build; each build runs once. A program that must not compile is
rejected with a hint.
"""

import argparse
import json
import pathlib

import common

LIBRARY = "sinews"
# Libraries of few features: none, each alone and all are built.
EMBEDDED = ("sinews-server", "sinews-hub")
# Features of the program: each that can be left out is left out once. Other checks build it with all, except for brokers.
PROGRAM_CHOICES = ("", "bench", "bench,http3")
# A stream type that the library cannot split, and the expected lines of the compiler.
SPLIT = """pub fn split(ws: sinews::WebSocket<tokio::io::Join<tokio::io::Empty, tokio::io::Sink>>) {
    let _halves = ws.split();
}
"""
SPLIT_HINTS = ("`split` does not support", "call `split_locked()` instead")


def features_of(packages, library):
    """The features of the manifest except `default`, which is only a choice, each with those of the same crate that it enables."""
    manifest = next(package for package in packages if package["name"] == library)["features"]
    own = {name: [other for other in enabled if other in manifest] for name, enabled in manifest.items()}
    own.pop("default")
    return own


def turn_on(features, name, choice):
    if name not in choice:
        choice.add(name)
        for enabled in features.get(name, []):
            turn_on(features, enabled, choice)


def choices(features, together):
    """All builds of at most this number of features, and the build of all features; small builds first."""
    found = {frozenset()}
    for _ in range(together):
        for choice in list(found):
            for name in features:
                larger = set(choice)
                turn_on(features, name, larger)
                found.add(frozenset(larger))
    return sorted((sorted(choice) for choice in found | {frozenset(features)}), key=lambda choice: (len(choice), choice))


def check(names, *targets):
    # Excludes dev-dependencies: their features would hide missing features.
    command = [common.CARGO, "clippy", "--package", *targets, "--no-deps", "--no-default-features", "--features", names]
    command += ["--", "-D", "warnings"]
    shown = f"{targets[0]}: {names or 'no feature'}"
    common.check(shown, lambda: common.run(command, "features-one", env={"CARGO_TERM_COLOR": "never"}))


def check_hint():
    """Compiles a program that must not compile, and looks for the hint in the compiler's error."""
    build = [common.CARGO, "check", "--package", LIBRARY, "--lib", "--no-default-features", "--features", "tokio"]
    built = common.output_of(*build, "--message-format", "json")
    if built is None:
        raise common.Fault("the library does not compile")
    file = common.log("hint-split").with_suffix(".rs")
    file.write_text(SPLIT)
    command = ["rustc", "--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--out-dir", file.parent, file]
    for library in (LIBRARY, "tokio"):
        found = artifact(built, library)
        command += ["-L", f"dependency={pathlib.Path(found).parent}", "--extern", f"{library}={found}"]
    try:
        common.run(command, "features-hint")
    except common.Fault as fault:
        missing = [hint for hint in SPLIT_HINTS if hint not in fault.output]
        if missing:
            raise common.Fault(f"no {missing} in\n{fault.output}") from fault
    else:
        raise common.Fault(f"{file} compiles, which it must not")


def artifact(built, library):
    """The metadata of a library among the messages of cargo."""
    messages = [json.loads(line) for line in built.splitlines() if line.startswith("{")]
    files = [
        file
        for message in messages
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == library
        for file in message["filenames"]
        if file.endswith(".rmeta")
    ]
    if not files:
        raise common.Fault(f"{library} was not built")
    return files[-1]


def check_choices():
    """Choices of a made-up manifest: those that are the same build are made once."""
    features = features_of([{"name": "other", "features": {}}, {"name": LIBRARY, "features": {
        "default": ["tokio"], "tokio": ["dep:tokio"], "deflate": [], "axum": ["hyper", "tokio/rt"], "hyper": ["tokio", "dep:hyper"]}}], LIBRARY)
    names = [",".join(choice) for choice in choices(features, 2)]
    assert names == ["", "deflate", "tokio", "deflate,tokio", "hyper,tokio", "axum,hyper,tokio", "deflate,hyper,tokio",
                     "axum,deflate,hyper,tokio"], names
    assert [len(choice) for choice in choices(features, 0)] == [0, 4]


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask features", description=__doc__)
    parser.add_argument("--every", action="store_true", help="build every possible choice, instead of none, each alone, each "
                        "pair and all: five times as many builds")
    parser.add_argument("--without", default="", help="a feature that cannot be built here")
    options = parser.parse_args()
    check_choices()
    metadata = json.loads(common.output_of(common.CARGO, "metadata", "--no-deps", "--format-version", "1"))
    features = features_of(metadata["packages"], LIBRARY)
    features.pop(options.without, None)
    for choice in choices(features, len(features) if options.every else 2):
        check(",".join(choice), LIBRARY, "--lib")
    for library in EMBEDDED:
        for choice in choices(features_of(metadata["packages"], library), 1):
            check(",".join(choice), library, "--lib")
    for names in PROGRAM_CHOICES:
        check(names, "sinews-cli", "--bin", "sinews")
    # Alone, so that no other package enables features of the hub.
    test = [common.CARGO, "test", "--package", "embedded-hub"]
    common.check("test of embedded-hub", lambda: common.run(test, "features-embedded"))
    common.check("hint of split", check_hint)
    common.finish()


main()
