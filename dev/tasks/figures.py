"""The figures of the documents, measured at the present commit and written into them.

One run makes all of them, so that they belong to one commit, one machine and one way to measure.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import time

import common
import compare
import contenders
import servers
from contenders import LOADS, PLAIN_NAME

# The page that is written as a whole.
PAGE = "docs/book/src/internals/figures.md"
# The book's list of pages, and the entry of the page.
SUMMARY, ENTRY = "docs/book/src/SUMMARY.md", "* [Figures](internals/figures.md)"
# The README's table: the lines after this mark, until an empty one.
README, MARK = "README.md", "<!-- cargo xtask figures -->"
# Servers and loads in the README's table, with their names there.
README_ROWS = {
    "sinews": "**sinews, io_uring**", "sinews-poll": "**sinews, epoll**", "fastwebsockets": "fastwebsockets",
    "tokio-websockets": "tokio-websockets", "tokio-tungstenite": "tokio-tungstenite", "axum": "axum",
}
README_COLUMNS = {
    "echo": "64 × 64 B", "pipelined": "64 × 64 B, 16 in flight", "text": "500 × 1 KiB text", "large": "32 × 16 KiB",
    "huge": "4 × 1 MiB",
}
# Time after the handshakes until the memory of idle connections is read: unused buffers are returned after 2 to 4 s.
IDLE_DURATION = "8s"

# How long and how often is measured.
Settings = collections.namedtuple("Settings", "rounds duration warm_up idle_connections")
QUICK = Settings(3, "100ms", "50ms", 200)
# Eight rounds, so that a difference can show, and short ones: the machine changes less within a comparison.
FULL = Settings(8, "400ms", "100ms", 10_000)
# What a reader must know to judge the figures, or to repeat them: the commit, and whether its sources were changed; the day, in
# UTC; runnable threads of the machine in the last minute, before the measurement.
Origin = collections.namedtuple("Origin", "commit machine compiler day load")
# The figures of one load, by the names of the servers: of the closed loop, and at the load's fixed rate, if it has one. Processor
# time says little without the latency that it costs.
Measured = collections.namedtuple("Measured", "load servers at_rate")


def measure(load, settings, programs):
    given = ["--json", "--rounds", str(settings.rounds), "--duration", settings.duration, "--warm-up", settings.warm_up]

    def by_name(*further):
        figures = compare.figures(load, compare.parse_options([*given, *further]), programs)
        return {server["name"]: server for server in figures}

    at_rate = by_name("--rate", str(LOADS[load].rate)) if LOADS[load].rate else {}
    return Measured(load, by_name(), at_rate)


def origin():
    def read(path):
        return pathlib.Path(path).read_text() if os.path.exists(path) else ""

    def field(path, name):
        found = re.search(rf"^{name}[^:\n]*:(.*)", read(path), re.MULTILINE)
        return found[1].strip() if found else ""

    questions = ("rev-parse --short HEAD", "status --porcelain --untracked-files=no", "rev-parse --is-shallow-repository")
    commit = describe(*(common.output_of("git", *question.split()) for question in questions))
    machine = f"{len(os.sched_getaffinity(0))} processors, {field('/proc/cpuinfo', 'model name')}; " \
        f"{field('/proc/meminfo', 'MemTotal')} of memory; Linux {read('/proc/sys/kernel/osrelease').strip()}"
    # Without the compiler's commit, which is none of this repository.
    compiler = (common.output_of("rustc", "--version") or "").split(" (")[0]
    return Origin(commit, machine, compiler, time.strftime("%F", time.gmtime()), read("/proc/loadavg").split(" ")[0])


def describe(commit, changes, is_shallow):
    """The commit in words, from the answers of git, which are missing without a history."""
    if commit is None:
        return "commit unknown: there is no git history"
    changed = "" if changes == "" else ", with changes that are not committed"
    return f"commit `{commit}`{changed}{', in a checkout without older history' if is_shallow == 'true' else ''}"


def idle_memory(backend, settings):
    """Bytes of the server's memory per idle connection."""
    program = contenders.path("serve", compare.DIST_PROFILE)
    options = ["--threads", "1", "--deflate", "off", "--log", "error", "--backend", backend]
    with servers.serve(program, f"figures-idle-{backend}", *options) as server:
        bench = [program, "bench", f"ws://{server.address}/echo", "--mode", "idle", "--json", "--connections"]
        bench += [settings.idle_connections, "--duration", IDLE_DURATION, "--pid", server.program.pid]
        output = common.output_of(*bench)
    if output is None:
        raise common.Fault("sinews bench failed")
    used = figure(json.loads(output), "server").get("memory_per_connection_bytes")
    if used is None:
        raise common.Fault("the system reports no memory")
    return int(used)


