//! `cargo xtask deploy`: the files of `deploy/`, read by the tools that they are for, and run as processes on loopback. A tool
//! that is missing is skipped with a line that says how to get it. The names of metrics and settings are a test of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::count::Count;
use crate::image;
use crate::process::{self, COMMAND_LIMIT, find_program, output_of};
use crate::tools::{self, Missing};

/// Values with which the chart is rendered, beside its defaults.
const CHART_VALUES: [&str; 6] = [
    "streams.enabled=true",
    "replicas=3,cluster.url=nats://user@nats:4222,cluster.existingSecret=nats,api.existingSecret=keys",
    "replicas=3,streams.enabled=true,streams.store=nats://nats:4222,streams.topics=chat.>,streams.storageClass=fast",
    "auth.existingSecret=keys,ingress.enabled=true,ingress.host=ws.example.com,ingress.tlsSecret=tls,podMonitor.enabled=true",
    "tls.existingSecret=certificate,podMonitor.enabled=true",
    "tls.existingSecret=certificate,http3.enabled=true,service.port=443",
];
/// Values of the chart that runs: three nodes with durable topics.
const CLUSTER_VALUES: &str = "replicas=3,cluster.url=nats://nats:4222,streams.enabled=true,streams.store=nats://nats:4222,streams.topics=chat.>";
/// Values that the chart rejects, and a part of the error.
const REJECTED_VALUES: [(&str, &str); 3] = [
    ("cluster.url=nats://nats:4222,streams.topics=chat.>", "needs streams.store"),
    ("cluster.existingSecret=nats", "needs cluster.url"),
    ("http3.enabled=true", "needs tls.existingSecret"),
];
/// Values, and a part of the warning in the notes of the installation, or nothing.
const WARNINGS: [(&str, &str); 4] = [
    ("replicas=1", ""),
    ("replicas=3", "are not a cluster"),
    ("replicas=3,cluster.url=nats://nats:4222", ""),
    ("replicas=3,cluster.url=nats://nats:4222,streams.enabled=true", "each node has its own streams"),
];
/// Largest exposure that `systemd-analyze security` may find, in tenths.
const EXPOSURE_MAX: &str = "--threshold=20";

pub(crate) fn run() -> Outcome {
    let logs = process::target().join("xtask/deploy");
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    Ok(check_yaml(&logs)?
        + check_chart(&logs)?
        + check_rules(&logs)
        + check_unit(&logs)?
        + check_compose(&logs)
        + image::check_image(&logs)
        + run_files(&logs)?)
}

/// Runs the commands of the compose file, of the chart and of the unit.
fn run_files(logs: &Path) -> Outcome {
    let program = build_program(&logs.join("build.log"))?;
    let mut count = run_file(&program, "unit", &folder().join("sinews.service"), None, logs)?;
    let nats = match nats_server(&logs.join("nats.log")) {
        Ok(program) => program,
        Err(missing) => return Ok(count + missing.report("the nodes of the compose file and of the chart")),
    };
    let compose = folder().join("compose/compose.yaml");
    count = count + run_file(&program, "compose", &compose, Some(&nats), logs)?;
    let Ok(helm) = tools::helm() else { return Ok(count + skip("the nodes of the chart: no helm")) };
    let rendered = logs.join("chart.yaml");
    let text = output_of(&mut render(&helm, &folder().join("chart/sinews"), CLUSTER_VALUES));
    let written = fs::write(&rendered, text.ok_or("helm template failed")?);
    written.map_err(|error| format!("{}: {error}", rendered.display()))?;
    Ok(count + run_file(&program, "chart", &rendered, Some(&nats), logs)?)
}

fn run_file(program: &Path, kind: &str, file: &Path, nats: Option<&Path>, logs: &Path) -> Outcome {
    let name = format!("running the {kind}");
    Ok(match tools::python(&["run_deploy.py"]) {
        Ok(mut command) => {
            command.arg(program).arg(kind).arg(file).args(nats);
            tools::run_checks(&name, &mut command, &logs.join(format!("run-{kind}.log")))
        }
        Err(missing) => missing.report(&name),
    })
}

/// The program with the broker of the files.
fn build_program(log: &Path) -> Result<PathBuf, String> {
    let mut build = process::cargo();
    build.args(["build", "--package", "sinews-cli", "--features", "sinews-cli/http3,sinews-cli/nats"]);
    process::run(&mut build, log, COMMAND_LIMIT)?.check("building the program", log)?;
    Ok(process::target().join("debug/sinews"))
}

/// The server of NATS, from the path or from the distribution's package.
fn nats_server(log: &Path) -> Result<PathBuf, Missing> {
    let find = || {
        let unpacked = process::cache("brokers").join("nats");
        let places = ["usr/sbin", "usr/bin"].map(|place| unpacked.join(place).join("nats-server"));
        find_program("nats-server").or_else(|| places.into_iter().find(|place| place.is_file()))
    };
    let mut fetch = Command::new(process::root().join("dev/brokers/nats.sh"));
    // The server decides, not the status of the script.
    let _ = process::run(fetch.arg("fetch"), log, COMMAND_LIMIT);
    find().ok_or_else(|| Missing::Tool("no nats-server (apt-get install nats-server)".to_owned()))
}

fn folder() -> PathBuf {
    process::root().join("deploy")
}

