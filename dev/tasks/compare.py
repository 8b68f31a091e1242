"""Servers of other projects beside ours, measured in turns by `sinews bench compare`, with differences beyond noise.

Each server starts anew for every round, on a processor of its own; the load runs on another processor. Options behind `--` are
options of `sinews bench` in the place of those of the load, such as `-- -c 512 -s 512 --binary`.
docs/book/src/reference/benchmarks.md has results.
"""

import argparse
import json
import shlex
import subprocess
import sys

import common
import contenders
from contenders import CONTENDERS, LOADS, NAMES, PLAIN, PLAIN_NAME

DIST_PROFILE = "dist"


def several(known):
    """The type of an option with names between commas."""
    def parse(text):
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is unknown (--list prints the loads and their servers)")
        return text.split(",")
    return parse


def parse_options(arguments):
    loads = "".join(f"\n  {name:<16}{load.about}" for name, load in LOADS.items())
    parser = argparse.ArgumentParser(
        prog="cargo xtask compare", description=__doc__, epilog=f"loads:{loads}", allow_abbrev=False,
        usage="%(prog)s [options] [-- OPTIONS OF BENCH]", formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--load", type=several(LOADS), action="extend", default=[], help="loads to measure [default: the loads without TLS]")
    add("--only", type=several(NAMES), action="extend", default=[], help="servers to measure beside the first, such as "
        "axum,hyper [default: all but the plain echoes and nginx]; --list prints their names")
    add("--base", choices=NAMES, metavar="NAME", help="server that the others are compared with [default: the first of the load]")
    add("--fastest", action="store_true", help="also measure the fast form in the documentation of each library: `feed`, and one "
        "flush for messages that arrived together")
    add("--rounds", type=int, default=10, metavar="N", help="rounds of each server; a difference needs at least eight to show "
        "[default: 10]")
    add("--duration", default="2s", metavar="TIME", help="duration of each measurement [default: 2s]")
    add("--warm-up", default="1s", metavar="TIME", help="duration of the warm-up before each measurement [default: 1s]")
    add("--rate", type=int, metavar="N", help="messages per second at a fixed rate, instead of a closed loop; fan-out has a rate of "
        "its own, and loads with TLS have none")
    add("--threads", type=int, default=1, metavar="N", help="threads of each server; with several, servers on Tokio have its "
        "multi-threaded runtime with two [default: 1]")
    add("--server-core", default="0", metavar="LIST", help="processors of the servers, such as 0 or 0,1 [default: 0]")
    add("--load-core", default="1", metavar="LIST", help="processors of the load [default: 1]")
    add("--python-packages", metavar="PATH", help="folder with the Python packages aioquic and wsproto (`pip install --target PATH "
        "aioquic wsproto`), to measure aioquic too")
    add("--profile", default=DIST_PROFILE, metavar="NAME", help="build profile; profiles other than dist have no meaningful figures "
        "[default: dist]")
    add("--json", action="store_true", help="print JSON, an object for each load, instead of tables")
    add("--list", action="store_true", help="print the loads and their servers without measuring")
    place = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:place])
    options.bench = arguments[place + 1:]
    return options


def chosen(load, options, base):
    """The chosen servers, the base first. Without one it is the first server of the load."""
    servers = [one for one in CONTENDERS if contenders.takes(load, one)]
    first = next((one for one in servers if one.name == base), servers[0])

    def is_wanted(one):
        if options.only:
            return one.name in options.only
        if one.listed == "always":
            return one.program != "aioquic" or options.python_packages is not None
        return one.listed == "fastest" and options.fastest

    return [first, *(one for one in servers if one != first and is_wanted(one))]


