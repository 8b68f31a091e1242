"""The tutorials in `examples/`, each by its own test, which starts `sinews serve` and the programs of the tutorial."""

import argparse

import common
import servers
import tools

FOLDER = common.ROOT / "examples"
# Folders with a manifest are packages of the workspace.
TUTORIALS = sorted(
    path.parent.name for path in FOLDER.glob("*/README.md") if not (path.parent / "Cargo.toml").exists()
)


def run(name, program, backend):
    command = tools.tutorial(FOLDER / name)
    command.run_checks(name, f"examples/{name}", SINEWS=str(program), SINEWS_BACKEND=backend)


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask examples", description=__doc__)
    servers.add_options(parser)
    parser.add_argument("--only", default="", help=f"tutorials to test, with commas between them: {', '.join(TUTORIALS)}")
    options = parser.parse_args()
    program = servers.binary(options)
    # The last one is io_uring, if both are permitted.
    for backend in servers.backends(options, program)[-1:]:
        for name in servers.chosen(parser, options.only, TUTORIALS):
            tools.attempt(name, run, name, program, backend)
    common.finish()


assert "first-steps" in TUTORIALS, TUTORIALS
main()
