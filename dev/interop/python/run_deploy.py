"""Runs what the files of `deploy/` describe, as processes on loopback, and checks that it works:

    run_deploy.py SINEWS compose FILE NATS    the services of a compose file
    run_deploy.py SINEWS chart FILE NATS      the StatefulSet of a rendered chart
    run_deploy.py SINEWS unit FILE            a unit of systemd

Commands, environments, configurations and health checks are those of the file. Replaced are only what the host of a container
differs in: host names and ports, and paths below /var/lib, /data and /etc. Prints `ok NAME` or `FAIL NAME: why`.
"""

import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

# Longer than any step takes on a busy machine.
LIMIT = 60
PROCESSES = []
ports = itertools.count(4_500)


def free_port():
    """A port that nothing listens on, below those that the system gives to connections."""
    for port in ports:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def start(command, environment, log):
    """Starts a program with this environment alone."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    PROCESSES.append(process)
    return process


def http(port, path, body=None, headers=None):
    """Status and body; status 0 without an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def until(condition, what):
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} within {LIMIT} s"
        time.sleep(0.02)
    return found


def duration(text):
    return float(re.fullmatch(r"(\d+)s?", str(text))[1])


def stops(process, limit, what):
    """A graceful stop takes less than the time after which the process would be killed."""
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{what} has not stopped within {limit} s") from error
    assert status == 0, f"{what} ended with {status}"


def replaced(text, places):
    for name, value in places:
        text = text.replace(name, value)
    return text


def nats(program, arguments, folder, ports):
    """NATS with the arguments of a file, and the addresses of this machine."""
    places = [("/data", str(folder / "nats")), ("8222", str(ports[8222]))]
    command = [program, "--addr", "127.0.0.1", "--port", str(ports[4222])]
    return start(command + [replaced(word, places) for word in arguments], {}, folder / "nats.log")


class Node:
    """A node of Sinews as the file describes it."""

    def __init__(self, name, command, environment, grace):
        self.name, self.command, self.environment, self.grace = name, command, environment, grace
        self.port = free_port()
        self.process = None

    def start(self, folder, ports):
        home = folder / self.name
        home.mkdir(exist_ok=True)
        places = [("0.0.0.0:8080", f"127.0.0.1:{self.port}"), ("nats:4222", f"127.0.0.1:{ports[4222]}"),
                  ("/var/lib/sinews", str(home)), ("/etc/", f"{folder}/etc/")]
        environment = {name: replaced(value, places) for name, value in self.environment.items()}
        environment.setdefault("SINEWS_NODE", self.name)
        backend = {name: os.environ[name] for name in ["SINEWS_BACKEND"] if name in os.environ}
        command = [replaced(word, places) for word in self.command]
        self.process = start(command, environment | backend | {"TMPDIR": str(home)}, folder / f"{self.name}.log")

    def is_ready(self):
        assert self.process.poll() is None, f"{self.name} has ended with {self.process.returncode}"
        return http(self.port, "/readyz")[0] == 200


def check_nodes(nodes, topic):
    """Messages reach the clients of all nodes, and durable ones are stored for all of them."""
    until(lambda: all(node.is_ready() for node in nodes), "all nodes are ready")
    readers = [urllib.request.urlopen(f"http://127.0.0.1:{node.port}/topics/{topic}", timeout=LIMIT) for node in nodes]
    for reader in readers:
        while b"event: subscribed" not in reader.readline():
            pass
    status, answer = http(nodes[0].port, f"/topics/{topic}", b"hello", {"Content-Type": "text/plain"})
    assert status == 200, answer
    for node, reader in zip(nodes, readers):
        until(lambda: reader.readline() == b"data: hello\n", f"the message at {node.name}")
    print(f"ok a message reaches all {len(nodes)} nodes")

    def stored(node):
        status, text = http(node.port, f"/streams/{topic}")
        return status == 200 and '"hello"' in text

    until(lambda: stored(nodes[-1]), "the record at another node")
    print("ok the last node has the record of the durable topic")
    nodes[-1].process.kill()
    nodes[-1].process.wait()
    return stored


def check_cluster(nodes, folder, ports, topic):
    for node in nodes:
        node.start(folder, ports)
    stored = check_nodes(nodes, topic)
    nodes[-1].start(folder, ports)
    until(nodes[-1].is_ready, "the killed node is ready again")
    until(lambda: stored(nodes[-1]), "its record")
    print("ok a killed node starts again with its volume")
    for node in nodes:
        stops(node.process, node.grace, node.name)
    print("ok the nodes stop in the time that the file gives them")


