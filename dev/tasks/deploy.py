"""The files of `deploy/`, read by the tools that they are for, and run as processes on loopback.

A tool that is missing is skipped with a line that says how to get it. The names of metrics and settings are a test of the program.
"""

import argparse
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import common
import tools
from common import ROOT, need, output_of

# Values with which the chart is rendered, beside its defaults.
CHART_VALUES = (
    "",
    "streams.enabled=true",
    "replicas=3,cluster.url=nats://user@nats:4222,cluster.existingSecret=nats,api.existingSecret=keys",
    "replicas=3,streams.enabled=true,streams.store=nats://nats:4222,streams.durableTopics=chat.>,streams.storageClass=fast",
    "auth.existingSecret=keys,ingress.enabled=true,ingress.host=ws.example.com,ingress.tlsSecret=tls,podMonitor.enabled=true",
    "tls.existingSecret=certificate,podMonitor.enabled=true",
    "tls.existingSecret=certificate,http3.enabled=true,service.port=443",
)
# Values of the chart that runs: three nodes with durable topics.
CLUSTER_VALUES = "replicas=3,cluster.url=nats://nats:4222,streams.enabled=true,streams.store=nats://nats:4222,streams.durableTopics=chat.>"
# Values that the chart rejects, and a part of the error.
REJECTED_VALUES = {
    "cluster.url=nats://nats:4222,streams.durableTopics=chat.>": "needs streams.store",
    "cluster.existingSecret=nats": "needs cluster.url",
    "http3.enabled=true": "needs tls.existingSecret",
}
# Values, and a part of the warning in the notes of the installation, or nothing.
WARNINGS = {
    "replicas=1": "",
    "replicas=3": "are not a cluster",
    "replicas=3,cluster.url=nats://nats:4222": "",
    "replicas=3,cluster.url=nats://nats:4222,streams.enabled=true": "each node has its own streams",
}
# Largest exposure that `systemd-analyze security` may find, in tenths.
EXPOSURE_MAX = 20
# Programs that build and run images, by the commands of Docker.
ENGINES = ("docker", "podman")
IMAGE = "sinews-check"
# Seconds of a build of the image, an optimized program on two cores; and from the start of a container to its first answer.
BUILD_LIMIT, START_LIMIT = 60 * 60, 30
FOLDER, LOGS = ROOT / "deploy", common.TARGET / "xtask/deploy"
CHART = FOLDER / "chart/sinews"


def check(name, *command, limit=common.COMMAND_LIMIT):
    """A command that is one check."""
    common.check(name, lambda: common.run(command, f"deploy/{name.replace(' ', '-')}", limit))


def expect(name, is_met):
    common.count("passed" if is_met else "failed", f"{'ok' if is_met else 'FAIL'} {name}")


def check_yaml():
    """Every YAML file, and the chart's templates as far as that is possible without rendering."""
    tools.python("deploy.py").run_checks("yaml", "deploy/yaml", *sorted(FOLDER.rglob("*.yaml")))


def render(helm, chart, values):
    command = [helm, "template", "test", "--kube-version", "1.30.0", chart]
    return command + (["--set", values] if values else [])


def check_chart():
    helm = tools.helm()
    check("helm lint", helm, "lint", "--strict", CHART)
    for number, values in enumerate(CHART_VALUES):
        check(f"helm template {number}", *render(helm, CHART, values))
    for values, error in REJECTED_VALUES.items():
        done = subprocess.run(render(helm, CHART, values), capture_output=True, text=True)
        expect(f"the chart rejects {values}", done.returncode != 0 and error in done.stderr)
    # A copy of the chart with its notes in a ConfigMap: `helm template` renders no notes, and `helm install` needs a cluster.
    noted = LOGS / "notes"
    (noted / "templates").mkdir(parents=True, exist_ok=True)
    for name in ("Chart.yaml", "values.yaml", "templates/_helpers.tpl"):
        shutil.copy(CHART / name, noted / name)
    lines = "".join(f"    {line}\n" for line in (CHART / "templates/NOTES.txt").read_text().splitlines())
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: notes\ndata:\n  notes: |\n"
    (noted / "templates/notes.yaml").write_text(head + lines)
    for values, warning in WARNINGS.items():
        notes = output_of(*render(helm, noted, values))
        is_right = notes is not None and warning in notes and ("WARNING" in notes) == bool(warning)
        expect(f"notes of the chart with {values}", is_right)


