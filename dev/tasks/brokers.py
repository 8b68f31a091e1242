"""The bridges to Kafka, Redis and NATS, against real brokers.

`dev/brokers` starts the brokers. The ignored tests of `sinews-brokers` and of the server use, kill and freeze them; then they are
stopped. An unavailable broker is skipped; in CI, where all brokers should be available, that is a failure. The tests mostly wait,
so the tests of all brokers run side by side, from one build.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import time

import common

# Seconds of a broker's first download and its start.
START_LIMIT = 6 * 60
# Seconds of the tests of one broker beside those of other brokers: they take two to five minutes beside other steps.
TESTS_LIMIT = 20 * 60
# A broker exits by itself after this time, in seconds: that of a build, and of its tests.
BROKER_SECONDS = "3600"
# Exit status of the scripts when a broker is unavailable.
SKIPPED = 77
BROKERS = ("kafka", "redis", "nats")
# Servers of a cluster of NATS, and the port of the first.
NATS_NODES, CLUSTER_PORT = 3, 15242
STORE_TESTS = ("nats::faults::", "nats::keys::", "nats::logs::")
# Brokers of a cluster of nodes.
CLUSTER_BROKERS = ("redis", "nats")


class Broker:
    """A broker, which runs within a `with` block."""

    def __init__(self, name, nodes=1):
        self.name, self.script = name, common.ROOT / f"dev/brokers/{name}.sh"
        # The nodes of a cluster have successive ports.
        port = common.free_port() if nodes == 1 else CLUSTER_PORT
        addresses = ",".join(f"127.0.0.1:{port + node}" for node in range(nodes))
        # The tests run the same script to stop the broker and to start it again.
        self.env = {
            "BROKER_PORT": str(port),
            "KAFKA_CONTROLLER_PORT": str(common.free_port()),
            "BROKER_NODES": str(nodes),
            "BROKER_RUN": str(common.log(f"brokers/{name}-{nodes}-run").with_suffix("")),
            "BROKER_SECONDS": BROKER_SECONDS,
            "SINEWS_TEST_BROKER": f"{name}://{addresses}",
            "SINEWS_TEST_BROKER_SCRIPT": str(self.script),
        }

    def __enter__(self):
        try:
            self.call("up")
        except common.Fault as fault:
            if fault.status == SKIPPED:
                raise common.Missing(fault.output.splitlines()[-1].removeprefix(f"{self.name}: ")) from fault
            raise
        return self

    def __exit__(self, *_):
        self.call("down")

    def call(self, verb):
        common.run([self.script, verb], f"brokers/{self.name}-{verb}", START_LIMIT, self.env)


def tests(brokers, targets, *arguments):
    """The tests of the bridges, in the library and in the server, with all features at once: each set of features would be a
    separate build."""
    command = [common.CARGO, "test", "--no-fail-fast", "--package", "sinews-brokers", "--package", "sinews-cli"]
    command += ["--features", ",".join(f"sinews-cli/{name}" for name in brokers)]
    for target in targets:
        command += ["--lib"] if target == "lib" else ["--test", target]
    return command + list(arguments)


# The packages below the server are those of the other tests, which this compiler has compiled.
LINTING = {"RUSTC_WORKSPACE_WRAPPER": "clippy-driver"} if shutil.which("clippy-driver") else {}


def run_tests(name, log, command, env):
    """Runs tests, and returns their counts. Failures are counted, and printed with their panics."""
    started, fault = time.monotonic(), None
    try:
        common.run(command, f"brokers/{log}", TESTS_LIMIT, {**LINTING, **env})
    except common.Fault as error:
        fault = error
    text = common.log(f"brokers/{log}").read_text("utf-8", "replace")
    counts = common.tests_in(text)
    if not any(counts) or fault and not counts[1]:
        counts[1] += 1
    if counts[1]:
        print(f"FAIL {name}: {panics(text)}")
    words = "{} passed, {} failed, {} skipped".format(*counts)
    print(f"{name}: {words} in {time.monotonic() - started:.1f} s", flush=True)
    return counts


def panics(text):
    """The places and words of the panics in the output of tests, on one line: a report has the lines that begin with `FAIL`."""
    lines = [line.strip() for line in text.splitlines()]
    found = [" ".join(lines[number : number + 4]) for number, line in enumerate(lines) if "panicked at " in line]
    return "; ".join(found[:5]) or (lines or [""])[-1]


def run_broker(name, brokers, build, nodes=1):
    """Starts a broker beside the build of the tests, and runs its tests. A cluster has tests of topic stores only."""
    try:
        with Broker(name, nodes) as broker:
            build.result()
            # One after the other: each test kills a broker that other tests need.
            targets, filters = (["bridges", "program"], [f"{name}::"]) if nodes == 1 else (["bridges"], STORE_TESTS)
            command = tests(brokers, targets, "--", "--ignored", "--test-threads", "1", *filters, "--skip", "figures::")
            return run_tests(f"{name}, {nodes} servers", f"{name}-{nodes}-tests", command, broker.env)
    except common.Missing as missing:
        is_ci = os.environ.get("CI") == "true"
        print(f"FAIL {missing}, and this is CI, which should have it" if is_ci else f"skipped: {name}: {missing}", flush=True)
        return [0, int(is_ci), int(not is_ci)]
    except common.Fault as fault:
        print(f"FAIL {name}: {fault}", flush=True)
        return [0, 1, 0]


def test(brokers):
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        # The brokers are downloaded and started while the tests are built.
        command = tests(brokers, ["lib", "bridges", "program"], "--no-run")
        build = pool.submit(common.run, command, "brokers/build", env=LINTING)
        running = [pool.submit(run_broker, name, brokers, build) for name in brokers]
        if "nats" in brokers:
            running.append(pool.submit(run_broker, "nats", brokers, build, NATS_NODES))
        build.result()
        print(f"built in {time.monotonic() - started:.1f} s", flush=True)
        # With librdkafka's mock cluster, whose errors are on demand.
        library = tests(brokers, ["lib", "bridges"])
        running.append(pool.submit(run_tests, "the library and scripted peers", "library", library, {}))
        if "kafka" in brokers:
            program = tests(brokers, ["program"], "--", "store::kafka::")
            running.append(pool.submit(run_tests, "the server with it", "server-mock", program, {}))
        for run in running:
            common.add(run.result())


def measure(name):
    """Runs the tests that measure, and prints their figures."""
    with Broker(name) as broker:
        # The features of both brokers, for one build.
        command = [common.CARGO, "test", "--profile", "dist", "--package", "sinews-cli"]
        command += ["--features", "sinews-cli/redis,sinews-cli/nats", "--test", "program", "--", "--ignored", "--nocapture"]
        filters = [f"{name}::members_of_a_killed_node", f"{name}::users_are_added"]
        text = common.run(command + ["--test-threads", "1", *filters], f"brokers/{name}-measured", env=broker.env)
        for figure in re.findall(r"measured: (.*)", text):
            print(f"{name}: {figure}")


def main():
    assert panics("a\nthread panicked at b\nwhy\nc\nd\ne\n") == "thread panicked at b why c d"
    parser = argparse.ArgumentParser(prog="cargo xtask brokers", description=__doc__)
    parser.add_argument("--only", default=",".join(BROKERS), help="brokers to test, with commas between them [default: %(default)s]")
    parser.add_argument("--measure", action="store_true", help="measures 10,000 members over three nodes of a cluster, of "
                        "which one is killed, with an optimized build. No other test runs")
    options = parser.parse_args()
    only = options.only.split(",")
    for unknown in (name for name in only if name not in BROKERS):
        parser.error(f"no such broker: {unknown}")
    if options.measure:
        for name in (name for name in CLUSTER_BROKERS if name in only):
            common.check(name, measure, name)
    else:
        try:
            test(only)
        except common.Fault as fault:
            common.count("failed", f"FAIL {fault}")
    common.finish()


main()