/// Every YAML file, and the chart's templates as far as that is possible without rendering.
fn check_yaml(logs: &Path) -> Outcome {
    let mut files = Vec::new();
    collect(&folder(), &mut files).map_err(|error| format!("deploy: {error}"))?;
    files.sort();
    Ok(match tools::python(&["deploy.py"]) {
        Ok(mut command) => tools::run_checks("yaml", command.args(files), &logs.join("yaml.log")),
        Err(missing) => missing.report("yaml"),
    })
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    Ok(())
}

fn check_chart(logs: &Path) -> Outcome {
    let helm = match tools::helm() {
        Ok(program) => program,
        Err(missing) => return Ok(missing.report("the chart, beyond its YAML")),
    };
    let chart = folder().join("chart/sinews");
    let mut lint = Command::new(&helm);
    lint.args(["lint", "--strict"]).arg(&chart);
    let mut count = check("helm lint", &mut lint, logs);
    for (number, values) in [""].iter().chain(&CHART_VALUES).enumerate() {
        count = count + check(&format!("helm template {number}"), &mut render(&helm, &chart, values), logs);
    }
    for (values, error) in REJECTED_VALUES {
        let output = render(&helm, &chart, values).output().map_err(|error| format!("helm: {error}"))?;
        let is_rejected = !output.status.success() && String::from_utf8_lossy(&output.stderr).contains(error);
        count = count + expect(is_rejected, &format!("the chart rejects {values}"));
    }
    let noted = with_notes(&chart, &logs.join("notes")).map_err(|error| format!("notes: {error}"))?;
    for (values, warning) in WARNINGS {
        let notes = output_of(&mut render(&helm, &noted, values)).ok_or("helm template failed")?;
        let is_right = notes.contains(warning) && notes.contains("WARNING") != warning.is_empty();
        count = count + expect(is_right, &format!("notes of the chart with {values}"));
    }
    Ok(count)
}

fn render(helm: &Path, chart: &Path, values: &str) -> Command {
    let mut command = Command::new(helm);
    command.args(["template", "test", "--kube-version", "1.30.0"]).arg(chart);
    if !values.is_empty() {
        command.args(["--set", values]);
    }
    command
}

/// A copy of the chart with its notes in a ConfigMap: `helm template` renders no notes, and `helm install` needs a cluster.
fn with_notes(chart: &Path, to: &Path) -> std::io::Result<PathBuf> {
    let templates = to.join("templates");
    fs::create_dir_all(&templates)?;
    for name in ["Chart.yaml", "values.yaml", "templates/_helpers.tpl"] {
        fs::copy(chart.join(name), to.join(name))?;
    }
    let notes = fs::read_to_string(chart.join("templates/NOTES.txt"))?;
    let lines: String = notes.lines().map(|line| format!("    {line}\n")).collect();
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: notes\ndata:\n  notes: |\n";
    fs::write(templates.join("notes.yaml"), format!("{head}{lines}"))?;
    Ok(to.to_owned())
}

fn expect(is_met: bool, what: &str) -> Count {
    println!("{} {what}", if is_met { "ok" } else { "FAIL" });
    Count::of(is_met)
}

fn check_rules(logs: &Path) -> Count {
    let Some(promtool) = find_program("promtool") else {
        return skip("rules of Prometheus: no promtool (apt-get install prometheus)");
    };
    let folder = folder().join("prometheus");
    let mut rules = Command::new(&promtool);
    rules.args(["check", "rules"]).arg(folder.join("alerts.yaml"));
    let mut configuration = Command::new(&promtool);
    configuration.args(["check", "config"]).arg(folder.join("prometheus.yaml"));
    check("promtool check rules", &mut rules, logs) + check("promtool check config", &mut configuration, logs)
}

/// The unit, with a program that exists in the place of the server.
fn check_unit(logs: &Path) -> Outcome {
    if find_program("systemd-analyze").is_none() {
        return Ok(skip("the unit: no systemd-analyze (apt-get install systemd)"));
    }
    let unit =
        fs::read_to_string(folder().join("sinews.service")).map_err(|error| format!("unit: {error}"))?;
    let copy = logs.join("sinews.service");
    let written = fs::write(&copy, unit.replace("/usr/local/bin/sinews", "/bin/true"));
    written.map_err(|error| format!("{}: {error}", copy.display()))?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(&copy);
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=yes", EXPOSURE_MAX]).arg(&copy);
    Ok(check("systemd-analyze verify", &mut verify, logs)
        + check("systemd-analyze security", &mut security, logs))
}

fn check_compose(logs: &Path) -> Count {
    if output_of(Command::new("docker").args(["compose", "version"])).is_none() {
        return skip("the compose file: no docker compose (https://docs.docker.com/compose)");
    }
    let mut command = Command::new("docker");
    command.args(["compose", "--profile", "metrics", "--file"]).arg(folder().join("compose/compose.yaml"));
    check("docker compose config", command.args(["config", "--quiet"]), logs)
}

fn skip(why: &str) -> Count {
    println!("skipped: {why}");
    Count::SKIPPED
}

/// A command that is one check.
fn check(name: &str, command: &mut Command, logs: &Path) -> Count {
    let log = logs.join(format!("{}.log", name.replace(' ', "-")));
    let end = process::run(command, &log, COMMAND_LIMIT).and_then(|end| end.check(name, &log));
    match &end {
        Ok(()) => println!("ok {name}"),
        Err(why) => println!("FAIL {why}"),
    }
    Count::of(end.is_ok())
}