def compose(sinews, path, program):
    services = yaml.safe_load(Path(path).read_text(encoding="utf-8"))["services"]
    nodes = [name for name, service in services.items() if service.get("image") == "sinews"]
    assert len(nodes) == 3, nodes
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), {4222: free_port(), 8222: free_port()}
        nats(program, services["nats"]["command"], folder, ports)
        *check, url = services["nats"]["healthcheck"]["test"]
        assert check == ["CMD", "wget", "--quiet", "--spider"], check
        port, where = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/.*)", url).groups()
        until(lambda: http(ports[int(port)], where)[0] == 200, "the health check of NATS")
        print("ok the health check of NATS succeeds")
        # The image's command; its environment is part of the file.
        command = [sinews, "serve"]
        of = lambda service: Node(service, command, services[service]["environment"], duration(services[service]["stop_grace_period"]))
        check_cluster([of(service) for service in nodes], folder, ports, "chat.room")


def chart(sinews, path, program):
    objects = {one["kind"]: one for one in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if one}
    spec = objects["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    environment = {one["name"]: one["value"] for one in container["env"]}
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), {4222: free_port(), 8222: free_port()}
        (folder / "etc/sinews").mkdir(parents=True)
        for file, text in objects["ConfigMap"]["data"].items():
            (folder / "etc/sinews" / file).write_text(text, encoding="utf-8")
        nats(program, ["--jetstream", "--store_dir", "/data", "--http_port", "8222"], folder, ports)
        until(lambda: http(ports[8222], "/healthz")[0] == 200, "NATS")
        paths = {probe: container[probe]["httpGet"]["path"] for probe in ["startupProbe", "livenessProbe", "readinessProbe"]}
        assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}, paths
        grace = pod["terminationGracePeriodSeconds"]
        nodes = [Node(f"{spec['serviceName']}-{number}", [sinews, *container["args"]], environment, grace) for number in range(spec["replicas"])]
        check_cluster(nodes, folder, ports, "chat.room")


def notified(listener, wanted):
    """The next notification of systemd with this text."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        listener.settimeout(LIMIT)
        text = listener.recv(4096).decode()
        if wanted in text:
            return text
    raise AssertionError(f"no {wanted}")


def unit(sinews, path, _):
    lines = [line.split("=", 1) for line in Path(path).read_text(encoding="utf-8").splitlines() if re.match(r"\w+=", line)]
    values = lambda key: [value for name, value in lines if name == key]
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "etc/sinews").mkdir(parents=True)
        for directory in ["state", "run"]:
            (folder / directory).mkdir()
        configuration = folder / "etc/sinews/sinews.toml"
        text = f'listen = "127.0.0.1:{port}"\n[streams]\ndirectory = "{folder}/state/streams"\ndurable_topics = "chat.>"\n'
        configuration.write_text(text, encoding="utf-8")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(str(folder / "notify"))
        places = [("/usr/local/bin/sinews", sinews), ("/etc/", f"{folder}/etc/")]
        (command,) = values("ExecStart")
        # What systemd sets for StateDirectory, RuntimeDirectory and Type=notify.
        environment = {"NOTIFY_SOCKET": str(folder / "notify"), "STATE_DIRECTORY": str(folder / "state"), "RUNTIME_DIRECTORY": str(folder / "run")}
        os.umask(int(values("UMask")[0], 8))
        process = start(shlex.split(replaced(command, places)), environment, folder / "log")
        notified(listener, "READY=1")
        status, answer = http(port, "/topics/chat.room", b"hello")
        assert status == 200 and '"seq":1' in answer, answer
        print("ok the unit's command is ready with durable topics")

        def reload():
            for command in values("ExecReload"):
                words = [replaced(word, places).replace("$MAINPID", str(process.pid)) for word in shlex.split(command)]
                words[0] = shutil.which(words[0]) or words[0]
                if subprocess.run(words, env={}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
                    return False
            return True

        configuration.write_text(text + '[namespace."chat.>"]\nmax_message = 4\n', encoding="utf-8")
        assert reload(), "the reload"
        until(lambda: http(port, "/topics/chat.room", b"hello")[0] == 413, "the new limit")
        print("ok the unit's reload applies the configuration")
        configuration.write_text("listen = 5\n", encoding="utf-8")
        assert not reload(), "an invalid file"
        assert process.poll() is None and http(port, "/healthz")[0] == 200
        print("ok the unit's reload rejects an invalid configuration, and the server goes on")
        stops(process, duration(values("TimeoutStopSec")[0]), "the unit")
        print("ok the unit stops in its time")


def main():
    sinews, kind, path, *rest = sys.argv[1:]
    run = {"compose": compose, "chart": chart, "unit": unit}[kind]
    try:
        run(sinews, path, rest[0] if rest else None)
    except (AssertionError, OSError, KeyError, ValueError) as error:
        print(f"FAIL {kind}: {' '.join(str(error).split())}")
        sys.exit(1)
    finally:
        for process in PROCESSES:
            if process.poll() is None:
                process.kill()


main()