def measurement(load, options, servers):
    """The command that measures the servers under a load."""
    shared = options.bench or shlex.split(LOADS[load].options)
    bench = [contenders.path("serve", options.profile), "bench", "compare", "--rounds", options.rounds, "--duration"]
    bench += [options.duration, "--warm-up", options.warm_up, "--server-core", options.server_core, "--load-core"]
    bench += [options.load_core, *shared]
    if options.rate is not None and LOADS[load].rate is not None:
        bench += ["--rate", options.rate]
    bench += ["--json", "--quiet"] if options.json else []
    for one in servers:
        port = common.free_port()
        bench.append(f"{one.name}={contenders.url(load, one, port)}={contenders.command(one, port, options)}")
    # Behind the servers, which are one list.
    for one in filter(lambda one: one.options, servers):
        bench += ["--options", f"{one.name}={' '.join(shared)} {one.options}"]
    return list(map(str, bench))


def figures(load, options, programs):
    """The figures of the servers on these programs under one load, beside the plain echo where it takes the load."""
    base = PLAIN_NAME if load in contenders.ECHOES else None
    servers = [one for one in chosen(load, options, base) if one.program in programs]
    done = subprocess.run(measurement(load, options, servers), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise common.Fault(done.stderr.strip())
    return json.loads(done.stdout)["servers"]


def run(options):
    """Measures the loads one after the other. A load without failures has passed."""
    loads = options.load or (list(LOADS) if options.list else PLAIN)
    if options.list:
        for load in loads:
            print(f"{load}: {', '.join(one.name for one in CONTENDERS if contenders.takes(load, one))}")
        return common.add([1])
    bench = "serve-http3" if set(loads) & set(contenders.HTTP3_LOADS) else "serve"
    servers = {load: chosen(load, options, options.base) for load in loads}
    contenders.build([bench, *(one.program for load in loads for one in servers[load])], options.profile)
    commit = common.output_of("git", "describe", "--always", "--dirty")
    if commit and not options.json:
        print(f"commit {commit}, profile {options.profile}")
    for load in loads:
        command = measurement(load, options, servers[load])
        if not options.json:
            print(f"\n{load}: {' '.join(options.bench or shlex.split(LOADS[load].options))}", flush=True)
        common.add([0, 1] if subprocess.run(command).returncode else [1])


def check_choices():
    """Each load has our server first, and each server a command with its port."""
    for load in LOADS:
        for arguments in ([], ["--fastest"], ["--only", "axum"]):
            servers = chosen(load, parse_options(arguments), None)
            assert servers[0].name.startswith("sinews") or load == "deliveries", load
            assert ("axum" in [one.name for one in servers]) == (load in PLAIN), load
            assert "--fastest" in arguments or not any(one.listed == "fastest" for one in servers), load
    assert len(chosen("http", parse_options(["--only", "hyper"]), None)) == 2
    names = [one.name for one in chosen("echo", parse_options([]), "plain-mio")]
    assert names[:2] == ["plain-mio", "sinews"] and PLAIN_NAME not in names, names
    assert [one.name for one in chosen("echo", parse_options(["--only", "axum"]), "plain-mio")] == ["plain-mio", "axum"]
    assert "plain-mio" not in [one.name for one in chosen("echo", parse_options([]), None)]
    assert len(set(NAMES)) == len(NAMES)
    options = parse_options(["--python-packages", "a b", "--load", "echo,text", "--load", "http", "--rate", "9", "--", "-c", "5"])
    assert (options.load, options.bench) == (["echo", "text", "http"], ["-c", "5"])
    for one in CONTENDERS:
        command = contenders.command(one, 4711, options)
        is_secure = one.serves not in contenders.SERVES
        assert "4711" in command and (not is_secure or "certificate.pem" in command or one.program == "nginx"), command
        assert one.program != "aioquic" or command.startswith("PYTHONPATH='a b' python3 -B "), command
    bench = measurement("http2", options, chosen("http2", options, None))
    assert bench[-1] == "axum-http2-one=-c 5 -c 1 --http2 --sockets-per-connection 64" and "--rate" not in bench, bench
    bench = measurement("echo", options, chosen("echo", options, PLAIN_NAME))
    assert "-c 5 --rate 9 plain-echo=tcp://127.0.0.1:" in " ".join(bench) and "--options" not in bench, bench


check_choices()
if __name__ == "__main__":
    try:
        run(parse_options(sys.argv[1:]))
    except (common.Fault, OSError) as fault:
        common.count("failed", f"FAIL {fault}")
    common.finish()
