//! The files in `deploy/` name metrics, variables and settings that the program has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sinews_testkit::{Frame, Reply};

use crate::cluster::at_bus_in_file;
use crate::cluster::broker::{FakeBroker, WireProtocol};
use crate::config::Directory;
use crate::support::{PROGRAM, Running, program, program_at, unused_address};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text files below a folder, with their paths.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.clone(), fs::read_to_string(path).unwrap()));
        }
    }
    found
}

/// The words of a text that begin with one of the prefixes.
fn words<'a>(text: &'a str, prefixes: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| prefixes.iter().any(|prefix| word.len() > prefix.len() && word.starts_with(prefix)))
}

/// The names of a server's samples: of each metric, and those of its kind.
fn names(metrics: &str) -> BTreeSet<String> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names = types.flat_map(|(name, kind)| {
        let endings: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        endings.iter().map(move |ending| format!("{name}{ending}"))
    });
    names.collect()
}

/// The expressions of a dashboard's panels.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| expressions(field, found));
        }
        Value::Array(list) => list.iter().for_each(|entry| expressions(entry, found)),
        _ => {}
    }
}

/// A selector or a grouping of a metric: its name, a label, and its values, if it names any. Without the labels that Prometheus
/// adds.
struct UsedLabel {
    metric: String,
    label: String,
    values: Vec<String>,
}

/// The labels in an expression: of its selectors, and of each `by (…)` with the metric after it.
fn used_labels(text: &str) -> Vec<UsedLabel> {
    let is_own = |label: &str| !matches!(label, "job" | "instance" | "le" | "");
    let mut found = Vec::new();
    for (before, rest) in text.match_indices('{').map(|(at, _)| (&text[..at], &text[at + 1..])) {
        let metric =
            before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        let inside = rest.split('}').next().unwrap_or_default();
        for part in inside.split(',').filter(|_| metric.starts_with("sinews_")) {
            let (label, value) = part.split_once(['=', '!']).unwrap_or_default();
            let values = value.trim_matches(|c| "=~\"".contains(c)).split('|').map(str::to_owned).collect();
            if is_own(label) {
                found.push(UsedLabel { metric: metric.to_owned(), label: label.to_owned(), values });
            }
        }
    }
    for group in text.split("by (").skip(1) {
        let Some(metric) = words(group, &["sinews_"]).next() else { continue };
        let labels = group.split(')').next().unwrap_or_default().split(',').map(str::trim);
        let used =
            |label: &str| UsedLabel { metric: metric.to_owned(), label: label.to_owned(), values: vec![] };
        found.extend(labels.filter(|label| is_own(label)).map(used));
    }
    found
}

/// Metrics that neither the dashboard nor an alert shows, with the reason.
const NOT_SHOWN: [(&str, &str); 7] = [
    ("sinews_loop_turns_total", "the number of turns says nothing without their duration"),
    (
        "sinews_loop_timed_busy_seconds_total",
        "for a question about one loop: docs/book/src/operate/deploy.md",
    ),
    ("sinews_loop_timed_waiting_seconds_total", "the same"),
    ("sinews_stream_segments", "files of a stream: the disk is shown in bytes"),
    ("sinews_stream_earliest_offset", "a position, not a measure"),
    ("sinews_stream_next_offset", "a position, not a measure"),
    ("sinews_stream_failed", "sinews_streams_failed counts them"),
];

/// The names of the topic store's samples, which no server of this test has: gauges, then counters.
fn topic_store_names() -> impl Iterator<Item = String> {
    let source = read("crates/hub/src/topics/stored/metrics.rs");
    let (gauges, counters) = source.split_once("let counters = [").expect("gauges and counters");
    let of = |part: &str, ending: &str| -> Vec<String> {
        let names = words(part, &["sinews_topic_store_"]);
        names.map(|name| format!("{name}{ending}")).collect()
    };
    of(gauges, "").into_iter().chain(of(counters, "_total"))
}

/// A server with every source of metrics but a broker that stores streams, and durable keys, which no cluster has.
fn full_server(directory: &Directory, broker: &FakeBroker) -> Running {
    let nobody = format!("http://{}/", unused_address());
    let file = format!(
        "[http]\nhttp2_clear_text = true\n[auth]\njwks_url = {nobody:?}\npublic_publish = [\">\"]\npublic_subscribe = [\">\"]\n\
         {}[streams]\ndirectory = {:?}\n[hooks]\nrpc = {nobody:?}\n\
         [webhook.app]\nurl = {nobody:?}\nsecret = {:?}\n\
         [[pusher.app]]\nid = \"1\"\nkey = \"key\"\nsecret = \"hidden\"\n",
        at_bus_in_file(&broker.url(), "a"),
        directory.path("streams"),
        "s".repeat(32),
    );
    Running::serve(&["--config", &directory.write("sinews.toml", &file)])
}

fn is_acknowledgement(reply: &Reply) -> bool {
    let Reply::Message(_, text) = reply else { panic!("{reply:?}") };
    let message: Value = serde_json::from_slice(text).unwrap();
    assert_ne!(message["op"], "error", "{message}");
    message["op"] == "ack"
}

