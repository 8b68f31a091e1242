//! `cargo xtask deploy`: the files of `deploy/`, read by the tools that they are for. A tool that is missing is skipped with
//! a line that says how to get it. The names of metrics and settings are a test of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::count::Count;
use crate::process::{self, find_program, output_of};
use crate::tools;

/// Values with which the chart is rendered, beside its defaults.
const CHART_VALUES: [&str; 3] = [
    "streams.enabled=true",
    "replicas=3,streams.enabled=true,streams.store=nats://nats:4222,streams.topics=chat.>,streams.storageClass=fast",
    "auth.existingSecret=keys,ingress.enabled=true,ingress.host=ws.example.com,ingress.tlsSecret=tls,podMonitor.enabled=true",
];
/// Largest exposure that `systemd-analyze security` may find, in tenths.
const EXPOSURE_MAX: &str = "--threshold=20";

pub(crate) fn run() -> Outcome {
    let logs = process::target().join("xtask/deploy");
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    Ok(check_yaml(&logs)?
        + check_chart(&logs)
        + check_rules(&logs)
        + check_unit(&logs)?
        + check_compose(&logs))
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

fn check_chart(logs: &Path) -> Count {
    let Some(helm) = find_program("helm") else {
        return skip("the chart: no helm (https://helm.sh); its templates are YAML");
    };
    let chart = folder().join("chart/sinews");
    let mut lint = Command::new(&helm);
    lint.args(["lint", "--strict"]).arg(&chart);
    let mut count = check("helm lint", &mut lint, logs);
    for (number, values) in [""].iter().chain(&CHART_VALUES).enumerate() {
        let mut render = Command::new(&helm);
        render.args(["template", "test", "--kube-version", "1.30.0"]).arg(&chart);
        if !values.is_empty() {
            render.args(["--set", values]);
        }
        count = count + check(&format!("helm template {number}"), &mut render, logs);
    }
    count
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
    let end = process::run(command, &log, process::COMMAND_LIMIT).and_then(|end| end.check(name, &log));
    match &end {
        Ok(()) => println!("ok {name}"),
        Err(why) => println!("FAIL {why}"),
    }
    Count::of(end.is_ok())
}