def page(origin, settings, measured, idle):
    """The generated page."""
    rounds, duration, warm_up, idle_connections = settings
    text = f"""# Figures

`cargo xtask figures` measures these figures and writes this page. All of them come from one run at one commit; edits are
overwritten. [Performance](performance.md) explains the method and has more loads.

| | |
|---|---|
| sources | {origin.commit} |
| machine | {origin.machine} |
| compiler | {origin.compiler}, profile `{compare.DIST_PROFILE}` |
| measured | {origin.day}, load average before: {origin.load} |
| rounds | {rounds} for each server, {duration} each after {warm_up} of warm-up, in an order that changes |
| processors | the server on 0, with one thread; the load on 1 |

Figures are medians of the rounds. *CPU* is the processor time of the server for each message, request or delivery.
Ratios are taken within rounds; a ratio is bold if its 99 % confidence interval does not contain 1. A column with a
rate is of an open loop (`--rate`) below saturation, in the same run.
"""
    for load, figures, at_rate in measured:
        rate = LOADS[load].rate
        heads = ["server", "thousand/s", "p50, µs", "p99, µs", "CPU, µs", f"CPU ÷ {next(iter(figures), '')}"]
        heads += [f"{name} at {rate}/s" for name in ("p50", "p99", "CPU")] if rate else []
        options = f"--rounds {rounds} --duration {duration} --warm-up {warm_up} --server-core 0 --load-core 1"
        text += f"\n## {load}\n\n`sinews bench compare {options} {' '.join(shlex.split(LOADS[load].options))}`\n\n"
        text += row(heads) + "|" + "---|" * len(heads) + "\n"
        for name, server in figures.items():
            cells = [name, median(server, "rate", 1e3, 1), *latencies(server), cpu(server), ratio(server)]
            text += row(cells + ([*latencies(at_rate.get(name)), cpu(at_rate.get(name))] if rate else []))
    if idle:
        text += f"\n## Idle connections\n\n`sinews bench URL --mode idle --connections {idle_connections} --duration " \
            f"{IDLE_DURATION} --pid PID`\n\n| backend | bytes of the server's memory per connection |\n|---|---|\n"
        text += "".join(map(row, idle.items()))
    return text


def row(cells):
    return f"| {' | '.join(map(str, cells))} |\n"


def figure(server, name):
    """A figure of a server, empty if it was not measured."""
    return (server or {}).get(name) or {}


def median(server, name, unit, digits):
    value = figure(server, name).get("median")
    return "–" if value is None else f"{value / unit:.{digits}f}"


def latencies(server):
    """Median and 99th percentile, in microseconds."""
    return [median(server, name, 1e3, 0) for name in ("median_latency", "p99_latency")]


def cpu(server):
    return median(server, "server_s_CPU", 1, 2)


def ratio(server):
    """Processor time over that of the first server, bold if it differs."""
    found = figure(server, "server_s_CPU")
    value = "–" if found.get("ratio") is None else f"{found['ratio']:.2f}"
    return f"**{value}**" if found.get("differs") is True else value


def readme_table(measured):
    """The README's table; `None` if a figure of it is missing. Each column has processor time over that of the plain echo, and
    the latencies at the load's fixed rate."""
    columns, by_load = [], {one.load: one for one in measured}
    for load in README_COLUMNS:
        _, figures, at_rate = by_load.get(load, Measured(load, {}, {}))
        ratios = [figure(figures.get(name), "server_s_CPU").get("ratio") for name in README_ROWS]
        if next(iter(figures), None) != PLAIN_NAME or None in ratios:
            return None
        ratios, lowest = [f"{value:.2f}" for value in ratios], f"{min(ratios):.2f}"
        shown = [f"**{value}**" if value == lowest else value for value in ratios]
        columns.append([f"{value} ({', '.join(latencies(at_rate.get(name)))} µs)" for value, name in zip(shown, README_ROWS)])
    heads = [name + (f" (at {LOADS[load].rate}/s)" if LOADS[load].rate else "") for load, name in README_COLUMNS.items()]
    text = f"| |{row(heads)[1:]}|---|{'---|' * len(columns)}\n"
    return text + "".join(map(row, zip(README_ROWS.values(), *columns)))


def listed(summary):
    """The list of pages with the entry of the page, at the end of its last part if it is new."""
    lines = summary.rstrip().splitlines()
    return "".join(f"{line}\n" for line in lines + [ENTRY] * (ENTRY not in lines))


def replaced(text, table):
    """The text with another table behind the mark; `None` without a mark and a table."""
    found = re.search(rf"{MARK}.*?\n\n(.*?)\n\n", text, re.DOTALL)
    return found and f"{text[:found.start(1)]}{table}{text[found.end(1) + 1:]}"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"written: {path}")