#[test]
fn dashboard_and_alerts_name_metrics_of_the_server() {
    let (directory, broker) = (Directory::new(), FakeBroker::start(WireProtocol::Nats));
    let server = full_server(&directory, &broker);
    let answer = server.request("POST /streams/orders HTTP/1.1", "a record");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // The series of a group begin with its first commit.
    let mut reader = server.websocket("/streams/orders");
    reader.send(&Frame::text(r#"{"op":"commit","id":1,"group":"billing","partition":0,"offset":0}"#));
    // The welcome comes first.
    while !reader.next().is_some_and(|reply| is_acknowledgement(&reply)) {}
    // As do those of rejected handshakes.
    let handshake = "GET /echo HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 12";
    assert!(server.request(handshake, "").starts_with("HTTP/1.1 426 "));
    let keys = ["--streams", &directory.path("keys"), "--streams-durable-keys", "kept.>"];
    let metrics = server.get("/metrics") + &Running::serve(&keys).get("/metrics");
    let mut own = names(&metrics);
    own.extend(topic_store_names());
    let mut known = own.clone();
    // A broker that stores streams adds these.
    let source = read("crates/hub/src/hub/health.rs");
    known.extend(words(&source, &["sinews_store_"]).map(str::to_owned));
    known.insert("sinews_store_refused_total".to_owned());

    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/sinews.json")).unwrap();
    let mut shown = Vec::new();
    expressions(&dashboard, &mut shown);
    assert!(shown.len() > 60, "{} expressions", shown.len());
    let alerts = read("deploy/prometheus/alerts.yaml");
    let rules: Vec<String> = alerts.split("- alert:").skip(1).map(rule_expression).collect();
    assert!(rules.len() > 20, "{} alerts", rules.len());
    let mut used = BTreeSet::new();
    for text in shown.iter().chain(&rules) {
        let metric_names: Vec<&str> = words(text, &["sinews_", "process_"]).collect();
        for name in &metric_names {
            assert!(known.contains(*name), "{name} in {text:.200} is no metric");
        }
        for UsedLabel { metric, label, values } in used_labels(text) {
            let mut samples =
                metrics.lines().filter(|line| line.starts_with(&format!("{metric}{{"))).peekable();
            // Without a fetch, the keys of tokens have no age.
            let has_no_sample = metric.starts_with("sinews_store_") || metric == "sinews_jwks_age_seconds";
            assert!(has_no_sample || samples.peek().is_some(), "{metric} in {text:.200} has no labels");
            let samples: Vec<&str> = samples.collect();
            let has = |part: &str| samples.iter().any(|line| line.contains(part));
            assert!(has_no_sample || has(&format!("{label}=\"")), "{metric} has no {label}: {text:.200}");
            for value in values.iter().filter(|_| !has_no_sample) {
                assert!(has(&format!("{label}=\"{value}\"")), "{metric} has no {label} {value}: {text:.200}");
            }
        }
        used.extend(metric_names.iter().map(|name| stem(name).to_owned()));
    }
    used.extend(NOT_SHOWN.iter().map(|(name, _)| stem(name).to_owned()));
    let missing: Vec<&String> = own.iter().filter(|name| !used.contains(stem(name))).collect();
    assert!(missing.is_empty(), "neither on the dashboard, nor in an alert, nor in NOT_SHOWN: {missing:?}");
    let stale: Vec<_> = NOT_SHOWN.iter().filter(|(name, _)| !own.contains(*name)).collect();
    assert!(stale.is_empty(), "not at /metrics: {stale:?}");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
}

/// The name of a histogram's samples without their ending.
fn stem(name: &str) -> &str {
    ["_bucket", "_count", "_sum"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// The expression of a rule: the rest of the line, or the indented lines after it.
fn rule_expression(rule: &str) -> String {
    let rest = rule.split_once("expr:").unwrap_or_default().1;
    let end = ["\n        for:", "\n        labels:"].iter().filter_map(|key| rest.find(key)).min();
    rest[..end.unwrap_or(rest.len())].to_owned()
}

#[test]
fn variables_of_deployments_are_settings() {
    let output = program().args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let mut known: BTreeSet<_> = words(&help, &["SINEWS_"]).collect();
    // Arguments of the image's build, and of `sinews health`.
    known.extend(["SINEWS_COMMIT", "SINEWS_FEATURES", "SINEWS_HEALTH_URL"]);
    let mut named = 0;
    let image = (root().join("Dockerfile"), read("Dockerfile"));
    for (path, text) in files(&root().join("deploy")).into_iter().chain([image]) {
        for name in words(&text, &["SINEWS_"]) {
            assert!(known.contains(name), "{}: {name} is no setting", path.display());
            named += 1;
        }
    }
    assert!(named > 10, "{named} variables");
}

#[test]
fn default_configuration_of_the_chart_is_valid() {
    let values = read("deploy/chart/sinews/values.yaml");
    let block = values.split_once("\nconfig: |\n").unwrap().1;
    let lines = block.lines().take_while(|line| line.is_empty() || line.starts_with("  "));
    let config: Vec<_> = lines.map(|line| line.strip_prefix("  ").unwrap_or_default()).collect();
    assert!(config.len() > 2, "{config:?}");
    let directory = Directory::new();
    let file = directory.write("sinews.toml", &config.join("\n"));
    let output = program().args(["config", "check", &file]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn unit_of_systemd_serves_streams_in_its_state_directory() {
    let unit = read("deploy/sinews.service");
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
        line.unwrap_or_else(|| panic!("no {key}"))
    };
    // The unit documents a directory for streams. With `ProtectSystem=strict`, only the state directory is writable.
    assert_eq!(value("ProtectSystem"), "strict");
    let state = format!("/var/lib/{}", value("StateDirectory"));
    let documented =
        unit.split_once("streams.directory = \"").expect("a directory").1.split('"').next().unwrap();
    assert!(documented.starts_with(&format!("{state}/")), "{documented} is not below {state}");
    let variable = unit.split_once("Environment=SINEWS_STREAMS_DIRECTORY=").expect("a variable").1;
    assert!(variable.starts_with(documented), "{documented}");

    // The command of the unit, with both directories moved: systemd makes the state directory, and the program the one below.
    let directory = Directory::new();
    let (state_here, umask) = (directory.path("state"), value("UMask"));
    fs::create_dir(&state_here).unwrap();
    let file = directory.write("sinews.toml", "");
    let command = value("ExecStart")
        .replace("/usr/local/bin/sinews", PROGRAM)
        .replace("/etc/sinews/sinews.toml", &file);
    let mut shell = program_at("sh", None);
    shell.args(["-c", &format!("umask {umask}; exec {command} --listen 127.0.0.1:0")]);
    shell.env("SINEWS_STREAMS_DIRECTORY", documented.replace(&state, &state_here));
    let server = Running::start(&mut shell);
    assert!(server.request("POST /streams/orders HTTP/1.1", "a record").starts_with("HTTP/1.1 200 "));
    assert!(Path::new(&state_here).join("streams").is_dir());
}

#[cfg(feature = "nats")]
mod nats {
    use std::process::Command;

    use super::*;
    use crate::cluster::real::broker;
    use crate::support::until;

    /// The fields below a key of a YAML file, with the indentation of the first of them.
    fn fields<'a>(text: &'a str, key: &str) -> Vec<(&'a str, &'a str)> {
        let block = text.split_once(&format!("{key}:\n")).unwrap_or_else(|| panic!("no {key}")).1;
        let indent = block.len() - block.trim_start().len();
        let lines = block.lines().take_while(|line| line.len() - line.trim_start().len() >= indent);
        lines
            .filter_map(|line| line.trim().split_once(": "))
            .filter(|(name, _)| !name.starts_with('#'))
            .collect()
    }

    /// The nodes of the compose file, with its variables, and the commands in its head.
    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only nats"]
    fn compose_file_makes_three_nodes_with_durable_topics() {
        let compose = read("deploy/compose/compose.yaml");
        let directory = Directory::new();
        let url = broker::url(&format!("prefix={}", broker::unused_name("compose")));
        let mut ports = Vec::new();
        let nodes: Vec<Running> = (1..=3)
            .map(|number| {
                let node = format!("sinews-{number}");
                let published = fields(&compose, &node).into_iter().find(|(name, _)| *name == "ports");
                let published = published.expect("a port").1;
                ports.push(published.split(':').nth(1).expect("an address, a port and a port").to_owned());
                let mut command = program();
                command.arg("serve");
                for (name, value) in fields(&compose, "  environment") {
                    let value =
                        value.replace("0.0.0.0:8080", "127.0.0.1:0").replace("nats://nats:4222", &url);
                    command.env(name, value.replace("/var/lib/sinews", &directory.path(&node)));
                }
                Running::start(&mut command)
            })
            .collect();
        for node in &nodes {
            until("all nodes are known", || node.get("/metrics").contains("\nsinews_cluster_nodes 3\n"));
        }
        let head = compose.lines().take_while(|line| line.starts_with('#'));
        let commands: Vec<&str> =
            head.filter_map(|line| line.trim_start_matches(['#', ' ']).strip_prefix("curl ")).collect();
        assert_eq!(commands.len(), 2, "{commands:?}");
        for (index, curl) in commands.iter().enumerate() {
            let mut curl = curl.split('#').next().unwrap().trim().to_owned();
            for (port, node) in ports.iter().zip(&nodes) {
                curl = curl.replace(&format!("127.0.0.1:{port}"), &node.address.to_string());
            }
            let output =
                Command::new("sh").args(["-c", &format!("curl --silent --fail {curl}")]).output().unwrap();
            let answer = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{curl}: {answer}");
            assert!(answer.contains(["\"seq\":", "\"data\":\"hello\""][index]), "{curl}: {answer}");
        }
    }
}
