"""The pages and the client of `sinews serve` in Chromium, which Playwright drives. `dev/browser` has the checks."""

import argparse
import pathlib

import common
import servers
import tools


def program_for(options):
    """The program; for pictures, with a topic store, since they have keys of two nodes."""
    if not options.pictures or options.binary:
        return servers.binary(options)
    common.run([common.CARGO, "build", "--package", "sinews-cli", "--features", "sinews-cli/http3,sinews-cli/nats"], "pictures/build")
    return common.TARGET / "debug/sinews"


def run(options):
    command = tools.browser()
    program = program_for(options)
    folder = common.TARGET / "xtask/browser"
    command.env = {"SINEWS": str(program), "SINEWS_CERTIFICATE": str(servers.make_certificate(folder))}
    only = "pictures" if options.pictures else options.only
    backends = servers.backends(options, program)
    if options.pictures:
        command.env["SINEWS_PICTURES"] = str(options.pictures.absolute())
        backends = backends[:1]
    elif not only or "prices" in only.split(","):
        # The page of 1,000 prices, an example of the hub.
        command.env["SINEWS_PRICES"] = str(servers.build("keys", kind="--example") / "keys")
    if only:
        command.env["SINEWS_PARTS"] = only
    for backend in backends:
        command.run_checks(f"browser on {backend}", f"browser/{backend}", SINEWS_BACKEND=backend)


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask browser", description=__doc__)
    servers.add_options(parser)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--only", help="parts to check, by their names in dev/browser/parts.js [default: all]")
    group.add_argument("--pictures", type=pathlib.Path, metavar="DIRECTORY",
                       help="write the pictures of the documents to this folder instead of checking")
    options = parser.parse_args()
    tools.attempt("browser", run, options)
    common.finish()


main()