def check_rules():
    promtool = need("promtool", "apt-get install prometheus")
    check("promtool check rules", promtool, "check", "rules", FOLDER / "prometheus/alerts.yaml")
    check("promtool check config", promtool, "check", "config", FOLDER / "prometheus/prometheus.yaml")


def check_unit():
    """The unit, with a program that exists in the place of the server."""
    analyze, copy = need("systemd-analyze", "apt-get install systemd"), LOGS / "sinews.service"
    copy.write_text((FOLDER / "sinews.service").read_text().replace("/usr/local/bin/sinews", "/bin/true"))
    check("systemd-analyze verify", analyze, "verify", "--man=no", copy)
    check("systemd-analyze security", analyze, "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", copy)


def check_compose():
    if output_of("docker", "compose", "version") is None:
        raise common.Missing("no docker compose (https://docs.docker.com/compose)")
    file = ["--file", FOLDER / "compose/compose.yaml"]
    check("docker compose config", "docker", "compose", "--profile", "metrics", *file, "config", "--quiet")


def check_image():
    """Builds the container image from the Dockerfile, starts it, and asks it whether it is alive."""
    # A list of images needs the daemon.
    engine = next((engine for engine in ENGINES if output_of(engine, "images", "--quiet") is not None), None)
    if engine is None:
        raise common.Missing("no daemon of docker or podman answers")

    def call(*arguments):
        output = output_of(engine, *arguments)
        if output is None:
            raise common.Fault(f"{engine} {' '.join(arguments)} has failed")
        return output

    common.run([engine, "build", "--tag", IMAGE, "."], "deploy/image", BUILD_LIMIT)
    container = call("run", "--detach", "--publish", "127.0.0.1::8080", IMAGE)
    try:
        wait_for(f"http://{call('port', container, '8080').splitlines()[0]}/healthz")
        # SIGTERM, as the image names it.
        call("stop", "--time", "20", container)
        status = call("inspect", "--format", "{{.State.ExitCode}}", container)
        if status != "0":
            raise common.Fault(f"the container ended with {status} at SIGTERM")
    finally:
        call("rm", "--force", container)
    common.count("passed", "ok the container image serves, and stops at SIGTERM")


def wait_for(url):
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            return urllib.request.urlopen(url, timeout=START_LIMIT).close()
        except OSError as error:
            # The proxy of the engine accepts connections before the server does.
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > deadline:
                raise common.Fault(f"GET {url}: {error}") from error
            time.sleep(0.1)


def run_file(program, kind, file, *nats):
    """Runs the commands of a file."""
    command = tools.python("run_deploy.py")
    command.run_checks(f"running the {kind}", f"deploy/run-{kind}", program, kind, file, *nats)


def run_nodes(program):
    """The nodes of the compose file and of the chart, with the server of NATS."""
    # The server decides, not the status of the script.
    output_of(ROOT / "dev/brokers/nats.sh", "fetch")
    nats = need([str(ROOT / ".cache/brokers/nats/bin/nats-server"), "nats-server"], "go, which builds nats-server")
    version = tuple(int(part) for part in re.findall(r"\d+", output_of(nats, "--version") or "")[:2])
    if version < (2, 11):
        raise common.Missing("nats-server 2.11 or later, which topic stores need, or go, which builds it")
    run_file(program, "compose", FOLDER / "compose/compose.yaml", nats)
    rendered = output_of(*render(tools.helm(), CHART, CLUSTER_VALUES))
    if rendered is None:
        raise common.Fault("helm template failed")
    (LOGS / "chart.yaml").write_text(rendered + "\n")
    run_file(program, "chart", LOGS / "chart.yaml", nats)


def main():
    argparse.ArgumentParser(prog="cargo xtask deploy", description=__doc__).parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    tools.attempt("yaml", check_yaml)
    tools.attempt("the chart, beyond its YAML", check_chart)
    tools.attempt("rules of Prometheus", check_rules)
    tools.attempt("the unit", check_unit)
    tools.attempt("the compose file", check_compose)
    tools.attempt("the container image", check_image)
    features = ["--features", "sinews-cli/http3,sinews-cli/nats"]
    try:
        common.run([common.CARGO, "build", "--package", "sinews-cli", *features], "deploy/build")
    except common.Fault as fault:
        common.count("failed", f"FAIL {fault}")
        common.finish()
    program = common.TARGET / "debug/sinews"
    tools.attempt("running the unit", run_file, program, "unit", FOLDER / "sinews.service")
    tools.attempt("the nodes of the compose file and of the chart", run_nodes, program)
    common.finish()


main()