def run(options):
    started, settings, found = time.monotonic(), QUICK if options.quick else FULL, origin()
    print(found.commit, flush=True)
    programs = ["serve", "hello", "library", "plain"]
    contenders.build(programs, compare.DIST_PROFILE)
    try:
        if options.no_peers:
            raise common.Missing("--no-peers")
        contenders.build(["peer"], compare.DIST_PROFILE)
        programs.append("peer")
    except (common.Fault, common.Missing) as why:
        common.count("skipped", f"skipped: servers on other libraries: {why}")
    measured, idle = [], {}
    for load in contenders.PLAIN:
        try:
            measured.append(measure(load, settings, programs))
            common.count("passed", f"measured {load} ({time.monotonic() - started:.0f} s)")
        except (common.Fault, OSError, ValueError) as fault:
            common.count("failed", f"FAIL {load}: {fault}")
    for backend in ("uring", "poll"):
        try:
            idle[backend] = idle_memory(backend, settings)
            common.add([1])
        except (common.Fault, OSError, ValueError) as why:
            common.count("skipped", f"skipped: memory of idle connections, {backend}: {why}")
    folder = common.TARGET / "xtask/figures" if options.quick else common.ROOT
    write(folder / PAGE, page(found, settings, measured, idle))
    write(folder / SUMMARY, listed((common.ROOT / SUMMARY).read_text()))
    table = readme_table(measured)
    if table:
        write(folder / README, replaced((common.ROOT / README).read_text(), table))
    else:
        common.count("skipped", "skipped: the table of README.md: a server or a load of it was not measured")


def made_up(load):
    """Figures in which each server takes a quarter more than the one before it."""
    def made(ratio):
        return {"median": 2.0, "ratio": ratio, "differs": ratio > 1.5}

    names = {name: 1 + place / 4 for place, name in enumerate([PLAIN_NAME, *README_ROWS])}
    figures = {name: {"rate": made(1), "server_s_CPU": made(ratio)} for name, ratio in names.items()}
    return Measured(load, figures, {name: {"median_latency": {"median": 15e3}, "p99_latency": {"median": 29e3}} for name in names})


def check_texts():
    """The page and the tables of made-up figures."""
    made = Origin(describe("1234abc", "", "false"), "2 processors", "rustc 1.0", "2000-02-29", "0.1")
    text = page(made, QUICK, [made_up("echo"), made_up("fan-out")], {"poll": 450})
    for part in [
        "| sources | commit `1234abc` |", "| machine | 2 processors |", "| compiler | rustc 1.0, profile `dist` |", "2000-02-29",
        "--rounds 3 --duration 100ms --warm-up 50ms --server-core 0 --load-core 1 -c 64 -s 64 --binary`\n\n| server |",
        "| CPU ÷ plain-echo | p50 at 20000/s | p99 at 20000/s | CPU at 20000/s |\n|---|---|---|---|---|---|---|---|---|\n| plain-echo",
        "\n| sinews | 0.0 | – | – | 2.00 | 1.25 | 15 | 29 | – |\n", "\n| sinews-poll | 0.0 | – | – | 2.00 | 1.50 | 15 | 29 | – |\n",
        "\n| fastwebsockets | 0.0 | – | – | 2.00 | **1.75** | 15 | 29 | – |\n", "CPU ÷ plain-echo |\n|---|---|---|---|---|---|\n| plain-echo",
        "\n| sinews | 0.0 | – | – | 2.00 | 1.25 |\n", "|---|---|\n| poll | 450 |\n",
    ]:
        assert part in text, f"{part} in {text}"
    assert describe("a", " M x", "false") == "commit `a`, with changes that are not committed"
    assert describe("a", "", "true") == "commit `a`, in a checkout without older history"
    assert describe(None, None, None) == "commit unknown: there is no git history"
    measured = [made_up(load) for load in README_COLUMNS]
    table = readme_table(measured)
    assert "| | 64 × 64 B (at 20000/s) | 64" in table and "(at 200/s) |\n|---|---|---|---|---|---|\n| **sinews" in table, table
    assert "| **sinews, io_uring** | **1.25** (15, 29 µs) |" in table and "| axum | 2.50 (15, 29 µs) |" in table, table
    others = {name: server for name, server in measured[0].servers.items() if name != "axum"}
    assert readme_table(measured[1:]) is None and readme_table([Measured("echo", others, {}), *measured[1:]]) is None
    others = {name: measured[0].servers[name] for name in README_ROWS}
    assert readme_table([Measured("echo", others, {}), *measured[1:]]) is None
    assert replaced(f"a {MARK} c\n\n| old |\n| 1 |\n\nb\n", "| new |\n") == f"a {MARK} c\n\n| new |\n\nb\n"
    assert replaced("a\n\n| old |\n\nb\n", "| new |\n") is None
    once = listed("# Summary\n\n* [A](a.md)\n")
    assert once == f"# Summary\n\n* [A](a.md)\n{ENTRY}\n" and listed(once) == once
    assert replaced((common.ROOT / README).read_text(), ""), f"{README} has no table behind {MARK}"


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask figures", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="try the command in a minute or two: few short rounds, written to "
                        "`target/xtask/figures` and not into the documents")
    parser.add_argument("--no-peers", action="store_true", help="measure no servers on other libraries")
    options = parser.parse_args()
    try:
        run(options)
    except (common.Fault, OSError) as fault:
        common.count("failed", f"FAIL {fault}")
    common.finish()


check_texts()
main()
